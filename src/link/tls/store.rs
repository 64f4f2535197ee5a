//! Our leaf and the roots of all sites, as they are on disk now.
//!
//! Files are looked at every few seconds. A new file that cannot be used changes nothing: the old certificate or root
//! stays in use and the problem is reported until the file is good again. A folder that is gone ends the trust.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rustls::client::ResolvesClientCert;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, SignatureScheme};

use super::{crypto, pem};
use crate::causes::chain;
use crate::drain::Drain;
use crate::identity::{self, Identity, Validity};
use crate::pki::{Pair, TrustFolder};

/// Why the certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is missing or holds something else.
    #[error(transparent)]
    File(#[from] pem::Error),
    /// The certificate says nothing that we understand.
    #[error("cannot use the certificate {}", path.display())]
    Identity {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: identity::Error,
    },
    /// Roots that no verifier takes.
    #[error("cannot use the roots in {}", path.display())]
    Roots {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: rustls::client::VerifierBuilderError,
    },
    /// The names of the sites cannot be listed.
    #[error("cannot list the trusted sites")]
    List(#[source] Box<crate::pki::Error>),
    /// rustls does not take the configuration.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
}

/// Where the roots come from.
#[derive(Debug, Clone)]
pub enum Trust {
    /// `trust/<site>/agent.crt` of all sites: the mesh.
    Folder(TrustFolder),
    /// One file with the agent root of one site: the member API.
    Site {
        /// The site.
        site: String,
        /// The file.
        path: PathBuf,
    },
}

/// What a [`TlsStore`] is made from.
#[derive(Debug, Clone)]
pub struct Source {
    /// Identities of other trust domains are refused.
    pub trust_domain: String,
    /// Our own leaf.
    pub leaf: Pair,
    /// Whom we believe.
    pub trust: Trust,
}

/// Certificates and roots that follow their files; cheap to clone.
#[derive(Clone)]
pub struct TlsStore {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    loaded: ArcSwap<Loaded>,
}

struct Loaded {
    leaf: Arc<Leaf>,
    sites: BTreeMap<String, Arc<SiteTrust>>,
    problems: Vec<String>,
    /// Counts the changes.
    generation: u64,
}

struct Leaf {
    text: (Vec<u8>, Vec<u8>),
    key: Arc<CertifiedKey>,
    identity: Identity,
    validity: Validity,
}

/// The root of one site, ready to judge clients and servers.
pub(super) struct SiteTrust {
    text: Vec<u8>,
    pub(super) roots: RootCertStore,
    pub(super) clients: Arc<dyn ClientCertVerifier>,
    not_after: SystemTime,
}

/// When a certificate ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry {
    /// `leaf`, or `root of <site>`.
    pub what: String,
    /// Its last moment.
    pub not_after: SystemTime,
}

impl TlsStore {
    /// Loads everything. Our own leaf must be good; a bad root of one site is only reported.
    pub fn load(source: Source) -> Result<Self, Error> {
        let leaf = Arc::new(load_leaf(&source)?);
        let (sites, problems) = load_sites(&source.trust, &BTreeMap::new())?;
        let loaded = Loaded { leaf, sites, problems, generation: 1 };
        Ok(Self { shared: Arc::new(Shared { source, loaded: ArcSwap::from_pointee(loaded) }) })
    }

    /// Looks at the files now; true if something in use changed.
    pub fn reload(&self) -> bool {
        let old = self.shared.loaded.load_full();
        let source = &self.shared.source;
        let mut problems = Vec::new();
        let leaf = load_leaf_again(source, &old.leaf).unwrap_or_else(|error| {
            problems.push(chain(&error));
            old.leaf.clone()
        });
        let sites = match load_sites(&source.trust, &old.sites) {
            Ok((sites, more)) => {
                problems.extend(more);
                sites
            }
            Err(error) => {
                problems.push(chain(&error));
                old.sites.clone()
            }
        };
        let changed = !Arc::ptr_eq(&leaf, &old.leaf) || !same_sites(&sites, &old.sites);
        for problem in problems.iter().filter(|problem| !old.problems.contains(problem)) {
            tracing::warn!(problem, "a certificate file cannot be used; the one before stays in use");
        }
        if changed {
            tracing::info!(sites = ?sites.keys().collect::<Vec<_>>(), "certificates reloaded");
        }
        if changed || problems != old.problems {
            let generation = old.generation + u64::from(changed);
            self.shared.loaded.store(Arc::new(Loaded { leaf, sites, problems, generation }));
        }
        changed
    }

    /// Looks at the files every `period` until the end.
    pub async fn follow(self, period: Duration, drain: Drain) {
        loop {
            tokio::select! {
                () = drain.signalled() => return,
                () = tokio::time::sleep(period) => {}
            }
            self.reload();
        }
    }

