//! An agent: the real tracker, record, ballot, node logic, planner and executor, driven by events.

use std::sync::Arc;

use super::execute::Run;
use super::faults::{Io, When};
use super::network::Message;
use super::world::{Event, World};
use crate::federation::layout::Layout;
use crate::federation::member::Mark;
use crate::federation::observed::{RecordSummary, SiteObservation};
use crate::federation::track::Tracker;
use crate::federation::view::View;
use crate::id::{MemberId, OpId, SiteName};
use crate::intent::record::{Activated, Record};
use crate::membership::plan;
use crate::membership::step::{Decision, StepKind};

/// How often an agent looks at everything, ms; with some jitter. The rules ask for 1 s while a step is wished.
pub const TICK_MS: u64 = 1_500;
/// etcd's 5 s between changes, without round-trip times.
pub const SETTLE_MS: u64 = 5_000;
/// 5 s + 2 x election: deadline of a membership call (rule I14).
pub const DEADLINE_MS: u64 = 7_000;
/// Rule I17's limit where backups run, seconds.
pub const MAX_BACKUP_AGE_S: u64 = 900;

/// What an agent knows of one member's reachability.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// The member.
    pub member: MemberId,
    /// Misses in a row.
    pub misses: u32,
    /// Own clock since when it is good.
    pub good_since: Option<u64>,
    /// Own clock of the last probe.
    pub at: u64,
}

/// The wish that follows from an effective spec, kept until the spec changes.
#[derive(Debug)]
pub struct Effective {
    /// The spec.
    pub of: Arc<Activated>,
    /// Its layout.
    pub layout: Arc<Layout>,
}

/// One process of one site's agent.
pub struct Agent {
    /// Names this start; events for another one are dropped.
    pub boot: u32,
    /// Its monotonic clock is the world's plus this.
    pub offset: u64,
    /// Its memory.
    pub tracker: Tracker,
    /// The record as it last read or wrote it.
    pub record: Option<Arc<Record>>,
    /// The store's version at that moment.
    pub version: u64,
    /// What others are told of the record.
    pub summary: Arc<RecordSummary>,
    /// The record is lost or was rolled back; own clock since when.
    pub missing: Option<u64>,
    /// Full records that others sent for the recovery.
    pub told: Vec<(SiteName, Arc<Record>)>,
    /// Probes of all listed members.
    pub probes: Vec<Probe>,
    /// The step under way.
    pub run: Option<Box<Run>>,
    /// The effective spec's layout.
    pub effective: Option<Effective>,
    /// Last index seen in a Status, and the index that counts, by incarnation.
    pub marks: Vec<(crate::id::IncarnationId, u64, Mark)>,
    /// Nothing happens before.
    pub paused_until: u64,
    /// A write failed and may have happened: the record is read again before anything is said of it.
    pub doubtful: bool,
    /// It ends when the current event is over.
    pub dies: bool,
    /// The planner's last word.
    pub decision: Option<Decision>,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("boot", &self.boot).finish_non_exhaustive()
    }
}

impl Agent {
    /// A process that has just read its record.
    pub fn new(boot: u32, offset: u64, tracker: Tracker) -> Self {
        Self {
            boot,
            offset,
            tracker,
            record: None,
            version: 0,
            summary: Arc::default(),
            missing: None,
            told: Vec::new(),
            probes: Vec::new(),
            run: None,
            effective: None,
            marks: Vec::new(),
            paused_until: 0,
            doubtful: false,
            dies: false,
            decision: None,
        }
    }

    /// Own clock.
    pub const fn clock(&self, now: u64) -> u64 {
        now + self.offset
    }

    /// Takes over a record as read or written.
    pub fn adopt(&mut self, record: Option<Arc<Record>>, version: u64) {
        self.version = version;
        let mut summary = record.as_ref().map(|r| r.summary()).unwrap_or_default();
        summary.missing = self.missing.is_some();
        self.summary = Arc::new(summary);
        if let Some(record) = &record {
            let same = |e: &Effective| record.effective.as_ref().is_some_and(|now| Arc::ptr_eq(now, &e.of));
            if !self.effective.as_ref().is_some_and(same) {
                self.effective = record.effective.as_ref().and_then(|of| {
                    let layout = Arc::new(of.spec.layout().ok()?);
                    Some(Effective { of: Arc::clone(of), layout })
                });
            }
        }
        self.record = record;
    }

