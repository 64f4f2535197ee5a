//! The etcds of one federation: the own members' client port, everybody's peer port.

pub mod words;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate_core::executor::{Call, CallResult};
use quorate_core::federation::observed::{MemberList, Status};
use quorate_core::id::{ClusterId, MemberId, PeerUrl, Revision, SiteName, Slot, Term, Uid};
use quorate_link::clock::Clock;
use quorate_link::etcd::client::{self, EtcdClient};
use quorate_link::etcd::peer_port::PeerPort;
use quorate_link::pki::{ForeignPeers, Leaf, Pair, Root, SitePki};
use quorate_link::tls::etcd::EtcdTls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use self::words::{members, status as seen};
use crate::ports::{DataHash, Etcd, Target};

/// Status is answered from memory: a member that needs longer is not well.
const LOOK: Duration = Duration::from_millis(1_500);
/// A member can stop being ready without any proposal; it is looked at again after this.
const READY_AGAIN: Duration = Duration::from_secs(10);
/// Hashing reads the whole database.
const HASH: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Probe,
    Hash,
}

/// Where an own slot listens, once it has its address.
pub type Listens = Arc<dyn Fn(&Slot) -> Option<Listen> + Send + Sync>;

/// The addresses of one own member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// Where everything binds.
    pub address: IpAddr,
    /// etcd's client port.
    pub client: u16,
    /// etcd's health port.
    pub metrics: u16,
}

/// What leads to the members of an etcd that quorate did not create.
#[derive(Debug, Clone)]
pub struct Abroad {
    /// The trust in their peer ports.
    pub peers: ForeignPeers,
    /// The folder with `ca.crt`, `client.crt` and `client.key` for their client ports.
    pub credentials: PathBuf,
}

/// See the module.
pub struct EtcdPorts {
    pki: SitePki,
    abroad: Abroad,
    /// Clients of foreign members, by URL; which member that is was asked.
    strangers: Mutex<BTreeMap<String, EtcdClient>>,
    /// Leaves of this federation's probes.
    folder: PathBuf,
    listens: Listens,
    clients: Mutex<BTreeMap<Slot, EtcdClient>>,
    /// Probes and hashes have connections of their own: hashing takes long, and a probe must not wait for it.
    peer_ports: Mutex<BTreeMap<(PeerUrl, Use, bool), Arc<PeerPort>>>,
    endpoints: Mutex<Vec<(MemberId, String)>>,
    /// Good looks: while nothing was proposed since, the list is the same and need not be asked for again.
    good: Mutex<BTreeMap<Slot, (Status, Clock)>>,
}

impl EtcdPorts {
    /// Makes no connection yet.
    pub fn new(pki: SitePki, folder: PathBuf, listens: Listens, abroad: Abroad) -> Self {
        Self {
            pki,
            abroad,
            strangers: Mutex::default(),
            folder,
            listens,
            clients: Mutex::default(),
            peer_ports: Mutex::default(),
            endpoints: Mutex::default(),
            good: Mutex::default(),
        }
    }

