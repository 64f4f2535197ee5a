//! Drives [`quorate_core::executor`] with real IO: one run at a time, beside everything else.

use std::sync::Arc;

use quorate_core::executor::{Answer, Call, CallResult, Effect, Executor, Identity, Look, Outcome};
use quorate_core::federation::view::{Life, View};
use quorate_core::id::{MemberId, OpId, Slot};
use quorate_core::intent::{IntentKind, Operation, OperationKind};
use quorate_core::membership::quorum::{arithmetic, quorum};
use quorate_core::membership::safety;
use quorate_core::membership::step::{Decision, StepKind};
use quorate_core::reason::{Code, Reason};

use super::{Event, Federation};
use crate::ports::{Etcd as _, World};

/// After a step that was not taken; etcd itself wants some seconds between changes.
const AGAIN_MS: u64 = 500;
/// A leader whose agent cannot execute gives way at most once in this time (safety.md 4).
const STEP_ASIDE_MS: u64 = 10 * 60 * 1000;
/// A dropped learner's slot rests.
const BACK_OFF_MS: u64 = 30_000;

/// The run that is under way, and what earlier ones left.
#[derive(Debug, Default)]
pub(super) struct Runs {
    pub(super) current: Option<Run>,
    again_at: u64,
    /// Too few agents have answered since.
    lonely_since: Option<u64>,
    stepped_aside: Option<u64>,
    successor: Option<MemberId>,
    last_refusal: Option<Reason>,
}

#[derive(Debug)]
pub(super) struct Run {
    machine: Executor,
    pub(super) slot: Slot,
    /// The arithmetic when it began, for the event.
    before: String,
    /// Waiting for a sample that is younger than this.
    pub(super) look_after: Option<u64>,
    target: Option<Slot>,
    /// Effects so far.
    #[cfg(feature = "crash-points")]
    effects: u32,
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
        self.note_loneliness(view, now);
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
        self.run.current = Some(Run {
            machine,
            slot,
            before,
            look_after: None,
            target: None,
            #[cfg(feature = "crash-points")]
            effects: 0,
        });
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

    /// A test may end the agent here.
    #[cfg(feature = "crash-points")]
    pub(super) fn crash_point(&mut self, moment: &str, effect: u32) {
        let held = self.record.intent.as_ref().filter(|held| held.open()).map(|held| held.intent.kind.name());
        let planned =
            self.last.decision.step().map(|step| step.kind.intent().map_or("MoveLeader", |i| i.name()));
        let Some(run) = &mut self.run.current else { return };
        run.effects += effect;
        let step = run.machine.intent().map(|intent| intent.kind.name()).or(held).or(planned);
        super::crash::reached(step.unwrap_or("none"), run.effects, moment);
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
        // The slot of a learner that may be dropped: afterwards it is in no list.
        let learner = view.learners().next().and_then(|m| m.slot.clone());
        if let Some(run) = &mut self.run.current {
            run.target = learner;
        }
        let look = Look {
            raw: self.tracker.heard(self.now()),
            spec: wish
                .pending
                .as_ref()
                .or(wish.retimed.as_ref())
                .and_then(|pending| self.spec_of(pending.digest)),
            fresh: OpId(self.fresh()),
            view,
            wish,
        };
        self.answered(Answer::Looked(Box::new(look))).await;
    }

    pub(super) fn finished(&mut self, outcome: Outcome) {
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
        let known = self
            .run
            .last_refusal
            .as_ref()
            .is_some_and(|old| old.code == reason.code && old.site == reason.site);
        if !known {
            self.event("StepWaits", text());
            self.run.last_refusal = Some(reason.clone());
        }
    }

    /// Whether this agent leads, wishes a step, and hears too few agents for it; and who could lead instead.
    fn note_loneliness(&mut self, view: &View, now: u64) {
        let Some(wish) = self.wish().filter(|_| view.own_leads) else {
            self.run.lonely_since = None;
            return;
        };
        if let Some(successor) = safety::transferee(view, &wish, None) {
            self.run.successor = Some(successor.id);
        }
        let heard = view.voters().filter(|m| m.site().is_some_and(|site| view.heard(site).is_some())).count();
        let dead = |life: Life| matches!(life, Life::DeadAttested | Life::DeadDeclared);
        let wished = wish.pending.is_some()
            || view.open.is_some()
            || view.learners().next().is_some()
            || view.voters().count() != wish.slots.len()
            || view.voters().any(|m| dead(m.life) || m.slot.as_ref().is_none_or(|s| !wish.slots.contains(s)));
        if wished && heard < quorum(view.voters().count()) {
            self.run.lonely_since.get_or_insert(now);
        } else if self.run.last_refusal.as_ref().is_none_or(|reason| reason.code != Code::NotAcknowledged) {
            self.run.lonely_since = None;
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
        self.note_move(to);
        self.event(
            "ExecutorUnavailable",
            format!("too few agents answer here; leadership is offered to member {to}"),
        );
        let (etcd, deadline) = (Arc::clone(&self.ports.etcd), self.deadline_ms());
        self.spawn(async move {
            Event::Stepped(etcd.call(&slot, &Call::MoveLeader(to), deadline).await == CallResult::Done)
        });
    }

    /// Tells the others, before the call, that the change that follows is planned.
    pub(super) fn note_move(&mut self, to: MemberId) {
        let now = self.now();
        self.tracker.expect_leader_change(to, now);
        self.note_own();
        self.say();
    }

    pub(super) fn stepped_aside(&mut self, moved: bool) {
        self.run.lonely_since = None;
        if moved {
            self.event("LeaderMoved", "another agent executes from now on".to_owned());
        }
    }
}
