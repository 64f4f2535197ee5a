//! One step from decision to resolution, as a machine without IO (safety.md section 4, rules I8 and I14).
//!
//! The agent and the simulator drive the same machine: it says what to do next ([`Effect`]), they do it and say what
//! came of it ([`Answer`]). A crash is simply a dropped machine: everything that must survive is in the records.

mod words;

use std::sync::Arc;

pub use words::*;

use crate::federation::observed::{MemberList, RecordSummary};
use crate::federation::view::View;
use crate::id::{Generation, MemberId, OpId, Seq, SiteName};
use crate::intent::resolve::{self, Ending, Evidence};
use crate::intent::{HeldIntent, Intent, IntentKind, IntentState, Operation, OperationKind, Resolution};
use crate::membership::quorum::quorum;
use crate::membership::safety::Proposed;
use crate::membership::step::{Decision, StepKind};
use crate::membership::{check, plan};
use crate::reason::{Code, Reason};

#[derive(Debug)]
enum State {
    Idle,
    Proving,
    Collecting,
    Looking,
    /// Waiting one request timeout before inherited intents are judged.
    Resting,
    ReadingAfterRest,
    LookingAfterRest,
    Proposing,
    Marking,
    Fencing,
    Sending,
    Confirming {
        refused: bool,
    },
    RestingUnknown,
    ReadingUnknown,
    Unmarking(Reason),
    Telling(Outcome),
    /// Leadership is moved without an intent.
    FencingMove(MemberId),
    Moving(MemberId),
    Finished,
}

/// The machine of one run.
#[derive(Debug)]
pub struct Executor {
    id: Identity,
    state: State,
    role: Option<Role>,
    records: Vec<(SiteName, Option<RecordSummary>)>,
    opens: Vec<Arc<Intent>>,
    /// Open ops that never had their acknowledgements.
    overtaken: Vec<OpId>,
    /// Every number under which an open op is held somewhere, and every op and number that those close.
    open_seqs: Vec<Seq>,
    look: Option<Box<Look>>,
    intent: Option<Arc<Intent>>,
    /// Open intents that the proposal closes.
    closing: Vec<Arc<Intent>>,
    acked: Vec<(SiteName, bool)>,
}

impl Executor {
    /// A machine at its beginning.
    pub const fn new(id: Identity) -> Self {
        Self {
            id,
            state: State::Idle,
            role: None,
            records: Vec::new(),
            opens: Vec::new(),
            overtaken: Vec::new(),
            open_seqs: Vec::new(),
            look: None,
            intent: None,
            closing: Vec::new(),
            acked: Vec::new(),
        }
    }

    /// What this run is about, once it has proposed something.
    pub fn intent(&self) -> Option<&Arc<Intent>> {
        self.intent.as_ref()
    }

    /// Takes the answer to the last effect and says what is next. An answer of the wrong kind ends the run.
    pub fn step(&mut self, answer: Answer) -> Effect {
        let state = std::mem::replace(&mut self.state, State::Finished);
        match (state, answer) {
            (State::Idle, Answer::Start) => self.go(State::Proving, Effect::ProveRole),
            (State::Proving, Answer::Role(role)) => self.proved(role),
            (State::Collecting, Answer::Records(records)) => self.collected(records),
            (State::Looking, Answer::Looked(look)) => self.looked(look),
            (State::Resting, Answer::Waited) => self.go(State::ReadingAfterRest, Effect::ProveRole),
            (State::ReadingAfterRest, Answer::Role(role)) => self.read_after_rest(role),
            (State::LookingAfterRest, Answer::Looked(look)) => self.close_open(look),
            (State::Proposing, Answer::Acks(acks)) => self.acknowledged(acks),
            (State::Marking, Answer::Marked(true)) => self.go(State::Fencing, Effect::ProveRole),
            (State::Marking, Answer::Marked(false)) => finish(Outcome::Interrupted(self.no_record())),
            (State::Fencing, Answer::Role(role)) => self.fenced(role),
            (State::Sending, Answer::Sent(result)) => self.sent(&result),
            (State::Confirming { refused }, Answer::Role(role)) => self.confirmed(role, refused),
            (State::RestingUnknown, Answer::Waited) => self.go(State::ReadingUnknown, Effect::ProveRole),
            (State::ReadingUnknown, Answer::Role(role)) => self.read_unknown(role),
            (State::Unmarking(reason), Answer::Marked(_)) => self.void(reason),
            (State::Telling(outcome), Answer::Told) => finish(outcome),
            (State::FencingMove(to), Answer::Role(role)) => self.fenced_move(to, role),
            (State::Moving(to), Answer::Sent(result)) => finish(match result {
                CallResult::Done => Outcome::Moved(to),
                CallResult::Refused(_) | CallResult::Unknown | CallResult::NotSent => {
                    Outcome::Interrupted(Reason::new(Code::LeaderInTheWay).member(to).site(&self.id.me))
                }
            }),
            (_, _) => finish(Outcome::Interrupted(Code::FenceFailed.into())),
        }
    }

