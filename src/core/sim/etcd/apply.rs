//! What becomes of data and membership when an entry is applied.

use std::sync::Arc;

use super::{Answer, At, Cluster, Conf, Entry, Node, REMOVED_STOPS_MS, Refusal};
use crate::federation::observed::ListedMember;

impl Cluster {
    pub(super) fn apply(&mut self, at: At) {
        loop {
            let Some(node) = self.nodes.get(at) else { return };
            if !node.running || node.applied >= node.commit.min(node.log.len()) {
                return;
            }
            let Some(number) = node.log.get(node.applied).copied() else {
                return;
            };
            if node.applied == 0 {
                // The first entries of a real log name the first members; here they are known without entries.
                let birth = Arc::clone(&self.birth);
                if let Some(node) = self.nodes.get_mut(at) {
                    node.conf = birth;
                }
            }
            self.apply_entry(at, number);
        }
    }

    pub(super) fn apply_entry(&mut self, at: At, number: u32) {
        let Some(logged) = self.entries.get(number as usize) else {
            return;
        };
        let ticket = logged.ticket.filter(|(handler, _)| *handler == at).map(|(_, ticket)| ticket);
        let mut outcome = Ok(());
        match &logged.entry {
            Entry::Nothing => {}
            Entry::Put => {
                if let Some(node) = self.nodes.get_mut(at) {
                    node.revision += 1;
                    node.digest = (node.digest ^ u64::from(number)).wrapping_mul(0x0000_0100_0000_01b3);
                }
            }
            Entry::Publish(_)
            | Entry::Add { .. }
            | Entry::Promote(_)
            | Entry::Remove(_)
            | Entry::Update(..) => {
                outcome = self.apply_membership(at, number);
            }
        }
        if let Some(node) = self.nodes.get_mut(at) {
            node.applied += 1;
        }
        if let Some(ticket) = ticket {
            self.answer(ticket, outcome.map_or_else(Answer::Refused, |()| Answer::Done));
        }
    }

    pub(super) fn apply_membership(&mut self, at: At, number: u32) -> Result<(), Refusal> {
        let Some(before) = self.nodes.get(at).map(|n| Arc::clone(&n.conf)) else {
            return Ok(());
        };
        let Some(logged) = self.entries.get(number as usize) else {
            return Ok(());
        };
        let known =
            logged.after.as_ref().filter(|(b, _)| Arc::ptr_eq(b, &before)).map(|(_, after)| after.clone());
        let after = known.unwrap_or_else(|| self.change(&before, &logged.entry).map(Arc::new));
        if let Some(logged) = self.entries.get_mut(number as usize) {
            logged.after.get_or_insert_with(|| (before, after.clone()));
        }
        let conf = after?;
        let now = self.now;
        if let Some(node) = self.nodes.get_mut(at) {
            let went = node.conf.has(at) && !conf.has(at);
            node.conf = conf;
            if went {
                node.stops_at = Some(now + REMOVED_STOPS_MS);
                if node.leader == Some(at) {
                    node.leader = None;
                    node.silent_since = Some(now);
                }
            }
        }
        self.refresh_links();
        Ok(())
    }

    /// What an entry makes of a membership: the same checks in the same order as etcd's when it applies one.
    pub(super) fn change(&self, before: &Conf, entry: &Entry) -> Result<Conf, Refusal> {
        let mut members: Vec<(At, ListedMember)> =
            before.list.iter().filter_map(|m| Some((self.find(m.id)?, m.clone()))).collect();
        let mut gone = before.gone.clone();
        match entry {
            Entry::Nothing | Entry::Put => {}
            Entry::Publish(who) => {
                if let (Some((_, member)), Some(node)) =
                    (members.iter_mut().find(|(at, _)| at == who), self.nodes.get(*who))
                {
                    member.name = node.name.clone();
                }
            }
            Entry::Add { at, learner } => {
                let Some(node) = self.nodes.get(*at) else {
                    return Err(Refusal::NotFound);
                };
                self.check_add(before, node, *learner)?;
                let (id, peer_url) = (node.id, node.url.clone());
                members.push((*at, ListedMember { id, name: "".into(), peer_url, learner: *learner }));
            }
            Entry::Promote(id) => {
                let member = members.iter_mut().find(|(_, m)| m.id == *id).ok_or(Refusal::NotFound)?;
                if !member.1.learner {
                    return Err(Refusal::NotLearner);
                }
                member.1.learner = false;
            }
            Entry::Remove(id) => {
                if before.gone.contains(id) || before.list.get(*id).is_none() {
                    return Err(Refusal::NotFound);
                }
                members.retain(|(_, m)| m.id != *id);
                gone.insert(*id);
            }
            Entry::Update(id, url) => {
                if before.list.get(*id).is_none() {
                    return Err(Refusal::NotFound);
                }
                if before.list.iter().any(|m| m.peer_url == *url && m.id != *id) {
                    return Err(Refusal::UrlExists);
                }
                for (_, member) in members.iter_mut().filter(|(_, m)| m.id == *id) {
                    member.peer_url = url.clone();
                }
            }
        }
        members.sort_by_key(|(_, m)| m.id);
        Ok(Conf::new(members, gone))
    }

    pub(super) fn check_add(&self, before: &Conf, node: &Node, learner: bool) -> Result<(), Refusal> {
        if before.gone.contains(&node.id) {
            return Err(Refusal::NotFound);
        }
        if before.list.get(node.id).is_some() {
            return Err(Refusal::IdExists);
        }
        if before.list.by_url(&node.url).is_some() {
            return Err(Refusal::UrlExists);
        }
        if learner && before.list.learners().count() >= self.max_learners {
            return Err(Refusal::TooManyLearners);
        }
        Ok(())
    }

    /// A log was cut below what had been applied: apply again what is left, as a restart does.
    pub(super) fn rewind(&mut self, at: At) {
        let Some(node) = self.nodes.get_mut(at) else {
            return;
        };
        node.commit = node.commit.min(node.log.len());
        if node.applied <= node.log.len() {
            return;
        }
        let keep = node.log.len();
        node.applied = 0;
        node.revision = 1;
        node.digest = 0;
        node.publishing = 0;
        node.conf = Arc::clone(&self.birth);
        let log = node.log.clone();
        for number in log.into_iter().take(keep) {
            self.apply_entry(at, number);
        }
    }
}
