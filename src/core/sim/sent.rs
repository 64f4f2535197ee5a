//! The rules of safety.md for a membership call, at the moment it leaves: one function each.

use std::sync::Arc;

use super::agent::SETTLE_MS;
use super::etcd::{At, Cluster, Conf};
use super::truth::{GRACE_MS, Op};
use super::world::World;
use crate::executor::Call;
use crate::intent::{Intent, IntentKind, OperationKind};
use crate::membership::quorum::quorum;

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
            Call::Promote(id) | Call::Remove(id) | Call::Update(id, _) | Call::MoveLeader(id) => {
                self.cluster.find(*id)
            }
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

type Check = fn(&World, &Sent<'_>) -> Option<String>;

impl World {
    /// All invariants on a membership call, at the moment it is sent.
    pub fn judge_send(&mut self, s: usize, cluster: usize, at: At, call: &Call, intent: Option<&Intent>) {
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
            if let Some(op) = self.truth.ops.iter_mut().find(|op| op.id == intent.op) {
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
    (!learner && alive < quorum(voters.len()))
        .then(|| format!("{alive} of {} voters would be alive", voters.len()))
}

fn i3_no_healthy_removal_while_degraded(w: &World, sent: &Sent<'_>) -> Option<String> {
    let target = sent.removes_voter().filter(|_| !sent.excused())?;
    let node = &sent.cluster.nodes[target];
    let declared =
        w.sites.iter().filter_map(|s| s.cr.as_ref()).any(|cr| cr.spec.lost_members().any(|id| id == node.id));
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
        let closed =
            ended(op) || op.id == intent.op || intent.closes_ops.contains(&op.id) || op.seq > intent.seq;
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
        IntentKind::UpdateUrl { member, peer_url } => {
            conf.list.get(*member).is_none_or(|m| m.peer_url == *peer_url)
        }
    }
}

fn i15_the_last_step_had_settled(w: &World, sent: &Sent<'_>) -> Option<String> {
    if matches!(sent.call, Call::MoveLeader(_)) {
        return None;
    }
    let late = sent.conf.voters().find(|at| {
        let steady = w.truth.steady_since.get(*at).is_some_and(|since| since + GRACE_MS < w.now);
        steady
            && w.truth.alive(*at, w.now)
            && sent.cluster.nodes[*at].conf().list.digest() != sent.conf.list.digest()
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
    let old =
        w.truth.backups_lost_at + GRACE_MS < w.now && w.truth.backup_at.is_none_or(|at| w.now - at > limit);
    old.then(|| "no backup is young enough".to_owned())
}
