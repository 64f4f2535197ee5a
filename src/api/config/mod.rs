//! The configuration of one site: `quorate.yaml`, read by the agent and by the commands that talk to it.
//!
//! Precedence: flags > environment `QUORATE_*` > file > default. [`SiteConfig::to_yaml`] shows the result.

mod cidr;
mod file;

use std::net::IpAddr;
use std::path::PathBuf;

use quorate_core::federation::layout::MAX_VOTERS;
use quorate_core::id::{FederationKey, PeerUrl, SiteName, Slot, ZoneName};
use serde::Serialize;

pub use cidr::Cidr;
pub use file::Key;

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
    /// The ports of the agent and of the member with ordinal 0.
    pub ports: Ports,
    /// The folder with etcd's binary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_dir: Option<PathBuf>,
    /// The agents of the other sites.
    pub peers: Vec<Peer>,
    /// Where peers may be; empty = anywhere.
    #[serde(rename = "peerCIDRs")]
    pub peer_cidrs: Vec<Cidr>,
    /// A level, or a list of `target=level`.
    pub log_level: String,
}

/// The ports of an agent and its first member, or of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ports {
    /// Mesh gRPC of the agent.
    pub agent: u16,
    /// Member API.
    pub member: u16,
    /// `/livez`, `/readyz`, `/metrics`.
    pub http: u16,
    /// etcd's clients.
    pub client: u16,
    /// etcd's peers.
    pub peer: u16,
    /// etcd's metrics and health.
    pub metrics: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self { agent: 8443, member: 8444, http: 8080, client: 2379, peer: 2380, metrics: 2381 }
    }
}

/// The distance between the ports of two members of one site.
const MEMBER_STEP: u16 = 10;

impl Ports {
    /// The ports of the member with this ordinal; see [`SiteConfig::member_ports`].
    fn of_member(self, ordinal: u32) -> Self {
        let offset = u16::try_from(ordinal).unwrap_or(u16::MAX).saturating_mul(MEMBER_STEP);
        let at = |base: u16| base.saturating_add(offset);
        Self {
            agent: self.agent,
            member: at(self.member),
            http: at(self.http.saturating_add(1)),
            client: at(self.client),
            peer: at(self.peer),
            metrics: at(self.metrics),
        }
    }

    /// Two names of ports that would be the same one, for a site with as many members as a federation may have.
    fn collision(self) -> Option<String> {
        let mut taken = vec![("agent".to_owned(), self.agent), ("http".to_owned(), self.http)];
        for ordinal in 0..MAX_VOTERS {
            let ports = self.of_member(ordinal);
            let own = [
                ("member", ports.member),
                ("http", ports.http),
                ("client", ports.client),
                ("peer", ports.peer),
                ("metrics", ports.metrics),
            ];
            for (name, port) in own {
                let name = format!("{name} of member {ordinal}");
                if port > u16::MAX - MEMBER_STEP {
                    return Some(format!("{name} would be {port}, which is too high"));
                }
                if let Some((other, _)) = taken.iter().find(|(_, other)| *other == port) {
                    return Some(format!("{name} and {other} would both be {port}"));
                }
                taken.push((name, port));
            }
        }
        None
    }
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
    /// The one peer URL of a slot of this site.
    pub fn peer_url(&self, slot: &Slot, federation: &FederationKey) -> PeerUrl {
        let name = slot.name(&federation.name);
        let port = self.member_ports(slot.ordinal).peer;
        PeerUrl(format!("https://{name}.{}:{port}", self.peer_domain).into())
    }

    /// The ports of the member with this ordinal: base + 10 × ordinal; its http port starts one above the agent's.
    pub fn member_ports(&self, ordinal: u32) -> Ports {
        self.ports.of_member(ordinal)
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
