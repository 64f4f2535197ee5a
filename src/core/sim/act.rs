//! What an agent does for its own site: the birth of a federation, and one thing after the other for its own members.

use std::sync::Arc;

use super::agent::Agent;
use super::faults::{Io, When};
use super::network::Body;
use super::world::World;
use crate::ballot::{self, BallotMove, Situation};
use crate::federation::member::{IncarnationState, Mark, OutsideMark, Process};
use crate::federation::observed::{MemberList, Seeded};
use crate::federation::view::View;
use crate::id::{Digest, Index, Term, Uid};
use crate::intent::record::Record;
use crate::node::{self, Local, LocalAction};

impl World {
    /// The birth of a federation; true if the own seed may start now.
    pub(super) fn vote(&mut self, s: usize, agent: &mut Agent) -> bool {
        let record = match &agent.record {
            Some(record) => Arc::clone(record),
            None if agent.missing.is_none() => Arc::new(Record::new(self.key.clone())),
            None => return false,
        };
        if agent.record.is_none() {
            agent.adopt(Some(Arc::clone(&record)), self.sites[s].store.version);
        }
        if record.seeded.is_some_and(|seeded| seeded.epoch == record.epoch) {
            return false;
        }
        let Some(cr) = self.sites[s].cr.clone() else { return false };
        let heard = agent.tracker.heard(agent.clock(self.now));
        let name = self.sites[s].name.clone();
        let situation = Situation {
            me: &name,
            spec: &cr.spec,
            digest: cr.digest,
            layout: &cr.layout,
            record: &record,
            heard: &heard,
            measuring: false,
        };
        match ballot::next(situation) {
            BallotMove::Mint { uid, epoch } => {
                let uid = uid.unwrap_or_else(|| Uid(self.sites[s].rng.wide()));
                let ballot = Arc::new(ballot::mint(situation, uid, epoch));
                self.vote_for(s, agent, &ballot);
            }
            BallotMove::AskVotes(ballot, sites) => {
                for site in sites {
                    self.request(s, agent, &site, 0, Body::Vote(Arc::clone(&ballot)));
                }
            }
            BallotMove::Seed(ballot) => {
                let planned = |i: &crate::federation::member::Incarnation| {
                    i.slot == ballot.seed && i.state == IncarnationState::Planned && !i.seed
                };
                let mut next = record.as_ref().clone();
                next.incarnations.retain(|i| !planned(i));
                if !next
                    .incarnations
                    .iter()
                    .any(|i| i.seed && i.epoch == ballot.epoch && i.slot == ballot.seed)
                {
                    let id = crate::id::IncarnationId(self.sites[s].rng.wide());
                    next.incarnations.push(node::planned(&next, &ballot.seed, id, true));
                }
                return self.persist(s, agent, next);
            }
            BallotMove::Learn(seeded) => {
                self.persist(s, agent, ballot::learn(&record, seeded));
            }
            BallotMove::Join(joining) => {
                self.persist(s, agent, ballot::join(&record, joining, cr.digest, &cr.spec));
            }
            BallotMove::Wait(reason) => self.count(reason.rule()),
            // No history begins with a foreign etcd.
            BallotMove::Adopt(_) | BallotMove::Done => {}
        }
        false
    }

    /// The volume of a seed that was never recorded as seeded.
    fn interrupted_seed(&self, s: usize, record: &Record) -> Option<usize> {
        let seed = |v: &super::site::Volume| v.incarnation.as_ref().is_some_and(|i| i.seed);
        record.seeded.is_none().then(|| self.sites[s].volumes.iter().position(seed)).flatten()
    }

    /// Votes, persisting the vote before saying so.
    pub fn vote_for(&mut self, s: usize, agent: &mut Agent, ballot: &Arc<ballot::Ballot>) {
        let Some(record) = agent.record.clone() else { return };
        // For a higher ballot an interrupted seeding is first stopped and archived (safety.md 7.3).
        if let Some(v) = self.interrupted_seed(s, &record).filter(|_| ballot.epoch > record.epoch) {
            self.archive(s, v);
        }
        let name = self.sites[s].name.clone();
        let voter = ballot::Voter {
            site: &name,
            digest: self.sites[s].cr.as_ref().map(|cr| cr.digest),
            record_missing: agent.missing.is_some(),
            foreign_data: false,
            unarchived_seed: self.interrupted_seed(s, &record).is_some(),
        };
        match ballot::vote(&record, ballot, voter) {
            Ok(next) => {
                self.persist(s, agent, next);
            }
            Err(reason) => self.count(reason.rule()),
        }
    }

    /// One thing for the own members; false if there is nothing to do, or it did not work.
    pub(super) fn act_locally(&mut self, s: usize, agent: &mut Agent, view: &View, may_seed: bool) -> bool {
        let (Some(record), Some(layout)) = (agent.record.clone(), agent.layout()) else { return false };
        let spec = record.effective.as_ref().map(|e| Arc::clone(&e.spec));
        let spec = spec.or_else(|| record.vote.as_ref().map(|vote| Arc::clone(&vote.spec)));
        let (Some(_), Some(spec), None) = (record.uid, spec, agent.missing) else { return false };
        let reports = self.reports(s);
        let urls = self.sites[s].urls();
        let list = view.list.as_ref().filter(|_| view.leader.is_some());
        let local = Local {
            me: &self.sites[s].name,
            federation: &self.key,
            record: &record,
            layout: &layout,
            spec: &spec,
            list: list.map(|list| (list, view.term)),
            settled: list.and_then(|list| settled(view, list)),
            may_seed,
            reports: &reports,
            urls: &urls,
        };
        let Some(action) = node::next(local) else { return false };
        self.note(|| format!("does {action:?}"), Some(s));
        self.perform_local(s, agent, &record, action)
    }

