//! A suite: cases that run on real etcd of one minor each, as single tests of one test program.
//!
//! Without a word only the short form is there, which is part of `make test`. With `QUORATE_SUITE=full` every case is,
//! on each of the minors that it is meant for (`QUORATE_MINORS` names fewer). What a case found out is written to the
//! folder `QUORATE_RESULTS`, from which `quorate-suite` makes the one line of figures.

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
pub use quorate_link::etcd::Minor;
use serde::{Deserialize, Serialize};

use crate::field::Field;
use crate::net::{self, Net};

/// All minors that are supported.
pub const ALL: &[Minor] = &[Minor::V3_5, Minor::V3_6, Minor::V3_7];

/// What a case found out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Acknowledged writes.
    pub acknowledged: usize,
    /// Those that are missing at some voter.
    pub lost: usize,
    /// Cluster ids that were ever seen.
    pub cluster_ids: usize,
    /// The smallest margin that an executing site told.
    pub smallest_margin: Option<i64>,
    /// Voters at the end.
    pub voters: usize,
    /// The longest gap between acknowledged writes while something planned went on.
    pub planned_gap_ms: Option<u64>,
}

/// One case.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name, as a path in the suite.
    pub name: &'static str,
    /// The minors that it is meant for.
    pub minors: &'static [Minor],
    /// The minor on which it is part of the short form.
    pub short: Option<Minor>,
    /// The case.
    pub run: fn(Minor) -> Result<Outcome>,
}

/// Runs a case on sites of a network of its own. `zones` are those of every site.
pub fn on_sites<F>(
    minor: Minor,
    sites: &[&str],
    zones: &[&str],
    case: impl FnOnce(Arc<Field>) -> F + Send,
) -> Result<Outcome>
where
    F: Future<Output = Result<Outcome>>,
{
    let net = Net::new(sites)?;
    net::within(&net, |net| async move {
        let field = Arc::new(Field::on(&net, minor, zones).await?);
        let result = case(Arc::clone(&field)).await;
        result.map_err(|error| anyhow::anyhow!("{}\nlogs:\n{}", told(&error), field.logs()))
    })
}

/// A row of a list that has no case yet, and why.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Pending {
    /// The row.
    pub name: &'static str,
    /// What it waits for.
    pub reason: &'static str,
}

/// What a full run is expected to hold, for the summary.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Expected {
    /// Each case with each of its minors.
    pub cases: Vec<(String, String)>,
    /// The rows without a case.
    pub pending: Vec<String>,
}

/// The main function of a suite.
pub fn main(suite: &'static str, cases: &'static [Case], pending: &'static [Pending]) -> Result<ExitCode> {
    let arguments = libtest_mimic::Arguments::from_args();
    let full = match std::env::var("QUORATE_SUITE").as_deref() {
        Ok("full") => true,
        Ok("") | Err(_) => false,
        Ok(other) => bail!("QUORATE_SUITE is {other}; it can be full, or absent"),
    };
    let minors: Vec<Minor> = match std::env::var("QUORATE_MINORS") {
        Ok(text) => text.split(',').map(|minor| Ok(minor.trim().parse()?)).collect::<Result<_>>()?,
        Err(_) => ALL.to_vec(),
    };
    let (mut trials, mut expected) = (Vec::new(), Expected::default());
    for case in cases {
        let wanted = |minor: &Minor| {
            if full { minors.contains(minor) } else { case.short == Some(*minor) }
        };
        for minor in case.minors.iter().copied().filter(wanted) {
            let name = format!("{}::etcd_{}", case.name, minor.to_string().replace('.', "_"));
            let run = move || run(suite, case, minor).map_err(libtest_mimic::Failed::from);
            trials.push(libtest_mimic::Trial::test(name, run));
            expected.cases.push((case.name.to_owned(), minor.to_string()));
        }
    }
    expected.pending = pending.iter().map(|row| format!("{}: {}", row.name, row.reason)).collect();
    if arguments.list
        && let Some(folder) = results()
    {
        std::fs::write(folder.join(EXPECTED), serde_json::to_vec(&expected)?)?;
    }
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

/// The file in the folder of results that says what a run is to hold.
pub const EXPECTED: &str = "expected.json";

fn results() -> Option<PathBuf> {
    std::env::var_os("QUORATE_RESULTS").map(PathBuf::from)
}

/// The name of the file with a case's outcome.
pub fn file_of(case: &str, minor: &str) -> String {
    format!("{}.{minor}.json", case.replace("::", "."))
}

fn run(suite: &str, case: &Case, minor: Minor) -> std::result::Result<(), String> {
    let tell = || -> Result<()> {
        let outcome = (case.run)(minor).with_context(|| format!("{suite} {} on etcd {minor}", case.name))?;
        println!("{}", serde_json::to_string(&outcome)?);
        let Some(folder) = results() else { return Ok(()) };
        let file = folder.join(file_of(case.name, &minor.to_string()));
        std::fs::write(&file, serde_json::to_vec(&outcome)?)
            .with_context(|| format!("cannot write {}", file.display()))
    };
    tell().map_err(|error| told(&error))
}

/// An error with its causes, and without the places in the code that it passed.
fn told(error: &anyhow::Error) -> String {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    causes.join("\n  because: ")
}
