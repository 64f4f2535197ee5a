//! What the demo tells: text as things happen, and one JSON object at the end if that is wished.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_link::clock::Clock;
use serde::Serialize;

/// How the result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Output {
    /// All of it as text on stdout.
    #[default]
    Text,
    /// Text on stderr, and the last line of stdout is a JSON object.
    Json,
}

/// The teller.
#[derive(Debug, Clone)]
pub struct Story {
    output: Output,
    clock: Clock,
    /// From when the times are counted, in milliseconds on the clock.
    zero: Arc<AtomicU64>,
}

impl Story {
    /// Begins now.
    pub fn new(output: Output, clock: Clock) -> Self {
        Self { output, clock, zero: Arc::default() }
    }

    /// Counts from now on, and says so; returns the time on the clock.
    pub fn begin_to_count(&self) -> Duration {
        let now = self.clock.elapsed();
        self.zero.store(u64::try_from(now.as_millis()).unwrap_or(0), Ordering::Relaxed);
        now
    }

    /// A headline.
    pub fn chapter(&self, text: &str) {
        self.line(&format!("\n== {text}"));
    }

    /// A time on the clock, in seconds as they are told.
    pub fn seconds(&self, time: Duration) -> f64 {
        time.saturating_sub(Duration::from_millis(self.zero.load(Ordering::Relaxed))).as_secs_f64()
    }

    /// Something that happened now.
    pub fn say(&self, text: &str) {
        let time = self.seconds(self.clock.elapsed());
        self.line(&format!("{time:7.2} s  {text}"));
    }

    /// Lines that belong to what was said.
    pub fn more(&self, text: &str) {
        for line in text.lines() {
            self.line(&format!("           {line}"));
        }
    }

    /// A line as it is. A reader that went away is no reason to end: the run has to be cleared up.
    pub fn line(&self, text: &str) {
        let _ = match self.output {
            Output::Text => writeln!(std::io::stdout(), "{text}"),
            Output::Json => writeln!(std::io::stderr(), "{text}"),
        };
    }

    /// The result as the last line of stdout.
    pub fn result(&self, result: &impl Serialize) {
        if self.output == Output::Json
            && let Ok(text) = serde_json::to_string(result)
        {
            let _ = writeln!(std::io::stdout(), "{text}");
        }
    }
}
