//! The certificates of a foreign CA at this site, as files (ADR 4).
//!
//! `<stateDir>/adopt/<namespace>.<name>/` is the operator's: at the site that declares the endpoints it holds `client.crt`,
//! `client.key` and `ca.crt` for the foreign client ports, and, if wanted, `peer-ca.crt` with `peer-ca.key`. Without that
//! key the requests of all sites are put into `requests/`, and what a person signs is taken from `signed/`.

use std::path::{Path, PathBuf};

use quorate_core::adopt::{CertificateKind, CertificateRequest};
use quorate_core::id::{FederationKey, PeerUrl, SiteName, Slot, Uid};
use quorate_link::durable;
use quorate_link::pki::{self, ForeignPeers, Leaf, Pair};

use super::config::Certificates;
use crate::ports::{Adoption, Fault, Wanted};

/// The operator's folder for one federation.
pub fn credentials(state: &Path, federation: &FederationKey) -> PathBuf {
    state.join("adopt").join(format!("{}.{}", federation.namespace, federation.name))
}

/// See the module; cheap to clone.
#[derive(Debug, Clone)]
pub struct ProcessAdoption {
    peers: ForeignPeers,
    federation: FederationKey,
    members: PathBuf,
    credentials: PathBuf,
}

fn fault(error: &pki::Error) -> Fault {
    Fault::from_error(error)
}

impl ProcessAdoption {
    /// `folder` is that of the federation, `credentials` the operator's.
    pub fn new(peers: ForeignPeers, federation: FederationKey, folder: &Path, credentials: PathBuf) -> Self {
        Self { peers, federation, members: folder.join("members"), credentials }
    }

    fn leaf(&self, uid: Uid, kind: &CertificateKind) -> Leaf {
        let uid = uid.to_string();
        match kind {
            CertificateKind::PeerServer { host, .. } => {
                Leaf::PeerServer { uid, hosts: vec![host.to_string()] }
            }
            CertificateKind::PeerClient { slot } => {
                Leaf::PeerClient { uid, slot: slot.name(&self.federation.name).to_string() }
            }
            CertificateKind::Probe => Leaf::Probe { uid },
        }
    }

    fn pair(&self, kind: &CertificateKind) -> Pair {
        let files = |slot: &Slot| {
            Certificates::in_folder(&self.members.join(slot.name(&self.federation.name)).join("pki"))
        };
        match kind {
            CertificateKind::PeerServer { slot, .. } => {
                let files = files(slot);
                Pair { cert: files.peer_cert, key: files.peer_key }
            }
            CertificateKind::PeerClient { slot } => {
                let files = files(slot);
                Pair { cert: files.peer_client_cert, key: files.peer_client_key }
            }
            CertificateKind::Probe => self.peers.probe_pair(),
        }
    }

    fn wanted(&self, uid: Uid, slots: &[(Slot, PeerUrl)]) -> Result<Vec<Wanted>, Fault> {
        let of_slot = |(slot, url): &(Slot, PeerUrl)| {
            let server = CertificateKind::PeerServer { slot: slot.clone(), host: url.host().into() };
            [server, CertificateKind::PeerClient { slot: slot.clone() }]
        };
        let mut wanted = Vec::new();
        for kind in slots.iter().flat_map(of_slot).chain([CertificateKind::Probe]) {
            let (leaf, pair) = (self.leaf(uid, &kind), self.pair(&kind));
            if let Some(request) = self.peers.request(&leaf, &pair).map_err(|error| fault(&error))? {
                let missing = !self.peers.usable(&leaf, &pair);
                wanted.push(Wanted { request: CertificateRequest { kind, request }, missing });
            }
        }
        Ok(wanted)
    }

    fn certified(
        &self,
        site: &SiteName,
        uid: Uid,
        asked: &CertificateRequest,
    ) -> Result<Option<String>, Fault> {
        let CertificateRequest { kind, request } = asked;
        let ca = Pair::at(&self.credentials, "peer-ca");
        if ca.key.exists() {
            return self
                .peers
                .certify(&ca, site.as_str(), &self.leaf(uid, kind), request)
                .map(Some)
                .map_err(|error| fault(&error));
        }
        let name = format!("{site}-{}", kind.file_name(&self.federation.name));
        let path = self.credentials.join("requests").join(format!("{name}.csr"));
        durable::write_file(&path, request.as_bytes(), durable::PUBLIC)
            .map_err(|error| Fault::from_error(&error))?;
        match std::fs::read_to_string(self.credentials.join("signed").join(format!("{name}.crt"))) {
            Ok(chain) => Ok(Some(chain)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Fault::from_error(&error)),
        }
    }
}

