//! Sites on this machine: folders, trust roots, settings, manifests; and their agents as separate processes.
//!
//! Site n binds `127.<network>.n.1` with the ordinary ports, so everything looks as it would on machines of their own.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_link::clock::Clock;
use quorate_link::etcd::EtcdClient;
use quorate_link::etcd::flags::Minor;
use quorate_link::pki::{Leaf, Pair, Root, SitePki};
use quorate_link::tls::EtcdTls;
use rustix::fs::FlockOperation;

use super::namespace::Namespace;
use super::process::{Kind, Run, kill, log_file, random_id};
use super::socket;

/// The trust domain of all of them.
pub const TRUST_DOMAIN: &str = "quorate.test";
/// The namespace of the federations.
pub const NAMESPACE: &str = "demo";
/// The port of the mesh.
pub const MESH_PORT: u16 = 8443;
/// The client port of the first member of a site.
pub const CLIENT_PORT: u16 = 2379;
/// What the first two members of a site and its agent bind.
const PORTS: [u16; 12] =
    [MESH_PORT, 8080, 8444, 8081, CLIENT_PORT, 2380, 2381, 8454, 8091, CLIENT_PORT + 10, 2390, 2391];
/// The federations whose members have a name, and how many members of a site have one.
const FEDERATIONS: [&str; 2] = ["main", "second"];
const ORDINALS: u32 = 8;
/// What runs if the manifest names no version.
const DEFAULT_MINOR: Minor = Minor::V3_6;
/// The longest path that a UNIX socket can have.
const SOCKET_PATH: usize = 107;

/// One site.
#[derive(Debug, Clone)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// Where its listeners bind.
    pub address: Ipv4Addr,
    /// All that belongs to it.
    pub folder: PathBuf,
    /// See [`Place::network`].
    pub network: Option<PathBuf>,
    /// Its zones; none is the default one.
    pub zones: Vec<String>,
}

impl Site {
    /// The agent's state folder.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// The folder with its `FederatedEtcd` files.
    pub fn manifests(&self) -> PathBuf {
        self.folder.join("federations")
    }

    /// The agent's settings.
    pub fn config(&self) -> PathBuf {
        self.folder.join("quorate.yaml")
    }

    /// The agent's log.
    pub fn log(&self) -> PathBuf {
        self.folder.join("agent.log")
    }

    /// The hosts file of its processes.
    pub fn hosts(&self) -> PathBuf {
        self.folder.join("hosts")
    }

    /// Where its agent listens for others.
    pub fn mesh(&self) -> String {
        format!("{}:{MESH_PORT}", self.address)
    }

    /// The agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.state().join("agent.sock")
    }

    /// The folder of the member in a slot.
    pub fn member(&self, federation: &str, slot: &str) -> PathBuf {
        self.state().join("federations").join(format!("{NAMESPACE}.{federation}")).join("members").join(slot)
    }

    /// The certificates of the site.
    pub fn pki(&self) -> Result<SitePki> {
        Ok(SitePki::open(&self.state(), &self.name, TRUST_DOMAIN)?)
    }

    /// The certificate of a user of this site's client port.
    pub fn user_pair(&self) -> Pair {
        Pair::at(&self.folder.join("user"), "user")
    }

    /// TLS of a user of this site's client port.
    pub fn user(&self) -> Result<EtcdTls> {
        Ok(EtcdTls::load(self.pki()?.root_path(Root::Client), self.user_pair())?)
    }

    /// A client of the first member of this site.
    pub async fn client(&self) -> Result<EtcdClient> {
        self.client_of(0).await
    }

    /// A client of the member with this ordinal.
    pub async fn client_of(&self, ordinal: u16) -> Result<EtcdClient> {
        let endpoint = format!("https://{}:{}", self.address, CLIENT_PORT + 10 * ordinal);
        Ok(EtcdClient::connect(&endpoint, &self.user()?).await?)
    }

    /// Says where this site finds the members of sites: running processes see a change at once.
    pub fn name_members<'a>(&self, sites: impl Iterator<Item = (&'a Self, Ipv4Addr)>) -> Result<()> {
        let mut text =
            fs::read_to_string("/etc/hosts").unwrap_or_else(|_| "127.0.0.1 localhost\n".to_owned());
        if !text.ends_with('\n') {
            text.push('\n');
        }
        for (Self { name, .. }, address) in sites {
            for federation in FEDERATIONS {
                for ordinal in 0..ORDINALS {
                    writeln!(text, "{address} {federation}-{name}-{ordinal}.{name}.{TRUST_DOMAIN}")?;
                }
            }
        }
        // In place: the file is mounted.
        fs::write(self.hosts(), text).with_context(|| format!("cannot write {}", self.hosts().display()))
    }

    /// The last lines of the agent's log.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
    }

    /// Writes a manifest, as a whole or not at all.
    pub fn apply(&self, name: &str, manifest: &str) -> Result<()> {
        let file = self.manifests().join(format!("{name}.yaml"));
        quorate_link::durable::write_file(&file, manifest.as_bytes(), quorate_link::durable::PUBLIC)?;
        Ok(())
    }
}

