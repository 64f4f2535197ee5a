//! What an answer of etcd means (etcd-facts.md section 3).
//!
//! Some codes on the wire are wrong, and one code means both "definitely refused" and "may still happen": 14 is
//! "unhealthy cluster", refused before the proposal, and "request timed out", which may be applied later. So the text
//! decides, the code only where the text says nothing. In doubt the outcome is unknown: that costs one more look, while
//! a wrong "refused" could lead to the same change twice.

use std::error::Error as StdError;

use tonic::{Code, Status};

use crate::transport::DialError;

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// etcd refused; nothing was and nothing will be changed.
    #[error("etcd refused ({}): {message}", kind.reason())]
    Refused {
        /// Which rule of etcd.
        kind: Refused,
        /// What etcd said.
        message: String,
    },
    /// Nobody knows whether the call had or will have an effect: look again before anything else.
    #[error("the outcome is unknown ({}): {message}", cause.reason())]
    Unknown {
        /// How it got lost.
        cause: Unknown,
        /// What is known.
        message: String,
    },
    /// There was no connection, so nothing was sent.
    #[error("etcd cannot be reached: {message}")]
    Unreachable {
        /// What is known.
        message: String,
    },
    /// Our credentials do not suffice; nothing was changed.
    #[error(
        "etcd wants other credentials: {message}; the agent needs the root role when authentication is on"
    )]
    Auth {
        /// What etcd said.
        message: String,
    },
    /// The endpoint is none that we use; nothing was sent.
    #[error("{endpoint:?} is not of the form https://host:port")]
    Endpoint {
        /// The endpoint as it was given.
        endpoint: String,
    },
}

/// The rules of etcd by which it refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refused {
    /// Not enough members were connected for long enough; normal for some seconds after each change.
    UnhealthyCluster,
    /// A member has this peer URL.
    PeerUrlExists,
    /// A member has this id.
    MemberIdExists,
    /// The URL is none.
    InvalidUrls,
    /// There is a learner already.
    TooManyLearners,
    /// Too few members would be started afterwards.
    NotEnoughStarted,
    /// No member has this id, or it was removed.
    MemberNotFound,
    /// The member is a voter.
    NotALearner,
    /// The learner has not caught up.
    LearnerNotReady,
    /// Leadership cannot go to this member.
    BadTransferee,
    /// Asked of a follower.
    NotLeader,
    /// A learner does not answer this.
    LearnerRpc,
    /// The database is full.
    NoSpace,
    /// The data is known to be damaged.
    Corrupt,
    /// The revision was compacted.
    Compacted,
    /// The revision is not there yet.
    FutureRevision,
    /// Too much at once; refused before the proposal.
    TooManyRequests,
    /// The request is too large.
    TooLarge,
    /// The member belongs to another cluster.
    OtherCluster,
    /// Something else that is a refusal by text or code.
    Other,
}

/// How an outcome got lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unknown {
    /// Our own deadline ran out.
    Deadline,
    /// The server gave up waiting; the proposal may still be applied.
    ServerTimeout,
    /// The connection broke.
    Transport,
    /// There is no leader, or it changed.
    Leader,
    /// The server is stopping.
    Stopping,
    /// The call was cancelled.
    Cancelled,
    /// An answer that we do not understand.
    Other,
}

impl Error {
    /// One word for metrics and conditions.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused { kind, .. } => kind.reason(),
            Self::Unknown { cause, .. } => cause.reason(),
            Self::Unreachable { .. } => "Unreachable",
            Self::Auth { .. } => "Auth",
            Self::Endpoint { .. } => "Endpoint",
        }
    }

    /// Whether the call certainly had no effect and will have none.
    pub fn is_definite(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Unreachable { .. } | Self::Auth { .. } | Self::Endpoint { .. } => {
                true
            }
            Self::Unknown { .. } => false,
        }
    }

    /// The rule by which etcd refused.
    pub fn refused(&self) -> Option<Refused> {
        match self {
            Self::Refused { kind, .. } => Some(*kind),
            Self::Unknown { .. } | Self::Unreachable { .. } | Self::Auth { .. } | Self::Endpoint { .. } => {
                None
            }
        }
    }

    pub(crate) fn deadline(after: std::time::Duration) -> Self {
        Self::Unknown { cause: Unknown::Deadline, message: format!("no answer within {after:?}") }
    }
}

