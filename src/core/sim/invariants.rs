//! The rules of safety.md as predicates on what really happened: one function each, run after every event.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::agent::SETTLE_MS;
use super::etcd::{At, Cluster, Conf, Node};
use super::world::World;
use crate::executor::Call;
use crate::federation::member::{Grant, IncarnationState};
use crate::id::{Epoch, MemberId, OpId, PeerUrl, Seq, SiteName, Slot, Uid};
use crate::intent::record::Record;
use crate::intent::{Intent, IntentKind, IntentState, OperationKind, Resolution};
use crate::membership::quorum::quorum;

/// What an agent acts on may be as old as the rules allow an observation to be, plus the time of one run.
const GRACE_MS: u64 = 9_000;

/// One operation, as the truth knows it.
#[derive(Debug, Clone)]
struct Op {
    op: OpId,
    seq: Seq,
    kind: IntentKind,
    sent: bool,
    ended: bool,
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
    ops: Vec<Op>,
    seeds: Vec<(Uid, Epoch, usize)>,
    forgiven: u32,
    highest: Vec<(Epoch, Seq)>,
    slots: Vec<(MemberId, Slot)>,
    alive_at: Vec<u64>,
    steady_since: Vec<u64>,
    led_at: Vec<u64>,
    quorum_at: u64,
    conf: Option<Arc<Conf>>,
    changed_at: u64,
    freed: Vec<(PeerUrl, u64)>,
    told: [bool; 24],
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
        match self.ops.iter_mut().find(|op| op.op == intent.op) {
            Some(op) => op.seq = intent.seq,
            None => {
                let (op, seq, kind) = (intent.op, intent.seq, intent.kind.clone());
                self.ops.push(Op { op, seq, kind, sent: false, ended: false });
            }
        }
    }

    /// Etcd refused for certain: the operation is as if never sent.
    pub fn note_refused(&mut self, op: Option<OpId>) {
        if let Some(op) = self.ops.iter_mut().find(|o| Some(o.op) == op) {
            op.sent = false;
        }
    }

    /// An operation ended.
    pub fn note_resolution(&mut self, resolution: &Resolution) {
        for op in &mut self.ops {
            let closed = resolution.closed.contains(&op.op);
            let done = op.op == resolution.op && resolution.state != IntentState::Open;
            op.ended |= closed || done;
        }
    }

    /// A directory goes into the archive: never that of a listed, unharmed voter of a living cluster (`i11`).
    pub fn note_archive(&mut self, cluster: &Cluster, at: At, attested: bool) {
        let node = &cluster.nodes[at];
        let listed = cluster.true_leader().is_some_and(|leader| cluster.nodes[leader].conf().is_voter(at));
        if listed && !attested && node.disk && !node.behind && !node.conf().gone.contains(&node.id) && !node.amnesia {
            self.told[11] = true;
        }
    }

    /// A member whose data are gone, whatever is listed.
    pub const fn lost(&self, node: &Node) -> bool {
        !node.disk || node.behind
    }

    fn alive(&self, at: At, now: u64) -> bool {
        self.alive_at.get(at).is_some_and(|seen| seen + GRACE_MS >= now)
    }

    fn follow(&mut self, cluster: &Cluster, now: u64) -> Option<(Arc<Conf>, Arc<Conf>)> {
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

/// All invariants on the state, after every event.
pub fn after_event(w: &mut World) {
    let now = w.now;
    let change = match w.clusters.last() {
        Some(cluster) => w.truth.follow(cluster, now),
        None => None,
    };
    type Check = fn(&World) -> Option<String>;
    const STATE: [(&str, Check); 6] = [
        ("i1", i1_one_learner_at_most),
        ("i5", i5_nothing_starts_on_lost_data),
        ("i7", i7_one_seed_per_epoch),
        ("i11", i11_nothing_living_is_archived),
        ("i18", i18_numbers_never_fall),
        ("no acknowledged write is lost", no_acknowledged_write_is_lost),
    ];
    for (name, check) in STATE {
        if let Some(text) = check(w) {
            once(w, name, text);
        }
    }
    if let Some((before, after)) = change {
        for (name, text) in [
            ("i4", i4_domain_bound(w, &before, &after)),
            ("i6", i6_ids_are_used_once(w)),
            ("margin", margin_is_kept(w, &before, &after)),
        ] {
            if let Some(text) = text {
                once(w, name, text);
            }
        }
    }
}

/// A state that stays broken is told once.
fn once(w: &mut World, name: &'static str, text: String) {
    if !w.violations.iter().any(|v| v.invariant == name) {
        w.violate(name, text);
    }
}

fn i1_one_learner_at_most(w: &World) -> Option<String> {
    let learners = w.truth.conf.as_ref()?.members.iter().filter(|(_, learner)| *learner).count();
    (learners > 1).then(|| format!("{learners} learners"))
}

fn i5_nothing_starts_on_lost_data(w: &World) -> Option<String> {
    let node = w.clusters.last()?.nodes.iter().find(|n| n.amnesia)?;
    Some(format!("member {} was started on a directory that had lost its past", node.id))
}

fn i7_one_seed_per_epoch(w: &World) -> Option<String> {
    if w.clusters.len() < 2 && w.truth.seeds.len() < 2 {
        return None;
    }
    let served = w.clusters.iter().filter(|c| c.acknowledged() > 0 || c.nodes.len() > 1).count();
    if served > 1 {
        return Some(format!("{served} clusters served"));
    }
    let seeds = &w.truth.seeds;
    let twice = seeds.iter().enumerate().find(|(i, a)| {
        seeds.iter().take(*i).any(|b| (a.0, a.1) == (b.0, b.1) && a.2 != b.2)
    });
    twice.map(|(_, (uid, epoch, _))| format!("two seeds of {uid}/{epoch}"))
}

fn i11_nothing_living_is_archived(w: &World) -> Option<String> {
    w.truth.told[11].then(|| "the directory of a listed, unharmed voter was archived".to_owned())
}

fn i18_numbers_never_fall(w: &World) -> Option<String> {
    w.truth.told[18].then(|| "a record was written with a lower number than the one it replaced".to_owned())
}

fn no_acknowledged_write_is_lost(w: &World) -> Option<String> {
    w.clusters.iter().flat_map(|c| c.losses()).next().map(|loss| format!("{loss:?}"))
}

fn i4_domain_bound(w: &World, before: &Conf, after: &Conf) -> Option<String> {
    let cluster = w.clusters.last()?;
    let declared = w.sites.iter().filter_map(|s| s.store.record.as_ref()?.effective.clone()).max_by_key(|e| e.generation)?;
    let layout = declared.spec.layout().ok()?;
    let sites = |w: &World| (0..w.sites.len()).filter(|s| layout.slots.iter().any(|slot| slot.site == w.names[*s])).count();
    if sites(w) < 3 || after.voter_count() == before.voter_count() {
        return None;
    }
    let worst = |conf: &Conf| -> i64 {
        let at = |s: usize| conf.voters().filter(|at| cluster.nodes[*at].site == s).count();
        let most = (0..w.sites.len()).map(at).max().unwrap_or(0);
        let n = conf.voter_count();
        i64::try_from(most).unwrap_or(0) - i64::try_from(n - quorum(n)).unwrap_or(0)
    };
    let goal = {
        let n = layout.slots.len();
        let at = |name: &SiteName| layout.slots.iter().filter(|slot| slot.site == *name).count();
        let most = w.names.iter().map(at).max().unwrap_or(0);
        i64::try_from(most).unwrap_or(0) - i64::try_from(n - quorum(n)).unwrap_or(0)
    };
    let even = i64::from(after.voter_count() % 2 == 0);
    let dead = before.voters().any(|at| !after.has(at) && (w.truth.lost(&cluster.nodes[at]) || !cluster.nodes[at].running));
    let (was, is) = (worst(before), worst(after));
    let left = before.voter_count() > after.voter_count() && even == 0 && is > (was - 1).max(0).max(goal);
    let better = |gone: At| {
        let at = |s: usize| before.voters().filter(|at| *at != gone && cluster.nodes[*at].site == s).count();
        let most = (0..w.sites.len()).map(at).max().unwrap_or(0);
        let n = after.voter_count();
        i64::try_from(most).unwrap_or(0) - i64::try_from(n - quorum(n)).unwrap_or(0) < is
    };
    let kept = left && before.voters().any(better);
    (!dead && (kept || is > was.max(0).max(goal) + even))
        .then(|| format!("concentration rose from {was} to {is}"))
}

fn i6_ids_are_used_once(w: &World) -> Option<String> {
    let nodes = &w.clusters.last()?.nodes;
    let listed = &w.truth.conf.as_ref()?.list;
    let again = nodes.iter().enumerate().find(|(i, node)| {
        listed.get(node.id).is_some() && nodes.iter().take(*i).any(|other| other.id == node.id && other.started)
    });
    again.map(|(_, node)| format!("id {} was used twice", node.id))
}

/// After a change the voters that were alive of late make a majority, unless they did not before either.
fn margin_is_kept(w: &World, before: &Conf, after: &Conf) -> Option<String> {
    let alive = |conf: &Conf| conf.voters().filter(|at| w.truth.alive(*at, w.now)).count();
    let (was, is) = (alive(before), alive(after));
    let kept = is >= quorum(after.voter_count()) || was < quorum(before.voter_count());
    (!kept).then(|| format!("{is} of {} voters alive after the change", after.voter_count()))
}

/// A membership call as it leaves.
struct Sent<'a> {
    call: &'a Call,
    intent: Option<&'a Intent>,
    cluster: &'a Cluster,
    at: At,
    conf: &'a Conf,
}

