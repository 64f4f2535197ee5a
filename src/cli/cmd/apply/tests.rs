use quorate_api::manifest;
use quorate_core::id::Generation;
use quorate_core::report::{FederationReport, PeerReport, SiteReport};

use super::preview::Preview;
use super::wait::{Stand, stand};
use super::*;
use crate::cmd::status::tests::{fixture, moving, unborn};

fn yaml(spec: &str) -> String {
    format!(
        "apiVersion: quorate.dev/v1alpha1\nkind: FederatedEtcd\nmetadata: {{name: main, namespace: etcd}}\nspec:\n{spec}"
    )
}

fn site() -> SiteReport {
    let peer = |name: &str| PeerReport { name: name.to_owned(), age_ms: Some(200), ..PeerReport::default() };
    SiteReport {
        site: "east".to_owned(),
        manifests: "/manifests".into(),
        peers: vec![peer("north"), peer("west")],
        ..SiteReport::default()
    }
}

fn preview(report: Option<&FederationReport>, spec: &str) -> Preview {
    let text = yaml(spec);
    let manifest = manifest::parse(&text).unwrap().remove(0);
    let place = Place::New("/manifests/etcd.main.yaml".into());
    Preview::new(&site(), report, manifest, text, place)
}

const THREE: &str = "  clusters: [{name: east}, {name: north}, {name: west}]\n";

#[test]
fn a_new_federation_shows_its_way_to_three_voters() {
    let preview = preview(None, THREE);
    insta::assert_snapshot!("new", preview.text(true));
    assert!(preview.refusal().is_none() && !preview.unchanged);
    let json = preview.json(&[], false);
    assert_eq!(json["neededAt"], serde_json::json!(["north", "west"]));
    assert_eq!(json["plan"].as_array().unwrap().len(), 4);
}

#[test]
fn a_foreign_etcd_is_taken_over_and_no_seed_is_born() {
    let adopt = "  adopt:\n    cluster: east\n    clusterId: \"c1\"\n    endpoints: [\"https://old:2379\"]\n    peerCA: |\n      \
                 -----BEGIN CERTIFICATE-----\n";
    let preview = preview(None, &format!("{THREE}{adopt}"));
    insta::assert_snapshot!("adopt", preview.text(true));
    let json = preview.json(&[], false);
    assert_eq!((&json["seed"], &json["adopts"]), (&serde_json::Value::Null, &"east".into()));
}

#[test]
fn a_site_that_the_agent_does_not_know_is_named() {
    let text = preview(None, "  clusters: [{name: east}, {name: north}, {name: south}]\n").text(true);
    assert!(
        text.contains("note: NoPeer: site south is in the spec, but it is no peer of this agent"),
        "{text}"
    );
}

#[test]
fn two_sites_are_warned_of() {
    insta::assert_snapshot!("two", preview(None, "  clusters: [{name: east}, {name: west}]\n").text(false));
}

#[test]
fn the_wait_tells_who_lacks_the_file_and_what_goes_on() {
    let status = fixture(|_| {});
    let digest = status.digest.unwrap();
    let how = |status: &quorate_core::condition::Status, digest| match stand(Some(status), digest) {
        Stand::Done(text) => format!("done: {text}"),
        Stand::Underway(text) => text,
    };
    assert_eq!(
        how(&fixture(|s| s.decision = "Done".into()), digest),
        "done: generation 2 is in force, 3 of 3 voters alive"
    );
    let other: quorate_core::id::Digest = quorate_core::id::Digest([9; 32]);
    let mut held = fixture(|_| {});
    held.sites[0].spec_digest = Some(other.to_string());
    assert_eq!(how(&held, other), "generation 2 is still in force; without this file: north, west");
    let mut moves = moving();
    moves.generation = Generation(3);
    assert!(how(&moves, digest).starts_with("3 of 3 voters alive; AddLearner"), "{}", how(&moves, digest));
    assert!(how(&unborn(), digest).contains("WaitingForClusters"));
    assert_eq!(stand(None, digest), Stand::Underway("the agent has not read the file yet".to_owned()));
}

#[test]
fn without_a_terminal_nobody_is_asked() {
    let refused = confirm(false, Plain::Json).unwrap_err();
    assert_eq!(refused.exit, Exit::Usage);
    assert!(refused.to_string().contains("--yes"), "{refused}");
    confirm(true, Plain::Json).unwrap();
}
