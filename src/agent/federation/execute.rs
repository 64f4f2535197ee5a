//! Drives [`quorate_core::executor`] with real IO: one run at a time, beside everything else.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::executor::{Answer, Call, CallResult, Effect, Executor, Identity, Look, Outcome, Role};
use quorate_core::federation::view::{View, Wish};
use quorate_core::id::{MemberId, OpId, SiteName, Slot};
use quorate_core::intent::{IntentKind, Operation, OperationKind};
use quorate_core::membership::quorum::{arithmetic, quorum};
use quorate_core::membership::safety;
use quorate_core::membership::step::{Decision, StepKind};
use quorate_core::reason::{Code, Reason};

use super::{Event, Federation};
use crate::ports::{Clock, Etcd, Peers, World};

/// After a step that was not taken; etcd itself wants some seconds between changes.
const AGAIN_MS: u64 = 500;
/// Once enough agents have answered, the others get this long.
const GRACE: Duration = Duration::from_millis(300);
/// An agent that has not answered by then is not waited for.
const PATIENCE: Duration = Duration::from_secs(4);
/// A leader whose agent cannot execute gives way at most once in this time (safety.md 4).
const STEP_ASIDE_MS: u64 = 10 * 60 * 1000;
/// A dropped learner's slot rests.
const BACK_OFF_MS: u64 = 30_000;

/// The run that is under way, and what earlier ones left.
#[derive(Debug, Default)]
pub(super) struct Runs {
    current: Option<Run>,
    again_at: u64,
    /// Too few agents have answered since.
    lonely_since: Option<u64>,
    stepped_aside: Option<u64>,
    successor: Option<MemberId>,
    last_refusal: Option<Reason>,
}

#[derive(Debug)]
struct Run {
    machine: Executor,
    slot: Slot,
    /// The arithmetic when it began, for the event.
    before: String,
    /// Waiting for a sample that is younger than this.
    look_after: Option<u64>,
    target: Option<Slot>,
}

impl Runs {
    pub(super) fn active(&self) -> bool {
        self.current.is_some()
    }
}

impl<W: World> Federation<W> {
    /// Starts a run if there is something to execute here.
    pub(super) async fn execute(&mut self, view: &View) {
        let now = self.now();
        if !view.own_leads {
            self.run.lonely_since = None;
        }
        if let Some(wish) = self.wish().filter(|_| view.own_leads)
            && let Some(successor) = safety::transferee(view, &wish, None)
        {
            self.run.successor = Some(successor.id);
        }
        self.step_aside(now);
        let wanted = matches!(self.last.decision, Decision::Step(_)) || view.open.is_some();
        if self.run.active() || now < self.run.again_at || !view.own_leads || !wanted {
            return;
        }
        let (Some(uid), Some(slot)) = (self.record.uid, self.look.leading().cloned()) else { return };
        let id = Identity {
            me: self.names.site.clone(),
            uid,
            epoch: self.record.epoch,
            deadline_ms: self.deadline_ms(),
        };
        let before = arithmetic(view).to_string();
        let mut machine = Executor::new(id);
        let effect = machine.step(Answer::Start);
        self.run.current = Some(Run { machine, slot, before, look_after: None, target: None });
        self.perform(effect).await;
    }

    /// An effect has its answer.
    pub(super) async fn answered(&mut self, answer: Answer) {
        let answer = match answer {
            // The own record is read now, not when the others were asked.
            Answer::Records(mut records) => {
                let mut summary = self.record.summary();
                summary.missing = self.missing.is_some();
                records.push((self.names.site.clone(), Some(summary)));
                Answer::Records(records)
            }
            other => other,
        };
        let Some(run) = &mut self.run.current else { return };
        let effect = run.machine.step(answer);
        self.perform(effect).await;
    }

    /// Performs effects until one has to be waited for.
    async fn perform(&mut self, mut effect: Effect) {
        loop {
            let Some(answer) = self.start(effect).await else { return };
            let Some(run) = &mut self.run.current else { return };
            effect = run.machine.step(answer);
        }
    }