    /// The layout that counts: of the effective spec, before birth of the voted one.
    pub fn layout(&self) -> Option<Arc<Layout>> {
        if let Some(effective) = &self.effective {
            return Some(Arc::clone(&effective.layout));
        }
        let vote = self.record.as_ref()?.vote.as_ref()?;
        vote.spec.layout().ok().map(Arc::new)
    }
}

impl World {
    /// Runs something with one agent taken out of the world, and puts it back unless it died of it.
    pub fn with_agent<T>(
        &mut self,
        s: usize,
        boot: u32,
        act: impl FnOnce(&mut Self, &mut Agent) -> T,
    ) -> Option<T> {
        let at = self.sites[s].agents.iter().position(|agent| agent.boot == boot)?;
        let mut agent = self.sites[s].agents.remove(at);
        if agent.doubtful {
            self.read_record(s, &mut agent);
        }
        let result = act(self, &mut agent);
        if agent.dies {
            self.note(|| "agent ends".to_owned(), Some(s));
            self.schedule(2_000, Event::StartAgent(s));
        } else {
            let at = at.min(self.sites[s].agents.len());
            self.sites[s].agents.insert(at, agent);
        }
        Some(result)
    }

    /// Starts an agent process: it reads its record.
    pub fn start_agent(&mut self, s: usize) {
        self.boots += 1;
        let boot = self.boots;
        let offset = self.sites[s].rng.below(1_000_000);
        let tracker = Tracker::new(self.sites[s].name.clone(), self.key.clone(), self.now + offset);
        let mut agent = Box::new(Agent::new(boot, offset, tracker));
        self.read_record(s, &mut agent);
        self.sites[s].agents.push(agent);
        let first = self.sites[s].rng.below(200);
        self.schedule(first, Event::Tick(s, boot));
    }

    pub(super) fn read_record(&self, s: usize, agent: &mut Agent) {
        agent.doubtful = false;
        let store = &self.sites[s].store;
        if store.record.is_none() && store.written {
            let now = agent.clock(self.now);
            agent.missing.get_or_insert(now);
        }
        agent.adopt(store.record.clone(), store.version);
    }

    /// Writes the record, if nobody else has written since it was read. False: it may or may not have been written.
    pub fn persist(&mut self, s: usize, agent: &mut Agent, next: Record) -> bool {
        if agent.record.as_ref().is_some_and(|now| **now == next) {
            return true;
        }
        if self.io(s, agent, Io::Persist, When::Before) {
            return false;
        }
        let store = &self.sites[s].store;
        if store.version != agent.version {
            self.truth.conflicts += 1;
            self.count(Some(crate::reason::Rule::I18));
            self.read_record(s, agent);
            return false;
        }
        let next = Arc::new(next);
        self.truth.note_persist(s, store.record.as_deref(), &next);
        let store = &mut self.sites[s].store;
        store.version += 1;
        store.written = true;
        store.record = Some(Arc::clone(&next));
        let version = store.version;
        if self.io(s, agent, Io::Persist, When::After) {
            agent.doubtful = true;
            return false; // written, but the agent does not know
        }
        agent.adopt(Some(next), version);
        true
    }

    /// The agent's loop.
    pub fn tick(&mut self, s: usize, boot: u32) {
        self.advance_etcd();
        self.notice_ends(s);
        let alive = self.with_agent(s, boot, |world, agent| {
            if agent.paused_until <= world.now {
                world.look_and_act(s, agent);
            }
        });
        if alive.is_some() && self.sites[s].agents.iter().any(|agent| agent.boot == boot) {
            let period = TICK_MS + self.sites[s].rng.below(300);
            self.schedule(period, Event::Tick(s, boot));
        }
    }

