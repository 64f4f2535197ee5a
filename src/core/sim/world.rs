//! The world: sites, one etcd, a network, a queue of events and the truth about all of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::agent::Agent;
use super::etcd::{Cluster, Request};
use super::faults::Fault;
use super::network::{Links, Message};
use super::rng::Rng;
use super::scenario::Scenario;
use super::site::Site;
use super::truth::Truth;
use crate::federation::view::{View, Wish};
use crate::id::{FederationKey, SiteName};
use crate::reason::Rule;

/// What can happen next.
#[derive(Debug)]
pub enum Event {
    /// An agent looks at everything.
    Tick(usize, u32),
    /// A message arrives.
    Deliver {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// What.
        message: Box<Message>,
    },
    /// A wait of an executor is over.
    Resume(usize, u32, u32),
    /// A supervisor looks at its process.
    Supervise(usize, usize),
    /// An agent starts, if none runs.
    StartAgent(usize),
    /// The elder of two agents ends.
    EndSecondAgent(usize),
    /// A client writes.
    Write,
    /// A fault strikes.
    Strike(Fault),
    /// A link is good again.
    Mend(usize, usize),
    /// Messages arrive again.
    GoodNetwork,
    /// A site holds the common spec again.
    SameSpec(usize),
    /// The user applies the wish at a site.
    Apply(usize),
    /// The quota is raised.
    Space,
    /// Slowness, maintenance, old versions and certificates of a site are over.
    Ease(usize),
    /// A member's machine loses its power.
    KillNow(usize, usize),
    /// A person looks whether something waits for him.
    Person,
    /// A person declares the members of a site lost.
    DeclareLost(usize),
}

#[derive(Debug)]
struct Due {
    at: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// What a history is played with.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Backups run, so rule I17 holds.
    pub backups: bool,
    /// Percent of the looks at which illegal steps are asked for.
    pub questions: u64,
    /// Views to keep for the benchmark.
    pub keep_views: usize,
}

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: &'static str,
    /// What happened.
    pub text: String,
    /// When.
    pub at: u64,
}

/// Everything.
#[derive(Debug)]
pub struct World {
    /// The history's seed.
    pub seed: u64,
    /// World time, ms.
    pub now: u64,
    /// The federation.
    pub key: FederationKey,
    /// All sites of the mesh.
    pub names: Vec<SiteName>,
    /// The sites.
    pub sites: Vec<Site>,
    /// Every etcd cluster that was ever born; one, if all is well.
    pub clusters: Vec<Cluster>,
    /// Links between sites.
    pub links: Links,
    /// What is wanted, and when.
    pub scenario: Scenario,
    /// How it is played.
    pub options: Options,
    /// The truth.
    pub truth: Truth,
    /// Broken invariants.
    pub violations: Vec<Violation>,
    /// How often each rule refused.
    pub refusals: [u64; 18],
    /// Faults that struck.
    pub faults: u64,
    /// Events so far.
    pub events: u64,
    /// Agent starts so far.
    pub boots: u32,
    /// Executor runs so far.
    pub runs: u32,
    /// Executor waits so far.
    pub waits: u32,
    /// The readable log, if wanted.
    pub trace: Option<Vec<String>>,
    /// Views for the benchmark.
    pub views: Vec<(View, Wish)>,
    pub(super) healed: bool,
    pub(super) clients: Rng,
    queue: BinaryHeap<Reverse<Due>>,
    order: u64,
}

impl World {
    /// An empty world for a scenario.
    pub fn new(seed: u64, scenario: Scenario, options: Options, trace: bool) -> Self {
        Self {
            seed,
            now: super::scenario::BEGIN_MS,
            key: scenario.key.clone(),
            names: scenario.names.clone(),
            sites: Vec::new(),
            clusters: Vec::new(),
            links: Links::new(Rng::new(seed, 3)),
            truth: Truth::new(scenario.names.len()),
            scenario,
            options,
            violations: Vec::new(),
            refusals: [0; 18],
            faults: 0,
            events: 0,
            boots: 0,
            runs: 0,
            waits: 0,
            trace: trace.then(Vec::new),
            views: Vec::new(),
            healed: false,
            clients: Rng::new(seed, 4),
            queue: BinaryHeap::with_capacity(64),
            order: 0,
        }
    }

