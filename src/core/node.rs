//! What a site does for its own members: one thing at a time, from the record, the list and what the supervisors say.
//! Level-triggered: a crash between two actions costs nothing but a second look.

use smol_str::{SmolStr, format_smolstr};

use crate::federation::layout::Layout;
use crate::federation::member::{
    DirFacts, EtcdOptions, Grant, GrantKind, Incarnation, IncarnationState, Mark, MemberReport, Process,
};
use crate::federation::observed::{ListedMember, MemberList, Seeded, SlotOffer};
use crate::federation::spec::Spec;
use crate::id::{ClusterId, Digest, FederationKey, IncarnationId, MemberId, PeerUrl, SiteName, Slot, Term};
use crate::intent::record::Record;
use crate::reason::Code;
use crate::timing::{self, Timing};

/// One thing to do for a member of the own site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalAction {
    /// Persist a new incarnation for this slot (a fresh uuid from the caller), then offer it.
    Plan(Slot),
    /// Persist that the incarnation is listed with this id.
    Bind(IncarnationId, MemberId, ClusterId),
    /// Persist a new state of an incarnation.
    Mark(IncarnationId, IncarnationState),
    /// Make certificates and start a supervisor for this slot, or adopt the running one.
    Supervise(Slot),
    /// Give this grant to the supervisor of its slot; then persist `granted`.
    Grant(Box<Grant>),
    /// Persist the birth of the cluster, and the seed's ids with its incarnation.
    Seeded(IncarnationId, Seeded),
    /// Stop etcd and move the data directory to the archive; the reason is the first part of the folder's name.
    Archive(IncarnationId, &'static str),
    /// Persist that nothing is left of an incarnation that has ended.
    Archived(IncarnationId),
    /// End the supervisor of a slot that is not wanted and holds nothing.
    Retire(Slot),
}

/// What is known about the own site.
#[derive(Debug, Clone, Copy)]
pub struct Local<'a> {
    /// The own site.
    pub me: &'a SiteName,
    /// The federation.
    pub federation: &'a FederationKey,
    /// The durable record.
    pub record: &'a Record,
    /// Layout of the effective spec.
    pub layout: &'a Layout,
    /// The effective spec.
    pub spec: &'a Spec,
    /// The newest linearizable list that was told, with its term; none if nobody leads.
    pub list: Option<(&'a MemberList, Term)>,
    /// Digests of the lists that the alive voters answer themselves all equal this one (S09): none if they differ.
    pub settled: Option<Digest>,
    /// The seed's grant is complete (the ballot said so).
    pub may_seed: bool,
    /// Reports of the supervisors that run, by slot.
    pub reports: &'a [MemberReport],
    /// Peer URLs of the own slots, from the site's configuration.
    pub urls: &'a [(Slot, PeerUrl)],
}

/// etcd's `--name`: slot name + 8 hex of the incarnation, globally unique (S12).
pub fn etcd_name(federation: &FederationKey, slot: &Slot, incarnation: IncarnationId) -> SmolStr {
    format_smolstr!("{}-{}", slot.name(&federation.name), incarnation.short())
}

/// The incarnation that fills a slot now: the newest one that is neither removed nor lost.
pub fn current<'a>(record: &'a Record, slot: &Slot) -> Option<&'a Incarnation> {
    let ended = |i: &Incarnation| matches!(i.state, IncarnationState::Removed | IncarnationState::Lost);
    record.incarnations.iter().rev().find(|i| i.slot == *slot && !ended(i))
}

/// The slots that are to be filled here: none once the site was taken out, whatever the spec says that is known here.
fn own_slots<'a>(record: &'a Record, layout: &'a Layout, me: &'a SiteName) -> impl Iterator<Item = &'a Slot> {
    let part = record.retired.is_none();
    layout.slots.iter().filter(move |slot| part && slot.site == *me)
}

