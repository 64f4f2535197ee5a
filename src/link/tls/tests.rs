use std::fs;
use std::time::Duration;

use super::store::Error;
use super::*;
use crate::clock::Clock;
use crate::drain::Drain;
use crate::identity::Identity;
use crate::pki::{Leaf, Pair, Root};
use crate::testing::{Site, UID};

#[test]
fn a_changed_leaf_is_taken_and_a_broken_one_is_not() {
    let east = Site::new("east");
    let store = east.store();
    let pair = east.pki.agent_pair();
    assert_eq!(store.identity(), Identity::agent("east"));
    assert!(!store.reload());
    assert_eq!(store.generation(), 1);
    let first = store.expiries();

    east.pki.issue_at(&Leaf::Agent, &pair, Clock::wall() - Duration::from_hours(24)).unwrap();
    assert!(store.reload());
    assert_eq!(store.generation(), 2);
    assert_ne!(store.expiries(), first);

    let good = fs::read(&pair.cert).unwrap();
    let second = store.expiries();
    for broken in ["", "junk", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        fs::write(&pair.cert, broken).unwrap();
        assert!(!store.reload());
        assert_eq!(store.problems().len(), 1);
        assert!(store.problems()[0].contains("agent.crt"), "{:?}", store.problems());
        assert_eq!(store.expiries(), second, "the old one stays");
    }
    fs::remove_file(&pair.cert).unwrap();
    assert!(!store.reload());
    // A certificate whose key is not there yet: what a reader sees in the middle of a renewal.
    fs::write(&pair.cert, fs::read(east.pki.root_path(Root::Agent)).unwrap()).unwrap();
    assert!(!store.reload());
    assert_eq!(store.problems().len(), 1);
    fs::write(&pair.cert, good).unwrap();
    assert!(!store.reload(), "nothing changed in the end");
    assert!(store.problems().is_empty());
    assert_eq!(store.generation(), 2);
}

#[test]
fn trust_follows_the_folder() {
    let [east, west] = ["east", "west"].map(Site::new);
    let store = east.store();
    assert!(store.trusts("east") && !store.trusts("west"));
    east.trust(&west);
    assert!(store.reload());
    assert!(store.trusts("west"));

    let path = east.pki.trust().agent_path("west");
    fs::write(&path, "junk").unwrap();
    assert!(!store.reload());
    assert!(store.trusts("west"), "a broken root keeps the old one");
    assert!(store.problems()[0].contains("west"), "{:?}", store.problems());
    fs::write(&path, fs::read(west.pki.agent_pair().cert).unwrap()).unwrap();
    store.reload();
    assert!(store.problems()[0].contains("not a CA"), "{:?}", store.problems());

    fs::remove_dir_all(path.parent().unwrap()).unwrap();
    assert!(store.reload());
    assert!(!store.trusts("west"), "a folder that is gone ends the trust");
    assert!(store.problems().is_empty());

    // A site whose very first root is broken is reported, the others work.
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "junk").unwrap();
    let store = east.store();
    assert!(store.trusts("east") && !store.trusts("west"));
    assert_eq!(store.problems().len(), 1);
}

#[test]
fn a_leaf_without_identity_or_with_another_key_is_no_start() {
    let east = Site::new("east");
    let pair = Pair::at(east.folder(), "other");
    let mut source = east.source();
    source.leaf = pair.clone();
    assert!(matches!(TlsStore::load(source.clone()), Err(Error::File(_))));
    east.pki.ensure(&Leaf::AgentEtcdClient, &pair).unwrap();
    assert!(matches!(TlsStore::load(source.clone()), Err(Error::Identity { .. })));
    east.pki.ensure(&Leaf::MemberApi { uid: UID.into(), slot: "main-east-0".into() }, &pair).unwrap();
    TlsStore::load(source.clone()).unwrap();
    fs::copy(east.pki.agent_pair().key, &pair.key).unwrap();
    assert!(matches!(TlsStore::load(source.clone()), Err(Error::File(_))));
    east.pki.ensure(&Leaf::Agent, &pair).unwrap();
    source.trust_domain = "other.test".into();
    assert!(matches!(TlsStore::load(source), Err(Error::Identity { .. })));
}

#[test]
fn tls_for_etcd_follows_its_files() {
    let east = Site::new("east");
    let pair = Pair::at(east.folder(), "etcd-client");
    let roots = east.pki.root_path(Root::Client);
    assert!(EtcdTls::load(roots.clone(), pair.clone()).is_err());
    east.pki.ensure(&Leaf::AgentEtcdClient, &pair).unwrap();
    let tls = EtcdTls::load(roots, pair.clone()).unwrap();
    let first = tls.configs().grpc;
    assert!(std::sync::Arc::ptr_eq(&first, &tls.configs().grpc));
    let good = fs::read(&pair.cert).unwrap();
    fs::write(&pair.cert, "junk").unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &tls.configs().grpc));
    fs::write(&pair.cert, good).unwrap();
    east.pki.issue_at(&Leaf::AgentEtcdClient, &pair, Clock::wall()).unwrap();
    assert!(!std::sync::Arc::ptr_eq(&first, &tls.configs().grpc));
}

#[tokio::test(start_paused = true)]
async fn files_are_followed_until_the_end() {
    let [east, west] = ["east", "west"].map(Site::new);
    let (store, drain) = (east.store(), Drain::new());
    drain.spawn(store.clone().follow(Duration::from_secs(3), drain.clone()));
    east.trust(&west);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(store.trusts("west"));
    assert_eq!(drain.finish(Duration::from_secs(1)).await, 0);
}
