//! `quorate agent`: from a configuration to running loops, and back.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_api::config::SiteConfig;
use quorate_core::id::BootId;
use quorate_link::clock::{self, Clock};
use quorate_link::drain::Drain;
use quorate_link::pki::{self, SitePki};
use quorate_link::telemetry::Recent;
use quorate_link::tls::{Admit, Source, TlsStore, Trust, store as tls};
use quorate_link::transport::{self, Limits, dial::DialError};
use tokio::net::TcpListener;

use crate::http;
use crate::manifests::Folder;
use crate::metrics::Metrics;
use crate::peers::{self, Mesh};
use crate::ports::Rng as _;
use crate::process::Addresses;
use crate::registry::{Parts, Registry, ThreadRng};
use crate::store::{self, Fixed, StateFolder};

/// How often manifests are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often certificate files are looked at.
const RELOAD: Duration = Duration::from_secs(5);
/// How often the own leaf is looked at for renewal and the expiry metrics are made.
const RENEW: Duration = Duration::from_mins(1);

/// What the agent is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration of the site.
    pub config: SiteConfig,
    /// At the end, stop the members too; otherwise they go on and are adopted later.
    pub stop_members: bool,
    /// The program whose subcommand `member` runs a supervisor; none = this program.
    pub executable: Option<PathBuf>,
    /// The last lines of this process's log.
    pub log: Recent,
}

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state folder.
    #[error(transparent)]
    State(#[from] store::Error),
    /// The certificates of the site.
    #[error(transparent)]
    Pki(#[from] pki::Error),
    /// The agent's own certificate or the roots.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// A peer's address.
    #[error(transparent)]
    Peer(#[from] DialError),
    /// A port is in use.
    #[error("cannot listen on {address}; stop what uses it, or change address and ports of the site")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The socket of the JSON API.
    #[error("cannot make the socket {}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// This program cannot be found again.
    #[error("cannot tell which program this is, to start members with it")]
    Executable(#[source] io::Error),
}

/// Runs the agent until `drain` is signalled.
pub async fn run(options: Options, drain: Drain) -> Result<(), Error> {
    let Options { config, stop_members, executable, log } = options;
    let config = Arc::new(config);
    let executable = match executable {
        Some(path) => path,
        None => std::env::current_exe().map_err(Error::Executable)?,
    };
    let fixed = Fixed {
        site: config.site.clone(),
        mesh: config.mesh.clone(),
        trust_domain: config.trust_domain.clone(),
    };
    let state = StateFolder::open(&config.state_dir, &fixed)?;
    #[cfg(feature = "crash-points")]
    crate::federation::crash::arm(&config.state_dir);
    let pki = SitePki::open(&config.state_dir, config.site.as_str(), &config.trust_domain)?;
    pki.ensure(&pki::Leaf::Agent, &pki.agent_pair())?;
    let tls = TlsStore::load(Source {
        trust_domain: config.trust_domain.clone(),
        leaf: pki.agent_pair(),
        trust: Trust::Folder(pki.trust()),
    })?;
    let metrics = Metrics::shared();
    let clock = Clock::start();
    let setup = peers::Setup {
        site: config.site.clone(),
        mesh: config.mesh.clone(),
        peers: config.peers.iter().map(|peer| (peer.site.clone(), peer.endpoint.clone())).collect(),
        from: config.peer_cidrs.clone(),
        boot: BootId(ThreadRng.uuid()),
        tls: tls.clone(),
        memory: config.state_dir.join("peers.json"),
        clock,
    };
    let mesh = Mesh::new(setup, Arc::clone(&metrics))?;
    let mesh_listener = listen(SocketAddr::new(config.address, config.ports.agent)).await?;
    let http_listener = listen(SocketAddr::new(config.address, config.ports.http)).await?;
    let socket_path = config.socket();
    let socket =
        http::socket(&socket_path).map_err(|source| Error::Socket { path: socket_path.clone(), source })?;
    let known = state.federations();
    let parts = Parts {
        config: Arc::clone(&config),
        addresses: Arc::new(Addresses::load(Arc::clone(&config), &known)),
        pki: pki.clone(),
        tls: tls.clone(),
        mesh: Arc::clone(&mesh),
        metrics: Arc::clone(&metrics),
        executable,
        clock,
        log,
    };
    let registry = Registry::new(parts, drain.clone());
    tracing::info!(
        site = %config.site,
        version = env!("CARGO_PKG_VERSION"),
        peers = config.peers.len(),
        mesh = %mesh_listener.local_addr().map(|a| a.to_string()).unwrap_or_default(),
        "agent started"
    );

    drain.spawn(http::serve(http_listener, http::public(Arc::clone(&registry)), drain.clone()));
    drain.spawn(http::serve_socket(socket, http::api(Arc::clone(&registry)), drain.clone()));
    drain.spawn(tls.clone().follow(RELOAD, drain.child()));
    drain.spawn_until(renew(pki, tls.clone(), Arc::clone(&metrics)));
    // Records first: a member whose manifest is gone is still ours.
    for key in known {
        registry.federation(&key).await;
    }
    registry.done("records are read");
    let router = peers::router(Arc::clone(&mesh), drain.clone());
    let (limits, counters) = (Limits::default(), Arc::default());
    drain.spawn(transport::serve(
        mesh_listener,
        tls,
        Admit::AnyAgent,
        router,
        limits,
        counters,
        drain.clone(),
    ));
    mesh.start(&drain);
    let folder = Folder::new(config.manifests.clone())
        .at(config.site.clone(), config.zones.clone())
        .remembering(config.state_dir.join("manifests.json"));
    let looking = manifests(Arc::clone(&registry), folder);
    drain.spawn_until(looking);

    drain.signalled().await;
    tracing::info!(stop_members, "agent stops");
    if stop_members {
        registry.stop_members().await;
    }
    if let Err(error) = std::fs::remove_file(&socket_path) {
        tracing::debug!(%error, "the socket is gone already");
    }
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

/// Looks at the manifests until dropped.
async fn manifests(registry: Arc<Registry>, mut folder: Folder) {
    let mut tick = tokio::time::interval(LOOK);
    loop {
        tick.tick().await;
        let looked = tokio::task::spawn_blocking(move || {
            let changes = folder.look();
            (folder, changes)
        });
        let Ok((back, changes)) = looked.await else { return };
        folder = back;
        for manifest in changes.changed {
            tracing::info!(federation = %manifest.key, digest = %manifest.digest.short(), "manifest read");
            registry.manifest(manifest).await;
        }
        for key in changes.deleted {
            tracing::warn!(federation = %key, "the manifest is deleted; nothing stops until it is deleted everywhere");
            registry.deleted(&key).await;
        }
        let problem = |(path, problem): (&PathBuf, &String)| format!("{}: {problem}", path.display());
        registry.set_files(folder.files());
        registry.set_problems(folder.problems().iter().map(problem).collect());
        registry.done("manifests are read");
    }
}

/// Renews the own leaf in time, and tells when certificates end.
async fn renew(pki: SitePki, tls: TlsStore, metrics: Arc<Metrics>) {
    loop {
        let mine = pki.clone();
        let renewed =
            tokio::task::spawn_blocking(move || mine.ensure(&pki::Leaf::Agent, &mine.agent_pair())).await;
        match renewed {
            Ok(Ok(true)) => drop(tls.reload()),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                tracing::error!(error = crate::chain(&error), "the agent's certificate cannot be renewed");
            }
            Err(error) => tracing::error!(%error, "the agent's certificate cannot be looked at"),
        }
        let now = i64::try_from(Clock::unix_seconds()).unwrap_or(i64::MAX);
        for expiry in tls.expiries() {
            let end = i64::try_from(clock::seconds(expiry.not_after)).unwrap_or(i64::MAX);
            metrics.certificate(&expiry.what, end.saturating_sub(now));
        }
        tokio::time::sleep(RENEW).await;
    }
}
