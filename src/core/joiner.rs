//! When a joiner is started a second time before it has served anybody.
//!
//! etcd opens its client port when one proposal of its own, with its name and its client URLs ("publish"), comes back to
//! it through raft. A joiner that is sent a database snapshot can lose it: the leader takes the proposal, commits it, and
//! then makes the snapshot, which already holds it; so the entry itself never comes. etcd waits 5 s + 2 x election for it
//! and only then proposes it again. Started again, the joiner has its data and needs no snapshot, and the proposal of the
//! new process comes back at once.
//!
//! Why that is harmless: it is done at most once in the life of an incarnation, to the process that was permitted to begin
//! on an empty directory as a new learner ([`crate::identity::Start::Join`]). No member is added in another way (safety.md 3), a learner
//! counts in no quorum, and one that has never answered at its client port was never alive, so rule I9 has never let it
//! become a voter. The second start is one on its own directory, judged by rule I5 like that after any crash.

/// How long a joiner that has its snapshot may take to open its client port, ms. On a busy machine that is less than half
/// a second if the proposal was not lost.
pub const OPENS_MS: u64 = 1_000;

/// What is seen of a joiner whose client port was not open yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    /// The client port is open.
    pub open: bool,
    /// Database snapshots that came in completely.
    pub received: u64,
    /// Database snapshots that are coming in.
    pub receiving: u64,
    /// The last applied index; zero before the snapshot is applied.
    pub applied: u64,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Look again.
    Wait,
    /// It is open: nothing to look for any more.
    Open,
    /// Start it again on its directory.
    Restart,
}

/// Follows the one process of an incarnation that began on an empty directory. Make it for that start and for no other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Joiner {
    complete_since: Option<u64>,
}

impl Joiner {
    /// Takes a look at `now_ms`, ms on a clock that never goes back.
    pub fn look(&mut self, look: Look, now_ms: u64) -> Verdict {
        if look.open {
            return Verdict::Open;
        }
        // Without a snapshot everything comes entry by entry, the own proposal too.
        if look.received == 0 || look.receiving > 0 || look.applied == 0 {
            self.complete_since = None;
            return Verdict::Wait;
        }
        let since = *self.complete_since.get_or_insert(now_ms);
        if now_ms.saturating_sub(since) >= OPENS_MS { Verdict::Restart } else { Verdict::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPLETE: Look = Look { open: false, received: 1, receiving: 0, applied: 2_000 };

    #[test]
    fn with_its_snapshot_and_without_an_open_port_it_is_started_again() {
        let mut joiner = Joiner::default();
        assert_eq!(joiner.look(COMPLETE, 5_000), Verdict::Wait);
        assert_eq!(joiner.look(Look { applied: 2_100, ..COMPLETE }, 5_999), Verdict::Wait);
        assert_eq!(joiner.look(COMPLETE, 6_000), Verdict::Restart);
    }

    #[test]
    fn an_open_port_ends_it() {
        assert_eq!(Joiner::default().look(Look { open: true, ..COMPLETE }, 0), Verdict::Open);
        let mut joiner = Joiner::default();
        joiner.look(COMPLETE, 0);
        assert_eq!(joiner.look(Look { open: true, ..COMPLETE }, 9_000), Verdict::Open);
    }

    /// A large database takes long; a restart would make it begin anew.
    #[test]
    fn a_snapshot_that_is_missing_coming_in_or_not_applied_is_waited_for() {
        for incomplete in [
            Look { received: 0, ..COMPLETE },
            Look { receiving: 1, ..COMPLETE },
            Look { applied: 0, ..COMPLETE },
            Look::default(),
        ] {
            let mut joiner = Joiner::default();
            for now in [0, 10_000, 1_000_000] {
                assert_eq!(joiner.look(incomplete, now), Verdict::Wait, "{incomplete:?}");
            }
            // A second one, because the first was too old: counted from its end.
            assert_eq!(joiner.look(COMPLETE, 1_000_000), Verdict::Wait);
            assert_eq!(joiner.look(incomplete, 1_000_500), Verdict::Wait);
            assert_eq!(joiner.look(COMPLETE, 1_001_000), Verdict::Wait);
            assert_eq!(joiner.look(COMPLETE, 1_002_000), Verdict::Restart);
        }
    }
}
