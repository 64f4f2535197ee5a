//! Logs, votes, replication and what becomes of the membership when an entry is applied.

use std::sync::Arc;

use super::{Answer, At, Cluster, Entry, Logged, Node, Ticket};
use crate::membership::quorum::quorum;

impl Node {
    /// Cuts the log; what was applied from it is applied again by [`Cluster::rewind`].
    pub(super) fn forget_from(&mut self, keep: usize) {
        self.log.truncate(keep);
        self.durable = self.log.len();
    }
}

impl Cluster {
    /// Lets time pass and everything happen that is due: streams end, leaders step down, elections, replication.
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.stop_removed();
        self.deliver_late();
        self.replicate();
        self.step_down();
        self.elect();
        self.replicate();
        self.move_leaders();
        self.settle_puts();
    }

    fn stop_removed(&mut self) {
        let due: Vec<At> = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, n)| n.running && n.stops_at.is_some_and(|at| at <= self.now))
            .map(|(at, _)| at)
            .collect();
        for at in due {
            self.stop(at);
        }
    }

    fn leads(&self, at: At) -> bool {
        self.nodes.get(at).is_some_and(|n| n.running && n.leader == Some(at))
    }

    /// Check-quorum: a leader that does not reach a majority for an election timeout gives up.
    fn step_down(&mut self) {
        for at in 0..self.nodes.len() {
            if !self.leads(at) {
                self.miss_leader(at);
                continue;
            }
            let enough = self.has_quorum(at);
            let (now, patience) = (self.now, self.election_ms);
            let Some(node) = self.nodes.get_mut(at) else {
                continue;
            };
            if enough {
                node.quorum_lost_since = None;
            } else if now.saturating_sub(*node.quorum_lost_since.get_or_insert(now)) >= patience {
                node.leader = None;
                node.silent_since = Some(now);
            }
        }
    }

    /// Whether a leader reaches a majority of the voters that it knows.
    pub(super) fn has_quorum(&self, at: At) -> bool {
        let Some(node) = self.nodes.get(at) else {
            return false;
        };
        let reached = node.conf.voters().filter(|v| self.both_ways(at, *v)).count();
        reached >= quorum(node.conf.voter_count())
    }

    /// A follower notes that its leader is silent.
    fn miss_leader(&mut self, at: At) {
        let heard = self.nodes.get(at).and_then(|n| n.leader).is_some_and(|leader| {
            let same_term = self.nodes.get(leader).map(|l| l.term) == self.nodes.get(at).map(|n| n.term);
            self.leads(leader) && same_term && self.reaches(leader, at)
        });
        let now = self.now;
        let Some(node) = self.nodes.get_mut(at) else {
            return;
        };
        if heard || !node.running {
            node.silent_since = None;
        } else if now.saturating_sub(*node.silent_since.get_or_insert(now)) >= node.patience {
            node.leader = None;
        }
    }

    /// A voter that has heard of no leader for its patience campaigns; pre-vote keeps it from disturbing others.
    fn elect(&mut self) {
        let ready = |n: &Node, at: At, now: u64| {
            n.running
                && n.conf.is_voter(at)
                && n.silent_since.is_some_and(|since| now.saturating_sub(since) >= n.patience)
        };
        let mut candidates: Vec<(u64, At)> = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if ready(node, at, self.now) {
                candidates.push((node.silent_since.unwrap_or(0) + node.patience, at));
            }
        }
        candidates.sort_unstable();
        for (_, at) in candidates {
            if !self.leads(at) && self.nodes.get(at).is_some_and(|n| n.leader.is_none()) {
                self.campaign(at);
            }
        }
    }

    fn up_to_date(&self, candidate: At, voter: At) -> bool {
        let last = |at: At| {
            let log = self.nodes.get(at).map(|n| n.log.as_slice()).unwrap_or_default();
            let term = log.last().and_then(|e| self.entries.get(*e as usize)).map_or(0, |e| e.term);
            (term, log.len())
        };
        last(candidate) >= last(voter)
    }

    fn votes_for(&self, candidate: At, transfer: bool) -> Vec<At> {
        let Some(node) = self.nodes.get(candidate) else {
            return Vec::new();
        };
        let grants = |voter: &At| {
            *voter == candidate
                || (self.both_ways(candidate, *voter)
                    && self.up_to_date(candidate, *voter)
                    && self.nodes.get(*voter).is_some_and(|v| {
                        let lost =
                            v.silent_since.is_some_and(|s| self.now.saturating_sub(s) >= self.election_ms);
                        transfer || lost || v.leader.is_none()
                    }))
        };
        node.conf.voters().filter(grants).collect()
    }

    fn campaign(&mut self, at: At) -> bool {
        self.campaign_with(at, false)
    }

    fn campaign_with(&mut self, at: At, transfer: bool) -> bool {
        let granted = self.votes_for(at, transfer);
        let Some(node) = self.nodes.get(at) else {
            return false;
        };
        if granted.len() < quorum(node.conf.voter_count()) {
            return false;
        }
        let term = granted.iter().filter_map(|v| self.nodes.get(*v)).map(|v| v.term).max().unwrap_or(0) + 1;
        for voter in &granted {
            if let Some(voter) = self.nodes.get_mut(*voter) {
                voter.term = term;
                voter.leader = None;
                voter.quorum_lost_since = None;
            }
        }
        let (count, patience) = (self.nodes.len(), self.election_ms + self.rng.below(self.election_ms));
        if let Some(node) = self.nodes.get_mut(at) {
            node.leader = Some(at);
            node.silent_since = None;
            node.patience = patience;
            node.progress = vec![0; count];
            node.pending_conf = node.log.len();
            node.publishing = 0;
        }
        self.note_election(at);
        self.append(at, Entry::Nothing, None);
        true
    }

    /// Puts an entry at the end of a leader's log. A second unapplied membership change becomes an empty entry without
    /// a word: its caller waits for ever (etcd-facts 4).
    pub(super) fn append(&mut self, at: At, entry: Entry, ticket: Option<(At, Ticket)>) -> Option<u32> {
        let conf_change =
            matches!(entry, Entry::Add { .. } | Entry::Promote(_) | Entry::Remove(_) | Entry::Update(..));
        let number = u32::try_from(self.entries.len()).ok()?;
        let node = self.nodes.get_mut(at)?;
        let dropped = conf_change && node.pending_conf > node.applied;
        let term = node.term;
        if node.slow_disk {
            node.durable = node.log.len(); // at most the last batch waits for its fsync
        }
        node.log.push(number);
        if conf_change && !dropped {
            node.pending_conf = node.log.len();
        }
        if !node.slow_disk {
            node.durable = node.log.len();
        }
        let (entry, ticket) = if dropped { (Entry::Nothing, None) } else { (entry, ticket) };
        self.entries.push(Logged { term, entry, ticket, after: None });
        Some(number)
    }

    /// Leaders send what is missing, count what is on disk, and everybody applies what is committed.
    pub(super) fn replicate(&mut self) {
        // Twice: a membership change that is applied in the first round may commit more in the second.
        for _ in 0..2 {
            for leader in 0..self.nodes.len() {
                if self.leads(leader) {
                    self.send(leader);
                    self.commit(leader);
                    self.publish(leader);
                }
            }
            for at in 0..self.nodes.len() {
                self.apply(at);
            }
        }
    }

    fn send(&mut self, leader: At) {
        let conf = match self.nodes.get(leader) {
            Some(node) => Arc::clone(&node.conf),
            None => return,
        };
        for (to, _) in &conf.members {
            if *to == leader || !self.leads(leader) {
                continue;
            }
            if self.both_ways(leader, *to) {
                self.send_to(leader, *to);
            } else if self.reaches(leader, *to) {
                // Heartbeats arrive although the answers get lost: the follower stays quiet.
                self.heartbeat(leader, *to);
            }
        }
    }

    fn heartbeat(&mut self, leader: At, to: At) {
        let term = self.nodes.get(leader).map_or(0, |n| n.term);
        if let Some(follower) = self.nodes.get_mut(to)
            && follower.term <= term
        {
            follower.term = term;
            follower.leader = Some(leader);
            follower.silent_since = None;
        }
    }

    fn send_to(&mut self, leader: At, to: At) {
        let term = self.nodes.get(leader).map_or(0, |n| n.term);
        if self.nodes.get(to).is_some_and(|n| n.term > term) {
            let (now, newer) = (self.now, self.nodes.get(to).map_or(term, |n| n.term));
            if let Some(node) = self.nodes.get_mut(leader) {
                node.leader = None;
                node.term = newer;
                node.silent_since = Some(now);
            }
            return;
        }
        self.heartbeat(leader, to);
        let Ok([from, follower]) = self.nodes.get_disjoint_mut([leader, to]) else {
            return;
        };
        from.progress.resize(from.progress.len().max(to + 1), 0);
        let known = from.progress.get(to).copied().unwrap_or(0) as usize;
        if known > follower.log.len() {
            // "tocommit is out of range": the follower lost what it had acknowledged (etcd-facts 2).
            follower.running = false;
            follower.leader = None;
            self.refresh_links();
            return;
        }
        let mut common = follower.log.len().min(from.log.len());
        while common > 0 && follower.log.get(common - 1) != from.log.get(common - 1) {
            common -= 1;
        }
        let rewritten = follower.log.len() > common;
        if rewritten {
            follower.forget_from(common);
        }
        let end = from.log.len().min(common.saturating_add(follower.intake));
        if follower.slow_disk && end > common {
            follower.durable = common;
        }
        follower.log.extend_from_slice(from.log.get(common..end).unwrap_or_default());
        if !follower.slow_disk {
            follower.durable = follower.log.len();
        }
        let durable = u32::try_from(follower.durable).unwrap_or(u32::MAX);
        follower.commit = follower.commit.max(from.commit.min(follower.log.len()));
        if let Some(progress) = from.progress.get_mut(to) {
            *progress = durable;
        }
        if rewritten {
            self.rewind(to);
        }
    }

    fn commit(&mut self, leader: At) {
        let Some(node) = self.nodes.get(leader) else {
            return;
        };
        let mut on_disk: [usize; 16] = [0; 16];
        let mut count = 0;
        for voter in node.conf.voters() {
            let have = if voter == leader {
                node.durable
            } else {
                node.progress.get(voter).copied().unwrap_or(0) as usize
            };
            if let Some(slot) = on_disk.get_mut(count) {
                *slot = have;
                count += 1;
            }
        }
        let Some(have) = on_disk.get_mut(..count) else {
            return;
        };
        have.sort_unstable_by(|a, b| b.cmp(a));
        let Some(majority) = have.get(quorum(count) - 1).copied() else {
            return;
        };
        let entry =
            majority.checked_sub(1).and_then(|i| node.log.get(i)).and_then(|e| self.entries.get(*e as usize));
        let own_term = entry.is_some_and(|e| e.term == node.term);
        if own_term
            && majority > node.commit
            && let Some(node) = self.nodes.get_mut(leader)
        {
            node.commit = majority;
            self.note_commit(leader);
        }
    }

    /// Members publish their name once they have caught up.
    fn publish(&mut self, leader: At) {
        let Some(node) = self.nodes.get(leader) else {
            return;
        };
        let unnamed: Option<At> = node.conf.list.iter().filter(|m| m.name.is_empty()).find_map(|m| {
            let at = self.find(m.id)?;
            let target = self.nodes.get(at)?;
            let caught_up = target.running && target.conf.has(at) && node.publishing & (1 << at) == 0;
            caught_up.then_some(at)
        });
        if let Some(at) = unnamed
            && let Some(number) = self.append(leader, Entry::Publish(at), None)
            && let Some(node) = self.nodes.get_mut(leader)
        {
            let _ = number;
            node.publishing |= 1 << at;
        }
    }

    /// Leadership moves to a voter that has everything. With one that does not answer raft gives up after an election
    /// timeout, but the call hangs until its caller gives up (measured).
    fn move_leaders(&mut self) {
        let due = std::mem::take(&mut self.transfers);
        for (until, from, to, ticket) in due {
            let caught_up = self.both_ways(from, to) && self.up_to_date(to, from);
            if self.leads(from) && caught_up && self.campaign_with(to, true) {
                self.heartbeat(to, from);
                self.replicate();
                self.answer(ticket, Answer::Done);
            } else if self.now < until && self.leads(from) {
                self.transfers.push((until, from, to, ticket));
            }
        }
    }

    fn deliver_late(&mut self) {
        let mut at = 0;
        while let Some(late) = self.late.get(at) {
            if late.due > self.now {
                at += 1;
                continue;
            }
            let late = self.late.swap_remove(at);
            self.forward(late.at, late.entry, late.ticket, late.gives_up);
        }
    }
}
