//! When the high-water mark of an own member is written (decisions.md 2): on a new term, and at most every ten minutes
//! while only the index moves; only an index below a later one, since etcd shows an index before its own fsync of it.

use quorate_core::federation::member::Mark;

const PERIOD_MS: u64 = 10 * 60 * 1000;

/// The mark of one incarnation.
#[derive(Debug)]
pub(super) struct Watermark {
    written: Mark,
    written_ms: u64,
    unproven: Mark,
}

impl Watermark {
    pub(super) fn new(written: Mark, now_ms: u64) -> Self {
        Self { written, written_ms: now_ms, unproven: Mark::default() }
    }

    /// Takes what a Status showed; the mark that has to be written now.
    pub(super) fn observe(&mut self, seen: Mark, now_ms: u64) -> Option<Mark> {
        if seen.index <= self.unproven.index {
            return None;
        }
        let proven = std::mem::replace(&mut self.unproven, seen);
        let mark = self.written.max(proven);
        let old = now_ms.saturating_sub(self.written_ms) >= PERIOD_MS;
        let due = mark.term > self.written.term || (mark.index > self.written.index && old);
        due.then(|| {
            self.written = mark;
            self.written_ms = now_ms;
            mark
        })
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::id::{Index, Term};

    use super::*;

    fn at(term: u64, index: u64) -> Mark {
        Mark { term: Term(term), index: Index(index) }
    }

    #[test]
    fn only_a_proven_index_is_written_and_seldom() {
        let mut mark = Watermark::new(Mark::default(), 0);
        assert_eq!(mark.observe(at(2, 10), 0), None);
        assert_eq!(mark.observe(at(2, 10), 500), None, "the same index proves nothing");
        assert_eq!(mark.observe(at(2, 11), 1_000), Some(at(2, 10)), "a new term at once");
        assert_eq!(mark.observe(at(2, 90), 2_000), None, "an index alone waits");
        assert_eq!(mark.observe(at(2, 91), 1_000 + PERIOD_MS), Some(at(2, 90)));
        assert_eq!(mark.observe(at(3, 80), 2 * PERIOD_MS), None, "a lower index is no proof");
    }
}
