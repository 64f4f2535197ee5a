//! Carries out what the real executor asks for: one effect after the other, each of which can fail before or after it
//! took effect.

use std::sync::Arc;

use super::agent::{Agent, DEADLINE_MS};
use super::etcd::{Answer as Etcd, Request, Ticket};
use super::faults::{Io, When};
use super::network::{Answered, Body};
use super::world::{Event, World};
use crate::executor::{Answer, Call, CallResult, Effect, Executor, Identity, Look, Outcome, Role};
use crate::federation::observed::RecordSummary;
use crate::id::{OpId, SiteName};
use crate::intent::{Intent, Resolution};
use crate::reason::Reason;

/// How long an agent waits for the answers of others, ms.
const PEER_TIMEOUT_MS: u64 = 1_000;

/// One run of the executor.
#[derive(Debug)]
pub struct Run {
    id: u32,
    /// Names the current wait, so that the timeout of an earlier one changes nothing.
    token: u32,
    machine: Executor,
    /// The own member whose leadership was proven; it alone is called.
    proven: Option<(usize, super::etcd::At)>,
    waiting: Waiting,
}

#[derive(Debug)]
enum Waiting {
    Nothing,
    Records(Vec<(SiteName, Option<RecordSummary>)>, usize),
    Acks(Vec<(SiteName, Result<bool, Reason>)>, usize),
    Pause,
    /// A call of etcd that is about to be sent, after a pause of the process if there is one.
    Sending {
        call: Call,
        not_after: u64,
    },
    Call {
        cluster: usize,
        ticket: Ticket,
        until: u64,
        op: Option<OpId>,
        lost: bool,
    },
}

impl World {
    /// Starts a run.
    pub fn run(&mut self, s: usize, agent: &mut Agent) {
        let Some(record) = agent.record.as_ref() else { return };
        let Some(uid) = record.uid else { return };
        self.runs += 1;
        let identity =
            Identity { me: self.names[s].clone(), uid, epoch: record.epoch, deadline_ms: DEADLINE_MS };
        let id = self.runs;
        agent.run = Some(Box::new(Run {
            id,
            token: 0,
            proven: None,
            machine: Executor::new(identity),
            waiting: Waiting::Nothing,
        }));
        self.drive(s, agent, Answer::Start);
    }

    fn drive(&mut self, s: usize, agent: &mut Agent, answer: Answer) {
        let mut answer = answer;
        loop {
            let Some(run) = agent.run.as_mut() else { return };
            let effect = run.machine.step(answer);
            run.waiting = Waiting::Nothing;
            match self.effect(s, agent, effect) {
                Some(next) if !agent.dies => answer = next,
                _ => return,
            }
        }
    }

