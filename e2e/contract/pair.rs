//! The model and the real processes side by side, brought through the same operations.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_core::id::{MemberId, PeerUrl};
use quorate_core::sim::etcd::{Answer, At, Cluster, Refusal, Request};
use quorate_core::sim::rng::Rng;
use serde_json::json;

use crate::real::Etcd;
use crate::sequence::{Op, Situation, Whom};
use crate::{DEADLINE, Outcome};

/// Comfortably more than etcd's `HealthInterval`.
const CALM_MS: u64 = 6_500;
/// Comfortably more than an election.
const ELECTION_MS: u64 = 3_000;
/// An id that no member has.
const NOBODY: MemberId = MemberId(0x1234);
/// Writes of one [`Op::Write`].
const WRITES: usize = 60;
/// Seconds after which a refusal for want of connections is no longer a reconnect.
const RECONNECTS: usize = 12;

/// Model and reality side by side; the members have the same numbers in both.
pub(crate) struct Pair {
    model: Cluster,
    pub(crate) real: Etcd,
    /// Number in the model of each real member; members of refused adds have none.
    numbers: Vec<Option<At>>,
    calm: bool,
    pub(crate) story: String,
}

impl Pair {
    pub(crate) async fn new(binary: PathBuf, seed: u64) -> Result<Self> {
        let real = Etcd::three(binary)?;
        let members = real
            .members
            .iter()
            .map(|m| (PeerUrl(m.url.as_str().into()), m.name.as_str().into(), 0))
            .collect();
        let mut model = Cluster::born("contract", members, 0, Rng::new(seed, 2));
        (0..3).for_each(|at| model.start(at));
        let numbers = vec![Some(0), Some(1), Some(2)];
        let mut pair = Self { model, real, numbers, calm: false, story: format!("seed {seed}\n") };
        pair.pass(CALM_MS).await;
        pair.align().await?;
        Ok(pair)
    }

    async fn pass(&mut self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        self.advance(ms);
    }

    fn advance(&mut self, ms: u64) {
        for _ in 0..ms / 50 {
            let now = self.model.now() + 50;
            self.model.advance(now);
        }
    }

    fn number(&self, real: usize) -> Option<At> {
        self.numbers.get(real).copied().flatten()
    }

    fn real_of(&self, at: At) -> Option<usize> {
        self.numbers.iter().position(|number| *number == Some(at))
    }

    /// The model cannot know who won a real election: it follows.
    async fn align(&mut self) -> Result<()> {
        if self.model.true_leader().is_none() {
            return Ok(());
        }
        for _ in 0..20 {
            if let Some(real) = self.real.leader().await {
                let at = self.number(real).context("an unknown member leads")?;
                for _ in 0..200 {
                    let Some(leader) = self.model.true_leader() else { bail!("the model lost its leader") };
                    if leader == at {
                        return Ok(());
                    }
                    let id = self.model.nodes[at].id;
                    self.model.call(leader, &Request::MoveLeader(id), 1_000, 0);
                    let now = self.model.now() + 10;
                    self.model.advance(now);
                }
                bail!("the model's leadership does not follow to member {real}");
            }
            self.pass(250).await;
        }
        bail!("the model has a leader, the real cluster has none")
    }

    fn conf_members(&self) -> Vec<(At, bool)> {
        let view = self.model.true_leader().or_else(|| self.model.nodes.iter().position(|n| n.running));
        view.map(|at| self.model.nodes[at].conf().members.clone()).unwrap_or_default()
    }

    pub(crate) fn situation(&self) -> Situation {
        let members = self.conf_members();
        let node = |at: &At| &self.model.nodes[*at];
        Situation {
            learner: members.iter().any(|(_, learner)| *learner),
            unstarted: members.iter().any(|(at, _)| !node(at).started),
            down: members.iter().filter(|(at, _)| node(at).started && !node(at).running).count(),
            voters: members.iter().filter(|(_, learner)| !learner).count(),
            quorum: self.model.true_leader().is_some(),
            calm: self.calm,
        }
    }

    /// Numbers in the model by ascending URL, so that both sides mean the same one.
    fn whom(&self, whom: Whom) -> Option<At> {
        let leader = self.model.true_leader();
        let mut members = self.conf_members();
        members.sort_by_key(|(at, _)| self.model.nodes[*at].url.clone());
        let fits = |(at, learner): &&(At, bool)| {
            let node = &self.model.nodes[*at];
            match whom {
                Whom::Unknown => false,
                Whom::Leader => Some(*at) == leader,
                Whom::Follower => Some(*at) != leader && !learner && node.running,
                Whom::Learner => *learner,
                Whom::Down => node.started && !node.running,
            }
        };
        members.iter().find(fits).map(|(at, _)| *at)
    }

