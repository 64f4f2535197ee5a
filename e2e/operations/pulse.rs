//! How many voters more than a majority there are, as the etcds themselves have it: not as any agent tells it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use quorate_cli::demo::process::{Kind, Process};
use quorate_e2e::field::Field;
use quorate_link::drain::Drain;
use quorate_link::etcd::EtcdClient;
use quorate_link::etcd::client::MemberList;
use tokio::task::JoinSet;

/// Between two looks: every state between two membership changes lasts for seconds.
const EVERY: Duration = Duration::from_millis(400);
/// What does not answer by then counts as down.
const DEADLINE: Duration = Duration::from_secs(2);

/// What one etcd says.
#[derive(Debug, Clone)]
struct Beat {
    id: u64,
    term: u64,
    leader: u64,
    list: Option<MemberList>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The margin of the last look.
    last: Option<i64>,
    smallest: Option<i64>,
    list: Option<MemberList>,
}

/// Feels the pulse of all etcds of a field until it is dropped.
#[derive(Debug)]
pub(crate) struct Pulse {
    seen: Arc<Mutex<Seen>>,
    drain: Drain,
}

impl Pulse {
    /// `strangers` lead to etcds that no site of the field has started.
    pub(crate) fn start(field: &Arc<Field>, strangers: Vec<EtcdClient>) -> Self {
        let pulse = Self { seen: Arc::default(), drain: Drain::new() };
        let (field, seen) = (Arc::clone(field), Arc::clone(&pulse.seen));
        pulse.drain.spawn_until(async move {
            let known = |client: EtcdClient| (client.endpoint().to_owned(), client.with_deadline(DEADLINE));
            let mut clients: BTreeMap<String, EtcdClient> = strangers.into_iter().map(known).collect();
            loop {
                let beats = feel(&field, &mut clients).await;
                lock(&seen).note(&beats);
                tokio::time::sleep(EVERY).await;
            }
        });
        pulse
    }

    /// Forgets what was.
    pub(crate) fn forget(&self) {
        *lock(&self.seen) = Seen::default();
    }

    /// The smallest margin that two looks in a row have found: one alone may have met a busy machine or an election.
    pub(crate) fn smallest(&self) -> Option<i64> {
        lock(&self.seen).smallest
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.drain.start();
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    fn note(&mut self, beats: &[Beat]) {
        // One that is cut off may believe for a while that it leads: the highest term is right.
        let leader = beats.iter().filter(|beat| beat.leader == beat.id).max_by_key(|beat| beat.term).cloned();
        let (leader, list) = leader.map_or((None, None), |beat| (Some((beat.id, beat.term)), beat.list));
        // Without a leader nobody can have changed it since.
        self.list = list.or_else(|| self.list.take());
        let Some(list) = &self.list else { return };
        let voters = list.members.iter().filter(|member| !member.is_learner);
        let up = |id: u64| {
            let beat = beats.iter().find(|beat| beat.id == id);
            beat.is_some_and(|beat| leader.is_none_or(|leader| (beat.leader, beat.term) == leader))
        };
        let (mut total, mut alive) = (0, 0);
        for member in voters {
            total += 1;
            alive += i64::from(up(member.id));
        }
        let margin = alive - (total / 2 + 1);
        if let Some(last) = self.last.replace(margin) {
            let both = last.max(margin);
            self.smallest = Some(self.smallest.map_or(both, |least| least.min(both)));
        }
    }
}

async fn feel(field: &Field, clients: &mut BTreeMap<String, EtcdClient>) -> Vec<Beat> {
    let etcds = field.mesh.run.processes().into_iter().filter(|process| process.kind == Kind::Etcd);
    let mut asked = JoinSet::new();
    for etcd in etcds {
        // One that ends just now need not be asked.
        if let Ok(client) = client(field, &etcd, clients).await {
            asked.spawn(beat(client));
        }
    }
    asked.join_all().await.into_iter().flatten().collect()
}

async fn client(
    field: &Field,
    etcd: &Process,
    clients: &mut BTreeMap<String, EtcdClient>,
) -> Result<EtcdClient> {
    let url = etcd.flag("advertise-client-urls").context("no client URL")?;
    if let Some(known) = clients.get(url) {
        return Ok(known.clone());
    }
    let user = field.site(&etcd.site)?.user()?;
    let client = EtcdClient::connect(url, &user).await?.with_deadline(DEADLINE);
    clients.insert(url.to_owned(), client.clone());
    Ok(client)
}

async fn beat(client: EtcdClient) -> Option<Beat> {
    let status = client.status().await.ok()?;
    let (id, leader, term) = (status.header.member_id, status.leader, status.header.raft_term);
    let list = if leader == id { client.member_list(false).await.ok() } else { None };
    Some(Beat { id, term, leader, list })
}
