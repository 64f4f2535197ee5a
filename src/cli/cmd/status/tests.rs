use super::*;
use crate::cmd::plan;

/// Three sites as they are in a calm hour, and then changed by `change`.
pub(in crate::cmd) fn fixture(change: impl FnOnce(&mut Status)) -> Status {
    let mut status: Status = serde_json::from_str(include_str!("fixture.json")).unwrap();
    change(&mut status);
    status
}

fn set(status: &mut Status, kind: ConditionType, to: ConditionStatus, reason: &str, message: &str) {
    let found = status.conditions.iter_mut().find(|condition| condition.kind == kind).unwrap();
    (found.status, found.reason, found.message) = (to, reason.to_owned(), message.to_owned());
}

fn reason(status: &mut Status, json: serde_json::Value) {
    let reason: quorate_core::reason::Reason = serde_json::from_value(json).unwrap();
    status.decision = reason.to_string();
    status.reason = Some(reason);
}

/// West is silent.
pub(in crate::cmd) fn edge() -> Status {
    fixture(|status| {
        let west = &mut status.members[2];
        (west.state, west.reason, west.db_size) = ("unknown".into(), Some("PeerUnreachable".into()), 0);
        (status.arithmetic.alive, status.arithmetic.margin, status.arithmetic.can_lose_members) = (2, 0, 0);
        status.arithmetic.can_lose_clusters.clear();
        status.arithmetic.can_lose_zones.clear();
        status.sites[2].reachable = false;
        let silent = "agent of site west was last heard 93000 ms ago";
        set(status, ConditionType::PeersReachable, ConditionStatus::False, "PeerUnreachable", silent);
        let risk = "QuorumAtRisk: the loss of site east would stop writes (1 of 2 voters would remain) (sites at risk: east, north)";
        set(status, ConditionType::QuorumAtRisk, ConditionStatus::True, "QuorumAtRisk", risk);
        reason(
            status,
            serde_json::json!({"code": "LostMemberUnconfirmed", "member": "91bc3c398fb3c146", "site": "west"}),
        );
    })
}

/// West and north are silent.
pub(in crate::cmd) fn stopped() -> Status {
    let mut status = edge();
    for member in &mut status.members {
        member.leader = false;
    }
    (status.members[1].state, status.members[1].reason) = ("unknown".into(), Some("PeerUnreachable".into()));
    (status.arithmetic.alive, status.arithmetic.margin) = (1, -1);
    (status.leader, status.executor) = (None, None);
    status.sites[1].reachable = false;
    set(
        &mut status,
        ConditionType::Quorate,
        ConditionStatus::False,
        "QuorumLost",
        "1/3 alive, quorum 2, margin -1",
    );
    reason(&mut status, serde_json::json!({"code": "QuorumLost", "have": 1, "need": 2}));
    status
}

/// Nothing was started yet: west does not answer.
pub(in crate::cmd) fn unborn() -> Status {
    fixture(|status| {
        status.members.clear();
        status.arithmetic = quorate_core::condition::ArithmeticStatus::default();
        (status.uid, status.digest, status.cluster_id, status.leader, status.executor, status.intent) =
            (None, None, None, None, None, None);
        status.generation = quorate_core::id::Generation(0);
        status.sites[2].reachable = false;
        status.conditions.retain(|c| matches!(c.kind, ConditionType::Ready | ConditionType::Quorate));
        set(status, ConditionType::Quorate, ConditionStatus::False, "WaitingForClusters", "");
        reason(status, serde_json::json!({"code": "WaitingForClusters", "site": "west"}));
    })
}

/// Nothing of it runs here, and nothing is to.
fn at_rest(code: &str) -> Status {
    fixture(|status| {
        status.members.clear();
        status.sites.clear();
        status.arithmetic = quorate_core::condition::ArithmeticStatus::default();
        (status.leader, status.executor) = (None, None);
        status.conditions.retain(|c| matches!(c.kind, ConditionType::Ready | ConditionType::Quorate));
        set(status, ConditionType::Quorate, ConditionStatus::Unknown, code, "");
        reason(status, serde_json::json!({"code": code, "site": "east"}));
    })
}

