//! `quorate crds`.

use std::process::ExitCode;

use crate::output::print;

/// Print the CustomResourceDefinitions as YAML.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate crds | kubectl apply --server-side -f -")]
pub(super) struct Args {}

pub(super) fn run(args: &Args) -> ExitCode {
    let Args {} = args;
    print(&quorate_api::crd::definition_yaml());
    ExitCode::SUCCESS
}
