//! The birth of a federation (safety.md 7): does what [`quorate_core::ballot`] says.

use std::sync::Arc;
use std::time::Duration;

use quorate_core::ballot::{self, Ballot, BallotMove, Situation, Voter};
use quorate_core::federation::member::{Incarnation, IncarnationState};
use quorate_core::federation::observed::RecordSummary;
use quorate_core::federation::spec::Spec;
use quorate_core::id::{Epoch, IncarnationId, SiteName, Slot, Uid};
use quorate_core::node;
use quorate_core::reason::{Code, Reason};

use super::{Answers, Event, Federation, waiting};
use crate::ports::{Peers as _, Runtime as _, World};

/// How long one round of asking may take.
const ROUND: Duration = Duration::from_secs(3);
/// Between two rounds: votes also come by gossip.
const AGAIN_MS: u64 = 500;
/// An agent without a part in the federation has so long to say whether it has one of this name.
const NAMING: Duration = Duration::from_secs(1);
/// How long such a word counts.
const NAMED_MS: u64 = 3_000;

/// The coordinator's questions that are on their way.
#[derive(Debug, Default)]
pub(super) struct Asking {
    asked: bool,
    again_at: u64,
    /// Own clock since which only a distance is waited for.
    measuring_since: Option<u64>,
    /// Agents outside of the spec that have a record of this name, and the own clock at which they said so.
    named: Option<(Vec<SiteName>, u64)>,
    naming: bool,
    /// What is waited for before birth.
    pub(super) waits: Option<Reason>,
}

impl<W: World> Federation<W> {
    /// One move towards birth; true if the record changed.
    pub(super) async fn born(&mut self) -> bool {
        if self.record.uid.is_none() && self.record.incarnations.is_empty() && self.listed_here() {
            // A member was added for this site, which nobody does before its agent has acknowledged it.
            let why = "other sites list a member of this one, but there is no record of it";
            self.event("NoRecord", why.to_owned());
            self.missing = Some(why.to_owned());
            return true;
        }
        if let Some(site) = self.rolled_back() {
            let why = format!(
                "site {site} has seen higher numbers from here than the record holds: it is an old copy"
            );
            self.event("NoRecord", why.clone());
            self.missing = Some(why);
            return true;
        }
        if let Some(slot) = self.unknown_life() {
            let why =
                format!("{slot} holds a member that the record does not know: the record is an old copy");
            self.event("NoRecord", why.clone());
            self.missing = Some(why);
            return true;
        }
        let Some(own) = self.own.clone() else {
            self.ballot.waits = None;
            self.last.may_seed = false;
            return false;
        };
        let now = self.now();
        let heard = self.tracker.heard(now);
        let patient = |since| now.saturating_sub(since) < ballot::MEASURING_MS;
        let situation = Situation {
            me: &self.names.site,
            spec: &own.spec,
            digest: own.digest,
            layout: &own.layout,
            record: &self.record,
            heard: &heard,
            measuring: self.ballot.measuring_since.is_none_or(patient),
        };
        let next = ballot::next(situation);
        if matches!(&next, BallotMove::Wait(reason) if reason.code == Code::MeasuringDistance) {
            self.ballot.measuring_since.get_or_insert(now);
        }
        self.last.may_seed = matches!(next, BallotMove::Seed(_));
        self.ballot.waits = waiting(&next);
        match next {
            BallotMove::Mint { uid, epoch } => {
                let uid = uid.unwrap_or_else(|| Uid(self.fresh()));
                let ballot = Arc::new(ballot::mint(situation, uid, epoch));
                self.name_is_free(&own.spec) && self.mint(&ballot).await
            }
            BallotMove::AskVotes(ballot, sites) => {
                self.ask_votes(ballot, sites);
                false
            }
            BallotMove::Seed(ballot) => self.seed(&ballot).await,
            BallotMove::Adopt(_) => self.take_over().await,
            BallotMove::Learn(seeded) => {
                let next = ballot::learn(&self.record, seeded);
                let changed = next != self.record;
                changed && self.persist(next).await && {
                    let (cluster, member) = (seeded.cluster, seeded.member);
                    let text = match self.adopts() {
                        Some(adopt) => format!("cluster {cluster} was adopted by {}", adopt.cluster),
                        None => format!("cluster {cluster} was born at {member}"),
                    };
                    self.event("Seeded", text);
                    true
                }
            }
            BallotMove::Join(joining) => {
                let next = ballot::join(&self.record, joining, own.digest, &own.spec);
                let joined = self.persist(next).await;
                if joined {
                    self.event(
                        "Joined",
                        format!("bound to federation {} of epoch {}", joining.uid, self.record.epoch),
                    );
                }
                joined
            }
            BallotMove::Wait(_) | BallotMove::Done => false,
        }
    }

    /// The seed that was let start and never recorded as seeded, if something of it is still here.
    pub(super) fn interrupted_seed(&self) -> Option<(IncarnationId, Slot)> {
        let interrupted = |i: &&Incarnation| i.seed && i.state > IncarnationState::Planned && !i.archived;
        let seed = self.record.incarnations.iter().find(interrupted)?;
        self.record.seeded.is_none().then(|| (seed.id, seed.slot.clone()))
    }

    /// A started life beside a data directory of this federation and epoch that the record does not name.
    fn unknown_life(&self) -> Option<Slot> {
        self.record.uid?;
        let reports = self.ports.runtime.reports();
        let unknown = |i: &Incarnation| {
            i.epoch == self.record.epoch
                && (IncarnationState::Started..IncarnationState::Removing).contains(&i.state)
                && !self.record.incarnations.iter().any(|known| known.id == i.id)
        };
        reports.iter().find(|r| r.incarnation.as_ref().is_some_and(unknown)).map(|r| r.slot.clone())
    }

