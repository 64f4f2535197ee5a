//! How long to wait before the next start.

/// The first wait.
const FIRST_MS: u64 = 200;
/// The longest wait: long enough to spare a broken machine, short enough that nobody waits for us after a repair.
const LONGEST_MS: u64 = 10_000;
/// A process that lived this long counts as a good start.
const GOOD_MS: u64 = 30_000;

/// Doubles with each short life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    next_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next_ms: FIRST_MS }
    }
}

impl Backoff {
    /// The wait after a process that lived for `lived_ms`.
    pub fn after(&mut self, lived_ms: u64) -> u64 {
        if lived_ms >= GOOD_MS {
            self.reset();
        }
        let now = self.next_ms;
        self.next_ms = (now * 2).min(LONGEST_MS);
        now
    }

    /// A person or an agent asked for the next start.
    pub fn reset(&mut self) {
        self.next_ms = FIRST_MS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lives_wait_longer_up_to_a_bound() {
        let mut backoff = Backoff::default();
        let waits: Vec<u64> = (0..8).map(|_| backoff.after(10)).collect();
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(backoff.after(29_999), 10_000);
        assert_eq!(backoff.after(30_000), 200);
        assert_eq!(backoff.after(1), 400);
    }
}
