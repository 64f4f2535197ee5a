//! What a supervisor has to know: `member.json`, written by the agent (process runtime) or by the chart (Kubernetes).

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use quorate_core::id::{FederationKey, PeerUrl, Slot, Uid};
use quorate_link::pki::Pair;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

/// The format that this version reads and writes.
pub const FORMAT: &str = "quorate.member/1";
/// The file in the member volume.
pub const FILE: &str = "member.json";

/// Why the options cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {}; the agent writes it before it starts the member", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{} is no member configuration; let the agent write it again", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// Another format, usually of a newer version.
    #[error("{} has format {found:?}, this version reads {FORMAT:?}; use the version that wrote it", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
    },
}

/// The ports of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ports {
    /// The member API (mTLS, own agent only).
    pub member: u16,
    /// `/livez`, `/readyz` and `/metrics` of the supervisor.
    pub http: u16,
    /// etcd's client port.
    pub client: u16,
    /// etcd's peer port.
    pub peer: u16,
    /// etcd's health and metrics (plain, this host or pod only).
    pub metrics: u16,
}

/// The certificates of one member. They are made after the ballot, so they may appear after the supervisor has started;
/// the member API needs its own from the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificates {
    /// Leaf of the member API: certificate.
    pub api_cert: PathBuf,
    /// Leaf of the member API: key.
    pub api_key: PathBuf,
    /// The agent root of the own site: the only one that the member API believes.
    pub agent_roots: PathBuf,
    /// etcd's client port: certificate.
    pub client_cert: PathBuf,
    /// etcd's client port: key.
    pub client_key: PathBuf,
    /// Whom etcd's client port trusts.
    pub client_roots: PathBuf,
    /// etcd's peer port: certificate.
    pub peer_cert: PathBuf,
    /// etcd's peer port: key.
    pub peer_key: PathBuf,
    /// What etcd shows to the peer ports of others: certificate.
    pub peer_client_cert: PathBuf,
    /// What etcd shows to the peer ports of others: key.
    pub peer_client_key: PathBuf,
    /// Whom etcd's peer port trusts.
    pub peer_roots: PathBuf,
}

impl Certificates {
    /// The file names that the agent uses below `<member volume>/pki`.
    pub fn in_folder(folder: &Path) -> Self {
        let file = |name: &str| folder.join(name);
        Self {
            api_cert: file("api.crt"),
            api_key: file("api.key"),
            agent_roots: file("agent-roots.crt"),
            client_cert: file("client.crt"),
            client_key: file("client.key"),
            client_roots: file("client-roots.crt"),
            peer_cert: file("peer.crt"),
            peer_key: file("peer.key"),
            peer_client_cert: file("peer-client.crt"),
            peer_client_key: file("peer-client.key"),
            peer_roots: file("peer-roots.crt"),
        }
    }

    /// The leaf of the member API.
    pub fn api(&self) -> Pair {
        Pair { cert: self.api_cert.clone(), key: self.api_key.clone() }
    }

    /// The leaf of etcd's client port.
    pub fn client(&self) -> Pair {
        Pair { cert: self.client_cert.clone(), key: self.client_key.clone() }
    }

    /// The leaf of etcd's peer port.
    pub fn peer(&self) -> Pair {
        Pair { cert: self.peer_cert.clone(), key: self.peer_key.clone() }
    }

    /// The leaf that etcd shows to the peer ports of others.
    pub fn peer_client(&self) -> Pair {
        Pair { cert: self.peer_client_cert.clone(), key: self.peer_client_key.clone() }
    }
}

/// What a supervisor has to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The format of this file.
    pub format: String,
    /// The federation that the slot belongs to.
    pub federation: FederationKey,
    /// Its uid.
    pub uid: Uid,
    /// The slot; its site is the site whose agent is admitted.
    pub slot: Slot,
    /// The folder that this supervisor owns.
    pub volume: PathBuf,
    /// A folder with `etcd-<minor>/etcd` or `etcd`.
    pub etcd_dir: PathBuf,
    /// Where everything binds.
    pub bind: IpAddr,
    /// On which ports.
    pub ports: Ports,
    /// The one peer URL of the slot.
    pub peer_url: PeerUrl,
    /// The client URLs that etcd tells its clients.
    pub client_urls: Vec<SmolStr>,
    /// The certificates.
    pub certificates: Certificates,
    /// Peers of a foreign etcd are let in: their certificates carry other common names than ours.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_peers: bool,
    /// The trust domain of the mesh.
    pub trust_domain: String,
    /// The high-water mark from outside the volume.
    pub outside_mark: PathBuf,
    /// The level of the log.
    pub log_level: String,
}

impl Options {
    /// Reads the options from a file.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let parse = |source| Error::Parse { path: path.to_owned(), source };
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(parse)?;
        // The format first: a newer file has fields that would only be called unknown.
        let found = value.get("format").and_then(serde_json::Value::as_str).unwrap_or_default();
        if found != FORMAT {
            return Err(Error::Format { path: path.to_owned(), found: found.to_owned() });
        }
        serde_json::from_value(value).map_err(parse)
    }

    /// The slot's name, as in the peer URL and the certificates.
    pub fn slot_name(&self) -> SmolStr {
        self.slot.name(&self.federation.name)
    }

    /// A port of this member on the address that everything binds.
    pub fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.bind, port)
    }
}