    fn asked(&self) -> At {
        self.model.true_leader().or_else(|| self.whom(Whom::Follower)).unwrap_or(0)
    }

    async fn real_ids(&self) -> BTreeMap<String, (u64, bool)> {
        for at in 0..self.real.members.len() {
            if self.real.members[at].runs()
                && let Ok(Some(list)) = self.real.list(at).await
            {
                return list;
            }
        }
        BTreeMap::new()
    }

    /// Makes the same call on both sides and compares the answers.
    async fn both(
        &mut self,
        asked: At,
        request: Request,
        path: &str,
        body: serde_json::Value,
    ) -> Result<Outcome> {
        let real = self.real_of(asked).context("the asked member is unknown")?;
        let deadline = u64::try_from(DEADLINE.as_millis()).unwrap();
        let ticket = self.model.call(asked, &request, deadline, 0);
        let place = real;
        let mut real = self.real.call(place, path, body.clone()).await?;
        let mut waited = 0;
        while self.model.peek(ticket).is_none() && waited < deadline {
            self.advance(100);
            waited += 100;
        }
        let model = match self.model.peek(ticket) {
            Some(Answer::Done) => Outcome::Done,
            Some(Answer::Refused(refusal)) => Outcome::Refused(refusal),
            None => Outcome::Hangs,
        };
        // etcd counts its five seconds from the last reconnect of a stream, which a busy machine can cause and no model
        // can know. The refusal is definite, so the call is repeated; one that stays is a difference.
        for _ in 0..RECONNECTS {
            if model != Outcome::Done || real != Outcome::Refused(Refusal::Unhealthy) {
                break;
            }
            self.pass(1_000).await;
            real = self.real.call(place, path, body.clone()).await?;
        }
        let _ = writeln!(self.story, "    model {model:?}, etcd {real:?}");
        // A call without a quorum ends by the server's own timeout or by ours, whichever is shorter.
        let same = model == real
            || (model == Outcome::Hangs
                && matches!(&real, Outcome::Other(text) if text.contains("timed out") || text.contains("no leader")));
        if !same {
            bail!("the model says {model:?}, etcd {real:?}");
        }
        Ok(model)
    }

    async fn member_call(
        &mut self,
        whom: Whom,
        path: &str,
        request: impl Fn(MemberId) -> Request,
    ) -> Result<bool> {
        let target = self.whom(whom);
        if target.is_none() && whom != Whom::Unknown {
            return Ok(false);
        }
        let id = target.map_or(NOBODY, |at| self.model.nodes[at].id);
        let url = target.map(|at| {
            self.model.nodes[at]
                .conf()
                .list
                .get(id)
                .map_or_else(|| self.model.nodes[at].url.0.to_string(), |m| m.peer_url.0.to_string())
        });
        let listed = self.real_ids().await;
        let real_id = match &url {
            Some(url) => match listed.get(url) {
                Some((id, _)) => *id,
                None => return Ok(false), // without a quorum nobody can be asked for ids
            },
            None => NOBODY.0,
        };
        let asked = self.asked();
        let field = if path.ends_with("transfer-leadership") { "targetID" } else { "ID" };
        let mut body = json!({ field: real_id.to_string() });
        let request = request(id);
        if let Request::Update(_, url) = &request {
            body["peerURLs"] = json!([url.0.as_str()]);
        }
        self.both(asked, request, path, body).await?;
        Ok(true)
    }

    async fn add(&mut self, learner: bool, duplicate: bool) -> Result<()> {
        let real = self.real.reserve()?;
        self.numbers.push(None);
        let url = if duplicate {
            self.real.members[self.real_of(self.asked()).unwrap()].url.clone()
        } else {
            self.real.members[real].url.clone()
        };
        let name = self.real.members[real].name.as_str().into();
        let before = self.model.nodes.len();
        let request = Request::Add { url: PeerUrl(url.as_str().into()), learner, name, site: 0 };
        let body = json!({"peerURLs": [url], "isLearner": learner});
        let outcome = self.both(self.asked(), request, "/v3/cluster/member/add", body).await?;
        if outcome == Outcome::Done {
            self.numbers[real] = Some(before);
        }
        Ok(())
    }

    async fn start_new(&mut self) -> Result<()> {
        let unstarted =
            self.conf_members().into_iter().map(|(at, _)| at).find(|at| !self.model.nodes[*at].started);
        let Some(at) = unstarted else { return Ok(()) };
        let real = self.real_of(at).context("no such real member")?;
        let listed: Vec<usize> = self.conf_members().iter().filter_map(|(at, _)| self.real_of(*at)).collect();
        self.real.start(real, "existing", &listed)?;
        self.model.start(at);
        self.pass(2_500).await;
        Ok(())
    }

