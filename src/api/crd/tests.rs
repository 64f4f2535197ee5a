use std::collections::BTreeSet;

use quorate_core::condition::Status;
use quorate_core::federation::spec::Spec;
use serde_json::{Value, json};

use super::*;
use crate::problem::Problem;
use crate::schema::{properties, walk};

/// A spec in which every field is given.
fn full() -> Value {
    json!({
        "members": 3,
        "clusters": [
            {"name": "east", "members": 2, "zones": ["a"], "preferred": true, "lostMembers": ["ab"]},
            {"name": "west", "members": 1},
        ],
        "survive": "Member",
        "version": "3.6",
        "etcd": {"quotaBytes": 1, "heartbeatMs": 100, "electionMs": 1000},
        "allowSingleVoter": false,
        "bootstrap": {"skipClusters": ["west"]},
        "adopt": {"cluster": "east", "clusterId": "c1", "endpoints": ["https://old:2379"], "peerCA": "pem"},
        "override": {"rule": "I3", "operation": "x", "by": "y"},
    })
}

fn names(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.insert(format!("{path}.{name}"));
                names(value, &format!("{path}.{name}"), found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, path, found)),
        _ => {}
    }
}

fn schema_names(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(items) = schema.get("items") {
        schema_names(items, path, found);
    }
    for (name, schema) in properties(schema).into_iter().flatten() {
        found.insert(format!("{path}.{name}"));
        schema_names(schema, &format!("{path}.{name}"), found);
    }
}

#[test]
fn the_crd_has_the_fields_of_core_and_no_others() {
    // core refuses unknown fields, and gives every one back.
    let spec: Spec = serde_json::from_value(full()).unwrap();
    assert_eq!(serde_json::to_value(&spec).unwrap(), full());
    let (mut ours, mut theirs) = (BTreeSet::new(), BTreeSet::new());
    schema_names(&schema("spec"), "spec", &mut ours);
    names(&full(), "spec", &mut theirs);
    assert_eq!(ours, theirs);
}

#[test]
fn a_spec_comes_through_unchanged() {
    let cr: FederatedEtcdSpec = serde_json::from_value(full()).unwrap();
    assert_eq!(serde_json::to_value(&cr).unwrap(), full());
    assert_eq!(spec_from_cr(&cr).unwrap(), serde_json::from_value(full()).unwrap());
}

#[test]
fn the_status_of_core_fits_the_schema() {
    let status: Status = serde_json::from_str(include_str!("../testdata/status.json")).unwrap();
    let now = "2026-11-30T12:00:00Z";
    let mut ours = FederatedEtcdStatus::from_core(&status, Some(4), None, now);
    let json = serde_json::to_value(&ours).unwrap();
    let node = &crate::yaml::documents(&json.to_string()).unwrap()[0];
    let mut problems: Vec<Problem> = Vec::new();
    assert_eq!(walk(node, &schema("status"), "status", &mut problems).as_ref(), Some(&json), "{problems:?}");
    let mut theirs = BTreeSet::new();
    names(&serde_json::to_value(&status).unwrap(), "", &mut theirs);
    let mut found = BTreeSet::new();
    names(&json, "", &mut found);
    let missing: Vec<_> = theirs.difference(&found).collect();
    assert!(missing.is_empty(), "{missing:?}");

    // Times of conditions move only when the status flips.
    let flipped = &mut ours.conditions[0];
    flipped.status = if flipped.status == "True" { "False".to_owned() } else { "True".to_owned() };
    let later = FederatedEtcdStatus::from_core(&status, Some(4), Some(&ours), "2027-01-01T00:00:00Z");
    let times: Vec<_> = later.conditions.iter().map(|c| c.last_transition_time.as_deref().unwrap()).collect();
    assert_eq!(times[0], "2027-01-01T00:00:00Z");
    assert!(times[1..].iter().all(|time| *time == now));
}

/// Every schema node has a type; anyOf and oneOf would not be structural.
fn check(schema: &Value, path: &str) {
    assert!(schema.get("type").is_some(), "{path} has no type: {schema}");
    for key in ["anyOf", "oneOf", "allOf", "not"] {
        assert!(schema.get(key).is_none(), "{path} has {key}");
    }
    schema.get("items").into_iter().for_each(|items| check(items, path));
    for (name, field) in properties(schema).into_iter().flatten() {
        check(field, &format!("{path}.{name}"));
    }
}

#[test]
fn the_definition_is_structural() {
    let text = definition_yaml();
    assert!(!text.contains("$ref"), "{text}");
    assert!(!text.contains("default:"), "the digest is taken before defaulting");
    let json = serde_json::to_value(definition()).unwrap();
    assert_eq!(json["metadata"]["name"], "federatedetcds.quorate.dev");
    assert_eq!(json["spec"]["names"]["shortNames"], json!(["fetcd"]));
    assert_eq!(json["spec"]["names"]["categories"], json!(["all", "quorate"]));
    let version = &json["spec"]["versions"][0];
    assert_eq!(version["subresources"]["scale"]["specReplicasPath"], ".spec.members");
    check(&version["schema"]["openAPIV3Schema"], "");
}

#[test]
fn cel_and_core_use_the_same_words() {
    let rules = serde_json::to_string(&definition()).unwrap();
    let core = include_str!("../../core/federation/layout.rs");
    for words in [
        "must name at least one cluster",
        "must not be empty; leave it out for one zone",
        " must be at least 5 x the heartbeat of ",
        " must be a minor or an exact version of ",
        " cannot be overridden, only I3, I13 and I17",
        "operation and by must be given",
        "must have at least one voter",
        " voters survive no more than ",
        " and stop sooner; use an odd number",
        "one voter survives nothing; set spec.allowSingleVoter: true if that is wanted",
        " voters are asked for",
        " cluster(s) cannot survive the loss of either: a majority of ",
        " voters sits in one of them; ",
        "add a third cluster with one voter",
        " is not one of spec.clusters",
        " speaks for the foreign members; it cannot be skipped",
        "must name a client URL of each foreign member",
        " must have the form https://host:port",
        "holds a private key; it must hold certificates only",
        "must hold the root of the foreign peers as PEM",
    ] {
        assert!(rules.contains(words), "CEL does not say {words:?}");
        assert!(core.contains(words), "core does not say {words:?}");
    }
}
