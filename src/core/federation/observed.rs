//! What one agent saw: of its own members, of its links, and of the raft leader if that is beside it.
//! A failed look is data too: it shows as a missing value, never as an old one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::federation::member::{EtcdOptions, IncarnationState, Mark, Process};
use crate::id::{
    ClusterId, Digest, Epoch, Generation, IncarnationId, Index, MemberId, PeerUrl, Revision, Seq, SiteName,
    Slot, Term, Uid,
};
use crate::intent::{Change, HeldIntent};
use crate::reason::Reason;
use crate::timing::Timing;

/// One entry of etcd's member list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedMember {
    /// The id.
    pub id: MemberId,
    /// Empty until the member has published it at its first start.
    pub name: SmolStr,
    /// The peer URL; with quorate there is exactly one, a foreign etcd may join several by commas.
    pub peer_url: PeerUrl,
    /// Whether it is a learner.
    pub learner: bool,
}

/// A member list with its digest, cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<ListedMember>", into = "Vec<ListedMember>")]
pub struct MemberList {
    members: Arc<[ListedMember]>,
    digest: Digest,
}

impl MemberList {
    /// Sorts by id and computes the digest over id, peer URL and learner flag; the name appears only at the first
    /// start and so is left out (networking.md 5).
    pub fn new(mut members: Vec<ListedMember>) -> Self {
        use sha2::Digest as _;
        members.sort_by_key(|member| member.id);
        let mut hash = sha2::Sha256::new();
        for member in &members {
            hash.update(member.id.0.to_be_bytes());
            hash.update([u8::from(member.learner)]);
            hash.update((member.peer_url.0.len() as u64).to_be_bytes());
            hash.update(member.peer_url.0.as_bytes());
        }
        Self { members: members.into(), digest: Digest(hash.finalize().into()) }
    }

    /// The members by ascending id.
    pub fn iter(&self) -> impl Iterator<Item = &ListedMember> {
        self.members.iter()
    }

    /// The voters.
    pub fn voters(&self) -> impl Iterator<Item = &ListedMember> {
        self.iter().filter(|member| !member.learner)
    }

    /// The learners.
    pub fn learners(&self) -> impl Iterator<Item = &ListedMember> {
        self.iter().filter(|member| member.learner)
    }

    /// Finds a member by id.
    pub fn get(&self, id: MemberId) -> Option<&ListedMember> {
        self.iter().find(|member| member.id == id)
    }

    /// Finds a member by peer URL.
    pub fn by_url(&self, url: &PeerUrl) -> Option<&ListedMember> {
        self.iter().find(|member| member.peer_url == *url)
    }

    /// The digest that fences compare.
    pub const fn digest(&self) -> Digest {
        self.digest
    }
}

impl From<Vec<ListedMember>> for MemberList {
    fn from(members: Vec<ListedMember>) -> Self {
        Self::new(members)
    }
}

impl From<MemberList> for Vec<ListedMember> {
    fn from(list: MemberList) -> Self {
        list.members.to_vec()
    }
}

/// A version of etcd; only major and minor decide anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// Major.
    pub major: u16,
    /// Minor.
    pub minor: u16,
    /// Patch.
    pub patch: u16,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What a running member says of itself (Maintenance.Status and its local member list).
#[expect(clippy::struct_excessive_bools, reason = "each is one fact that etcd reports")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Cluster id of the answer's header.
    pub cluster: ClusterId,
    /// Member id of the answer's header.
    pub member: MemberId,
    /// The leader that it follows.
    pub leader: Option<MemberId>,
    /// Its raft term.
    pub term: Term,
    /// Its raft index.
    pub index: Index,
    /// Its applied index.
    pub applied: Index,
    /// Its revision.
    pub revision: Revision,
    /// Size of its database in bytes.
    pub db_size: u64,
    /// Its binary's version.
    pub version: Version,
    /// Whether it calls itself a learner.
    pub learner: bool,
    /// NOSPACE or CORRUPT is active (rule I13).
    pub alarm: bool,
    /// `Status.errors` names something that is not an alarm.
    pub faulty: bool,
    /// Digest of the list that it answers locally (serializable); rule I15 compares it with the leader's.
    pub list: Option<Digest>,
    /// `/readyz` is good.
    pub ready: bool,
    /// An administrator has enabled a downgrade (from 3.6).
    pub downgrading: bool,
}

