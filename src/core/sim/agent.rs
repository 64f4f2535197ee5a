//! An agent: the real tracker, record, ballot, node logic, planner and executor, driven by events.

use std::sync::Arc;

use super::execute::Run;
use super::faults::{Io, When};
use super::network::{Body, Message};
use super::site::Cr;
use super::world::{Event, World};
use crate::ballot::{self, BallotMove, Situation};
use crate::federation::layout::Layout;
use crate::federation::member::{IncarnationState, Mark, OutsideMark, Process};
use crate::federation::observed::{MemberList, RecordSummary, Seeded, SiteObservation};
use crate::federation::track::{Frame, Tracker};
use crate::federation::view::{Pending, View, Wish};
use crate::id::{Digest, Generation, Index, MemberId, OpId, SiteName, Term, Uid};
use crate::intent::record::{Activated, Record};
use crate::membership::plan;
use crate::membership::step::{Decision, StepKind};
use crate::node::{self, Local, LocalAction};

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
    of: Arc<Activated>,
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
    /// It ends when the current event is over.
    pub dies: bool,
    /// The planner's last word.
    pub decision: Option<Decision>,
    vote_digest: Option<(Arc<ballot::Ballot>, Digest)>,
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
            dies: false,
            decision: None,
            vote_digest: None,
        }
    }

    /// Own clock.
    pub const fn clock(&self, now: u64) -> u64 {
        now + self.offset
    }

    /// Takes over a record as read or written.
    pub fn adopt(&mut self, record: Option<Arc<Record>>, version: u64) {
        self.version = version;
        let mut summary = record.as_ref().map(|r| self.summarise(r)).unwrap_or_default();
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

    /// The ballot's digest is dear, and the ballot never changes.
    fn summarise(&mut self, record: &Record) -> RecordSummary {
        let known = |(ballot, _): &&(Arc<ballot::Ballot>, Digest)| {
            record.vote.as_ref().is_some_and(|vote| Arc::ptr_eq(vote, ballot))
        };
        if self.vote_digest.as_ref().filter(known).is_none() {
            self.vote_digest = record.vote.as_ref().map(|vote| (Arc::clone(vote), vote.digest()));
        }
        RecordSummary {
            uid: record.uid,
            epoch: record.epoch,
            intent: record.intent.clone(),
            vote: self.vote_digest.as_ref().map(|(_, digest)| *digest),
            seeded: record.seeded,
            generation: record.effective.as_ref().map_or(Generation(0), |e| e.generation),
            effective: record.effective.as_ref().map(|e| e.digest),
            missing: false,
            retired: record.retired.is_some(),
        }
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
        let store = &self.sites[s].store;
        if store.record.is_none() && store.written {
            agent.missing.get_or_insert(agent.clock(self.now));
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
            return false; // written, but the agent does not know; its next write meets another version
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
            self.decide(s, agent, view);
        }
    }

    /// An activation that this site missed is taken over from a peer.
    fn catch_up(&mut self, s: usize, agent: &mut Agent) {
        let (Some(record), Some(cr), None) = (&agent.record, &self.sites[s].cr, agent.missing) else { return };
        let told = self.names.iter().filter_map(|name| agent.tracker.observation(name));
        let next = told.filter(|o| o.site != self.names[s]).find_map(|o| {
            record.catch_up(&o.record, cr.digest, &cr.spec)
        });
        if let Some(next) = next {
            self.note(|| "takes over an activation that it missed".to_owned(), Some(s));
            self.persist(s, agent, next);
        }
    }

    /// The planner's word; a step or an open intent starts a run of the executor.
    fn decide(&mut self, s: usize, agent: &mut Agent, view: View) {
        let Some(wish) = self.wish(s, agent, Some(&view)) else { return };
        if self.sites[s].rng.chance(self.options.questions) {
            self.ask_illegal(s, &view, &wish);
        }
        if !view.own_leads {
            return;
        }
        let decision = plan::next(&view, &wish);
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

    /// The merge of what this agent has heard.
    pub fn view(&mut self, s: usize, agent: &mut Agent) -> Option<View> {
        let record = agent.record.clone()?;
        let wish = self.wish(s, agent, None);
        let frame = Frame {
            now: agent.clock(self.now),
            cluster: record.seeded.map(|seeded| seeded.cluster),
            removed: &record.removed,
            wish: wish.as_ref(),
            expected: &self.names,
            settle_ms: SETTLE_MS,
        };
        Some(agent.tracker.view(frame))
    }

    /// What is wished here: the effective spec, and what acts from the own CR without activation.
    pub fn wish(&self, s: usize, agent: &Agent, view: Option<&View>) -> Option<Wish> {
        let effective = agent.effective.as_ref()?;
        let cr = self.sites[s].cr.as_ref();
        let told = self.names.iter().filter_map(|name| agent.tracker.observation(name));
        let newest = agent.record.as_ref()?.newest_effective(told.map(|o| o.record.as_ref()));
        let (generation, digest) = newest.unwrap_or((effective.of.generation, effective.of.digest));
        let pending = cr.filter(|cr| cr.digest != digest).map(|cr| Pending {
            digest: cr.digest,
            sites: cr.spec.sites().cloned().collect(),
            lost_sites: Vec::new(),
        });
        Some(Wish {
            generation,
            slots: effective.layout.slots.clone(),
            allow_single_voter: effective.layout.allow_single_voter,
            lost_members: cr.map(|cr| cr.spec.lost_members().collect()).unwrap_or_default(),
            exception: cr.and_then(|cr| cr.spec.exception.clone()),
            max_backup_age_s: self.options.backups.then_some(MAX_BACKUP_AGE_S),
            pending,
            url_changes: view.map(|view| url_changes(self, view)).unwrap_or_default(),
            deadline_ms: DEADLINE_MS,
        })
    }

    /// The birth of a federation; true if the own seed may start now.
    fn vote(&mut self, s: usize, agent: &mut Agent) -> bool {
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
        let situation =
            Situation { me: &name, spec: &cr.spec, digest: cr.digest, layout: &cr.layout, record: &record, heard: &heard };
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
                if !next.incarnations.iter().any(|i| i.seed && i.epoch == ballot.epoch && i.slot == ballot.seed) {
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
            BallotMove::Done => {}
        }
        false
    }

    /// Votes, persisting the vote before saying so.
    pub fn vote_for(&mut self, s: usize, agent: &mut Agent, ballot: &Arc<ballot::Ballot>) {
        let Some(record) = agent.record.clone() else { return };
        let name = self.sites[s].name.clone();
        let voter = ballot::Voter {
            site: &name,
            digest: self.sites[s].cr.as_ref().map(|cr| cr.digest),
            record_missing: agent.missing.is_some(),
            foreign_data: false,
        };
        match ballot::vote(&record, ballot, voter) {
            Ok(next) => {
                self.persist(s, agent, next);
            }
            Err(reason) => self.count(reason.rule()),
        }
    }

    /// One thing for the own members; false if there is nothing to do, or it did not work.
    fn act_locally(&mut self, s: usize, agent: &mut Agent, view: &View, may_seed: bool) -> bool {
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

    fn perform_local(&mut self, s: usize, agent: &mut Agent, record: &Record, action: LocalAction) -> bool {
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
                if first && !self.persist(s, agent, node::with(record, grant.incarnation, |i| i.granted = true)) {
                    return false;
                }
                if self.io(s, agent, Io::Peer, When::Before) {
                    return false;
                }
                self.granted(s, v, *grant);
                !self.io(s, agent, Io::Peer, When::After)
            }
            LocalAction::Seeded(id, seeded) => self.seeded(s, agent, record, id, seeded),
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

    fn seeded(
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

    /// Fresh ids for the executor.
    pub fn fresh_op(&mut self, s: usize) -> OpId {
        OpId(self.sites[s].rng.wide())
    }

    /// How far each own member was seen: an index counts once a later Status shows a higher one (rule I5).
    fn note_marks(&mut self, s: usize, agent: &mut Agent) {
        for v in 0..self.sites[s].volumes.len() {
            let Some((index, term)) = self.node(s, v).filter(|n| n.running).map(|n| (n.commit() as u64, n.term()))
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
            let known = volume.outside.as_ref().filter(|o| o.incarnation == id).map(|o| o.mark).unwrap_or_default();
            // Written when the term changes, and now and then while only the index moves.
            if mark.index.0 > known.index.0 + 8 || Term(term) > known.term && mark.index.0 > 0 {
                mark.term = Term(term);
                let state = volume.outside.as_ref().map_or(IncarnationState::Started, |o| o.state);
                volume.outside = Some(OutsideMark { incarnation: id, state, mark: mark.max(known) });
            }
        }
    }

    /// A lost record is rebuilt from what the others hold (safety.md 4).
    fn recover(&mut self, s: usize, agent: &mut Agent) {
        let (Some(since), now) = (agent.missing, agent.clock(self.now)) else { return };
        self.count(Some(crate::reason::Rule::I8));
        for site in self.names.clone() {
            if site != self.sites[s].name && !agent.told.iter().any(|(name, _)| *name == site) {
                self.request(s, agent, &site, 0, Body::WholeRecord);
            }
        }
        if now.saturating_sub(since) < DEADLINE_MS || agent.told.is_empty() {
            return;
        }
        let lists = agent.tracker.heard(now);
        let newest = lists.iter().filter_map(|(_, h)| h.observation.leader.as_ref()).max_by_key(|claim| claim.term);
        let Some(list) = newest.map(|claim| claim.list.clone()) else { return };
        let n = list.voters().count();
        let site_of = |url: &crate::id::PeerUrl| url.slot(&self.key.name).map(|(site, _)| site);
        let told = |site: &SiteName| agent.told.iter().any(|(name, _)| name == site);
        // Voters that are proven dead count as come.
        let declared = |id: MemberId| {
            self.sites[s].cr.as_ref().is_some_and(|cr| cr.spec.lost_members().any(|lost| lost == id))
        };
        let counts = |m: &&crate::federation::observed::ListedMember| {
            declared(m.id) || site_of(&m.peer_url).is_some_and(|site| told(&site))
        };
        let come = list.voters().filter(counts).count();
        if n > 1 && come <= n - crate::membership::quorum::quorum(n) {
            return;
        }
        let others: Vec<Record> = agent.told.iter().map(|(_, record)| record.as_ref().clone()).collect();
        let Some(mut next) = Record::recover(self.key.clone(), &others) else { return };
        self.lives_beside(s, &mut next, &list);
        agent.record = None;
        self.truth.forgive(s);
        agent.missing = None;
        agent.told.clear();
        let lives: Vec<_> = next.incarnations.iter().map(|i| (i.slot.ordinal, i.state, i.member)).collect();
        self.note(|| format!("rebuilds its record, with {lives:?}"), Some(s));
        if !self.persist(s, agent, next) && !agent.dies {
            agent.missing = Some(now);
        }
    }

    /// Incarnations come from the files beside running members; any other is lost.
    fn lives_beside(&mut self, s: usize, next: &mut Record, list: &MemberList) {
        for (v, volume) in self.sites[s].volumes.iter().enumerate() {
            let Some(beside) = &volume.incarnation else { continue };
            let mut life = beside.clone();
            life.granted = true;
            if !self.node(s, v).is_some_and(|n| n.running) && life.state >= IncarnationState::Started {
                life.state = IncarnationState::Lost;
            }
            if !life.member.is_some_and(|id| next.removed.contains(&id)) {
                next.incarnations.push(life);
            } else {
                next.incarnations.push(crate::federation::member::Incarnation {
                    state: IncarnationState::Removed,
                    ..life
                });
            }
        }
        // Listed at an own address, and nothing here explains it: that life is lost. Without this nobody would ever
        // attest it, and an empty directory could be started under its id.
        let urls: Vec<_> = self.sites[s].volumes.iter().map(|v| (v.slot.clone(), v.listed.clone())).collect();
        for (slot, url) in urls {
            let Some(listed) = list.by_url(&url) else { continue };
            if next.incarnations.iter().any(|i| i.member == Some(listed.id)) {
                continue;
            }
            let id = crate::id::IncarnationId(self.sites[s].rng.wide());
            let mut life = node::planned(next, &slot, id, false);
            life.state = IncarnationState::Lost;
            life.member = Some(listed.id);
            life.cluster = next.seeded.map(|seeded| seeded.cluster);
            next.incarnations.push(life);
        }
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
        }
    }
}

/// Addresses that sites want changed: their own configuration says another one than the list.
fn url_changes(w: &World, view: &View) -> Vec<(MemberId, crate::id::PeerUrl, bool)> {
    let mut changes = Vec::new();
    for volume in w.sites.iter().flat_map(|site| &site.volumes).filter(|v| v.url != v.listed) {
        let member = view.voters().find(|m| m.slot.as_ref() == Some(&volume.slot) && m.peer_url != volume.url);
        let Some(member) = member else { continue };
        let proven = view.voters().all(|other| other.id == member.id || other.life.alive());
        changes.push((member.id, volume.url.clone(), proven));
    }
    changes
}

/// The digest that all alive voters answer themselves, if they agree with the list.
fn settled(view: &View, list: &MemberList) -> Option<Digest> {
    let digest = list.digest();
    view.voters().filter(|m| m.life.alive()).all(|m| m.list == Some(digest)).then_some(digest)
}

/// The resource of a site as the agents see it.
pub fn holds(cr: Option<&Arc<Cr>>, digest: Digest) -> bool {
    cr.is_some_and(|cr| cr.digest == digest)
}
