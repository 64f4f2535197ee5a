//! What raft would know after it has replayed the records.

use std::collections::VecDeque;

use super::proto;
use super::record::{Kind, Record};
use super::{Damage, Point, WalFacts};

/// Snapshot records that are remembered. etcd writes one per 10,000 entries and only the newest committed one counts;
/// a file with more of them must not cost more memory.
const SNAPSHOTS: usize = 1024;

/// The state so far.
#[derive(Debug, Default)]
pub(super) struct Replay {
    metadata: Option<Metadata>,
    entry: Option<Point>,
    state: State,
    snapshots: VecDeque<Point>,
    /// The highest index of any of them.
    covered: u64,
    entries: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Metadata {
    member: u64,
    cluster: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    term: u64,
    vote: u64,
    commit: u64,
}

impl Replay {
    /// Applies the next record.
    pub(super) fn apply(&mut self, record: &Record) -> Result<(), Damage> {
        let Record { kind, head, complete } = record;
        match kind {
            Kind::Metadata => {
                let [member, cluster] = numbers(head, *complete)?;
                let (Some(member), Some(cluster)) = (member, cluster) else {
                    return Err(Damage::Malformed("metadata without member and cluster id"));
                };
                self.metadata(Metadata { member, cluster })
            }
            Kind::Entry => {
                let [_, term, index] = numbers(head, *complete)?;
                let (Some(term), Some(index)) = (term, index) else {
                    return Err(Damage::Malformed("an entry without term and index"));
                };
                self.entry(Point { term, index })
            }
            Kind::State => {
                let [term, vote, commit] = numbers(head, *complete)?.map(Option::unwrap_or_default);
                self.state = State { term, vote, commit };
                Ok(())
            }
            Kind::Snapshot => {
                let [index, term] = numbers(head, *complete)?.map(Option::unwrap_or_default);
                if self.snapshots.len() == SNAPSHOTS {
                    self.snapshots.pop_front();
                }
                self.snapshots.push_back(Point { term, index });
                self.covered = self.covered.max(index);
                Ok(())
            }
            Kind::Crc => Ok(()),
        }
    }

    /// Every segment repeats it.
    fn metadata(&mut self, found: Metadata) -> Result<(), Damage> {
        match self.metadata {
            Some(known) if known != found => {
                Err(Damage::OtherMember { found: found.member, expected: known.member })
            }
            _ => {
                self.metadata = Some(found);
                Ok(())
            }
        }
    }

    /// An entry replaces all that stand at its index or above: a new leader overwrites what was not committed.
    fn entry(&mut self, found: Point) -> Result<(), Damage> {
        if let Some(last) = self.entry {
            // A snapshot that a leader sent replaces the log up to its index.
            let last = last.index.max(self.covered);
            if found.index > last.saturating_add(1) {
                return Err(Damage::Gap { found: found.index, last });
            }
        }
        self.entry = Some(found);
        self.entries += 1;
        Ok(())
    }

    /// The sum of it; `None` if the log does not say whose it is.
    pub(super) fn facts(self, segments: usize, torn: bool) -> Option<WalFacts> {
        let Self { metadata, entry, state, snapshots, covered: _, entries } = self;
        let Metadata { member, cluster } = metadata?;
        // The record of a snapshot is written before the state that commits it; etcd ignores it without that.
        let snapshot =
            snapshots.into_iter().filter(|point| point.index <= state.commit).max_by_key(|p| p.index);
        let points = || entry.iter().chain(snapshot.iter());
        Some(WalFacts {
            cluster_id: cluster,
            member_id: member,
            term: points().map(|point| point.term).fold(state.term, u64::max),
            index: points().map(|point| point.index).max().unwrap_or(0),
            vote: state.vote,
            commit: state.commit,
            entry,
            snapshot,
            segments,
            entries,
            torn,
        })
    }
}

fn numbers<const N: usize>(head: &[u8], complete: bool) -> Result<[Option<u64>; N], Damage> {
    proto::numbers(head, complete).map_err(Damage::Malformed)
}