    fn go(&mut self, state: State, effect: Effect) -> Effect {
        self.state = state;
        effect
    }

    fn not_leader(&self) -> Effect {
        finish(Outcome::Interrupted(Reason::new(Code::NotExecutor).site(&self.id.me)))
    }

    fn no_record(&self) -> Reason {
        Reason::new(Code::NoRecord).site(&self.id.me)
    }

    /// Step 1 is done; step 2: records of everybody, own one included.
    fn proved(&mut self, role: Option<Role>) -> Effect {
        let Some(role) = role.filter(|role| role.leads) else {
            return self.not_leader();
        };
        self.role = Some(role);
        self.go(State::Collecting, Effect::Collect(Vec::new()))
    }

    fn collected(&mut self, records: Vec<(SiteName, Option<RecordSummary>)>) -> Effect {
        self.records = records;
        let bound = |r: &&RecordSummary| r.uid == Some(self.id.uid) && !r.missing;
        let mut opens: Vec<Arc<Intent>> = Vec::new();
        let mut seqs: Vec<Seq> = Vec::new();
        for record in self.records.iter().filter_map(|(_, r)| r.as_ref()).filter(bound) {
            if record.epoch > self.id.epoch {
                let reason = Reason::new(Code::WrongEpoch).numbers(record.epoch.0, self.id.epoch.0);
                return finish(Outcome::Interrupted(reason.site(&self.id.me)));
            }
            let Some(held) = record.intent.as_ref().filter(|held| held.open()) else {
                continue;
            };
            seqs.push(held.intent.seq);
            seqs.extend(&held.intent.closes);
            match opens.iter_mut().find(|open| open.op == held.intent.op) {
                Some(open) if open.seq < held.intent.seq => *open = Arc::clone(&held.intent),
                Some(_) => {}
                None => opens.push(Arc::clone(&held.intent)),
            }
        }
        if let Some(known) = self.known_ending(&opens) {
            let reason = resolve::unresolved(&known.intent);
            self.state = State::Telling(Outcome::Interrupted(reason));
            return Effect::Tell(known, Vec::new());
        }
        let bodies: Vec<Arc<Intent>> = opens.iter().flat_map(|open| open.closed.iter().cloned()).collect();
        for body in bodies {
            if !opens.iter().any(|open| open.op == body.op) {
                opens.push(body);
            }
        }
        seqs.sort_unstable();
        seqs.dedup();
        self.opens = opens;
        self.open_seqs = seqs;
        self.go(State::Looking, Effect::Look)
    }

    /// An op that is open at one agent and resolved at another: the message was lost, so it is told again.
    fn known_ending(&self, opens: &[Arc<Intent>]) -> Option<Arc<Resolution>> {
        let resolved = |held: &&Arc<HeldIntent>| {
            !held.open()
                && held.intent.epoch == self.id.epoch
                && opens.iter().any(|open| open.op == held.intent.op)
        };
        let held = self.records.iter().filter_map(|(_, r)| r.as_ref()?.intent.as_ref()).find(resolved)?;
        // Only if nobody proposed it again under a higher number since.
        let latest = opens.iter().all(|open| open.op != held.intent.op || open.seq <= held.intent.seq);
        // What it closed ended with it only if it happened.
        let applied = held.state == IntentState::Applied;
        let closed = if applied { held.intent.closes_ops.clone() } else { Vec::new() };
        latest.then(|| Self::resolution(&held.intent, held.state, closed))
    }

    fn highest(&self) -> Seq {
        let bound = |r: &&RecordSummary| r.uid == Some(self.id.uid) && r.epoch == self.id.epoch;
        self.records
            .iter()
            .filter_map(|(_, r)| r.as_ref())
            .filter(bound)
            .map(RecordSummary::seq)
            .max()
            .unwrap_or(Seq(0))
    }

