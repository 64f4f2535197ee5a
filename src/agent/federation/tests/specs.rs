//! Names, manifests and empty slots of the tests.

use std::sync::Arc;

use quorate_api::manifest::{self, Manifest};
use quorate_core::federation::member::{DirFacts, MemberReport, Process};
use quorate_core::id::{FederationKey, MemberId, ObjectName, SiteName, Slot};

pub(super) fn site(name: &str) -> SiteName {
    SiteName::new(name).unwrap()
}

pub(super) fn key() -> FederationKey {
    FederationKey { namespace: ObjectName::new("etcd").unwrap(), name: ObjectName::new("main").unwrap() }
}

pub(super) fn manifest(sites: &[&str]) -> Arc<Manifest> {
    let clusters: Vec<String> = sites.iter().map(|site| format!("{{name: {site}}}")).collect();
    of_clusters(&clusters)
}

/// The same, with members of the first site's cluster declared lost.
pub(super) fn manifest_without(sites: &[&str], lost: MemberId) -> Arc<Manifest> {
    let lost = |i: usize| if i == 0 { format!(", lostMembers: [\"{lost}\"]") } else { String::new() };
    let cluster = |(i, site): (usize, &&str)| format!("{{name: {site}{}}}", lost(i));
    let clusters: Vec<String> = sites.iter().enumerate().map(cluster).collect();
    of_clusters(&clusters)
}

/// One voter at one site, with more lines of the spec.
pub(super) fn of_one(site: &str, more: &str) -> Arc<Manifest> {
    let text = format!(
        "apiVersion: quorate.dev/v1alpha1\nkind: FederatedEtcd\nmetadata: {{name: main, namespace: etcd}}\n\
         spec:\n  clusters: [{{name: {site}}}]\n  members: 1\n  allowSingleVoter: true\n{more}\n"
    );
    Arc::new(manifest::parse(&text).unwrap().remove(0))
}

fn of_clusters(clusters: &[String]) -> Arc<Manifest> {
    let text = format!(
        "apiVersion: quorate.dev/v1alpha1\nkind: FederatedEtcd\nmetadata: {{name: main, namespace: etcd}}\n\
         spec:\n  clusters: [{}]\n",
        clusters.join(", ")
    );
    Arc::new(manifest::parse(&text).unwrap().remove(0))
}

/// A supervisor that has nothing yet.
pub(super) fn waiting(slot: &Slot) -> MemberReport {
    MemberReport {
        dir: Some(DirFacts::Empty),
        process: Process::AwaitingGrant,
        ..MemberReport::unknown(slot.clone())
    }
}
