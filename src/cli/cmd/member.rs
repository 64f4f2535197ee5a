//! `quorate member`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use quorate_link::drain::Drain;
use quorate_link::telemetry::{self, Format};
use quorate_member::{Options, Service};

use super::Outcome;
use crate::failure::{Exit, Failure};

/// The supervisor of one etcd. The agent starts it; nobody else needs to.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate member --config /var/lib/quorate/federations/etcd.main/members/main-east-0/member.json")]
pub(super) struct Args {
    /// What the agent wrote for it
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The form of the log
    #[arg(long, value_name = "json|text", default_value = "json")]
    log_format: Format,
}

/// etcd is stopped by then; what is left are connections.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn run(args: &Args) -> Outcome {
    let Args { config, log_format } = args;
    let options = Options::load(config).map_err(|error| Failure::new(Exit::Usage, error))?;
    telemetry::init(*log_format, &options.log_level).map_err(|error| Failure::new(Exit::Usage, error))?;
    // On the main thread: etcd gets its death signal when the thread that started it ends.
    super::runtime(false)?.block_on(async {
        let drain = Drain::new();
        drain.on_signals()?;
        let result = Service::run(options, drain.clone()).await;
        drain.start();
        drain.finish(PATIENCE).await;
        result.map_err(|error| Failure::new(Exit::Bug, error))?;
        Ok(ExitCode::SUCCESS)
    })
}