    /// What this site checks before it votes.
    pub(super) fn vote(&self, ballot: &Arc<Ballot>) -> Result<quorate_core::intent::record::Record, Reason> {
        let voter = Voter {
            site: &self.names.site,
            digest: self.own.as_ref().map(|own| own.digest),
            record_missing: self.missing.is_some(),
            foreign_data: false,
            unarchived_seed: self.interrupted_seed().is_some(),
        };
        ballot::vote(&self.record, ballot, voter)
    }

    /// Whether no agent of the mesh has a federation of this name, also of those that the own spec does not name: a
    /// federation may be on its way here, and its new sites may have their spec before its old ones have. Whoever does not
    /// answer is not waited for.
    fn name_is_free(&mut self, spec: &Spec) -> bool {
        let now = self.now();
        match &self.ballot.named {
            Some((taken, at)) if now.saturating_sub(*at) < NAMED_MS => {
                let Some(site) = taken.first() else { return true };
                self.ballot.waits = Some(Reason::new(Code::NameTaken).site(site));
                return false;
            }
            _ if self.ballot.naming => return false,
            _ => {}
        }
        let outside: Vec<SiteName> =
            self.ports.peers.mesh().into_iter().filter(|site| !spec.has_site(site)).collect();
        if outside.is_empty() {
            return true;
        }
        self.ballot.naming = true;
        let (peers, from) = (Arc::clone(&self.ports.peers), self.sender());
        self.spawn(async move {
            let ask = |site: SiteName| {
                let peers = &peers;
                async move {
                    let taken = tokio::time::timeout(NAMING, peers.name_taken(&site, from)).await;
                    (taken == Ok(Some(true))).then_some(site)
                }
            };
            let taken = futures::future::join_all(outside.into_iter().map(ask)).await;
            Event::Named(taken.into_iter().flatten().collect())
        });
        false
    }

    pub(super) fn named(&mut self, taken: Vec<SiteName>) {
        self.ballot.naming = false;
        self.ballot.named = Some((taken, self.now()));
    }

    async fn mint(&mut self, ballot: &Arc<Ballot>) -> bool {
        match self.vote(ballot) {
            Ok(next) => {
                let minted = self.persist(next).await;
                if minted {
                    let Ballot { uid, epoch, seed, timing, .. } = ballot.as_ref();
                    let timing = timing.map(|timing| format!(", {timing}")).unwrap_or_default();
                    let text = format!("uid {uid}, epoch {epoch}, seed {seed}{timing}");
                    self.event("BallotMinted", text);
                }
                minted
            }
            Err(reason) => {
                self.ballot.waits = Some(reason);
                false
            }
        }
    }

    fn ask_votes(&mut self, ballot: Arc<Ballot>, sites: Vec<SiteName>) {
        let now = self.now();
        if self.ballot.asked || now < self.ballot.again_at {
            return;
        }
        self.ballot.asked = true;
        let (peers, from) = (Arc::clone(&self.ports.peers), self.sender());
        self.spawn(async move {
            let ask = |site: SiteName| {
                let (peers, ballot) = (&peers, &ballot);
                async move {
                    let vote = tokio::time::timeout(ROUND, peers.vote(&site, from, ballot)).await;
                    Some((site, vote.ok()?))
                }
            };
            let replies = futures::future::join_all(sites.into_iter().map(ask)).await;
            Event::Voted(replies.into_iter().flatten().collect())
        });
    }

    pub(super) fn voted(&mut self, replies: Answers<Result<RecordSummary, Reason>>) {
        let now = self.now();
        self.ballot.asked = false;
        self.ballot.again_at = now + AGAIN_MS;
        for (site, reply) in replies {
            match reply {
                Ok(summary) => {
                    // As good as gossip, and sooner.
                    let Some(old) = self.tracker.observation(&site) else { continue };
                    let mut observation = (**old).clone();
                    observation.record = Arc::new(summary);
                    self.tracker.hear(Arc::new(observation), 0, now);
                    self.ballot.again_at = now;
                }
                Err(reason) => {
                    self.metrics.refused(reason.code.name());
                    tracing::warn!(federation = %self.names.federation, site = %site, %reason, "no vote");
                }
            }
        }
    }

    /// The grant is complete: plans the seed's incarnation, once.
    async fn seed(&mut self, ballot: &Ballot) -> bool {
        let planned = node::current(&self.record, &ballot.seed);
        if planned.is_some_and(|i| i.seed || i.state > IncarnationState::Planned) {
            return false;
        }
        let id = IncarnationId(self.fresh());
        let mut next = self.record.clone();
        // Nothing was ever started under it.
        next.incarnations.retain(|i| i.slot != ballot.seed || i.state != IncarnationState::Planned);
        let seed = node::planned(&next, &ballot.seed, id, true);
        next.incarnations.push(seed);
        let persisted = self.persist(next).await;
        if persisted {
            self.event("Seeding", format!("all of {} voted; {} starts", sites(&ballot.sites), ballot.seed));
        }
        persisted
    }

    /// The epoch, for logs.
    pub(super) fn epoch(&self) -> Epoch {
        self.record.epoch
    }
}

fn sites(names: &[SiteName]) -> String {
    quorate_core::condition::names(names.iter())
}
