//! The status of a federation as people and other programs read it: the CR's `.status`, and the JSON API.

use quorate_core::condition::{
    self, ArithmeticStatus, BackupStatus, Condition, ConditionStatus, ConditionType, MemberStatus,
    SiteStatus, Status, TimingStatus,
};
use quorate_core::federation::member::{IncarnationState, Process};
use quorate_core::federation::observed::{Heard, LocalMember, SiteObservation};
use quorate_core::federation::view::{MemberView, View, Wish};
use quorate_core::id::{Generation, MemberId, SiteName};
use quorate_core::intent::record::Record;
use quorate_core::membership::plan;
use quorate_core::membership::step::Decision;
use quorate_core::reason::{Code, Reason};
use quorate_core::timing;

use crate::federation::Names;

/// What holds before anything is known.
pub fn blank(names: &Names) -> Status {
    Status {
        namespace: names.federation.namespace.to_string(),
        name: names.federation.name.to_string(),
        observed_from: names.site.to_string(),
        uid: None,
        epoch: quorate_core::id::Epoch(0),
        generation: Generation(0),
        digest: None,
        cluster_id: None,
        conditions: Vec::new(),
        arithmetic: ArithmeticStatus::default(),
        timing: None,
        members: Vec::new(),
        leader: None,
        executor: None,
        intent: None,
        operation: None,
        plan: Vec::new(),
        decision: "not looked yet".to_owned(),
        reason: None,
        sites: Vec::new(),
        backup: BackupStatus { enabled: false },
        endpoints: Vec::new(),
    }
}

fn from_record(names: &Names, record: &Record) -> Status {
    let held = record.intent.as_ref();
    let effective = record.effective.as_ref().map(|e| &e.spec);
    let spec = effective.or_else(|| record.vote.as_ref().map(|ballot| &ballot.spec));
    let timing = spec.map(|spec| {
        let (heartbeat_ms, election_ms) = timing::timers(spec, record.timing());
        let rtt_ms = record.timing().filter(|_| timing::is_auto(spec)).map(|timing| timing.rtt_ms);
        TimingStatus { heartbeat_ms, election_ms, rtt_ms }
    });
    Status {
        timing,
        uid: record.uid,
        epoch: record.epoch,
        generation: record.effective.as_ref().map_or(Generation(0), |e| e.generation),
        digest: record.effective.as_ref().map(|e| e.digest),
        cluster_id: record.seeded.map(|s| s.cluster.to_string()),
        intent: held.map(|h| format!("{} ({:?}, number {})", h.intent.kind, h.state, h.intent.seq)),
        operation: held.filter(|h| h.open()).map(|h| h.intent.operation.to_string()),
        ..blank(names)
    }
}

/// A federation without a cluster yet.
pub fn unborn(
    names: &Names,
    record: &Record,
    expected: &[SiteName],
    heard: &[(SiteName, Heard)],
    waits: Option<&Reason>,
) -> Status {
    let site = |name: &SiteName| {
        let found =
            heard.iter().find(|(n, h)| n == name && h.age_ms < quorate_core::federation::view::HEARD_MS);
        SiteStatus {
            name: name.to_string(),
            reachable: found.is_some(),
            spec_digest: found.and_then(|(_, h)| h.observation.spec).map(|d| d.to_string()),
        }
    };
    let (reason, message) = match waits {
        Some(reason) => (reason.code.name().to_owned(), reason.to_string()),
        None => ("Bootstrapping".to_owned(), "the first member is being started".to_owned()),
    };
    let condition =
        |kind, status| Condition { kind, status, reason: reason.clone(), message: message.clone() };
    Status {
        conditions: vec![
            condition(ConditionType::Ready, ConditionStatus::False),
            condition(ConditionType::Quorate, ConditionStatus::False),
            condition(ConditionType::Progressing, ConditionStatus::True),
        ],
        sites: expected.iter().map(site).collect(),
        decision: message.clone(),
        reason: waits.cloned(),
        ..from_record(names, record)
    }
}