impl Refused {
    /// One word for metrics and conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Self::UnhealthyCluster => "UnhealthyCluster",
            Self::PeerUrlExists => "PeerUrlExists",
            Self::MemberIdExists => "MemberIdExists",
            Self::InvalidUrls => "InvalidUrls",
            Self::TooManyLearners => "TooManyLearners",
            Self::NotEnoughStarted => "NotEnoughStarted",
            Self::MemberNotFound => "MemberNotFound",
            Self::NotALearner => "NotALearner",
            Self::LearnerNotReady => "LearnerNotReady",
            Self::BadTransferee => "BadTransferee",
            Self::NotLeader => "NotLeader",
            Self::LearnerRpc => "LearnerRpc",
            Self::NoSpace => "NoSpace",
            Self::Corrupt => "Corrupt",
            Self::Compacted => "Compacted",
            Self::FutureRevision => "FutureRevision",
            Self::TooManyRequests => "TooManyRequests",
            Self::TooLarge => "TooLarge",
            Self::OtherCluster => "OtherCluster",
            Self::Other => "OtherRefusal",
        }
    }
}

impl Unknown {
    /// One word for metrics and conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Deadline => "Deadline",
            Self::ServerTimeout => "ServerTimeout",
            Self::Transport => "Transport",
            Self::Leader => "Leader",
            Self::Stopping => "Stopping",
            Self::Cancelled => "Cancelled",
            Self::Other => "OtherUnknown",
        }
    }
}

enum Meaning {
    Refused(Refused),
    Unknown(Unknown),
    Auth,
}

/// Beginnings of etcd's messages, behind `etcdserver: ` where that stands. The longer of two that begin alike is first.
const MESSAGES: &[(&str, Meaning)] = &[
    ("unhealthy cluster", Meaning::Refused(Refused::UnhealthyCluster)),
    ("Peer URLs already exists", Meaning::Refused(Refused::PeerUrlExists)),
    ("member ID already exist", Meaning::Refused(Refused::MemberIdExists)),
    ("given member URLs are invalid", Meaning::Refused(Refused::InvalidUrls)),
    ("too many learner members in cluster", Meaning::Refused(Refused::TooManyLearners)),
    (
        "re-configuration failed due to not enough started members",
        Meaning::Refused(Refused::NotEnoughStarted),
    ),
    ("member not found", Meaning::Refused(Refused::MemberNotFound)),
    (
        "can only promote a learner member which is in sync with leader",
        Meaning::Refused(Refused::LearnerNotReady),
    ),
    ("can only promote a learner member", Meaning::Refused(Refused::NotALearner)),
    ("bad leader transferee", Meaning::Refused(Refused::BadTransferee)),
    ("not leader", Meaning::Refused(Refused::NotLeader)),
    ("rpc not supported for learner", Meaning::Refused(Refused::LearnerRpc)),
    ("mvcc: database space exceeded", Meaning::Refused(Refused::NoSpace)),
    ("corrupt cluster", Meaning::Refused(Refused::Corrupt)),
    ("mvcc: required revision has been compacted", Meaning::Refused(Refused::Compacted)),
    ("mvcc: required revision is a future revision", Meaning::Refused(Refused::FutureRevision)),
    ("too many requests", Meaning::Refused(Refused::TooManyRequests)),
    ("request is too large", Meaning::Refused(Refused::TooLarge)),
    ("cluster ID mismatch", Meaning::Refused(Refused::OtherCluster)),
    ("request timed out", Meaning::Unknown(Unknown::ServerTimeout)),
    ("leader transfer took too long", Meaning::Unknown(Unknown::ServerTimeout)),
    ("context deadline exceeded", Meaning::Unknown(Unknown::ServerTimeout)),
    // Could be said before the proposal, but a follower that forwards says it too.
    ("no leader", Meaning::Unknown(Unknown::Leader)),
    ("leader changed", Meaning::Unknown(Unknown::Leader)),
    ("server stopped", Meaning::Unknown(Unknown::Stopping)),
    ("request canceled", Meaning::Unknown(Unknown::Cancelled)),
    ("user name is empty", Meaning::Auth),
    ("user name not found", Meaning::Auth),
    ("permission denied", Meaning::Auth),
    ("permission not given", Meaning::Auth),
    ("invalid auth token", Meaning::Auth),
    ("authentication failed", Meaning::Auth),
    ("revision of auth store is old", Meaning::Auth),
];