/// The sites and their processes.
#[derive(Debug)]
pub struct Mesh {
    /// The sites in order.
    pub sites: Vec<Site>,
    /// Their processes.
    pub run: Run,
    binary: PathBuf,
    etcd: PathBuf,
    id: String,
    namespace: Namespace,
    peer_cidrs: Vec<String>,
}

/// Where a site is.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// Where its listeners bind.
    pub address: Ipv4Addr,
    /// The network namespace that it lives in; none is that of whoever starts it.
    pub network: Option<PathBuf>,
    /// Its zones; none is the default one.
    pub zones: Vec<String>,
}

impl Place {
    /// Site n at `127.<network>.n.1`, in the network of whoever starts it.
    pub fn on_loopback(sites: &[String], network: u8) -> Vec<Self> {
        let place = |(number, name): (u8, &String)| Self {
            name: name.clone(),
            address: Ipv4Addr::new(127, network, number, 1),
            network: None,
            zones: Vec::new(),
        };
        (1..).zip(sites).map(place).collect()
    }
}

/// What a mesh is made of.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The sites.
    pub sites: Vec<Place>,
    /// The `quorate` to run.
    pub binary: PathBuf,
    /// The folder with `etcd`.
    pub etcd: PathBuf,
    /// Where everything is put.
    pub folder: PathBuf,
    /// The folder stays at the end.
    pub keep: bool,
    /// Where agents and members may be.
    pub peer_cidrs: Vec<String>,
}

impl Mesh {
    /// Makes the folders, roots, trust and settings of all sites. Starts nothing.
    pub fn lay_out(plan: Plan) -> Result<Self> {
        let site = |place: Place| Site {
            folder: plan.folder.join(&place.name),
            name: place.name,
            address: place.address,
            network: place.network,
            zones: place.zones,
        };
        let sites: Vec<Site> = plan.sites.into_iter().map(site).collect();
        for site in &sites {
            if site.network.is_none() {
                free(site.address, &PORTS)?;
            }
            if site.socket().as_os_str().len() > SOCKET_PATH {
                bail!("{} is too long for a socket: use a shorter folder (--dir)", site.socket().display());
            }
        }
        let run = Run::begin(&plan.folder, plan.keep)?;
        for site in &sites {
            fs::create_dir_all(site.manifests())?;
            fs::create_dir_all(site.state())?;
            let pki = SitePki::init(&site.state(), &site.name, TRUST_DOMAIN)?;
            pki.ensure(&Leaf::User { name: "demo".to_owned() }, &site.user_pair())?;
            site.name_members(sites.iter().map(|other| (other, other.address)))?;
        }
        exchange_roots(&sites)?;
        let first = sites.first().context("no sites")?;
        let namespace = Namespace::probe(&first.hosts())?;
        let Plan { binary, etcd, peer_cidrs, .. } = plan;
        let id = random_id().to_string();
        let mesh = Self { sites, run, binary, etcd, id, namespace, peer_cidrs };
        for site in &mesh.sites {
            mesh.configure(site, &mesh.peers_of(site))?;
        }
        Ok(mesh)
    }

    /// The id of the mesh.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A site by name.
    pub fn site(&self, name: &str) -> Result<&Site> {
        self.sites.iter().find(|site| site.name == name).with_context(|| format!("no site {name}"))
    }

    /// The other sites with their true endpoints.
    pub fn peers_of(&self, site: &Site) -> Vec<(String, String)> {
        let others = self.sites.iter().filter(|other| other.name != site.name);
        others.map(|other| (other.name.clone(), format!("{}:{MESH_PORT}", other.address))).collect()
    }

    /// Writes the settings of a site's agent.
    pub fn configure(&self, site: &Site, peers: &[(String, String)]) -> Result<()> {
        let mut text = format!(
            "site: {name}\ntrustDomain: {TRUST_DOMAIN}\nmesh: {id}\nstateDir: {state}\nmanifests: {manifests}\n\
             address: {address}\npeerDomain: {name}.{TRUST_DOMAIN}\netcdDir: {etcd}\n\
             peerCIDRs: {cidrs:?}\nlogLevel: info\n",
            name = site.name,
            id = self.id,
            state = site.state().display(),
            manifests = site.manifests().display(),
            address = site.address,
            etcd = self.etcd.display(),
            cidrs = self.peer_cidrs,
        );
        if !site.zones.is_empty() {
            writeln!(text, "zones: {:?}", site.zones)?;
        }
        text.push_str("peers:\n");
        for (name, endpoint) in peers {
            writeln!(text, "  - {{site: {name}, endpoint: \"{endpoint}\"}}")?;
        }
        quorate_link::durable::write_file(&site.config(), text.as_bytes(), quorate_link::durable::PUBLIC)?;
        Ok(())
    }

