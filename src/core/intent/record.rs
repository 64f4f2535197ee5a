//! The durable record of one agent for one federation, and how it answers proposals (safety.md section 4).
//!
//! Every function here returns the record as it must be persisted *before* the answer is given.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ballot::Ballot;
use crate::federation::member::Incarnation;
use crate::federation::observed::{MemberList, RecordSummary, Seeded};
use crate::federation::spec::{Override, Spec};
use crate::id::{Digest, Epoch, FederationKey, Generation, MemberId, Seq, SiteName, Uid};
use crate::intent::{Change, HeldIntent, Intent, IntentKind, IntentState, Resolution};
use crate::reason::{Code, Reason};
use crate::timing::Timing;

/// A spec that became effective, with its bytes: every step works on it, whatever the CR says now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activated {
    /// Counter: previous + 1 (decisions.md 1).
    pub generation: Generation,
    /// Digest of the spec.
    pub digest: Digest,
    /// The spec.
    pub spec: Arc<Spec>,
    /// etcd's timers from measured round-trip times, the same in every site; none = from a record that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
}

/// What an agent must never forget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Namespace and name; the vote binds them to the uid.
    pub federation: FederationKey,
    /// The federation's uid, once bound.
    pub uid: Option<Uid>,
    /// The highest epoch seen.
    pub epoch: Epoch,
    /// The ballot that this site voted for in that epoch.
    pub vote: Option<Arc<Ballot>>,
    /// The cluster born in that epoch, once known.
    pub seeded: Option<Seeded>,
    /// The last intent acknowledged.
    pub intent: Option<Arc<HeldIntent>>,
    /// The effective spec.
    pub effective: Option<Arc<Activated>>,
    /// Member ids that were removed; they never come back (rule I6).
    pub removed: BTreeSet<MemberId>,
    /// The lives of this site's data directories, newest last.
    pub incarnations: Vec<Incarnation>,
    /// The last membership change that happened: which voter is the new one (rules I9 and I12), whatever intents
    /// without a change followed.
    #[serde(default)]
    pub changed: Option<Arc<Change>>,
    /// Seed sites of every ballot that this site ever voted for: they must vote in every later one (safety.md 7.4).
    #[serde(default)]
    pub seeds: BTreeSet<SiteName>,
    /// This site was removed from the federation by the activation of this generation (decisions.md 4).
    #[serde(default)]
    pub retired: Option<Generation>,
    /// Sites of earlier effective specs that the present one does not name: they are told so when they come back.
    #[serde(default)]
    pub former: BTreeSet<SiteName>,
    /// The `FederatedEtcd` was deleted in every site: the members are stopped until it is there again.
    #[serde(default)]
    pub deleted: bool,
}

/// What an agent knows beside its record when it answers a proposal.
#[derive(Debug, Clone, Copy)]
pub struct Witness<'a> {
    /// The own site.
    pub site: &'a SiteName,
    /// No readable record, although members or votes exist here.
    pub record_missing: bool,
    /// The exception that the own CR holds.
    pub exception: Option<&'a Override>,
    /// The member ids that the own CR declares lost.
    pub lost_members: &'a [MemberId],
}

impl Record {
    /// The record of an agent that has seen nothing.
    pub fn new(federation: FederationKey) -> Self {
        Self {
            federation,
            uid: None,
            epoch: Epoch(0),
            vote: None,
            seeded: None,
            intent: None,
            effective: None,
            removed: BTreeSet::new(),
            incarnations: Vec::new(),
            changed: None,
            seeds: BTreeSet::new(),
            retired: None,
            former: BTreeSet::new(),
            deleted: false,
        }
    }

    /// The highest number held.
    pub fn seq(&self) -> Seq {
        self.intent.as_ref().map_or(Seq(0), |held| held.intent.seq)
    }

    /// The measured timers that every site renders: those of the effective spec, before birth those of the ballot.
    pub fn timing(&self) -> Option<Timing> {
        match &self.effective {
            Some(effective) => effective.timing,
            None => self.vote.as_ref().and_then(|ballot| ballot.timing),
        }
    }