/// What a status of the client API means.
pub fn classify(status: &Status) -> Error {
    if let Some(dial) = find::<DialError>(status) {
        return Error::Unreachable { message: dial.to_string() };
    }
    if find::<tonic::ConnectError>(status).is_some() {
        return Error::Unreachable { message: status.message().to_owned() };
    }
    let message = status.message().to_owned();
    let known = by_text(&message).or_else(|| by_code(status));
    match known {
        Some(Meaning::Refused(kind)) => Error::Refused { kind: *kind, message },
        Some(Meaning::Unknown(cause)) => Error::Unknown { cause: *cause, message },
        Some(Meaning::Auth) => Error::Auth { message },
        None => Error::Unknown { cause: Unknown::Other, message: format!("{:?}: {message}", status.code()) },
    }
}

/// What an error of the client crate means.
pub(crate) fn from_client(error: &etcd_client::Error) -> Error {
    if let etcd_client::Error::GRpcStatus(status) = error {
        return classify(status);
    }
    if let etcd_client::Error::TransportError(transport) = error
        && let Some(dial) = find::<DialError>(transport)
    {
        return Error::Unreachable { message: dial.to_string() };
    }
    Error::Unknown { cause: Unknown::Transport, message: error.to_string() }
}

fn by_text(message: &str) -> Option<&'static Meaning> {
    let text =
        message.strip_prefix("etcdserver: ").or_else(|| message.strip_prefix("auth: ")).unwrap_or(message);
    MESSAGES.iter().find(|(beginning, _)| text.starts_with(beginning)).map(|(_, meaning)| meaning)
}

fn by_code(status: &Status) -> Option<&'static Meaning> {
    // Only what etcd's own handlers say is a refusal by its code: tonic uses the same codes for its own troubles, after
    // the request was sent.
    let etcd = status.message().starts_with("etcdserver: ") || status.message().starts_with("auth: ");
    match status.code() {
        Code::InvalidArgument | Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition if etcd => {
            Some(&Meaning::Refused(Refused::Other))
        }
        Code::Unimplemented => Some(&Meaning::Refused(Refused::Other)),
        Code::PermissionDenied | Code::Unauthenticated => Some(&Meaning::Auth),
        Code::DeadlineExceeded => Some(&Meaning::Unknown(Unknown::Deadline)),
        Code::Cancelled => Some(&Meaning::Unknown(Unknown::Cancelled)),
        Code::Unavailable => Some(&Meaning::Unknown(Unknown::Transport)),
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::DataLoss => {
            let broken = find::<tonic::transport::Error>(status).is_some();
            broken.then_some(&Meaning::Unknown(Unknown::Transport))
        }
    }
}

fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(code: i32, message: &str) -> String {
        let error = classify(&Status::new(Code::from_i32(code), message));
        let kind = if error.is_definite() { "definite" } else { "unknown" };
        format!("{kind} {}", error.reason())
    }

    /// etcd-facts.md section 3, with the codes on the wire.
    #[test]
    fn every_known_answer() {
        for (code, message, expected) in [
            (9, "etcdserver: member ID already exist", "definite MemberIdExists"),
            (9, "etcdserver: Peer URLs already exists", "definite PeerUrlExists"),
            (3, "etcdserver: given member URLs are invalid", "definite InvalidUrls"),
            (9, "etcdserver: too many learner members in cluster", "definite TooManyLearners"),
            (
                2,
                "etcdserver: re-configuration failed due to not enough started members",
                "definite NotEnoughStarted",
            ),
            (
                9,
                "etcdserver: re-configuration failed due to not enough started members",
                "definite NotEnoughStarted",
            ),
            (14, "etcdserver: unhealthy cluster", "definite UnhealthyCluster"),
            (5, "etcdserver: member not found", "definite MemberNotFound"),
            (9, "etcdserver: can only promote a learner member", "definite NotALearner"),
            (
                9,
                "etcdserver: can only promote a learner member which is in sync with leader",
                "definite LearnerNotReady",
            ),
            (9, "etcdserver: bad leader transferee", "definite BadTransferee"),
            (9, "etcdserver: not leader", "definite NotLeader"),
            (2, "etcdserver: leader transfer took too long", "unknown ServerTimeout"),
            (14, "etcdserver: rpc not supported for learner", "definite LearnerRpc"),
            (9, "etcdserver: rpc not supported for learner", "definite LearnerRpc"),
            (14, "etcdserver: request timed out", "unknown ServerTimeout"),
            (14, "etcdserver: request timed out, possibly due to connection lost", "unknown ServerTimeout"),
            (
                14,
                "etcdserver: request timed out, possibly due to previous leader failure",
                "unknown ServerTimeout",
            ),
            (
                14,
                "etcdserver: request timed out, waiting for the applied index took too long",
                "unknown ServerTimeout",
            ),
            (4, "context deadline exceeded", "unknown ServerTimeout"),
            (4, "", "unknown Deadline"),
            (14, "etcdserver: no leader", "unknown Leader"),
            (14, "etcdserver: leader changed", "unknown Leader"),
            (8, "etcdserver: mvcc: database space exceeded", "definite NoSpace"),
            (2, "etcdserver: mvcc: database space exceeded", "definite NoSpace"),
            (15, "etcdserver: corrupt cluster", "definite Corrupt"),
            (11, "etcdserver: mvcc: required revision has been compacted", "definite Compacted"),
            (11, "etcdserver: mvcc: required revision is a future revision", "definite FutureRevision"),
            (3, "etcdserver: user name is empty", "definite Auth"),
            (2, "auth: user name is empty", "definite Auth"),
            (7, "etcdserver: permission denied", "definite Auth"),
            (16, "etcdserver: invalid auth token", "definite Auth"),
            (2, "etcdserver: too many requests", "definite TooManyRequests"),
            (8, "etcdserver: too many requests", "definite TooManyRequests"),
            (14, "etcdserver: server stopped", "unknown Stopping"),
            (1, "etcdserver: request canceled", "unknown Cancelled"),
            (9, "etcdserver: cluster ID mismatch", "definite OtherCluster"),
        ] {
            assert_eq!(meaning(code, message), expected, "{code} {message}");
        }
    }

    #[test]
    fn in_doubt_the_outcome_is_unknown() {
        for (code, message, expected) in [
            (2, "something new", "unknown OtherUnknown"),
            (13, "h2 protocol error: error reading a body from connection", "unknown OtherUnknown"),
            (14, "error trying to connect", "unknown Transport"),
            (8, "grpc: received message larger than max", "unknown OtherUnknown"),
            (
                11,
                "Error, decoded message length too large: found 9 bytes, the limit is: 4 bytes",
                "unknown OtherUnknown",
            ),
            (1, "Timeout expired", "unknown Cancelled"),
            (15, "lost", "unknown OtherUnknown"),
            // A refusal needs the name of etcd, unless there is no such method at all.
            (9, "some proxy said no", "unknown OtherUnknown"),
            (9, "etcdserver: some new rule", "definite OtherRefusal"),
            (3, "etcdserver: some new rule", "definite OtherRefusal"),
            (12, "unknown method MemberPromote", "definite OtherRefusal"),
        ] {
            assert_eq!(meaning(code, message), expected, "{code} {message}");
        }
    }

    #[test]
    fn the_text_says_what_happened() {
        let error = classify(&Status::unavailable("etcdserver: unhealthy cluster"));
        assert_eq!(error.refused(), Some(Refused::UnhealthyCluster));
        assert_eq!(error.to_string(), "etcd refused (UnhealthyCluster): etcdserver: unhealthy cluster");
    }
}
