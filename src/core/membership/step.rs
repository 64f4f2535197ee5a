//! Complete steps: the executor has no choices left.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Digest, Generation, IncarnationId, MemberId, PeerUrl, Slot};
use crate::intent::{IntentKind, Operation};
use crate::membership::quorum::Arithmetic;
use crate::reason::Reason;
use crate::timing::Timing;

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepKind {
    /// Adds a learner.
    AddLearner {
        /// The slot.
        slot: Slot,
        /// The peer URL.
        peer_url: PeerUrl,
        /// The planned incarnation.
        incarnation: IncarnationId,
    },
    /// Makes the learner a voter.
    Promote {
        /// The learner.
        member: MemberId,
    },
    /// Removes a voter or a learner.
    Remove {
        /// The member.
        member: MemberId,
        /// It is a learner.
        learner: bool,
    },
    /// Changes a voter's peer URL.
    UpdateUrl {
        /// The voter.
        member: MemberId,
        /// The new URL.
        peer_url: PeerUrl,
    },
    /// Moves raft leadership; no membership change and no intent, but fenced all the same.
    MoveLeader {
        /// The next leader.
        to: MemberId,
    },
    /// Makes a spec effective.
    ActivateSpec {
        /// Previous + 1.
        generation: Generation,
        /// Its digest.
        digest: Digest,
        /// The timers that become effective with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timing: Option<Timing>,
    },
    /// Takes a backup, because the next step needs a fresh one (rule I17).
    Snapshot,
}

impl StepKind {
    /// The kind's name, a metric label.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AddLearner { .. } => "AddLearner",
            Self::Promote { .. } => "Promote",
            Self::Remove { learner: true, .. } => "RemoveLearner",
            Self::Remove { learner: false, .. } => "RemoveVoter",
            Self::UpdateUrl { .. } => "UpdateUrl",
            Self::MoveLeader { .. } => "MoveLeader",
            Self::ActivateSpec { .. } => "ActivateSpec",
            Self::Snapshot => "Snapshot",
        }
    }

    /// The first word of the step as people read it.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Remove { .. } => "Remove",
            Self::AddLearner { .. }
            | Self::Promote { .. }
            | Self::UpdateUrl { .. }
            | Self::MoveLeader { .. }
            | Self::ActivateSpec { .. }
            | Self::Snapshot => self.name(),
        }
    }

    /// Changes etcd's member list (rules I1–I4, I8, I13 and others hold for these only).
    pub const fn changes_membership(&self) -> bool {
        match self {
            Self::AddLearner { .. } | Self::Promote { .. } | Self::Remove { .. } | Self::UpdateUrl { .. } => {
                true
            }
            Self::MoveLeader { .. } | Self::ActivateSpec { .. } | Self::Snapshot => false,
        }
    }

    /// The listed member that it is about.
    pub const fn target(&self) -> Option<MemberId> {
        match self {
            Self::Promote { member } | Self::Remove { member, .. } | Self::UpdateUrl { member, .. } => {
                Some(*member)
            }
            Self::MoveLeader { to } => Some(*to),
            Self::AddLearner { .. } | Self::ActivateSpec { .. } | Self::Snapshot => None,
        }
    }

    /// The intent that carries it; none for steps without one.
    pub fn intent(&self) -> Option<IntentKind> {
        Some(match self.clone() {
            Self::AddLearner { slot, peer_url, incarnation } => {
                IntentKind::AddLearner { slot, peer_url, incarnation }
            }
            Self::Promote { member } => IntentKind::Promote { member },
            Self::Remove { member, learner } => IntentKind::Remove { member, learner },
            Self::UpdateUrl { member, peer_url } => IntentKind::UpdateUrl { member, peer_url },
            Self::ActivateSpec { generation, digest, timing } => {
                IntentKind::ActivateSpec { generation, digest, timing }
            }
            Self::MoveLeader { .. } | Self::Snapshot => return None,
        })
    }

    /// The step that would carry an open intent out again; none for those without an RPC.
    pub fn again(intent: &IntentKind) -> Option<Self> {
        Some(match intent.clone() {
            IntentKind::AddLearner { slot, peer_url, incarnation } => {
                Self::AddLearner { slot, peer_url, incarnation }
            }
            IntentKind::Promote { member } => Self::Promote { member },
            IntentKind::Remove { member, learner } => Self::Remove { member, learner },
            IntentKind::UpdateUrl { member, peer_url } => Self::UpdateUrl { member, peer_url },
            IntentKind::Void { .. } | IntentKind::ActivateSpec { .. } => return None,
        })
    }
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MoveLeader { to } => write!(f, "MoveLeader {to}"),
            Self::Snapshot => f.write_str("Snapshot"),
            Self::AddLearner { .. }
            | Self::Promote { .. }
            | Self::Remove { .. }
            | Self::UpdateUrl { .. }
            | Self::ActivateSpec { .. } => match self.intent() {
                Some(intent) => write!(f, "{intent}"),
                None => Ok(()),
            },
        }
    }
}

/// A step with its reasons: which operation it belongs to, and the arithmetic before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What it does.
    pub kind: StepKind,
    /// The operation of safety.md section 5.
    pub operation: Operation,
    /// Now.
    pub before: Arithmetic,
    /// When it is done.
    pub after: Arithmetic,
    /// It rests on the exception in the CR.
    #[serde(default)]
    pub overridden: bool,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{} -> {}] ({})", self.kind, self.before, self.after, self.operation)
    }
}

/// What the planner says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// Take this step.
    Step(Box<Step>),
    /// Something is wished, but not yet possible.
    Wait(Reason),
    /// What is wished would break a rule, and waiting alone will not help.
    Refuse(Reason),
    /// The members are as wished.
    Done,
}

impl Decision {
    /// The reason of a wait or refusal.
    pub const fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Wait(reason) | Self::Refuse(reason) => Some(reason),
            Self::Step(_) | Self::Done => None,
        }
    }

    /// The step.
    pub fn step(&self) -> Option<&Step> {
        match self {
            Self::Step(step) => Some(step),
            Self::Wait(_) | Self::Refuse(_) | Self::Done => None,
        }
    }
}