/// A federation that this site was taken out of; nothing of it runs here any more.
pub fn retired(names: &Names, record: &Record) -> Status {
    let effective = record.effective.as_ref();
    Status {
        // The generation that took it out; its spec may not be known here.
        generation: record.retired.max(effective.map(|e| e.generation)).unwrap_or_default(),
        digest: effective.filter(|e| record.retired <= Some(e.generation)).map(|e| e.digest),
        ..at_rest(names, record, Code::Retired)
    }
}

/// A federation that was deleted everywhere; its members are stopped.
pub fn deleted(names: &Names, record: &Record) -> Status {
    at_rest(names, record, Code::Deleted)
}

/// Nothing of it runs here, and nothing is to.
fn at_rest(names: &Names, record: &Record, code: Code) -> Status {
    let reason = Reason::new(code).site(&names.site);
    let condition = |kind, status| {
        let (reason, message) = (reason.code.name().to_owned(), reason.to_string());
        Condition { kind, status, reason, message }
    };
    Status {
        conditions: vec![
            condition(ConditionType::Ready, ConditionStatus::False),
            condition(ConditionType::Quorate, ConditionStatus::Unknown),
            condition(ConditionType::Progressing, ConditionStatus::False),
        ],
        decision: reason.to_string(),
        reason: Some(reason.clone()),
        ..from_record(names, record)
    }
}

/// A federation that was born.
pub fn living(names: &Names, record: &Record, view: &View, wish: &Wish, decision: &Decision) -> Status {
    let (plan, _) = plan::plan(view, wish);
    let decision = &seen_by_the_executor(view, wish, decision);
    let lost = data_lost(view);
    Status {
        conditions: condition::conditions(view, wish, decision, lost.as_ref()),
        arithmetic: condition::arithmetic_status(view),
        members: match view.list {
            Some(_) => view.members.iter().map(|m| member(names, view, m)).collect(),
            None => remembered(names, view),
        },
        leader: view.leader.map(|id| id.to_string()),
        executor: view.leader.and_then(|id| view.site_of(id)).map(ToString::to_string),
        plan: condition::plan_lines(&plan),
        decision: match decision {
            Decision::Step(step) => step.to_string(),
            Decision::Wait(reason) | Decision::Refuse(reason) => reason.to_string(),
            Decision::Done => "Done".to_owned(),
        },
        reason: decision.reason().cloned(),
        sites: view
            .sites
            .iter()
            .map(|site| SiteStatus {
                name: site.name.to_string(),
                reachable: site.heard(),
                spec_digest: site.observation.as_ref().and_then(|o| o.spec).map(|d| d.to_string()),
            })
            .collect(),
        ..from_record(names, record)
    }
}

/// A site that does not execute tells what the one that does will decide on the same facts, so that the picture is the
/// same everywhere.
fn seen_by_the_executor(view: &View, wish: &Wish, decision: &Decision) -> Decision {
    let not_here = decision.reason().is_some_and(|reason| reason.code == Code::NotExecutor);
    if !not_here || view.leader.is_none() {
        return decision.clone();
    }
    let mut view = view.clone();
    view.own_leads = true;
    plan::next(&view, wish)
}

/// The same while this site has no readable record.
pub fn without_record(status: Status, reason: &Reason, why: &str) -> Status {
    let condition = Condition {
        kind: ConditionType::Ready,
        status: ConditionStatus::False,
        reason: reason.code.name().to_owned(),
        message: format!("{reason}: {why}"),
    };
    let mut conditions: Vec<_> =
        status.conditions.into_iter().filter(|c| c.kind != ConditionType::Ready).collect();
    conditions.push(condition);
    conditions.sort_by_key(|c| c.kind);
    Status { conditions, decision: reason.to_string(), reason: Some(reason.clone()), ..status }
}

