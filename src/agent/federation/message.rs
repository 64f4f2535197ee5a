//! What goes into and comes out of a federation's task.

use std::sync::Arc;

use quorate_api::manifest::Manifest;
use quorate_core::adopt::CertificateRequest;
use quorate_core::ballot::Ballot;
use quorate_core::condition::Status;
use quorate_core::executor::Answer;
use quorate_core::federation::observed::{
    DataCheck, MemberList, RecordSummary, SiteObservation, Status as Seen,
};
use quorate_core::federation::spec::Spec;
use quorate_core::federation::view::{View, Wish};
use quorate_core::id::{Digest, FederationKey, MemberId, PeerUrl, SiteName, Slot, Term};
use quorate_core::intent::record::Record;
use quorate_core::intent::retirement::Retired;
use quorate_core::intent::{Intent, Resolution};
use quorate_core::membership::disruption::{DrainGrant, DrainRequest};
use quorate_core::reason::Reason;
use tokio::sync::{mpsc, oneshot, watch};

use super::Answers;
use super::drain::Drained;
use super::local::LocalDone;
use crate::events::Events;
use crate::ports::Fault;

/// What a peer asks.
#[derive(Debug)]
pub enum Question {
    /// The summary of the record.
    Record,
    /// The whole record.
    WholeRecord,
    /// Whether there is a record of a federation of this name; asked by agents that have no part.
    NameTaken,
    /// The spec with this digest.
    Spec(Digest),
    /// A vote.
    Vote(Arc<Ballot>),
    /// An acknowledgement.
    Propose(Arc<Intent>),
    /// To take note of an ending.
    Resolve(Arc<Resolution>),
    /// For the restart token.
    Drain(DrainRequest),
    /// A certificate of the foreign CA.
    Certify(Box<CertificateRequest>),
}

/// What it is answered.
#[derive(Debug)]
pub enum Reply {
    /// The site has no part in this federation; nothing more is said (networking.md 5).
    NotAMember,
    /// The summary.
    Record(Box<RecordSummary>),
    /// The record; none if there is no readable one.
    WholeRecord(Option<Box<Record>>),
    /// Whether there is.
    NameTaken(bool),
    /// The spec; none if it is not the one of the own CR or the effective one.
    Spec(Option<Arc<Spec>>),
    /// The record with the vote, or why not.
    Vote(Box<Result<RecordSummary, Reason>>),
    /// `sent_by_me`, or why not.
    Ack(Result<bool, Reason>),
    /// Whether it was persisted.
    Resolved(bool),
    /// The token, or why not.
    Drain(Result<DrainGrant, Reason>),
    /// The certificate chain; none = not yet.
    Certified(Result<Option<String>, Reason>),
}

/// What the task is told.
#[derive(Debug)]
pub enum Message {
    /// The own CR changed, or is not there and nobody knows why.
    Spec(Option<Arc<Manifest>>),
    /// The own CR was deleted.
    Deleted,
    /// A peer's observation.
    View {
        /// The peer.
        site: SiteName,
        /// What it said.
        observation: Arc<SiteObservation>,
        /// How old it is, ms.
        age_ms: u64,
        /// Rises with each view that arrives here: an older one that comes later is dropped.
        arrival: u64,
    },
    /// A peer's last observation is still true.
    Fresh {
        /// The peer.
        site: SiteName,
        /// Which view is still true; nothing is renewed if another one is known.
        arrival: u64,
        /// How old it is, ms.
        age_ms: u64,
    },
    /// A peer says that this site was taken out of the spec.
    Retired {
        /// The peer.
        site: SiteName,
        /// What it said.
        told: Retired,
    },
    /// A peer asks.
    Ask {
        /// The peer.
        site: SiteName,
        /// What.
        question: Question,
        /// Where the reply goes.
        answer: oneshot::Sender<Reply>,
    },
}

/// Something that was started is over.
pub(crate) enum Event {
    Sampled(Box<Sampled>),
    Probed {
        member: MemberId,
        rtt_us: Option<u32>,
    },
    Reached {
        member: MemberId,
        peer_url: PeerUrl,
        rtt_us: Option<u32>,
    },
    Compared {
        member: MemberId,
        as_voter: bool,
        check: Option<DataCheck>,
    },
    Voted(Answers<Result<RecordSummary, Reason>>),
    Local(LocalDone),
    /// The executor has answered a request for the restart token.
    Drained(Box<Drained>),
    /// How many certificates of the foreign CA are missing still, and the last thing that went wrong.
    Certified(Result<(usize, Option<Fault>), Fault>),
    Effect(Box<Answer>),
    /// Leadership was moved away because this agent cannot execute.
    Stepped(bool),
    Records(Answers<Option<Record>>),
    /// Agents of the mesh that have a record of this name although they have no part.
    Named(Vec<SiteName>),
    /// A spec that was asked for.
    Spec(Digest, Option<Spec>),
}

/// A look at the own members.
pub(crate) struct Sampled {
    /// Own clock before anything was asked.
    pub(crate) true_at: u64,
    pub(crate) statuses: Vec<(Slot, Option<Seen>)>,
    /// The linearizable list, if an own member says that it leads.
    pub(crate) leading: Option<(Slot, MemberList, Term)>,
}

/// Who this is.
#[derive(Debug, Clone)]
pub struct Names {
    /// The own site.
    pub site: SiteName,
    /// The federation.
    pub federation: FederationKey,
}

/// What people may see of a federation.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The status.
    pub status: Status,
    /// The view it was made from, with ages and indices.
    pub view: Option<View>,
    /// What is wished; none before birth.
    pub wish: Option<Wish>,
    /// The effective spec.
    pub effective: Option<Arc<Spec>>,
    /// The spec of the own CR, with its digest.
    pub own: Option<(Digest, Arc<Spec>)>,
    /// Recent transitions, oldest first.
    pub events: Events,
    /// There is no readable record.
    pub missing: Option<String>,
}

impl Snapshot {
    /// Before the first look.
    pub(super) fn new(names: &Names) -> Self {
        Self {
            status: crate::status::blank(names),
            view: None,
            wish: None,
            effective: None,
            own: None,
            events: Events::default(),
            missing: None,
        }
    }
}

/// Speaks with a federation's task; cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    inbox: mpsc::Sender<Message>,
    snapshot: watch::Receiver<Arc<Snapshot>>,
}

impl Handle {
    pub(super) fn new(inbox: mpsc::Sender<Message>, snapshot: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { inbox, snapshot }
    }

    /// Tells the task something, waiting for room; false if the task is gone.
    pub async fn tell(&self, message: Message) -> bool {
        self.inbox.send(message).await.is_ok()
    }

    /// Asks the task something; none if it is gone.
    pub async fn ask(&self, site: &SiteName, question: Question) -> Option<Reply> {
        let (answer, reply) = oneshot::channel();
        self.inbox.send(Message::Ask { site: site.clone(), question, answer }).await.ok()?;
        reply.await.ok()
    }

    /// The last snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.borrow())
    }
}
