use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use super::*;

const UID: &str = "6f0c8d1e-0000-4000-8000-000000000001";

fn every_leaf() -> Vec<(&'static str, Leaf)> {
    let uid = || UID.to_owned();
    let slot = || "main-east-0".to_owned();
    vec![
        ("agent", Leaf::Agent),
        ("etcd-client", Leaf::AgentEtcdClient),
        ("member", Leaf::MemberApi { uid: uid(), slot: slot() }),
        ("peer-server", Leaf::PeerServer { uid: uid(), hosts: vec!["main-east-0.east.quorate.test".into()] }),
        ("peer-client", Leaf::PeerClient { uid: uid(), slot: slot() }),
        ("probe", Leaf::Probe { uid: uid() }),
        (
            "server",
            Leaf::EtcdServer {
                hosts: vec!["main-east-0.east.quorate.test".into(), "localhost".into()],
                addresses: vec!["127.0.1.1".parse().unwrap(), "::1".parse().unwrap()],
            },
        ),
        ("user", Leaf::User { name: "root".into() }),
    ]
}

fn describe(path: &Path) -> String {
    let chain = pem::certificates(path, &pem::read(path).unwrap()).unwrap();
    let found = identity::parse(&chain[0]).unwrap();
    let mut names: Vec<String> = found
        .subject_alternative_name()
        .unwrap()
        .map(|names| names.value.general_names.iter().map(ToString::to_string).collect())
        .unwrap_or_default();
    names.sort();
    let usage = found.extended_key_usage().unwrap().unwrap().value;
    let days = (found.validity().not_after.timestamp() - found.validity().not_before.timestamp()) / 86_400;
    format!(
        "{} | issuer {} | {} | server {} client {} | {days} days | ca {}",
        found.subject(),
        found.issuer(),
        names.join(", "),
        usage.server_auth,
        usage.client_auth,
        found.is_ca()
    )
}

