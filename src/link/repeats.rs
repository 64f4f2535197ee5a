//! What is said again and again, said once in a while: a peer with a bad certificate calls every few seconds, and a
//! hostile one as often as it likes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Clock;

/// The same is said again after this time.
const AGAIN: Duration = Duration::from_mins(10);
/// So much is remembered; beyond that nothing new is said until something old is forgotten.
const MOST: usize = 256;

/// Remembers what was said.
#[derive(Debug)]
pub struct Repeats {
    clock: Clock,
    last: Mutex<HashMap<String, Duration>>,
}

impl Default for Repeats {
    fn default() -> Self {
        Self { clock: Clock::start(), last: Mutex::default() }
    }
}

impl Repeats {
    /// Whether this has not been said for a while. It counts as said now.
    pub fn is_new(&self, what: String) -> bool {
        let now = self.clock.elapsed();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|_, at| now.saturating_sub(*at) < AGAIN);
        if last.contains_key(&what) || last.len() >= MOST {
            return false;
        }
        last.insert(what, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_same_is_said_once_in_a_while_and_a_flood_is_cut_off() {
        let repeats = Repeats::default();
        assert!(repeats.is_new("a".to_owned()));
        assert!(!repeats.is_new("a".to_owned()));
        assert!(repeats.is_new("b".to_owned()));
        tokio::time::advance(AGAIN).await;
        assert!(repeats.is_new("a".to_owned()));
        let told = (0..1_000).filter(|number| repeats.is_new(number.to_string())).count();
        assert_eq!(told, MOST - 1);
    }
}
