//! One federation at this site: one task that owns the record and the memory of what was heard.
//!
//! Everything that waits on the network runs beside the task and comes back as an [`Event`]; so peers are answered and
//! members are looked at while a step is under way. Only the durable record is written in place: that is what makes
//! the answers serial (safety.md 4).

mod adopt;
mod answer;
mod ballot;
#[cfg(feature = "crash-points")]
pub(crate) mod crash;
mod deletion;
mod drain;
mod effects;
mod execute;
mod local;
mod message;
mod observe;
mod parts;
mod publish;
mod recover;
mod relocate;
mod specs;
mod watermark;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use quorate_core::ballot::BallotMove;
use quorate_core::federation::distance;
use quorate_core::federation::layout::Layout;
use quorate_core::federation::member::EtcdOptions;
use quorate_core::federation::seating;
use quorate_core::federation::spec::Spec;
use quorate_core::federation::track::{Frame, Tracker};
use quorate_core::federation::view::{Pending, View, Wish};
use quorate_core::id::{Digest, MemberId, PeerUrl, SiteName, Slot};
use quorate_core::intent::record::Record;
use quorate_core::membership::placement::{self, Patience};
use quorate_core::membership::step::Decision;
use quorate_core::membership::{address, plan};
use quorate_core::node;
use quorate_core::reason::{Code, Reason};
use quorate_core::timing::{self, Steady, Timing};
use quorate_link::drain::Drain;
use tokio::sync::mpsc;

use crate::metrics::Metrics;
use crate::ports::{Clock as _, Fault, Loaded, Ports, Records as _, Rng as _, Runtime as _, Sender, World};
pub(crate) use message::{Event, Names};
pub use message::{Handle, Message, Question, Reply, Snapshot};

/// Between two looks at everything while something is wished or wrong.
const BUSY: Duration = Duration::from_millis(250);
/// The same while all is calm; every event is looked at at once anyway.
const CALM: Duration = Duration::from_secs(2);

/// What is tried when the record is written.
const RECORD: &str = "record";

/// The spec of the own CR.
#[derive(Debug, Clone)]
pub(crate) struct OwnSpec {
    pub(crate) spec: Arc<Spec>,
    pub(crate) digest: Digest,
    pub(crate) layout: Layout,
}

/// The task's state.
pub struct Federation<W: World> {
    names: Names,
    settings: Settings,
    ports: Ports<W>,
    metrics: Arc<Metrics>,
    inbox: mpsc::Receiver<Message>,
    snapshot: tokio::sync::watch::Sender<Arc<Snapshot>>,
    work: FuturesUnordered<BoxFuture<'static, Event>>,
    tracker: Tracker,
    /// The newest view of each site.
    arrivals: Answers<u64>,
    /// Views of sites without a part here; they may get one. One per trusted site at most.
    strangers: Answers<answer::Stranger>,
    record: Record,
    record_version: u64,
    /// Why there is no readable record, if there is none although there should be.
    missing: Option<String>,
    /// What the host refuses to this agent, by what was tried.
    hindered: BTreeMap<&'static str, Reason>,
    recovery: recover::Recovery,
    own: Option<OwnSpec>,
    /// The own CR was deleted; without it and without this nobody knows why it is not there.
    deleted: bool,
    specs: specs::Specs,
    look: observe::Look,
    said: publish::Said,
    ballot: ballot::Asking,
    adopting: adopt::Adopting,
    local: local::Doing,
    drains: drain::Drains,
    run: execute::Runs,
    /// How long other timers than the effective ones have fitted better.
    steady: Steady,
    /// How long another voter would have led better.
    patience: Patience,
    last: Last,
}

/// What the site's configuration says of each federation.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How long other timers must have fitted the round-trip times better before they are activated, and another voter
    /// must have been nearer to a majority before it leads, ms.
    pub placement_after_ms: u64,
}

/// What the last turn decided.
struct Last {
    view: Option<View>,
    decision: Decision,
    /// Timers that have fitted better for long enough.
    retimed: Option<Timing>,
    /// The voter that would have led better for long enough.
    leader: Option<MemberId>,
    may_seed: bool,
    attention: bool,
    reports: u64,
}

