//! The clock adapter: the only place that asks the operating system for the time.
//!
//! Decisions use [`Clock::now_ms`], which never goes back. The wall clock serves certificates, tokens and log lines
//! only: it may jump, so nothing else may depend on it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A monotonic clock that starts at zero, and the wall clock beside it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    // tokio's instant, so that tests with paused time move it.
    start: tokio::time::Instant,
}

impl Clock {
    /// Starts the clock at zero.
    #[expect(clippy::disallowed_methods, reason = "this is the clock adapter")]
    pub fn start() -> Self {
        Self { start: tokio::time::Instant::now() }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Milliseconds since the start; never goes back.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The wall clock.
    #[expect(clippy::disallowed_methods, reason = "this is the clock adapter")]
    pub fn wall() -> SystemTime {
        SystemTime::now()
    }

    /// The wall clock in milliseconds since 1970; zero if it stands before that.
    pub fn unix_millis() -> u64 {
        let age = Self::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
    }

    /// The wall clock in seconds since 1970; zero if it stands before that.
    pub fn unix_seconds() -> u64 {
        seconds(Self::wall())
    }
}

/// Seconds since 1970 of `time`; zero for anything before.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_paused_time() {
        let clock = Clock::start();
        assert_eq!(clock.now_ms(), 0);
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(clock.now_ms(), 1500);
    }

    #[test]
    fn wall_clock_is_after_1970() {
        assert!(Clock::unix_seconds() > 1_700_000_000);
        assert_eq!(seconds(UNIX_EPOCH - Duration::from_secs(5)), 0);
    }
}
