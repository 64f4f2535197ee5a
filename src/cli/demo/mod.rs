//! `quorate demo`: four sites with a real etcd on this machine.
//!
//! Everything is as it would be on four machines: separate processes, separate trust roots, mTLS, names. With `--once`
//! it is a tour that breaks things and proves at the end that nothing was lost; without, it stays up to be played with.
//! The parts are public because the end-to-end tests use them too.

pub mod bare;
pub mod guide;
mod live;
pub mod mesh;
pub mod namespace;
pub mod process;
pub mod socket;
pub mod story;
mod tour;
pub mod verify;
pub mod watch;
pub mod writer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use quorate_link::etcd::EtcdClient;
use quorate_link::etcd::flags::Minor;
use tokio::signal::unix::{SignalKind, signal};

use mesh::{Mesh, Place, Plan};
pub use story::Output;
use story::Story;

/// Three sites and a spare one with a real etcd on this machine.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Take the tour: grow, wipe two data directories, kill sites, prove that nothing was lost; then end.
    #[arg(long)]
    pub once: bool,
    /// What to print; with `json` the text goes to stderr and the last line of stdout is one JSON object.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Put everything here and leave it there at the end (default: a temporary folder that is removed).
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Four names of sites; the last one is the spare.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", default_value = "east,west,north,south")]
    pub sites: Vec<String>,
    /// The minor version of etcd: 3.5, 3.6 or 3.7. The bare etcd that is compared with is the same one.
    #[arg(long, value_name = "MINOR", default_value_t = Minor::V3_6)]
    pub etcd: Minor,
    /// Use the addresses 127.N.x.1, if 127.0.x.1 is taken by another demo.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub network: u8,
}

/// The federation of the demo.
const FEDERATION: &str = "main";
/// How long an agent may take to come up.
const UP: Duration = Duration::from_secs(30);

/// Where it all happens.
struct Stage {
    mesh: Mesh,
    /// The sites of the federation, without the spare one.
    sites: Vec<String>,
    spare: String,
    etcd: PathBuf,
    minor: Minor,
    version: String,
    network: u8,
    story: Story,
    clock: Clock,
}

impl Stage {
    /// Starts all agents with the manifest in place, and waits until the last one is up; returns when that was.
    async fn raise(&self) -> Result<Duration> {
        let Self { mesh, sites, story, .. } = self;
        for name in sites {
            mesh.site(name)?
                .apply(FEDERATION, &mesh::with_etcd(mesh::manifest(FEDERATION, sites), self.minor))?;
        }
        for site in &mesh.sites {
            mesh.start(site)?;
        }
        for site in &mesh.sites {
            mesh.up(site, UP).await?;
        }
        let zero = story.begin_to_count();
        for site in &mesh.sites {
            let role = if site.name == self.spare { "spare" } else { "in the spec" };
            story.say(&format!("agent of {:<6} up at {} ({role})", site.name, site.address));
        }
        Ok(zero)
    }

    /// A client of each site of the federation.
    async fn clients(&self) -> Result<Vec<EtcdClient>> {
        let mut clients = Vec::new();
        for name in &self.sites {
            clients.push(self.mesh.site(name)?.client().await?);
        }
        Ok(clients)
    }
}

/// Runs it.
pub async fn run(args: Args) -> Result<ExitCode> {
    let (etcd, version) = mesh::find_etcd(args.etcd)?;
    let [sites @ .., spare] = args.sites.as_slice() else { bail!("no sites") };
    if sites.len() != 3 {
        bail!("--sites needs four names: three for the federation, and a spare one");
    }
    let clock = Clock::start();
    let story = Story::new(args.output, clock);
    let temporary =
        tempfile::Builder::new().prefix("quorate-demo-").tempdir().context("no temporary folder")?;
    let (folder, keep) = match &args.dir {
        Some(folder) => (empty_folder(folder)?, true),
        None => (temporary.path().to_owned(), false),
    };
    // From here on signals end the demo through its own way out, which clears up.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let plan = Plan {
        sites: Place::on_loopback(&args.sites, args.network),
        binary: std::env::current_exe().context("where is this program?")?,
        etcd: etcd.clone(),
        folder,
        keep,
        peer_cidrs: vec!["127.0.0.0/8".to_owned()],
    };
    let mesh = Mesh::lay_out(plan)?;
    let drain = Drain::new();
    mesh.run.collect_dead(&drain);
    let stage = Stage {
        mesh,
        sites: sites.to_vec(),
        spare: spare.clone(),
        etcd,
        minor: args.etcd,
        version,
        network: args.network,
        story,
        clock,
    };
    let show = async { if args.once { tour::run(&stage).await } else { live::run(&stage).await } };
    let ended = tokio::select! {
        ended = Box::pin(show) => Some(ended),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
        _ = hangup.recv() => None,
    };
    if let Some(Err(_)) = &ended {
        for site in &stage.mesh.sites {
            stage.story.line(&format!("-- log of {}\n{}", site.name, site.log_tail(12)));
        }
    }
    drain.start();
    let Stage { mesh, story, .. } = stage;
    tokio::task::spawn_blocking(move || drop(mesh)).await?;
    match &args.dir {
        Some(folder) => story.line(&format!("stopped; everything is in {}", folder.display())),
        None => story.line("stopped; nothing is left behind"),
    }
    match ended {
        Some(ended) => ended,
        // Ctrl-C is how the interactive demo is meant to end; a tour was not finished.
        None if args.once => Ok(ExitCode::from(130)),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn empty_folder(folder: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    if std::fs::read_dir(folder)?.next().is_some() {
        bail!("{} is not empty; give --dir a new folder", folder.display());
    }
    folder.canonicalize().with_context(|| format!("cannot use {}", folder.display()))
}
