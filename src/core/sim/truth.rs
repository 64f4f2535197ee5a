//! What really happened, beside what etcd's model knows itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::etcd::{At, Cluster, Conf, Node};
use crate::federation::member::Grant;
use crate::id::{Epoch, MemberId, OpId, PeerUrl, Seq, SiteName, Slot, Uid};
use crate::intent::record::Record;
use crate::intent::{Intent, IntentKind, IntentState, Resolution};

/// What an agent acts on may be as old as the rules allow an observation to be, plus the time of one run.
pub(super) const GRACE_MS: u64 = 9_000;

/// One operation, as the truth knows it.
#[derive(Debug, Clone)]
pub(super) struct Op {
    pub(super) id: OpId,
    pub(super) seq: Seq,
    pub(super) kind: IntentKind,
    pub(super) sent: bool,
    pub(super) ended: bool,
}

/// What really happened.
#[derive(Debug)]
pub struct Truth {
    /// Steps that were carried out, by kind.
    pub steps: BTreeMap<&'static str, u64>,
    /// Writes of records that met another version.
    pub conflicts: u64,
    /// When the newest backup was taken.
    pub backup_at: Option<u64>,
    /// When the backups became too old.
    pub backups_lost_at: u64,
    /// When the alarm began.
    pub alarm_since: u64,
    pub(super) ops: Vec<Op>,
    pub(super) seeds: Vec<(Uid, Epoch, usize)>,
    pub(super) forgiven: u32,
    pub(super) highest: Vec<(Epoch, Seq)>,
    pub(super) slots: Vec<(MemberId, Slot)>,
    pub(super) alive_at: Vec<u64>,
    pub(super) steady_since: Vec<u64>,
    pub(super) led_at: Vec<u64>,
    pub(super) quorum_at: u64,
    pub(super) conf: Option<Arc<Conf>>,
    pub(super) changed_at: u64,
    pub(super) freed: Vec<(PeerUrl, u64)>,
    pub(super) told: [bool; 24],
}

impl Truth {
    /// Nothing happened yet.
    pub fn new(sites: usize) -> Self {
        Self {
            steps: BTreeMap::new(),
            conflicts: 0,
            backup_at: Some(super::scenario::BEGIN_MS),
            backups_lost_at: 0,
            alarm_since: 0,
            ops: Vec::new(),
            seeds: Vec::new(),
            forgiven: 0,
            highest: vec![(Epoch(0), Seq(0)); sites],
            slots: Vec::new(),
            alive_at: Vec::new(),
            steady_since: Vec::new(),
            led_at: Vec::new(),
            quorum_at: super::scenario::BEGIN_MS,
            conf: None,
            changed_at: 0,
            freed: Vec::new(),
            told: [false; 24],
        }
    }

    /// A step was carried out.
    pub fn count_step(&mut self, kind: &'static str) {
        *self.steps.entry(kind).or_default() += 1;
    }

    /// A seed may start.
    pub fn note_seed(&mut self, grant: &Grant, site: usize) {
        self.seeds.push((grant.uid, grant.epoch, site));
    }

    /// The cluster of a world that begins with one.
    pub fn note_birth(&mut self, uid: Uid, epoch: Epoch, site: usize) {
        self.seeds.push((uid, epoch, site));
    }

    /// Which slot a member fills.
    pub fn note_slot(&mut self, member: MemberId, slot: &Slot) {
        self.slots.push((member, slot.clone()));
    }

    /// The slot of a member.
    pub fn slot_of(&self, member: MemberId) -> Option<Slot> {
        self.slots.iter().find(|(id, _)| *id == member).map(|(_, slot)| slot.clone())
    }

    /// A fault took this site's record away or back: its numbers may fall once.
    pub const fn forgive(&mut self, s: usize) {
        self.forgiven |= 1 << s;
    }

    /// The highest number that a site's store ever held.
    pub fn highest_at(&self, s: usize) -> (Epoch, Seq) {
        self.highest.get(s).copied().unwrap_or_default()
    }

    /// A record is about to be written: `i18` on the durable store.
    pub fn note_persist(&mut self, s: usize, old: Option<&Record>, new: &Record) {
        let number = (new.epoch, new.seq());
        let fell = old.is_some_and(|old| number < (old.epoch, old.seq()));
        if fell && self.forgiven & (1 << s) == 0 {
            self.told[18] = true;
        }
        self.highest[s] = self.highest[s].max(number);
    }

    /// An executor proposes.
    pub fn note_proposal(&mut self, intent: &Intent, _by: &SiteName) {
        if let Some(op) = self.ops.iter_mut().find(|op| op.id == intent.op) {
            op.seq = intent.seq;
        } else {
            let (id, seq, kind) = (intent.op, intent.seq, intent.kind.clone());
            self.ops.push(Op { id, seq, kind, sent: false, ended: false });
        }
    }

    /// Etcd refused for certain: the operation is as if never sent.
    pub fn note_refused(&mut self, op: Option<OpId>) {
        if let Some(op) = self.ops.iter_mut().find(|o| Some(o.id) == op) {
            op.sent = false;
        }
    }

    /// An operation ended.
    pub fn note_resolution(&mut self, resolution: &Resolution) {
        for op in &mut self.ops {
            let closed = resolution.closed.contains(&op.id);
            let done = op.id == resolution.op && resolution.state != IntentState::Open;
            op.ended |= closed || done;
        }
    }

    /// A directory goes into the archive: never that of a listed, unharmed voter of a living cluster (`i11`).
    pub fn note_archive(&mut self, cluster: &Cluster, at: At, attested: bool) {
        let node = &cluster.nodes[at];
        let listed = cluster.true_leader().is_some_and(|leader| cluster.nodes[leader].conf().is_voter(at));
        if listed
            && !attested
            && node.disk
            && !node.behind
            && !node.conf().gone.contains(&node.id)
            && !node.amnesia
        {
            self.told[11] = true;
        }
    }

    /// A member whose data are gone, whatever is listed.
    pub const fn lost(&self, node: &Node) -> bool {
        !node.disk || node.behind
    }

    pub(super) fn alive(&self, at: At, now: u64) -> bool {
        self.alive_at.get(at).is_some_and(|seen| seen + GRACE_MS >= now)
    }

    pub(super) fn follow(&mut self, cluster: &Cluster, now: u64) -> Option<(Arc<Conf>, Arc<Conf>)> {
        self.alive_at.resize(cluster.nodes.len(), 0);
        self.steady_since.resize(cluster.nodes.len(), now);
        self.led_at.resize(cluster.nodes.len(), 0);
        for (since, _) in self.steady_since.iter_mut().zip(&cluster.nodes).filter(|(_, node)| !node.running) {
            *since = now;
        }
        let leader = cluster.true_leader()?;
        self.quorum_at = now;
        self.led_at[leader] = now;
        let conf = cluster.nodes[leader].conf();
        for at in 0..cluster.nodes.len() {
            let reached = at == leader || (cluster.reaches(leader, at) && cluster.reaches(at, leader));
            if reached {
                self.alive_at[at] = now;
            } else {
                self.steady_since[at] = now;
            }
        }
        let old = self.conf.replace(Arc::clone(conf));
        match old {
            Some(old) if !Arc::ptr_eq(&old, conf) && old.list.digest() != conf.list.digest() => {
                for member in old.list.iter().filter(|m| conf.list.get(m.id).is_none()) {
                    self.freed.push((member.peer_url.clone(), now));
                }
                self.changed_at = now;
                Some((old, Arc::clone(conf)))
            }
            _ => None,
        }
    }
}
