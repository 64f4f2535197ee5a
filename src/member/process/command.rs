//! Which etcd is started, and with which arguments.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use quorate_core::federation::member::EtcdOptions;
use quorate_core::reason::{Code, Reason};
use quorate_link::etcd::flags::{self, ClientTls, Flags, Minor, PeerTls, Start};
use quorate_link::host;
use quorate_link::pki::peer_common_name;
use tokio::process::Command;

use crate::guard::{How, Permit};
use crate::options::Options;
use crate::volume::Volume;

/// Why there is no command line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no free loopback port.
    #[error("cannot find a free loopback port for the first start of a seed")]
    PrivatePort(#[source] std::io::Error),
    /// No such etcd on this machine.
    #[error("no etcd {version} in {}; install it there, or name another folder in etcdDir", folder.display())]
    NoBinary {
        /// What was asked for.
        version: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// The program does not say its version.
    #[error("{} does not run", path.display())]
    Version {
        /// The program.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The program is another version.
    #[error("{} is etcd {found}, {wanted} was asked for; install that version, or change spec.version", path.display())]
    OtherVersion {
        /// The program.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// The program lacks fixes.
    #[error("{} is etcd {found}, which is too old; install {oldest} or a later patch of it", path.display())]
    TooOld {
        /// The program.
        path: PathBuf,
        /// What it says.
        found: String,
        /// The oldest that is good enough.
        oldest: String,
    },
    /// The arguments cannot be made.
    #[error(transparent)]
    Flags(#[from] flags::Error),
}

impl Error {
    /// What it says of the host of a site.
    pub fn trouble(&self) -> Reason {
        match self {
            Self::NoBinary { version, folder } => {
                Reason::new(Code::EtcdMissing).place(format!("{version} in {}", folder.display()))
            }
            Self::OtherVersion { path, found, wanted } => Reason::new(Code::EtcdOtherVersion)
                .place(format!("{} is {found}, {wanted} is asked for", path.display())),
            Self::TooOld { path, found, oldest } => Reason::new(Code::EtcdTooOld)
                .place(format!("{} is {found}, the oldest that will do is {oldest}", path.display())),
            Self::Version { .. } | Self::PrivatePort(_) | Self::Flags(_) => {
                let other = || Reason::new(Code::HostFault).place(self.to_string());
                host::trouble(self).unwrap_or_else(other)
            }
        }
    }
}

/// Finds the etcd of a version (`3.6` or `3.6.16`): `<folder>/etcd-<minor>/etcd`, then `<folder>/etcd`.
pub async fn find(folder: &Path, version: &str) -> Result<(PathBuf, Minor), Error> {
    let wanted: Minor = version.parse()?;
    let candidates = [folder.join(format!("etcd-{wanted}")).join("etcd"), folder.join("etcd")];
    let Some(path) = candidates.into_iter().find(|path| path.is_file()) else {
        return Err(Error::NoBinary { version: version.to_owned(), folder: folder.to_owned() });
    };
    let output = Command::new(&path).arg("--version").env_clear().kill_on_drop(true).output().await;
    let output = output.map_err(|source| Error::Version { path: path.clone(), source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find_map(|line| line.strip_prefix("etcd Version:")).unwrap_or_default().trim();
    let fits = found.parse::<Minor>().is_ok_and(|minor| minor == wanted)
        && (version.split('.').count() < 3 || version == found);
    let found = found.to_owned();
    if !fits {
        return Err(Error::OtherVersion { path, found, wanted: version.to_owned() });
    }
    let oldest = wanted.oldest_patch();
    // Behind the patch there may be a word, as in 3.6.0-rc.1: such an etcd is older than the patch itself.
    let number = found.splitn(3, '.').nth(2).and_then(|patch| patch.parse::<u32>().ok());
    if number.is_none_or(|number| number < oldest) {
        return Err(Error::TooOld { path, found, oldest: format!("{wanted}.{oldest}") });
    }
    Ok((path, wanted))
}

/// The ports that this start binds must be free: etcd itself would only end with a line in its log.
pub fn ports_free(options: &Options, permit: &Permit) -> Result<(), Reason> {
    let ports = options.ports;
    let client = (!permit.private()).then_some(ports.client);
    let all = peer_ports(options, permit).into_iter().chain([ports.metrics]).chain(client);
    all.into_iter().try_for_each(|port| host::listens(options.address(port)))
}

/// Where etcd listens for peers: on the port of its slot, unless its peer URL is being changed.
fn peer_ports(options: &Options, permit: &Permit) -> Vec<u16> {
    match permit.grant.settings.peer_ports.as_slice() {
        [] => vec![options.ports.peer],
        ports => ports.to_vec(),
    }
}

/// A joiner has to find every other member by name: etcd would look for half a minute and end (scenarios.md S10).
pub async fn names_known(permit: &Permit) -> Result<(), Reason> {
    let others =
        permit.grant.initial_cluster.iter().map(|(_, url)| url).filter(|url| **url != permit.grant.peer_url);
    for url in others {
        let Some((_, address)) = url.0.split_once("://") else { continue };
        if let Err(error) = tokio::net::lookup_host(address).await {
            return Err(Reason::new(Code::PeerDNSUnresolved).place(format!("{address}: {error}")));
        }
    }
    Ok(())
}

/// The arguments for a permitted start.
pub fn arguments(
    options: &Options,
    volume: &Volume,
    minor: Minor,
    permit: &Permit,
) -> Result<Vec<String>, Error> {
    let Permit { how, grant, incarnation: _ } = permit;
    let EtcdOptions { version: _, heartbeat_ms, election_ms, quota_bytes, peer_ports: _ } = &grant.settings;
    let ports = options.ports;
    let tls = &options.certificates;
    let url = |port| format!("https://{}", options.address(port));
    let client = if permit.private() { private_client_url()? } else { url(ports.client) };
    let start = match how {
        How::New => Start::Seed,
        How::Join => {
            let members = grant.initial_cluster.iter().map(|(name, url)| (name.to_string(), url.to_string()));
            Start::Join { members: members.collect() }
        }
        // Without the list: were the directory gone since the guard looked, etcd would stop instead of beginning anew
        // under an id that may have voted.
        How::Resume => Start::Resume,
    };
    let flags = Flags {
        minor,
        name: grant.name.to_string(),
        data_dir: volume.data(),
        start,
        token: grant.token(),
        peer_url: grant.peer_url.to_string(),
        listen_peer: peer_ports(options, permit).into_iter().map(url).collect(),
        client_urls: options.client_urls.iter().map(ToString::to_string).collect(),
        listen_client: vec![client],
        listen_metrics: Some(format!("http://{}", metrics(options))),
        peer_tls: PeerTls {
            server: tls.peer(),
            client: tls.peer_client(),
            trusted: tls.peer_roots.clone(),
            common_name: (!options.foreign_peers).then(|| peer_common_name(&grant.uid.to_string())),
        },
        client_tls: ClientTls { server: tls.client(), trusted: tls.client_roots.clone() },
        heartbeat_ms: (*heartbeat_ms).into(),
        election_ms: (*election_ms).into(),
        quota_bytes: Some(*quota_bytes),
        auto_compaction: None,
        snapshot_catchup_entries: None,
        watch_progress: None,
        extensive_metrics: false,
        log_level: "info".to_owned(),
        extra: Vec::new(),
    };
    Ok(flags.render()?)
}

/// A client address that nobody knows, for a seed that is not recorded yet (safety.md 7.5): what a client wrote into it
/// could be thrown away by a higher ballot.
fn private_client_url() -> Result<String, Error> {
    let address = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr());
    Ok(format!("https://{}", address.map_err(Error::PrivatePort)?))
}

/// etcd's health and metrics port.
pub fn metrics(options: &Options) -> SocketAddr {
    options.address(options.ports.metrics)
}
