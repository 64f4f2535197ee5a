//! Looks at all sites all the time: the newest status of each, every cluster id that was ever seen, and what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use quorate_core::condition::{Condition, ConditionStatus, ConditionType, MemberStatus, Status};
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;

use super::mesh::{Mesh, NAMESPACE, Site};
use super::socket::{self, Event};
use super::story::Story;

const STATUS_EVERY: Duration = Duration::from_millis(100);
const EVENTS_EVERY: Duration = Duration::from_millis(150);
const ETCD_EVERY: Duration = Duration::from_secs(1);

/// The newest status by site; a site that does not answer has none.
pub type Statuses = BTreeMap<String, Status>;

#[derive(Debug, Default)]
struct Seen {
    statuses: Statuses,
    errors: BTreeMap<String, String>,
    cluster_ids: BTreeSet<String>,
    /// The number of the last event that was told, by site.
    told: BTreeMap<String, u64>,
    /// Every sentence that a status ever held, with its site.
    said: BTreeSet<String>,
    smallest_margin: Option<i64>,
}

impl Seen {
    fn note(&mut self, status: &Status) {
        let site = &status.observed_from;
        let conditions = status.conditions.iter();
        let conditions =
            conditions.map(|c| format!("{site}: {:?}={:?} {}: {}", c.kind, c.status, c.reason, c.message));
        self.said.extend(conditions.chain([format!("{site}: {}", status.decision)]));
        // Only the site that executes sees everybody; any other one may itself be cut off.
        if status.executor.as_deref() == Some(site) && status.arithmetic.voters > 0 {
            let margin = status.arithmetic.margin;
            self.smallest_margin = Some(self.smallest_margin.map_or(margin, |least| least.min(margin)));
        }
    }

    fn new_ones(&mut self, site: &str, events: Vec<Event>) -> Vec<Event> {
        let told = self.told.entry(site.to_owned()).or_default();
        let new: Vec<Event> = events.into_iter().filter(|event| event.number > *told).collect();
        *told = new.last().map_or(*told, |last| last.number);
        new
    }
}

/// A watch over the sites.
#[derive(Debug, Clone)]
pub struct Watch {
    federation: String,
    seen: Arc<Mutex<Seen>>,
    changed: Arc<tokio::sync::Notify>,
    drain: Drain,
}

impl Watch {
    /// Begins to watch; with a story, what the agents report is told.
    pub fn start(mesh: &Mesh, federation: &str, story: Option<&Story>) -> Self {
        let watch = Self {
            federation: federation.to_owned(),
            seen: Arc::default(),
            changed: Arc::default(),
            drain: Drain::new(),
        };
        for site in &mesh.sites {
            watch.drain.spawn_until(watch.clone().look(site.clone()));
            if let Some(story) = story {
                watch.drain.spawn_until(watch.clone().tell(site.clone(), story.clone()));
            }
            watch.drain.spawn_until(watch.clone().look_at_etcd(site.clone()));
        }
        watch
    }

