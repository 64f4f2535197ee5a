//! Logs: JSON in a cluster, text for people, and a level that can be changed while the process runs.

use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, reload};

/// Why logging could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a level.
    #[error(
        "{level:?} is no log level; use error, warn, info, debug, trace, or for single parts info,quorate_agent=debug"
    )]
    Level {
        /// The level as it was given.
        level: String,
    },
    /// Neither json nor text.
    #[error("{0:?} is no log format; use json or text")]
    Format(String),
    /// Set up twice.
    #[error("logging is set up already")]
    Twice,
    /// The subscriber is gone.
    #[error("the log level can no longer be changed")]
    Gone,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            _ => Err(Error::Format(text.to_owned())),
        }
    }
}

/// Changes the level; cheap to clone.
#[derive(Clone)]
pub struct Level {
    handle: reload::Handle<EnvFilter, Registry>,
}

impl Level {
    /// Sets the level, for example `info` or `info,quorate_agent=debug`. An unknown one changes nothing.
    pub fn set(&self, level: &str) -> Result<(), Error> {
        self.handle.reload(filter(level)?).map_err(|_| Error::Gone)
    }

    /// The level as it is now.
    pub fn get(&self) -> String {
        self.handle.with_current(ToString::to_string).unwrap_or_default()
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Level").field(&self.get()).finish()
    }
}

/// Sends the log of this process to stderr, once.
pub fn init(format: Format, level: &str) -> Result<Level, Error> {
    let (subscriber, handle) = subscriber(format, level, io::stderr)?;
    subscriber.try_init().map_err(|_| Error::Twice)?;
    Ok(handle)
}

/// The same, and keeps the last lines: wherever stderr went, they can be asked for.
pub fn init_kept(format: Format, level: &str) -> Result<(Level, Recent), Error> {
    let recent = Recent::default();
    let kept = recent.clone();
    let (subscriber, handle) = subscriber(format, level, move || Tee(kept.clone()))?;
    subscriber.try_init().map_err(|_| Error::Twice)?;
    Ok((handle, recent))
}

/// As many lines of the log as are kept, and as many bytes of them.
const KEPT: (usize, usize) = (2_000, 1024 * 1024);

/// The last lines of the log; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Recent {
    lines: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Recent {
    /// Oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).lines.iter().cloned().collect()
    }

    fn push(&self, line: &str) {
        let mut kept = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += line.len();
        kept.lines.push_back(line.to_owned());
        while kept.lines.len() > KEPT.0 || kept.bytes > KEPT.1 {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.len();
        }
    }
}

/// Writes to stderr, and keeps a copy.
struct Tee(Recent);

impl io::Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The formatter hands over one whole line at a time.
        String::from_utf8_lossy(bytes).lines().for_each(|line| self.0.push(line));
        io::stderr().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A subscriber that writes to `writer`, with the handle of its level.
pub fn subscriber<W>(
    format: Format,
    level: &str,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync, Level), Error>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter(level)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
    let lines = match format {
        Format::Json => lines.json().flatten_event(true).boxed(),
        Format::Text => lines.boxed(),
    };
    Ok((Registry::default().with(filter).with(lines), Level { handle }))
}

fn filter(level: &str) -> Result<EnvFilter, Error> {
    let bad = || Error::Level { level: level.to_owned() };
    // An empty filter would silence everything; a lone word would be taken for the name of a module.
    let known = |word: &str| !word.is_empty() && word.parse::<tracing::level_filters::LevelFilter>().is_ok();
    let fine = level.split(',').all(|part| match part.trim().split_once('=') {
        None => known(part.trim()),
        Some((module, word)) => !module.is_empty() && known(word),
    });
    if fine { EnvFilter::builder().parse(level).map_err(|_| bad()) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn json_lines_with_fields_and_a_level_that_changes() {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let (subscriber, level) = subscriber(Format::Json, "info", move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!("not seen");
            tracing::info!(site = "east", "seen");
            level.set("debug").unwrap();
            assert!(level.set("loud").is_err());
            assert_eq!(level.get(), "debug");
            tracing::debug!("seen too");
        });
        let lines = lines(&buffer);
        assert_eq!(lines.len(), 2, "{lines:?}");
        let first: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(
            (&first["message"], &first["site"], &first["level"]),
            (&"seen".into(), &"east".into(), &"INFO".into())
        );
    }

    #[test]
    fn the_last_lines_are_kept_within_bounds() {
        let recent = Recent::default();
        for n in 0..KEPT.0 + 3 {
            recent.push(&format!("line {n}"));
        }
        let lines = recent.lines();
        assert_eq!((lines.len(), lines[0].as_str()), (KEPT.0, "line 3"));
        recent.push(&"x".repeat(KEPT.1 - 10));
        assert!(recent.lines().len() < 5 && recent.lines().last().unwrap().starts_with('x'));
    }

    #[test]
    fn text_has_no_colours() {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let (subscriber, _) =
            subscriber(Format::Text, "warn,quorate_link=info", move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || tracing::info!(site = "east", "seen"));
        assert!(lines(&buffer)[0].ends_with("seen site=\"east\""), "{:?}", lines(&buffer));
        assert!(!lines(&buffer)[0].contains('\u{1b}'));
    }

    #[test]
    fn unknown_levels_and_formats_are_refused() {
        for level in ["", "loud", "info,", "info,x=loud", "=info", "quorate_link"] {
            assert!(matches!(filter(level), Err(Error::Level { .. })), "{level}");
        }
        assert_eq!("json".parse::<Format>().unwrap(), Format::Json);
        assert!("xml".parse::<Format>().is_err());
    }
}
