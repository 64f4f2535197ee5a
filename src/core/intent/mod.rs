//! Intents: the numbered steps that agents acknowledge durably before they are sent (safety.md section 4).

#[cfg(test)]
mod crossings;
pub mod record;
pub mod resolve;
pub mod retirement;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::federation::spec::{Override, Spec};
use crate::id::{
    Digest, Epoch, Generation, IncarnationId, MemberId, OpId, PeerUrl, Seq, SiteName, Slot, Term, Uid,
};
use crate::timing::Timing;

/// What an intent does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum IntentKind {
    /// Adds a learner for a slot. Members are never added as voters.
    AddLearner {
        /// The slot.
        slot: Slot,
        /// The peer URL.
        peer_url: PeerUrl,
        /// The incarnation that will use the id.
        incarnation: IncarnationId,
    },
    /// Makes a learner a voter.
    Promote {
        /// The learner.
        member: MemberId,
    },
    /// Removes a member.
    Remove {
        /// The member.
        member: MemberId,
        /// It was a learner when the intent was made.
        learner: bool,
    },
    /// Changes a voter's peer URL.
    UpdateUrl {
        /// The voter.
        member: MemberId,
        /// The new URL.
        peer_url: PeerUrl,
    },
    /// Closes an open intent that was never sent.
    Void {
        /// The operation that it closes.
        closes: OpId,
    },
    /// Makes a spec effective; no RPC.
    ActivateSpec {
        /// Previous + 1.
        generation: Generation,
        /// Digest of the spec.
        digest: Digest,
        /// The timers that become effective with it; the spec itself may be the one that is effective already.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timing: Option<Timing>,
    },
}

impl IntentKind {
    /// The kind's name, a metric label.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AddLearner { .. } => "AddLearner",
            Self::Promote { .. } => "Promote",
            Self::Remove { .. } => "Remove",
            Self::UpdateUrl { .. } => "UpdateUrl",
            Self::Void { .. } => "Void",
            Self::ActivateSpec { .. } => "ActivateSpec",
        }
    }

    /// Changes etcd's member list.
    pub const fn changes_membership(&self) -> bool {
        match self {
            Self::AddLearner { .. } | Self::Promote { .. } | Self::Remove { .. } | Self::UpdateUrl { .. } => {
                true
            }
            Self::Void { .. } | Self::ActivateSpec { .. } => false,
        }
    }

    /// The member that it is about, if one is listed already.
    pub const fn target(&self) -> Option<MemberId> {
        match self {
            Self::Promote { member } | Self::Remove { member, .. } | Self::UpdateUrl { member, .. } => {
                Some(*member)
            }
            Self::AddLearner { .. } | Self::Void { .. } | Self::ActivateSpec { .. } => None,
        }
    }
}

impl fmt::Display for IntentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // In a plan for people the URL of a site that has made no offer yet is not known.
            Self::AddLearner { slot, peer_url, .. } if peer_url.0.is_empty() => {
                write!(f, "AddLearner {slot}")
            }
            Self::AddLearner { slot, peer_url, .. } => write!(f, "AddLearner {slot} {peer_url}"),
            Self::Promote { member } => write!(f, "Promote {member}"),
            Self::Remove { member, learner: true } => write!(f, "Remove learner {member}"),
            Self::Remove { member, learner: false } => write!(f, "Remove {member}"),
            Self::UpdateUrl { member, peer_url } => write!(f, "UpdateUrl {member} {peer_url}"),
            Self::Void { closes } => write!(f, "Void {closes}"),
            Self::ActivateSpec { generation, digest, timing } => {
                write!(f, "ActivateSpec generation {generation} {}", digest.short())?;
                match timing {
                    Some(timing) => write!(f, " ({timing})"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// A row of safety.md section 5: the operation that a step belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationKind {
    /// More voters.
    ScaleUp,
    /// A live voter is replaced by a new one.
    ReplaceLive,
    /// A dead voter is replaced.
    ReplaceDead,
    /// Fewer voters.
    ScaleDown,
    /// A learner that makes no progress, or that nobody wants, goes.
    DropLearner,
    /// An even state is left by removing the new voter.
    RollBack,
    /// A spec becomes effective.
    Activate,
    /// A peer URL changes.
    ChangeUrl,
    /// Leadership goes to the voter that is nearest to a majority.
    PlaceLeader,
    /// A backup is taken because a step needs one.
    Backup,
    /// A voter is restarted with other settings.
    Restart,
}

/// The operation, so that the next executor knows which voter is the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Which row.
    pub kind: OperationKind,
    /// The member that goes.
    pub source: Option<MemberId>,
    /// The member that comes.
    pub new: Option<MemberId>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)?;
        match self.source.or(self.new) {
            Some(member) => write!(f, "/{member}"),
            None => Ok(()),
        }
    }
}

/// A membership change that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What it was.
    pub kind: IntentKind,
    /// The operation that it belongs to.
    pub operation: Operation,
}

/// A numbered step that agents acknowledge durably before it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The federation.
    pub uid: Uid,
    /// The epoch.
    pub epoch: Epoch,
    /// The number; highest seen + 1.
    pub seq: Seq,
    /// Stays the same when the same operation is proposed again.
    pub op: OpId,
    /// What it does.
    pub kind: IntentKind,
    /// Fence: digest of the member list before the step.
    pub list: Digest,
    /// Fence: raft term.
    pub term: Term,
    /// Every site that ever proposed this op.
    pub executors: Vec<SiteName>,
    /// The operation that it belongs to.
    pub operation: Operation,
    /// Numbers of open intents that this one closes or continues.
    pub closes: Vec<Seq>,
    /// Operations that this one closes or continues.
    pub closes_ops: Vec<OpId>,
    /// The human exception that it rests on.
    pub exception: Option<Override>,
    /// Member ids whose death it takes from a human's word; acknowledged only where the CR says so too.
    pub lost_members: Vec<MemberId>,
    /// The spec; only with `ActivateSpec`.
    pub spec: Option<Arc<Spec>>,
    /// With a `Void`: the intents that it closes. If an executor turns out to have sent after all, they are taken up
    /// again from here, also where nobody holds them any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed: Vec<Arc<Self>>,
}

/// How an intent stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IntentState {
    /// Acknowledged, outcome not known.
    Open,
    /// It happened.
    Applied,
    /// It did not happen and never will.
    Void,
}

/// The intent that a record holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldIntent {
    /// The intent.
    pub intent: Arc<Intent>,
    /// How it stands.
    pub state: IntentState,
    /// This agent sent, or may have sent, its RPC.
    pub sent_by_me: bool,
}

impl HeldIntent {
    /// Whether the outcome is not known.
    pub const fn open(&self) -> bool {
        matches!(self.state, IntentState::Open)
    }
}

/// How an intent ended; persisted by everybody who hears of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    /// The federation.
    pub uid: Uid,
    /// The epoch.
    pub epoch: Epoch,
    /// Number of the intent.
    pub seq: Seq,
    /// Its operation.
    pub op: OpId,
    /// `Applied` or `Void`.
    pub state: IntentState,
    /// Operations of lower numbers that ended with it, void.
    pub closed: Vec<OpId>,
    /// The intent itself, for agents that missed the proposal: what it changes in the record must not be missed.
    pub intent: Arc<Intent>,
}