    /// The newest effective generation among the records, which cover a quorum of voters' agents.
    fn newest_generation(&self) -> Generation {
        let bound = |r: &&RecordSummary| r.uid == Some(self.id.uid) && r.epoch == self.id.epoch && !r.missing;
        let records = self.records.iter().filter_map(|(_, r)| r.as_ref()).filter(bound);
        records.map(|r| r.generation).max().unwrap_or_default()
    }

    /// Voters whose agents answered with a readable record of this federation.
    fn covered(&self, view: &View) -> usize {
        let counts = |r: &RecordSummary| r.uid == Some(self.id.uid) && !r.missing && r.epoch == self.id.epoch;
        let answered = self.records.iter().filter(|(_, r)| r.as_ref().is_some_and(counts));
        answered.map(|(site, _)| view.voters_at(site)).sum()
    }

    fn looked(&mut self, mut look: Box<Look>) -> Effect {
        let same_list =
            self.role.as_ref().map(|r| r.list.digest()) == look.view.list.as_ref().map(MemberList::digest);
        if !same_list || !look.view.own_leads {
            let reason = Reason::new(Code::FenceFailed).site(&self.id.me);
            return finish(Outcome::Interrupted(reason));
        }
        if let Some(reason) = self.too_few_records(&look.view) {
            return finish(Outcome::Interrupted(reason));
        }
        if !self.opens.is_empty() {
            return self.go(State::Resting, Effect::Wait(self.id.deadline_ms));
        }
        look.view.open = None;
        // Missed an activation: then the own effective spec is not the federation's, and only a newer one may follow.
        let newest = self.newest_generation();
        let outdated = look.wish.generation < newest;
        look.wish.generation = look.wish.generation.max(newest);
        let decision = plan::next(&look.view, &look.wish);
        let Decision::Step(step) = decision else {
            return finish(Outcome::Decided(decision));
        };
        if outdated && !matches!(step.kind, StepKind::ActivateSpec { .. }) {
            return finish(Outcome::Interrupted(Reason::new(Code::SpecDrift).site(&self.id.me)));
        }
        if let Err(violation) = check::verify(&look.raw, &self.id.me, &look.wish, &step.kind, step.overridden)
        {
            return finish(Outcome::Rejected(Box::new(step.kind), violation));
        }
        match step.kind.intent() {
            Some(kind) => self.propose(look, kind, step.operation, step.overridden),
            None => match step.kind {
                StepKind::MoveLeader { to } => self.go(State::FencingMove(to), Effect::ProveRole),
                _ => finish(Outcome::Decided(Decision::Step(step))),
            },
        }
    }

    fn too_few_records(&self, view: &View) -> Option<Reason> {
        let (have, need) = (self.covered(view), quorum(view.voters().count()));
        if have >= need {
            return None;
        }
        let silent = |site: &SiteName| {
            !self.records.iter().any(|(name, r)| name == site && r.as_ref().is_some_and(|r| !r.missing))
        };
        let missing = view.voters().filter_map(|m| m.site()).find(|site| silent(site));
        Some(Reason::new(Code::NotAcknowledged).maybe_site(missing).numbers(have as u64, need as u64))
    }

    fn read_after_rest(&mut self, role: Option<Role>) -> Effect {
        let term = self.role.as_ref().map(|r| r.term);
        let Some(role) = role.filter(|role| role.leads && Some(role.term) == term) else {
            return self.not_leader();
        };
        self.role = Some(role);
        self.go(State::LookingAfterRest, Effect::Look)
    }

