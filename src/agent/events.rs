//! Transitions, each told once: to the log, to a counter, and to a short ring that people can read.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// As many as a person reads.
const KEPT: usize = 200;

/// One transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Counts from one in this run of the agent.
    pub number: u64,
    /// The wall clock in seconds; nothing is decided by it.
    pub unix_seconds: u64,
    /// One word.
    pub kind: &'static str,
    /// The sentence.
    pub text: String,
}

/// The last transitions of one federation; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Events {
    ring: Arc<Mutex<VecDeque<Event>>>,
}

impl Events {
    /// Takes note of a transition.
    pub fn push(&self, kind: &'static str, text: String, unix_seconds: u64) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let number = ring.back().map_or(1, |last| last.number + 1);
        if ring.len() == KEPT {
            ring.pop_front();
        }
        ring.push_back(Event { number, unix_seconds, kind, text });
    }

    /// All that are kept, oldest first.
    pub fn list(&self) -> Vec<Event> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_forgets_the_oldest() {
        let events = Events::default();
        for n in 0..=KEPT {
            events.push("Seeded", format!("{n}"), 0);
        }
        let kept = events.list();
        assert_eq!((kept.len(), kept[0].number), (KEPT, 2));
    }
}
