//! `quorate validate`: offline, the same checks as the agent's.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use quorate_api::manifest::{Document, Manifest, parse_each};
use quorate_core::federation::spec::Survive;
use quorate_core::id::Slot;
use quorate_core::membership::quorum::quorum;
use serde_json::{Value, json};

use super::Outcome;
use crate::failure::{Exit, Failure};
use crate::output::table::{count, table};
use crate::output::{Plain, json, print};

/// Check FederatedEtcd files without an agent: every mistake with its place, or what the layout survives.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate validate main.yaml
  $ quorate validate federations/*.yaml
  $ kustomize build . | quorate validate -")]
pub(super) struct Args {
    /// YAML files with FederatedEtcd objects; - for stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Plain,
}

pub(super) fn run(args: &Args) -> Outcome {
    let Args { files, output } = args;
    let (mut good, mut bad, mut plain) = (String::new(), String::new(), Vec::new());
    for file in files {
        let documents = match parse_each(&read(file)?) {
            Ok(documents) => documents,
            Err(error) => vec![Err(error)],
        };
        if documents.is_empty() {
            let _ = writeln!(bad, "{file}: no FederatedEtcd in it");
        }
        for document in documents {
            plain.push(as_json(file, &document));
            match document {
                Ok(manifest) => good.push_str(&describe(&manifest)),
                Err(error) => bad.push_str(&mistakes(file, &error.problems)),
            }
        }
    }
    match output {
        Plain::Json => print(&json::json(&plain)?),
        Plain::Yaml => print(&json::yaml(&plain)?),
        Plain::Table => {
            print(&good);
            if !good.is_empty() && !bad.is_empty() {
                print("\n");
            }
            eprint!("{bad}");
        }
    }
    Ok(if bad.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(Exit::Usage as u8) })
}

pub(super) fn read(file: &str) -> Result<String, Failure> {
    let text = if file == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(Path::new(file))
    };
    text.map_err(|error| {
        Failure::new(Exit::Usage, anyhow::Error::new(error).context(format!("cannot read {file}")))
    })
}

/// `file:line: path: message`, as compilers say it, so that editors can jump there.
pub(super) fn mistakes(file: &str, problems: &[quorate_api::Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
        let path = if problem.path.is_empty() { String::new() } else { format!("{}: ", problem.path) };
        let _ = writeln!(text, "{file}{line}: {path}{}", problem.message);
    }
    text
}

fn as_json(file: &str, document: &Document) -> Value {
    match document {
        Ok(manifest) => json!({
            "file": file,
            "valid": true,
            "federation": manifest.key.to_string(),
            "digest": manifest.digest,
            "voters": manifest.layout.voters(),
            "quorum": quorum(manifest.layout.voters()),
            "survives": manifest.layout.survives,
            "seed": manifest.layout.seed.name(&manifest.key.name),
            "slots": manifest.layout.slots,
        }),
        Err(error) => json!({
            "file": file,
            "valid": false,
            "problems": error.problems.iter().map(|problem| {
                json!({"line": problem.line, "path": problem.path, "message": problem.message})
            }).collect::<Vec<_>>(),
        }),
    }
}

fn describe(manifest: &Manifest) -> String {
    let layout = &manifest.layout;
    let (n, q) = (layout.voters(), quorum(layout.voters()));
    let survives = match layout.survives {
        Some(Survive::Cluster) => "survives the loss of any one cluster",
        Some(Survive::Zone) => "survives the loss of any one zone",
        Some(Survive::Member) => "survives the loss of any one member",
        None => "survives the loss of nothing",
    };
    let mut text = format!("{}: valid; {}, quorum {q}, {survives}\n", manifest.key, count(n, "voter"));
    let row = |slot: &Slot| {
        let name = slot.name(&manifest.key.name).to_string();
        let seed = if *slot == layout.seed { "first to start" } else { " " };
        vec![name, slot.site.to_string(), slot.zone.to_string(), seed.to_owned()]
    };
    text.push_str(&table(2, &["MEMBER", "CLUSTER", "ZONE", ""], layout.slots.iter().map(row).collect()));
    text.push_str(&losses(&layout.slots, n, q));
    let _ = writeln!(text, "  digest {}\n", manifest.digest);
    text
}

/// What is left after each loss.
fn losses(slots: &[Slot], n: usize, q: usize) -> String {
    let domains = |name: &dyn Fn(&Slot) -> String| {
        let mut found: Vec<(String, usize)> = Vec::new();
        for slot in slots {
            let name = name(slot);
            match found.iter_mut().find(|(other, _)| *other == name) {
                Some((_, members)) => *members += 1,
                None => found.push((name, 1)),
            }
        }
        found
    };
    let clusters = domains(&|slot| format!("cluster {}", slot.site));
    let zones = domains(&|slot| format!("zone {}/{}", slot.site, slot.zone));
    let mut rows = vec![("any 1 member".to_owned(), 1)];
    rows.extend(clusters.iter().cloned());
    // Zones only where a cluster has more than one.
    if zones.len() > clusters.len() {
        rows.extend(zones);
    }
    let row = |(what, lost): (String, usize)| {
        let left = n - lost;
        let writes = if left >= q { "go on" } else { "STOP" };
        vec![what, format!("{left} of {n} left, {q} needed"), writes.to_owned()]
    };
    table(2, &["LOSS OF", "ARITHMETIC", "WRITES"], rows.into_iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(folder: &str) -> Vec<(String, String)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/testdata").join(folder);
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        files.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
    }

    #[test]
    fn good_files_show_what_they_survive() {
        let mut text = String::new();
        for (_, content) in corpus("good") {
            parse_each(&content).unwrap().into_iter().for_each(|m| text.push_str(&describe(&m.unwrap())));
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn bad_files_show_every_mistake() {
        let mut text = String::new();
        for (name, content) in corpus("bad") {
            let documents = parse_each(&content).unwrap_or_else(|error| vec![Err(error)]);
            let errors = documents.into_iter().filter_map(Result::err);
            errors.for_each(|error| text.push_str(&mistakes(&name, &error.problems)));
        }
        insta::assert_snapshot!(text);
    }
}
