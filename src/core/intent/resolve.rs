//! How an open intent ends (the table in safety.md section 4). Pure; the executor has waited one request timeout and
//! read the linearizable list before it asks.

use crate::federation::observed::{MemberList, RecordSummary};
use crate::federation::view::{View, Wish};
use crate::id::{MemberId, OpId, SiteName};
use crate::intent::{Intent, IntentKind, IntentState};
use crate::membership::plan::judge_step;
use crate::membership::quorum::{arithmetic, quorum};
use crate::membership::safety;
use crate::membership::step::StepKind;
use crate::reason::{Code, Reason};

/// What may happen to one open intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Its effect is in the list.
    Applied,
    /// It never had its acknowledgements: others hold other steps under its number. No further proof is needed.
    Overtaken,
    /// It may be closed by a `Void`, if every executor then attests that it did not send.
    Voidable,
    /// The same operation again, under a new number.
    Again(IntentKind),
    /// A Void that cannot be proven: an executor may have sent what it closes. It yields to that.
    Yields,
    /// Another closing move: a removed learner can never be promoted.
    Instead(IntentKind),
    /// The same operation again, once leadership has moved here: its target leads (rule I10).
    MoveFirst(MemberId),
    /// The same operation again, once there is a fresh backup (rule I17).
    BackupFirst,
    /// Nothing may be done yet.
    Wait(Reason),
}

/// The evidence for the table.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The linearizable list, read after the wait.
    pub list: &'a MemberList,
    /// What each asked agent answered.
    pub records: &'a [(SiteName, Option<RecordSummary>)],
    /// A fresh view, without its open intent.
    pub view: &'a View,
    /// The wish.
    pub wish: &'a Wish,
}

/// Whether the list shows the effect of an intent.
pub fn effect_present(intent: &Intent, list: &MemberList) -> bool {
    match &intent.kind {
        IntentKind::AddLearner { peer_url, .. } => list.by_url(peer_url).is_some(),
        IntentKind::Promote { member } => list.get(*member).is_some_and(|m| !m.learner),
        IntentKind::Remove { member, .. } => list.get(*member).is_none(),
        IntentKind::UpdateUrl { member, peer_url } => {
            list.get(*member).is_some_and(|m| m.peer_url == *peer_url)
        }
        IntentKind::Void { .. } | IntentKind::ActivateSpec { .. } => false,
    }
}

/// Looks up the table for one open intent.
pub fn ending(intent: &Intent, e: Evidence<'_>) -> Ending {
    if effect_present(intent, e.list) {
        return Ending::Applied;
    }
    if overtaken(intent, e) {
        return Ending::Overtaken;
    }
    // A Void is only ever repeated: what it closes must not be forgotten with it.
    let void = matches!(intent.kind, IntentKind::Void { .. });
    if !void && intent.executors.iter().all(|site| not_sent(site, intent.op, e) || gone(site, e)) {
        return Ending::Voidable;
    }
    match &intent.kind {
        IntentKind::AddLearner { slot, .. } => {
            // A late duplicate can only create a learner without a process: it is dropped as an orphan. What is not
            // permitted now, or what etcd must refuse, is closed: it would stand in the way of its own cure.
            let (alive, voters) = (arithmetic(e.view).alive, e.view.voters().count());
            let connected = voters == 1 || alive >= quorum(voters + 1);
            let again = e.wish.slots.contains(slot) && connected && judge(intent, e).is_ok();
            if again { Ending::Again(intent.kind.clone()) } else { Ending::Voidable }
        }
        IntentKind::Promote { member } => match e.list.get(*member) {
            None => Ending::Voidable, // a removed id can never be promoted
            Some(_) => promotion(intent, *member, e),
        },
        // It may have been promoted since: then it is a voter's removal.
        IntentKind::Remove { member, learner: true } => {
            let voter = e.list.get(*member).is_some_and(|m| !m.learner);
            let kind = IntentKind::Remove { member: *member, learner: !voter };
            match judge_kind(&kind, intent, e) {
                Ok(()) => Ending::Again(kind),
                Err(_) => Ending::Wait(unresolved(intent)),
            }
        }
        IntentKind::Void { .. } => {
            let attests = |site: &SiteName| not_sent(site, intent.op, e) || gone(site, e);
            let proven = intent.executors.iter().all(attests);
            if proven { Ending::Again(intent.kind.clone()) } else { Ending::Yields }
        }
        IntentKind::ActivateSpec { .. } => Ending::Again(intent.kind.clone()),
        IntentKind::Remove { learner: false, .. } => match judge(intent, e) {
            Ok(()) => Ending::Again(intent.kind.clone()),
            Err(reason) => match safety::transferee(e.view, e.wish, reason.site.as_ref()) {
                Some(to) if reason.code == Code::LeaderInTheWay => Ending::MoveFirst(to.id),
                _ if reason.code == Code::BackupTooOld => Ending::BackupFirst,
                _ => Ending::Wait(unresolved(intent)),
            },
        },
        IntentKind::UpdateUrl { .. } => match judge(intent, e) {
            Ok(()) => Ending::Again(intent.kind.clone()),
            Err(_) => Ending::Voidable,
        },
    }
}