    /// Step 3: open intents end first.
    fn close_open(&mut self, mut look: Box<Look>) -> Effect {
        look.view.open = None;
        let Some(role) = self.role.clone() else {
            return self.not_leader();
        };
        let evidence =
            Evidence { list: &role.list, records: &self.records, view: &look.view, wish: &look.wish };
        let endings: Vec<(Arc<Intent>, Ending)> =
            self.opens.iter().map(|open| (Arc::clone(open), resolve::ending(open, evidence))).collect();
        let bare = |intent: &Intent| !self.opens.iter().any(|open| open.closes_ops.contains(&intent.op));
        if let Some((intent, _)) = endings.iter().find(|(i, ending)| *ending == Ending::Applied && bare(i)) {
            return self.tell(intent, IntentState::Applied, Vec::new());
        }
        // It happened although a Void was under way: said under a new number, which closes the Void too.
        if let Some((intent, _)) = endings.iter().find(|(_, ending)| *ending == Ending::Applied) {
            let open = Arc::clone(intent);
            self.closing.clone_from(&self.opens);
            return self.propose_again(look, &open, open.kind.clone(), open.op);
        }
        self.overtaken =
            endings.iter().filter(|(_, e)| *e == Ending::Overtaken).map(|(intent, _)| intent.op).collect();
        let again: Vec<_> =
            endings.iter().filter(|(_, e)| matches!(e, Ending::Again(_) | Ending::Instead(_))).collect();
        if let Some((_, Ending::Wait(reason))) = endings.iter().find(|(_, e)| matches!(e, Ending::Wait(_))) {
            return finish(Outcome::Interrupted(reason.clone()));
        }
        if let Some((_, Ending::MoveFirst(to))) =
            endings.iter().find(|(_, e)| matches!(e, Ending::MoveFirst(_)))
        {
            let to = *to;
            return self.go(State::FencingMove(to), Effect::ProveRole);
        }
        if endings.iter().any(|(_, ending)| *ending == Ending::BackupFirst) {
            return finish(Outcome::Decided(Decision::Step(Box::new(plan::snapshot(&look.view)))));
        }
        // An add may always be closed instead, so it never stands in the way of another one.
        let add = |intent: &Intent| matches!(intent.kind, IntentKind::AddLearner { .. });
        let mut strict = again.iter().filter(|(intent, _)| !add(intent));
        let first = strict.next();
        if let (Some((intent, _)), true) = (first, strict.next().is_some()) {
            return finish(Outcome::Interrupted(resolve::unresolved(intent)));
        }
        let chosen =
            first.or_else(|| again.first()).map(|(intent, ending)| (Arc::clone(intent), ending.clone()));
        self.closing = self.opens.clone();
        match chosen {
            Some((open, Ending::Again(kind))) => self.propose_again(look, &open, kind, open.op),
            Some((open, Ending::Instead(kind))) => {
                let fresh = look.fresh;
                self.propose_again(look, &open, kind, fresh)
            }
            _ => {
                let Some(first) = self.opens.first().cloned() else {
                    return finish(Outcome::Interrupted(Code::IntentUnresolved.into()));
                };
                let fresh = look.fresh;
                self.propose_again(look, &first, IntentKind::Void { closes: first.op }, fresh)
            }
        }
    }

    fn propose_again(&mut self, look: Box<Look>, open: &Intent, kind: IntentKind, op: OpId) -> Effect {
        let operation = match kind {
            IntentKind::Remove { member, learner: true } if op != open.op => {
                Operation { kind: OperationKind::DropLearner, source: Some(member), new: None }
            }
            _ => open.operation,
        };
        let step = StepKind::again(&kind);
        // An exception that a person made since is stored with the intent, and acknowledged where the CR holds it too.
        let needs = step.as_ref().is_some_and(|step| {
            let (view, wish) = (&look.view, &look.wish);
            Proposed { view, wish, kind: step, operation }.needs_exception()
        });
        let overridden = open.exception.is_some() || needs;
        let checked =
            step.as_ref().map(|step| check::verify(&look.raw, &self.id.me, &look.wish, step, overridden));
        let happened = self.role.as_ref().is_some_and(|role| resolve::effect_present(open, &role.list));
        if let (Some(Err(_)), false) = (checked, happened) {
            return finish(Outcome::Interrupted(resolve::unresolved(open)));
        }
        let executors = self.executors(open, &kind, op);
        let mut intent = self.intent_for(&look, kind, operation, op, overridden);
        intent.executors = executors;
        if matches!(intent.kind, IntentKind::Void { .. }) {
            let bodies = self.opens.iter().filter(|open| !matches!(open.kind, IntentKind::Void { .. }));
            intent.closed = bodies.cloned().collect();
        }
        if op == open.op {
            intent.spec.clone_from(&open.spec);
        }
        self.send_proposal(look, intent)
    }