    /// Ends it.
    pub async fn stop(&self) {
        self.drain.finish(Duration::from_secs(2)).await;
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest statuses.
    pub fn statuses(&self) -> Statuses {
        self.seen().statuses.clone()
    }

    /// Every cluster id that an agent or an etcd has ever told.
    pub fn cluster_ids(&self) -> BTreeSet<String> {
        self.seen().cluster_ids.clone()
    }

    /// Every sentence that a condition or decision ever said: `site: Type=Status Reason: message`.
    pub fn said(&self) -> Vec<String> {
        self.seen().said.iter().cloned().collect()
    }

    /// Forgets what was said and the smallest margin: what is asked for from now on happened from now on.
    pub fn from_now(&self) {
        let mut seen = self.seen();
        seen.said.clear();
        seen.smallest_margin = None;
    }

    /// The smallest margin (alive voters less the quorum) that an executing site has told.
    pub fn smallest_margin(&self) -> Option<i64> {
        self.seen().smallest_margin
    }

    /// Waits until `good` holds for the statuses; says what was awaited and how things stand if it never does.
    pub async fn until(
        &self,
        what: &str,
        patience: Duration,
        good: impl Fn(&Statuses) -> bool,
    ) -> Result<Statuses> {
        let clock = Clock::start();
        loop {
            let changed = self.changed.notified();
            let statuses = self.statuses();
            if good(&statuses) {
                return Ok(statuses);
            }
            let left = patience.saturating_sub(clock.elapsed());
            if left.is_zero() {
                bail!(
                    "waited {} s for {what}; this is how it stands:\n{}",
                    patience.as_secs(),
                    self.describe()
                );
            }
            // Either way it is looked at again.
            let _ = tokio::time::timeout(left.min(Duration::from_secs(1)), changed).await;
        }
    }

    /// Waits until somebody was looked at again.
    pub async fn looked(&self) {
        // Either way it is looked at again.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.changed.notified()).await;
    }

    /// How things stand, for people.
    pub fn describe(&self) -> String {
        let seen = self.seen();
        let mut lines: Vec<String> = seen.statuses.values().map(describe).collect();
        lines.extend(seen.errors.iter().map(|(site, error)| format!("{site}: {error}")));
        lines.join("\n")
    }

    async fn look(self, site: Site) {
        loop {
            let status = socket::status(&site.socket(), NAMESPACE, &self.federation).await;
            self.note(&site.name, status);
            self.changed.notify_waiters();
            tokio::time::sleep(STATUS_EVERY).await;
        }
    }

    fn note(&self, site: &str, status: Result<Status>) {
        let mut seen = self.seen();
        match status {
            Ok(status) => {
                let id = status.cluster_id.as_deref().and_then(|id| u64::from_str_radix(id, 16).ok());
                seen.cluster_ids.extend(id.map(|id| format!("{id:x}")));
                seen.errors.remove(site);
                seen.note(&status);
                seen.statuses.insert(site.to_owned(), status);
            }
            Err(error) => {
                seen.statuses.remove(site);
                // Whoever answers next may be a new agent, which counts from one.
                seen.told.remove(site);
                seen.errors.insert(site.to_owned(), format!("{error:#}"));
            }
        }
    }

    /// Tells the transitions that an agent reports, each once.
    async fn tell(self, site: Site, story: Story) {
        loop {
            let events =
                socket::events(&site.socket(), NAMESPACE, &self.federation).await.unwrap_or_default();
            let new = self.seen().new_ones(&site.name, events);
            for event in new.iter().filter(|event| !QUIET.contains(&event.kind.as_str())) {
                story.say(&format!("{:<6} {}: {}", site.name, event.kind, event.text));
            }
            tokio::time::sleep(EVENTS_EVERY).await;
        }
    }

    async fn look_at_etcd(self, site: Site) {
        let Ok(client) = site.client().await else { return };
        let client = client.with_deadline(Duration::from_secs(1));
        loop {
            if let Ok(status) = client.status().await {
                self.seen().cluster_ids.insert(format!("{:x}", status.header.cluster_id));
            }
            tokio::time::sleep(ETCD_EVERY).await;
        }
    }
}

/// What is not told: the same is told when it is done.
const QUIET: [&str; 2] = ["IntentAcknowledged", "StepPlanned"];

/// A status in a few lines: what is decided, what is not well, and the members.
pub fn describe(status: &Status) -> String {
    let now = &status.arithmetic;
    let head = format!(
        "{}: {}; voters {}, alive {}, quorum {}, margin {}",
        status.observed_from, status.decision, now.voters, now.alive, now.quorum, now.margin
    );
    let troubles = status.conditions.iter().filter(|condition| is_trouble(condition));
    let troubles = troubles.map(|c| format!("\n    {:?}={:?} {}: {}", c.kind, c.status, c.reason, c.message));
    head + &troubles.collect::<String>() + &table(status)
}

fn is_trouble(condition: &Condition) -> bool {
    use ConditionType as T;
    match condition.kind {
        T::Ready | T::Quorate | T::SpecAgreed | T::PeersReachable | T::AllMembersReady => {
            condition.status == ConditionStatus::False
        }
        T::Frozen | T::DataLost | T::DivergentData | T::QuorumAtRisk => {
            condition.status == ConditionStatus::True
        }
        _ => false,
    }
}

/// The members, one a line.
pub fn table(status: &Status) -> String {
    let line = |m: &MemberStatus| {
        let leader = if m.leader { " leader" } else { "" };
        format!("\n    {:<16} {:>16}  {:<6} {:<7} {}{leader}", m.name, m.id, m.site, m.role, m.state)
    };
    status.members.iter().map(line).collect()
}

/// The state of a condition.
pub fn condition(status: &Status, kind: ConditionType) -> Option<ConditionStatus> {
    status.conditions.iter().find(|condition| condition.kind == kind).map(|condition| condition.status)
}

/// Whether each of `sites` sees `voters` voters and nothing else, all alive and the same ones, and whether the site that
/// executes has nothing left to do: it finds the last change settled in all of them.
pub fn settled(statuses: &Statuses, sites: &[String], voters: usize) -> bool {
    let mut members = BTreeSet::new();
    let all = sites.iter().all(|site| {
        statuses.get(site).is_some_and(|status| {
            let mut ids: Vec<&str> = status.members.iter().map(|m| m.id.as_str()).collect();
            ids.sort_unstable();
            members.insert(ids.join(" "));
            status.members.len() == voters
                && status.arithmetic.voters == voters
                && status.arithmetic.alive == voters
                && status.members.iter().all(|m| m.role == "voter" && m.state == "alive")
                && condition(status, ConditionType::Ready) == Some(ConditionStatus::True)
        })
    });
    all && members.len() == 1 && statuses.values().any(done)
}

/// The same, with so many voters at each of these sites.
pub fn settled_as(statuses: &Statuses, shape: &[(&str, usize)]) -> bool {
    let sites: Vec<String> = shape.iter().map(|(site, _)| (*site).to_owned()).collect();
    let voters = shape.iter().map(|(_, voters)| voters).sum();
    let shaped = |status: &Status| {
        let at = |site: &str| status.members.iter().filter(|m| m.site == site).count();
        shape.iter().all(|(site, voters)| at(site) == *voters)
    };
    settled(statuses, &sites, voters) && sites.iter().filter_map(|site| statuses.get(site)).all(shaped)
}

/// Where clients are to go, as the site says that executes; none if nobody does.
pub fn endpoints(statuses: &Statuses) -> Option<Vec<String>> {
    let executes = |status: &&Status| status.executor.as_deref() == Some(status.observed_from.as_str());
    let status = statuses.values().filter(executes).max_by_key(|status| status.generation)?;
    (!status.endpoints.is_empty()).then(|| status.endpoints.clone())
}

/// Whether this site executes and has nothing left to do.
fn done(status: &Status) -> bool {
    let executes = status.executor.as_deref() == Some(status.observed_from.as_str());
    let rests = |c: &Condition| c.kind == ConditionType::Progressing && c.reason == "AsWished";
    executes && status.conditions.iter().any(rests)
}

/// The ids of the members that a site hosts.
pub fn member_ids(statuses: &Statuses, site: &str) -> BTreeSet<String> {
    let all = statuses.values().flat_map(|status| &status.members);
    all.filter(|m| m.site == site).map(|m| m.id.clone()).collect()
}
