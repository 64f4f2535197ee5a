//! Sites for a test: like those of the demo, with addresses of their own, watched from outside, and swept away at the end.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_cli::demo::mesh::{Mesh, Place, Plan, Site, manifest};
use quorate_cli::demo::process::Kind;
use quorate_cli::demo::verify::{Proof, verify};
use quorate_cli::demo::watch::{Statuses, Watch, member_ids, settled};
use quorate_cli::demo::writer::Writer;
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use quorate_link::etcd::EtcdClient;
use serde::Deserialize;
use tokio::process::Command;

use crate::net::{self, Net};
use crate::suite::{Minor, Outcome};
use crate::wan::Wan;

/// The federation of the tests.
pub const FEDERATION: &str = "main";
/// How long an agent may take to come up.
pub const UP: Duration = Duration::from_secs(30);
/// How long a change may take until everything is as wished.
pub const SETTLED: Duration = Duration::from_mins(3);
/// Slower than the demo's writer: several cases share the machine, and gaps of 300 ms are seen all the same.
pub const PACE: Duration = Duration::from_millis(30);
/// The second part of all addresses: a demo may run beside the tests.
const NETWORK: u8 = 77;

/// Sites with their agents.
pub struct Field {
    /// The sites and their processes.
    pub mesh: Arc<Mesh>,
    /// What all agents say.
    pub watch: Watch,
    /// All times are on this clock.
    pub clock: Clock,
    /// The names of the sites.
    pub sites: Vec<String>,
    /// The minor of etcd.
    pub minor: Minor,
    /// The network, if the field has one of its own.
    pub net: Option<Arc<Net>>,
    drain: Drain,
    folder: tempfile::TempDir,
}

/// A transition as an agent's log has it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Told {
    /// When, on the clock of the machine, in a form that sorts.
    pub timestamp: String,
    /// The site that told it.
    pub site: String,
    /// One word.
    pub event: String,
    /// The sentence.
    pub message: String,
}

