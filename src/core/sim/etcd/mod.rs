//! A model of one etcd cluster: logs, votes, membership and the refusals of the real one, on virtual time.
//!
//! What it leaves out: log compaction and snapshots (a log is never cut), leases, authentication, TLS. The contract test
//! in `e2e` holds it against real etcd processes.

mod apply;
mod links;
mod raft;
mod rpc;
mod truth;

use std::collections::BTreeSet;
use std::sync::Arc;

use smol_str::SmolStr;

use super::rng::Rng;
use crate::federation::observed::{ListedMember, MemberList};
use crate::id::{ClusterId, MemberId, PeerUrl};

pub use rpc::{Answer, Refusal, Request, Ticket};
pub use truth::Loss;

/// etcd's `HealthInterval`: a peer counts as connected only after so long (etcd-facts 5).
pub const HEALTH_MS: u64 = 5_000;
/// A blackholed stream stays "active" for at least so long (etcd-facts 4, measured 25 s and more).
pub const BLACKHOLE_MS: u64 = 25_000;
/// A removed member stops itself after about a second (etcd-facts 2).
pub const REMOVED_STOPS_MS: u64 = 1_000;
/// A URL freed and added again gets another id only in another second (etcd-facts 2).
pub const ID_SALT_MS: u64 = 1_000;

/// Number of a member within the model; members are never forgotten, so it stays valid.
pub type At = usize;

/// What a log entry does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A new leader's first entry, or a dropped proposal.
    Nothing,
    /// A write.
    Put,
    /// A member publishes its name.
    Publish(At),
    /// Adds a member.
    Add {
        /// Who.
        at: At,
        /// As a learner.
        learner: bool,
    },
    /// Makes a learner a voter.
    Promote(MemberId),
    /// Removes a member.
    Remove(MemberId),
    /// Changes a peer URL.
    Update(MemberId, PeerUrl),
}

/// What an entry makes of a membership.
type Change = Result<Arc<Conf>, Refusal>;

#[derive(Debug, Clone)]
struct Logged {
    term: u64,
    entry: Entry,
    ticket: Option<(At, Ticket)>,
    /// What the membership is after it, kept so that every member that applies it shares one value.
    after: Option<(Arc<Conf>, Change)>,
}

/// The membership as one member has applied it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    /// Members with their numbers, in the order of their ids.
    pub members: Vec<(At, bool)>,
    /// Numbers of removed members.
    pub gone: BTreeSet<MemberId>,
    /// The list as clients see it.
    pub list: MemberList,
    voters: u32,
    all: u32,
}

impl Conf {
    fn new(members: Vec<(At, ListedMember)>, gone: BTreeSet<MemberId>) -> Self {
        let bits = |learners: bool| {
            members
                .iter()
                .filter(|(_, m)| learners || !m.learner)
                .fold(0_u32, |bits, (at, _)| bits | (1 << at))
        };
        let (voters, all) = (bits(false), bits(true));
        let pairs = members.iter().map(|(at, m)| (*at, m.learner)).collect();
        let list = MemberList::new(members.into_iter().map(|(_, m)| m).collect());
        Self { members: pairs, gone, list, voters, all }
    }

    /// Numbers of the voters.
    pub fn voters(&self) -> impl Iterator<Item = At> + Clone + '_ {
        self.members.iter().filter(|(_, learner)| !learner).map(|(at, _)| *at)
    }

    /// How many voters.
    pub const fn voter_count(&self) -> usize {
        self.voters.count_ones() as usize
    }

    /// Whether a member votes.
    pub const fn is_voter(&self, at: At) -> bool {
        self.voters & (1 << at) != 0
    }

    /// Whether a member is listed.
    pub const fn has(&self, at: At) -> bool {
        self.all & (1 << at) != 0
    }
}

