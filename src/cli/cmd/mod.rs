//! The subcommands: one file each. Nothing is decided here; agents and members decide.

mod adopt;
mod agent;
mod apply;
mod bundle;
mod completion;
mod crds;
mod doctor;
mod explain;
mod generate;
mod member;
mod members;
mod mesh;
mod plan;
mod simulate;
pub mod status;
mod target;
mod validate;
mod version;

use std::ffi::OsString;
use std::future::Future;
use std::path::Path;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::demo;
use crate::failure::{EXIT_CODES, Exit, Failure};

/// One etcd, kept quorate across Kubernetes clusters and zones.
#[derive(Debug, Parser)]
#[command(name = "quorate", version = version::short(), after_help = EXIT_CODES, disable_help_subcommand = true)]
#[command(propagate_version = true, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Debug, Subcommand)]
enum Sub {
    Status(status::Args),
    Members(members::Args),
    Plan(plan::Args),
    Apply(apply::Args),
    Simulate(simulate::Args),
    Explain(explain::Args),
    Doctor(doctor::Args),
    SupportBundle(bundle::Args),
    Validate(validate::Args),
    Mesh(mesh::Args),
    Adopt(adopt::Args),
    Agent(agent::Args),
    Member(member::Args),
    /// See all of it on this machine: three sites with a real etcd, and what happens when parts are lost.
    #[command(after_help = "\
Examples:
  $ quorate demo
  $ quorate demo --once -o json")]
    Demo(demo::Args),
    Crds(crds::Args),
    Completion(completion::Args),
    Version(version::Args),
    #[command(hide = true)]
    Generate(generate::Args),
}

/// What a command ends with.
type Outcome = Result<ExitCode, Failure>;

/// Runs the command that the arguments name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    // Before everything else: this process is about to become etcd, and its arguments are etcd's.
    if args.get(1).is_some_and(|arg| arg == quorate_member::process::helper::SUBCOMMAND) {
        let error = quorate_member::exec_etcd(args.into_iter().skip(2));
        return Failure::new(Exit::Bug, anyhow::Error::new(error).context("cannot become etcd")).report();
    }
    let mut command = command(args.first().map(OsString::as_os_str).map(Path::new));
    let matches = command.try_get_matches_from_mut(args);
    match matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches)) {
        Ok(cli) => run(cli.command).unwrap_or_else(|failure| failure.report()),
        Err(error) => {
            // Help and version are no errors; whatever is, is wrong usage.
            let code = if error.use_stderr() { Exit::Usage as u8 } else { 0 };
            let _ = error.print();
            ExitCode::from(code)
        }
    }
}

fn run(command: Sub) -> Outcome {
    match command {
        Sub::Status(args) => wait(status::run(args)),
        Sub::Members(args) => wait(members::run(args)),
        Sub::Plan(args) => wait(plan::run(args)),
        Sub::Apply(args) => wait(apply::run(args)),
        Sub::Simulate(args) => wait(simulate::run(args)),
        Sub::Doctor(args) => wait(doctor::run(args)),
        Sub::SupportBundle(args) => wait(bundle::run(args)),
        Sub::Explain(args) => explain::run(&args),
        Sub::Validate(args) => validate::run(&args),
        Sub::Mesh(args) => wait(mesh::run(args)),
        Sub::Adopt(args) => wait(adopt::run(args)),
        Sub::Agent(args) => agent::run(&args),
        Sub::Member(args) => member::run(&args),
        Sub::Demo(args) => Ok(runtime(true)?.block_on(demo::run(args))?),
        Sub::Crds(args) => crds::run(&args),
        Sub::Completion(args) => Ok(completion::run(&args)),
        Sub::Version(args) => version::run(&args),
        Sub::Generate(args) => generate::run(&args),
    }
}

fn runtime(threads: bool) -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = if threads {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    Ok(builder.enable_all().build()?)
}

fn wait(work: impl Future<Output = Outcome>) -> Outcome {
    runtime(false)?.block_on(work)
}

/// The command line as it is called: `quorate`, or `kubectl quorate` if kubectl found us as a plugin.
fn command(program: Option<&Path>) -> Command {
    let plugin =
        program.and_then(Path::file_name).is_some_and(|name| name.to_string_lossy().starts_with("kubectl-"));
    let command = Cli::command();
    if plugin { renamed(command.bin_name("kubectl quorate"), "kubectl quorate") } else { command }
}

/// Examples show the name that was typed.
fn renamed(command: Command, name: &str) -> Command {
    let help =
        command.get_after_help().map(|help| help.to_string().replace("$ quorate", &format!("$ {name}")));
    let command = match help {
        Some(help) => command.after_help(help),
        None => command,
    };
    command.mut_subcommands(|sub| renamed(sub, name))
}

#[cfg(test)]
mod tests;