    fn effect(&mut self, s: usize, agent: &mut Agent, effect: Effect) -> Option<Answer> {
        match effect {
            Effect::ProveRole => Some(Answer::Role(self.prove(s, agent))),
            Effect::Collect(_) => {
                let own = RecordSummary::clone(&agent.summary);
                self.ask_all(s, agent, &self.names.clone(), &Body::Record);
                let left = self.names.len() - 1;
                let got = vec![(self.names[s].clone(), Some(own))];
                self.wait(s, agent, Waiting::Records(got, left), PEER_TIMEOUT_MS, left)
            }
            Effect::Look => self.fresh_look(s, agent),
            Effect::Propose(intent, sites) => {
                self.truth.note_proposal(&intent, &self.names[s]);
                self.note(
                    || {
                        format!(
                            "proposes number {}: {}, closing {:?}",
                            intent.seq, intent.kind, intent.closes
                        )
                    },
                    Some(s),
                );
                let own = self.acknowledge(s, agent, &intent);
                if agent.dies {
                    return None;
                }
                let mut got = Vec::new();
                let refused = !matches!(own, Some(Ok(_)));
                if let Some(own) = own {
                    got.push((self.names[s].clone(), own));
                }
                if refused {
                    return Some(Answer::Acks(got)); // the own agent persists first, or nobody is asked
                }
                let others: Vec<SiteName> = sites.into_iter().filter(|site| *site != self.names[s]).collect();
                self.ask_all(s, agent, &others, &Body::Propose(Arc::clone(&intent)));
                self.wait(s, agent, Waiting::Acks(got, others.len()), PEER_TIMEOUT_MS, others.len())
            }
            Effect::MarkSent(seq, sent) => {
                let next = agent.record.as_ref().and_then(|record| record.mark_sent(seq, sent));
                let marked = next.is_some_and(|next| self.persist(s, agent, next));
                Some(Answer::Marked(marked))
            }
            Effect::Send { call, not_after_ms, .. } => {
                let pause = self.pause_before_send(s);
                self.wait(s, agent, Waiting::Sending { call, not_after: not_after_ms }, pause, 1)
            }
            Effect::Wait(ms) => self.wait(s, agent, Waiting::Pause, ms, 1),
            Effect::Tell(resolution, _) => {
                self.take_note(s, agent, &resolution);
                if agent.dies {
                    return None;
                }
                self.resolved(&resolution);
                self.ask_all(s, agent, &self.names.clone(), &Body::Tell(resolution));
                Some(Answer::Told)
            }
            Effect::Finish(outcome) => {
                self.finished(s, agent, &outcome);
                agent.run = None;
                None
            }
        }
    }

    fn resolved(&mut self, resolution: &Resolution) {
        self.truth.note_resolution(resolution);
    }

    fn ask_all(&mut self, s: usize, agent: &mut Agent, sites: &[SiteName], body: &Body) {
        let run = agent.run.as_ref().map_or(0, |run| run.id);
        for site in sites {
            if *site != self.names[s] && !agent.dies {
                self.request(s, agent, site, run, body.clone());
            }
        }
    }

    fn wait(
        &mut self,
        s: usize,
        agent: &mut Agent,
        waiting: Waiting,
        ms: u64,
        left: usize,
    ) -> Option<Answer> {
        if agent.dies {
            return None;
        }
        let ms = if left == 0 { 0 } else { ms };
        let run = agent.run.as_mut()?;
        run.waiting = waiting;
        self.waits += 1;
        run.token = self.waits;
        self.schedule(ms, Event::Resume(s, agent.boot, run.token));
        None
    }

    /// The wait of a run is over: a timeout, a pause, or an answer of etcd.
    pub fn resume(&mut self, s: usize, agent: &mut Agent, token: u32) {
        if agent.paused_until > self.now {
            self.schedule(agent.paused_until - self.now, Event::Resume(s, agent.boot, token));
            return;
        }
        let Some(run) = agent.run.as_mut().filter(|run| run.token == token) else { return };
        let answer = match std::mem::replace(&mut run.waiting, Waiting::Nothing) {
            Waiting::Nothing => return,
            Waiting::Records(mut got, left) => {
                if left > 0 {
                    for name in &self.names {
                        if !got.iter().any(|(site, _)| site == name) {
                            got.push((name.clone(), None));
                        }
                    }
                }
                Answer::Records(got)
            }
            Waiting::Acks(got, _) => Answer::Acks(got),
            Waiting::Pause => Answer::Waited,
            Waiting::Sending { call, not_after } => match self.send_call(s, agent, &call, not_after) {
                Some(answer) => answer,
                None => return,
            },
            Waiting::Call { cluster, ticket, until, op, lost } => {
                match self.call_result(s, agent, cluster, ticket, until, op, lost) {
                    Some(answer) => answer,
                    None => return,
                }
            }
        };
        self.drive(s, agent, answer);
    }

