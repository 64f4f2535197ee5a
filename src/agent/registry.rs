//! The federations of this site: one task each, made when a manifest or a record names one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_api::config::SiteConfig;
use quorate_api::manifest::Manifest;
use quorate_core::id::{FederationKey, Slot};
use quorate_core::report::{CertificateReport, PeerReport, SiteReport};
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use quorate_link::pki::SitePki;
use quorate_link::telemetry::Recent;
use quorate_link::tls::TlsStore;
use quorate_link::tls::store::Expiry;

use crate::etcd::{Abroad, EtcdPorts, Listen};
use crate::federation::{Federation, Handle, Message, Names, Settings, Snapshot};
use crate::metrics::Metrics;
use crate::peers::{FederationPeers, Mesh};
use crate::ports::{self, Ports, Runtime as _, World};
use crate::process::{Addresses, ProcessAdoption, ProcessRuntime, Setup, credentials, foreign_peers};
use crate::store::{self, FileRecords};

/// The real adapters of the process runtime.
#[derive(Debug)]
pub struct Real;

impl World for Real {
    type Etcd = EtcdPorts;
    type Runtime = ProcessRuntime;
    type Adoption = ProcessAdoption;
    type Peers = FederationPeers;
    type Records = FileRecords;
    type Clock = SiteClock;
    type Rng = ThreadRng;
}

/// The clock of the whole agent.
#[derive(Debug, Clone, Copy)]
pub struct SiteClock(pub Clock);

impl ports::Clock for SiteClock {
    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }
}

/// Random values from the operating system's seeded generator.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadRng;

impl ports::Rng for ThreadRng {
    fn uuid(&self) -> u128 {
        uuid::Builder::from_random_bytes(rand::random()).into_uuid().as_u128()
    }
}

/// What all federations share.
#[derive(Debug)]
pub struct Parts {
    /// The site's configuration.
    pub config: Arc<SiteConfig>,
    /// The addresses of its members.
    pub addresses: Arc<Addresses>,
    /// Its certificates.
    pub pki: SitePki,
    /// The agent's identity.
    pub tls: TlsStore,
    /// The other agents.
    pub mesh: Arc<Mesh>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// The program that members run.
    pub executable: PathBuf,
    /// The clock.
    pub clock: Clock,
    /// The last lines of the own log.
    pub log: Recent,
}

struct Running {
    handle: Handle,
    runtime: Arc<ProcessRuntime>,
}

/// See the module.
pub struct Registry {
    parts: Parts,
    drain: Drain,
    running: Mutex<BTreeMap<FederationKey, Running>>,
    /// What the start-up still waits for.
    awaited: Mutex<Vec<String>>,
    problems: Mutex<Vec<String>>,
    /// The file of each federation.
    files: Mutex<BTreeMap<FederationKey, PathBuf>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("site", &self.parts.config.site).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// Runs nothing yet.
    pub fn new(parts: Parts, drain: Drain) -> Arc<Self> {
        let awaited = vec!["manifests are read".to_owned(), "records are read".to_owned()];
        Arc::new(Self {
            parts,
            drain,
            running: Mutex::default(),
            awaited: Mutex::new(awaited),
            problems: Mutex::default(),
            files: Mutex::default(),
        })
    }

    /// Gives a federation its manifest; the task is started if need be.
    pub async fn manifest(&self, manifest: Arc<Manifest>) {
        if manifest.spec.has_site(&self.parts.config.site) {
            self.reserve(&manifest.key).await;
        }
        let handle = self.federation(&manifest.key).await;
        handle.tell(Message::Spec(Some(manifest))).await;
    }

    /// The manifest of a federation was deleted here. One that has no task has nothing that could be stopped.
    pub async fn deleted(&self, key: &FederationKey) {
        let handle = lock(&self.running).get(key).map(|running| running.handle.clone());
        if let Some(handle) = handle {
            handle.tell(Message::Deleted).await;
        }
    }

    /// Federations that come together get their ports in the order of their names, whichever task is the first.
    async fn reserve(&self, key: &FederationKey) {
        let (addresses, federation) = (Arc::clone(&self.parts.addresses), key.clone());
        let reserved = tokio::task::spawn_blocking(move || addresses.reserve(&federation)).await;
        // Tried again, and told, when a slot needs its address.
        if let Ok(Err(error)) = reserved {
            tracing::debug!(federation = %key, error = crate::chain(&error), "no ports reserved");
        }
    }

