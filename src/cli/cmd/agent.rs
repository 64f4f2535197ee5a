//! `quorate agent`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use quorate_agent::{Error, Options};
use quorate_api::config::Key;
use quorate_link::drain::Drain;
use quorate_link::host;
use quorate_link::telemetry::{self, Format};

use super::Outcome;
use super::target::load;
use crate::failure::{Exit, Failure};
use crate::output::print;

/// The agent of one site. Its members and their etcds outlive it, so it can be restarted at any time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate agent --config /etc/quorate/quorate.yaml
  $ QUORATE_LOG_LEVEL=debug quorate agent --config quorate.yaml --print-config
  $ quorate agent --config quorate.yaml --stop-members    # stop every etcd of this site, then end")]
pub(super) struct Args {
    /// The configuration of the site
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG", hide_env_values = true)]
    config: PathBuf,
    /// Stop the members too when the agent stops
    #[arg(long)]
    stop_members: bool,
    /// Print the effective configuration (flags, environment, file, defaults) and end
    #[arg(long)]
    print_config: bool,
    /// Override the level of the log
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// The form of the log
    #[arg(long, value_name = "json|text", default_value = "json")]
    log_format: Format,
}

/// Loops of federations and connections end within this; what does not is cut off, and found again at the next start.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Args) -> Outcome {
    let Args { config, stop_members, print_config, log_level, log_format } = args;
    let flags: Vec<(Key, String)> = log_level.iter().map(|level| (Key::LogLevel, level.clone())).collect();
    let site = load(config, &flags)?;
    if *print_config {
        print(&site.to_yaml());
        return Ok(ExitCode::SUCCESS);
    }
    let (_, log) = telemetry::init_kept(*log_format, &site.log_level)
        .map_err(|error| Failure::new(Exit::Usage, error))?;
    let options = Options { config: site, stop_members: *stop_members, executable: None, log };
    super::runtime(true)?.block_on(async {
        let drain = Drain::new();
        drain.on_signals()?;
        let result = Box::pin(quorate_agent::run(options, drain.clone())).await;
        drain.start();
        drain.finish(PATIENCE).await;
        result.map_err(failure)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn failure(error: Error) -> Failure {
    match &error {
        Error::State(state) => {
            let remedy = host::trouble(state).map(|trouble| trouble.code.remedy());
            let failure = Failure::new(Exit::Unsafe, error);
            match remedy {
                Some(remedy) => failure.hint(remedy),
                None => failure,
            }
        }
        Error::Pki(_) => {
            Failure::new(Exit::Usage, error).hint("`quorate mesh init` makes the certificates of a site")
        }
        Error::Tls(_) | Error::Peer(_) | Error::Listen { .. } | Error::Socket { .. } => {
            Failure::new(Exit::Usage, error)
        }
        Error::Executable(_) => Failure::new(Exit::Bug, error),
    }
}