    /// What others must know.
    pub fn summary(&self) -> RecordSummary {
        RecordSummary {
            uid: self.uid,
            epoch: self.epoch,
            intent: self.intent.clone(),
            vote: self.vote.as_ref().map(|ballot| ballot.digest()),
            seeded: self.seeded,
            generation: self.effective.as_ref().map_or(Generation(0), |e| e.generation),
            effective: self.effective.as_ref().map(|e| e.digest),
            timing: self.timing(),
            changed: self.changed.clone(),
            removed: self.removed.iter().copied().collect(),
            seeds: self.seeds.iter().cloned().collect(),
            missing: false,
            retired: self.retired.is_some(),
            former: self.former.iter().cloned().collect(),
            deleted: self.deleted,
        }
    }

    /// Answers a proposal: the record to persist before acknowledging, or why not (safety.md 4, rule I18).
    pub fn propose(&self, intent: &Arc<Intent>, witness: Witness<'_>) -> Result<Self, Reason> {
        let reason = |code: Code| Reason::new(code).site(witness.site);
        if witness.record_missing {
            return Err(reason(Code::NoRecord));
        }
        if !self.bound_to(intent) {
            return Err(reason(Code::WrongEpoch).numbers(self.epoch.0, intent.epoch.0));
        }
        if intent.exception.is_some() && intent.exception.as_ref() != witness.exception {
            return Err(reason(Code::SpecDrift));
        }
        if intent.lost_members.iter().any(|id| !witness.lost_members.contains(id)) {
            return Err(reason(Code::SpecDrift));
        }
        let mine = self.seq();
        if intent.seq < mine {
            return Err(reason(Code::Stale).numbers(mine.0, intent.seq.0));
        }
        if let Some(held) = &self.intent {
            if intent.seq == mine && (held.intent.op != intent.op || !held.open()) {
                return Err(reason(Code::IntentConflict).numbers(mine.0, intent.seq.0));
            }
            let same = held.intent.op == intent.op;
            let closes =
                intent.closes_ops.contains(&held.intent.op) && intent.closes.contains(&held.intent.seq);
            if held.open() && !same && !closes {
                return Err(reason(Code::IntentUnresolved).numbers(mine.0, intent.seq.0));
            }
        }
        // What was sent under an earlier number of this op, or of an op that this one closes, may still arrive.
        let sent_by_me = self.intent.as_ref().is_some_and(|held| held.open() && held.sent_by_me);
        let mut next = self.clone();
        next.uid = Some(intent.uid);
        next.epoch = intent.epoch;
        next.intent =
            Some(Arc::new(HeldIntent { intent: Arc::clone(intent), state: IntentState::Open, sent_by_me }));
        Ok(next)
    }

    /// A site that never voted and has no data may be bound by the activation that brings it in.
    fn bound_to(&self, intent: &Intent) -> bool {
        match self.uid {
            Some(uid) => uid == intent.uid && self.epoch == intent.epoch,
            None => matches!(intent.kind, IntentKind::ActivateSpec { .. }) && self.incarnations.is_empty(),
        }
    }

    /// The record with `sent_by_me` set or cleared; `None` if it holds another number.
    pub fn mark_sent(&self, seq: Seq, sent: bool) -> Option<Self> {
        let held = self.intent.as_ref().filter(|held| held.intent.seq == seq && held.open())?;
        let mut next = self.clone();
        next.intent = Some(Arc::new(HeldIntent { sent_by_me: sent, ..held.as_ref().clone() }));
        Some(next)
    }

    /// Takes note of how an intent ended. Idempotent; an old message changes nothing that a newer one said.
    #[must_use]
    pub fn resolve(&self, resolution: &Resolution) -> Self {
        let mut next = self.clone();
        // The epoch rises by a ballot only, never by a message about an intent (rule I18).
        if self.uid.is_some_and(|uid| uid != resolution.uid || self.epoch != resolution.epoch) {
            return next;
        }
        if self.uid.is_none() && !self.bound_to(&resolution.intent) {
            return next;
        }
        next.uid = Some(resolution.uid);
        next.epoch = resolution.epoch;
        let take = match &self.intent {
            None => true,
            Some(held) => {
                let mine = held.intent.seq;
                let same = held.intent.op == resolution.op;
                let covered = resolution.closed.contains(&held.intent.op);
                let overtaken = resolution.state == IntentState::Applied || !held.open();
                resolution.seq >= mine && (same || covered || overtaken)
            }
        };
        if take {
            let sent_by_me = false;
            let (intent, state) = (Arc::clone(&resolution.intent), resolution.state);
            next.intent = Some(Arc::new(HeldIntent { intent, state, sent_by_me }));
        }
        if resolution.state == IntentState::Applied {
            next.take_effect(&resolution.intent, take);
        }
        next
    }

