//! What is foreign in the tests: a CA, and the spec that takes an etcd over.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use quorate_api::manifest::{self, Manifest};
use quorate_core::adopt::{CertificateKind, CertificateRequest};
use quorate_core::id::{PeerUrl, SiteName, Slot, Uid};

use crate::ports::{Adoption, Fault, Wanted};

/// A spec over these sites that takes over an etcd that `cluster` speaks for.
pub(super) fn adopting(sites: &[&str], cluster: &str) -> Arc<Manifest> {
    let clusters: Vec<String> = sites.iter().map(|site| format!("{{name: {site}}}")).collect();
    let text = format!(
        "apiVersion: quorate.dev/v1alpha1\nkind: FederatedEtcd\nmetadata: {{name: main, namespace: etcd}}\n\
         spec:\n  clusters: [{}]\n  adopt:\n    cluster: {cluster}\n    clusterId: \"1\"\n    \
         endpoints: [\"https://10.0.0.1:2379\"]\n    peerCA: \"-----BEGIN CERTIFICATE-----\"\n",
        clusters.join(", ")
    );
    Arc::new(manifest::parse(&text).unwrap().remove(0))
}

/// A foreign CA that signs at once, and remembers for whom.
#[derive(Debug, Default)]
pub(super) struct FakeAdoption {
    pub(super) trusted: Mutex<Option<String>>,
    pub(super) certified: Mutex<BTreeSet<CertificateKind>>,
}

impl Adoption for FakeAdoption {
    fn trust(&self, roots: Option<&str>) -> Result<bool, Fault> {
        let roots = roots.map(str::to_owned);
        let mut trusted = self.trusted.lock().unwrap();
        let changed = *trusted != roots;
        *trusted = roots;
        Ok(changed)
    }

    async fn requests(&self, _: Uid, slots: &[(Slot, PeerUrl)]) -> Result<Vec<Wanted>, Fault> {
        let known = self.certified.lock().unwrap();
        let kinds = slots.iter().map(|(slot, _)| CertificateKind::PeerClient { slot: slot.clone() });
        let missing = kinds.chain([CertificateKind::Probe]).filter(|kind| !known.contains(kind));
        let wanted =
            |kind| Wanted { request: CertificateRequest { kind, request: String::new() }, missing: true };
        Ok(missing.map(wanted).collect())
    }

    async fn certify(&self, _: &SiteName, _: Uid, _: &CertificateRequest) -> Result<Option<String>, Fault> {
        Ok(Some("certificate".to_owned()))
    }

    async fn install(&self, _: Uid, kind: &CertificateKind, _: &str) -> Result<(), Fault> {
        self.certified.lock().unwrap().insert(kind.clone());
        Ok(())
    }
}