    /// Who may have sent under this op; for a Void, who may have sent what it closes. An add needs no attestation.
    fn executors(&self, open: &Intent, kind: &IntentKind, op: OpId) -> Vec<SiteName> {
        let mut executors = if op == open.op { open.executors.clone() } else { Vec::new() };
        if matches!(kind, IntentKind::Void { .. }) {
            let add = |intent: &&Arc<Intent>| matches!(intent.kind, IntentKind::AddLearner { .. });
            let proven = |intent: &&Arc<Intent>| {
                // A removed id can never be promoted, removed or moved again.
                let list = self.role.as_ref().map(|r| &r.list);
                intent.kind.target().is_some_and(|member| list.is_some_and(|l| l.get(member).is_none()))
            };
            let closed =
                self.opens.iter().filter(|i| !add(i) && !proven(i) && !self.overtaken.contains(&i.op));
            executors.extend(closed.flat_map(|intent| intent.executors.iter().cloned()));
        } else {
            executors.push(self.id.me.clone());
        }
        executors.sort();
        executors.dedup();
        executors
    }

    fn propose(
        &mut self,
        look: Box<Look>,
        kind: IntentKind,
        operation: Operation,
        overridden: bool,
    ) -> Effect {
        let fresh = look.fresh;
        let intent = self.intent_for(&look, kind, operation, fresh, overridden);
        self.send_proposal(look, intent)
    }

    fn intent_for(
        &self,
        look: &Look,
        kind: IntentKind,
        operation: Operation,
        op: OpId,
        overridden: bool,
    ) -> Intent {
        let spec = match &kind {
            IntentKind::ActivateSpec { .. } => look.spec.clone(),
            _ => None,
        };
        // Only a removal can rest on a declared death.
        let lost_members = match &kind {
            IntentKind::Remove { member, .. } if look.wish.lost_members.contains(member) => vec![*member],
            _ => Vec::new(),
        };
        Intent {
            uid: self.id.uid,
            epoch: self.id.epoch,
            seq: self.highest().next(),
            op,
            kind,
            list: self.role.as_ref().map_or(crate::id::Digest([0; 32]), |r| r.list.digest()),
            term: self.role.as_ref().map(|r| r.term).unwrap_or_default(),
            executors: vec![self.id.me.clone()],
            operation,
            closes: self.open_seqs.clone(),
            closes_ops: self.closed_ops(op),
            exception: if overridden { look.wish.exception.clone() } else { None },
            lost_members,
            spec,
            closed: Vec::new(),
        }
    }

    fn send_proposal(&mut self, look: Box<Look>, intent: Intent) -> Effect {
        let intent = Arc::new(intent);
        let mut sites: Vec<SiteName> = look.view.sites.iter().map(|s| s.name.clone()).collect();
        let target = match &intent.kind {
            IntentKind::AddLearner { slot, .. } => Some(slot.site.clone()),
            kind => kind.target().and_then(|id| look.view.site_of(id)).cloned(),
        };
        for site in target.into_iter().chain([self.id.me.clone()]) {
            if !sites.contains(&site) {
                sites.push(site);
            }
        }
        self.look = Some(look);
        self.intent = Some(Arc::clone(&intent));
        self.go(State::Proposing, Effect::Propose(intent, sites))
    }

    /// Step 5: q(n) voters' agents, the own one, and the target's if the target is alive.
    fn acknowledged(&mut self, acks: Vec<(SiteName, Result<bool, Reason>)>) -> Effect {
        let (Some(look), Some(intent)) = (&self.look, self.intent.clone()) else {
            return self.not_leader();
        };
        let view = &look.view;
        let yes = |site: &SiteName| acks.iter().any(|(name, ack)| name == site && ack.is_ok());
        let have: usize = acks.iter().filter(|(_, a)| a.is_ok()).map(|(s, _)| view.voters_at(s)).sum();
        let need = quorum(view.voters().count());
        let target = match &intent.kind {
            IntentKind::AddLearner { slot, .. } => Some(&slot.site),
            kind => {
                kind.target().and_then(|id| view.member(id)).filter(|m| m.life.alive()).and_then(|m| m.site())
            }
        };
        let missing_target = target.filter(|site| !yes(site));
        let failed = if yes(&self.id.me) { missing_target.cloned() } else { Some(self.id.me.clone()) };
        if failed.is_some() || have < need {
            let refusal = acks.iter().find_map(|(_, ack)| ack.as_ref().err().cloned());
            let site = failed.or_else(|| acks.iter().find(|(_, a)| a.is_err()).map(|(s, _)| s.clone()));
            let reason = Reason::new(Code::NotAcknowledged)
                .maybe_site(site.as_ref())
                .numbers(have as u64, need as u64);
            return self.give_up(refusal.unwrap_or(reason));
        }
        self.acked = acks.into_iter().filter_map(|(site, ack)| Some((site, ack.ok()?))).collect();
        if let Err(reason) = self.closed_for_good() {
            return finish(Outcome::Interrupted(reason));
        }
        let happened = self.role.as_ref().is_some_and(|role| resolve::effect_present(&intent, &role.list));
        match intent.kind {
            _ if happened => {
                let closed = self.closed_ops(intent.op);
                self.tell(&intent, IntentState::Applied, closed)
            }
            IntentKind::Void { .. } => {
                let closed = self.closed_ops(intent.op);
                self.tell(&intent, IntentState::Applied, closed)
            }
            // Telling that a spec is effective is its call: marked and fenced like one, so that "not sent" means it.
            IntentKind::ActivateSpec { .. }
            | IntentKind::AddLearner { .. }
            | IntentKind::Promote { .. }
            | IntentKind::Remove { .. }
            | IntentKind::UpdateUrl { .. } => self.go(State::Marking, Effect::MarkSent(intent.seq, true)),
        }
    }