impl Sent<'_> {
    fn target(&self) -> Option<At> {
        match self.call {
            Call::Promote(id) | Call::Remove(id) | Call::Update(id, _) | Call::MoveLeader(id) => self.cluster.find(*id),
            Call::AddLearner(_) => None,
        }
    }

    fn removes_voter(&self) -> Option<At> {
        let target = self.target()?;
        (matches!(self.call, Call::Remove(_)) && self.conf.is_voter(target)).then_some(target)
    }

    fn voters_after(&self) -> Vec<At> {
        let target = self.target();
        let mut voters: Vec<At> = self.conf.voters().collect();
        match self.call {
            Call::Promote(_) => voters.extend(target.filter(|t| !voters.contains(t))),
            Call::Remove(_) => voters.retain(|at| Some(*at) != target),
            Call::AddLearner(_) | Call::Update(..) | Call::MoveLeader(_) => {}
        }
        voters
    }

    fn excused(&self) -> bool {
        self.intent.is_some_and(|intent| intent.exception.is_some())
    }
}

impl World {
    /// All invariants on a membership call, at the moment it is sent.
    pub fn judge_send(&mut self, s: usize, cluster: usize, at: At, call: &Call, intent: Option<&Intent>) {
        type Check = fn(&World, &Sent<'_>) -> Option<String>;
        const ALL: [(&str, Check); 11] = [
            ("i2", i2_the_new_quorum_was_alive),
            ("i3", i3_no_healthy_removal_while_degraded),
            ("i6", i6_the_url_has_rested),
            ("i8", i8_acknowledged_and_led),
            ("i9", i9_the_learner_was_good),
            ("i10", i10_the_leader_was_out_of_the_way),
            ("i11", i11_there_was_a_quorum),
            ("i13", i13_the_cluster_was_calm),
            ("i14", i14_nothing_else_is_unknown),
            ("i15", i15_the_last_step_had_settled),
            ("i17", i17_there_was_a_backup),
        ];
        let conf = Arc::clone(self.clusters[cluster].nodes[at].conf());
        let mut broken = Vec::new();
        {
            let sent = Sent { call, intent, cluster: &self.clusters[cluster], at, conf: &conf };
            for (name, check) in ALL {
                if let Some(text) = check(self, &sent) {
                    broken.push((name, text));
                }
            }
            if let Some(text) = i16_updates_are_for_voters(self, &sent) {
                broken.push(("i16", text));
            }
        }
        for (name, text) in broken {
            let text = format!("{text}; {call:?} sent by site {}", self.names[s]);
            self.violate(name, text);
        }
        if let Some(intent) = intent {
            if let Some(op) = self.truth.ops.iter_mut().find(|op| op.op == intent.op) {
                op.sent = true;
            }
            if let (Call::AddLearner(_), IntentKind::AddLearner { .. }) = (call, &intent.kind) {
                self.truth.freed.retain(|(_, at)| at + 60_000 > self.now);
            }
        }
    }
}

fn i2_the_new_quorum_was_alive(w: &World, sent: &Sent<'_>) -> Option<String> {
    if matches!(sent.call, Call::MoveLeader(_)) {
        return None;
    }
    let voters = sent.voters_after();
    let alive = voters.iter().filter(|at| w.truth.alive(**at, w.now)).count();
    let learner = matches!(sent.call, Call::Remove(_)) && sent.removes_voter().is_none();
    (!learner && alive < quorum(voters.len())).then(|| format!("{alive} of {} voters would be alive", voters.len()))
}

fn i3_no_healthy_removal_while_degraded(w: &World, sent: &Sent<'_>) -> Option<String> {
    let target = sent.removes_voter().filter(|_| !sent.excused())?;
    let node = &sent.cluster.nodes[target];
    let declared = w.sites.iter().filter_map(|s| s.cr.as_ref()).any(|cr| cr.spec.lost_members().any(|id| id == node.id));
    if w.truth.lost(node) || declared || w.attested_lost(node.id) {
        return None;
    }
    let silent = sent.voters_after().into_iter().find(|at| !w.truth.alive(*at, w.now))?;
    Some(format!("voter {} is not alive", sent.cluster.nodes[silent].id))
}

fn i6_the_url_has_rested(w: &World, sent: &Sent<'_>) -> Option<String> {
    let Call::AddLearner(url) = sent.call else { return None };
    let (_, at) = w.truth.freed.iter().rev().find(|(freed, _)| freed == url)?;
    (w.now < at + 1_100).then(|| format!("{url} was freed {} ms ago", w.now - at))
}

fn i8_acknowledged_and_led(w: &World, sent: &Sent<'_>) -> Option<String> {
    if w.truth.led_at.get(sent.at).is_none_or(|led| led + 1_000 < w.now) {
        return Some("the sender's member did not lead within the last second".to_owned());
    }
    let intent = sent.intent?;
    let holds = |site: usize| {
        let held = w.sites[site].store.record.as_ref().and_then(|r| r.intent.as_ref());
        held.is_some_and(|held| held.intent.op == intent.op || held.intent.seq > intent.seq)
            || w.truth.forgiven & (1 << site) != 0
    };
    let acked = sent.conf.voters().filter(|at| holds(sent.cluster.nodes[*at].site)).count();
    let need = quorum(sent.conf.voter_count());
    (acked < need).then(|| format!("{acked} of {need} needed voters' agents hold the intent"))
}

fn i9_the_learner_was_good(w: &World, sent: &Sent<'_>) -> Option<String> {
    let (Call::Promote(id), Some(target)) = (sent.call, sent.target()) else { return None };
    let node = &sent.cluster.nodes[target];
    let lag = sent.cluster.nodes[sent.at].commit().saturating_sub(node.applied());
    let good = w.truth.alive(target, w.now) && node.started && !node.corrupt && lag <= 1_000;
    (!good).then(|| format!("learner {id} was not fit"))
}

fn i10_the_leader_was_out_of_the_way(_: &World, sent: &Sent<'_>) -> Option<String> {
    let target = sent.removes_voter()?;
    (target == sent.at).then(|| "the leader removes itself".to_owned())
}

fn i11_there_was_a_quorum(w: &World, _: &Sent<'_>) -> Option<String> {
    let silent = w.now.saturating_sub(w.truth.quorum_at);
    (silent > GRACE_MS).then(|| format!("no quorum for {silent} ms"))
}

fn i13_the_cluster_was_calm(w: &World, sent: &Sent<'_>) -> Option<String> {
    if matches!(sent.call, Call::MoveLeader(_)) || sent.excused() {
        return None;
    }
    let since = w.now - w.truth.changed_at;
    if since < SETTLE_MS {
        return Some(format!("the last change is {since} ms old"));
    }
    let alarm = sent.cluster.no_space && w.truth.alarm_since + GRACE_MS < w.now;
    alarm.then(|| "an alarm is active".to_owned())
}

fn i14_nothing_else_is_unknown(w: &World, sent: &Sent<'_>) -> Option<String> {
    let intent = sent.intent?;
    // A removed id can never be promoted: the removal ends the promotion.
    let ended = |op: &Op| match (&op.kind, sent.call) {
        (IntentKind::Promote { member }, Call::Remove(removed)) => member == removed,
        _ => false,
    };
    let pending = |op: &&Op| {
        let closed = ended(op) || op.op == intent.op || intent.closes_ops.contains(&op.op) || op.seq > intent.seq;
        op.sent && !op.ended && !closed && !effective(op, sent.conf)
    };
    let other = w.truth.ops.iter().find(pending)?;
    Some(format!("{} under number {} is still unknown", other.kind, other.seq))
}

/// Whether the list shows it, or it can never happen any more.
fn effective(op: &Op, conf: &Conf) -> bool {
    match &op.kind {
        IntentKind::AddLearner { .. } | IntentKind::Void { .. } | IntentKind::ActivateSpec { .. } => true,
        IntentKind::Promote { member } => conf.list.get(*member).is_none_or(|m| !m.learner),
        IntentKind::Remove { member, .. } => conf.list.get(*member).is_none(),
        IntentKind::UpdateUrl { member, peer_url } => conf.list.get(*member).is_none_or(|m| m.peer_url == *peer_url),
    }
}

fn i15_the_last_step_had_settled(w: &World, sent: &Sent<'_>) -> Option<String> {
    if matches!(sent.call, Call::MoveLeader(_)) {
        return None;
    }
    let late = sent.conf.voters().find(|at| {
        let steady = w.truth.steady_since.get(*at).is_some_and(|since| since + GRACE_MS < w.now);
        steady && w.truth.alive(*at, w.now) && sent.cluster.nodes[*at].conf().list.digest() != sent.conf.list.digest()
    })?;
    let rolls_back = sent.intent.is_some_and(|i| i.operation.kind == OperationKind::RollBack);
    (!rolls_back).then(|| format!("voter {} has not applied the last change", sent.cluster.nodes[late].id))
}

fn i16_updates_are_for_voters(_: &World, sent: &Sent<'_>) -> Option<String> {
    let (Call::Update(id, _), Some(target)) = (sent.call, sent.target()) else { return None };
    (!sent.conf.is_voter(target)).then(|| format!("{id} is no voter"))
}

fn i17_there_was_a_backup(w: &World, sent: &Sent<'_>) -> Option<String> {
    sent.removes_voter().filter(|_| w.options.backups && !sent.excused())?;
    // A wall clock that jumped may be wrong by as much as the fault makes it.
    let limit = super::agent::MAX_BACKUP_AGE_S * 1_000 + 2_100_000;
    let old = w.truth.backups_lost_at + GRACE_MS < w.now && w.truth.backup_at.is_none_or(|at| w.now - at > limit);
    old.then(|| "no backup is young enough".to_owned())
}

/// Why the world is not as wished; none if it is.
pub fn unsettled(w: &World) -> Option<String> {
    let cr = w.scenario.current.as_ref()?;
    let cluster = w.clusters.last()?;
    let Some(leader) = cluster.true_leader() else { return Some("no leader".to_owned()) };
    let conf = cluster.nodes[leader].conf();
    if let Some((at, _)) = conf.members.iter().find(|(_, learner)| *learner) {
        return Some(format!("learner {} is listed", cluster.nodes[*at].id));
    }
    let mut slots: Vec<Slot> = Vec::new();
    for at in conf.voters() {
        let node = &cluster.nodes[at];
        if !node.running || w.truth.lost(node) || !(at == leader || cluster.reaches(leader, at)) {
            return Some(format!("voter {} is not alive", node.id));
        }
        let volume = w.sites.iter().flat_map(|s| &s.volumes).find(|v| v.node.is_some_and(|(_, n)| n == at));
        slots.extend(volume.map(|v| v.slot.clone()));
    }
    slots.sort();
    if slots != cr.layout.slots {
        return Some(format!("voters at {slots:?} instead of {:?}", cr.layout.slots));
    }
    let behind = w.sites.iter().find(|site| {
        let record = site.store.record.as_ref();
        let wrong = record.is_none_or(|r| r.effective.as_ref().is_none_or(|e| e.digest != cr.digest));
        let open = record.and_then(|r| r.intent.as_ref()).is_some_and(|held| held.open());
        !site.gone && cr.spec.has_site(&site.name) && (wrong || open)
    });
    if let Some(site) = behind {
        let record = site.store.record.as_ref();
        let open = record.and_then(|r| r.intent.as_ref()).filter(|held| held.open()).map(|held| held.intent.seq);
        let generation = record.and_then(|r| r.effective.as_ref()).map(|e| e.generation);
        return Some(format!("site {} is at {generation:?} with open intent {open:?}", site.name));
    }
    let done = w.sites.iter().any(|site| {
        site.agents.iter().any(|a| a.decision == Some(crate::membership::step::Decision::Done) && a.run.is_none())
    });
    let leads = w.leading_site();
    let empty = leads.and_then(|s| w.agent(s)).is_some_and(|a| {
        a.decision == Some(crate::membership::step::Decision::Done) && a.run.is_none()
    });
    if !done || !empty {
        return Some("the plan of the leader's agent is not empty".to_owned());
    }
    let lost = w.sites.iter().filter_map(|s| s.store.record.as_ref()).flat_map(|r| &r.incarnations).find(|i| {
        i.state == IncarnationState::Lost && i.member.is_some_and(|id| conf.list.get(id).is_some())
    });
    lost.map(|i| format!("lost member {:?} is still listed", i.member))
}
