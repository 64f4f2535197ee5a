//! What is wrong in a file, and where.

use std::fmt;

/// One mistake in a file: the line if it is known, the path of the field, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line in the file, from 1.
    pub line: Option<u64>,
    /// The path of the field, for example `spec.clusters[1].name`; empty for the file as a whole.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Problem {
    pub(crate) fn new(line: Option<u64>, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { line, path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// All of them in one line, for logs; the CLI prints one line each.
pub(crate) fn joined(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// `; did you mean "zones"?`, or nothing if no name is near.
pub(crate) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> String {
    const NEAR: f64 = 0.7;
    let scored = names.map(|name| (strsim::jaro_winkler(&word.to_lowercase(), &name.to_lowercase()), name));
    match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, name)) if score >= NEAR => format!("; did you mean {name:?}?"),
        _ => String::new(),
    }
}

/// The path of a field below `path`.
pub(crate) fn below(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}
