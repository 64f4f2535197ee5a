//! The certificates of a site: three roots, the leaves below them, and the roots of the other sites.
//!
//! Keys of roots stay in `<stateDir>/pki` (mode 0600) and never cross the border of a site; what is exchanged are root
//! certificates. A root that exists is never written again.

mod authority;
mod foreign;
pub mod invite;
mod leaf;
mod trust;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use authority::Authority;
pub use authority::Root;
pub use foreign::ForeignPeers;
pub use leaf::{Leaf, peer_common_name};
pub use trust::{SiteRoots, TrustFolder};

use crate::clock::Clock;
use crate::identity::{self, Validity};
use crate::{durable, tls::pem};

/// Why certificates could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name that may not stand in a certificate.
    #[error(transparent)]
    Name(#[from] identity::Error),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] durable::Error),
    /// A file could not be read or holds something else.
    #[error(transparent)]
    Read(#[from] pem::Error),
    /// The certificate could not be made.
    #[error("cannot make the certificate {}", path.display())]
    Make {
        /// Which one.
        path: PathBuf,
        /// What rcgen said.
        #[source]
        source: rcgen::Error,
    },
    /// A root without its key.
    #[error("{} has no key beside it; restore the key, or move the root away and trust the new one everywhere", path.display())]
    RootWithoutKey {
        /// The root certificate.
        path: PathBuf,
    },
    /// A root with the key of another.
    #[error("{} and its key do not belong together; restore both from one copy", path.display())]
    RootWithOtherKey {
        /// The root certificate.
        path: PathBuf,
    },
    /// A certificate of a foreign CA that is none for its leaf.
    #[error("{} cannot be used: {why}", path.display())]
    Unfit {
        /// The certificate.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There are no roots.
    #[error("{} does not exist; run `quorate mesh init` first", path.display())]
    NotInitialised {
        /// The first root that is missing.
        path: PathBuf,
    },
    /// Another root is trusted for that site already.
    #[error("site {site} is already trusted with another {which} root; remove {} first if the site was made anew", path.display())]
    OtherRoot {
        /// The other site.
        site: String,
        /// agent or peer.
        which: &'static str,
        /// The file that holds the root that is trusted.
        path: PathBuf,
    },
}

/// A certificate file and its key file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate (chain), PEM.
    pub cert: PathBuf,
    /// The key, PEM, mode 0600.
    pub key: PathBuf,
}

impl Pair {
    /// `<folder>/<name>.crt` and `<folder>/<name>.key`.
    pub fn at(folder: &Path, name: &str) -> Self {
        Self { cert: folder.join(format!("{name}.crt")), key: folder.join(format!("{name}.key")) }
    }
}

/// What a site needs to make certificates.
#[derive(Debug, Clone)]
pub struct SitePki {
    folder: PathBuf,
    site: String,
    trust_domain: String,
}

impl SitePki {
    /// Makes what is missing of `<state_dir>/pki`: three roots, the agent's leaf, the trust in ourselves. Running it
    /// again changes nothing but a leaf that is due.
    pub fn init(state_dir: &Path, site: &str, trust_domain: &str) -> Result<Self, Error> {
        let pki = Self::new(state_dir, site, trust_domain)?;
        for root in Root::ALL {
            authority::create_if_missing(&pki.root_pair(root), root, site, Clock::wall())?;
        }
        pki.ensure(&Leaf::Agent, &pki.agent_pair())?;
        let trust = pki.trust();
        if trust.read(site)?.is_none() {
            trust.write(site, &pki.roots()?)?;
        }
        Ok(pki)
    }

    /// Uses the roots that `init` made.
    pub fn open(state_dir: &Path, site: &str, trust_domain: &str) -> Result<Self, Error> {
        let pki = Self::new(state_dir, site, trust_domain)?;
        for root in Root::ALL {
            let path = pki.root_path(root);
            if !path.exists() {
                return Err(Error::NotInitialised { path });
            }
            Authority::load(&pki.root_pair(root))?;
        }
        Ok(pki)
    }

    fn new(state_dir: &Path, site: &str, trust_domain: &str) -> Result<Self, Error> {
        identity::check_site(site)?;
        identity::check_trust_domain(trust_domain)?;
        Ok(Self { folder: state_dir.join("pki"), site: site.into(), trust_domain: trust_domain.into() })
    }

    /// The same mesh as another site names itself in it: only for names, never for keys.
    fn of_site(&self, site: &str) -> Self {
        Self { site: site.to_owned(), ..self.clone() }
    }

    /// The folder that holds it all.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Our site.
    pub fn site(&self) -> &str {
        &self.site
    }

    /// Our trust domain.
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// The file of a root certificate.
    pub fn root_path(&self, root: Root) -> PathBuf {
        self.root_pair(root).cert
    }

    fn root_pair(&self, root: Root) -> Pair {
        Pair::at(&self.folder, root.file_name())
    }

    /// The leaf of the agent.
    pub fn agent_pair(&self) -> Pair {
        Pair::at(&self.folder, "agent")
    }

    /// The roots of the other sites, and ours.
    pub fn trust(&self) -> TrustFolder {
        TrustFolder::new(self.folder.join("trust"))
    }

    /// Our own roots as other sites need them.
    pub fn roots(&self) -> Result<SiteRoots, Error> {
        let text =
            |root| pem::read(&self.root_path(root)).map(|text| String::from_utf8_lossy(&text).into_owned());
        Ok(SiteRoots { agent: text(Root::Agent)?, peer: text(Root::Peer)? })
    }

    /// Everything that etcd's client port trusts: our users, and the agents of `sites`.
    pub fn client_bundle<S: AsRef<str>>(&self, sites: &[S]) -> Result<String, Error> {
        let mut bundle = String::from_utf8_lossy(&pem::read(&self.root_path(Root::Client))?).into_owned();
        bundle.push_str(&self.trust().agent_bundle(sites)?);
        Ok(bundle)
    }

    /// Makes the leaf anew if it is missing, damaged, due (two thirds of its life are over), or not what is asked for.
    pub fn ensure(&self, leaf: &Leaf, pair: &Pair) -> Result<bool, Error> {
        let now = Clock::wall();
        let authority = Authority::load(&self.root_pair(leaf.root()))?;
        if leaf::is_current(leaf, pair, &authority, self, now) {
            return Ok(false);
        }
        leaf::issue(leaf, pair, &authority, self, now)?;
        Ok(true)
    }

    /// Makes the leaf anew as if it were `now`.
    pub fn issue_at(&self, leaf: &Leaf, pair: &Pair, now: SystemTime) -> Result<(), Error> {
        leaf::issue(leaf, pair, &Authority::load(&self.root_pair(leaf.root()))?, self, now)
    }
}

/// Whether two thirds of the life of the certificate in `path` are over.
pub fn needs_renewal(path: &Path) -> Result<bool, Error> {
    Ok(validity(path)?.renewal() <= Clock::wall())
}

/// The validity of the first certificate in `path`.
pub fn validity(path: &Path) -> Result<Validity, Error> {
    let chain = pem::certificates(path, &pem::read(path)?)?;
    let first = chain.first().ok_or(identity::Error::Certificate)?;
    Ok(Validity::of(first)?)
}

#[cfg(test)]
mod tests;