/// One member: its data directory and, while it runs, its process.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent fact about a machine")]
pub struct Node {
    /// Its id.
    pub id: MemberId,
    /// Its name, published at its first start.
    pub name: SmolStr,
    /// The peer URL that it was added with.
    pub url: PeerUrl,
    /// The site that it runs in; links between sites can be cut.
    pub site: usize,
    /// Its process runs.
    pub running: bool,
    /// It was started at least once.
    pub started: bool,
    /// Its directory is there and not emptied.
    pub disk: bool,
    /// Its directory was emptied or replaced by an older copy.
    pub behind: bool,
    /// It was started like that under its old id: writes may be lost.
    pub amnesia: bool,
    /// Its data differ from what the log says (a fault of the storage).
    pub corrupt: bool,
    /// Entries that it takes in one round; a slow member has few.
    pub intake: usize,
    /// It does not fsync at the moment.
    pub slow_disk: bool,
    log: Vec<u32>,
    durable: usize,
    commit: usize,
    applied: usize,
    term: u64,
    /// The leader that it follows; itself if it leads.
    leader: Option<At>,
    conf: Arc<Conf>,
    revision: i64,
    digest: u64,
    silent_since: Option<u64>,
    patience: u64,
    quorum_lost_since: Option<u64>,
    progress: Vec<u32>,
    pending_conf: usize,
    publishing: u32,
    active: Vec<Active>,
    stops_at: Option<u64>,
}

/// A proposal on its way.
#[derive(Debug, Clone)]
struct Late {
    due: u64,
    at: At,
    entry: Entry,
    ticket: Ticket,
    gives_up: u64,
}

/// The stream to a peer, as etcd's transport reports it.
#[derive(Debug, Clone, Copy)]
struct Active {
    since: u64,
    ends: u64,
}

const INACTIVE: Active = Active { since: 0, ends: 0 };

impl Node {
    /// The raft term.
    pub const fn term(&self) -> u64 {
        self.term
    }

    /// The commit index that it knows; shown in Status.
    pub const fn commit(&self) -> usize {
        self.commit
    }

    /// The applied index.
    pub const fn applied(&self) -> usize {
        self.applied
    }

    /// The last index of its log that a crash would not take away.
    pub const fn durable(&self) -> usize {
        self.durable
    }

    /// The revision.
    pub const fn revision(&self) -> i64 {
        self.revision
    }

    /// The member that it believes to lead.
    pub const fn leader(&self) -> Option<At> {
        self.leader
    }

    /// The membership that it has applied.
    pub const fn conf(&self) -> &Arc<Conf> {
        &self.conf
    }

    /// Digest of its data: equal at equal applied indices unless the storage is corrupt.
    pub const fn digest(&self) -> u64 {
        if self.corrupt { !self.digest } else { self.digest }
    }
}

/// One etcd cluster with everything that ever happened to it.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The id.
    pub id: ClusterId,
    /// Every member that was ever added.
    pub nodes: Vec<Node>,
    /// `--max-learners`.
    pub max_learners: usize,
    /// Election timeout, ms.
    pub election_ms: u64,
    /// Members whose NOSPACE alarm is active.
    pub no_space: bool,
    token: u64,
    entries: Vec<Logged>,
    /// `cut[a]` has bit `b`: nothing sent at site a arrives at site b.
    cut: [u32; 16],
    now: u64,
    rng: Rng,
    answers: Vec<Option<Answer>>,
    late: Vec<Late>,
    /// The membership before any entry of the log.
    birth: Arc<Conf>,
    nobody: Arc<Conf>,
    transfers: Vec<(u64, At, At, Ticket)>,
    acknowledged: Vec<u32>,
    awaited_puts: Vec<(Ticket, u32)>,
    losses: Vec<Loss>,
}

