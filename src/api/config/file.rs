//! From the words in the file, the environment and the flags to a [`SiteConfig`].

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use quorate_core::federation::layout::default_zone;
use quorate_core::id::{BootId, SiteName, ZoneName};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Cidr, ConfigError, Peer, Ports, SiteConfig, duration};
use crate::problem::{Problem, nearest};
use crate::schema;
use crate::yaml::{self, Node};

/// The file as it is written. Everything is optional here, because environment and flags may fill it in.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct File {
    /// This site's name. It is fixed in `<stateDir>/site.json` at the first start. Required.
    site: Option<String>,
    /// The region of this site, for people and for placement.
    region: Option<String>,
    /// The zones of this site. Default: `[default]`.
    zones: Option<Vec<String>>,
    /// The trust domain of the mesh, for example `quorate.example.com`; fixed at the first start. Required.
    trust_domain: Option<String>,
    /// The mesh id, a UUID that all sites share; `quorate mesh init` makes one. Fixed at the first start. Required.
    mesh: Option<String>,
    /// Where the agent keeps what it must not forget. Default: `/var/lib/quorate`.
    state_dir: Option<String>,
    /// The folder with the FederatedEtcd files (`*.yaml`); it is read again when it changes.
    /// Default: `/etc/quorate/federations`.
    manifests: Option<String>,
    /// The address on which agent, members and etcd listen. Required.
    address: Option<String>,
    /// etcd's peer URLs are `https://<slot>.<peerDomain>:<peer port>`; every site must be able to resolve them.
    /// Default: `<site>.<trustDomain>`.
    peer_domain: Option<String>,
    /// The ports of the agent and of the first federation's member with ordinal 0; each further member takes 10 more,
    /// each further federation 100 more. What a member has once is kept in `<stateDir>/federations/*/addresses.json`.
    ports: PortsFile,
    /// The folder with `etcd`, or with `etcd-<minor>/etcd`. Default: looked for on PATH.
    etcd_dir: Option<String>,
    /// The agents of the other sites. A change needs a restart of the agent, which members do not notice.
    peers: Option<Vec<PeerFile>>,
    /// Where other agents and members may be. Default: anywhere. A change needs a restart of the agent, which members do not notice.
    #[serde(rename = "peerCIDRs")]
    peer_cidrs: Option<Vec<String>>,
    /// How long other timers of etcd must have fitted the round-trip times better before they are activated, and another
    /// voter must have been nearer to a majority before it leads: a whole number with `s`, `m` or `h`, at least `10s`.
    /// Default: `10m`.
    /// A change needs a restart of the agent, which members do not notice.
    placement_after: Option<String>,
    /// `error`, `warn`, `info`, `debug` or `trace`, or a list such as `info,quorate_agent=debug`. Default: `info`.
    /// A change needs a restart of the agent, which members do not notice.
    log_level: Option<String>,
}

/// See [`Ports`].
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct PortsFile {
    /// Mesh gRPC of the agent, reached by the other sites. Default: 8443.
    agent: Option<u16>,
    /// Member API, reached by the own agent. Default: 8444.
    member: Option<u16>,
    /// `/livez`, `/readyz` and `/metrics` of the agent; those of the members are one above. Default: 8080.
    http: Option<u16>,
    /// etcd's client port. Default: 2379.
    client: Option<u16>,
    /// etcd's peer port, reached by the other sites. Default: 2380.
    peer: Option<u16>,
    /// etcd's metrics and health, on this host only. Default: 2381.
    metrics: Option<u16>,
}

/// The agent of another site.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct PeerFile {
    /// Its site.
    site: String,
    /// Where its mesh port is: `host:port`.
    endpoint: String,
}

macro_rules! keys {
    ($($name:ident $yaml:literal $env:literal;)+) => {
        /// What the environment and flags can override.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names are those of the file")]
        pub enum Key { $($name,)+ }

        impl Key {
            /// Every key.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The path in the file.
            pub const fn path(self) -> &'static str {
                match self { $(Self::$name => $yaml,)+ }
            }

            /// The environment variable. Lists are separated by commas; peers are `site=host:port`.
            pub const fn variable(self) -> &'static str {
                match self { $(Self::$name => $env,)+ }
            }
        }
    };
}