    fn look_and_act(&mut self, s: usize, agent: &mut Agent) {
        self.probe(s, agent);
        self.note_marks(s, agent);
        if agent.missing.is_some() {
            self.recover(s, agent);
        }
        self.catch_up(s, agent);
        if agent.dies {
            return;
        }
        let observation = self.observe(s, agent);
        let now = agent.clock(self.now);
        agent.tracker.hear(Arc::clone(&observation), 0, now);
        let may_seed = self.vote(s, agent);
        if agent.dies {
            return;
        }
        let view = self.view(s, agent);
        let mut acted = false;
        if let Some(view) = &view {
            for _ in 0..4 {
                if agent.dies || !self.act_locally(s, agent, view, may_seed) {
                    break;
                }
                acted = true;
            }
        }
        if agent.dies {
            return;
        }
        let observation = if acted {
            let fresh = self.observe(s, agent);
            agent.tracker.hear(Arc::clone(&fresh), 0, now);
            fresh
        } else {
            observation
        };
        self.gossip(s, agent, &observation);
        if let Some(view) = view
            && agent.run.is_none()
            && agent.missing.is_none()
        {
            self.decide(s, agent, &view);
        }
    }

    /// What this site missed is taken over from its peers: an activation, and who had a part before it. Then what the
    /// effective spec says of the own site.
    fn catch_up(&mut self, s: usize, agent: &mut Agent) {
        for _ in 0..3 {
            let (Some(record), None) = (&agent.record, agent.missing) else { return };
            let others = self.names.iter().filter(|name| **name != self.names[s]);
            let told: Vec<_> = others.filter_map(|name| agent.tracker.observation(name)).collect();
            let activated = || {
                told.iter().find_map(|o| {
                    let digest = o.record.effective?;
                    record.catch_up(&o.record, digest, &self.spec_of(digest)?)
                })
            };
            let former = || told.iter().find_map(|o| record.catch_up_former(&o.record));
            let Some(next) = activated().or_else(former).or_else(|| record.standing(&self.names[s])) else {
                return;
            };
            self.note(|| "takes over what it missed".to_owned(), Some(s));
            if !self.persist(s, agent, next) {
                return;
            }
        }
    }

    /// The planner's word; a step or an open intent starts a run of the executor.
    fn decide(&mut self, s: usize, agent: &mut Agent, view: &View) {
        let Some(wish) = self.wish(s, agent, Some(view)) else { return };
        if self.sites[s].rng.chance(self.options.questions) {
            self.ask_illegal(s, view, &wish);
        }
        if !view.own_leads {
            return;
        }
        let decision = plan::next(view, &wish);
        if let Some(reason) = decision.reason() {
            self.count(reason.rule());
        }
        if self.options.keep_views > self.views.len() {
            self.views.push((view.clone(), wish.clone()));
        }
        let changed = agent.decision.as_ref() != Some(&decision);
        if changed && self.trace.is_some() {
            let text = match &decision {
                Decision::Step(step) => format!("plans {step}"),
                Decision::Wait(reason) => format!("waits: {reason}"),
                Decision::Refuse(reason) => format!("refuses: {reason}"),
                Decision::Done => "as wished".to_owned(),
            };
            self.note(|| text, Some(s));
        }
        let step = match &decision {
            Decision::Step(step) => Some(step.kind.clone()),
            Decision::Wait(_) | Decision::Refuse(_) | Decision::Done => None,
        };
        agent.decision = Some(decision);
        match step {
            Some(StepKind::Snapshot) => {
                self.take_backup(s);
                self.truth.count_step("Snapshot");
            }
            Some(_) => self.run(s, agent),
            None if view.open.is_some() => self.run(s, agent),
            None => {}
        }
    }

    /// Fresh ids for the executor.
    pub fn fresh_op(&mut self, s: usize) -> OpId {
        OpId(self.sites[s].rng.wide())
    }

    /// Tells everybody what is new.
    fn gossip(&mut self, s: usize, agent: &Agent, observation: &Arc<SiteObservation>) {
        for to in 0..self.sites.len() {
            if to == s {
                continue;
            }
            let seen = agent.tracker.highest(&self.sites[to].name);
            let message = Message::Gossip { observation: Arc::clone(observation), at: self.now, seen };
            self.send(s, to, message);
            let record = agent.record.as_ref().filter(|_| agent.missing.is_none());
            let serves = agent.tracker.observation(&self.names[to]).is_none_or(|o| !o.members.is_empty());
            if let Some(told) = record.and_then(|record| record.retirement_of(&self.names[to]))
                && serves
            {
                self.send(s, to, Message::Retired(Box::new(told)));
            }
        }
    }
}