    /// The newest effective spec of this federation, by what this record holds and what peers tell. A wish that is
    /// compared with an older one would miss that it waits for its activation.
    pub fn newest_effective<'a>(
        &self,
        told: impl Iterator<Item = &'a RecordSummary>,
    ) -> Option<(Generation, Digest)> {
        let same = |r: &&RecordSummary| r.uid == self.uid && r.epoch == self.epoch && !r.missing;
        let told = told.filter(same).filter_map(|r| Some((r.generation, r.effective?)));
        let own = self.effective.as_ref().map(|e| (e.generation, e.digest));
        told.chain(own).max_by_key(|(generation, _)| *generation)
    }

    /// Takes over an activation that was missed, from what a peer of the same federation tells: its effective spec is
    /// newer, and it is the very spec that lies here. Without this a site that was cut off during an activation would
    /// work on the old spec until the next one.
    pub fn catch_up(&self, told: &RecordSummary, digest: Digest, spec: &Arc<Spec>) -> Option<Self> {
        let same = self.uid.is_some() && told.uid == self.uid && told.epoch == self.epoch && !told.missing;
        let mine = self.effective.as_ref().map_or(Generation(0), |e| e.generation);
        if !same || self.seeded.is_none() || told.generation <= mine || told.effective != Some(digest) {
            return None;
        }
        let mut next = self.clone();
        let (generation, spec, timing) = (told.generation, Arc::clone(spec), told.timing);
        next.activate(Activated { generation, digest, spec, timing });
        Some(next)
    }

    /// Takes over removals that were missed, as a peer of the same federation recorded them, if the newest linearizable
    /// list does not name the ids either.
    pub fn catch_up_removed(&self, told: &RecordSummary, list: &MemberList) -> Option<Self> {
        let same = self.uid.is_some() && told.uid == self.uid && told.epoch == self.epoch && !told.missing;
        let missed = |id: &&MemberId| same && list.get(**id).is_none() && !self.removed.contains(*id);
        let missed: Vec<MemberId> = told.removed.iter().filter(missed).copied().collect();
        (!missed.is_empty()).then(|| {
            let mut next = self.clone();
            next.removed.extend(missed);
            next
        })
    }

    /// `latest`: no newer intent is held. A removed id stays removed, whenever one hears of it; an activation that
    /// comes late may have been voided since, and `catch_up` repairs what was merely missed.
    fn take_effect(&mut self, intent: &Intent, latest: bool) {
        if latest && intent.kind.changes_membership() {
            self.changed = Some(Arc::new(Change { kind: intent.kind.clone(), operation: intent.operation }));
        }
        match &intent.kind {
            IntentKind::Remove { member, .. } => {
                self.removed.insert(*member);
            }
            IntentKind::ActivateSpec { generation, digest, timing } if latest => {
                let newer = self.effective.as_ref().is_none_or(|now| now.generation < *generation);
                if let (true, Some(spec)) = (newer, &intent.spec) {
                    let (generation, digest, timing) = (*generation, *digest, *timing);
                    self.activate(Activated { generation, digest, spec: Arc::clone(spec), timing });
                }
            }
            IntentKind::AddLearner { .. }
            | IntentKind::Promote { .. }
            | IntentKind::UpdateUrl { .. }
            | IntentKind::ActivateSpec { .. }
            | IntentKind::Void { .. } => {}
        }
    }

    /// Rebuilds what a lost record must hold from the records of others (safety.md 4, "Record lost"): the caller has
    /// checked that records of more than n − q(n) voters' agents came and that one request timeout is over.
    /// Incarnations are not recovered here: they come from the files beside running members, or the slot is lost.
    pub fn recover(federation: FederationKey, others: &[Self]) -> Option<Self> {
        let best = others.iter().max_by_key(|r| (r.epoch, r.effective.as_ref().map(|e| e.generation)))?;
        let mut next = Self::new(federation);
        next.uid = best.uid;
        next.epoch = best.epoch;
        next.seeded = best.seeded;
        next.effective.clone_from(&best.effective);
        let same_epoch = || others.iter().filter(|r| r.epoch == best.epoch && r.uid == best.uid);
        next.changed.clone_from(&best.changed);
        next.seeds = same_epoch().flat_map(|r| r.seeds.iter().cloned()).collect();
        let named = |site: &SiteName| next.effective.as_ref().is_some_and(|e| e.spec.has_site(site));
        next.former = same_epoch().flat_map(|r| r.former.iter().cloned()).filter(|s| !named(s)).collect();
        next.removed = same_epoch().flat_map(|r| r.removed.iter().copied()).collect();
        let highest =
            same_epoch().filter_map(|r| r.intent.as_ref()).max_by_key(|held| (held.intent.seq, held.open()));
        next.intent = highest.map(|held| Arc::new(HeldIntent { sent_by_me: false, ..held.as_ref().clone() }));
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{OpId, Term};
    use crate::intent::{Operation, OperationKind};
    use crate::reason::Rule;

    fn key() -> FederationKey {
        serde_json::from_str(r#"{"namespace": "etcd", "name": "main"}"#).unwrap()
    }

    fn record() -> Record {
        Record { uid: Some(Uid(7)), epoch: Epoch(1), ..Record::new(key()) }
    }

    fn intent(seq: u64, op: u128) -> Arc<Intent> {
        Arc::new(Intent {
            uid: Uid(7),
            epoch: Epoch(1),
            seq: Seq(seq),
            op: OpId(op),
            kind: IntentKind::Remove { member: MemberId(0xa), learner: false },
            list: Digest([0; 32]),
            term: Term(2),
            executors: vec![SiteName::new("east").unwrap()],
            operation: Operation { kind: OperationKind::ReplaceDead, source: None, new: None },
            closes: Vec::new(),
            closes_ops: Vec::new(),
            exception: None,
            lost_members: Vec::new(),
            spec: None,
            closed: Vec::new(),
        })
    }

    fn ask(record: &Record, intent: &Arc<Intent>) -> Result<Record, Code> {
        let site = SiteName::new("west").unwrap();
        let witness = Witness { site: &site, record_missing: false, exception: None, lost_members: &[] };
        record.propose(intent, witness).map_err(|reason| reason.code)
    }

    fn resolution(intent: &Arc<Intent>, state: IntentState, closed: Vec<OpId>) -> Resolution {
        let (uid, epoch, seq, op) = (intent.uid, intent.epoch, intent.seq, intent.op);
        Resolution { uid, epoch, seq, op, state, closed, intent: Arc::clone(intent) }
    }

    #[test]
    fn numbers_only_rise() {
        let five = ask(&record(), &intent(5, 1)).unwrap();
        assert_eq!(ask(&five, &intent(4, 2)), Err(Code::Stale));
        assert_eq!(ask(&five, &intent(5, 2)), Err(Code::IntentConflict));
        assert_eq!(ask(&five, &intent(6, 2)), Err(Code::IntentUnresolved));
        assert!(ask(&five, &intent(5, 1)).is_ok(), "a repeated message is acknowledged again");
        assert!(ask(&five, &intent(6, 1)).is_ok(), "the same operation again");
        let other = Arc::new(Intent { epoch: Epoch(2), ..intent(6, 1).as_ref().clone() });
        assert_eq!(ask(&five, &other), Err(Code::WrongEpoch));
        assert_eq!(Code::Stale.rule(), Some(Rule::I18));
    }

    #[test]
    fn an_open_intent_is_closed_only_by_name_and_number() {
        let five = ask(&record(), &intent(5, 1)).unwrap();
        let closing = |closes: Vec<Seq>, ops: Vec<OpId>| {
            Arc::new(Intent { closes, closes_ops: ops, ..intent(6, 2).as_ref().clone() })
        };
        assert_eq!(ask(&five, &closing(vec![Seq(5)], vec![OpId(9)])), Err(Code::IntentUnresolved));
        assert_eq!(ask(&five, &closing(vec![Seq(4)], vec![OpId(1)])), Err(Code::IntentUnresolved));
        assert!(ask(&five, &closing(vec![Seq(5)], vec![OpId(1)])).is_ok());
    }

    #[test]
    fn what_was_sent_stays_sent_through_closing_proposals() {
        let sent = ask(&record(), &intent(5, 1)).unwrap().mark_sent(Seq(5), true).unwrap();
        let again = ask(&sent, &intent(6, 1)).unwrap();
        assert!(again.intent.unwrap().sent_by_me);
        let void = Arc::new(Intent {
            closes: vec![Seq(5)],
            closes_ops: vec![OpId(1)],
            kind: IntentKind::Void { closes: OpId(1) },
            ..intent(6, 2).as_ref().clone()
        });
        assert!(ask(&sent, &void).unwrap().intent.unwrap().sent_by_me, "the attestation must not be lost");
        assert!(sent.mark_sent(Seq(4), false).is_none());
    }

    #[test]
    fn a_resolution_takes_effect_once_and_never_hides_a_newer_open_intent() {
        let five = ask(&record(), &intent(5, 1)).unwrap();
        let applied = five.resolve(&resolution(&intent(5, 1), IntentState::Applied, vec![]));
        assert!(applied.removed.contains(&MemberId(0xa)));
        assert!(!applied.intent.as_ref().unwrap().open());
        assert_eq!(applied.resolve(&resolution(&intent(5, 1), IntentState::Applied, vec![])), applied);
        let seven = ask(&applied, &intent(7, 3)).unwrap();
        let late = seven.resolve(&resolution(&intent(5, 1), IntentState::Applied, vec![]));
        assert!(late.intent.unwrap().open(), "an old message does not close a newer intent");
        let other = seven.resolve(&resolution(&intent(8, 4), IntentState::Void, vec![]));
        assert!(other.intent.unwrap().open(), "another op that ended void says nothing about this one");
        let overtaken = seven.resolve(&resolution(&intent(8, 4), IntentState::Applied, vec![]));
        assert!(
            !overtaken.intent.unwrap().open(),
            "an applied op under a higher number had the acknowledgements"
        );
    }

    #[test]
    fn overrides_and_declared_deaths_need_the_own_cr() {
        let exception = Override { rule: Rule::I13, operation: "ReplaceDead/a".into(), by: "ann".into() };
        let resting =
            Arc::new(Intent { exception: Some(exception.clone()), ..intent(1, 1).as_ref().clone() });
        assert_eq!(ask(&record(), &resting), Err(Code::SpecDrift));
        let lost = Arc::new(Intent { lost_members: vec![MemberId(0xa)], ..intent(1, 1).as_ref().clone() });
        assert_eq!(ask(&record(), &lost), Err(Code::SpecDrift));
        let site = SiteName::new("west").unwrap();
        let witness = Witness {
            site: &site,
            record_missing: false,
            exception: Some(&exception),
            lost_members: &[MemberId(0xa)],
        };
        assert!(record().propose(&resting, witness).is_ok());
        assert!(record().propose(&lost, witness).is_ok());
    }

    #[test]
    fn a_lost_record_is_rebuilt_from_the_highest_numbers() {
        let low = ask(&record(), &intent(5, 1)).unwrap();
        let applied = low.resolve(&resolution(&intent(5, 1), IntentState::Applied, vec![]));
        let high = ask(&applied, &intent(6, 2)).unwrap();
        let rebuilt = Record::recover(key(), &[low, high]).unwrap();
        assert_eq!(rebuilt.seq(), Seq(6));
        assert!(rebuilt.intent.as_ref().unwrap().open());
        assert!(rebuilt.removed.contains(&MemberId(0xa)));
        assert!(Record::recover(key(), &[]).is_none());
    }
}