#[test]
fn leaves_have_the_names_and_usages_of_their_kind() {
    let state = tempfile::tempdir().unwrap();
    let pki = SitePki::init(state.path(), "east", "quorate.test").unwrap();
    let mut text = String::new();
    for (name, leaf) in every_leaf() {
        let pair = Pair::at(&state.path().join("leaves"), name);
        assert!(pki.ensure(&leaf, &pair).unwrap());
        assert!(!pki.ensure(&leaf, &pair).unwrap(), "{name} is made once");
        assert!(!needs_renewal(&pair.cert).unwrap());
        assert_eq!(fs::metadata(&pair.key).unwrap().permissions().mode() & 0o777, 0o600);
        writeln!(text, "{name}: {}", describe(&pair.cert)).unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn init_twice_changes_nothing() {
    let state = tempfile::tempdir().unwrap();
    let pki = SitePki::init(state.path(), "east", "quorate.test").unwrap();
    let read = || {
        let mut files = Vec::new();
        for entry in fs::read_dir(pki.folder()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
                let is_key = path.extension().is_some_and(|e| e == "key");
                assert_eq!(mode, if is_key { 0o600 } else { 0o644 }, "{}", path.display());
                files.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
        files.sort();
        files
    };
    let before = read();
    assert_eq!(before.len(), 8, "three roots and the agent's leaf, each with its key");
    SitePki::init(state.path(), "east", "quorate.test").unwrap();
    SitePki::open(state.path(), "east", "quorate.test").unwrap();
    assert_eq!(read(), before);
    assert_eq!(pki.trust().sites().unwrap(), ["east"]);
    assert_eq!(pki.trust().read("east").unwrap().unwrap(), pki.roots().unwrap());
}

#[test]
fn a_damaged_root_is_refused_and_kept() {
    let state = tempfile::tempdir().unwrap();
    let pki = SitePki::init(state.path(), "east", "quorate.test").unwrap();
    let again = || SitePki::init(state.path(), "east", "quorate.test");
    let agent = pki.root_pair(Root::Agent);
    let peer = pki.root_pair(Root::Peer);

    let key = fs::read(&agent.key).unwrap();
    let cert = fs::read(&agent.cert).unwrap();
    fs::write(&agent.key, fs::read(&peer.key).unwrap()).unwrap();
    assert!(matches!(again(), Err(Error::RootWithOtherKey { .. })));
    fs::remove_file(&agent.key).unwrap();
    assert!(matches!(again(), Err(Error::RootWithoutKey { .. })));
    assert!(!agent.key.exists(), "no new key for an old root");
    fs::write(&agent.key, &key).unwrap();
    fs::write(&agent.cert, "junk").unwrap();
    assert!(matches!(again(), Err(Error::Read(_))));
    assert_eq!(fs::read_to_string(&agent.cert).unwrap(), "junk");

    // A crash after the key was written: the same key gets its certificate.
    fs::remove_file(&agent.cert).unwrap();
    again().unwrap();
    assert_eq!(fs::read(&agent.key).unwrap(), key);
    assert_ne!(fs::read(&agent.cert).unwrap(), cert);
}

#[test]
fn a_leaf_is_made_anew_when_it_is_due_damaged_or_different() {
    let state = tempfile::tempdir().unwrap();
    let pki = SitePki::init(state.path(), "east", "quorate.test").unwrap();
    let pair = pki.agent_pair();
    let days = |n: u64| Duration::from_hours(n * 24);
    let ensure = || pki.ensure(&Leaf::Agent, &pair).unwrap();

    pki.issue_at(&Leaf::Agent, &pair, Clock::wall() - days(59)).unwrap();
    assert!(!needs_renewal(&pair.cert).unwrap());
    assert!(!ensure());
    pki.issue_at(&Leaf::Agent, &pair, Clock::wall() - days(61)).unwrap();
    assert!(needs_renewal(&pair.cert).unwrap());
    assert!(ensure());
    pki.issue_at(&Leaf::Agent, &pair, Clock::wall() + days(2)).unwrap();
    assert!(ensure(), "a clock that was ahead");

    let old_key = fs::read(&pair.key).unwrap();
    assert!(pki.ensure(&Leaf::AgentEtcdClient, &pair).unwrap(), "another kind");
    assert!(ensure());
    fs::write(&pair.key, old_key).unwrap();
    assert!(ensure(), "the key of another certificate");
    fs::write(&pair.cert, "junk").unwrap();
    assert!(ensure());

    // A leaf of another root with the same name.
    let other = tempfile::tempdir().unwrap();
    let other = SitePki::init(other.path(), "east", "quorate.test").unwrap().agent_pair();
    fs::copy(&other.cert, &pair.cert).unwrap();
    fs::copy(&other.key, &pair.key).unwrap();
    assert!(ensure());
}

#[test]
fn names_that_could_not_be_read_back_are_not_signed() {
    let state = tempfile::tempdir().unwrap();
    assert!(matches!(SitePki::init(state.path(), "../x", "quorate.test"), Err(Error::Name(_))));
    assert!(matches!(SitePki::init(state.path(), "east", "Quorate"), Err(Error::Name(_))));
    assert!(matches!(SitePki::open(state.path(), "east", "quorate.test"), Err(Error::NotInitialised { .. })));
    let pki = SitePki::init(state.path(), "east", "quorate.test").unwrap();
    let leaf = Leaf::PeerClient { uid: UID.into(), slot: "a/../b".into() };
    assert!(matches!(pki.ensure(&leaf, &Pair::at(state.path(), "x")), Err(Error::Name(_))));
}

#[test]
fn trust_in_another_root_is_not_replaced_silently() {
    let [east, west, west2] = [0; 3].map(|_| tempfile::tempdir().unwrap());
    let east = SitePki::init(east.path(), "east", "quorate.test").unwrap();
    let west = SitePki::init(west.path(), "west", "quorate.test").unwrap().roots().unwrap();
    let west2 = SitePki::init(west2.path(), "west", "quorate.test").unwrap().roots().unwrap();
    let trust = east.trust();
    assert!(trust.add("west", &west).unwrap());
    assert!(!trust.add("west", &west).unwrap());
    assert!(matches!(trust.add("west", &west2), Err(Error::OtherRoot { which: "agent", .. })));
    let half = SiteRoots { agent: west.agent.clone(), peer: west2.peer };
    assert!(matches!(trust.add("west", &half), Err(Error::OtherRoot { which: "peer", .. })));
    assert_eq!(trust.read("west").unwrap(), Some(west.clone()));

    let leaf = fs::read_to_string(east.agent_pair().cert).unwrap();
    let not_ca = SiteRoots { agent: leaf, peer: west.peer.clone() };
    assert!(matches!(trust.add("north", &not_ca), Err(Error::Read(_))), "a leaf is not a root");
    assert!(trust.read("north").unwrap().is_none());

    fs::create_dir(trust.path().join("..data")).unwrap();
    assert_eq!(trust.sites().unwrap(), ["east", "west"]);
    let bundle = east.client_bundle(&["east", "west"]).unwrap();
    assert_eq!(pem::certificates(trust.path(), bundle.as_bytes()).unwrap().len(), 3);
    assert_eq!(
        pem::certificates(trust.path(), trust.peer_bundle(&["east", "west"]).unwrap().as_bytes())
            .unwrap()
            .len(),
        2
    );
    assert!(trust.peer_bundle(&["north"]).is_err());
}

/// A foreign CA certifies for keys that never leave their site, and only what was asked for.
#[test]
fn a_foreign_ca_vouches_for_keys_that_stay_at_home() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let old = SitePki::init(&at("old"), "old", "old.example.com").unwrap();
    let ca = Pair::at(old.folder(), "peer-ca");
    let roots = fs::read_to_string(&ca.cert).unwrap();
    let west = SitePki::init(&at("west"), "west", "quorate.test").unwrap();
    let east = SitePki::init(&at("east"), "east", "quorate.test").unwrap();
    let of_west = ForeignPeers::new(west.clone(), at("west/foreign"));
    let of_east = ForeignPeers::new(east, at("east/foreign"));
    assert!(!of_west.active());
    for foreign in [&of_west, &of_east] {
        assert!(foreign.trust(Some(&roots)).unwrap() && !foreign.trust(Some(&roots)).unwrap());
    }
    assert!(of_west.peer_bundle(&["west"]).unwrap().ends_with(&roots));

    let host = "main-west-0.west.quorate.test";
    let server = Leaf::PeerServer { uid: UID.into(), hosts: vec![host.into()] };
    let client = Leaf::PeerClient { uid: UID.into(), slot: "main-west-0".into() };
    for (name, leaf) in
        [("server", &server), ("client", &client), ("probe", &Leaf::Probe { uid: UID.into() })]
    {
        let pair = Pair::at(&at("west/leaves"), name);
        let request = of_west.request(leaf, &pair).unwrap().unwrap();
        assert_eq!(of_west.request(leaf, &pair).unwrap().as_ref(), Some(&request), "the same key until then");
        assert!(!pair.key.exists() && !pair.cert.exists());
        let chain = of_east.certify(&ca, "west", leaf, &request).unwrap();
        // That of another site, or of a CA that is not trusted, is refused and changes nothing.
        let other = west.root_path(Root::Peer);
        let stranger = of_west.install(leaf, &pair, &fs::read_to_string(other).unwrap()).unwrap_err();
        assert!(matches!(stranger, Error::Unfit { .. }), "{stranger}");
        assert!(!pair.cert.exists());
        of_west.install(leaf, &pair, &chain).unwrap();
        assert_eq!(of_west.request(leaf, &pair).unwrap(), None);
        assert!(describe(&pair.cert).contains("issuer CN=quorate peer root of old"));
    }
    let other = Leaf::PeerServer { uid: UID.into(), hosts: vec!["main-west-1.west.quorate.test".into()] };
    assert!(of_west.request(&other, &Pair::at(&at("west/leaves"), "server")).unwrap().is_some());

    // Once it is over, the own root takes its place again.
    assert!(of_west.trust(None).unwrap() && !of_west.active());
    let pair = Pair::at(&at("west/leaves"), "server");
    assert!(west.ensure(&server, &pair).unwrap());
    assert!(describe(&pair.cert).contains("issuer CN=quorate peer root of west"));
}