    /// Starts one effect; its answer if that is known at once.
    async fn start(&mut self, effect: Effect) -> Option<Answer> {
        let slot = self.run.current.as_ref().map(|run| run.slot.clone())?;
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
                self.event("StepPlanned", format!("{} (number {}, {})", intent.kind, intent.seq, intent.operation));
                let own = match self.record.propose(&intent, self.witness()) {
                    Ok(next) => {
                        let sent = next.intent.as_ref().is_some_and(|held| held.sent_by_me);
                        if self.persist(next).await { Ok(sent) } else { Err(self.no_record()) }
                    }
                    Err(reason) => Err(reason),
                };
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
                        let have: usize = yes().map(|site| weight(&weights, site)).sum::<usize>() + weight(&weights, &me);
                        have >= need && alive.as_ref().is_none_or(|site| *site == me || yes().any(|s| s == site))
                    };
                    let mut acks = ask_all(asked, ask, enough).await;
                    acks.push((me.clone(), own));
                    Answer::Acks(acks)
                });
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
                if matches!(call, Call::MoveLeader(_)) {
                    let now = self.now();
                    self.tracker.expect_leader_change(now);
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
                let next = self.record.resolve(&resolution);
                // Not durable here: the intent stays open and is judged again.
                self.persist(next).await;
                self.note_own();
                self.say();
                let sites = if sites.is_empty() { self.others() } else { sites };
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
                answered.map(|(site, _)| weight(&weights, site)).sum::<usize>() + weight(&weights, &me) >= need
            };
            Answer::Records(ask_all(sites, ask, enough).await)
        });
    }

    /// A sample came in; a run may wait for one that is young enough.
    pub(super) async fn looked(&mut self, true_at: u64) {
        let Some(run) = &mut self.run.current else { return };
        let Some(after) = run.look_after else { return };
        if true_at < after {
            self.look.soon();
            return;
        }
        run.look_after = None;
        let Some(wish) = self.wish() else {
            self.run.current = None;
            return;
        };
        let view = self.view(&wish);
        self.note_target(&view, &wish);
        let look = Look {
            raw: self.tracker.heard(self.now()),
            spec: self.own.as_ref().map(|own| Arc::clone(&own.spec)),
            fresh: OpId(self.fresh()),
            view,
            wish,
        };
        self.answered(Answer::Looked(Box::new(look))).await;
    }

    /// Remembers the slot of a learner that may be dropped: afterwards it is in no list.
    fn note_target(&mut self, view: &View, _wish: &Wish) {
        let learner = view.learners().next().and_then(|m| m.slot.clone());
        if let Some(run) = &mut self.run.current {
            run.target = learner;
        }
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

    fn finished(&mut self, outcome: Outcome) {
        let now = self.now();
        let Some(run) = self.run.current.take() else { return };
        self.look.soon();
        self.run.again_at = now + AGAIN_MS;
        match outcome {
            Outcome::Applied(kind, operation) => {
                self.run.lonely_since = None;
                self.run.last_refusal = None;
                self.metrics.intent(kind.name(), "applied");
                if operation.kind == OperationKind::DropLearner
                    && let (IntentKind::Remove { .. }, Some(slot)) = (&kind, run.target)
                {
                    self.tracker.back_off(slot, now + BACK_OFF_MS);
                }
                self.applied(&kind, operation, &run.before);
            }
            Outcome::Moved(to) => {
                self.metrics.intent("MoveLeader", "applied");
                self.event("LeaderMoved", format!("leadership went to member {to} ({})", run.before));
            }
            Outcome::Decided(decision) => {
                if let Some(reason) = decision.reason() {
                    self.metrics.refused(reason.code.name());
                }
                self.last.decision = decision;
            }
            Outcome::Voided(kind, reason) => {
                self.metrics.intent(kind.name(), "void");
                self.refusal(&reason, || format!("{kind} was given up: {reason}"));
            }
            Outcome::Interrupted(reason) => {
                let kind = run.machine.intent().map_or("none", |intent| intent.kind.name());
                self.metrics.intent(kind, "open");
                if reason.code == Code::NotAcknowledged {
                    self.run.lonely_since.get_or_insert(now);
                }
                self.refusal(&reason, || format!("the step is interrupted: {reason}"));
            }
            Outcome::Rejected(kind, violation) => {
                self.metrics.rejected(kind.name());
                self.run.again_at = now + 10 * AGAIN_MS;
                let reason = Reason::new(Code::PlanRejected).site(&self.names.site);
                tracing::error!(federation = %self.names.federation, step = %kind, %violation, "the independent check refused the planned step: a bug");
                self.last.decision = Decision::Refuse(match StepKind::target(&kind) {
                    Some(member) => reason.member(member),
                    None => reason,
                });
            }
        }
    }

    fn applied(&self, kind: &IntentKind, operation: Operation, before: &str) {
        let word = match kind {
            IntentKind::AddLearner { .. } => "LearnerAdded",
            IntentKind::Promote { .. } => "LearnerPromoted",
            IntentKind::Remove { learner: true, .. } => "LearnerRemoved",
            IntentKind::Remove { learner: false, .. } => "VoterRemoved",
            IntentKind::UpdateUrl { .. } => "UrlUpdated",
            IntentKind::Void { .. } => "IntentVoided",
            IntentKind::ActivateSpec { .. } => "SpecActivated",
        };
        let wish = self.wish().map(|w| w.slots.len()).unwrap_or_default();
        self.event(word, format!("{kind} ({operation}); before: {before}; {wish} voters are wished"));
    }

    /// A refusal is told once, not with each try.
    fn refusal(&mut self, reason: &Reason, text: impl Fn() -> String) {
        self.metrics.refused(reason.code.name());
        let known = self.run.last_refusal.as_ref().is_some_and(|old| old.code == reason.code && old.site == reason.site);
        if !known {
            self.event("StepWaits", text());
            self.run.last_refusal = Some(reason.clone());
        }
    }

    /// An agent that leads but reaches too few others for three deadlines lets another one lead (safety.md 4).
    fn step_aside(&mut self, now: u64) {
        let waited = self.run.lonely_since.map_or(0, |since| now.saturating_sub(since));
        let rested = self.run.stepped_aside.is_none_or(|at| now.saturating_sub(at) >= STEP_ASIDE_MS);
        if waited < 3 * self.deadline_ms() || !rested || self.run.active() {
            return;
        }
        let (Some(to), Some(slot)) = (self.run.successor, self.look.leading().cloned()) else { return };
        self.run.stepped_aside = Some(now);
        self.tracker.expect_leader_change(now);
        self.event("ExecutorUnavailable", format!("too few agents answer here; leadership is offered to member {to}"));
        let (etcd, deadline) = (Arc::clone(&self.ports.etcd), self.deadline_ms());
        self.spawn(async move {
            Event::Stepped(etcd.call(&slot, &Call::MoveLeader(to), deadline).await == CallResult::Done)
        });
    }

    pub(super) fn stepped_aside(&mut self, moved: bool) {
        self.run.lonely_since = None;
        if moved {
            self.event("LeaderMoved", "another agent executes from now on".to_owned());
        }
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
