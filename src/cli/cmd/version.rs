//! `quorate version`.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::Outcome;
use crate::output::{Plain, json, print};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const GIT: &str = env!("QUORATE_GIT_HASH");
const TARGET: &str = env!("QUORATE_TARGET");

/// The version of this binary.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate version -o json")]
pub(super) struct Args {
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Plain,
}

/// For `--version`.
pub(super) const fn short() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("QUORATE_GIT_HASH"), ")")
}

pub(super) fn plain() -> Value {
    json!({"version": VERSION, "git": GIT, "target": TARGET, "api": quorate_api::crd::API_VERSION})
}

pub(super) fn run(args: &Args) -> Outcome {
    let Args { output } = args;
    let (plain, api) = (plain(), quorate_api::crd::API_VERSION);
    print(&match output {
        Plain::Json => json::json(&plain)?,
        Plain::Yaml => json::yaml(&plain)?,
        Plain::Table => format!("quorate {VERSION}\ngit     {GIT}\ntarget  {TARGET}\napi     {api}\n"),
    });
    Ok(ExitCode::SUCCESS)
}