/// The binary under test: `QUORATE_BIN`, or built now.
pub async fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("QUORATE_BIN") {
        return Ok(PathBuf::from(path));
    }
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .args(["build", "--quiet", "-p", "quorate", "--bin", "quorate"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if !build.status().await?.success() {
        bail!("building quorate failed");
    }
    // .../target/debug/deps/<this test>
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(std::path::Path::parent).context("no target folder")?;
    Ok(folder.join("quorate"))
}

/// The folder with etcd of a minor: built if need be, so that no test is ever skipped.
pub async fn etcd(minor: Minor) -> Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/stack/etcd.sh");
    let minor = minor.to_string();
    let output = Command::new("bash").arg(script).arg(&minor).stderr(Stdio::inherit()).output().await?;
    if !output.status.success() {
        bail!("e2e/stack/etcd.sh {minor} gave no etcd; set QUORATE_ETCD_DIR to a folder with it");
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

impl Field {
    /// Sites with these names on the loopback, for etcd 3.6; nothing is started.
    pub async fn new(names: &[&str]) -> Result<Self> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Self::at(Place::on_loopback(&names, NETWORK), None, Minor::V3_6).await
    }

    /// The sites of a network of its own; nothing is started. The zones are those of every site.
    pub async fn on(net: &Arc<Net>, minor: Minor, zones: &[&str]) -> Result<Self> {
        let names: Vec<String> = net.names().collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Self::among(net, minor, zones, &names).await
    }

    /// Only these sites of a network.
    pub async fn among(net: &Arc<Net>, minor: Minor, zones: &[&str], names: &[&str]) -> Result<Self> {
        let place = |name: &&str| -> Result<Place> {
            let name = (*name).to_owned();
            let zones = zones.iter().map(|zone| (*zone).to_owned()).collect();
            Ok(Place { address: net.address(&name)?, network: Some(net.path(&name)?), zones, name })
        };
        let places = names.iter().map(place).collect::<Result<_>>()?;
        Self::at(places, Some(Arc::clone(net)), minor).await
    }

    async fn at(places: Vec<Place>, net: Option<Arc<Net>>, minor: Minor) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("quorate-e2e-").tempdir()?;
        let sites: Vec<String> = places.iter().map(|place| place.name.clone()).collect();
        let range = if net.is_some() { net::RANGE } else { "127.0.0.0/8" };
        let mesh = Arc::new(Mesh::lay_out(Plan {
            sites: places,
            binary: binary().await?,
            etcd: etcd(minor).await?,
            folder: folder.path().to_owned(),
            keep: true,
            peer_cidrs: vec![range.to_owned(), "127.0.0.0/8".to_owned()],
        })?);
        let drain = Drain::new();
        mesh.run.collect_dead(&drain);
        let watch = Watch::start(&mesh, FEDERATION, None);
        Ok(Self { mesh, watch, clock: Clock::start(), sites, minor, net, drain, folder })
    }

    /// The network; only for fields that have one.
    pub fn net(&self) -> Result<&Arc<Net>> {
        self.net.as_ref().context("this field has no network of its own")
    }

    /// A folder for whatever a test needs; it is removed at the end.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Puts a proxy into each direction of each link. Before the agents are started.
    pub fn stretch(&self) -> Result<Wan> {
        let wan = Wan::start(self.net()?, &self.sites)?;
        for (own, site) in (1..).zip(&self.mesh.sites) {
            let seen = |number: u8, other: &Site| {
                if number == own { other.address } else { Wan::door(number) }
            };
            let others = (1..).zip(&self.mesh.sites).map(|(number, other)| (other, seen(number, other)));
            site.name_members(others.clone())?;
            let port = quorate_cli::demo::mesh::MESH_PORT;
            let peers: Vec<(String, String)> = others
                .filter(|(other, _)| other.name != site.name)
                .map(|(other, address)| (other.name.clone(), format!("{address}:{port}")))
                .collect();
            self.mesh.configure(site, &peers)?;
        }
        Ok(wan)
    }

    /// A `FederatedEtcd` of this field's minor over these clusters, each as in `east` or `east, members: 2`; `more` lines are
    /// those of the spec.
    pub fn spec(&self, clusters: &[&str], more: &[&str]) -> String {
        let clusters: Vec<String> = clusters.iter().map(|cluster| format!("{{name: {cluster}}}")).collect();
        let mut text = manifest(FEDERATION, &[]);
        text = text.replace("clusters: []", &format!("clusters: [{}]", clusters.join(", ")));
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  version: \"{}\"", self.minor);
        for line in more {
            let _ = writeln!(text, "  {line}");
        }
        text
    }

    /// Applies a spec, starts all agents, and waits for this many settled voters.
    pub async fn raise(&self, spec: &str, voters: usize) -> Result<()> {
        self.apply(spec)?;
        self.start().await?;
        let sites = self.in_spec(spec);
        self.until_settled(&sites, voters).await?;
        Ok(())
    }

    /// The sites that a spec names.
    pub fn in_spec(&self, spec: &str) -> Vec<String> {
        let named = |site: &&String| {
            spec.contains(&format!("{{name: {site}}}")) || spec.contains(&format!("{{name: {site},"))
        };
        self.sites.iter().filter(named).cloned().collect()
    }

    /// Waits until these sites see so many live voters and nothing is left to do.
    pub async fn until_settled(&self, sites: &[String], voters: usize) -> Result<Statuses> {
        self.until(&format!("{voters} settled voters in {sites:?}"), |now| settled(now, sites, voters)).await
    }

    /// Applies a spec everywhere and waits until it is as it says.
    pub async fn change(&self, spec: &str, voters: usize) -> Result<Statuses> {
        self.apply(spec)?;
        let sites = self.in_spec(spec);
        let generation = self.watch.statuses().values().map(|status| status.generation).max();
        let newer = |now: &Statuses| {
            sites.iter().all(|site| now.get(site).is_some_and(|status| Some(status.generation) > generation))
        };
        self.until("the new spec to be effective", newer).await?;
        self.until_settled(&sites, voters).await
    }

    /// Three sites with three settled voters.
    pub async fn of_three() -> Result<Self> {
        let field = Self::new(&["east", "west", "north"]).await?;
        field.apply(&manifest(FEDERATION, &field.sites))?;
        field.start().await?;
        field.settled("three settled voters").await?;
        Ok(field)
    }

    /// The same manifest in all sites.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        self.mesh.sites.iter().try_for_each(|site| site.apply(FEDERATION, manifest))
    }

    /// Writes another domain and port for the peers of a site into its configuration, and makes the new name of its member
    /// known everywhere. An agent that starts afterwards goes by it.
    pub fn readdress(&self, name: &str, domain: &str, port: u16) -> Result<()> {
        let site = self.site(name)?;
        for other in &self.mesh.sites {
            let mut hosts = std::fs::read_to_string(other.hosts())?;
            writeln!(hosts, "{} {FEDERATION}-{name}-0.{domain}", site.address)?;
            // In place: the file is mounted.
            std::fs::write(other.hosts(), hosts)?;
        }
        let config = std::fs::read_to_string(site.config())?;
        let old = config.lines().find(|line| line.starts_with("peerDomain:")).context("no peerDomain")?;
        let config = config.replace(old, &format!("peerDomain: {domain}\nports: {{peer: {port}}}"));
        std::fs::write(site.config(), config)?;
        Ok(())
    }

    /// A site by name.
    pub fn site(&self, name: &str) -> Result<&Site> {
        self.mesh.site(name)
    }

    /// Starts all agents and waits until they are up.
    pub async fn start(&self) -> Result<()> {
        for site in &self.mesh.sites {
            self.mesh.start(site)?;
        }
        for site in &self.mesh.sites {
            self.mesh.up(site, UP).await?;
        }
        Ok(())
    }

    /// Waits for something that the statuses show.
    pub async fn until(&self, what: &str, good: impl Fn(&Statuses) -> bool) -> Result<Statuses> {
        let found = self.watch.until(what, SETTLED, good).await;
        // A field of its own network tells the logs once, at the end of its case.
        found.map_err(|error| if self.net.is_some() { error } else { error.context(self.logs()) })
    }

    /// Waits until all sites see one live voter each, and nothing is left to do.
    pub async fn settled(&self, what: &str) -> Result<Statuses> {
        self.until(what, |now| settled(now, &self.sites, self.sites.len())).await
    }

    /// The same, with other members at `site` than `old`.
    pub async fn replaced(&self, site: &str, old: &BTreeSet<String>) -> Result<Statuses> {
        let what = format!("a new member at {site}, and settled voters");
        let new = |now: &Statuses| self.sites.iter().all(|_| member_ids(now, site).is_disjoint(old));
        self.until(&what, |now| new(now) && settled(now, &self.sites, self.sites.len())).await
    }

    /// A client of each site's first member.
    pub async fn clients(&self) -> Result<Vec<EtcdClient>> {
        let mut clients = Vec::new();
        for site in &self.mesh.sites {
            clients.push(site.client().await?);
        }
        Ok(clients)
    }

    /// The ids of all members that some status names now.
    pub fn members(&self) -> BTreeSet<String> {
        let statuses = self.watch.statuses();
        statuses.values().flat_map(|status| &status.members).map(|member| member.id.clone()).collect()
    }

    /// The site that leads, by what etcd itself says.
    pub async fn leader(&self) -> Result<String> {
        let clock = Clock::start();
        loop {
            if let Some(site) = self.mesh.leader().await {
                return Ok(site.name.clone());
            }
            if clock.elapsed() > UP {
                bail!("nobody leads within {UP:?}:\n{}", self.watch.describe());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A site that is none of these.
    pub fn other_than(&self, sites: &[&str]) -> Result<String> {
        let other = self.sites.iter().find(|site| !sites.contains(&site.as_str()));
        other.cloned().context("no other site")
    }

    /// A client of each voter, as the statuses name them now.
    pub async fn voters(&self) -> Result<Vec<EtcdClient>> {
        let statuses = self.watch.statuses();
        let leading = statuses.values().find(|s| s.executor.as_deref() == Some(s.observed_from.as_str()));
        let status = leading.context("no site executes")?;
        let mut clients = Vec::new();
        for member in status.members.iter().filter(|m| m.role == "voter") {
            let ordinal = member.name.rsplit('-').next().and_then(|ordinal| ordinal.parse().ok());
            let ordinal = ordinal.with_context(|| format!("{} has no ordinal", member.name))?;
            clients.push(self.site(&member.site)?.client_of(ordinal).await?);
        }
        Ok(clients)
    }

    /// A writer over all sites that has its first acknowledgement.
    pub async fn writer(&self) -> Result<Writer> {
        let writer = Writer::paced(self.clients().await?, self.clock, PACE);
        self.writes(&writer).await?;
        Ok(writer)
    }

    /// Waits for one more acknowledged write.
    pub async fn writes(&self, writer: &Writer) -> Result<()> {
        let (now, before) = (Clock::start(), writer.acknowledged());
        while writer.acknowledged() <= before {
            if now.elapsed() > UP {
                bail!(
                    "no acknowledged write within {UP:?}: {:?}\n{}",
                    writer.last_error(),
                    self.watch.describe()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Ends the writer and proves that each voter has all that was acknowledged.
    pub async fn prove(&self, writer: &Writer) -> Result<Proof> {
        let acknowledged = writer.stop().await;
        let proof = verify(&self.clients().await?, acknowledged).await?;
        if proof.lost > 0 {
            bail!("{} of {acknowledged} acknowledged keys are lost", proof.lost);
        }
        Ok(proof)
    }

    /// Ends the writer, proves that each voter has all that was acknowledged, and says how it went.
    pub async fn outcome(&self, writer: &Writer) -> Result<Outcome> {
        let acknowledged = writer.stop().await;
        let voters = self.voters().await?;
        let proof = verify(&voters, acknowledged).await?;
        let outcome = Outcome {
            acknowledged,
            lost: proof.lost,
            cluster_ids: self.watch.cluster_ids().len(),
            smallest_margin: self.watch.smallest_margin(),
            voters: voters.len(),
            planned_gap_ms: None,
        };
        if outcome.lost > 0 {
            bail!("{} of {acknowledged} acknowledged keys are lost", outcome.lost);
        }
        if outcome.cluster_ids != 1 {
            bail!("more or less than one cluster id was seen: {:?}", self.watch.cluster_ids());
        }
        Ok(outcome)
    }

    /// All transitions that the agents have reported, in the order of time; also those of agents that have ended since.
    pub fn history(&self) -> Vec<Told> {
        let mut all = Vec::new();
        for site in &self.mesh.sites {
            // No log yet, or a last line that is being written: nothing was told.
            let text = std::fs::read_to_string(site.log()).unwrap_or_default();
            all.extend(text.lines().filter_map(|line| serde_json::from_str::<Told>(line).ok()));
        }
        all.sort_by(|a, b| a.timestamp.cmp(&b.timestamp));
        all
    }

    /// Waits until some status has said all of these words in one sentence, since [`Watch::from_now`].
    pub async fn said(&self, words: &[&str]) -> Result<String> {
        let clock = Clock::start();
        loop {
            let said = self.watch.said();
            if let Some(line) = said.iter().find(|line| words.iter().all(|word| line.contains(word))) {
                return Ok(line.clone());
            }
            if clock.elapsed() > SETTLED {
                bail!("no status ever said {words:?}; what was said:\n{}", said.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The process ids of all etcds, by site.
    pub fn etcds(&self) -> Vec<(String, i32)> {
        let all = self.mesh.run.processes().into_iter().filter(|process| process.kind == Kind::Etcd);
        all.map(|process| (process.site, process.pid)).collect()
    }

    /// The last lines of all logs.
    pub fn logs(&self) -> String {
        let logs = self.mesh.sites.iter().map(|site| format!("-- {}\n{}", site.name, site.log_tail(10)));
        logs.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        self.drain.start();
    }
}