    /// What is wrong with the files, empty if nothing is.
    pub fn problems(&self) -> Vec<String> {
        self.shared.loaded.load().problems.clone()
    }

    /// Rises with each change.
    pub fn generation(&self) -> u64 {
        self.shared.loaded.load().generation
    }

    /// Who we are.
    pub fn identity(&self) -> Identity {
        self.shared.loaded.load().leaf.identity.clone()
    }

    /// Our trust domain.
    pub fn trust_domain(&self) -> &str {
        &self.shared.source.trust_domain
    }

    /// Whether a root of the site is loaded.
    pub fn trusts(&self, site: &str) -> bool {
        self.shared.loaded.load().sites.contains_key(site)
    }

    /// When our leaf and the roots end, for the metric and the alarm.
    pub fn expiries(&self) -> Vec<Expiry> {
        let loaded = self.shared.loaded.load();
        let leaf = Expiry { what: "leaf".into(), not_after: loaded.leaf.validity.not_after };
        let roots = loaded
            .sites
            .iter()
            .map(|(site, trust)| Expiry { what: format!("root of {site}"), not_after: trust.not_after });
        std::iter::once(leaf).chain(roots).collect()
    }

    pub(super) fn site(&self, site: &str) -> Option<Arc<SiteTrust>> {
        self.shared.loaded.load().sites.get(site).cloned()
    }

    fn key(&self) -> Arc<CertifiedKey> {
        self.shared.loaded.load().leaf.key.clone()
    }
}

impl fmt::Debug for TlsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStore").field("source", &self.shared.source).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for TlsStore {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }
}

impl ResolvesClientCert for TlsStore {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn load_leaf(source: &Source) -> Result<Leaf, Error> {
    let Pair { cert, key } = &source.leaf;
    build_leaf(source, (pem::read(cert)?, pem::read(key)?))
}

fn load_leaf_again(source: &Source, old: &Arc<Leaf>) -> Result<Arc<Leaf>, Error> {
    let Pair { cert, key } = &source.leaf;
    let text = (pem::read(cert)?, pem::read(key)?);
    if text == old.text { Ok(old.clone()) } else { build_leaf(source, text).map(Arc::new) }
}

fn build_leaf(source: &Source, text: (Vec<u8>, Vec<u8>)) -> Result<Leaf, Error> {
    let Pair { cert, key } = &source.leaf;
    let certified = pem::certified_key((cert, &text.0), (key, &text.1))?;
    let bad = |source| Error::Identity { path: cert.clone(), source };
    let der = certified.end_entity_cert()?;
    let identity = Identity::from_certificate(der, &source.trust_domain).map_err(bad)?;
    let validity = Validity::of(der).map_err(bad)?;
    Ok(Leaf { text, key: Arc::new(certified), identity, validity })
}

type Sites = BTreeMap<String, Arc<SiteTrust>>;

fn load_sites(trust: &Trust, old: &Sites) -> Result<(Sites, Vec<String>), Error> {
    let files: Vec<(String, PathBuf)> = match trust {
        Trust::Site { site, path } => vec![(site.clone(), path.clone())],
        Trust::Folder(folder) => {
            let sites = folder.sites().map_err(|error| Error::List(Box::new(error)))?;
            sites.into_iter().map(|site| (site.clone(), folder.agent_path(&site))).collect()
        }
    };
    let mut sites = BTreeMap::new();
    let mut problems = Vec::new();
    for (site, path) in files {
        match load_site(&path, old.get(&site)) {
            Ok(trust) => {
                sites.insert(site, trust);
            }
            Err(error) => {
                problems.push(chain(&error));
                if let Some(trust) = old.get(&site) {
                    sites.insert(site, trust.clone());
                }
            }
        }
    }
    Ok((sites, problems))
}

fn load_site(path: &Path, old: Option<&Arc<SiteTrust>>) -> Result<Arc<SiteTrust>, Error> {
    let text = pem::read(path)?;
    if let Some(old) = old.filter(|old| old.text == text) {
        return Ok(old.clone());
    }
    let roots = pem::roots(path, &text)?;
    let mut not_after = SystemTime::UNIX_EPOCH;
    for certificate in pem::certificates(path, &text)? {
        let validity =
            Validity::of(&certificate).map_err(|source| Error::Identity { path: path.to_owned(), source })?;
        // While two roots overlap, the younger one counts.
        not_after = not_after.max(validity.not_after);
    }
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), crypto::provider())
        .build()
        .map_err(|source| Error::Roots { path: path.to_owned(), source })?;
    Ok(Arc::new(SiteTrust { text, roots, clients, not_after }))
}

fn same_sites(one: &Sites, two: &Sites) -> bool {
    one.len() == two.len()
        && one.iter().zip(two).all(|(one, two)| one.0 == two.0 && Arc::ptr_eq(one.1, two.1))
}