keys! {
    Site "site" "QUORATE_SITE";
    Region "region" "QUORATE_REGION";
    Zones "zones" "QUORATE_ZONES";
    TrustDomain "trustDomain" "QUORATE_TRUST_DOMAIN";
    Mesh "mesh" "QUORATE_MESH";
    StateDir "stateDir" "QUORATE_STATE_DIR";
    Manifests "manifests" "QUORATE_MANIFESTS";
    Address "address" "QUORATE_ADDRESS";
    PeerDomain "peerDomain" "QUORATE_PEER_DOMAIN";
    PortAgent "ports.agent" "QUORATE_PORT_AGENT";
    PortMember "ports.member" "QUORATE_PORT_MEMBER";
    PortHttp "ports.http" "QUORATE_PORT_HTTP";
    PortClient "ports.client" "QUORATE_PORT_CLIENT";
    PortPeer "ports.peer" "QUORATE_PORT_PEER";
    PortMetrics "ports.metrics" "QUORATE_PORT_METRICS";
    EtcdDir "etcdDir" "QUORATE_ETCD_DIR";
    Peers "peers" "QUORATE_PEERS";
    PeerCidrs "peerCIDRs" "QUORATE_PEER_CIDRS";
    PlacementAfter "placementAfter" "QUORATE_PLACEMENT_AFTER";
    LogLevel "logLevel" "QUORATE_LOG_LEVEL";
}

/// A value from outside the file: what it replaces, and what to call it in a message.
struct Given {
    key: Key,
    origin: &'static str,
}

struct Reader {
    root: Option<Node>,
    given: Vec<Given>,
    problems: Vec<Problem>,
}

pub(super) fn schema() -> serde_json::Value {
    schema::of::<File>()
}

pub(super) fn load(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    flags: &[(Key, String)],
) -> Result<SiteConfig, ConfigError> {
    let mut reader = Reader { root: None, given: Vec::new(), problems: Vec::new() };
    let mut file = reader.file(text);
    for key in Key::ALL.iter().copied() {
        if let Some(value) = environment(key.variable()).filter(|value| !value.is_empty()) {
            reader.set(&mut file, key, key.variable(), &value);
        }
    }
    for (key, value) in flags {
        reader.set(&mut file, *key, "the command line", value);
    }
    let config = reader.check(file);
    reader.problems.sort_by_key(|problem| problem.line.unwrap_or(u64::MAX));
    match config {
        Some(config) if reader.problems.is_empty() => Ok(config),
        _ => Err(ConfigError { problems: reader.problems }),
    }
}

impl Reader {
    fn file(&mut self, text: &str) -> File {
        let documents = match yaml::documents(text) {
            Ok(documents) => documents,
            Err(problem) => {
                self.problems.push(problem);
                return File::default();
            }
        };
        if let Some(second) = documents.get(1) {
            self.problems.push(Problem::new(
                Some(second.line),
                "",
                "a second document; one file configures one site",
            ));
        }
        self.root = documents.into_iter().next();
        let Some(root) = &self.root else { return File::default() };
        let usable = schema::walk(root, &schema(), "", &mut self.problems).unwrap_or_default();
        // Whatever has a wrong shape was reported and left out by the walk.
        serde_json::from_value(usable).unwrap_or_else(|error| {
            self.problems.push(Problem::new(None, "", error.to_string()));
            File::default()
        })
    }

    fn wrong(&mut self, path: &str, message: impl Into<String>) {
        let top = path.split('[').next().unwrap_or(path);
        let problem = match self.given.iter().rev().find(|given| given.key.path() == top) {
            Some(given) => Problem::new(None, given.origin, message),
            None => Problem::new(self.root.as_ref().map(|root| root.line_of(path)), path, message),
        };
        self.problems.push(problem);
    }