/// Files are read, written and signed away from the threads that others wait for.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Fault::from_error(&error))?
}

impl Adoption for ProcessAdoption {
    fn trust(&self, roots: Option<&str>) -> Result<bool, Fault> {
        self.peers.trust(roots).map_err(|error| fault(&error))
    }

    async fn requests(&self, uid: Uid, slots: &[(Slot, PeerUrl)]) -> Result<Vec<Wanted>, Fault> {
        let (this, slots) = (self.clone(), slots.to_vec());
        blocking(move || this.wanted(uid, &slots)).await
    }

    async fn certify(
        &self,
        site: &SiteName,
        uid: Uid,
        request: &CertificateRequest,
    ) -> Result<Option<String>, Fault> {
        let (this, site, request) = (self.clone(), site.clone(), request.clone());
        blocking(move || this.certified(&site, uid, &request)).await
    }

    async fn install(&self, uid: Uid, kind: &CertificateKind, chain: &str) -> Result<(), Fault> {
        let (this, kind, chain) = (self.clone(), kind.clone(), chain.to_owned());
        blocking(move || {
            this.peers
                .install(&this.leaf(uid, &kind), &this.pair(&kind), &chain)
                .map_err(|error| fault(&error))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::federation::layout::default_zone;
    use quorate_core::id::ObjectName;
    use quorate_link::pki::SitePki;

    use super::*;

    /// Without the CA's key a person signs: the request lies in the folder, and what is put beside it is taken.
    #[tokio::test]
    async fn requests_wait_for_a_person_where_the_key_of_the_ca_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let old = SitePki::init(&at("old"), "old", "old.test").unwrap();
        let ca = Pair::at(old.folder(), "peer-ca");
        let (west, name) = (SiteName::new("west").unwrap(), ObjectName::new("main").unwrap());
        let key = FederationKey { namespace: ObjectName::new("etcd").unwrap(), name };
        let pki = SitePki::init(&at("west"), "west", "quorate.test").unwrap();
        let credentials = credentials(&at("west"), &key);
        let peers = ForeignPeers::new(pki, at("west/foreign"));
        let adoption = ProcessAdoption::new(peers.clone(), key, &at("west/fed"), credentials.clone());
        assert!(adoption.trust(Some(&std::fs::read_to_string(&ca.cert).unwrap())).unwrap());
        let slot = Slot { site: west.clone(), ordinal: 0, zone: default_zone() };
        let slots = [(slot, PeerUrl("https://main-west-0.west.test:2380".into()))];
        let wanted = adoption.requests(Uid(7), &slots).await.unwrap();
        assert_eq!(wanted.iter().filter(|w| w.missing).count(), 3);
        for Wanted { request, .. } in &wanted {
            assert_eq!(adoption.certify(&west, Uid(7), request).await.unwrap(), None);
        }
        let request = &wanted[0].request;
        let signed =
            peers.certify(&ca, "west", &adoption.leaf(Uid(7), &request.kind), &request.request).unwrap();
        let file = credentials.join("signed/west-main-west-0-server.crt");
        assert!(credentials.join("requests/west-main-west-0-server.csr").exists());
        durable::write_file(&file, signed.as_bytes(), durable::PUBLIC).unwrap();
        let chain = adoption.certify(&west, Uid(7), request).await.unwrap().unwrap();
        adoption.install(Uid(7), &request.kind, &chain).await.unwrap();
        assert_eq!(adoption.requests(Uid(7), &slots).await.unwrap().len(), 2);
        // With the key nobody need be asked.
        for name in ["peer-ca.crt", "peer-ca.key"] {
            std::fs::copy(old.folder().join(name), credentials.join(name)).unwrap();
        }
        for Wanted { request, .. } in adoption.requests(Uid(7), &slots).await.unwrap() {
            let chain = adoption.certify(&west, Uid(7), &request).await.unwrap().unwrap();
            adoption.install(Uid(7), &request.kind, &chain).await.unwrap();
        }
        assert!(adoption.requests(Uid(7), &slots).await.unwrap().is_empty());
    }
}