    /// Ops other than the proposed one end with it, void, if their executors have attested.
    fn closed_for_good(&self) -> Result<(), Reason> {
        let (Some(look), Some(role), Some(intent)) = (&self.look, &self.role, &self.intent) else {
            return Ok(());
        };
        let evidence =
            Evidence { list: &role.list, records: &self.records, view: &look.view, wish: &look.wish };
        if matches!(intent.kind, IntentKind::Void { .. }) {
            return resolve::attested(intent, &self.acked, evidence);
        }
        for open in self.closing.iter().filter(|open| open.op != intent.op) {
            // A removed learner can never be promoted: the removal itself is the proof.
            let by_removal = matches!((&open.kind, &intent.kind),
                (IntentKind::Promote { member }, IntentKind::Remove { member: removed, .. }) if member == removed);
            // A Void yields to what it closes.
            let taken_up = open.closes_ops.contains(&intent.op);
            if !by_removal && !taken_up {
                resolve::closed_for_good(open, &self.acked, evidence)?;
            }
        }
        Ok(())
    }

    /// The open ops, and what they close themselves, without the proposed one.
    fn closed_ops(&self, op: OpId) -> Vec<OpId> {
        let all = self.opens.iter().flat_map(|open| open.closes_ops.iter().copied().chain([open.op]));
        let mut ops: Vec<OpId> = all.filter(|closed| *closed != op).collect();
        ops.sort_unstable();
        ops.dedup();
        ops
    }

    /// Nothing was sent under this number. A fresh op is void by that; an older one may have been sent before.
    fn give_up(&mut self, reason: Reason) -> Effect {
        let fresh = self.intent.as_ref().is_some_and(|i| i.executors.len() == 1 && self.closing.is_empty());
        if fresh { self.void(reason) } else { finish(Outcome::Interrupted(reason)) }
    }

    fn void(&mut self, reason: Reason) -> Effect {
        let Some(intent) = self.intent.clone() else {
            return finish(Outcome::Interrupted(reason));
        };
        let outcome = Outcome::Voided(intent.kind.clone(), reason);
        let resolution = Self::resolution(&intent, IntentState::Void, Vec::new());
        self.go(State::Telling(outcome), Effect::Tell(resolution, Vec::new()))
    }

    fn tell(&mut self, intent: &Arc<Intent>, state: IntentState, closed: Vec<OpId>) -> Effect {
        let outcome = Outcome::Applied(intent.kind.clone(), intent.operation);
        let resolution = Self::resolution(intent, state, closed);
        self.go(State::Telling(outcome), Effect::Tell(resolution, Vec::new()))
    }

    fn resolution(intent: &Arc<Intent>, state: IntentState, closed: Vec<OpId>) -> Arc<Resolution> {
        let Intent { uid, epoch, seq, op, .. } = **intent;
        Arc::new(Resolution { uid, epoch, seq, op, state, closed, intent: Arc::clone(intent) })
    }

