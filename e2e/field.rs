//! Sites for a test: like those of the demo, with addresses of their own, watched from outside, and swept away at the end.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_cli::demo::mesh::{Mesh, Plan, Site, manifest};
use quorate_cli::demo::process::Kind;
use quorate_cli::demo::verify::{Proof, verify};
use quorate_cli::demo::watch::{Statuses, Watch, member_ids, settled};
use quorate_cli::demo::writer::Writer;
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use quorate_link::etcd::EtcdClient;
use tokio::process::Command;

/// The federation of the tests.
pub const FEDERATION: &str = "main";
/// How long an agent may take to come up.
pub const UP: Duration = Duration::from_secs(30);
/// How long a change may take until everything is as wished.
pub const SETTLED: Duration = Duration::from_secs(90);
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
    drain: Drain,
    _folder: tempfile::TempDir,
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

/// The folder with etcd 3.6: built if need be, so that no test is ever skipped.
pub async fn etcd() -> Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/stack/etcd.sh");
    let output = Command::new("bash").arg(script).arg("3.6").stderr(Stdio::inherit()).output().await?;
    if !output.status.success() {
        bail!("e2e/stack/etcd.sh 3.6 gave no etcd; set QUORATE_ETCD_DIR to a folder with etcd 3.6");
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

impl Field {
    /// Sites with these names; nothing is started.
    pub async fn new(names: &[&str]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("quorate-e2e-").tempdir()?;
        let sites: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mesh = Arc::new(Mesh::lay_out(Plan {
            sites: sites.clone(),
            network: NETWORK,
            binary: binary().await?,
            etcd: etcd().await?,
            folder: folder.path().to_owned(),
            keep: true,
        })?);
        let drain = Drain::new();
        mesh.run.collect_dead(&drain);
        let watch = Watch::start(&mesh, FEDERATION, None);
        Ok(Self { mesh, watch, clock: Clock::start(), sites, drain, _folder: folder })
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
        found.map_err(|error| error.context(self.logs()))
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

    /// A client of each site's member.
    pub async fn clients(&self) -> Result<Vec<EtcdClient>> {
        let mut clients = Vec::new();
        for site in &self.mesh.sites {
            clients.push(site.client().await?);
        }
        Ok(clients)
    }

    /// A writer over all sites that has its first acknowledgement.
    pub async fn writer(&self) -> Result<Writer> {
        let writer = Writer::start(self.clients().await?, self.clock);
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