    async fn client(&self, slot: &Slot) -> Option<EtcdClient> {
        if let Some(client) = lock(&self.clients).get(slot) {
            return Some(client.clone());
        }
        if slot.is_external() {
            return None; // it has not answered on any declared URL yet
        }
        let Listen { address, client, .. } = (self.listens)(slot)?;
        let pair = Pair::at(self.pki.folder(), "etcd-client");
        let made = self.pki.ensure(&Leaf::AgentEtcdClient, &pair);
        let tls = made.map_err(|error| error.to_string()).and_then(|_| {
            EtcdTls::load(self.pki.root_path(Root::Client), pair).map_err(|error| error.to_string())
        });
        let endpoint = format!("https://{}", SocketAddr::new(address, client));
        let connected = match tls {
            Ok(tls) => EtcdClient::connect(&endpoint, &tls).await.map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        match connected {
            Ok(client) => {
                lock(&self.clients).insert(slot.clone(), client.clone());
                Some(client)
            }
            Err(error) => {
                tracing::warn!(%slot, error, "no client of the own etcd");
                None
            }
        }
    }

    fn peer_port(&self, target: &Target, purpose: Use) -> Option<Arc<PeerPort>> {
        let foreign = self.abroad.peers.active();
        let key = (target.peer_url.clone(), purpose, foreign);
        if let Some(port) = lock(&self.peer_ports).get(&key) {
            return Some(Arc::clone(port));
        }
        let port = self.open(target.uid, &target.site, &target.peer_url, foreign);
        match port {
            Ok(port) => {
                let port = Arc::new(port);
                lock(&self.peer_ports).insert(key, Arc::clone(&port));
                Some(port)
            }
            Err(error) => {
                tracing::warn!(site = %target.site, error, "the peer port cannot be probed");
                None
            }
        }
    }

    fn open(&self, uid: Uid, site: &SiteName, url: &PeerUrl, foreign: bool) -> Result<PeerPort, String> {
        if foreign {
            // Its CA has certified the probe, and vouches for our members as well meanwhile.
            let Abroad { peers, .. } = &self.abroad;
            let roots = peers.site_roots(site.as_str()).map_err(|error| crate::chain(&error))?;
            let tls = EtcdTls::load(roots, peers.probe_pair()).map_err(|error| crate::chain(&error))?;
            return PeerPort::new(&url.0, tls).map_err(|error| crate::chain(&error));
        }
        let pair = Pair::at(&self.folder, "probe");
        self.pki
            .ensure(&Leaf::Probe { uid: uid.to_string() }, &pair)
            .map_err(|error| crate::chain(&error))?;
        let roots = self.pki.trust().peer_path(site.as_str());
        let tls = EtcdTls::load(roots, pair).map_err(|error| crate::chain(&error))?;
        PeerPort::new(&url.0, tls).map_err(|error| crate::chain(&error))
    }

    /// A client of the foreign member behind a URL.
    async fn stranger(&self, endpoint: &str) -> Option<EtcdClient> {
        if let Some(client) = lock(&self.strangers).get(endpoint) {
            return Some(client.clone());
        }
        let folder = &self.abroad.credentials;
        let tls = EtcdTls::load(folder.join("ca.crt"), Pair::at(folder, "client"));
        let connected = match tls {
            Ok(tls) => EtcdClient::connect(endpoint, &tls).await.map_err(|error| error.to_string()),
            Err(error) => Err(crate::chain(&error)),
        };
        match connected {
            Ok(client) => {
                lock(&self.strangers).insert(endpoint.to_owned(), client.clone());
                Some(client)
            }
            Err(error) => {
                tracing::debug!(endpoint, error, "no client of the foreign etcd");
                None
            }
        }
    }

    /// What a foreign member says of itself. Its health port is not ours to ask: whoever answers its list is ready.
    async fn look_abroad(client: &EtcdClient) -> Option<Status> {
        let client = client.with_deadline(LOOK);
        let status = client.status().await.ok()?;
        let list = client.member_list(false).await.ok();
        Some(seen(&status, list.as_ref(), list.is_some()))
    }

    /// The last good look, if nothing moved since and it is young. Only the size of the database may differ.
    fn unchanged(&self, slot: &Slot, status: &client::Status) -> Option<Status> {
        let good = lock(&self.good);
        let (last, age) = good.get(slot)?;
        let now = seen(status, None, true);
        let same = Status { list: last.list, db_size: last.db_size, ..now } == *last;
        (same && age.elapsed() < READY_AGAIN).then(|| last.clone())
    }

    async fn ready(&self, slot: &Slot) -> bool {
        let Some(Listen { address, metrics, .. }) = (self.listens)(slot) else { return false };
        tokio::time::timeout(LOOK, ready(SocketAddr::new(address, metrics)))
            .await
            .is_ok_and(|ready| ready.is_ok())
    }
}

impl std::fmt::Debug for EtcdPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdPorts").field("folder", &self.folder).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `/readyz` of etcd's health port, which is plain HTTP inside this host.
async fn ready(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(format!("GET /readyz HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut head = [0_u8; 12];
    stream.read_exact(&mut head).await?;
    if head.ends_with(b" 200") { Ok(()) } else { Err(std::io::ErrorKind::Other.into()) }
}

impl Etcd for EtcdPorts {
    async fn status(&self, slot: &Slot) -> Option<Status> {
        if slot.is_external() {
            return Self::look_abroad(&self.client(slot).await?).await;
        }
        let client = self.client(slot).await?.with_deadline(LOOK);
        let status = client.status().await.ok()?;
        if let Some(same) = self.unchanged(slot, &status) {
            return Some(same);
        }
        let (list, ready) = futures::join!(client.member_list(false), self.ready(slot));
        // A learner refuses this: what it knows of the list decides nothing.
        let list = list.ok();
        if let Some(list) = &list {
            let urls =
                list.members.iter().flat_map(|m| m.client_urls.iter().map(|url| (MemberId(m.id), url)));
            *lock(&self.endpoints) = urls.map(|(id, url)| (id, url.clone())).collect();
        }
        let seen = seen(&status, list.as_ref(), ready);
        if seen.ready && seen.list.is_some() {
            lock(&self.good).insert(slot.clone(), (seen.clone(), Clock::start()));
        }
        Some(seen)
    }

    async fn list(&self, slot: &Slot) -> Option<(MemberList, Term)> {
        let list = self.client(slot).await?.member_list(true).await.ok()?;
        Some((members(&list.members), Term(list.header.raft_term)))
    }

    async fn call(&self, slot: &Slot, call: &Call, deadline_ms: u64) -> CallResult {
        let Some(client) = self.client(slot).await else { return CallResult::NotSent };
        let client = client.with_deadline(Duration::from_millis(deadline_ms));
        let result = match call {
            Call::AddLearner(url) => client.member_add_learner(&url.0).await.map(drop),
            Call::Promote(id) => client.member_promote(id.0).await.map(drop),
            Call::Remove(id) => client.member_remove(id.0).await.map(drop),
            Call::Update(id, url) => client.member_update(id.0, &url.0).await.map(drop),
            Call::MoveLeader(id) => client.move_leader(id.0).await,
        };
        match result {
            Ok(()) => CallResult::Done,
            Err(error) if error.is_definite() => CallResult::Refused(error.to_string()),
            Err(error) => {
                tracing::warn!(%slot, ?call, %error, "nobody knows how the call ended");
                CallResult::Unknown
            }
        }
    }

    async fn hash(&self, slot: &Slot, revision: Revision) -> Option<DataHash> {
        let client = self.client(slot).await?.with_deadline(HASH);
        let hash = client.hash_kv(revision.0).await.ok()?;
        Some(DataHash { hash: hash.hash, compacted: Revision(hash.compact_revision) })
    }

    async fn probe(&self, target: &Target) -> Option<u32> {
        let port = self.peer_port(target, Use::Probe)?;
        match port.probe().await {
            Ok(found) if ClusterId(found.cluster_id) == target.cluster => {
                let listed = found.members.iter().any(|m| MemberId(m.id) == target.member);
                listed.then(|| u32::try_from(found.rtt.as_micros()).unwrap_or(u32::MAX).max(1))
            }
            Ok(found) => {
                tracing::warn!(url = %target.peer_url, cluster = %ClusterId(found.cluster_id), "another cluster answers on the peer port");
                None
            }
            Err(error) => {
                tracing::debug!(url = %target.peer_url, error = crate::chain(&error), "no answer on the peer port");
                None
            }
        }
    }

    async fn peer_hash(&self, target: &Target, revision: Revision) -> Option<DataHash> {
        let port = self.peer_port(target, Use::Hash)?;
        match port.hash_kv(revision.0, Some(target.cluster.0)).await {
            Ok(hash) => Some(DataHash { hash: hash.hash, compacted: Revision(hash.compact_revision) }),
            Err(error) => {
                tracing::debug!(url = %target.peer_url, error = crate::chain(&error), "no hash from the peer port");
                None
            }
        }
    }

    async fn foreign(&self, site: &SiteName, endpoints: &[String]) -> Vec<(Slot, Status)> {
        let looks = endpoints.iter().map(|endpoint| async move {
            let client = self.stranger(endpoint).await?;
            let status = Self::look_abroad(&client).await?;
            let slot = Slot::external(site, status.member);
            lock(&self.clients).insert(slot.clone(), client);
            Some((slot, status))
        });
        futures::future::join_all(looks).await.into_iter().flatten().collect()
    }

    fn endpoints(&self) -> Vec<(MemberId, String)> {
        lock(&self.endpoints).clone()
    }
}