    /// An answer of another agent.
    pub fn replied(&mut self, s: usize, agent: &mut Agent, id: u32, from: &SiteName, answered: Answered) {
        if let Answered::Whole(record) = answered {
            if !agent.told.iter().any(|(name, _)| name == from) {
                agent.told.push((from.clone(), record));
            }
            return;
        }
        let highest = agent.tracker.highest(from);
        let Some(run) = agent.run.as_mut().filter(|run| run.id == id) else { return };
        let left = match (&mut run.waiting, answered) {
            (Waiting::Records(got, left), Answered::Record(summary)) => {
                if got.iter().any(|(site, _)| site == from) {
                    return; // a doubled message
                }
                let mut summary = RecordSummary::clone(&summary);
                // A number lower than one seen before: that record was rolled back and does not count.
                summary.missing |= highest.is_some_and(|highest| (summary.epoch, summary.seq()) < highest);
                got.push((from.clone(), Some(summary)));
                *left = left.saturating_sub(1);
                *left
            }
            (Waiting::Acks(got, left), Answered::Ack(ack)) => {
                if got.iter().any(|(site, _)| site == from) {
                    return;
                }
                got.push((from.clone(), ack));
                *left = left.saturating_sub(1);
                *left
            }
            _ => return,
        };
        if left == 0 {
            let token = run.token;
            self.resume(s, agent, token);
        }
    }

    fn prove(&mut self, s: usize, agent: &mut Agent) -> Option<Role> {
        if self.io(s, agent, Io::Etcd, When::Before) {
            return None;
        }
        self.advance_etcd();
        let (cluster, at) = self.leading(s)?;
        let (term, list) = self.clusters[cluster].linearizable_list(at)?;
        if let Some(run) = agent.run.as_mut() {
            run.proven = Some((cluster, at));
        }
        let (term, list, at_ms) = (crate::id::Term(term), list.clone(), agent.clock(self.now));
        Some(Role { leads: true, term, list, at_ms })
    }

    fn fresh_look(&mut self, s: usize, agent: &mut Agent) -> Option<Answer> {
        self.advance_etcd();
        self.probe(s, agent);
        let observation = self.observe(s, agent);
        let now = agent.clock(self.now);
        agent.tracker.hear(observation, 0, now);
        let Some(view) = self.view(s, agent) else {
            agent.run = None;
            return None;
        };
        let Some(wish) = self.wish(s, agent, Some(&view)) else {
            agent.run = None;
            return None;
        };
        let raw = agent.tracker.heard(now);
        let spec = self.pending(s, Some(&view)).map(|cr| Arc::clone(&cr.spec));
        let fresh = self.fresh_op(s);
        Some(Answer::Looked(Box::new(Look { view, wish, raw, spec, fresh })))
    }

    fn send_call(&mut self, s: usize, agent: &mut Agent, call: &Call, not_after: u64) -> Option<Answer> {
        if agent.clock(self.now) > not_after {
            return Some(Answer::Sent(CallResult::NotSent));
        }
        if self.io(s, agent, Io::Etcd, When::Before) {
            return if agent.dies { None } else { Some(Answer::Sent(CallResult::Unknown)) };
        }
        self.advance_etcd();
        let proven = agent.run.as_ref().and_then(|run| run.proven);
        let Some((cluster, at)) = proven.filter(|(c, at)| self.clusters[*c].nodes[*at].running) else {
            return Some(Answer::Sent(CallResult::Unknown));
        };
        let intent = agent.run.as_ref().and_then(|run| run.machine.intent().cloned());
        self.judge_send(s, cluster, at, call, intent.as_deref());
        if let Call::MoveLeader(to) = call {
            let now = agent.clock(self.now);
            agent.tracker.expect_leader_change(*to, now);
        }
        let request = self.request_of(s, call, intent.as_deref());
        let late = self.late_call(s);
        let ticket = self.clusters[cluster].call(at, &request, DEADLINE_MS, late);
        self.note(|| format!("sends {call:?}"), Some(s));
        let lost = self.io(s, agent, Io::Etcd, When::After);
        if agent.dies {
            return None;
        }
        let until = self.now + DEADLINE_MS;
        let op = intent.map(|intent| intent.op);
        self.wait(s, agent, Waiting::Call { cluster, ticket, until, op, lost }, 20, 1)
    }

