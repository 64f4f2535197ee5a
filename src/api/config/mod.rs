//! The configuration of one site: `quorate.yaml`, read by the agent and by the commands that talk to it.
//!
//! Precedence: flags > environment `QUORATE_*` > file > default. [`SiteConfig::to_yaml`] shows the result.

mod cidr;
mod duration;
mod file;
mod ports;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use quorate_core::id::{PeerUrl, SiteName, ZoneName};
use serde::Serialize;

pub use cidr::Cidr;
pub use file::Key;
pub use ports::{MemberPorts, Ports};

use crate::problem::{Problem, joined};

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", joined(problems))]
pub struct ConfigError {
    /// One entry per mistake, in the order of the file.
    pub problems: Vec<Problem>,
}

/// The configuration of one site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SiteConfig {
    /// This site's name; fixed once in `<stateDir>/site.json`.
    pub site: SiteName,
    /// The region, for people and for placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// The zones of this site.
    pub zones: Vec<ZoneName>,
    /// The trust domain of the mesh.
    pub trust_domain: String,
    /// The mesh id, a UUID that all sites share.
    pub mesh: String,
    /// Where the agent keeps what it must not forget.
    pub state_dir: PathBuf,
    /// The folder with the `FederatedEtcd` files.
    pub manifests: PathBuf,
    /// The address on which agent, members and etcd listen.
    pub address: IpAddr,
    /// Peer URLs are `https://<slot name>.<peerDomain>:<peer port>`.
    pub peer_domain: String,
    /// The ports of the agent and of the first federation's member with ordinal 0.
    pub ports: Ports,
    /// The folder with etcd's binary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_dir: Option<PathBuf>,
    /// The agents of the other sites.
    pub peers: Vec<Peer>,
    /// Where peers may be; empty = anywhere.
    #[serde(rename = "peerCIDRs")]
    pub peer_cidrs: Vec<Cidr>,
    /// How long other timers, or another leader, must have fitted the round-trip times better before it is acted upon.
    #[serde(serialize_with = "duration::write")]
    pub placement_after: Duration,
    /// A level, or a list of `target=level`.
    pub log_level: String,
}

/// The agent of another site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its site.
    pub site: SiteName,
    /// Where its mesh port is: `host:port`.
    pub endpoint: String,
}

/// Reads a configuration file without looking at the environment.
pub fn parse(text: &str) -> Result<SiteConfig, ConfigError> {
    load(text, &|_| None, &[])
}

/// Reads a configuration file, and lets the environment and then the flags override it.
pub fn load(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    flags: &[(Key, String)],
) -> Result<SiteConfig, ConfigError> {
    file::load(text, environment, flags)
}

impl SiteConfig {
    /// The one peer URL of a slot of this site, by the slot's name and its peer port.
    pub fn peer_url(&self, slot_name: &str, port: u16) -> PeerUrl {
        PeerUrl(format!("https://{slot_name}.{}:{port}", self.peer_domain).into())
    }

    /// Whether a peer may be at this address.
    pub fn admits(&self, address: IpAddr) -> bool {
        self.peer_cidrs.is_empty() || self.peer_cidrs.iter().any(|cidr| cidr.contains(address))
    }

    /// The socket on which the agent answers the command line.
    pub fn socket(&self) -> PathBuf {
        self.state_dir.join("agent.sock")
    }

    /// The effective configuration as a file that would give the same.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).unwrap_or_default()
    }

    /// The JSON schema of the file, for the reference documentation.
    pub fn schema() -> serde_json::Value {
        file::schema()
    }
}

#[cfg(test)]
mod tests;
