use std::net::{IpAddr, Ipv4Addr};

use quorate_core::federation::member::{EtcdOptions, Mark};
use quorate_core::id::{
    ClusterId, Epoch, FederationKey, Index, MemberId, ObjectName, PeerUrl, SiteName, Slot, Term, Uid,
    ZoneName,
};

use super::*;
use crate::options::{Certificates, FORMAT, Ports};

fn options() -> Options {
    Options {
        format: FORMAT.into(),
        federation: FederationKey {
            namespace: ObjectName::new("etcd").unwrap(),
            name: ObjectName::new("main").unwrap(),
        },
        uid: Uid(7),
        slot: Slot { site: SiteName::new("east").unwrap(), ordinal: 0, zone: ZoneName::new("a").unwrap() },
        volume: "/volume".into(),
        etcd_dir: "/etcd".into(),
        bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
        ports: Ports { member: 8444, http: 8081, client: 2379, peer: 2380, metrics: 2381 },
        peer_url: PeerUrl("https://main-east-0.east.quorate.test:2380".into()),
        client_urls: vec![],
        certificates: Certificates::in_folder("/volume/pki".as_ref()),
        foreign_peers: false,
        trust_domain: "quorate.test".into(),
        outside_mark: "/highwater.json".into(),
        log_level: "info".into(),
    }
}

fn grant(kind: GrantKind, id: u128) -> Grant {
    let options = options();
    let joins = kind != GrantKind::Seed;
    Grant {
        federation: options.federation,
        uid: options.uid,
        epoch: Epoch(1),
        slot: options.slot,
        incarnation: IncarnationId(id),
        kind,
        cluster: joins.then_some(ClusterId(1)),
        member: joins.then_some(MemberId(2)),
        name: "main-east-0-aaaaaaaa".into(),
        peer_url: options.peer_url.clone(),
        initial_cluster: vec![("main-east-0-aaaaaaaa".into(), options.peer_url)],
        mark: Mark::default(),
        settings: EtcdOptions {
            version: "3.6".into(),
            heartbeat_ms: 100,
            election_ms: 1000,
            quota_bytes: 1 << 30,
            peer_ports: Vec::new(),
        },
    }
}

const NOTHING: Present<'_> = Present { incarnation: None, grant: None, dir: &DirFacts::Empty, fenced: false };

fn record(grant: &Grant, state: IncarnationState) -> Incarnation {
    Incarnation { state, ..guard::planned(grant) }
}

#[test]
fn a_first_grant_is_taken_with_its_record() {
    for kind in [GrantKind::Seed, GrantKind::Join] {
        let accepted = accept(&options(), NOTHING, grant(kind, 1)).unwrap();
        let record = accepted.incarnation.unwrap();
        assert_eq!((record.id, record.seed), (IncarnationId(1), kind == GrantKind::Seed));
        assert!(record.state < IncarnationState::Started);
    }
    assert_eq!(
        accept(&options(), NOTHING, grant(GrantKind::Resume, 1)),
        Err(Refusal::NothingToResume(IncarnationId(1)))
    );
    let dir = DirFacts::Unreadable("x".into());
    assert_eq!(
        accept(&options(), Present { dir: &dir, ..NOTHING }, grant(GrantKind::Join, 1)),
        Err(Refusal::NotArchived)
    );
    assert_eq!(
        accept(&options(), Present { fenced: true, ..NOTHING }, grant(GrantKind::Join, 1)),
        Err(Refusal::Fenced(IncarnationId(1)))
    );
}

#[test]
fn a_grant_for_somebody_else_is_refused() {
    let change: [fn(&mut Grant); 4] = [
        |grant| grant.uid = Uid(8),
        |grant| grant.slot.ordinal = 1,
        |grant| grant.peer_url = PeerUrl("https://other:1".into()),
        |grant| grant.federation.name = ObjectName::new("other").unwrap(),
    ];
    for change in change {
        let mut grant = grant(GrantKind::Join, 1);
        change(&mut grant);
        assert!(matches!(accept(&options(), NOTHING, grant), Err(Refusal::NotOurs { .. })));
    }
}

