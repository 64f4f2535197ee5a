//! What agents say to each other: messages are delayed, dropped, doubled and overtaken; links are cut one way or both.

use std::sync::Arc;

use super::agent::Agent;
use super::faults::{Io, When};
use super::rng::Rng;
use super::world::{Event, World};
use crate::ballot::Ballot;
use crate::federation::observed::{RecordSummary, SiteObservation};
use crate::id::{Epoch, Seq, SiteName};
use crate::intent::record::{Record, Witness};
use crate::intent::retirement::Retired;
use crate::intent::{Intent, Resolution};
use crate::reason::Reason;

/// What one agent asks of another.
#[derive(Debug, Clone)]
pub enum Body {
    /// The summary of its record.
    Record,
    /// All of its record, for somebody who lost his own.
    WholeRecord,
    /// To acknowledge an intent.
    Propose(Arc<Intent>),
    /// To take note of how one ended.
    Tell(Arc<Resolution>),
    /// To vote.
    Vote(Arc<Ballot>),
}

/// The answer.
#[derive(Debug, Clone)]
pub enum Answered {
    /// To `Record`.
    Record(Arc<RecordSummary>),
    /// To `WholeRecord`.
    Whole(Arc<Record>),
    /// To `Propose`.
    Ack(Result<bool, Reason>),
}

/// One message.
#[derive(Debug, Clone)]
pub enum Message {
    /// An observation, true at a time of the world; with how far the sender has seen the receiver's record.
    Gossip {
        /// The observation.
        observation: Arc<SiteObservation>,
        /// When it was made.
        at: u64,
        /// The receiver's highest number that the sender has seen.
        seen: Option<(Epoch, Seq)>,
    },
    /// The receiver's site was taken out of the spec.
    Retired(Box<Retired>),
    /// A question.
    Request {
        /// The asking agent.
        boot: u32,
        /// Its run.
        run: u32,
        /// The question.
        body: Body,
        /// The receiver's highest number that the sender has seen.
        seen: Option<(Epoch, Seq)>,
    },
    /// An answer.
    Reply {
        /// The agent that asked.
        boot: u32,
        /// Its run.
        run: u32,
        /// The answer.
        answered: Answered,
    },
}

/// The links between sites, for agents and members alike.
#[derive(Debug, Clone)]
pub struct Links {
    cut: [u32; 16],
    /// Percent of the messages between agents that are lost.
    pub loss: u64,
    /// Percent that arrive twice.
    pub double: u64,
    /// Percent that are late by seconds.
    pub late: u64,
    rng: Rng,
}

impl Links {
    /// All links good.
    pub const fn new(rng: Rng) -> Self {
        Self { cut: [0; 16], loss: 0, double: 0, late: 0, rng }
    }

    /// Cuts or mends one direction.
    pub fn set(&mut self, from: usize, to: usize, up: bool) {
        if up {
            self.cut[from] &= !(1 << to);
        } else {
            self.cut[from] |= 1 << to;
        }
    }

    /// Whether nothing arrives.
    pub const fn is_cut(&self, from: usize, to: usize) -> bool {
        from != to && self.cut[from] & (1 << to) != 0
    }

    fn delay(&mut self) -> u64 {
        if self.rng.chance(self.late) { self.rng.range(500, 6_000) } else { self.rng.range(1, 40) }
    }
}

impl World {
    /// Puts a message on its way.
    pub fn send(&mut self, from: usize, to: usize, message: Message) {
        if self.links.is_cut(from, to) || self.links.rng.chance(self.links.loss) {
            return;
        }
        if self.links.rng.chance(self.links.double) {
            let delay = self.links.delay();
            self.schedule(delay, Event::Deliver { from, to, message: Box::new(message.clone()) });
        }
        let delay = self.links.delay();
        self.schedule(delay, Event::Deliver { from, to, message: Box::new(message) });
    }

    /// Asks another agent; the answer, if any, is a message too.
    pub fn request(&mut self, s: usize, agent: &mut Agent, to: &SiteName, run: u32, body: Body) {
        let Some(to) = self.names.iter().position(|name| name == to) else { return };
        if self.io(s, agent, Io::Peer, When::Before) {
            return;
        }
        let seen = agent.tracker.highest(&self.names[to]);
        self.send(s, to, Message::Request { boot: agent.boot, run, body, seen });
        self.io(s, agent, Io::Peer, When::After);
    }

