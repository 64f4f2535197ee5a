//! How results look: tables for people, JSON and YAML for programs, a spinner while somebody waits.

pub mod json;
pub mod progress;
pub mod table;

/// The form of a result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For people with a wide screen.
    Wide,
    /// For programs.
    Json,
    /// For programs, and easier to read.
    Yaml,
}

/// The form of a result that has no wide form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Plain {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For programs, and easier to read.
    Yaml,
}

/// Prints to stdout. A reader that has gone away (`| head`) is no error.
pub fn print(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    // Nobody is left to be told.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
