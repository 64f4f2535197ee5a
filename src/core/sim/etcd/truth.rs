//! What really happened: which acknowledged writes are lost, and when.

use super::{Answer, At, Cluster, Entry};

/// An acknowledged write that no future majority can bring back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// A leader was elected whose log lacks it.
    ElectedWithout {
        /// The leader.
        leader: At,
        /// Index of the write.
        index: usize,
    },
    /// No directory of any listed voter holds it any more.
    NoHolder {
        /// Index of the write.
        index: usize,
    },
    /// A committed entry was replaced by another one.
    Rewritten {
        /// Where.
        at: At,
        /// Index.
        index: usize,
    },
}

impl Cluster {
    /// The losses seen so far; empty in a world that follows the rules.
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// Number of acknowledged writes.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// Acknowledged writes follow each other in one log, so the last one stands for all.
    pub(super) fn note_election(&mut self, leader: At) {
        let Some(last) = self.acknowledged.last() else {
            return;
        };
        let has = self.nodes.get(leader).is_some_and(|n| n.log.iter().rev().any(|e| e == last));
        if !has {
            let index = self.acknowledged.len();
            self.losses.push(Loss::ElectedWithout { leader, index });
        }
    }

    /// Two members must never disagree about what is committed.
    pub(super) fn note_commit(&mut self, leader: At) {
        let Some(node) = self.nodes.get(leader) else {
            return;
        };
        let index = node.commit;
        let mine = index.checked_sub(1).and_then(|i| node.log.get(i)).copied();
        let other = self.nodes.iter().enumerate().find(|(at, n)| {
            *at != leader && n.disk && n.commit >= index && index > 0 && n.log.get(index - 1).copied() != mine
        });
        if let Some((at, _)) = other {
            self.losses.push(Loss::Rewritten { at, index });
        }
    }

    /// After a directory was lost: is there a listed voter left that holds the last acknowledged write?
    pub(super) fn note_holders(&mut self) {
        let Some(last) = self.acknowledged.last().copied() else {
            return;
        };
        let Some(newest) = self.nodes.iter().filter(|n| n.disk).max_by_key(|n| (n.commit, n.term)) else {
            self.losses.push(Loss::NoHolder { index: self.acknowledged.len() });
            return;
        };
        let holds =
            |at: At| self.nodes.get(at).is_some_and(|n| n.disk && n.log.iter().rev().any(|e| *e == last));
        if !newest.conf.voters().any(holds) {
            self.losses.push(Loss::NoHolder { index: self.acknowledged.len() });
        }
    }

    /// Answers writes whose entry is applied at the member that took them; only these count as acknowledged.
    pub(super) fn settle_puts(&mut self) {
        let mut waiting = std::mem::take(&mut self.awaited_puts);
        waiting.retain(|(ticket, number)| {
            let done = matches!(self.peek(*ticket), Some(Answer::Done));
            if done {
                self.acknowledged.push(*number);
            }
            !done
        });
        self.awaited_puts = waiting;
        self.awaited_puts.sort_unstable_by_key(|(_, number)| *number);
    }

    /// Whether the log of every running voter that leads holds all acknowledged writes.
    pub fn leader_holds_everything(&self) -> bool {
        let Some(last) = self.acknowledged.last() else {
            return true;
        };
        self.nodes
            .iter()
            .enumerate()
            .filter(|(at, n)| n.running && n.leader == Some(*at) && self.has_quorum(*at))
            .all(|(_, n)| n.log.contains(last))
    }

    /// The leader that a majority follows.
    pub fn true_leader(&self) -> Option<At> {
        (0..self.nodes.len())
            .filter(|at| {
                self.nodes.get(*at).is_some_and(|n| n.running && n.leader == Some(*at))
                    && self.has_quorum(*at)
            })
            .max_by_key(|at| self.nodes.get(*at).map(|n| n.term))
    }

    /// Membership entries that are in a leader's log and not applied there yet.
    pub fn pending_changes(&self, at: At) -> usize {
        let Some(node) = self.nodes.get(at) else { return 0 };
        let unapplied = node.log.get(node.applied..).unwrap_or_default();
        let change = |e: &&u32| {
            self.entries.get(**e as usize).is_some_and(|e| {
                matches!(
                    e.entry,
                    Entry::Add { .. } | Entry::Promote(_) | Entry::Remove(_) | Entry::Update(..)
                )
            })
        };
        unapplied.iter().filter(change).count()
    }
}
