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

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, ValueEnum as _};

    use super::*;

    fn script(shell: Shell) -> String {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut super::super::Cli::command(), "quorate", &mut script);
        String::from_utf8(script).unwrap()
    }

    #[test]
    fn every_command_is_in_the_script_of_every_shell() {
        for shell in Shell::value_variants() {
            let script = script(*shell);
            let command = super::super::Cli::command();
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
                assert!(script.contains(sub.get_name()), "{} is not completed by {shell}", sub.get_name());
            }
        }
    }

    /// What a real bash offers for these words.
    fn offered(words: &[&str]) -> Vec<String> {
        let script = script(Shell::Bash);
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
        let ask = format!(
            "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; _quorate quorate '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            quoted.join(" "),
            words.len() - 1
        );
        let output = std::process::Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn bash_offers_commands_flags_and_values() {
        assert_eq!(offered(&["quorate", "app"]), ["apply"]);
        assert_eq!(offered(&["quorate", "apply", "--dry"]), ["--dry-run"]);
        assert_eq!(offered(&["quorate", "doctor", "--output", "j"]), ["json"]);
        assert_eq!(offered(&["quorate", "simulate", "--lo"]), ["--lose"]);
        assert!(offered(&["quorate", "mesh", ""]).contains(&"invite".to_owned()));
    }
}