    pub(super) fn perform_local(
        &mut self,
        s: usize,
        agent: &mut Agent,
        record: &Record,
        action: LocalAction,
    ) -> bool {
        let volume_of = |world: &Self, slot: &crate::id::Slot| {
            world.sites[s].volumes.iter().position(|v| v.slot == *slot)
        };
        match action {
            LocalAction::Plan(slot) => {
                let id = crate::id::IncarnationId(self.sites[s].rng.wide());
                let mut next = record.clone();
                next.incarnations.push(node::planned(record, &slot, id, false));
                self.persist(s, agent, next)
            }
            LocalAction::Bind(id, member, cluster) => {
                let next = node::with(record, id, |i| {
                    i.state = IncarnationState::Added;
                    i.member = Some(member);
                    i.cluster = Some(cluster);
                });
                self.persist(s, agent, next)
            }
            LocalAction::Mark(id, state) => {
                if state == IncarnationState::Started {
                    let slot = record.incarnations.iter().find(|i| i.id == id).map(|i| i.slot.clone());
                    if let Some(v) = slot.and_then(|slot| volume_of(self, &slot)) {
                        let mark = OutsideMark { incarnation: id, state, mark: Mark::default() };
                        self.sites[s].volumes[v].outside = Some(mark);
                    }
                }
                self.persist(s, agent, node::with(record, id, |i| i.state = state))
            }
            LocalAction::Supervise(slot) => {
                let Some(v) = volume_of(self, &slot) else { return false };
                self.sites[s].volumes[v].supervised = true;
                self.sites[s].volumes[v].process = Process::AwaitingGrant;
                self.supervise(s, v);
                true
            }
            LocalAction::Grant(grant) => {
                let Some(v) = volume_of(self, &grant.slot) else { return false };
                // Persisted before it is given: a grant that was given and forgotten would be given twice.
                let first = grant.kind != crate::federation::member::GrantKind::Resume;
                if first
                    && !self.persist(s, agent, node::with(record, grant.incarnation, |i| i.granted = true))
                {
                    return false;
                }
                if self.io(s, agent, Io::Peer, When::Before) {
                    return false;
                }
                self.granted(s, v, *grant);
                !self.io(s, agent, Io::Peer, When::After)
            }
            LocalAction::Seeded(id, seeded) => self.seeded(s, agent, record, id, seeded),
            LocalAction::Archived(id) => {
                self.persist(s, agent, node::with(record, id, |i| i.archived = true))
            }
            LocalAction::Archive(id, _) => {
                let held = |v: &super::site::Volume| v.incarnation.as_ref().is_some_and(|i| i.id == id);
                let Some(v) = self.sites[s].volumes.iter().position(held) else { return false };
                self.archive(s, v);
                true
            }
            LocalAction::Retire(slot) => {
                let Some(v) = volume_of(self, &slot) else { return false };
                self.sites[s].volumes[v].supervised = false;
                true
            }
        }
    }

    pub(super) fn seeded(
        &mut self,
        s: usize,
        agent: &mut Agent,
        record: &Record,
        id: crate::id::IncarnationId,
        seeded: Seeded,
    ) -> bool {
        let next = node::with(record, id, |i| {
            i.cluster = Some(seeded.cluster);
            i.member = Some(seeded.member);
        });
        self.persist(s, agent, ballot::learn(&next, seeded))
    }

    /// How far each own member was seen: an index counts once a later Status shows a higher one (rule I5).
    pub(super) fn note_marks(&mut self, s: usize, agent: &mut Agent) {
        for v in 0..self.sites[s].volumes.len() {
            let Some((index, term)) =
                self.node(s, v).filter(|n| n.running).map(|n| (n.commit() as u64, n.term()))
            else {
                continue;
            };
            let volume = &mut self.sites[s].volumes[v];
            let Some(id) = volume.incarnation.as_ref().map(|i| i.id) else { continue };
            let at = agent.marks.iter().position(|(i, _, _)| *i == id).unwrap_or_else(|| {
                agent.marks.push((id, index, Mark::default()));
                agent.marks.len() - 1
            });
            let (_, last, mark) = &mut agent.marks[at];
            if index > *last {
                mark.index = Index(*last);
                *last = index;
            }
            let known =
                volume.outside.as_ref().filter(|o| o.incarnation == id).map(|o| o.mark).unwrap_or_default();
            // Written when the term changes, and now and then while only the index moves.
            if mark.index.0 > known.index.0 + 8 || Term(term) > known.term && mark.index.0 > 0 {
                mark.term = Term(term);
                let state = volume.outside.as_ref().map_or(IncarnationState::Started, |o| o.state);
                volume.outside = Some(OutsideMark { incarnation: id, state, mark: mark.max(known) });
            }
        }
    }
}

/// The digest that all alive voters answer themselves, if they agree with the list.
fn settled(view: &View, list: &MemberList) -> Option<Digest> {
    let digest = list.digest();
    view.voters().filter(|m| m.life.alive()).all(|m| m.list == Some(digest)).then_some(digest)
}
