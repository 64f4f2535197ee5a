//! `quorate support-bundle`: what a helper needs to see, and nothing that would hurt to be seen.

mod collect;
mod redact;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

use quorate_link::clock::Clock;

use self::collect::collect;
use super::Outcome;
use super::target::Target;
use crate::failure::{Exit, Failure};
use crate::output::print;
use crate::output::progress::Spinner;
use crate::output::table::{bytes, count};

/// Put everything that helps to understand this site into one file, without secrets
///
/// Status, views, events, configuration, manifests, the ends of logs, metrics, versions, and what the doctor found. Private keys, join tokens and the data of users are left out; README.md in the bundle lists what was left out, and why.
/// Look through it before you hand it on: names of sites, hosts and addresses are in it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate support-bundle
  $ quorate support-bundle --config /etc/quorate/quorate.yaml -o east.tar.zst
  $ quorate support-bundle -o east/ --log /var/log/quorate/agent.log   # a folder; and another log")]
pub(super) struct Args {
    /// A file that ends with .tar.zst, or a folder [default: quorate-support-SITE-TIME.tar.zst here]
    #[arg(short, long, value_name = "FILE|DIR")]
    output: Option<PathBuf>,
    /// Another log whose end goes into the bundle; the agent's last lines are in it anyway
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: Args) -> Outcome {
    let Args { output, log, target } = args;
    let config = target.config()?;
    let state_dir = target.state_dir(config.as_ref()).to_owned();
    let spinner = Spinner::start("collecting");
    let bundle = collect(&target.client()?, config.as_ref(), &state_dir, &log).await?;
    drop(spinner);
    let name = || PathBuf::from(format!("quorate-support-{}-{}.tar.zst", bundle.site, Clock::unix_seconds()));
    let output = output.unwrap_or_else(name);
    write::write(&bundle, &output).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("cannot write {}", output.display()));
        Failure::new(Exit::Usage, error).hint("name another place with -o")
    })?;
    let size: usize = bundle.files.values().map(Vec::len).sum();
    print(&format!(
        "{}: {}, {} before compression\n",
        output.display(),
        count(bundle.files.len(), "file"),
        bytes(size as u64)
    ));
    eprintln!("Look through it before you hand it on; README.md in it lists what was left out, and why.");
    Ok(ExitCode::SUCCESS)
}