/// The same if the spec names a site that the configuration of this agent does not.
pub fn without_peer(status: Status, site: &SiteName) -> Status {
    let reason = Reason::new(Code::NoPeer).site(site);
    let condition = Condition {
        kind: ConditionType::PeersReachable,
        status: ConditionStatus::False,
        reason: Code::NoPeer.name().to_owned(),
        message: reason.to_string(),
    };
    let others = status.conditions.into_iter().filter(|c| c.kind != ConditionType::PeersReachable);
    let mut conditions: Vec<_> = others.chain([condition]).collect();
    conditions.sort_by_key(|c| c.kind);
    Status { conditions, ..status }
}

/// A member whose agent attests that its data are lost: a listed one, or any if nobody can read the list.
fn data_lost(view: &View) -> Option<Reason> {
    let lost = |o: &SiteObservation| {
        let found = o.members.iter().find(|m| m.state == IncarnationState::Lost)?;
        let member = found.member.filter(|id| view.list.is_none() || view.member(*id).is_some())?;
        Some(Reason::new(Code::DataLost).member(member).site(&o.site))
    };
    view.sites.iter().filter_map(|s| s.observation.as_deref()).find_map(lost)
}

/// The members that the sites tell of while nobody can read the list: what is known of their directories is what a
/// person has to decide on (safety.md 9, `QuorumLost`).
fn remembered(names: &Names, view: &View) -> Vec<MemberStatus> {
    let told = view.sites.iter().filter_map(|s| s.observation.as_deref()).flat_map(|o| &o.members);
    let member = |m: &LocalMember| {
        let (state, reason) = match (&m.state, &m.process) {
            (IncarnationState::Lost, _) => ("dead", Some(Code::DataLost.name().to_owned())),
            (_, Process::Quarantined(reason)) => ("unknown", Some(reason.to_string())),
            (_, _) => ("unknown", None),
        };
        let voter = matches!(m.state, IncarnationState::Voter | IncarnationState::Lost);
        Some(MemberStatus {
            name: m.slot.name(&names.federation.name).to_string(),
            id: m.member?.to_string(),
            site: m.slot.site.to_string(),
            zone: m.slot.zone.to_string(),
            role: if voter { "voter" } else { "learner" }.to_owned(),
            state: state.to_owned(),
            reason,
            peer_url: m.peer_url.to_string(),
            db_size: m.status.as_ref().map_or(0, |s| s.db_size),
            version: m.status.as_ref().map(|s| s.version.to_string()).unwrap_or_default(),
            leader: false,
        })
    };
    told.filter_map(member).collect()
}

fn member(names: &Names, view: &View, m: &MemberView) -> MemberStatus {
    let (state, reason) = condition::life_words(m.life);
    let name = match &m.slot {
        Some(slot) if !slot.is_external() => slot.name(&names.federation.name).to_string(),
        // With the port: several may be on one machine.
        _ => m.peer_url.0.trim_start_matches("https://").to_owned(),
    };
    MemberStatus {
        name,
        id: m.id.to_string(),
        site: m.site().map(ToString::to_string).unwrap_or_default(),
        zone: m.slot.as_ref().map(|s| s.zone.to_string()).unwrap_or_default(),
        role: if m.learner { "learner" } else { "voter" }.to_owned(),
        state: state.to_owned(),
        reason: reason.map(str::to_owned),
        peer_url: m.peer_url.to_string(),
        db_size: db_size(view, m.id),
        version: m.version.map(|v| v.to_string()).unwrap_or_default(),
        leader: view.leader == Some(m.id),
    }
}

fn db_size(view: &View, id: MemberId) -> u64 {
    let members = view.sites.iter().filter_map(|s| s.observation.as_ref()).flat_map(|o| &o.members);
    members.filter(|m| m.member == Some(id)).find_map(|m| m.status.as_ref()).map_or(0, |s| s.db_size)
}
