//! Something that moves while a person waits; one plain line per change when stderr is no terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A spinner on stderr; it goes away when it is dropped.
#[derive(Debug)]
pub struct Spinner {
    /// None when stderr is no terminal.
    bar: Option<ProgressBar>,
    last: String,
}

impl Spinner {
    /// Says what is waited for.
    pub fn start(text: &str) -> Self {
        let mut spinner = Self { bar: None, last: String::new() };
        if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            bar.set_style(
                ProgressStyle::with_template("{spinner} {wide_msg} ({elapsed})")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            bar.enable_steady_tick(Duration::from_millis(120));
            spinner.bar = Some(bar);
        }
        spinner.say(text);
        spinner
    }

    /// Says what is waited for now; the same text again changes nothing.
    pub fn say(&mut self, text: &str) {
        if self.last == text {
            return;
        }
        text.clone_into(&mut self.last);
        match &self.bar {
            Some(bar) => bar.set_message(self.last.clone()),
            None => eprintln!("{text}"),
        }
    }

    /// Leaves a line behind: something is over that a person wants to read later.
    pub fn keep(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