/// The next thing to do, if any, for the own members.
pub fn next(l: Local<'_>) -> Option<LocalAction> {
    if l.record.deleted {
        // Nothing is archived, marked or planned: it goes on from here when it is declared again.
        return l.reports.first().map(|report| LocalAction::Retire(report.slot.clone()));
    }
    let own_slots = || own_slots(l.record, l.layout, l.me);
    for incarnation in &l.record.incarnations {
        if let Some(action) = observe(l, incarnation) {
            return Some(action);
        }
    }
    for slot in own_slots() {
        let report = l.reports.iter().find(|r| r.slot == *slot);
        if report.is_none() {
            return Some(LocalAction::Supervise(slot.clone()));
        }
        match current(l.record, slot) {
            None => return Some(LocalAction::Plan(slot.clone())),
            Some(incarnation) => {
                let Some((_, url)) = l.urls.iter().find(|(s, _)| s == slot) else {
                    continue;
                };
                if let Some(action) = advance(l, incarnation, url, report) {
                    return Some(action);
                }
            }
        }
    }
    // Slots that are no longer wanted: their supervisors go once nothing lives there.
    for report in l.reports {
        let wanted = own_slots().any(|slot| *slot == report.slot);
        let lives = current(l.record, &report.slot).is_some_and(|i| i.state > IncarnationState::Planned);
        if !wanted && !lives {
            return Some(LocalAction::Retire(report.slot.clone()));
        }
    }
    // Members of slots that are no longer wanted but still listed keep running until they are removed; what was removed
    // or lost is stopped and archived, also after a restart of this agent.
    l.record
        .incarnations
        .iter()
        .filter(|i| i.state > IncarnationState::Planned && !i.archived)
        .find(|i| !l.reports.iter().any(|r| r.slot == i.slot))
        .map(|i| LocalAction::Supervise(i.slot.clone()))
}

/// What happened to an incarnation: removed, lost, or to be archived.
fn observe(l: Local<'_>, i: &Incarnation) -> Option<LocalAction> {
    let report = l.reports.iter().find(|r| r.slot == i.slot);
    let here = report.and_then(|r| r.incarnation.as_ref()).is_some_and(|there| there.id == i.id);
    match i.state {
        IncarnationState::Removed if here => Some(LocalAction::Archive(i.id, "removed")),
        IncarnationState::Lost if here => Some(LocalAction::Archive(i.id, "lost")),
        IncarnationState::Removed | IncarnationState::Lost => {
            (report.is_some() && !i.archived).then_some(LocalAction::Archived(i.id))
        }
        IncarnationState::Planned => None,
        IncarnationState::Added
        | IncarnationState::Started
        | IncarnationState::Voter
        | IncarnationState::Removing => {
            if removed(l, i) {
                return Some(LocalAction::Mark(i.id, IncarnationState::Removed));
            }
            // A missing mark is waited for, not mourned.
            let refused = report.is_some_and(|r| match &r.process {
                Process::Quarantined(reason) => reason.code == Code::DataLost,
                Process::Fenced => true,
                Process::Unknown
                | Process::AwaitingGrant
                | Process::Starting
                | Process::Running
                | Process::Exited
                | Process::Stopped => false,
            });
            if refused && i.state >= IncarnationState::Started {
                return Some(LocalAction::Mark(i.id, IncarnationState::Lost));
            }
            if volume_gone(l, i, report) {
                return Some(LocalAction::Mark(i.id, IncarnationState::Lost));
            }
            let voter =
                i.member.zip(l.list).is_some_and(|(id, (list, _))| list.get(id).is_some_and(|m| !m.learner));
            (i.state == IncarnationState::Started && voter)
                .then_some(LocalAction::Mark(i.id, IncarnationState::Voter))
        }
    }
}

/// The volume was lost together with what stood beside the directory (rule I5). Also in a slot that is no longer
/// wanted: its member is still listed, and only this attestation lets it be removed.
fn volume_gone(l: Local<'_>, i: &Incarnation, report: Option<&MemberReport>) -> bool {
    let started = matches!(i.state, IncarnationState::Started | IncarnationState::Voter);
    let unborn = i.seed && l.record.seeded.is_none();
    let bare = |r: &MemberReport| {
        r.process == Process::AwaitingGrant
            && r.incarnation.is_none()
            && matches!(r.dir, None | Some(DirFacts::Empty))
    };
    started && ran(i, report) && !unborn && report.is_some_and(bare)
}