    /// The task of a federation, started if need be.
    pub async fn federation(&self, key: &FederationKey) -> Handle {
        if let Some(running) = lock(&self.running).get(key) {
            return running.handle.clone();
        }
        let Parts { config, addresses, pki, tls, mesh, metrics, executable, clock, log: _ } = &self.parts;
        let folder = store::folder(&config.state_dir, key);
        let setup = Setup {
            site: Arc::clone(config),
            addresses: Arc::clone(addresses),
            pki: pki.clone(),
            tls: tls.clone(),
            executable: executable.clone(),
            metrics: Arc::clone(metrics),
        };
        let runtime = Arc::new(ProcessRuntime::new(setup, key.clone(), self.drain.clone()));
        let listens = {
            let (addresses, key) = (Arc::clone(addresses), key.clone());
            Arc::new(move |slot: &Slot| {
                let address = addresses.get(&key, slot)?;
                let (client, metrics) = (address.ports.client, address.ports.metrics);
                Some(Listen { address: address.bind, client, metrics })
            })
        };
        let (foreign, credentials) = (foreign_peers(pki, &folder), credentials(&config.state_dir, key));
        let ports: Ports<Real> = Ports {
            etcd: Arc::new(EtcdPorts::new(
                pki.clone(),
                folder.join("pki"),
                listens,
                Abroad { peers: foreign.clone(), credentials: credentials.clone() },
            )),
            runtime: Arc::clone(&runtime),
            adoption: Arc::new(ProcessAdoption::new(foreign, key.clone(), &folder, credentials)),
            peers: Arc::new(FederationPeers::new(Arc::clone(mesh), key.clone())),
            records: Arc::new(FileRecords::new(folder, key)),
            clock: Arc::new(SiteClock(*clock)),
            rng: Arc::new(ThreadRng),
        };
        let names = Names { site: config.site.clone(), federation: key.clone() };
        let after = config.placement_after.as_millis();
        let settings = Settings { placement_after_ms: u64::try_from(after).unwrap_or(u64::MAX) };
        let (task, handle) = Federation::open(names, settings, ports, Arc::clone(metrics)).await;
        {
            let mut running = lock(&self.running);
            // Only one task per federation, whoever came first.
            if let Some(other) = running.get(key) {
                return other.handle.clone();
            }
            running.insert(key.clone(), Running { handle: handle.clone(), runtime });
        }
        self.drain.spawn(task.run(self.drain.clone()));
        mesh.enter(key, handle.clone()).await;
        handle
    }

    /// Ends all supervisors and their etcds.
    pub async fn stop_members(&self) {
        let runtimes: Vec<_> =
            lock(&self.running).values().map(|running| Arc::clone(&running.runtime)).collect();
        futures::future::join_all(runtimes.iter().map(|runtime| runtime.stop_all())).await;
    }

    /// Part of the start-up is over.
    pub fn done(&self, what: &str) {
        lock(&self.awaited).retain(|awaited| awaited != what);
    }

    /// What the start-up still waits for. Peers and quorum are not in it.
    pub fn awaited(&self) -> Vec<String> {
        lock(&self.awaited).clone()
    }

    /// What is wrong with manifests and certificates.
    pub fn set_problems(&self, problems: Vec<String>) {
        *lock(&self.problems) = problems;
    }

    /// See [`Registry::set_problems`].
    pub fn problems(&self) -> Vec<String> {
        lock(&self.problems).clone()
    }

    /// The file of each federation.
    pub fn set_files(&self, files: BTreeMap<FederationKey, PathBuf>) {
        *lock(&self.files) = files;
    }

    /// The file that describes a federation here.
    pub fn file(&self, key: &FederationKey) -> Option<PathBuf> {
        lock(&self.files).get(key).cloned()
    }

    /// The last snapshot of a federation.
    pub fn snapshot(&self, key: &FederationKey) -> Option<Arc<Snapshot>> {
        lock(&self.running).get(key).map(|running| running.handle.snapshot())
    }

    /// The last snapshots of all.
    pub fn snapshots(&self) -> Vec<Arc<Snapshot>> {
        lock(&self.running).values().map(|running| running.handle.snapshot()).collect()
    }

    /// The mesh.
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.parts.mesh
    }

    /// What this agent says of itself and of the mesh.
    pub fn report(&self) -> SiteReport {
        let Parts { config, tls, mesh, .. } = &self.parts;
        let expiries = tls.expiries().into_iter();
        let certificate = |expiry: Expiry| CertificateReport {
            what: expiry.what,
            ends: quorate_link::clock::seconds(expiry.not_after),
        };
        SiteReport {
            site: config.site.to_string(),
            mesh: config.mesh.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: crate::peers::PROTOCOL.1,
            state_dir: config.state_dir.clone(),
            manifests: config.manifests.clone(),
            peers: config
                .peers
                .iter()
                .map(|peer| PeerReport {
                    endpoint: peer.endpoint.clone(),
                    trusted: tls.trusts(peer.site.as_str()),
                    ..mesh.contact(&peer.site)
                })
                .collect(),
            certificates: expiries.map(certificate).collect(),
            problems: [self.problems(), tls.problems()].concat(),
        }
    }

    /// The last lines of this agent's log.
    pub fn log(&self) -> Vec<String> {
        self.parts.log.lines()
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.parts.metrics
    }
}
