//! `quorate-sim --histories N [--seed S] [--trace] [--threads T]`: plays histories; the last line is JSON.
//! With `--seed S --trace` it plays that one seed and prints what happened.

use std::process::ExitCode;

use quorate_core::sim::history::play;
use quorate_core::sim::run::{Summary, run};
use quorate_core::sim::shrink::shrink;

struct Arguments {
    histories: u64,
    seed: Option<u64>,
    trace: bool,
    threads: usize,
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments { histories: 1_000, seed: None, trace: false, threads: 2 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let text = words.next().ok_or_else(|| format!("{word} needs a number"))?;
            text.parse().map_err(|_| format!("{word} needs a number, not {text:?}"))
        };
        match word.as_str() {
            "--histories" => arguments.histories = number()?,
            "--seed" => arguments.seed = Some(number()?),
            "--threads" => arguments.threads = usize::try_from(number()?).unwrap_or(1),
            "--trace" => arguments.trace = true,
            _ => {
                return Err(format!(
                    "unknown argument {word:?}; known: --histories --seed --threads --trace"
                ));
            }
        }
    }
    Ok(arguments)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the program measures how fast the simulator is; the simulator has no clock"
)]
fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("quorate-sim: {error}");
            return ExitCode::from(2);
        }
    };
    let start = std::time::Instant::now();
    let summary = match (arguments.seed, arguments.trace) {
        (Some(seed), true) => traced(seed),
        (seed, _) => run(seed.unwrap_or(1), arguments.histories, arguments.threads),
    };
    let seconds = start.elapsed().as_secs_f64();
    for (i, seed) in summary.failed.iter().enumerate().filter(|_| !arguments.trace) {
        if i < 2 {
            explain(*seed);
        } else if let Some(violation) = play(*seed, None, false).violations.first() {
            eprintln!("seed {seed}: {} at {} ms: {}", violation.invariant, violation.at, violation.text);
        }
    }
    let alone = arguments.trace;
    let silent = if alone { Vec::new() } else { summary.silent_rules() };
    if !silent.is_empty() {
        eprintln!("quorate-sim: never refused anything: {}", silent.join(", "));
    }
    println!("{}", line(&summary, seconds));
    if summary.violations > 0 || !silent.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn traced(seed: u64) -> Summary {
    let report = play(seed, None, true);
    for line in &report.trace {
        println!("{line}");
    }
    let mut summary = Summary::default();
    summary.add(&report);
    summary
}

/// A failed seed with the fewest faults that still fail.
fn explain(seed: u64) {
    let (faults, report) = shrink(seed);
    eprintln!("seed {seed} ({}): replay with --seed {seed} --trace", report.scenario);
    for v in &report.violations {
        eprintln!("  {} at {} ms: {}", v.invariant, v.at, v.text);
    }
    eprintln!("  with these faults:");
    for timed in &faults {
        eprintln!("    {} ms {:?}", timed.at, timed.fault);
    }
    let last = report.trace.len().saturating_sub(40);
    for line in report.trace.iter().skip(last) {
        eprintln!("  {line}");
    }
}

fn line(summary: &Summary, seconds: f64) -> String {
    let mut json = serde_json::to_value(summary).unwrap_or_default();
    let rate = |n: u64| (f64::from(u32::try_from(n).unwrap_or(u32::MAX)) / seconds.max(1e-9)).round();
    if let Some(map) = json.as_object_mut() {
        map.insert("seconds".into(), ((seconds * 1_000.0).round() / 1_000.0).into());
        map.insert("events_per_s".into(), rate(summary.events).into());
        map.insert("histories_per_s".into(), rate(summary.histories).into());
    }
    json.to_string()
}