/// Proof that the incarnation was started: an empty directory is a lost one then. The flag alone is not enough: the
/// answer to a grant may get lost while the supervisor goes on by itself.
fn ran(i: &Incarnation, report: Option<&MemberReport>) -> bool {
    let started = |there: &Incarnation| there.id == i.id && there.state >= IncarnationState::Started;
    i.granted
        || i.state == IncarnationState::Voter
        || i.mark != Mark::default()
        || report.and_then(|r| r.incarnation.as_ref()).is_some_and(started)
}

/// Its id was removed: a resolution said so, or a linearizable list that is younger than its addition does not name it:
/// one of a later term than the incarnation has seen, or, once it was seen as a voter, one of the same term.
fn removed(l: Local<'_>, i: &Incarnation) -> bool {
    let Some(id) = i.member else { return false };
    if l.record.removed.contains(&id) {
        return true;
    }
    // A list that is not younger than the incarnation's own knowledge proves nothing: it may be from before the addition.
    // That a member votes was read in an earlier list of this leader, or of one before.
    l.list.is_some_and(|(list, term)| {
        let younger = match i.state {
            IncarnationState::Planned | IncarnationState::Added => false,
            IncarnationState::Started => term > i.mark.term,
            IncarnationState::Voter
            | IncarnationState::Removing
            | IncarnationState::Removed
            | IncarnationState::Lost => term >= i.mark.term,
        };
        list.get(id).is_none() && younger
    })
}

fn advance(
    l: Local<'_>,
    i: &Incarnation,
    url: &PeerUrl,
    report: Option<&MemberReport>,
) -> Option<LocalAction> {
    let awaiting = report.is_some_and(|r| r.process == Process::AwaitingGrant);
    match i.state {
        IncarnationState::Planned if l.may_seed && i.seed => {
            Some(LocalAction::Mark(i.id, IncarnationState::Started))
        }
        IncarnationState::Planned => {
            let (list, _) = l.list?;
            let listed = list.by_url(url)?;
            let known = l.record.incarnations.iter().any(|other| other.member == Some(listed.id));
            let cluster = l.record.seeded?.cluster;
            let fresh = listed.learner && !known && !l.record.removed.contains(&listed.id);
            fresh.then_some(LocalAction::Bind(i.id, listed.id, cluster))
        }
        IncarnationState::Added => {
            let (list, _) = l.list?;
            // Every reachable voter must know the new id, or etcd ends with "member count is unequal" (S09).
            (l.settled == Some(list.digest())).then_some(LocalAction::Mark(i.id, IncarnationState::Started))
        }
        IncarnationState::Started | IncarnationState::Voter => {
            if let Some(seeded) = born(l, i, report) {
                return Some(LocalAction::Seeded(i.id, seeded));
            }
            let empty = report.is_some_and(|r| matches!(r.dir, None | Some(DirFacts::Empty)));
            let unborn = i.seed && l.record.seeded.is_none();
            match (awaiting, empty) {
                (false, _) => None,
                // The supervisor has its directory, but lost its grant or its mark.
                (true, false) => grant(l, i, url, GrantKind::Resume).map(|g| LocalAction::Grant(Box::new(g))),
                // The volume was lost together with what stood beside the directory (rule I5).
                (true, true) if ran(i, report) && !unborn => {
                    Some(LocalAction::Mark(i.id, IncarnationState::Lost))
                }
                (true, true) => {
                    let kind = if unborn { GrantKind::Seed } else { GrantKind::Join };
                    grant(l, i, url, kind).map(|g| LocalAction::Grant(Box::new(g)))
                }
            }
        }
        IncarnationState::Removing | IncarnationState::Removed | IncarnationState::Lost => None,
    }
}

