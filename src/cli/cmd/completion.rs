//! `quorate completion`.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::output::print;

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate completion bash > /etc/bash_completion.d/quorate
  $ quorate completion zsh > \"${fpath[1]}/_quorate\"")]
pub(super) struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let Args { shell } = args;
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut super::Cli::command(), "quorate", &mut script);
    print(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}
