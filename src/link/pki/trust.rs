//! The roots of all sites of the mesh: `trust/<site>/{agent,peer}.crt`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Error;
use crate::durable::{PUBLIC, write_file};
use crate::identity;
use crate::tls::pem;

/// The root certificates of one site, PEM; several during a rotation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SiteRoots {
    /// Vouch for the agent of the site.
    pub agent: String,
    /// Vouch for the peer ports of the members at the site.
    pub peer: String,
}

/// The folder with the roots of all sites.
#[derive(Debug, Clone)]
pub struct TrustFolder {
    folder: PathBuf,
}

impl TrustFolder {
    /// Uses a folder; it need not exist yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The file with the agent roots of a site.
    pub fn agent_path(&self, site: &str) -> PathBuf {
        self.folder.join(site).join("agent.crt")
    }

    /// The file with the peer roots of a site.
    pub fn peer_path(&self, site: &str) -> PathBuf {
        self.folder.join(site).join("peer.crt")
    }

    /// The sites that have a folder, sorted.
    pub fn sites(&self) -> Result<Vec<String>, Error> {
        let fail = |source| Error::Read(pem::Error::Io { path: self.folder.clone(), source });
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(fail(source)),
        };
        let mut sites = Vec::new();
        for entry in entries {
            let name = entry.map_err(fail)?.file_name().to_string_lossy().into_owned();
            // Mounted folders hold entries such as `..data`.
            if identity::check_site(&name).is_ok() {
                sites.push(name);
            }
        }
        sites.sort();
        Ok(sites)
    }

    /// The roots of a site, if there are any.
    pub fn read(&self, site: &str) -> Result<Option<SiteRoots>, Error> {
        identity::check_site(site)?;
        let agent = self.agent_path(site);
        let peer = self.peer_path(site);
        if !agent.exists() && !peer.exists() {
            return Ok(None);
        }
        let text = |path: &Path| -> Result<String, Error> {
            let text = pem::read(path)?;
            pem::roots(path, &text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        Ok(Some(SiteRoots { agent: text(&agent)?, peer: text(&peer)? }))
    }

    /// Replaces the roots of a site; false if they were the same.
    pub fn write(&self, site: &str, roots: &SiteRoots) -> Result<bool, Error> {
        identity::check_site(site)?;
        let mut changed = false;
        for (path, text) in [(self.agent_path(site), &roots.agent), (self.peer_path(site), &roots.peer)] {
            pem::roots(&path, text.as_bytes())?;
            changed |= write_file(&path, text.as_bytes(), PUBLIC)?;
        }
        Ok(changed)
    }

    /// Begins to trust a site. If the site is trusted with other roots, a person has to look at it first.
    pub fn add(&self, site: &str, roots: &SiteRoots) -> Result<bool, Error> {
        self.check_new(site, roots)?;
        self.write(site, roots)
    }

    /// Whether `add` would work.
    pub(super) fn check_new(&self, site: &str, roots: &SiteRoots) -> Result<(), Error> {
        pem::roots(&self.agent_path(site), roots.agent.as_bytes())?;
        pem::roots(&self.peer_path(site), roots.peer.as_bytes())?;
        let Some(old) = self.read(site)? else {
            return Ok(());
        };
        let other = |which, path| Err(Error::OtherRoot { site: site.to_owned(), which, path });
        if old.agent != roots.agent {
            return other("agent", self.agent_path(site));
        }
        if old.peer != roots.peer {
            return other("peer", self.peer_path(site));
        }
        Ok(())
    }

    /// All agent roots of `sites` in one text.
    pub fn agent_bundle<S: AsRef<str>>(&self, sites: &[S]) -> Result<String, Error> {
        self.bundle(sites, Self::agent_path)
    }

    /// All peer roots of `sites` in one text: what `--peer-trusted-ca-file` needs.
    pub fn peer_bundle<S: AsRef<str>>(&self, sites: &[S]) -> Result<String, Error> {
        self.bundle(sites, Self::peer_path)
    }

    fn bundle<S: AsRef<str>>(&self, sites: &[S], path: fn(&Self, &str) -> PathBuf) -> Result<String, Error> {
        let mut bundle = String::new();
        for site in sites {
            identity::check_site(site.as_ref())?;
            let path = path(self, site.as_ref());
            let text = pem::read(&path)?;
            pem::roots(&path, &text)?;
            bundle.push_str(String::from_utf8_lossy(&text).trim_end());
            bundle.push('\n');
        }
        Ok(bundle)
    }
}