    pub(crate) async fn carry_out(&mut self, op: Op) -> Result<()> {
        let _ = writeln!(self.story, "  {op}");
        match op {
            Op::Calm => {
                self.pass(CALM_MS).await;
                self.calm = true;
            }
            Op::Write => {
                let body = json!({"key": "a2V5", "value": "dmFsdWU="});
                for _ in 0..WRITES {
                    if self.both(self.asked(), Request::Put, "/v3/kv/put", body.clone()).await?
                        != Outcome::Done
                    {
                        break;
                    }
                }
            }
            Op::AddLearner => self.add(true, false).await?,
            Op::AddVoter => self.add(false, false).await?,
            Op::AddDuplicate => self.add(true, true).await?,
            Op::StartNew => {
                self.start_new().await?;
                self.calm = false;
            }
            Op::Promote(whom) => {
                self.member_call(whom, "/v3/cluster/member/promote", Request::Promote).await?;
            }
            Op::Remove(whom) => {
                self.member_call(whom, "/v3/cluster/member/remove", Request::Remove).await?;
                self.pass(ELECTION_MS).await;
                self.bury_removed().await?;
            }
            Op::MoveLeader(whom) => {
                self.member_call(whom, "/v3/maintenance/transfer-leadership", Request::MoveLeader).await?;
            }
            Op::MoveByFollower => {
                if let Some(at) = self.whom(Whom::Follower) {
                    let body = json!({"targetID": NOBODY.0.to_string()});
                    let request = Request::MoveLeader(NOBODY);
                    self.both(at, request, "/v3/maintenance/transfer-leadership", body).await?;
                }
            }
            Op::UpdateOwn(whom) => {
                let url = self.whom(whom).map_or_else(
                    || PeerUrl("http://127.0.0.1:9".into()),
                    |at| self.model.nodes[at].url.clone(),
                );
                self.member_call(whom, "/v3/cluster/member/update", move |id| {
                    Request::Update(id, url.clone())
                })
                .await?;
            }
            Op::UpdateDuplicate(whom) => {
                let url = self.model.nodes[self.asked()].url.clone();
                self.member_call(whom, "/v3/cluster/member/update", move |id| {
                    Request::Update(id, url.clone())
                })
                .await?;
            }
            Op::Kill(whom) => {
                if let Some(at) = self.whom(whom).filter(|at| self.model.nodes[*at].running) {
                    self.real.kill(self.real_of(at).unwrap()).await?;
                    self.model.crash(at);
                    self.pass(ELECTION_MS).await;
                    self.calm = false;
                }
            }
            Op::Restart => {
                if let Some(at) = self.whom(Whom::Down) {
                    let listed: Vec<usize> =
                        self.conf_members().iter().filter_map(|(at, _)| self.real_of(*at)).collect();
                    self.real.start(self.real_of(at).unwrap(), "existing", &listed)?;
                    self.model.start(at);
                    self.pass(2_500).await;
                    self.calm = false;
                }
            }
        }
        self.align().await
    }

    /// A removed member stops by itself; one that was down never hears of it, and is not started again here.
    async fn bury_removed(&mut self) -> Result<()> {
        let listed: Vec<At> = self.conf_members().into_iter().map(|(at, _)| at).collect();
        for real in 0..self.numbers.len() {
            if let Some(at) = self.number(real)
                && !listed.contains(&at)
                && self.model.true_leader().is_some()
            {
                self.real.kill(real).await?;
                self.model.crash(at);
                self.numbers[real] = None;
            }
        }
        Ok(())
    }

    pub(crate) async fn compare_lists(&mut self) -> Result<()> {
        let Some(leader) = self.model.true_leader() else { return Ok(()) };
        let list = self.model.linearizable_list(leader).context("the model's leader has no list")?.1;
        let model: BTreeMap<String, bool> =
            list.iter().map(|m| (m.peer_url.0.to_string(), m.learner)).collect();
        let real = self.real.list(self.real_of(leader).unwrap()).await?.context("etcd answers no list")?;
        let real: BTreeMap<String, bool> =
            real.into_iter().map(|(url, (_, learner))| (url, learner)).collect();
        if model != real {
            bail!("the model's members are {model:?}, etcd's {real:?}");
        }
        if let Some(loss) = self.model.losses().first() {
            bail!("the model lost an acknowledged write: {loss:?}");
        }
        Ok(())
    }
}