impl<W: World> Federation<W> {
    /// Loads the record and makes the task's state; [`Federation::run`] runs it.
    pub async fn open(
        names: Names,
        settings: Settings,
        ports: Ports<W>,
        metrics: Arc<Metrics>,
    ) -> (Self, Handle) {
        let (sender, inbox) = mpsc::channel(256);
        let (snapshot, watch) = tokio::sync::watch::channel(Arc::new(Snapshot::new(&names)));
        let handle = Handle::new(sender, watch);
        let now = ports.clock.now_ms();
        let empty = Record::new(names.federation.clone());
        let (record, record_version, missing) = match ports.records.load().await {
            Loaded::Found(record, version) if record.federation == names.federation => {
                (*record, version, None)
            }
            Loaded::Found(record, _) => (
                empty,
                0,
                Some(format!("the record is that of {}; put it back where it was", record.federation)),
            ),
            Loaded::Fresh => (empty, 0, None),
            Loaded::Missing => (empty, 0, Some("member volumes are here, but no record.json".to_owned())),
            Loaded::Unreadable(why) => (empty, 0, Some(why)),
        };
        if let Some(why) = &missing {
            tracing::error!(federation = %names.federation, why, "no readable record: asking the other sites");
            ports.runtime.resume().await;
        }
        let federation = Self {
            tracker: Tracker::new(names.site.clone(), names.federation.clone(), now),
            arrivals: Answers::new(),
            strangers: Answers::new(),
            names,
            ports,
            metrics,
            inbox,
            snapshot,
            work: FuturesUnordered::new(),
            record,
            record_version,
            missing,
            hindered: BTreeMap::new(),
            recovery: recover::Recovery::default(),
            own: None,
            deleted: false,
            specs: specs::Specs::default(),
            look: observe::Look::default(),
            said: publish::Said::default(),
            ballot: ballot::Asking::default(),
            adopting: adopt::Adopting::default(),
            local: local::Doing::default(),
            drains: drain::Drains::default(),
            run: execute::Runs::default(),
            steady: Steady::default(),
            patience: Patience::default(),
            settings,
            last: Last {
                view: None,
                decision: Decision::Wait(Code::WaitingForClusters.into()),
                retimed: None,
                leader: None,
                may_seed: false,
                attention: true,
                reports: 0,
            },
        };
        (federation, handle)
    }

