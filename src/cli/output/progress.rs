//! Something that moves while a person waits; nothing at all when stderr is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A spinner on stderr; it goes away when it is dropped.
#[derive(Debug)]
pub struct Spinner(ProgressBar);

impl Spinner {
    /// Says what is waited for. Without a terminal the text is printed once instead.
    pub fn start(text: &str) -> Self {
        use std::io::IsTerminal as _;
        if !std::io::stderr().is_terminal() {
            eprintln!("{text}");
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner().with_message(text.to_owned());
        bar.set_style(
            ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
