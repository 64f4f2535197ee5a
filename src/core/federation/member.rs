//! What agent and supervisor say to each other about one member, and what stands beside its data directory.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::id::{ClusterId, Epoch, FederationKey, IncarnationId, Index, MemberId, PeerUrl, Slot, Term, Uid};
use crate::reason::Reason;

/// How far the life of a data directory is (safety.md 2.1). The order matters: `>= Started` is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IncarnationState {
    /// Its uuid exists; nothing else.
    Planned,
    /// It is listed by etcd, with an id.
    Added,
    /// The first start was permitted; persisted before etcd is started.
    Started,
    /// It was seen as a voter.
    Voter,
    /// Its removal was acknowledged.
    Removing,
    /// It is removed; its directory is archived or will be.
    Removed,
    /// Its data are lost; it is never started again.
    Lost,
}

/// One life of one data directory. Stored beside the directory and in the site's durable record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incarnation {
    /// The slot that it fills.
    pub slot: Slot,
    /// Its name.
    pub id: IncarnationId,
    /// How far it is.
    pub state: IncarnationState,
    /// The epoch that it belongs to.
    pub epoch: Epoch,
    /// The etcd cluster, once known.
    pub cluster: Option<ClusterId>,
    /// The member id, once known.
    pub member: Option<MemberId>,
    /// How far it was seen.
    pub mark: Mark,
    /// It is the seed of its epoch (state `new` was permitted once).
    #[serde(default)]
    pub seed: bool,
    /// Its grant was delivered: an empty directory after that is a lost one.
    #[serde(default)]
    pub granted: bool,
    /// It has ended and nothing of it is left beside the data directory: its supervisor has said so.
    #[serde(default)]
    pub archived: bool,
}

/// High-water mark: the highest term and index that an incarnation was seen at (rule I5). An index counts only once
/// a later Status showed a higher one, since etcd shows an index before its own fsync of it (decisions.md 2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// The highest term.
    pub term: Term,
    /// The highest index that counts.
    pub index: Index,
}

impl Mark {
    /// The higher of two marks, each part for itself.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { term: self.term.max(other.term), index: self.index.max(other.index) }
    }
}

/// A high-water mark as it is kept outside the member's volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutsideMark {
    /// The incarnation that it belongs to.
    pub incarnation: IncarnationId,
    /// The state that the incarnation had reached.
    pub state: IncarnationState,
    /// How far it was.
    pub mark: Mark,
}

/// What was found in a data directory, read from its write-ahead log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DirFacts {
    /// No `member/wal` with a file in it.
    Empty,
    /// A readable log.
    Present {
        /// Cluster id of the log's metadata.
        cluster: ClusterId,
        /// Member id of the log's metadata.
        member: MemberId,
        /// The last term.
        term: Term,
        /// The last index.
        index: Index,
    },
    /// Something is there, but not readable.
    Unreadable(String),
}

/// What a supervisor says of its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Process {
    /// The agent does not reach the supervisor.
    Unknown,
    /// The directory is empty and no grant is there.
    AwaitingGrant,
    /// etcd was started and does not answer yet.
    Starting,
    /// etcd runs.
    Running,
    /// etcd ended and is started again after a back-off.
    Exited,
    /// It was stopped on purpose.
    Stopped,
    /// It is barred for ever.
    Fenced,
    /// The guard refused the start (rule I5).
    Quarantined(Reason),
}

/// What a grant permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrantKind {
    /// Create a new cluster; void once the seed is recorded.
    Seed,
    /// Join the cluster that already lists this member.
    Join,
    /// Start again on the existing directory.
    Resume,
}

/// Permission for one incarnation to run; single use, persisted in `desired.json` before etcd is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The federation.
    pub federation: FederationKey,
    /// Its uid.
    pub uid: Uid,
    /// The epoch.
    pub epoch: Epoch,
    /// The slot.
    pub slot: Slot,
    /// The incarnation that may run, and no other.
    pub incarnation: IncarnationId,
    /// What is permitted.
    pub kind: GrantKind,
    /// The cluster; none for a seed.
    pub cluster: Option<ClusterId>,
    /// The member id; none for a seed.
    pub member: Option<MemberId>,
    /// etcd's `--name`.
    pub name: SmolStr,
    /// The peer URL.
    pub peer_url: PeerUrl,
    /// etcd's `--initial-cluster`, names and URLs exactly as listed.
    pub initial_cluster: Vec<(SmolStr, PeerUrl)>,
    /// How far the agent has seen this incarnation.
    pub mark: Mark,
    /// etcd's settings.
    pub settings: EtcdOptions,
}

impl Grant {
    /// `--initial-cluster-token`: a new one with each epoch, so that old directories cannot join (safety.md 8).
    pub fn token(&self) -> String {
        format!("{}/{}", self.uid, self.epoch)
    }
}

/// Settings of one etcd process that do not depend on the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdOptions {
    /// Minor or exact version asked for.
    pub version: SmolStr,
    /// `--heartbeat-interval`, ms.
    pub heartbeat_ms: u32,
    /// `--election-timeout`, ms.
    pub election_ms: u32,
    /// `--quota-backend-bytes`.
    pub quota_bytes: u64,
    /// The ports on which etcd listens for peers; none = only the one of its slot. More than one while its peer URL
    /// changes: the old one and the new one are served then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_ports: Vec<u16>,
}

/// What a supervisor reports to its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// The slot that it serves.
    pub slot: Slot,
    /// `incarnation.json`, if there is one.
    pub incarnation: Option<Incarnation>,
    /// What is in the data directory; read while etcd does not run.
    pub dir: Option<DirFacts>,
    /// The process.
    pub process: Process,
    /// Process id of etcd while it runs.
    pub pid: Option<u32>,
    /// How often etcd was started by this supervisor.
    pub starts: u64,
    /// What the running etcd was started with; none if none runs.
    #[serde(default)]
    pub options: Option<EtcdOptions>,
    /// The last line that etcd wrote before it ended.
    pub last_words: Option<String>,
    /// Directories in the archive.
    pub archived: Vec<String>,
    /// What on its host keeps it from running.
    #[serde(default)]
    pub hindered: Option<Reason>,
}

impl MemberReport {
    /// Of a slot of which nothing is known yet.
    pub const fn unknown(slot: Slot) -> Self {
        Self {
            slot,
            incarnation: None,
            dir: None,
            process: Process::Unknown,
            pid: None,
            starts: 0,
            options: None,
            last_words: None,
            archived: Vec::new(),
            hindered: None,
        }
    }
}
