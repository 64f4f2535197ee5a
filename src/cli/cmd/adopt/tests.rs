use std::collections::BTreeMap;

use quorate_link::etcd::client::{Header, Member, Status};

use super::judge::{self, Verdict};
use super::look::{Facts, Found, PeerAnswer, Seen};
use super::{Args, model, read, text};

fn status(id: u64, version: &str) -> Status {
    Status {
        header: Header { cluster_id: 0xcdf8, member_id: id, revision: 9, raft_term: 4 },
        version: version.to_owned(),
        db_size: 20_480,
        db_in_use: 20_480,
        db_quota: 4_294_967_296,
        leader: 1,
        raft_index: 90,
        applied_index: 90,
        errors: Vec::new(),
        is_learner: false,
        storage_version: String::new(),
        downgrade_to: None,
    }
}

fn found(id: u64, version: &str) -> Found {
    let url = |port| format!("https://10.0.0.{id}:{port}");
    let listed = Member {
        id,
        name: format!("old-{id}"),
        peer_urls: vec![url(2380)],
        client_urls: vec![url(2379)],
        is_learner: false,
    };
    Found { listed, endpoint: Some(url(2379)), status: Some(status(id, version)), hash: Some((7, 1)) }
}

fn facts(members: Vec<Found>) -> Facts {
    let urls: Vec<String> = members.iter().map(|m| m.listed.peer_urls[0].clone()).collect();
    let reached = BTreeMap::from([("east".to_owned(), None), ("west".to_owned(), None)]);
    Facts {
        peer_ca: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_owned(),
        peer_ports: urls.iter().map(|url| (url.clone(), PeerAnswer::Open)).collect(),
        reach: urls.iter().map(|url| (url.clone(), reached.clone())).collect(),
        seen: Some(Seen { cluster: 0xcdf8, members, auth: Some((false, false)), ..Seen::default() }),
        ..Facts::default()
    }
}

fn args() -> Args {
    Args {
        federation: "etcd/main".to_owned(),
        endpoints: vec!["https://10.0.0.1:2379".to_owned()],
        cacert: "ca.crt".into(),
        cert: "client.crt".into(),
        key: "client.key".into(),
        peer_ca: "peer-ca.crt".into(),
        peer_ca_key: Some("peer-ca.key".into()),
        config: "quorate.yaml".into(),
        clusters: Vec::new(),
        members: None,
        heartbeat_ms: None,
        election_ms: Some(5_000),
        quota_bytes: None,
        yes: false,
        dry_run: true,
        output: crate::output::Plain::Table,
    }
}

fn report(facts: &Facts) -> String {
    let (key, site) = (super::key("etcd/main").unwrap(), "east".parse().unwrap());
    let clusters = ["east", "west", "north"].map(|name| name.parse().unwrap());
    let checks = judge::checks(facts, &key, &site, true);
    let seen = facts.seen.as_ref().unwrap();
    let manifest = text::manifest(&args(), &key, &site, &clusters, seen, facts);
    let missing = checks.iter().filter(|check| check.verdict == Verdict::Missing).count();
    let report = super::Report {
        federation: key.to_string(),
        cluster: site.to_string(),
        cluster_id: Some("cdf8".to_owned()),
        version: judge::minor(seen),
        members: judge::members(seen),
        checks,
        plan: model::plan(seen, &read(&manifest).unwrap(), &site),
        manifest: Some(manifest),
        written: Vec::new(),
    };
    text::report(&report, &clusters, &site, missing)
}

#[test]
fn a_healthy_etcd_shows_its_plan_and_the_manifest() {
    insta::assert_snapshot!(report(&facts(vec![found(1, "3.6.16")])));
}

#[test]
fn everything_that_is_missing_is_named_at_once() {
    let mut all = facts(vec![found(1, "3.6.16"), found(2, "3.6.4"), found(3, "3.5.35")]);
    all.silent.push(("https://10.0.0.9:2379".to_owned(), "etcd cannot be reached: refused".to_owned()));
    all.no_binary = Some("no etcd 3.6 in /opt/etcd".to_owned());
    let seen = all.seen.as_mut().unwrap();
    seen.auth = Some((true, false));
    seen.members[1].hash = Some((8, 1));
    seen.members[1].listed.is_learner = true;
    seen.members[2].listed.peer_urls[0] = "https://main-old-0.old.svc:2380".to_owned();
    seen.members[2].status.as_mut().unwrap().applied_index = 90;
    seen.members[2].status.as_mut().unwrap().raft_index = 9_000;
    let closed = PeerAnswer::Closed("no TLS session: unknown issuer".to_owned());
    all.peer_ports.insert("https://10.0.0.2:2380".to_owned(), closed);
    let reach = all.reach.get_mut("https://10.0.0.1:2380").unwrap();
    reach.insert("west".to_owned(), Some("no connection within 3s".to_owned()));
    insta::assert_snapshot!(report(&all));
}

#[test]
fn a_name_is_a_namespace_and_a_name() {
    assert!(super::key("etcd/main").is_ok());
    for bad in ["main", "etcd/", "Etcd/main", "a/b/c"] {
        assert!(super::key(bad).is_err(), "{bad}");
    }
}