    fn request_of(&self, s: usize, call: &Call, intent: Option<&Intent>) -> Request {
        match call {
            Call::AddLearner(url) => {
                let (slot, incarnation) = match intent.map(|i| &i.kind) {
                    Some(crate::intent::IntentKind::AddLearner { slot, incarnation, .. }) => {
                        (Some(slot), *incarnation)
                    }
                    _ => (None, crate::id::IncarnationId(0)),
                };
                let site =
                    slot.and_then(|slot| self.names.iter().position(|name| *name == slot.site)).unwrap_or(s);
                let name =
                    slot.map(|slot| crate::node::etcd_name(&self.key, slot, incarnation)).unwrap_or_default();
                Request::Add { url: url.clone(), learner: true, name, site }
            }
            Call::Promote(member) => Request::Promote(*member),
            Call::Remove(member) => Request::Remove(*member),
            Call::Update(member, url) => Request::Update(*member, url.clone()),
            Call::MoveLeader(member) => Request::MoveLeader(*member),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one waiting call")]
    fn call_result(
        &mut self,
        s: usize,
        agent: &mut Agent,
        cluster: usize,
        ticket: Ticket,
        until: u64,
        op: Option<OpId>,
        lost: bool,
    ) -> Option<Answer> {
        self.advance_etcd();
        let result = match self.clusters[cluster].peek(ticket).filter(|_| !lost) {
            Some(Etcd::Done) => CallResult::Done,
            Some(Etcd::Refused(refusal)) => {
                self.truth.note_refused(op);
                self.note(|| format!("etcd refuses: {}", refusal.message()), Some(s));
                CallResult::Refused(refusal.message().to_owned())
            }
            None if self.now >= until => CallResult::Unknown,
            None => {
                let again = if lost { until - self.now } else { (until - self.now).min(1_000) };
                return self.wait(s, agent, Waiting::Call { cluster, ticket, until, op, lost }, again, 1);
            }
        };
        Some(Answer::Sent(result))
    }

    fn finished(&mut self, s: usize, agent: &mut Agent, outcome: &Outcome) {
        match outcome {
            Outcome::Applied(kind, _) => self.truth.count_step(kind.name()),
            Outcome::Moved(_) => self.truth.count_step("MoveLeader"),
            Outcome::Decided(crate::membership::step::Decision::Step(step)) => {
                if step.kind == crate::membership::step::StepKind::Snapshot {
                    self.take_backup(s);
                    self.truth.count_step("Snapshot");
                }
            }
            Outcome::Decided(decision) => {
                if let Some(reason) = decision.reason() {
                    self.count(reason.rule());
                }
            }
            Outcome::Voided(_, reason) | Outcome::Interrupted(reason) => self.count(reason.rule()),
            Outcome::Rejected(kind, violation) => {
                let text = format!("the check refused the planned {kind}: {violation}");
                self.violate("check", text);
            }
        }
        if self.trace.is_some() {
            let text = match outcome {
                Outcome::Applied(kind, _) => format!("done: {kind}"),
                Outcome::Moved(to) => format!("done: leader is {to}"),
                Outcome::Decided(_) => String::new(),
                Outcome::Voided(kind, reason) => format!("gave up {kind}: {reason}"),
                Outcome::Interrupted(reason) => format!("interrupted: {reason}"),
                Outcome::Rejected(kind, _) => format!("check refused {kind}"),
            };
            if !text.is_empty() {
                self.note(|| text, Some(s));
            }
        }
        let dropped = match outcome {
            Outcome::Applied(crate::intent::IntentKind::Remove { learner: true, member }, _) => Some(*member),
            _ => None,
        };
        if let Some(slot) = dropped.and_then(|member| self.truth.slot_of(member)) {
            let until = agent.clock(self.now) + 30_000;
            agent.tracker.back_off(slot, until);
        }
    }
}