    fn set(&mut self, file: &mut File, key: Key, origin: &'static str, value: &str) {
        self.given.push(Given { key, origin });
        let text = || Some(value.to_owned());
        let list = || Some(value.split(',').map(|part| part.trim().to_owned()).collect());
        match key {
            Key::Site => file.site = text(),
            Key::Region => file.region = text(),
            Key::Zones => file.zones = list(),
            Key::TrustDomain => file.trust_domain = text(),
            Key::Mesh => file.mesh = text(),
            Key::StateDir => file.state_dir = text(),
            Key::Manifests => file.manifests = text(),
            Key::Address => file.address = text(),
            Key::PeerDomain => file.peer_domain = text(),
            Key::EtcdDir => file.etcd_dir = text(),
            Key::PeerCidrs => file.peer_cidrs = list(),
            Key::PlacementAfter => file.placement_after = text(),
            Key::LogLevel => file.log_level = text(),
            Key::PortAgent => file.ports.agent = self.port(key, value),
            Key::PortMember => file.ports.member = self.port(key, value),
            Key::PortHttp => file.ports.http = self.port(key, value),
            Key::PortClient => file.ports.client = self.port(key, value),
            Key::PortPeer => file.ports.peer = self.port(key, value),
            Key::PortMetrics => file.ports.metrics = self.port(key, value),
            Key::Peers => {
                let peers = value.split(',').map(|part| {
                    let part = part.trim();
                    let (site, endpoint) = part.split_once('=').unwrap_or((part, ""));
                    PeerFile { site: site.to_owned(), endpoint: endpoint.to_owned() }
                });
                file.peers = Some(peers.collect());
            }
        }
    }

    fn port(&mut self, key: Key, value: &str) -> Option<u16> {
        let port = value.parse().ok();
        if port.is_none() {
            self.wrong(key.path(), format!("{value:?} is not a port"));
        }
        port
    }

    fn check(&mut self, file: File) -> Option<SiteConfig> {
        let File {
            site,
            region,
            zones,
            trust_domain,
            mesh,
            state_dir,
            manifests,
            address,
            peer_domain,
            ports,
            etcd_dir,
            peers,
            peer_cidrs,
            placement_after,
            log_level,
        } = file;
        let site = self.required("site", site).and_then(|site| self.named("site", SiteName::new(&site)));
        let zones = self.zones(zones);
        let trust_domain =
            self.required("trustDomain", trust_domain).and_then(|d| self.domain("trustDomain", d));
        let mesh = self.required("mesh", mesh).and_then(|mesh| match mesh.parse::<BootId>() {
            Ok(_) => Some(mesh),
            Err(_) => self
                .none("mesh", format!("{mesh:?} is not a UUID in lower case; `quorate mesh init` makes one")),
        });
        let address = self.required("address", address).and_then(|text| match text.parse::<IpAddr>() {
            Ok(address) => Some(address),
            Err(_) => self.none("address", format!("{text:?} is not an IP address")),
        });
        let default_domain = match (&site, &trust_domain) {
            (Some(site), Some(domain)) => Some(format!("{site}.{domain}")),
            _ => None,
        };
        let peer_domain = match peer_domain {
            Some(domain) => self.domain("peerDomain", domain),
            None => default_domain,
        };
        let ports = self.ports(&ports);
        let peers = self.peers(peers.unwrap_or_default(), site.as_ref());
        let peer_cidrs = self.cidrs(&peer_cidrs.unwrap_or_default());
        let placement_after = self.placement_after(placement_after);
        let log_level = self.level(log_level);
        Some(SiteConfig {
            site: site?,
            region,
            zones,
            trust_domain: trust_domain?,
            mesh: mesh?,
            state_dir: PathBuf::from(state_dir.unwrap_or_else(|| "/var/lib/quorate".to_owned())),
            manifests: PathBuf::from(manifests.unwrap_or_else(|| "/etc/quorate/federations".to_owned())),
            address: address?,
            peer_domain: peer_domain?,
            ports,
            etcd_dir: etcd_dir.map(PathBuf::from),
            peers,
            peer_cidrs,
            placement_after: placement_after?,
            log_level,
        })
    }

    fn none<T>(&mut self, path: &str, message: impl Into<String>) -> Option<T> {
        self.wrong(path, message);
        None
    }

    fn required(&mut self, path: &'static str, value: Option<String>) -> Option<String> {
        // A value that was refused by the walk is not missing, and of an unreadable file nothing more can be said.
        if value.is_none() && !self.problems.iter().any(|p| p.path == path || p.path.is_empty()) {
            let variable = Key::ALL.iter().find(|key| key.path() == path).map_or("", |key| key.variable());
            self.problems.push(Problem::new(None, path, format!("must be given (or {variable})")));
        }
        value
    }

    fn named<T, E: std::fmt::Display>(&mut self, path: &str, name: Result<T, E>) -> Option<T> {
        name.map_err(|error| self.wrong(path, error.to_string())).ok()
    }