/// The seed runs and its supervisor knows its ids: the cluster is born (safety.md 7.5).
fn born(l: Local<'_>, i: &Incarnation, report: Option<&MemberReport>) -> Option<Seeded> {
    let there = report.filter(|r| r.process == Process::Running)?.incarnation.as_ref()?;
    let fresh = i.seed && l.record.seeded.is_none() && there.id == i.id;
    let (cluster, member) = there.cluster.zip(there.member)?;
    fresh.then_some(Seeded { epoch: i.epoch, cluster, member })
}

/// The grant of an incarnation that is recorded as `Started`.
pub fn grant(l: Local<'_>, i: &Incarnation, url: &PeerUrl, kind: GrantKind) -> Option<Grant> {
    let name = etcd_name(l.federation, &i.slot, i.id);
    let initial_cluster = match kind {
        GrantKind::Seed => vec![(name.clone(), url.clone())],
        GrantKind::Resume => Vec::new(), // etcd ignores it beside an existing log
        GrantKind::Join => {
            let (list, _) = l.list?;
            // etcd compares the URLs; only the own name counts. Foreign members may share one, or have none of our kind.
            let foreign = |m: &ListedMember| m.peer_url.slot(&l.federation.name).is_none();
            let named = |m: &ListedMember| match m {
                own if Some(own.id) == i.member => name.clone(),
                other if foreign(other) => format_smolstr!("external-{}", other.id),
                other => other.name.clone(),
            };
            list.iter().map(|m| (named(m), m.peer_url.clone())).collect()
        }
    };
    Some(Grant {
        federation: l.federation.clone(),
        uid: l.record.uid?,
        epoch: l.record.epoch,
        slot: i.slot.clone(),
        incarnation: i.id,
        kind,
        cluster: i.cluster,
        member: i.member,
        name,
        peer_url: url.clone(),
        initial_cluster,
        mark: i.mark,
        settings: options(l.spec, l.record.timing()),
    })
}

/// What every etcd of a federation is started with: of the spec, and of the timing that was activated with it.
pub fn options(spec: &Spec, timing: Option<Timing>) -> EtcdOptions {
    const DEFAULT_QUOTA: u64 = 2 << 30;
    let (heartbeat_ms, election_ms) = timing::timers(spec, timing);
    EtcdOptions {
        version: spec.version.as_deref().unwrap_or("3.6").into(),
        heartbeat_ms,
        election_ms,
        quota_bytes: spec.etcd.as_ref().and_then(|e| e.quota_bytes).unwrap_or(DEFAULT_QUOTA),
        peer_ports: Vec::new(),
    }
}

/// Slots that are ready to be filled: planned, with a supervisor that waits, and nothing left of the predecessor.
pub fn offers(
    record: &Record,
    layout: &Layout,
    me: &SiteName,
    reports: &[MemberReport],
    urls: &[(Slot, PeerUrl)],
) -> Vec<SlotOffer> {
    own_slots(record, layout, me)
        .filter_map(|slot| {
            let incarnation =
                current(record, slot).filter(|i| i.state == IncarnationState::Planned && !i.seed)?;
            let waiting = reports.iter().any(|r| r.slot == *slot && r.process == Process::AwaitingGrant);
            let (_, url) = urls.iter().find(|(s, _)| s == slot)?;
            waiting.then(|| SlotOffer {
                slot: slot.clone(),
                peer_url: url.clone(),
                incarnation: incarnation.id,
            })
        })
        .collect()
}

/// A new incarnation for a slot.
pub fn planned(record: &Record, slot: &Slot, id: IncarnationId, seed: bool) -> Incarnation {
    Incarnation {
        slot: slot.clone(),
        id,
        state: IncarnationState::Planned,
        epoch: record.epoch,
        cluster: None,
        member: None,
        mark: Mark::default(),
        seed,
        granted: false,
        archived: false,
    }
}