/// The same promotion again if I9 and I2 hold; the learner's removal only if it is no longer alive; and neither while
/// another rule, or a proof that only takes time, stands against it.
fn promotion(intent: &Intent, member: MemberId, e: Evidence<'_>) -> Ending {
    match judge(intent, e) {
        Ok(()) => Ending::Again(intent.kind.clone()),
        Err(_) if e.view.member(member).is_some_and(|m| m.life.alive()) => Ending::Wait(unresolved(intent)),
        Err(_) => {
            let instead = IntentKind::Remove { member, learner: true };
            match judge_kind(&instead, intent, e) {
                Ok(()) => Ending::Instead(instead),
                Err(_) => Ending::Wait(unresolved(intent)),
            }
        }
    }
}

/// The reason that names the site whose executor is missed.
pub fn unresolved(intent: &Intent) -> Reason {
    let reason =
        Reason::new(Code::IntentUnresolved).maybe_site(intent.executors.first()).numbers(intent.seq.0, 0);
    match intent.kind.target() {
        Some(member) => reason.member(member),
        None => reason,
    }
}

fn judge(intent: &Intent, e: Evidence<'_>) -> Result<(), Reason> {
    judge_kind(&intent.kind, intent, e)
}

fn judge_kind(kind: &IntentKind, intent: &Intent, e: Evidence<'_>) -> Result<(), Reason> {
    match StepKind::again(kind) {
        Some(kind) => judge_step(e.view, e.wish, &kind, intent.operation),
        None => Ok(()),
    }
}

/// Another op is applied under an equal or higher number, or q(n) voters' agents hold other ops under such numbers.
fn overtaken(intent: &Intent, e: Evidence<'_>) -> bool {
    let mut voters = 0;
    for (site, record) in e.records {
        let Some(held) = record.as_ref().and_then(|r| r.intent.as_ref()) else {
            continue;
        };
        let other = held.intent.op != intent.op
            && held.intent.seq >= intent.seq
            && held.intent.epoch == intent.epoch
            && !held.intent.closes_ops.contains(&intent.op);
        if other && held.state == IntentState::Applied {
            return true;
        }
        if other {
            voters += e.view.voters_at(site);
        }
    }
    voters >= quorum(e.view.voters().count())
}

/// Its agent answered and says that it did not send.
fn not_sent(site: &SiteName, op: OpId, e: Evidence<'_>) -> bool {
    let record = e.records.iter().find(|(name, _)| name == site).and_then(|(_, record)| record.as_ref());
    record.is_some_and(|r| {
        // The flag covers the held op and those that it closes, see `Record::propose`.
        let covers = |held: &Intent| held.op == op || held.closes_ops.contains(&op);
        !r.missing && r.intent.as_ref().is_some_and(|held| covers(&held.intent) && !held.sent_by_me)
    })
}

/// All members of an executor's site are dead or removed: it sent to its own member only, and what that one proposed
/// is in the list by now, or nowhere.
fn gone(site: &SiteName, e: Evidence<'_>) -> bool {
    e.view.members.iter().filter(|m| m.site() == Some(site)).all(|m| m.life.dead())
}

/// After the acknowledgements of a closing proposal: whether every executor of a closed op attested "not sent" and
/// stored the higher number, or is gone.
pub fn closed_for_good(intent: &Intent, acks: &[(SiteName, bool)], e: Evidence<'_>) -> Result<(), Reason> {
    if matches!(intent.kind, IntentKind::AddLearner { .. }) {
        return Ok(()); // may be voided without proof, see `ending`
    }
    if intent.kind.target().is_some_and(|member| e.list.get(member).is_none()) || overtaken(intent, e) {
        return Ok(());
    }
    attested(intent, acks, e)
}

/// Whether every executor of an intent attested "not sent" with its acknowledgement, or is gone. The executors of a
/// Void are those of the intents that it closes.
pub fn attested(intent: &Intent, acks: &[(SiteName, bool)], e: Evidence<'_>) -> Result<(), Reason> {
    let attests = |site: &SiteName| acks.iter().any(|(name, sent)| name == site && !sent) || gone(site, e);
    match intent.executors.iter().find(|site| !attests(site)) {
        None => Ok(()),
        Some(site) => Err(unresolved(intent).site(site)),
    }
}
