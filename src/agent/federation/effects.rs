//! What the executor's machine asks for, done with real IO.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::executor::{Answer, Call, CallResult, Effect, Role};
use quorate_core::id::{SiteName, Slot};
use quorate_core::intent::{Intent, IntentKind, Resolution};
use quorate_core::membership::quorum::quorum;
use quorate_core::reason::Reason;

use super::{Event, Federation};
use crate::ports::{Clock, Etcd, Peers as _, World};

/// Once enough agents have answered, the others get this long.
const GRACE: Duration = Duration::from_millis(300);
/// An agent that has not answered by then is not waited for.
const PATIENCE: Duration = Duration::from_secs(4);

impl<W: World> Federation<W> {
    /// Starts one effect; its answer if that is known at once.
    pub(super) async fn start(&mut self, effect: Effect) -> Option<Answer> {
        let slot = self.run.current.as_ref().map(|run| run.slot.clone())?;
        #[cfg(feature = "crash-points")]
        self.crash_point(super::crash::name(&effect), 1);
        match effect {
            Effect::ProveRole => {
                let (etcd, clock) = (Arc::clone(&self.ports.etcd), Arc::clone(&self.ports.clock));
                self.effect(async move { Answer::Role(prove(&*etcd, &*clock, &slot).await) });
                None
            }
            Effect::Collect(sites) => {
                let sites = if sites.is_empty() { self.others() } else { sites };
                self.collect(sites);
                None
            }
            Effect::Look => {
                let now = self.now();
                if let Some(run) = &mut self.run.current {
                    run.look_after = Some(now);
                }
                self.look.soon();
                None
            }
            Effect::Propose(intent, sites) => {
                self.propose(intent, sites).await;
                None
            }
            Effect::MarkSent(seq, sent) => {
                let marked = match self.record.mark_sent(seq, sent) {
                    Some(next) => self.persist(next).await,
                    None => false,
                };
                Some(Answer::Marked(marked))
            }
            Effect::Send { call, deadline_ms, not_after_ms } => {
                if let Call::MoveLeader(to) = call {
                    self.note_move(to);
                }
                let (etcd, clock) = (Arc::clone(&self.ports.etcd), Arc::clone(&self.ports.clock));
                self.effect(async move {
                    if clock.now_ms() > not_after_ms {
                        return Answer::Sent(CallResult::NotSent);
                    }
                    Answer::Sent(etcd.call(&slot, &call, deadline_ms).await)
                });
                None
            }
            Effect::Wait(ms) => {
                self.effect(async move {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    Answer::Waited
                });
                None
            }
            Effect::Tell(resolution, sites) => {
                self.tell(resolution, sites).await;
                None
            }
            Effect::Finish(outcome) => {
                self.finished(outcome);
                None
            }
        }
    }

    fn effect(&self, work: impl Future<Output = Answer> + Send + 'static) {
        self.spawn(async move { Event::Effect(Box::new(work.await)) });
    }

    fn collect(&mut self, sites: Vec<SiteName>) {
        let (peers, from) = (Arc::clone(&self.ports.peers), self.sender());
        let (need, weights, me) = (self.voters_needed(), self.weights(), self.names.site.clone());
        self.effect(async move {
            let ask = |site: SiteName| {
                let peers = Arc::clone(&peers);
                async move { peers.record(&site, from).await }
            };
            let enough = |records: &[(SiteName, Option<_>)]| {
                let answered = records.iter().filter(|(_, record)| record.is_some());
                answered.map(|(site, _)| weight(&weights, site)).sum::<usize>() + weight(&weights, &me)
                    >= need
            };
            Answer::Records(ask_all(sites, ask, enough).await)
        });
    }