/// One of the agent's own members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalMember {
    /// Its slot.
    pub slot: Slot,
    /// The life of its data directory.
    pub incarnation: IncarnationId,
    /// How far that life is, from the agent's durable record.
    pub state: IncarnationState,
    /// Its member id, once added.
    pub member: Option<MemberId>,
    /// Its peer URL.
    pub peer_url: PeerUrl,
    /// What its supervisor says of the process.
    pub process: Process,
    /// What its etcd was started with; none if it does not run.
    #[serde(default)]
    pub options: Option<EtcdOptions>,
    /// The peer URL that it is to have instead of the listed one; it is served already.
    #[serde(default)]
    pub moves_to: Option<PeerUrl>,
    /// Its etcd listens on other ports than its peer URLs need: it has to be restarted.
    #[serde(default)]
    pub restart: bool,
    /// What etcd says of itself; none if it does not answer.
    pub status: Option<Status>,
    /// Its certificates are good for more than 24 h, or a quarter of their life if that is less (rule I9).
    pub certificates_good: bool,
}

/// A slot that its agent is ready to fill: endpoints, certificates and volume are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotOffer {
    /// The slot.
    pub slot: Slot,
    /// The peer URL that the new member will have.
    pub peer_url: PeerUrl,
    /// The planned incarnation.
    pub incarnation: IncarnationId,
}

/// One row of the connectivity matrix: what this agent's own probe of a member's peer port found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The member that was probed; TLS, member id and cluster id were checked.
    pub member: MemberId,
    /// Probes that failed in a row; 3 = down (safety.md 2.2).
    pub misses: u32,
    /// For how long it was good without a break, milliseconds.
    pub good_ms: u64,
    /// Round-trip time of the good probes, microseconds; see [`crate::federation::distance::Distance`].
    pub rtt_us: u32,
    /// The shortest of them, microseconds.
    #[serde(default)]
    pub least_us: u32,
    /// The last probe was more than [`PROBE_MS`] old when this row was made: good enough to call a member alive in calm
    /// times, not good enough for a step (rule I13).
    #[serde(default)]
    pub stale: bool,
}

/// What this agent's own probe of the URL that a voter is to have found: TLS with the certificate of its slot, and the id
/// of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// The voter.
    pub member: MemberId,
    /// The URL that it is to have.
    pub peer_url: PeerUrl,
    /// For how long it was good without a break, milliseconds; 0 = it is not good.
    pub good_ms: u64,
}

/// How far the agent of another site is, by pings on the link between the agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLink {
    /// The other site.
    pub site: SiteName,
    /// Round-trip time over the last minute, microseconds; see [`crate::federation::distance::Distance`].
    pub rtt_us: u32,
    /// The shortest of them, microseconds.
    #[serde(default)]
    pub least_us: u32,
}

/// Probes come every second while a step is wished; one that is older than this belongs to calm times.
pub const PROBE_MS: u64 = 4_000;

/// What one agent has seen of another site: a site whose own record or data say less was rolled back (rules I5, I18).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The other site.
    pub site: SiteName,
    /// The highest epoch of its record.
    pub epoch: Epoch,
    /// The highest number of its record in that epoch.
    pub seq: Seq,
    /// How far its incarnations were seen; an index counts once a later Status showed a higher one.
    pub marks: Vec<(IncarnationId, Mark)>,
}

impl Link {
    /// Three misses in a row mean down; a link that was never good is down too.
    pub const fn up(&self) -> bool {
        self.misses < 3 && (self.good_ms > 0 || self.rtt_us > 0)
    }
}

/// What the agent beside the raft leader knows, and nobody else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderClaim {
    /// The leading member: this agent's own.
    pub member: MemberId,
    /// The term in which the linearizable read succeeded.
    pub term: Term,
    /// The commit index that was read before the followers were asked.
    pub commit: Index,
    /// The linearizable member list.
    pub list: MemberList,
    /// Data comparisons with other members at one revision (rule I9).
    pub checks: Vec<DataCheck>,
}

/// Result of comparing one member's data with the leader's at one revision and compact revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataCheck {
    /// The member that was compared.
    pub member: MemberId,
    /// At which revision.
    pub revision: Revision,
    /// Whether HashKV was equal.
    pub equal: bool,
    /// The member was a voter when it was asked: after a promotion it is compared again (rule I9).
    pub as_voter: bool,
}