    fn agent(&self, site: &Site) -> Command {
        let mut command = self.command(site);
        command.args(["agent", "--config"]).arg(site.config());
        command
    }

    /// Writes a script that starts the agent of a site again, for people; the end of the run is its end too.
    pub fn script(&self, site: &Site) -> Result<PathBuf> {
        let path = site.folder.join("start.sh");
        let text =
            format!("{} >>{} 2>&1 </dev/null &\n", shell(&self.agent(site)), quote(site.log().as_os_str()));
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Starts the agent of a site as a process of its own.
    pub fn start(&self, site: &Site) -> Result<()> {
        let mut command = self.agent(site);
        let log = log_file(&site.log())?;
        command.stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("cannot start the agent of {}", site.name))?;
        Ok(())
    }

    /// A command of this site's processes: it sees the names of the members, and ends with the run.
    pub fn command(&self, site: &Site) -> Command {
        let network = site.network.as_deref();
        self.namespace.command(&self.run, &site.name, network, &site.hosts(), &self.binary)
    }

    /// Waits until no process of these kinds is left at a site, and an agent can be started again.
    pub async fn gone(&self, site: &Site, kinds: &[Kind], patience: Duration) -> Result<()> {
        self.run.gone(&site.name, kinds, patience).await?;
        if !kinds.contains(&Kind::Agent) {
            return Ok(());
        }
        // Who is being killed loses its environment, by which it is found, before it lets go of its lock.
        let path = site.state().join("lock");
        let clock = Clock::start();
        while let Ok(file) = fs::File::open(&path)
            && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
        {
            if clock.elapsed() > patience {
                bail!("after {patience:?} {} is still locked", path.display());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// A command of this run that is none of ours and sees the names of the members as `site` does; `name` tells its processes
    /// from all others.
    pub fn stranger(&self, name: &str, site: &Site, network: Option<&Path>, program: &Path) -> Command {
        self.namespace.command(&self.run, name, network, &site.hosts(), program)
    }

    /// Waits until the agent of a site answers on its socket.
    pub async fn up(&self, site: &Site, patience: Duration) -> Result<()> {
        let clock = Clock::start();
        let mut missed = 0;
        loop {
            let Err(error) = socket::get(&site.socket(), "/v1/federations").await else { return Ok(()) };
            // A shell may still be on its way to becoming the agent.
            let runs =
                [Kind::Agent, Kind::Other].iter().any(|kind| !self.run.of(&site.name, *kind).is_empty());
            // Nor does a process that is just becoming another program say whose it is.
            missed = if runs { 0 } else { missed + 1 };
            if missed > 5 && clock.elapsed() > Duration::from_secs(1) {
                bail!("the agent of {} ended; its log:\n{}", site.name, site.log_tail(15));
            }
            if clock.elapsed() > patience {
                let log = site.log_tail(15);
                return Err(error.context(format!(
                    "the agent of {} is not up after {patience:?}; its log:\n{log}",
                    site.name
                )));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The site whose member leads, by what etcd itself says.
    pub async fn leader(&self) -> Option<&Site> {
        for site in &self.sites {
            let Ok(client) = site.client().await else { continue };
            let client = client.with_deadline(Duration::from_secs(1));
            match client.status().await {
                Ok(status) if status.leader == status.header.member_id => return Some(site),
                _ => {}
            }
        }
        None
    }
}

/// A `FederatedEtcd` with so many voters at each of these sites.
pub fn spread(name: &str, sites: &[(&str, usize)]) -> String {
    let clusters: Vec<String> =
        sites.iter().map(|(site, voters)| format!("{{name: {site}, members: {voters}}}")).collect();
    manifest(name, &[]).replace("clusters: []", &format!("clusters: [{}]", clusters.join(", ")))
}

/// A `FederatedEtcd` over these sites.
pub fn manifest(name: &str, sites: &[String]) -> String {
    let clusters: Vec<String> = sites.iter().map(|site| format!("{{name: {site}}}")).collect();
    format!(
        "apiVersion: quorate.dev/v1alpha1\nkind: FederatedEtcd\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
         spec:\n  clusters: [{}]\n",
        clusters.join(", ")
    )
}

/// The same with a minor of etcd, where that is not what a manifest without a word of it gets.
pub fn with_etcd(manifest: String, minor: Minor) -> String {
    if minor == DEFAULT_MINOR { manifest } else { format!("{manifest}  version: \"{minor}\"\n") }
}

/// Kills the etcd of a site and removes its data directory. The directory goes first, so that nothing starts on it again.
pub fn wipe(mesh: &Mesh, site: &Site) -> Result<()> {
    let etcd = mesh.run.of(&site.name, Kind::Etcd);
    let [etcd] = etcd.as_slice() else { bail!("{} runs {} etcd processes, not one", site.name, etcd.len()) };
    let data = PathBuf::from(etcd.flag("data-dir").context("etcd has no --data-dir")?);
    let aside = site.folder.join("wiped");
    fs::rename(&data, &aside).with_context(|| format!("cannot move {} away", data.display()))?;
    kill(etcd.pid);
    fs::remove_dir_all(&aside).with_context(|| format!("cannot remove {}", aside.display()))
}

/// The command as a line for a shell, in a session of its own.
fn shell(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let variables = variables.map(|(name, value)| format!("{}={}", name.display(), quote(value)));
    let words = [command.get_program()].into_iter().chain(command.get_args()).map(quote);
    let words = ["setsid".to_owned()].into_iter().chain(words);
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

fn quote(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}

/// Whether nobody listens on these ports.
pub fn free(address: Ipv4Addr, ports: &[u16]) -> Result<()> {
    for port in ports {
        if let Err(error) = TcpListener::bind((address, *port)) {
            bail!(
                "{address}:{port} cannot be used ({error}): stop what listens there (another demo? give this one another --network), then try again"
            );
        }
    }
    Ok(())
}

/// Each site trusts the roots of the others: what `quorate mesh invite` and `accept`, or files in Git, bring about.
fn exchange_roots(sites: &[Site]) -> Result<()> {
    for from in sites {
        let roots = from.pki()?.roots()?;
        for to in sites.iter().filter(|site| site.name != from.name) {
            to.pki()?.trust().add(&from.name, &roots)?;
        }
    }
    Ok(())
}

/// The folder that holds `etcd` of a minor, and its exact version.
pub fn find_etcd(minor: Minor) -> Result<(PathBuf, String)> {
    let configured = std::env::var_os("QUORATE_ETCD_DIR").map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let candidates = match &configured {
        Some(folder) => vec![folder.join(format!("etcd-{minor}")), folder.clone()],
        None => std::env::split_paths(&paths).collect(),
    };
    let mut others = Vec::new();
    for folder in candidates {
        match version(&folder.join("etcd")) {
            Some(version) if version.parse() == Ok(minor) => return Ok((folder, version)),
            Some(version) => others.push(version),
            None => {}
        }
    }
    let found = if others.is_empty() { "none".to_owned() } else { format!("only {}", others.join(", ")) };
    let place = configured.map_or_else(
        || "on PATH".to_owned(),
        |folder| format!("in QUORATE_ETCD_DIR, which is {}", folder.display()),
    );
    bail!(
        "no etcd {minor} {place} ({found}): run `make demo ARGS=\"--etcd {minor}\"`, or set QUORATE_ETCD_DIR to a folder with that version"
    )
}

fn version(etcd: &Path) -> Option<String> {
    let output = Command::new(etcd).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| line.strip_prefix("etcd Version: ")).map(|version| version.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_named() {
        let address = Ipv4Addr::new(127, 99, 1, 1);
        let holder = TcpListener::bind((address, 0)).unwrap();
        let port = holder.local_addr().unwrap().port();
        let error = free(address, &[port]).unwrap_err().to_string();
        assert!(error.contains(&format!("127.99.1.1:{port}")), "{error}");
        drop(holder);
        free(address, &[port]).unwrap();
    }

    #[test]
    fn a_command_as_a_line_for_a_shell() {
        let mut command = Command::new("a b");
        command.arg("it's").env("X", "1 2").env_remove("Y");
        assert_eq!(shell(&command), r"X='1 2' setsid 'a b' 'it'\''s'");
    }

    #[test]
    fn the_manifest_is_the_one_of_the_design() {
        insta::assert_snapshot!(manifest("main", &["east", "west", "north"].map(str::to_owned)), @r"
        apiVersion: quorate.dev/v1alpha1
        kind: FederatedEtcd
        metadata: {name: main, namespace: demo}
        spec:
          clusters: [{name: east}, {name: west}, {name: north}]
        ");
    }

    #[test]
    fn voters_by_site() {
        let text = spread("main", &[("east", 2), ("south", 1)]);
        assert!(
            text.ends_with("spec:\n  clusters: [{name: east, members: 2}, {name: south, members: 1}]\n"),
            "{text}"
        );
    }

    #[test]
    fn only_another_minor_than_the_default_is_named() {
        let plain = manifest("main", &["east".to_owned()]);
        assert_eq!(with_etcd(plain.clone(), Minor::V3_6), plain);
        assert_eq!(with_etcd(plain.clone(), Minor::V3_7), format!("{plain}  version: \"3.7\"\n"));
    }
}