#[test]
fn another_incarnation_waits_until_this_one_is_removed() {
    let old = grant(GrantKind::Join, 1);
    for (state, taken) in [
        (IncarnationState::Planned, false),
        (IncarnationState::Added, false),
        (IncarnationState::Started, false),
        (IncarnationState::Voter, false),
        (IncarnationState::Removing, false),
        (IncarnationState::Removed, true),
        (IncarnationState::Lost, true),
    ] {
        let here = record(&old, state);
        let present = Present { incarnation: Some(&here), grant: Some(&old), ..NOTHING };
        let answer = accept(&options(), present, grant(GrantKind::Join, 2));
        assert_eq!(answer.is_ok(), taken, "{state:?}: {answer:?}");
        if !taken {
            assert!(matches!(answer, Err(Refusal::OtherIncarnation { .. })));
        }
    }
}

#[test]
fn a_grant_is_used_once_and_may_be_repeated() {
    let seed = grant(GrantKind::Seed, 1);
    let here = record(&seed, IncarnationState::Started);
    let present = Present { incarnation: Some(&here), grant: Some(&seed), ..NOTHING };
    assert_eq!(
        accept(&options(), present, seed.clone()),
        Ok(Accepted { incarnation: None, grant: seed.clone() }),
        "the answer was lost"
    );
    let mut other = seed.clone();
    other.settings.quota_bytes = 1;
    assert_eq!(accept(&options(), present, other), Err(Refusal::Used(IncarnationId(1))));
    let seeded = Incarnation { cluster: Some(ClusterId(1)), ..here.clone() };
    let present = Present { incarnation: Some(&seeded), ..present };
    assert_eq!(accept(&options(), present, seed.clone()), Err(Refusal::Seeded(IncarnationId(1))));
    for state in [IncarnationState::Removing, IncarnationState::Removed, IncarnationState::Lost] {
        let over = record(&seed, state);
        let present = Present { incarnation: Some(&over), ..present };
        assert_eq!(accept(&options(), present, seed.clone()), Err(Refusal::Over(IncarnationId(1), state)));
        assert!(accept(&options(), present, grant(GrantKind::Resume, 1)).is_err());
    }
}

#[test]
fn resuming_changes_settings_and_raises_the_mark() {
    let seed = Grant { mark: Mark { term: Term(3), index: Index(5) }, ..grant(GrantKind::Seed, 1) };
    let here = Incarnation { cluster: Some(ClusterId(1)), ..record(&seed, IncarnationState::Voter) };
    let present = Present { incarnation: Some(&here), grant: Some(&seed), ..NOTHING };
    let mut resume = grant(GrantKind::Resume, 1);
    resume.settings.quota_bytes = 5;
    resume.mark = Mark { term: Term(2), index: Index(50) };
    let taken = accept(&options(), present, resume.clone()).unwrap().grant;
    assert_eq!(taken.kind, GrantKind::Seed);
    assert_eq!((taken.settings.quota_bytes, taken.cluster), (5, Some(ClusterId(1))));
    assert_eq!(taken.mark, Mark { term: Term(3), index: Index(50) });
    resume.cluster = Some(ClusterId(9));
    assert!(matches!(accept(&options(), present, resume), Err(Refusal::Contradiction(_))));
}

#[test]
fn grants_that_contradict_themselves_are_refused() {
    let two = |mut grant: Grant| {
        grant.initial_cluster.push(("other".into(), PeerUrl("https://other:1".into())));
        grant
    };
    assert!(accept(&options(), NOTHING, two(grant(GrantKind::Join, 1))).is_ok());
    for wrong in [
        two(grant(GrantKind::Seed, 1)),
        Grant { cluster: Some(ClusterId(1)), ..grant(GrantKind::Seed, 1) },
        Grant { initial_cluster: vec![], ..grant(GrantKind::Seed, 1) },
        Grant { initial_cluster: vec![], ..grant(GrantKind::Join, 1) },
        Grant { member: None, ..grant(GrantKind::Join, 1) },
    ] {
        assert!(matches!(accept(&options(), NOTHING, wrong), Err(Refusal::Contradiction(_))));
    }
}

#[test]
fn options_are_read_back_and_other_formats_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("member.json");
    let text = serde_json::to_string(&options()).unwrap();
    std::fs::write(&path, &text).unwrap();
    assert_eq!(Options::load(&path).unwrap(), options());
    std::fs::write(&path, text.replace("\"bind\"", "\"bnid\"")).unwrap();
    assert!(matches!(Options::load(&path), Err(crate::options::Error::Parse { .. })));
    std::fs::write(&path, text.replace(FORMAT, "quorate.member/2")).unwrap();
    assert!(Options::load(&path).unwrap_err().to_string().contains("quorate.member/2"));
    assert!(Options::load(&folder.path().join("none")).is_err());
}