/// What others must know of an agent's durable record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordSummary {
    /// The federation that this site is bound to.
    pub uid: Option<Uid>,
    /// Its epoch.
    pub epoch: Epoch,
    /// The last intent that it acknowledged.
    pub intent: Option<Arc<HeldIntent>>,
    /// Digest of the ballot that it voted for in this epoch.
    pub vote: Option<Digest>,
    /// The cluster that was born in this epoch.
    pub seeded: Option<Seeded>,
    /// The effective spec.
    pub generation: Generation,
    /// Digest of the effective spec.
    pub effective: Option<Digest>,
    /// etcd's timers as they were activated with it.
    #[serde(default)]
    pub timing: Option<Timing>,
    /// The last membership change that happened.
    #[serde(default)]
    pub changed: Option<Arc<Change>>,
    /// Ids that were removed.
    #[serde(default)]
    pub removed: Vec<MemberId>,
    /// Seed sites of every ballot that this site voted for.
    #[serde(default)]
    pub seeds: Vec<SiteName>,
    /// The record is missing or unreadable although members or votes exist here.
    pub missing: bool,
    /// This site was taken out of the spec (decisions.md 4).
    pub retired: bool,
    /// Sites that had a part once and are not named by the effective spec.
    #[serde(default)]
    pub former: Vec<SiteName>,
    /// It has concluded that the federation was deleted everywhere, and stopped its members.
    #[serde(default)]
    pub deleted: bool,
}

impl RecordSummary {
    /// The highest number that the record holds.
    pub fn seq(&self) -> Seq {
        self.intent.as_ref().map_or(Seq(0), |held| held.intent.seq)
    }
}

/// The birth of a cluster in one epoch (safety.md 7.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seeded {
    /// The epoch.
    pub epoch: Epoch,
    /// The cluster id.
    pub cluster: ClusterId,
    /// The seed's member id.
    pub member: MemberId,
}

/// Everything that one agent tells the others about one federation.
#[expect(clippy::struct_excessive_bools, reason = "facts that a site tells, independent of each other")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteObservation {
    /// The site that speaks.
    pub site: SiteName,
    /// Digest of the spec in its own CR; none if it has no CR.
    pub spec: Option<Digest>,
    /// Its CR was deleted. Without a CR and without this nobody knows why there is none.
    #[serde(default)]
    pub deleted: bool,
    /// Its durable record.
    pub record: Arc<RecordSummary>,
    /// Its own members.
    pub members: Vec<LocalMember>,
    /// Slots that it is ready to fill.
    pub offers: Vec<SlotOffer>,
    /// Its probes of all listed members.
    pub links: Vec<Link>,
    /// Its pings of the agents of other sites, those that are proven.
    #[serde(default)]
    pub peers: Vec<PeerLink>,
    /// Its probes of the peer URLs that voters are to have.
    #[serde(default)]
    pub reached: Vec<Reached>,
    /// Only if its own member leads.
    pub leader: Option<LeaderClaim>,
    /// It wishes or runs a step, or misses a voter: everybody probes every second.
    pub attention: bool,
    /// Seconds since the newest verified backup that it knows of; none if no backups are configured.
    pub backup_age_s: Option<u64>,
    /// A restore or defragmentation runs here (rule I13).
    pub maintenance: bool,
    /// Data directories or incarnation records exist here: such a site does not vote for a new cluster.
    pub has_data: bool,
    /// What it has seen of the other sites.
    #[serde(default)]
    pub seen: Vec<Seen>,
    /// Why the site does not offer its slots yet, if there is something to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_up: Option<Reason>,
    /// It moved leadership to this member, away from this term: the change that follows is planned (rule I13).
    #[serde(default)]
    pub moved: Option<(MemberId, Term)>,
    /// What on this site's host keeps its members, or the agent itself, from working.
    #[serde(default)]
    pub hindered: Vec<Hindrance>,
}

/// A trouble of a site's host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hindrance {
    /// The slot whose member cannot run; none if it is the agent that cannot work.
    pub slot: Option<Slot>,
    /// What is wrong, and where.
    pub reason: Reason,
}

impl SiteObservation {
    /// An observation of a site that has seen nothing yet.
    pub fn empty(site: SiteName) -> Self {
        Self {
            site,
            spec: None,
            deleted: false,
            record: Arc::default(),
            members: Vec::new(),
            offers: Vec::new(),
            links: Vec::new(),
            peers: Vec::new(),
            reached: Vec::new(),
            leader: None,
            attention: false,
            backup_age_s: None,
            maintenance: false,
            has_data: false,
            seen: Vec::new(),
            held_up: None,
            moved: None,
            hindered: Vec::new(),
        }
    }

    /// The link row to a member.
    pub fn link(&self, member: MemberId) -> Option<&Link> {
        self.links.iter().find(|link| link.member == member)
    }
}

/// An observation with its age, as the receiver counts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// What was said.
    pub observation: Arc<SiteObservation>,
    /// Milliseconds since it was true: local receive time on the monotonic clock plus the sample's age when sent.
    pub age_ms: u64,
}
