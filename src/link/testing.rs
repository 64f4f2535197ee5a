//! Sites with certificates, for the tests of this crate.

use std::path::Path;

use tempfile::TempDir;

use crate::pki::{Leaf, Pair, SitePki};
use crate::tls::{Source, TlsStore, Trust};

pub(crate) const DOMAIN: &str = "quorate.test";
pub(crate) const UID: &str = "6f0c8d1e-0000-4000-8000-000000000001";

pub(crate) struct Site {
    state: TempDir,
    pub(crate) pki: SitePki,
}

impl Site {
    pub(crate) fn new(name: &str) -> Self {
        let state = tempfile::tempdir().unwrap();
        let pki = SitePki::init(state.path(), name, DOMAIN).unwrap();
        Self { state, pki }
    }

    /// Sites that trust each other.
    pub(crate) fn mesh<const N: usize>(names: [&str; N]) -> [Self; N] {
        let sites = names.map(Self::new);
        for one in &sites {
            for other in &sites {
                one.trust(other);
            }
        }
        sites
    }

    pub(crate) fn trust(&self, other: &Self) {
        self.pki.trust().write(other.pki.site(), &other.pki.roots().unwrap()).unwrap();
    }

    pub(crate) fn folder(&self) -> &Path {
        self.state.path()
    }

    pub(crate) fn source(&self) -> Source {
        Source {
            trust_domain: DOMAIN.into(),
            leaf: self.pki.agent_pair(),
            trust: Trust::Folder(self.pki.trust()),
        }
    }

    pub(crate) fn store(&self) -> TlsStore {
        TlsStore::load(self.source()).unwrap()
    }

    /// The store of a member: its own leaf, and the agent root of its site alone.
    pub(crate) fn member_store(&self, slot: &str) -> TlsStore {
        let pair = Pair::at(&self.folder().join(slot), "api");
        self.pki.ensure(&Leaf::MemberApi { uid: UID.into(), slot: slot.into() }, &pair).unwrap();
        let trust =
            Trust::Site { site: self.pki.site().into(), path: self.pki.root_path(crate::pki::Root::Agent) };
        TlsStore::load(Source { trust_domain: DOMAIN.into(), leaf: pair, trust }).unwrap()
    }
}