    fn zones(&mut self, zones: Option<Vec<String>>) -> Vec<ZoneName> {
        let Some(zones) = zones else { return vec![default_zone()] };
        if zones.is_empty() {
            self.wrong("zones", "must not be empty; leave it out for one zone");
        }
        let mut found: Vec<ZoneName> = Vec::new();
        for (i, zone) in zones.iter().enumerate() {
            let path = format!("zones[{i}]");
            match ZoneName::new(zone) {
                Ok(zone) if found.contains(&zone) => self.wrong(&path, format!("{zone:?} is named twice")),
                Ok(zone) => found.push(zone),
                Err(error) => self.wrong(&path, error.to_string()),
            }
        }
        found
    }

    /// A DNS name: labels of lower-case letters, digits and inner hyphens.
    fn domain(&mut self, path: &str, text: String) -> Option<String> {
        if text.len() <= 253 && text.split('.').all(|label| SiteName::new(label).is_ok()) {
            return Some(text);
        }
        self.none(path, format!("{text:?} is not a domain name in lower case"))
    }

    fn ports(&mut self, file: &PortsFile) -> Ports {
        let PortsFile { agent, member, http, client, peer, metrics } = file;
        let default = Ports::default();
        let ports = Ports {
            agent: agent.unwrap_or(default.agent),
            member: member.unwrap_or(default.member),
            http: http.unwrap_or(default.http),
            client: client.unwrap_or(default.client),
            peer: peer.unwrap_or(default.peer),
            metrics: metrics.unwrap_or(default.metrics),
        };
        let all = [ports.agent, ports.member, ports.http, ports.client, ports.peer, ports.metrics];
        if all.contains(&0) {
            self.wrong("ports", "0 is not a port");
        } else if let Some(collision) = ports.collision() {
            self.wrong("ports", format!("{collision}; each member takes the base + 10 x its ordinal"));
        }
        ports
    }

    fn peers(&mut self, peers: Vec<PeerFile>, own: Option<&SiteName>) -> Vec<Peer> {
        let mut found: Vec<Peer> = Vec::new();
        for (i, PeerFile { site, endpoint }) in peers.into_iter().enumerate() {
            let path = format!("peers[{i}].site");
            let Some(site) = self.named(&path, SiteName::new(&site)) else { continue };
            if own == Some(&site) {
                self.wrong(&path, format!("{site:?} is this site; list only the others"));
            }
            if found.iter().any(|peer| peer.site == site) {
                self.wrong(&path, format!("{site:?} is named twice"));
            }
            if !is_endpoint(&endpoint) {
                let message = format!("{endpoint:?} is not host:port, for example \"west.example.com:8443\"");
                self.wrong(&format!("peers[{i}].endpoint"), message);
            }
            found.push(Peer { site, endpoint });
        }
        found
    }

    fn cidrs(&mut self, cidrs: &[String]) -> Vec<Cidr> {
        let mut found = Vec::new();
        for (i, text) in cidrs.iter().enumerate() {
            found.extend(self.named(&format!("peerCIDRs[{i}]"), text.parse::<Cidr>()));
        }
        found
    }

    fn placement_after(&mut self, text: Option<String>) -> Option<Duration> {
        // Shorter than a few looks and probes nothing has lasted.
        const LEAST: Duration = Duration::from_secs(10);
        let text = text.unwrap_or_else(|| "10m".to_owned());
        match duration::read(&text) {
            Some(duration) if duration >= LEAST => Some(duration),
            Some(_) => self.none("placementAfter", format!("{text:?} is shorter than 10s")),
            None => self.none(
                "placementAfter",
                format!("{text:?} is not a duration such as \"90s\", \"10m\" or \"1h\""),
            ),
        }
    }

    fn level(&mut self, level: Option<String>) -> String {
        const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
        let level = level.unwrap_or_else(|| "info".to_owned());
        for part in level.split(',') {
            let word = part.rsplit('=').next().unwrap_or(part).trim();
            if !LEVELS.contains(&word) {
                let hint = nearest(word, LEVELS.into_iter());
                self.wrong("logLevel", format!("{word:?} is not one of {}{hint}", LEVELS.join(", ")));
            }
        }
        level
    }
}

/// `host:port`, with an IPv6 address in brackets.
fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host_ok = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.split('.').all(|label| SiteName::new(&label.to_lowercase()).is_ok()),
    };
    host_ok && port.parse::<u16>().is_ok_and(|port| port > 0)
}
