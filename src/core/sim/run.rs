//! Many histories, on some threads, and their sum.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::history::{Report, play};
use crate::reason::Rule;

/// Seeds that failed once and are played first, for ever.
const REGRESSIONS: &str = include_str!("regressions.txt");

/// The kept seeds.
pub fn kept_seeds() -> Vec<u64> {
    let text = REGRESSIONS.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    text.filter_map(|line| line.parse().ok()).collect()
}

/// The sum of many histories.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// Histories.
    pub histories: u64,
    /// Events.
    pub events: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Steps by kind.
    pub steps: BTreeMap<&'static str, u64>,
    /// Histories that ended as wished.
    pub converged: u64,
    /// Histories that completed a membership operation.
    pub completed: u64,
    /// Histories with three faults or more.
    pub troubled: u64,
    /// Histories that completed an operation and had three faults or more.
    pub completed_troubled: u64,
    /// Acknowledged writes, all of them still there.
    pub writes: u64,
    /// Histories by scenario.
    pub scenarios: BTreeMap<&'static str, u64>,
    /// Broken invariants.
    pub violations: u64,
    /// Refusals by rule.
    pub refusals: BTreeMap<String, u64>,
    /// The first failed seeds.
    pub failed: Vec<u64>,
}

impl Summary {
    /// Adds a history.
    pub fn add(&mut self, report: &Report) {
        self.histories += 1;
        self.events += report.events;
        self.faults += report.faults;
        for (kind, count) in &report.steps {
            *self.steps.entry(kind).or_default() += count;
        }
        self.converged += u64::from(report.converged);
        self.completed += u64::from(report.completed);
        self.troubled += u64::from(report.faults >= 3);
        self.completed_troubled += u64::from(report.completed && report.faults >= 3);
        self.writes += report.writes as u64;
        *self.scenarios.entry(report.scenario).or_default() += 1;
        self.violations += report.violations.len() as u64;
        for (rule, count) in Rule::ALL.iter().zip(report.refusals) {
            *self.refusals.entry(rule.to_string()).or_default() += count;
        }
        if !report.violations.is_empty() && self.failed.len() < 20 {
            self.failed.push(report.seed);
        }
    }

    fn join(&mut self, other: Self) {
        let Self {
            histories,
            events,
            faults,
            steps,
            converged,
            completed,
            troubled,
            completed_troubled,
            writes,
            scenarios,
            violations,
            refusals,
            failed,
        } = other;
        self.histories += histories;
        self.events += events;
        self.faults += faults;
        self.converged += converged;
        self.completed += completed;
        self.troubled += troubled;
        self.completed_troubled += completed_troubled;
        self.writes += writes;
        self.violations += violations;
        for (kind, count) in steps {
            *self.steps.entry(kind).or_default() += count;
        }
        for (name, count) in scenarios {
            *self.scenarios.entry(name).or_default() += count;
        }
        for (rule, count) in refusals {
            *self.refusals.entry(rule).or_default() += count;
        }
        self.failed.extend(failed);
        self.failed.sort_unstable();
        self.failed.truncate(20);
    }

    /// Rules that never refused anything: nothing would notice if they were taken away.
    pub fn silent_rules(&self) -> Vec<String> {
        Rule::ALL
            .iter()
            .map(ToString::to_string)
            .filter(|rule| self.refusals.get(rule).is_none_or(|n| *n == 0))
            .collect()
    }
}

/// Plays the kept seeds, then `histories` seeds from `first` on.
pub fn run(first: u64, histories: u64, threads: usize) -> Summary {
    let mut seeds = kept_seeds();
    seeds.extend(first..first.saturating_add(histories));
    let next = AtomicU64::new(0);
    let work = || {
        let mut summary = Summary::default();
        while let Ok(at) = usize::try_from(next.fetch_add(1, Ordering::Relaxed))
            && let Some(seed) = seeds.get(at)
        {
            summary.add(&play(*seed, None, false));
        }
        summary
    };
    let mut all = Summary::default();
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        for handle in handles {
            match handle.join() {
                Ok(summary) => all.join(summary),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all
}
