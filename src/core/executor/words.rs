//! What the machine says and hears: one answer of the matching kind follows each effect.

use std::sync::Arc;

use crate::federation::observed::{Heard, MemberList, RecordSummary};
use crate::federation::spec::Spec;
use crate::federation::view::{View, Wish};
use crate::id::{Epoch, MemberId, OpId, PeerUrl, Seq, SiteName, Term, Uid};
use crate::intent::{Intent, IntentKind, Operation, Resolution};
use crate::membership::check;
use crate::membership::step::{Decision, StepKind};
use crate::reason::Reason;

/// Between the fence and the call at most this long (safety.md 4, step 7): a longer pause may have changed the term.
pub const FENCE_MS: u64 = 1_000;

/// Between the look on which a step was judged and its fence at most this long. The fence reads term and list again, but
/// not who is alive: a process that was paused in between would act on observations that prove nothing any more.
pub const LOOK_MS: u64 = 3_000;

/// A membership call of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// MemberAdd with `isLearner = true`; there is no call that adds a voter.
    AddLearner(PeerUrl),
    /// MemberPromote.
    Promote(MemberId),
    /// MemberRemove.
    Remove(MemberId),
    /// MemberUpdate.
    Update(MemberId, PeerUrl),
    /// MoveLeader.
    MoveLeader(MemberId),
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallResult {
    /// etcd said yes.
    Done,
    /// etcd refused before it proposed anything: definite, whatever the code (etcd-facts.md section 4).
    Refused(String),
    /// Timeout, cancel or transport error: nobody knows.
    Unknown,
    /// It was too late after the fence; nothing was sent.
    NotSent,
}

/// The proof of leadership: Status and a linearizable member list of the own member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// `Status.leader` is the own member.
    pub leads: bool,
    /// The header's term.
    pub term: Term,
    /// The list.
    pub list: MemberList,
    /// Own clock when the read was complete, ms.
    pub at_ms: u64,
}

/// What to do next. Exactly one [`Answer`] of the matching kind follows each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read Status and the linearizable list from the own local member. Answer: `Role`.
    ProveRole,
    /// Ask these agents for their records (the own one is read locally). Answer: `Records`.
    Collect(Vec<SiteName>),
    /// Build a fresh view. Answer: `Looked`.
    Look,
    /// Ask these agents to acknowledge; the own agent persists first. Answer: `Acks`.
    Propose(Arc<Intent>, Vec<SiteName>),
    /// Persist `sent_by_me` in the own record. Answer: `Marked`.
    MarkSent(Seq, bool),
    /// Send to the own local member, with this deadline (ms), unless the clock is past `not_after`. Answer: `Sent`.
    Send {
        /// The call.
        call: Call,
        /// Client deadline, ms.
        deadline_ms: u64,
        /// Own clock after which nothing may be sent, ms.
        not_after_ms: u64,
    },
    /// Wait so long. Answer: `Waited`.
    Wait(u64),
    /// Tell all agents how an intent ended; the own agent persists first. Answer: `Told`.
    Tell(Arc<Resolution>, Vec<SiteName>),
    /// The end of this run.
    Finish(Outcome),
}

/// What came of an effect.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Begins a run.
    Start,
    /// Of `ProveRole`; none if the read failed.
    Role(Option<Role>),
    /// Of `Collect`; none for an agent that did not answer.
    Records(Vec<(SiteName, Option<RecordSummary>)>),
    /// Of `Look`.
    Looked(Box<Look>),
    /// Of `Propose`: the acknowledgement carries the agent's `sent_by_me`.
    Acks(Vec<(SiteName, Result<bool, Reason>)>),
    /// Of `MarkSent`: whether it was persisted.
    Marked(bool),
    /// Of `Send`.
    Sent(CallResult),
    /// Of `Wait`.
    Waited,
    /// Of `Tell`.
    Told,
}

/// A fresh look at everything.
#[derive(Debug, Clone)]
pub struct Look {
    /// The view.
    pub view: View,
    /// The wish.
    pub wish: Wish,
    /// The raw observations for the independent check.
    pub raw: Vec<(SiteName, Heard)>,
    /// The spec that waits for its activation.
    pub spec: Option<Arc<Spec>>,
    /// A fresh operation id.
    pub fresh: OpId,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A step happened.
    Applied(IntentKind, Operation),
    /// Leadership was moved.
    Moved(MemberId),
    /// There was nothing to execute: the decision says why.
    Decided(Decision),
    /// A step was given up, and that is known everywhere; it will be planned again.
    Voided(IntentKind, Reason),
    /// A step is open still.
    Interrupted(Reason),
    /// The independent check refused what the planner wanted: a bug. Nothing was done.
    Rejected(Box<StepKind>, check::Violation),
}

/// What the executor must know of its federation.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The own site.
    pub me: SiteName,
    /// The federation.
    pub uid: Uid,
    /// The epoch.
    pub epoch: Epoch,
    /// Deadline of one call and the "full request timeout" of the rules, ms (rule I14).
    pub deadline_ms: u64,
}
