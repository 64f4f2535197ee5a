//! How a command ends when it cannot do what was asked: the error once, a hint, and an exit code that scripts can use.

use std::fmt;
use std::process::ExitCode;

/// What the exit code says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Something that we did not think of.
    Bug = 1,
    /// What was asked for is wrong: arguments, a file, a name.
    Usage = 2,
    /// It would be unsafe.
    Unsafe = 3,
    /// Nobody answers.
    Unreachable = 4,
    /// It took too long.
    Timeout = 5,
}

/// For the help of the whole program.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  a bug, or something unexpected
  2  wrong usage: arguments, a file or a name
  3  refused because it would be unsafe
  4  nobody answers
  5  it took too long";

/// Why a command did not do what was asked.
#[derive(Debug)]
pub struct Failure {
    /// The kind of failure.
    pub exit: Exit,
    error: anyhow::Error,
    hint: Option<String>,
}

impl Failure {
    /// An error of a kind.
    pub fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self { exit, error: error.into(), hint: None }
    }

    /// A message of a kind, without a cause.
    pub fn message(exit: Exit, message: impl fmt::Display + fmt::Debug + Send + Sync + 'static) -> Self {
        Self::new(exit, anyhow::Error::msg(message))
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prints the chain of causes once, the hint, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        eprintln!("{self}");
        ExitCode::from(self.exit as u8)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {:#}", self.error)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Exit::Bug, error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::Bug, error)
    }
}