    /// A message arrives at a site: its first agent gets it, or both if two are alive and it is gossip.
    pub fn deliver(&mut self, from: usize, to: usize, message: Message) {
        match message {
            Message::Gossip { observation, at, seen } => {
                for i in 0..self.sites[to].agents.len() {
                    self.hear(to, i, &observation, at, seen);
                }
            }
            Message::Request { boot, run, body, seen } => {
                // With two agents alive the Service may reach either.
                let count = self.sites[to].agents.len() as u64;
                let which = usize::try_from(self.sites[to].rng.below(count)).unwrap_or(0);
                let Some(server) = self.sites[to].agents.get(which).map(|agent| agent.boot) else { return };
                let answered = self.with_agent(to, server, |world, agent| {
                    world.check_rolled_back(to, agent, seen);
                    let answered = world.serve(to, agent, body);
                    if agent.dies || world.io(to, agent, Io::Peer, When::Before) { None } else { answered }
                });
                if let Some(answered) = answered.flatten() {
                    self.send(to, from, Message::Reply { boot, run, answered });
                }
            }
            Message::Retired(told) => {
                let Some(boot) = self.sites[to].agents.first().map(|agent| agent.boot) else { return };
                self.with_agent(to, boot, |world, agent| {
                    let record = agent.record.as_ref().filter(|_| agent.missing.is_none());
                    if let Some(next) = record.and_then(|record| record.retire(&told)) {
                        world.note(|| "is told that it was taken out".to_owned(), Some(to));
                        world.persist(to, agent, next);
                    }
                });
            }
            Message::Reply { boot, run, answered } => {
                let name = self.names[from].clone();
                self.with_agent(to, boot, |world, agent| world.replied(to, agent, run, &name, answered));
            }
        }
    }

    fn hear(
        &mut self,
        s: usize,
        i: usize,
        observation: &Arc<SiteObservation>,
        at: u64,
        seen: Option<(Epoch, Seq)>,
    ) {
        let Some(agent) = self.sites[s].agents.get_mut(i) else { return };
        if agent.paused_until > self.now {
            return; // the connection of a paused process breaks
        }
        let (now, age) = (agent.clock(self.now), self.now - at);
        // An older observation that was overtaken is not news.
        let newer = agent.tracker.observation(&observation.site).is_none() || age < 1_000;
        if newer {
            agent.tracker.hear(Arc::clone(observation), age, now);
        }
        let boot = agent.boot;
        self.with_agent(s, boot, |world, agent| world.check_rolled_back(s, agent, seen));
    }

    /// "A peer saw a higher number from here": the record was rolled back (safety.md 4).
    fn check_rolled_back(&mut self, s: usize, agent: &mut Agent, seen: Option<(Epoch, Seq)>) {
        let behind =
            |agent: &Agent| seen.is_some_and(|seen| seen > (agent.summary.epoch, agent.summary.seq()));
        if agent.missing.is_some() || !behind(agent) {
            return;
        }
        // The other process of this agent may have written: look again before saying so.
        self.read_record(s, agent);
        if behind(agent) {
            agent.missing = Some(agent.clock(self.now));
            let mut summary = agent.summary.as_ref().clone();
            summary.missing = true;
            agent.summary = Arc::new(summary);
        }
    }

    fn serve(&mut self, s: usize, agent: &mut Agent, body: Body) -> Option<Answered> {
        if agent.paused_until > self.now {
            return None;
        }
        match body {
            Body::Record => Some(Answered::Record(Arc::clone(&agent.summary))),
            Body::WholeRecord => {
                let record = agent.record.clone().filter(|_| agent.missing.is_none())?;
                Some(Answered::Whole(record))
            }
            Body::Propose(intent) => Some(Answered::Ack(self.acknowledge(s, agent, &intent)?)),
            Body::Tell(resolution) => {
                self.take_note(s, agent, &resolution);
                None
            }
            Body::Vote(ballot) => {
                self.vote_for(s, agent, &ballot);
                None
            }
        }
    }

    /// Answers a proposal; none if the answer must not be given because the record could not be written.
    pub fn acknowledge(
        &mut self,
        s: usize,
        agent: &mut Agent,
        intent: &Arc<Intent>,
    ) -> Option<Result<bool, Reason>> {
        let empty = Record::new(self.key.clone());
        let record = agent.record.clone();
        let record = record.as_deref().unwrap_or(&empty);
        let cr = self.sites[s].cr.clone();
        let lost: Vec<_> = cr.as_ref().map(|cr| cr.spec.lost_members().collect()).unwrap_or_default();
        let witness = Witness {
            site: &self.names[s],
            record_missing: agent.missing.is_some(),
            exception: cr.as_ref().and_then(|cr| cr.spec.exception.as_ref()),
            lost_members: &lost,
        };
        match record.propose(intent, witness) {
            Ok(next) => {
                let sent = next.intent.as_ref().is_some_and(|held| held.sent_by_me);
                self.persist(s, agent, next).then_some(Ok(sent))
            }
            Err(reason) => {
                self.count(reason.rule());
                Some(Err(reason))
            }
        }
    }

    /// Persists how an intent ended.
    pub fn take_note(&mut self, s: usize, agent: &mut Agent, resolution: &Resolution) -> bool {
        let Some(record) = agent.record.clone() else { return false };
        if agent.missing.is_some() {
            return false;
        }
        self.persist(s, agent, record.resolve(resolution))
    }
}
