//! `quorate apply`: a changed file, its plan first, and then the wait until it is done.

mod file;
mod preview;
#[cfg(test)]
mod tests;
mod wait;

use std::fmt::Write as _;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use quorate_api::manifest::parse_each;
use quorate_link::durable;

use self::file::{Place, document};
use self::preview::Preview;
use super::Outcome;
use super::target::Target;
use super::validate::{mistakes, read};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::{Plain, json, print};

/// Put a FederatedEtcd into force at this site: shows the plan first, asks, writes the file, waits until it is done
///
/// The difference to what is in force and the plan come before anything else; the file goes into the agent's manifest folder
/// as a whole or not at all. The same file is needed at every site that it names: run it there too, with the same bytes. A changed file becomes
/// effective when the sites of a majority of the voters and more than half of its own sites hold it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate apply -f main.yaml --dry-run            # the difference and the plan; nothing is written
  $ quorate apply -f main.yaml --yes --wait=false   # at all sites but the last one
  $ quorate apply -f main.yaml --timeout 1200       # at the last one: waits until it is done
  $ quorate apply -f main.yaml --dry-run -o json | jq '.[].plan'

Exit codes: 3 if a rule refuses what the file asks for, 5 if it was not done in time; see `quorate --help` for the others.")]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch")]
pub(super) struct Args {
    /// YAML with FederatedEtcd objects; - for stdin
    #[arg(short, long, value_name = "FILE")]
    file: String,
    /// Show what would be done, and end
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Write the file even if its plan ends with a refusal; the refused step is not taken all the same
    #[arg(long)]
    even_if_refused: bool,
    /// Wait until the members are as wished
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    wait: bool,
    /// Wait no longer than this
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    timeout: u64,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Plain,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: Args) -> Outcome {
    let Args { file, dry_run, yes, even_if_refused, wait, timeout, output, target } = args;
    let client = target.client()?;
    let previews = previews(&client, &file).await?;
    let changes = || previews.iter().filter(|preview| !preview.unchanged);
    if output == Plain::Table {
        print(&previews.iter().map(|preview| preview.text(dry_run)).collect::<Vec<_>>().join("\n"));
    }
    let refused = changes().any(|preview| preview.refusal().is_some());
    if refused && !dry_run && !even_if_refused {
        let message = "nothing was written: a rule refuses what the file asks for";
        let hint = "change the file as the plan says; with --even-if-refused it is written, and the refused step waits";
        return Err(Failure::message(Exit::Unsafe, message).hint(hint));
    }
    let mut written = Vec::new();
    if !dry_run && changes().next().is_some() {
        confirm(yes, output)?;
        for preview in changes() {
            written.push(write(preview)?);
        }
    }
    let done = if dry_run || !wait {
        None
    } else {
        Some(wait::all(&client, &previews, Duration::from_secs(timeout)).await?)
    };
    match output {
        Plain::Table => {
            let mut text = String::new();
            for path in &written {
                let _ = writeln!(text, "written: {path}");
            }
            for line in done.iter().flatten() {
                let _ = writeln!(text, "{line}");
            }
            print(&text);
        }
        Plain::Json | Plain::Yaml => {
            let plain: Vec<_> =
                previews.iter().map(|preview| preview.json(&written, done.is_some())).collect();
            print(&if output == Plain::Json { json::json(&plain)? } else { json::yaml(&plain)? });
        }
    }
    Ok(if refused && dry_run { ExitCode::from(Exit::Unsafe as u8) } else { ExitCode::SUCCESS })
}

/// Reads all federations of a file and foresees each.
async fn previews(client: &Client, file: &str) -> Result<Vec<Preview>, Failure> {
    let text = read(file)?;
    let bad = |problems: &[quorate_api::Problem]| {
        let text = mistakes(file, problems);
        Failure::message(Exit::Usage, format!("{file} cannot be used:\n{}", text.trim_end()))
    };
    let documents = parse_each(&text).map_err(|error| bad(&error.problems))?;
    let problems: Vec<_> = documents
        .iter()
        .filter_map(|document| document.as_ref().err())
        .flat_map(|e| e.problems.clone())
        .collect();
    if !problems.is_empty() {
        return Err(bad(&problems));
    }
    let mut previews = Vec::new();
    let site = client.site().await?;
    for manifest in documents.into_iter().flatten() {
        let key = manifest.key.clone();
        let report = client.view(key.namespace.as_str(), key.name.as_str()).await?;
        let place = Place::find(&site, report.as_ref(), &key)?;
        let text = document(&text, &key).unwrap_or_else(|| text.clone());
        previews.push(Preview::new(&site, report.as_ref(), manifest, text, place));
    }
    if previews.is_empty() {
        return Err(Failure::message(Exit::Usage, format!("{file}: no FederatedEtcd in it")));
    }
    Ok(previews)
}

fn confirm(yes: bool, output: Plain) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    let hint = "look at it with --dry-run, then say --yes";
    if !std::io::stdin().is_terminal() || output != Plain::Table {
        return Err(Failure::message(Exit::Usage, "nothing was written: nobody can be asked here").hint(hint));
    }
    eprint!("\nWrite it? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Failure::message(Exit::Usage, "nothing was written").hint(hint))
}

/// Writes the document into its place, as a whole or not at all.
fn write(preview: &Preview) -> Result<String, Failure> {
    let path: &Path = preview.place.path();
    let content = preview.place.content(&preview.key, &preview.document)?;
    durable::write_file(path, content.as_bytes(), durable::PUBLIC).map_err(|error| {
        Failure::new(Exit::Usage, error)
            .hint("run this command as the user of the agent, on the agent's machine")
    })?;
    Ok(path.display().to_string())
}