    /// Runs until the end is signalled. Members go on.
    pub async fn run(mut self, drain: Drain) {
        let ports = self.ports.clone();
        let mut look = true;
        loop {
            if look {
                self.turn().await;
            }
            look = true;
            let wait = self.pause();
            let seen = self.last.reports;
            tokio::select! {
                () = drain.signalled() => break,
                message = self.inbox.recv() => match message {
                    Some(message) => look = self.take(message).await,
                    None => break,
                },
                Some(event) = self.work.next(), if !self.work.is_empty() => self.done(event).await,
                () = ports.runtime.changed(seen) => self.look.soon(),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn pause(&self) -> Duration {
        let busy = self.last.attention || self.run.active() || self.local.active();
        let pause = if busy { BUSY } else { CALM };
        // A look at the own members must not wait for the next beat: their age is what others count.
        self.look.pause(self.now()).map_or(pause, |until| pause.min(until))
    }

    fn now(&self) -> u64 {
        self.ports.clock.now_ms()
    }

    /// Starts something that waits on the outside; its event comes back to [`Federation::done`].
    fn spawn(&self, work: impl Future<Output = Event> + Send + 'static) {
        self.work.push(Box::pin(work));
    }

    fn sender(&self) -> Sender {
        Sender { uid: self.record.uid, epoch: self.record.epoch }
    }

    /// Looks at everything and starts what is to be done.
    async fn turn(&mut self) {
        let began = self.now();
        self.last.reports = self.ports.runtime.version();
        self.sort_out_strangers();
        self.place().await;
        self.relocate().await;
        // Each round changes the record once at most; the bound only keeps a mistake from spinning.
        for _ in 0..16 {
            self.observe();
            self.note_own();
            if self.missing.is_some() {
                self.recover().await;
                break;
            }
            self.prepare_adoption();
            let changed = self.born().await
                || self.catch_up().await
                || self.stand().await
                || self.heed_deletion().await
                || self.tend().await;
            if !changed {
                break;
            }
        }
        self.fetch_specs();
        self.decide().await;
        self.restart().await;
        self.say();
        self.metrics
            .loop_seconds
            .observe(Duration::from_millis(self.now().saturating_sub(began)).as_secs_f64());
    }

    /// Takes over what the others recorded while this site was away: removals, activations, and who had a part before.
    /// True if the record changed.
    async fn catch_up(&mut self) -> bool {
        if self.record.seeded.is_none() {
            return false;
        }
        let heard = self.tracker.heard(self.now());
        let others =
            || heard.iter().filter(|(site, _)| *site != self.names.site).map(|(_, h)| &h.observation.record);
        let list = self.last.view.as_ref().filter(|v| v.leader.is_some()).and_then(|v| v.list.as_ref());
        let removed =
            list.and_then(|list| others().find_map(|told| self.record.catch_up_removed(told, list)));
        // The very spec, wherever it came from: its digest is what was told.
        let activated = || {
            others().find_map(|told| {
                let digest = told.effective?;
                self.record.catch_up(told, digest, &self.spec_of(digest)?)
            })
        };
        let former = || others().find_map(|told| self.record.catch_up_former(told));
        match removed.or_else(activated).or_else(former) {
            Some(next) => self.persist(next).await,
            None => false,
        }
    }

    /// What is heard from outside the task; whether it is worth a look at everything. A thousand calm federations are
    /// told every two seconds that nothing changed.
    async fn take(&mut self, message: Message) -> bool {
        let calm = matches!(message, Message::Fresh { .. }) && !self.last.attention;
        match message {
            Message::Spec(own) => {
                let own = own.and_then(|manifest| {
                    let layout = manifest.spec.layout().ok()?;
                    Some(OwnSpec { spec: Arc::new(manifest.spec.clone()), digest: manifest.digest, layout })
                });
                self.own = own;
                self.deleted = false;
            }
            Message::Deleted => {
                self.own = None;
                self.deleted = true;
            }
            Message::View { site, observation, age_ms, arrival } => {
                self.hear(&site, observation, age_ms, arrival);
            }
            Message::Fresh { site, arrival, age_ms } => {
                self.fresh_view(&site, arrival, age_ms);
            }
            Message::Retired { site, told } => self.retire(&site, &told).await,
            Message::Ask { site, question, answer } => {
                let reply = self.answer(&site, question).await;
                // The asker may have given up; what was promised is durable all the same.
                let _ = answer.send(reply);
            }
        }
        !calm
    }

    /// Something that was started is over.
    async fn done(&mut self, event: Event) {
        match event {
            Event::Sampled(sampled) => self.sampled(sampled).await,
            Event::Probed { member, rtt_us } => self.probed(member, rtt_us),
            Event::Reached { member, peer_url, rtt_us } => self.reached(member, peer_url, rtt_us),
            Event::Compared { member, as_voter, check } => self.compared(member, as_voter, check),
            Event::Voted(replies) => self.voted(replies),
            Event::Local(done) => self.local_done(done).await,
            Event::Drained(drained) => self.drained(*drained).await,
            Event::Effect(answer) => self.answered(*answer).await,
            Event::Certified(done) => self.certified(done),
            Event::Stepped(moved) => self.stepped_aside(moved),
            Event::Records(records) => self.recovered_from(records),
            Event::Named(taken) => self.named(taken),
            Event::Spec(digest, spec) => self.fetched(digest, spec),
        }
    }

    /// Watches whether other timers would fit the distance of the sites better for long enough, and whether another voter
    /// would lead better; only where it can be acted on.
    fn note_distance(&mut self) {
        let leads = self.last.view.as_ref().is_some_and(|view| view.own_leads);
        let effective = self.record.effective.as_ref().filter(|e| leads && timing::is_auto(&e.spec));
        let measured = effective.and_then(|e| self.measured(&e.spec.sites().cloned().collect::<Vec<_>>()));
        let current = self.record.timing().unwrap_or_default();
        let (now, after) = (self.now(), self.settings.placement_after_ms);
        self.last.retimed = self.steady.note(now, after, current, measured);
        let better = self.last.view.as_ref().and_then(placement::better);
        self.last.leader = self.patience.note(now, after, better);
    }

    /// The effective spec with the timers that it should have by now, if the own CR is that very spec.
    fn retimed(&self) -> Option<Pending> {
        let effective = self.record.effective.as_ref()?;
        let timing = self.last.retimed?;
        let same = self.own.as_ref().is_some_and(|own| own.digest == effective.digest);
        let sites = effective.spec.sites().cloned().collect();
        let Layout { slots, allow_single_voter, .. } = effective.spec.layout().ok()?;
        let slots = self.seated(&slots);
        same.then(|| Pending {
            digest: effective.digest,
            sites,
            slots,
            allow_single_voter,
            lost_sites: Vec::new(),
            timing: Some(timing),
            adopts: effective.spec.adopts().cloned(),
            other_cluster: false,
        })
    }

    /// Merges what is known and, if the own member leads, starts the next step.
    async fn decide(&mut self) {
        self.note_distance();
        let rests = self.at_rest();
        let Some(wish) = self.wish().filter(|_| !rests) else {
            self.last.view = None;
            self.last.attention = !rests;
            return;
        };
        let view = self.view(&wish);
        self.drains.tokens.note(&view, self.now());
        self.last.decision = plan::next(&view, &wish);
        self.last.attention = self.wants(&view, &wish);
        self.execute(&view).await;
        self.last.view = Some(view);
    }

    fn view(&mut self, wish: &Wish) -> View {
        let expected = self.sites();
        let frame = Frame {
            now: self.ports.clock.now_ms(),
            cluster: self.record.seeded.map(|s| s.cluster),
            removed: &self.record.removed,
            wish: Some(wish),
            expected: &expected,
            settle_ms: self.look.settle_ms(),
        };
        self.tracker.view(frame)
    }

    /// The effective spec in planner's words; none before birth.
    fn wish(&self) -> Option<Wish> {
        let effective = self.record.effective.as_ref()?;
        let layout = effective.spec.layout().ok()?;
        let own = self.own.as_ref();
        let lost_members: Vec<_> = own.map(|own| own.spec.lost_members().collect()).unwrap_or_default();
        let pending = self.pending(&lost_members);
        Some(Wish {
            generation: effective.generation,
            slots: self.seated(&layout.slots),
            allow_single_voter: layout.allow_single_voter,
            exception: own.and_then(|own| own.spec.exception.clone()),
            lost_members,
            adopts: effective.spec.adopts().cloned(),
            max_backup_age_s: None,
            pending,
            retimed: self.retimed(),
            url_changes: self.last.view.as_ref().map(address::url_changes).unwrap_or_default(),
            leader: self.last.leader,
            deadline_ms: self.deadline_ms(),
            options: self.options()?,
            restarting: self.drains.tokens.running(self.now()),
        })
    }

    /// What every etcd is to run with; none before birth.
    fn options(&self) -> Option<EtcdOptions> {
        let effective = self.record.effective.as_ref()?;
        Some(node::options(&effective.spec, effective.timing))
    }

    /// Rule I14: 5 s + 2 x election + 4 x RTT.
    fn deadline_ms(&self) -> u64 {
        let election = self.spec().map_or(1_000, |(spec, _)| timing::timers(&spec, self.record.timing()).1);
        timing::deadline_ms(election, self.look.rtt_ms())
    }

    /// The timing that fits the distance of some sites and of those that host a listed member; none while it is not
    /// known of each pair.
    pub(super) fn measured(&self, sites: &[SiteName]) -> Option<Timing> {
        let view = self.last.view.as_ref();
        let hosts = view.iter().flat_map(|view| view.members.iter()).filter_map(|m| m.site());
        let mut all: Vec<SiteName> = sites.iter().chain(hosts).cloned().collect();
        all.sort();
        all.dedup();
        let observation = |site: &SiteName| self.tracker.observation(site).map(Arc::as_ref);
        let worst = distance::worst(&all, observation);
        worst.unknown.is_none().then(|| timing::measured(self.record.timing(), &worst))
    }

    /// The spec that the own members follow: the effective one, before birth that of the ballot.
    fn spec(&self) -> Option<(Arc<Spec>, Layout)> {
        let spec = self.agreed()?;
        let layout = spec.layout().ok()?;
        Some((Arc::clone(spec), Layout { slots: self.seated(&layout.slots), ..layout }))
    }

    /// Wanted slots with the ordinals that they have beside the members that are there.
    pub(super) fn seated(&self, wanted: &[Slot]) -> Vec<Slot> {
        let listed = self.last.view.iter().flat_map(|view| &view.members).filter_map(|m| m.slot.clone());
        let lives = self.record.incarnations.iter().filter(|i| !i.archived).map(|i| i.slot.clone());
        seating::seated(wanted, &listed.chain(lives).collect::<Vec<_>>())
    }

    /// The same without its layout.
    fn agreed(&self) -> Option<&Arc<Spec>> {
        let effective = self.record.effective.as_ref().map(|e| &e.spec);
        effective.or_else(|| self.record.vote.as_ref().map(|ballot| &ballot.spec))
    }

    /// Whether everybody has to look every second (safety.md 2.2).
    fn wants(&self, view: &View, wish: &Wish) -> bool {
        let as_wished = view.voters().count() == wish.slots.len()
            && view
                .voters()
                .all(|m| m.life.alive() && m.slot.as_ref().is_some_and(|slot| wish.slots.contains(slot)))
            && view.learners().next().is_none();
        !as_wished
            || wish.pending.is_some()
            || view.open.is_some()
            || self.run.active()
            || !self.decided(view)
    }

    fn decided(&self, view: &View) -> bool {
        !view.own_leads || matches!(self.last.decision, Decision::Done)
    }

    /// Makes a changed record durable; without that nothing is answered and nothing is done.
    async fn persist(&mut self, next: Record) -> bool {
        if next == self.record {
            return true;
        }
        match self.ports.records.store(&next, self.record_version).await {
            Ok(version) => {
                self.record = next;
                self.record_version = version;
                self.hindered.remove(RECORD);
                true
            }
            Err(fault) => {
                self.metrics.refused("RecordNotWritten");
                self.refused(RECORD, &fault);
                false
            }
        }
    }

    /// The host refused something. It is told once, however often it is tried again.
    fn refused(&mut self, what: &'static str, fault: &Fault) {
        let federation = &self.names.federation;
        let Some(trouble) = fault.trouble.clone().map(|trouble| trouble.site(&self.names.site)) else {
            tracing::warn!(%federation, what, %fault, "not done; it is tried again");
            return;
        };
        if self.hindered.get(what) != Some(&trouble) {
            let (reason, remedy) = (trouble.code.name(), trouble.code.remedy());
            tracing::error!(%federation, what, reason, remedy, "{trouble}");
            self.hindered.insert(what, trouble);
        }
    }

    fn fresh(&self) -> u128 {
        self.ports.rng.uuid()
    }

    /// The own slots: wanted ones, and those in which something lives.
    fn own_slots(&self) -> Vec<Slot> {
        let layout = self.spec().map(|(_, layout)| layout.slots).unwrap_or_default();
        let lives = self.record.incarnations.iter().filter(|i| !i.archived).map(|i| i.slot.clone());
        let mut slots: Vec<Slot> =
            layout.into_iter().chain(lives).filter(|s| s.site == self.names.site).collect();
        slots.sort();
        slots.dedup();
        slots
    }

    /// The peer URLs of the own slots that have one.
    fn urls(&self) -> Vec<(Slot, PeerUrl)> {
        let url = |slot: Slot| self.ports.runtime.peer_url(&slot).map(|url| (slot, url));
        self.own_slots().into_iter().filter_map(url).collect()
    }

    fn event(&self, kind: &'static str, text: String) {
        tracing::info!(federation = %self.names.federation, site = %self.names.site, event = kind, "{text}");
        self.metrics.event(kind);
        self.said.events.push(kind, text, quorate_link::clock::Clock::unix_seconds());
    }

    fn no_record(&self) -> Reason {
        Reason::new(Code::NoRecord).site(&self.names.site)
    }
}

/// The move of the last turn as a reason, for the status before birth.
pub(crate) fn waiting(next: &BallotMove) -> Option<Reason> {
    match next {
        BallotMove::Wait(reason) => Some(reason.clone()),
        BallotMove::AskVotes(_, missing) => {
            Some(Reason::new(Code::WaitingForClusters).maybe_site(missing.first()))
        }
        BallotMove::Mint { .. }
        | BallotMove::Seed(_)
        | BallotMove::Adopt(_)
        | BallotMove::Learn(_)
        | BallotMove::Join(_)
        | BallotMove::Done => None,
    }
}

/// Sites by what they answered.
pub(crate) type Answers<T> = BTreeMap<SiteName, T>;
