//! Looks at a foreign etcd: its members through their client ports, their peer ports, and both from every site. Only reads.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use quorate_api::config::SiteConfig;
use quorate_link::etcd::client::{self, EtcdClient};
use quorate_link::etcd::peer_port::{self, PeerPort};
use quorate_link::pki::{ForeignPeers, Leaf, Pair, SitePki};
use quorate_link::tls::EtcdTls;

use super::Args;
use crate::client::Client;
use crate::failure::{Exit, Failure};

/// A member that needs longer is not well.
const PATIENCE: Duration = Duration::from_secs(4);
/// Hashing reads the whole database.
const HASH: Duration = Duration::from_mins(2);
/// A federation has this name in the probe's certificate before it has a uid.
const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

/// Everything that was found out.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// PEM of the root that was given for the peer ports.
    pub(super) peer_ca: String,
    /// Client URLs that gave no answer, and why.
    pub(super) silent: Vec<(String, String)>,
    /// What the others said; none if nobody answered.
    pub(super) seen: Option<Seen>,
    /// What a peer port said, by peer URL.
    pub(super) peer_ports: BTreeMap<String, PeerAnswer>,
    /// What is in the way to a peer port, by peer URL and site.
    pub(super) reach: BTreeMap<String, BTreeMap<String, Option<String>>>,
    /// Why this site's agent could not be asked.
    pub(super) agent: Option<String>,
    /// Why this site has no etcd of that minor; none = it has one, or nobody knows which minor.
    pub(super) no_binary: Option<String>,
}

/// A foreign etcd.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The cluster id.
    pub(super) cluster: u64,
    /// The members by id; the list is linearizable.
    pub(super) members: Vec<Found>,
    /// Why there is no linearizable list, if there is none: then `members` is what one member has.
    pub(super) stale: Option<String>,
    /// Alarms that are raised.
    pub(super) alarms: Vec<client::Alarm>,
    /// Authentication: whether it is on, and whether the agents' user may do everything.
    pub(super) auth: Option<(bool, bool)>,
}

/// One member.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) listed: client::Member,
    /// The client URL that leads to it.
    pub(super) endpoint: Option<String>,
    pub(super) status: Option<client::Status>,
    /// HashKV and the compacted revision, all at one revision; none if it could not be had.
    pub(super) hash: Option<(u32, i64)>,
}

/// What a peer port said to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PeerAnswer {
    /// It let a certificate of its CA in.
    Open,
    /// Its certificate is vouched for; whether it lets ours in cannot be tried without the CA's key.
    Vouched,
    /// It lets certificates of this CA not in, or is none that --peer-ca vouches for, or does not answer.
    Closed(String),
}

pub(super) async fn look(args: &Args, site: &SiteConfig, agent: &Client) -> Result<Facts, Failure> {
    let pair = Pair { cert: args.cert.clone(), key: args.key.clone() };
    let tls = EtcdTls::load(args.cacert.clone(), pair).map_err(|error| Failure::new(Exit::Usage, error))?;
    let mut facts = Facts { peer_ca: text(&args.peer_ca)?, ..Facts::default() };
    let mut clients: BTreeMap<u64, (String, EtcdClient, client::Status)> = BTreeMap::new();
    let mut others = Vec::new();
    for endpoint in &args.endpoints {
        match status_of(endpoint, &tls).await {
            Ok((client, status)) => {
                others.extend(client.member_list(false).await.map(|list| list.members).unwrap_or_default());
                clients.entry(status.header.member_id).or_insert_with(|| (endpoint.clone(), client, status));
            }
            Err(error) => facts.silent.push((endpoint.clone(), error)),
        }
    }
    // What members tell their clients may lead to those that were not named.
    for listed in &others {
        for url in listed.client_urls.iter().filter(|_| !clients.contains_key(&listed.id)) {
            if let Ok((client, status)) = status_of(url, &tls).await
                && status.header.member_id == listed.id
            {
                clients.insert(listed.id, (url.clone(), client, status));
                break;
            }
        }
    }
    if clients.is_empty() {
        return Ok(facts);
    }
    let seen = members(&clients).await;
    look_at_peers(args, site, &seen, &mut facts).await?;
    for url in seen.members.iter().filter_map(|m| m.listed.peer_urls.first()) {
        let address = url.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
        match agent.reach(address).await {
            Ok(found) => drop(facts.reach.insert(url.clone(), found)),
            Err(error) => {
                facts.agent = Some(error.to_string());
                break;
            }
        }
    }
    let minor = seen.members.iter().find_map(|m| m.status.as_ref()).map(|s| s.version.clone());
    if let (Some(folder), Some(version)) = (&site.etcd_dir, minor) {
        let minor: Vec<&str> = version.split('.').take(2).collect();
        let found = quorate_member::process::command::find(folder, &minor.join(".")).await;
        facts.no_binary = found.err().map(|error| error.to_string());
    }
    facts.seen = Some(seen);
    Ok(facts)
}