/// FNV-1a, for ids: no claim to strength, only to be the same on every machine.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().copied().flatten() {
        h = (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    // Spread the last bytes over the whole id.
    (h ^ (h >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1
}

impl Cluster {
    /// A new cluster of one member.
    pub fn seed(token: &str, url: PeerUrl, name: SmolStr, site: usize, now: u64, rng: Rng) -> Self {
        Self::born(token, vec![(url, name, site)], now, rng)
    }

    /// A new cluster of some voters. The ids follow from URLs and token alone, so the same gives the same cluster.
    pub fn born(token: &str, members: Vec<(PeerUrl, SmolStr, usize)>, now: u64, rng: Rng) -> Self {
        let token = hash(&[token.as_bytes()]);
        let id = |url: &PeerUrl| MemberId(hash(&[url.0.as_bytes(), &token.to_be_bytes()]));
        let listed = |(at, (url, ..)): (At, &(PeerUrl, SmolStr, usize))| {
            (
                at,
                ListedMember { id: id(url), name: SmolStr::default(), peer_url: url.clone(), learner: false },
            )
        };
        let mut listed: Vec<_> = members.iter().enumerate().map(listed).collect();
        listed.sort_by_key(|(_, member)| member.id);
        let cluster =
            listed.iter().fold(token, |all, (_, m)| hash(&[&all.to_be_bytes(), &m.id.0.to_be_bytes()]));
        let birth = Arc::new(Conf::new(listed, BTreeSet::new()));
        let mut cluster = Self {
            id: ClusterId(cluster),
            nodes: Vec::new(),
            max_learners: 1,
            election_ms: 1_000,
            no_space: false,
            token,
            entries: Vec::new(),
            cut: [0; 16],
            now,
            rng,
            answers: Vec::new(),
            late: Vec::new(),
            birth: Arc::clone(&birth),
            nobody: Arc::new(Conf::new(Vec::new(), BTreeSet::new())),
            transfers: Vec::new(),
            acknowledged: Vec::new(),
            awaited_puts: Vec::new(),
            losses: Vec::new(),
        };
        for (url, name, site) in members {
            let member = id(&url);
            cluster.push_node(member, name, url, site, Arc::clone(&birth));
        }
        cluster
    }

    fn push_node(&mut self, id: MemberId, name: SmolStr, url: PeerUrl, site: usize, conf: Arc<Conf>) -> At {
        let node = Node {
            id,
            name,
            url,
            site,
            running: false,
            started: false,
            disk: true,
            behind: false,
            amnesia: false,
            corrupt: false,
            intake: usize::MAX,
            slow_disk: false,
            log: Vec::new(),
            durable: 0,
            commit: 0,
            applied: 0,
            term: 0,
            leader: None,
            conf,
            revision: 1,
            digest: 0,
            silent_since: None,
            patience: self.election_ms,
            quorum_lost_since: None,
            progress: Vec::new(),
            pending_conf: 0,
            publishing: 0,
            active: Vec::new(),
            stops_at: None,
        };
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Virtual time, ms.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// The number of a member id.
    pub fn find(&self, id: MemberId) -> Option<At> {
        self.nodes.iter().position(|node| node.id == id)
    }

    /// Starts a member's process on what its directory holds.
    pub fn start(&mut self, at: At) {
        let now = self.now;
        let patience = self.election_ms + self.rng.below(self.election_ms);
        let Some(node) = self.nodes.get_mut(at) else {
            return;
        };
        if node.running {
            return;
        }
        node.amnesia |= node.started && node.behind;
        node.disk = true;
        node.running = true;
        node.started = true;
        node.leader = None;
        node.silent_since = Some(now);
        node.patience = patience;
        node.stops_at = None;
        self.refresh_links();
    }

    /// Stops a process in good order: everything is on disk.
    pub fn stop(&mut self, at: At) {
        if let Some(node) = self.nodes.get_mut(at) {
            if node.running {
                node.durable = node.log.len();
            }
            node.running = false;
            node.leader = None;
        }
        self.refresh_links();
    }

    /// Kills a process: what was not fsynced is gone.
    pub fn crash(&mut self, at: At) {
        if let Some(node) = self.nodes.get_mut(at) {
            if node.running {
                node.forget_from(node.durable);
            }
            node.running = false;
            node.leader = None;
        }
        self.rewind(at);
        self.refresh_links();
    }

    /// The directory is emptied, or its volume is gone.
    pub fn wipe(&mut self, at: At) {
        self.crash(at);
        if let Some(node) = self.nodes.get_mut(at) {
            node.forget_from(0);
            node.disk = false;
            node.behind = true;
            node.term = 0;
            node.applied = 0;
            node.revision = 1;
            node.digest = 0;
        }
        self.rewind(at);
        let nobody = Arc::clone(&self.nobody);
        if let Some(node) = self.nodes.get_mut(at) {
            node.conf = nobody; // started again as "existing" it knows no voters
        }
        self.note_holders();
    }

    /// The directory is replaced by an older copy of itself, `entries` behind.
    pub fn old_copy(&mut self, at: At, entries: usize) {
        self.crash(at);
        if let Some(node) = self.nodes.get_mut(at) {
            node.forget_from(node.durable.saturating_sub(entries));
            node.behind = true;
        }
        self.rewind(at);
    }
}