/// The record with one incarnation changed.
#[must_use]
pub fn with(record: &Record, id: IncarnationId, change: impl FnOnce(&mut Incarnation)) -> Record {
    let mut next = record.clone();
    if let Some(incarnation) = next.incarnations.iter_mut().find(|i| i.id == id) {
        change(incarnation);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::federation::layout::default_zone;
    use crate::federation::member::OutsideMark;
    use crate::id::{Epoch, Index, Uid};
    use crate::identity::{self, Evidence, Start};

    fn site(n: &str) -> SiteName {
        SiteName::new(n).unwrap()
    }
    fn slot(n: &str) -> Slot {
        Slot { site: site(n), ordinal: 0, zone: default_zone() }
    }
    fn url(s: &Slot) -> PeerUrl {
        PeerUrl(format!("https://main-{0}-{1}.{0}.quorate.test:2380", s.site, s.ordinal).into())
    }
    fn spec(names: &[&str]) -> Spec {
        let c: Vec<_> = names.iter().map(|n| serde_json::json!({"name": n})).collect();
        serde_json::from_value(serde_json::json!({"clusters": c})).unwrap()
    }
    fn key() -> FederationKey {
        serde_json::from_str(r#"{"namespace": "etcd", "name": "main"}"#).unwrap()
    }
    fn report(
        s: &Slot,
        process: Process,
        incarnation: Option<Incarnation>,
        dir: Option<DirFacts>,
    ) -> MemberReport {
        MemberReport {
            slot: s.clone(),
            incarnation,
            dir,
            process,
            pid: None,
            options: None,
            starts: 0,
            last_words: None,
            archived: vec![],
            hindered: None,
        }
    }
    fn list(ids: &[(u64, &str, bool)]) -> MemberList {
        MemberList::new(
            ids.iter()
                .map(|(id, s, l)| ListedMember {
                    id: MemberId(*id),
                    name: "n".into(),
                    peer_url: url(&slot(s)),
                    learner: *l,
                })
                .collect(),
        )
    }
    fn record(i: Option<Incarnation>) -> Record {
        let mut r = Record::new(key());
        r.uid = Some(Uid(7));
        r.epoch = Epoch(1);
        r.seeded = Some(Seeded { epoch: Epoch(1), cluster: ClusterId(0xc), member: MemberId(1) });
        r.incarnations.extend(i);
        r
    }
    fn life(state: IncarnationState, member: u64, mark: Mark, granted: bool) -> Incarnation {
        Incarnation {
            slot: slot("west"),
            id: IncarnationId(5),
            state,
            epoch: Epoch(1),
            cluster: Some(ClusterId(0xc)),
            member: Some(MemberId(member)),
            mark,
            seed: false,
            granted,
            archived: false,
        }
    }
    fn run(
        record: &Record,
        names: &[&str],
        l: Option<(&MemberList, Term)>,
        reports: &[MemberReport],
    ) -> Option<LocalAction> {
        let spec = spec(names);
        let layout = spec.layout().unwrap();
        let urls = vec![(slot("west"), url(&slot("west")))];
        next(Local {
            me: &site("west"),
            federation: &key(),
            record,
            layout: &layout,
            spec: &spec,
            list: l,
            settled: l.map(|(l, _)| l.digest()),
            may_seed: false,
            reports,
            urls: &urls,
        })
    }

    /// A voter whose grant was never noted as delivered, and whose volume is lost as a whole, is lost too (rule I5).
    #[test]
    fn a_voter_is_never_joined_again_under_its_id() {
        let mark = Mark { term: Term(5), index: Index(500) };
        let i = life(IncarnationState::Voter, 2, mark, false);
        let l = list(&[(1, "east", false), (2, "west", false), (3, "north", false)]);
        let reports = [report(&slot("west"), Process::AwaitingGrant, None, Some(DirFacts::Empty))];
        let action = run(&record(Some(i.clone())), &["east", "north", "west"], Some((&l, Term(5))), &reports);
        assert_eq!(action, Some(LocalAction::Mark(i.id, IncarnationState::Lost)));
        // And if a grant came all the same, the guard refuses: the marks prove that it ran.
        let spec = spec(&["east", "north", "west"]);
        let (layout, urls) = (spec.layout().unwrap(), vec![(slot("west"), url(&slot("west")))]);
        let record = record(Some(i.clone()));
        let (me, federation) = (site("west"), key());
        let local = Local {
            me: &me,
            federation: &federation,
            record: &record,
            layout: &layout,
            spec: &spec,
            list: Some((&l, Term(5))),
            settled: None,
            may_seed: false,
            reports: &reports,
            urls: &urls,
        };
        let grant = &super::grant(local, &i, &url(&slot("west")), GrantKind::Join).unwrap();
        let outside = OutsideMark { incarnation: i.id, state: IncarnationState::Added, mark };
        let written =
            Incarnation { state: IncarnationState::Added, mark: Mark::default(), granted: true, ..i };
        let start = identity::decide(Evidence {
            incarnation: Some(&written),
            outside: Some(&outside),
            dir: &DirFacts::Empty,
            grant: Some(grant),
            seen: Mark::default(),
            fenced: false,
        });
        assert_ne!(start, Start::Join, "same id, empty dir, kind {:?} mark {:?}", grant.kind, grant.mark);
    }

    /// Deleted everywhere: supervisors end, whatever else there would be to do; declared again, they are started, and no
    /// new life is planned.
    #[test]
    fn what_is_deleted_is_stopped_and_goes_on_where_it_was() {
        let names = ["east", "north", "west"];
        let l = list(&[(1, "east", false), (2, "west", false), (3, "north", false)]);
        let i = life(IncarnationState::Voter, 2, Mark::default(), true);
        let running = [report(&slot("west"), Process::Running, Some(i.clone()), None)];
        let mut record = record(Some(i));
        record.deleted = true;
        let stop = Some(LocalAction::Retire(slot("west")));
        assert_eq!(run(&record, &names, Some((&l, Term(5))), &running), stop);
        record.removed.insert(MemberId(2));
        assert_eq!(run(&record, &names, Some((&l, Term(5))), &running), stop, "nothing is archived now");
        record.removed.clear();
        assert_eq!(run(&record, &names, None, &[]), None);
        record.deleted = false;
        assert_eq!(run(&record, &names, None, &[]), Some(LocalAction::Supervise(slot("west"))));
        assert_eq!(run(&record, &names, None, &running), None);
    }

    /// Somebody else removed it while it was down, and nobody's term has moved since (S05, S06).
    #[test]
    fn a_voter_that_no_list_names_is_removed_and_a_learner_only_by_a_later_term() {
        let l = list(&[(1, "east", false), (3, "north", false)]);
        let removed = |state, term| {
            let i = life(state, 2, Mark { term: Term(5), index: Index(500) }, true);
            let report = report(&slot("west"), Process::Exited, Some(i.clone()), None);
            let names = ["east", "north", "west"];
            let action = run(&record(Some(i.clone())), &names, Some((&l, Term(term))), &[report]);
            action == Some(LocalAction::Mark(i.id, IncarnationState::Removed))
        };
        let (voter, learner) = (IncarnationState::Voter, IncarnationState::Started);
        assert_eq!([4, 5, 6].map(|term| removed(voter, term)), [false, true, true]);
        assert_eq!([4, 5, 6].map(|term| removed(learner, term)), [false, false, true]);
    }

    /// Removed or lost in a slot that is no longer wanted: stopped and archived also after a restart of the agent.
    #[test]
    fn what_ended_in_an_unwanted_slot_is_stopped_after_a_restart() {
        for state in [IncarnationState::Removed, IncarnationState::Lost] {
            let i = life(state, 2, Mark::default(), true);
            let l = list(&[(1, "east", false), (3, "north", false)]);
            let action = run(&record(Some(i)), &["east", "north", "south"], Some((&l, Term(5))), &[]);
            assert!(action.is_some(), "{state:?}: nobody stops or archives it");
        }
    }
}
