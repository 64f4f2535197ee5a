//! Rule I5: may this data directory be started? Decided from the record beside it, the mark from outside the volume,
//! what its log says, and the grant. Used by the supervisor, with or without an agent.

use crate::federation::member::{
    DirFacts, Grant, GrantKind, Incarnation, IncarnationState, Mark, OutsideMark,
};
use crate::reason::{Code, Reason};

/// What the guard permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// Start etcd with `--initial-cluster-state new` on an empty directory (only under a live seed grant).
    New,
    /// Start etcd with `existing` on an empty directory, as a new learner.
    Join,
    /// Start etcd on its own directory.
    Resume,
    /// Do not start; wait for a grant or a mark.
    Await(Reason),
    /// Do not start, ever: the slot is `Lost`.
    Refuse(Reason),
    /// The directory of an interrupted first start may be cleared and started again: nothing was served yet.
    ClearAndStart,
}

/// What the guard looks at.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// `incarnation.json` beside the directory.
    pub incarnation: Option<&'a Incarnation>,
    /// The mark from outside the volume.
    pub outside: Option<&'a OutsideMark>,
    /// The directory.
    pub dir: &'a DirFacts,
    /// `desired.json`: the last grant.
    pub grant: Option<&'a Grant>,
    /// What agents that answered within 2 s have seen of it.
    pub seen: Mark,
    /// The incarnation was barred.
    pub fenced: bool,
}

/// Decides whether etcd may start (rule I5).
pub fn decide(e: Evidence<'_>) -> Start {
    let Some(grant) = e.grant else {
        return without_grant(e);
    };
    let reason = |code: Code| {
        let reason = Reason::new(code).site(&grant.slot.site);
        match e.incarnation.and_then(|i| i.member).or(grant.member) {
            Some(member) => reason.member(member),
            None => reason,
        }
    };
    if e.fenced {
        return Start::Refuse(reason(Code::DataLost));
    }
    // The record beside the directory is of an earlier life: the directory was archived first, so it must be empty.
    let record = e.incarnation.filter(|i| i.id == grant.incarnation);
    if record.is_none() && e.incarnation.is_some_and(|i| i.state < IncarnationState::Removed) {
        return Start::Await(reason(Code::AwaitingGrant));
    }
    let outside = e.outside.filter(|mark| mark.incarnation == grant.incarnation);
    // The mark says `Started` from the moment in which the first start is permitted, so before a directory is there.
    // Without a record beside the directory only a mark above zero proves that it ever ran.
    let ran = |mark: &&OutsideMark| {
        record.is_some() || mark.mark != Mark::default() || mark.state > IncarnationState::Started
    };
    let reached = outside.filter(ran).map(|mark| mark.state);
    let state = record.map(|i| i.state).max(reached).unwrap_or(IncarnationState::Planned);
    if state >= IncarnationState::Removing {
        return Start::Refuse(reason(Code::DataLost));
    }
    // Whatever the states say: a mark above zero, wherever it comes from, proves that this incarnation has run.
    let noted = record.map(|i| i.mark).unwrap_or_default();
    let known = noted.max(outside.map(|o| o.mark).unwrap_or_default()).max(grant.mark).max(e.seen);
    if known != Mark::default() && !matches!(e.dir, DirFacts::Present { .. }) && !seeding(record, outside) {
        return Start::Refuse(reason(Code::DataLost).numbers(0, known.index.0));
    }
    match e.dir {
        DirFacts::Empty if state < IncarnationState::Started => match grant.kind {
            GrantKind::Seed => Start::New,
            GrantKind::Join => Start::Join,
            GrantKind::Resume => Start::Await(reason(Code::AwaitingGrant)),
        },
        // A crash between "Started is persisted" and etcd's first write. A seed that was not yet recorded as such
        // served nobody (safety.md 7.5). A joiner's id is spent: it may have voted, so it is lost.
        DirFacts::Empty if seeding(record, outside) => Start::New,
        DirFacts::Unreadable(_) if seeding(record, outside) => Start::ClearAndStart,
        DirFacts::Empty | DirFacts::Unreadable(_) => Start::Refuse(reason(Code::DataLost)),
        DirFacts::Present { cluster, member, term, index } => {
            let Some(record) = record else {
                return Start::Refuse(reason(Code::DataLost));
            };
            let ours = |have: Option<u64>, dir: u64| have.is_none_or(|id| id == dir);
            let identity = ours(record.cluster.or(grant.cluster).map(|c| c.0), cluster.0)
                && ours(record.member.or(grant.member).map(|m| m.0), member.0);
            if !identity {
                return Start::Refuse(reason(Code::DataLost));
            }
            if state < IncarnationState::Started {
                // A log although no start was ever permitted: somebody else's.
                return Start::Refuse(reason(Code::DataLost));
            }
            if outside.is_none() {
                return Start::Await(reason(Code::HighWaterMissing));
            }
            if *index < known.index || *term < known.term {
                return Start::Refuse(reason(Code::DataLost).numbers(index.0, known.index.0));
            }
            Start::Resume
        }
    }
}

/// The seed was started but never recorded as seeded.
fn seeding(record: Option<&Incarnation>, outside: Option<&OutsideMark>) -> bool {
    record.is_some_and(|i| i.seed && i.cluster.is_none() && i.state == IncarnationState::Started)
        && outside.is_none_or(|mark| mark.state <= IncarnationState::Started)
}

fn without_grant(e: Evidence<'_>) -> Start {
    match (e.incarnation, e.dir) {
        (Some(i), _) if i.state >= IncarnationState::Started && i.state < IncarnationState::Removing => {
            // The grant is persisted before the first start; without it the volume is not the one that it was.
            Start::Refuse(lost(i))
        }
        (None, DirFacts::Present { .. } | DirFacts::Unreadable(_)) => Start::Await(Code::DataLost.into()),
        _ => Start::Await(Code::AwaitingGrant.into()),
    }
}

fn lost(incarnation: &Incarnation) -> Reason {
    let reason = Reason::new(Code::DataLost).site(&incarnation.slot.site);
    match incarnation.member {
        Some(member) => reason.member(member),
        None => reason,
    }
}
