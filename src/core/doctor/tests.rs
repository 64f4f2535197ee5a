use super::*;
use crate::report::{Hears, PeerReport};

const NOW: u64 = 2_000_000_000;

fn agent() -> SiteReport {
    let peer = |name: &str, other: &str| PeerReport {
        name: name.to_owned(),
        endpoint: format!("{name}.test:8443"),
        trusted: true,
        age_ms: Some(300),
        rtt_us: Some(900),
        version: Some("0.1.0".to_owned()),
        protocol: Some(1),
        clock_skew_ms: Some(-12),
        certificate_ends: Some(NOW + 60 * DAY),
        trouble: None,
        hears: ["east", other]
            .map(|site| Hears { site: site.to_owned(), age_ms: Some(700), rtt_us: Some(800) })
            .to_vec(),
    };
    SiteReport {
        site: "east".to_owned(),
        version: "0.1.0".to_owned(),
        protocol: 1,
        peers: vec![peer("west", "north"), peer("north", "west")],
        ..SiteReport::default()
    }
}

fn host() -> Host {
    let file = |path: &str, root: bool| File {
        path: path.into(),
        root,
        begins: NOW - DAY,
        ends: NOW + 300 * DAY,
        problem: None,
    };
    Host {
        state_dir: "/state".into(),
        disk: Some(Disk { total: 100 << 30, free: 50 << 30 }),
        fsync_us: vec![800, 900, 1_500],
        certificates: vec![file("agent.crt", false), file("agent-ca.crt", true)],
        etcds: vec![Binary { path: "/opt/etcd/etcd".into(), version: Some("3.6.16".to_owned()) }],
        ..Host::default()
    }
}

fn examined(change: impl FnOnce(&mut SiteReport, &mut Host)) -> Vec<Finding> {
    let (mut agent, mut host) = (agent(), host());
    change(&mut agent, &mut host);
    examine(&Facts { now: NOW, agent: Ok(agent), host, federations: Vec::new() })
}

/// The one finding, as text.
fn only(found: &[Finding]) -> String {
    assert_eq!(found.len(), 1, "{found:#?}");
    let Finding { severity, check, place, message, remedy } = &found[0];
    assert!(!remedy.is_empty());
    format!("{severity:?} {check} {place}: {message}")
}

#[test]
fn a_healthy_site_has_no_findings() {
    assert_eq!(examined(|_, _| {}), []);
}

#[test]
fn an_agent_that_is_silent_never_heard_or_heard_one_way_is_told_apart() {
    let silent = only(&examined(|a, _| {
        (a.peers[0].age_ms, a.peers[0].trouble) = (Some(93_000), Some("connection refused".to_owned()));
    }));
    assert_eq!(
        silent,
        "Error mesh west to east: west was last heard: 93 s ago; dialling west.test:8443: connection refused"
    );
    let never = only(&examined(|a, _| a.peers[0].age_ms = None));
    assert!(never.contains("last heard: never"), "{never}");
    let there = only(&examined(|a, _| a.peers[0].trouble = Some("timed out".to_owned())));
    assert!(there.starts_with("Error mesh east to west: west is heard, but west.test:8443"), "{there}");
    let deaf = only(&examined(|a, _| a.peers[0].hears[0].age_ms = Some(60_000)));
    assert!(deaf.starts_with("Error mesh east to west: west last heard east: 60 s ago"), "{deaf}");
    let between = only(&examined(|a, _| a.peers[0].hears[1].age_ms = None));
    assert!(between.starts_with("Error mesh north to west: west last heard north: never"), "{between}");
    let trust = only(&examined(|a, _| a.peers[1].trusted = false));
    assert!(trust.contains("no root of north is trusted here"), "{trust}");
}

#[test]
fn clocks_matter_beyond_five_seconds_and_only_as_a_warning() {
    assert_eq!(examined(|a, _| a.peers[0].clock_skew_ms = Some(5_000)), []);
    let ahead = only(&examined(|a, _| a.peers[0].clock_skew_ms = Some(61_000)));
    assert_eq!(ahead, "Warning clocks site west: its clock is 61 s ahead of that of east");
    let behind = only(&examined(|a, _| a.peers[0].clock_skew_ms = Some(-7_200_000)));
    assert!(behind.ends_with("7200 s behind that of east"), "{behind}");
}

#[test]
fn certificates_are_judged_by_what_is_left_of_them() {
    let left = |ends: u64, root: bool| {
        examined(|_, host| {
            let file = host.certificates.iter_mut().find(|file| file.root == root).unwrap();
            file.ends = ends;
        })
    };
    assert_eq!(left(NOW + 20 * DAY, false), []);
    assert!(
        only(&left(NOW + 13 * DAY, false)).starts_with("Warning certificates agent.crt: it ends in 13 days")
    );
    assert!(only(&left(NOW + DAY / 2, false)).starts_with("Error certificates agent.crt: it ends in 12 h"));
    assert!(only(&left(NOW - 1, false)).starts_with("Error certificates agent.crt: it has expired"));
    assert!(only(&left(NOW + 20 * DAY, true)).starts_with("Warning certificates agent-ca.crt"));
    let early = only(&examined(|_, host| host.certificates[0].begins = NOW + 60));
    assert!(early.contains("not good yet"), "{early}");
    let shown = only(&examined(|agent, _| agent.peers[0].certificate_ends = Some(NOW + 3 * DAY)));
    assert!(shown.starts_with("Warning certificates site west"), "{shown}");
}

#[test]
fn disks_are_judged_by_room_and_by_the_time_of_a_synced_write() {
    let low = only(&examined(|_, host| host.disk = Some(Disk { total: 100 << 30, free: 900 << 20 })));
    assert_eq!(low, "Warning disk /state: 900 MiB of 102400 MiB are free");
    assert!(
        only(&examined(|_, host| host.disk = Some(Disk { total: 1 << 30, free: 9 << 20 })))
            .starts_with("Error")
    );
    assert_eq!(
        only(&examined(|_, host| host.fsync_us = vec![900, 12_340, 90_000])),
        "Warning disk /state: a synced write takes 12.3 ms (median of 3)"
    );
    assert!(
        only(&examined(|_, host| host.unwritable = Some("read-only".to_owned()))).starts_with("Error disk")
    );
}

#[test]
fn an_agent_that_does_not_answer_is_an_error_and_the_rest_is_looked_at_all_the_same() {
    let mut host = host();
    host.fsync_us = vec![200_000];
    let found =
        examine(&Facts { now: NOW, agent: Err("no socket".to_owned()), host, federations: Vec::new() });
    let checks: Vec<&str> = found.iter().map(|finding| finding.check.as_str()).collect();
    assert_eq!(checks, ["agent", "disk"]);
}

#[test]
fn an_empty_folder_is_no_mistake_where_there_is_nothing_to_describe() {
    let problem = |text: &str| {
        only(&examined(|agent, _| {
            agent.manifests = "/etc/quorate/federations".into();
            agent.problems = vec![text.to_owned()];
        }))
    };
    assert!(problem("/etc/quorate/federations: no *.yaml file in it").starts_with("Note files"));
    assert!(problem("/etc/quorate/federations/a.yaml: kind: must be given").starts_with("Error files"));
}

#[test]
fn other_versions_are_noted() {
    let note = only(&examined(|agent, _| agent.peers[0].version = Some("0.2.0".to_owned())));
    assert_eq!(note, "Note versions site west: it runs quorate 0.2.0, east runs 0.1.0");
    assert!(only(&examined(|agent, _| agent.peers[0].protocol = Some(2))).starts_with("Warning versions"));
}
