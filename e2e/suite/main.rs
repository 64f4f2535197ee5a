//! `quorate-suite SUITE FOLDER`: the one line of figures of a full run, from what its cases left in the folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use quorate_e2e::suite::{EXPECTED, Expected, Outcome, file_of};
use serde_json::json;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [suite, folder] = arguments.as_slice() else { bail!("usage: quorate-suite SUITE FOLDER") };
    let folder = PathBuf::from(folder);
    let file = folder.join(EXPECTED);
    let text = std::fs::read(&file).with_context(|| format!("no case was listed: {}", file.display()))?;
    let expected: Expected = serde_json::from_slice(&text)?;
    let outcomes = read(&folder, &expected);

    // A case is good if it is good on every minor.
    let mut cases: BTreeMap<&str, bool> = BTreeMap::new();
    for ((name, minor), outcome) in expected.cases.iter().zip(&outcomes) {
        *cases.entry(name).or_insert(true) &= outcome.is_some();
        if outcome.is_none() {
            eprintln!("failed: {name} on etcd {minor}");
        }
    }
    let passed = outcomes.iter().flatten().count();
    let failed = outcomes.len() - passed;
    let good = cases.values().filter(|good| **good).count();
    let minors: std::collections::BTreeSet<String> =
        expected.cases.iter().map(|(_, minor)| minor.clone()).collect();
    let lost: usize = outcomes.iter().flatten().map(|outcome| outcome.lost).sum();
    let gap = outcomes.iter().flatten().filter_map(|outcome| outcome.planned_gap_ms).max();
    for row in &expected.pending {
        eprintln!("pending: {row}");
    }
    let line = match suite.as_str() {
        "operations" => json!({
            "operations": cases.len(), "minors": minors, "passed": passed, "failed": failed, "lost": lost,
            "longest_planned_gap_ms": gap,
        }),
        "scenarios" => json!({
            "rows": cases.len() + expected.pending.len(), "passed": good, "failed": cases.len() - good,
            "pending": expected.pending.len(), "minors": minors, "tests_passed": passed, "tests_failed": failed,
            "lost": lost,
        }),
        "bad-input" => json!({ "cases": outcomes.len(), "passed": passed, "failed": failed }),
        other => bail!("no suite {other}: operations, scenarios or bad-input"),
    };
    println!("{line}");
    Ok(if failed == 0 && passed > 0 && lost == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The outcome of each case; none if it failed or never ran.
fn read(folder: &Path, expected: &Expected) -> Vec<Option<Outcome>> {
    let one = |(name, minor): &(String, String)| {
        serde_json::from_slice(&std::fs::read(folder.join(file_of(name, minor))).ok()?).ok()
    };
    expected.cases.iter().map(one).collect()
}
