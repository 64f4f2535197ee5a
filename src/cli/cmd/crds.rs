//! `quorate crds`.

use std::process::ExitCode;

use super::Outcome;
use crate::output::{json, print};

/// Print the CustomResourceDefinitions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate crds | kubectl apply --server-side -f -
  $ quorate crds -o json")]
pub(super) struct Args {
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

/// Definitions have no table.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Form {
    /// As it is applied.
    #[default]
    Yaml,
    /// The same for programs.
    Json,
}

pub(super) fn run(args: &Args) -> Outcome {
    let Args { output } = args;
    print(&match output {
        Form::Yaml => quorate_api::crd::definition_yaml(),
        Form::Json => json::json(&quorate_api::crd::definition())?,
    });
    Ok(ExitCode::SUCCESS)
}