    async fn propose(&mut self, intent: Arc<Intent>, sites: Vec<SiteName>) {
        self.event("StepPlanned", format!("{} (number {}, {})", intent.kind, intent.seq, intent.operation));
        let own = match self.record.propose(&intent, self.witness()) {
            Ok(next) => {
                let sent = next.intent.as_ref().is_some_and(|held| held.sent_by_me);
                if self.persist(next).await { Ok(sent) } else { Err(self.no_record()) }
            }
            Err(reason) => Err(reason),
        };
        #[cfg(feature = "crash-points")]
        self.crash_point("ProposeOwn", 0);
        self.note_own();
        let asked = sites.into_iter().filter(|site| *site != self.names.site).collect();
        let (peers, from, me) = (Arc::clone(&self.ports.peers), self.sender(), self.names.site.clone());
        let need = self.voters_needed();
        let alive = self.target_site(&intent.kind);
        let weights = self.weights();
        self.effect(async move {
            let ask = |site: SiteName| {
                let (peers, intent) = (Arc::clone(&peers), Arc::clone(&intent));
                async move { peers.propose(&site, from, &intent).await }
            };
            let enough = |acks: &[(SiteName, Result<bool, Reason>)]| {
                let yes = || acks.iter().filter(|(_, ack)| ack.is_ok()).map(|(site, _)| site);
                let have: usize =
                    yes().map(|site| weight(&weights, site)).sum::<usize>() + weight(&weights, &me);
                have >= need && alive.as_ref().is_none_or(|site| *site == me || yes().any(|s| s == site))
            };
            let mut acks = ask_all(asked, ask, enough).await;
            acks.push((me.clone(), own));
            Answer::Acks(acks)
        });
    }

    /// The own agent takes note first; a message to others that gets lost costs only a second look.
    async fn tell(&mut self, resolution: Arc<Resolution>, sites: Vec<SiteName>) {
        // Whoever has a part before it: an activation takes the part away from those that have to hear of it.
        let mut asked = self.others();
        let next = self.record.resolve(&resolution);
        // Not durable here: the intent stays open and is judged again.
        self.persist(next).await;
        #[cfg(feature = "crash-points")]
        self.crash_point("TellOwn", 0);
        self.note_own();
        self.say();
        asked.extend(self.others());
        asked.sort();
        asked.dedup();
        let sites = if sites.is_empty() { asked } else { sites };
        let (peers, from) = (Arc::clone(&self.ports.peers), self.sender());
        self.effect(async move {
            let ask = |site: SiteName| {
                let (peers, resolution) = (Arc::clone(&peers), Arc::clone(&resolution));
                async move { peers.resolve(&site, from, &resolution).await }
            };
            // A lost message costs only a second look.
            ask_all(sites, ask, |told| !told.is_empty()).await;
            Answer::Told
        });
    }

    fn voters_needed(&self) -> usize {
        quorum(self.last.view.as_ref().map_or(1, |view| view.voters().count()))
    }

    fn weights(&self) -> Vec<(SiteName, usize)> {
        let Some(view) = &self.last.view else { return Vec::new() };
        self.sites().into_iter().map(|site| (site.clone(), view.voters_at(&site))).collect()
    }

    /// The site of the target, if that is seen alive: its acknowledgement is needed.
    fn target_site(&self, kind: &IntentKind) -> Option<SiteName> {
        if let IntentKind::AddLearner { slot, .. } = kind {
            return Some(slot.site.clone());
        }
        let member = self.last.view.as_ref()?.member(kind.target()?)?;
        member.site().filter(|_| member.life.alive()).cloned()
    }
}

fn weight(weights: &[(SiteName, usize)], site: &SiteName) -> usize {
    weights.iter().find(|(name, _)| name == site).map_or(0, |(_, voters)| *voters)
}

/// Status and linearizable list of the own member; the same term in both.
async fn prove<E: Etcd, C: Clock>(etcd: &E, clock: &C, slot: &Slot) -> Option<Role> {
    let status = etcd.status(slot).await?;
    let (list, term) = etcd.list(slot).await?;
    let leads = status.leader == Some(status.member) && term == status.term;
    Some(Role { leads, term, list, at_ms: clock.now_ms() })
}

/// Asks all sites at once; ends when all have answered, when enough have and a grace is over, or after a patience.
async fn ask_all<T, F>(
    sites: Vec<SiteName>,
    ask: impl Fn(SiteName) -> F,
    enough: impl Fn(&[(SiteName, T)]) -> bool,
) -> Vec<(SiteName, T)>
where
    F: Future<Output = T>,
{
    use futures::StreamExt as _;
    let mut asked: futures::stream::FuturesUnordered<_> = sites
        .into_iter()
        .map(|site| {
            let reply = ask(site.clone());
            async move { (site, reply.await) }
        })
        .collect();
    let mut replies = Vec::new();
    let patience = tokio::time::sleep(PATIENCE);
    tokio::pin!(patience);
    let mut hurried = false;
    loop {
        tokio::select! {
            reply = asked.next() => match reply {
                Some(reply) => replies.push(reply),
                None => return replies,
            },
            () = &mut patience => return replies,
        }
        if !hurried && enough(&replies) {
            hurried = true;
            // Not later than the patience: the grace is shorter.
            let soon = tokio::time::sleep(GRACE);
            patience.set(soon);
        }
    }
}
