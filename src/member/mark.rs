//! The high-water mark in `incarnation.json`: what may be written, and when (decisions.md 2).

use quorate_core::federation::member::Mark;

/// At most this often while only the index moves.
const PERIOD_MS: u64 = 10 * 60 * 1000;

/// The mark of a running etcd. An index counts only once a higher one was seen after it, since etcd may show an index
/// before its own fsync of it; the term is proven together with the index.
#[derive(Debug)]
pub(crate) struct Watermark {
    written: Mark,
    written_ms: u64,
    unproven: Option<Mark>,
}

impl Watermark {
    /// Begins with what stands in the record.
    pub(crate) fn new(written: Mark, now_ms: u64) -> Self {
        Self { written, written_ms: now_ms, unproven: None }
    }

    /// Whether a look at the log could lead to a write.
    pub(crate) fn due(&self, now_ms: u64) -> bool {
        self.unproven.is_none_or(|mark| mark.term > self.written.term)
            || now_ms.saturating_sub(self.written_ms) >= PERIOD_MS
    }

    /// Takes what was seen; gives the mark that has to be written now.
    pub(crate) fn observe(&mut self, seen: Mark, now_ms: u64) -> Option<Mark> {
        let proven = match self.unproven {
            None => {
                self.unproven = Some(seen);
                return None;
            }
            // Nothing new, or an old directory: that is the guard's business.
            Some(before) if seen.index <= before.index => return None,
            Some(before) => before,
        };
        self.unproven = Some(seen);
        let mark = self.written.max(proven);
        let due = mark.term > self.written.term
            || (mark.index > self.written.index && now_ms.saturating_sub(self.written_ms) >= PERIOD_MS);
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
    fn only_an_index_below_a_later_one_is_written() {
        let mut mark = Watermark::new(at(0, 0), 0);
        assert!(mark.due(0));
        assert_eq!(mark.observe(at(2, 10), 0), None);
        assert_eq!(mark.observe(at(2, 10), 1000), None, "seen twice is not proven");
        assert!(mark.due(1000));
        assert_eq!(mark.observe(at(2, 11), 2000), Some(at(2, 10)), "a new term at once");
        assert!(!mark.due(3000));
        assert_eq!(mark.observe(at(2, 50), 3000), None, "an index alone waits");
        assert!(mark.due(2000 + PERIOD_MS));
        assert_eq!(mark.observe(at(2, 90), 2000 + PERIOD_MS), Some(at(2, 50)));
        assert_eq!(mark.observe(at(3, 91), 2001 + PERIOD_MS), None, "the new term is not proven yet");
        assert!(mark.due(2001 + PERIOD_MS));
        assert_eq!(mark.observe(at(3, 92), 2002 + PERIOD_MS), Some(at(3, 91)));
    }

    #[test]
    fn the_mark_never_sinks() {
        let mut mark = Watermark::new(at(5, 500), 0);
        assert_eq!(mark.observe(at(2, 10), 0), None);
        assert_eq!(mark.observe(at(2, 11), PERIOD_MS), None);
        assert_eq!(mark.observe(at(6, 400), PERIOD_MS), None);
        assert_eq!(mark.observe(at(6, 401), PERIOD_MS), Some(at(6, 500)));
    }
}
