//! `quorate members`.

use std::process::ExitCode;

use serde_json::json;

use super::Outcome;
use super::target::{Target, federations, full_name};
use crate::output::{Format, json, print};

/// The members of etcd: where each one is, whether it is alive, who leads.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate members etcd/main
  $ quorate members -o wide             # with the ids, as `etcdctl member list` has them")]
pub(super) struct Args {
    /// NAMESPACE/NAME, or NAME if it is the only one
    federation: Option<String>,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: Args) -> Outcome {
    let Args { federation, output, target } = args;
    let all = federations(&target.client()?, federation.as_deref()).await?;
    let plain: Vec<_> =
        all.iter().map(|s| json!({"federation": full_name(s), "members": s.members})).collect();
    print(&match output {
        Format::Json => json::json(&plain)?,
        Format::Yaml => json::yaml(&plain)?,
        Format::Table | Format::Wide => all
            .iter()
            .map(|status| {
                let table = if status.members.is_empty() {
                    "  no members yet\n".to_owned()
                } else {
                    super::status::members(status, output == Format::Wide)
                };
                format!("{}\n{table}", full_name(status))
            })
            .collect::<Vec<_>>()
            .join("\n"),
    });
    Ok(ExitCode::SUCCESS)
}