/// West is moved to another site: the next step goes now.
pub(in crate::cmd) fn moving() -> Status {
    fixture(|status| {
        let line =
            |step: &str, before: &str, after: &str, waits: &[&str]| quorate_core::condition::PlanLine {
                step: step.to_owned(),
                operation: "ReplaceLive/91bc3c398fb3c146".to_owned(),
                before: format!("{before} margin 1"),
                after: format!("{after} margin 1"),
                waits: waits.iter().map(|wait| (*wait).to_owned()).collect(),
                remarks: if after.starts_with('4') {
                    vec!["I12: 4 voters survive no more losses than 3; left as soon as possible".to_owned()]
                } else {
                    Vec::new()
                },
            };
        let lagging = "I9 LearnerLagging: learner at site south: lag 5000 entries, at most 1000 on three samples over 3 s";
        status.plan = vec![
            line(
                "AddLearner south/default-0 https://main-south-0.south.quorate.test:2380",
                "3/3 alive, quorum 2,",
                "3/3 alive, quorum 2,",
                &[],
            ),
            line("Promote (the new one)", "3/3 alive, quorum 2,", "4/4 alive, quorum 3,", &[lagging]),
            line("Remove 91bc3c398fb3c146", "4/4 alive, quorum 3,", "3/3 alive, quorum 2,", &[]),
        ];
        status.operation = Some("ReplaceLive/91bc3c398fb3c146".to_owned());
        status.decision = "AddLearner".to_owned();
    })
}

#[test]
fn one_federation_in_every_mood() {
    insta::assert_snapshot!("fine", detail(&fixture(|_| {}), false));
    insta::assert_snapshot!("fine_wide", detail(&fixture(|_| {}), true));
    insta::assert_snapshot!("edge", detail(&edge(), false));
    insta::assert_snapshot!("stopped", detail(&stopped(), false));
    insta::assert_snapshot!("unborn", detail(&unborn(), false));
    insta::assert_snapshot!("moving", detail(&moving(), false));
    insta::assert_snapshot!("retired", detail(&at_rest("Retired"), false));
    insta::assert_snapshot!("deleted", detail(&at_rest("Deleted"), false));
    let mut leaderless = stopped();
    leaderless.sites.iter_mut().for_each(|site| site.reachable = true);
    insta::assert_snapshot!("stopped_for_sure", detail(&leaderless, false));
    let divergent = fixture(|status| {
        let same = quorate_core::condition::Condition {
            kind: ConditionType::DivergentData,
            status: ConditionStatus::True,
            reason: "DivergentData".to_owned(),
            message: "DivergentData: data of member 91bc3c398fb3c146 at site west differ from the others at one revision".to_owned(),
        };
        status.conditions.push(same);
    });
    insta::assert_snapshot!("divergent", detail(&divergent, false));
}

#[test]
fn several_federations_and_what_needs_somebody_first() {
    let named = |name: &str, mut status: Status| {
        name.clone_into(&mut status.name);
        status
    };
    let all = [
        named("a-calm", fixture(|_| {})),
        named("b-edge", edge()),
        named("c-down", stopped()),
        named("d-new", unborn()),
    ];
    insta::assert_snapshot!("overview", overview(&all, false));
    insta::assert_snapshot!("overview_wide", overview(&all, true));
    assert!(render(&[], false, Format::Table).unwrap().starts_with("no federations"));
    let json: serde_json::Value = serde_json::from_str(&render(&all, false, Format::Json).unwrap()).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 4);
    let json: serde_json::Value =
        serde_json::from_str(&render(&all[..1], true, Format::Json).unwrap()).unwrap();
    assert_eq!(json["name"], "a-calm");
    assert!(render(&all[..1], true, Format::Yaml).unwrap().contains("name: a-calm"));
}

#[test]
fn lines_to_paste_are_complete() {
    let paste = |status: &Status| plan::paste(status);
    assert!(paste(&fixture(|_| {})).is_none() && paste(&stopped()).is_none());
    let lines = serde_json::to_value(paste(&edge()).unwrap()).unwrap();
    assert_eq!(
        lines["lines"],
        "spec:\n  clusters:\n  - name: west\n    lostMembers: [\"91bc3c398fb3c146\"]\n"
    );
}