async fn status_of(endpoint: &str, tls: &EtcdTls) -> Result<(EtcdClient, client::Status), String> {
    let client = EtcdClient::connect(endpoint, tls).await.map_err(|error| error.to_string())?;
    let client = client.with_deadline(PATIENCE);
    let status = client.status().await.map_err(|error| error.to_string())?;
    Ok((client, status))
}

async fn members(clients: &BTreeMap<u64, (String, EtcdClient, client::Status)>) -> Seen {
    let mut seen = Seen::default();
    let leads =
        |(_, _, status): &&(String, EtcdClient, client::Status)| status.leader == status.header.member_id;
    let Some((_, client, status)) = clients.values().find(leads).or_else(|| clients.values().next()) else {
        return seen;
    };
    seen.cluster = status.header.cluster_id;
    let list = match client.member_list(true).await {
        Ok(list) => list.members,
        Err(error) => {
            seen.stale = Some(error.to_string());
            client.member_list(false).await.map(|list| list.members).unwrap_or_default()
        }
    };
    seen.alarms = client.alarms().await.unwrap_or_default();
    if let Ok(enabled) = client.auth_enabled().await {
        let root =
            client.roles_of("quorate-agent").await.unwrap_or_default().iter().any(|role| role == "root");
        seen.auth = Some((enabled, root));
    }
    // All of them at a revision that each has.
    let revision = clients.values().map(|(_, _, status)| status.header.revision).min().unwrap_or_default();
    for listed in list {
        let known = clients.get(&listed.id);
        let hash = match known {
            Some((_, client, _)) if !listed.is_learner => {
                client.with_deadline(HASH).hash_kv(revision).await.ok()
            }
            _ => None,
        };
        seen.members.push(Found {
            endpoint: known.map(|(endpoint, ..)| endpoint.clone()),
            status: known.map(|(_, _, status)| status.clone()),
            hash: hash.map(|hash| (hash.hash, hash.compact_revision)),
            listed,
        });
    }
    seen
}

/// Knocks at the peer ports, with a certificate of their CA if its key is here.
async fn look_at_peers(
    args: &Args,
    site: &SiteConfig,
    seen: &Seen,
    facts: &mut Facts,
) -> Result<(), Failure> {
    let usage = |error: quorate_link::pki::Error| Failure::new(Exit::Usage, error);
    let pki = SitePki::open(&site.state_dir, site.site.as_str(), &site.trust_domain).map_err(usage)?;
    let folder = tempfile::tempdir()?;
    let peers = ForeignPeers::new(pki, folder.path().join("foreign"));
    peers.trust(Some(&facts.peer_ca)).map_err(usage)?;
    let leaf = Leaf::Probe { uid: NOBODY.to_owned() };
    let probe = peers.probe_pair();
    if let Some(ca_key) = &args.peer_ca_key {
        let ca = Pair { cert: args.peer_ca.clone(), key: ca_key.clone() };
        if let Some(request) = peers.request(&leaf, &probe).map_err(usage)? {
            let chain = peers.certify(&ca, site.site.as_str(), &leaf, &request).map_err(usage)?;
            peers.install(&leaf, &probe, &chain).map_err(usage)?;
        }
    }
    // Without the key the client certificate is shown: it will be refused, but after the port has shown its own.
    let ours = Pair { cert: args.cert.clone(), key: args.key.clone() };
    let shown = if args.peer_ca_key.is_some() { probe } else { ours };
    let tls = EtcdTls::load(args.peer_ca.clone(), shown).map_err(|error| Failure::new(Exit::Usage, error))?;
    for url in seen.members.iter().filter_map(|m| m.listed.peer_urls.first()) {
        let answer = match PeerPort::new(url, tls.clone()) {
            Ok(port) => match tokio::time::timeout(PATIENCE, port.probe()).await {
                Ok(Ok(found)) if found.cluster_id == seen.cluster => PeerAnswer::Open,
                Ok(Ok(_)) => PeerAnswer::Closed("another cluster answers there".to_owned()),
                Ok(Err(peer_port::Error::Connection(_))) if args.peer_ca_key.is_none() => PeerAnswer::Vouched,
                Ok(Err(error)) => PeerAnswer::Closed(error.to_string()),
                Err(_) => PeerAnswer::Closed(format!("no answer within {PATIENCE:?}")),
            },
            Err(error) => PeerAnswer::Closed(error.to_string()),
        };
        facts.peer_ports.insert(url.clone(), answer);
    }
    Ok(())
}

/// The text of a file that was named on the command line.
pub(super) fn text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| {
        Failure::new(
            Exit::Usage,
            anyhow::Error::new(error).context(format!("cannot read {}", path.display())),
        )
    })
}