    /// Puts an event into the queue, `ms` from now.
    pub fn schedule(&mut self, ms: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Due { at: self.now + ms, order: self.order, event }));
    }

    /// A line of the readable log.
    pub fn note(&mut self, text: impl FnOnce() -> String, site: Option<usize>) {
        if let Some(trace) = &mut self.trace {
            let name = site.and_then(|s| self.names.get(s)).map_or("", SiteName::as_str);
            let (seconds, ms) = (self.now / 1_000, self.now % 1_000);
            trace.push(format!("{seconds:>5}.{ms:03} s  {:>5}  {name:8} {}", self.events, text()));
        }
    }

    /// A rule refused something.
    pub fn count(&mut self, rule: Option<Rule>) {
        if let Some(rule) = rule {
            self.refusals[rule as usize] += 1;
        }
    }

    /// An invariant is broken.
    pub fn violate(&mut self, invariant: &'static str, text: String) {
        let violation = Violation { invariant, text, at: self.now };
        self.note(|| format!("VIOLATION {invariant}: {}", violation.text), None);
        if self.violations.len() < 8 {
            self.violations.push(violation);
        }
    }

    /// Lets etcd catch up with the time.
    pub fn advance_etcd(&mut self) {
        let now = self.now;
        for cluster in &mut self.clusters {
            cluster.advance(now);
        }
    }

    /// The next event; false if nothing is left to happen.
    pub fn step(&mut self) -> bool {
        let Some(Reverse(due)) = self.queue.pop() else { return false };
        self.now = due.at;
        self.events += 1;
        self.handle(due.event);
        super::invariants::after_event(self);
        true
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick(s, boot) => self.tick(s, boot),
            Event::Deliver { from, to, message } => self.deliver(from, to, *message),
            Event::Resume(s, boot, token) => {
                self.with_agent(s, boot, |world, agent| world.resume(s, agent, token));
            }
            Event::Supervise(s, v) => {
                self.advance_etcd();
                self.supervise(s, v);
            }
            Event::StartAgent(s) => {
                if self.sites[s].agents.is_empty() && !self.sites[s].gone {
                    self.start_agent(s);
                }
            }
            Event::EndSecondAgent(s) => {
                if self.sites[s].agents.len() > 1 {
                    self.sites[s].agents.remove(0);
                }
            }
            Event::Write => self.write(),
            Event::Strike(fault) => {
                if !self.healed {
                    self.strike(fault);
                }
            }
            Event::Mend(a, b) => {
                self.set_link(a, b, true);
                self.set_link(b, a, true);
            }
            Event::GoodNetwork => self.good_network(),
            Event::Apply(usize::MAX) => self.apply_wanted(),
            Event::SameSpec(s) | Event::Apply(s) => self.sites[s].cr.clone_from(&self.scenario.current),
            Event::Space => self.clusters.iter_mut().for_each(|cluster| cluster.no_space = false),
            Event::Ease(s) => self.ease(s),
            Event::KillNow(s, v) => self.kill_now(s, v),
            Event::Person => self.person(),
            Event::DeclareLost(s) => self.declare_lost(s),
        }
    }

    /// Messages arrive, once and in time.
    pub(super) const fn good_network(&mut self) {
        self.links.loss = 0;
        self.links.double = 0;
        self.links.late = 0;
    }

    /// A site's own troubles are over.
    pub(super) fn ease(&mut self, s: usize) {
        let site = &mut self.sites[s];
        site.maintenance = false;
        site.older_etcd = false;
        site.certificates_end = false;
        for volume in &site.volumes {
            if let Some((c, at)) = volume.node {
                self.clusters[c].nodes[at].intake = usize::MAX;
            }
        }
    }

    /// A client writes through any member that runs.
    fn write(&mut self) {
        self.advance_etcd();
        let s = usize::try_from(self.clients.below(self.sites.len() as u64)).unwrap_or(0);
        let nodes = self.sites[s].volumes.iter().filter_map(|v| v.node);
        let running = nodes.into_iter().find(|(c, at)| self.clusters[*c].nodes[*at].running);
        if let Some((c, at)) = running {
            self.clusters[c].call(at, &Request::Put, 5_000, 0);
        }
        self.schedule(1_700, Event::Write);
    }

    /// The agent of a site that counts: the first.
    pub fn agent(&self, s: usize) -> Option<&Agent> {
        self.sites[s].agents.first().map(Box::as_ref)
    }
}