    /// Step 7: leader, term and list unchanged, then send within a second.
    fn fenced(&mut self, role: Option<Role>) -> Effect {
        let Some(intent) = self.intent.clone() else {
            return self.not_leader();
        };
        let judged_at = self.role.as_ref().map_or(0, |judged| judged.at_ms);
        let young = |r: &Role| r.at_ms.saturating_sub(judged_at) <= LOOK_MS;
        let valid =
            role.filter(|r| r.leads && young(r) && r.term == intent.term && r.list.digest() == intent.list);
        let Some(role) = valid else {
            let reason = Reason::new(Code::FenceFailed).site(&self.id.me).numbers(0, intent.term.0);
            return self.unmark(reason);
        };
        let call = match &intent.kind {
            IntentKind::AddLearner { peer_url, .. } => Call::AddLearner(peer_url.clone()),
            IntentKind::Promote { member } => Call::Promote(*member),
            IntentKind::Remove { member, .. } => Call::Remove(*member),
            IntentKind::UpdateUrl { member, peer_url } => Call::Update(*member, peer_url.clone()),
            IntentKind::ActivateSpec { .. } => {
                let closed = self.closed_ops(intent.op);
                return self.tell(&intent, IntentState::Applied, closed);
            }
            IntentKind::Void { .. } => return self.not_leader(),
        };
        let not_after_ms = role.at_ms + FENCE_MS;
        self.go(State::Sending, Effect::Send { call, deadline_ms: self.id.deadline_ms, not_after_ms })
    }

    fn unmark(&mut self, reason: Reason) -> Effect {
        let Some(intent) = &self.intent else {
            return self.not_leader();
        };
        let seq = intent.seq;
        // An op that was proposed before may have been sent under its earlier number: its flag stays.
        if intent.executors.len() > 1 || !self.closing.is_empty() {
            return finish(Outcome::Interrupted(reason));
        }
        self.go(State::Unmarking(reason), Effect::MarkSent(seq, false))
    }

    fn sent(&mut self, result: &CallResult) -> Effect {
        match result {
            CallResult::Done => self.go(State::Confirming { refused: false }, Effect::ProveRole),
            CallResult::Refused(_) => self.go(State::Confirming { refused: true }, Effect::ProveRole),
            CallResult::NotSent => {
                let reason = Reason::new(Code::FenceFailed).site(&self.id.me);
                self.unmark(reason)
            }
            CallResult::Unknown => self.go(State::RestingUnknown, Effect::Wait(self.id.deadline_ms)),
        }
    }

    fn confirmed(&mut self, role: Option<Role>, refused: bool) -> Effect {
        let Some(intent) = self.intent.clone() else {
            return self.not_leader();
        };
        let Some(role) = role else {
            return self.go(State::RestingUnknown, Effect::Wait(self.id.deadline_ms));
        };
        if resolve::effect_present(&intent, &role.list) {
            let closed = self.closed_ops(intent.op);
            return self.tell(&intent, IntentState::Applied, closed);
        }
        if refused {
            return self.unmark(Reason::new(Code::TooSoon).site(&self.id.me));
        }
        // etcd said yes and the list does not show it: only a later read can tell.
        self.go(State::RestingUnknown, Effect::Wait(self.id.deadline_ms))
    }

    /// I14: after an unknown outcome only the list decides, and only the same step may follow.
    fn read_unknown(&mut self, role: Option<Role>) -> Effect {
        let Some(intent) = self.intent.clone() else {
            return self.not_leader();
        };
        let present = role.is_some_and(|role| resolve::effect_present(&intent, &role.list));
        if present {
            let closed = self.closed_ops(intent.op);
            return self.tell(&intent, IntentState::Applied, closed);
        }
        let reason = Reason::new(Code::OutcomeUnknown).site(&self.id.me).numbers(0, self.id.deadline_ms);
        finish(Outcome::Interrupted(reason))
    }

    fn fenced_move(&mut self, to: MemberId, role: Option<Role>) -> Effect {
        let before = self.role.as_ref();
        let same = |r: &Role| {
            r.leads
                && before.is_some_and(|b| {
                    let young = r.at_ms.saturating_sub(b.at_ms) <= LOOK_MS;
                    young && b.term == r.term && b.list.digest() == r.list.digest()
                })
        };
        let Some(role) = role.filter(same) else {
            return self.not_leader();
        };
        let not_after_ms = role.at_ms + FENCE_MS;
        let (call, deadline_ms) = (Call::MoveLeader(to), self.id.deadline_ms);
        self.go(State::Moving(to), Effect::Send { call, deadline_ms, not_after_ms })
    }
}

const fn finish(outcome: Outcome) -> Effect {
    Effect::Finish(outcome)
}
