//! Does what [`quorate_core::node`] says for the own members: record first, then the supervisor.

use std::sync::Arc;
use std::time::Duration;

use quorate_core::ballot;
use quorate_core::federation::member::{
    EtcdOptions, Grant, GrantKind, Incarnation, IncarnationState, MemberReport, OutsideMark, Process,
};
use quorate_core::federation::observed::Seeded;
use quorate_core::id::{Digest, IncarnationId, Slot};
use quorate_core::node::{self, Local, LocalAction};
use quorate_core::reason::Code;

use super::{Event, Federation};
use crate::ports::{Fault, Records as _, Runtime as _, Supervised, World};

/// How long a supervisor may take to answer; stopping an etcd takes up to ten seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// After a failure.
const AGAIN_MS: u64 = 1_000;
/// What is tried when slots get their addresses, and when a mark is written.
const ADDRESS: &str = "address";
pub(super) const MARK: &str = "high-water mark";

/// The one thing that is under way.
#[derive(Debug, Default)]
pub(super) struct Doing {
    busy: bool,
    again_at: u64,
    failed: Option<String>,
}

impl Doing {
    pub(super) fn active(&self) -> bool {
        self.busy
    }

    /// Before this nothing is tried again.
    pub(super) const fn again_at(&self) -> u64 {
        self.again_at
    }
}

/// How it ended.
pub(crate) struct LocalDone {
    what: Done,
    result: Result<(), Fault>,
}

enum Done {
    Granted(IncarnationId),
    /// An interrupted seed is stopped and its directory archived.
    Unseeded(IncarnationId),
    Other(&'static str),
}

fn waits_for_mark(report: &MemberReport) -> bool {
    matches!(&report.process, Process::Quarantined(reason) if reason.code == Code::HighWaterMissing)
}

impl<W: World> Federation<W> {
    /// One local action; true if the record changed.
    pub(super) async fn tend(&mut self) -> bool {
        if self.record.uid.is_none() || self.local.busy || self.now() < self.local.again_at {
            return false;
        }
        self.renew_marks().await;
        let Some(action) = self.look_at_own(node::next).flatten() else { return false };
        match action {
            LocalAction::Plan(slot) => {
                let id = IncarnationId(self.fresh());
                let mut next = self.record.clone();
                next.incarnations.push(node::planned(&self.record, &slot, id, false));
                self.persist(next).await
            }
            LocalAction::Bind(id, member, cluster) => {
                let next = node::with(&self.record, id, |i| {
                    i.state = IncarnationState::Added;
                    i.member = Some(member);
                    i.cluster = Some(cluster);
                });
                self.persist(next).await
            }
            LocalAction::Mark(id, state) => self.mark(id, state).await,
            LocalAction::Seeded(id, seeded) => self.seeded(id, seeded).await,
            // Its certificates come from the foreign CA first.
            LocalAction::Supervise(_) if self.uncertified() => false,
            LocalAction::Supervise(slot) => {
                self.supervise(slot);
                false
            }
            LocalAction::Grant(grant) => {
                self.grant(*grant).await;
                false
            }
            LocalAction::Archive(id, reason) => {
                let slot = self.record.incarnations.iter().find(|i| i.id == id).map(|i| i.slot.clone());
                if let Some(slot) = slot {
                    let runtime = Arc::clone(&self.ports.runtime);
                    self.event("Archiving", format!("incarnation {id} of {slot}: {reason}"));
                    self.begin(
                        Done::Other("archive"),
                        async move { runtime.stop(&slot, id, Some(reason)).await },
                    );
                }
                false
            }
            LocalAction::Archived(id) => {
                let slot = self.record.incarnations.iter().find(|i| i.id == id).map(|i| &i.slot);
                let reports = self.ports.runtime.reports();
                let report = reports.iter().find(|report| Some(&report.slot) == slot);
                // A supervisor that has not answered yet has not looked either.
                if report.is_none_or(|report| report.process == Process::Unknown) {
                    return false;
                }
                let next = node::with(&self.record, id, |i| i.archived = true);
                self.persist(next).await
            }
            LocalAction::Retire(slot) => {
                let runtime = Arc::clone(&self.ports.runtime);
                self.begin(Done::Other("retire"), async move { runtime.retire(&slot).await });
                false
            }
        }
    }

    /// Gives new slots their addresses before anything is said of them.
    pub(super) async fn place(&mut self) {
        let mut slots = self.own_slots();
        slots.retain(|slot| self.ports.runtime.peer_url(slot).is_none());
        if slots.is_empty() || self.now() < self.local.again_at {
            return;
        }
        match self.ports.runtime.place(&slots).await {
            Ok(()) => drop(self.hindered.remove(ADDRESS)),
            Err(error) => self.fail(ADDRESS, &error),
        }
    }

    /// Permission for an own member to go on, with other settings.
    pub(super) fn resume_grant(&self, i: &Incarnation, settings: EtcdOptions) -> Option<Grant> {
        let url = self.ports.runtime.peer_url(&i.slot)?;
        let grant = self.look_at_own(|local| node::grant(local, i, &url, GrantKind::Resume))??;
        Some(Grant { settings, ..grant })
    }

    /// Decides something from all that is known about the own members; none before there is a spec.
    fn look_at_own<T>(&self, decide: impl FnOnce(Local<'_>) -> T) -> Option<T> {
        let (spec, layout) = self.spec()?;
        let mut reports = self.ports.runtime.reports();
        for report in reports.iter_mut().filter(|report| waits_for_mark(report)) {
            // Not a refusal: it starts as soon as the mark is there.
            report.process = Process::Unknown;
        }
        let urls = self.urls();
        let view = self.last.view.as_ref().filter(|view| view.leader.is_some());
        let list = view.and_then(|view| Some((view.list.as_ref()?, view.term)));
        Some(decide(Local {
            me: &self.names.site,
            federation: &self.names.federation,
            record: &self.record,
            layout: &layout,
            spec: &spec,
            list,
            settled: self.settled(),
            may_seed: self.last.may_seed,
            reports: &reports,
            urls: &urls,
        }))
    }

    /// A supervisor that waits for a lost mark gets it again, from the record: that says as much.
    async fn renew_marks(&mut self) {
        for report in self.ports.runtime.reports().iter().filter(|report| waits_for_mark(report)) {
            let here = report.incarnation.as_ref().map(|i| i.id);
            let known = self.record.incarnations.iter().find(|i| Some(i.id) == here);
            if let Some(i) = known.filter(|i| i.state < IncarnationState::Removing).cloned() {
                self.mark_outside(&i).await;
            }
        }
    }

    /// The digest that all alive voters answer themselves.
    fn settled(&self) -> Option<Digest> {
        let view = self.last.view.as_ref()?;
        let digest = view.list.as_ref()?.digest();
        let mut alive = view.voters().filter(|m| m.life.alive()).peekable();
        alive.peek()?;
        alive.all(|m| m.list == Some(digest)).then_some(digest)
    }

    async fn mark(&mut self, id: IncarnationId, state: IncarnationState) -> bool {
        let Some(old) = self.record.incarnations.iter().find(|i| i.id == id).cloned() else { return false };
        // `Started` is told outside the volume only after the grant: the guard takes it for proof that etcd ran.
        if state != IncarnationState::Started
            && !self.mark_outside(&Incarnation { state, ..old.clone() }).await
        {
            return false;
        }
        let next = node::with(&self.record, id, |i| i.state = state);
        if !self.persist(next).await {
            return false;
        }
        self.look.soon();
        let member = old.member.map_or_else(|| "not yet known".to_owned(), |m| m.to_string());
        match state {
            IncarnationState::Lost => {
                self.event(
                    "SlotLost",
                    format!("{}: the data of member {member} are lost; it is replaced", old.slot),
                );
            }
            IncarnationState::Removed => {
                self.event("MemberRemoved", format!("{}: member {member} is no longer listed", old.slot));
            }
            IncarnationState::Voter => self.event("MemberVotes", format!("{}: member {member}", old.slot)),
            IncarnationState::Planned
            | IncarnationState::Added
            | IncarnationState::Started
            | IncarnationState::Removing => {}
        }
        true
    }

    async fn mark_outside(&mut self, i: &Incarnation) -> bool {
        let mark = OutsideMark { incarnation: i.id, state: i.state, mark: i.mark };
        match self.ports.records.mark(&i.slot, &mark).await {
            Ok(()) => {
                self.hindered.remove(MARK);
                true
            }
            Err(error) => {
                self.fail(MARK, &error);
                false
            }
        }
    }

    async fn seeded(&mut self, id: IncarnationId, seeded: Seeded) -> bool {
        let born = node::with(&self.record, id, |i| {
            i.cluster = Some(seeded.cluster);
            i.member = Some(seeded.member);
            i.granted = true;
        });
        let next = ballot::learn(&born, seeded);
        let persisted = self.persist(next).await;
        if persisted {
            let text = format!(
                "cluster {} is born in epoch {} with member {}",
                seeded.cluster,
                self.epoch(),
                seeded.member
            );
            self.event("Seeded", text);
            self.look.soon();
        }
        persisted
    }

    fn supervise(&mut self, slot: Slot) {
        let Some(uid) = self.record.uid else { return };
        let wanted = Supervised { uid, slot };
        let runtime = Arc::clone(&self.ports.runtime);
        self.begin(Done::Other("supervise"), async move { runtime.supervise(&wanted).await });
    }

    pub(super) async fn grant(&mut self, mut grant: Grant) {
        // Whatever else it is started with, it listens where it is served.
        if let Some(serving) = self.ports.runtime.serving(&grant.slot) {
            grant.settings.peer_ports = serving.ports;
        }
        // What others have seen of it counts as well (rule I5).
        grant.mark = grant.mark.max(self.tracker.seen_mark(grant.incarnation));
        let Some(i) = self.record.incarnations.iter().find(|i| i.id == grant.incarnation).cloned() else {
            return;
        };
        // A directory without any mark outside is not started again: before a first start the mark says less than
        // `Started`, after it at least that.
        let first = grant.kind != GrantKind::Resume;
        let before = if first { IncarnationState::Added } else { i.state };
        if !self.mark_outside(&Incarnation { state: before, ..i }).await {
            return;
        }
        let (runtime, id) = (Arc::clone(&self.ports.runtime), grant.incarnation);
        self.begin(Done::Granted(id), async move { runtime.grant(&grant).await });
    }

    /// A higher ballot asks for a vote: an interrupted seeding is first stopped and archived, and then voted on
    /// (safety.md 7.3). The coordinator asks again.
    pub(super) fn give_up_seed(&mut self) {
        if self.local.busy {
            return;
        }
        if let Some((id, slot)) = self.interrupted_seed() {
            let runtime = Arc::clone(&self.ports.runtime);
            self.event(
                "Archiving",
                format!("incarnation {id} of {slot}: interrupted seed of a lower ballot"),
            );
            self.begin(Done::Unseeded(id), async move { runtime.stop(&slot, id, Some("unseeded")).await });
        }
    }

    fn begin(&mut self, what: Done, work: impl Future<Output = Result<(), Fault>> + Send + 'static) {
        self.local.busy = true;
        self.spawn(async move {
            let result = tokio::time::timeout(LIMIT, work).await;
            let result = result.unwrap_or_else(|_| Err(Fault::new(format!("no answer within {LIMIT:?}"))));
            Event::Local(LocalDone { what, result })
        });
    }

    pub(super) async fn local_done(&mut self, done: LocalDone) {
        self.local.busy = false;
        self.look.soon();
        let what = match done.what {
            Done::Granted(_) => "grant",
            Done::Unseeded(_) => "archive of an interrupted seed",
            Done::Other(what) => what,
        };
        if let Err(error) = done.result {
            self.fail(what, &error);
            return;
        }
        self.local.failed = None;
        self.hindered.remove(what);
        if let Done::Unseeded(id) = done.what {
            let next = node::with(&self.record, id, |i| i.archived = true);
            self.persist(next).await;
        }
        if let Done::Granted(id) = done.what {
            let Some(i) = self.record.incarnations.iter().find(|i| i.id == id).cloned() else { return };
            let next = node::with(&self.record, id, |i| i.granted = true);
            if self.mark_outside(&i).await && self.persist(next).await {
                self.event("Granted", format!("incarnation {id} of {} may run", i.slot));
            }
        }
    }

    pub(super) fn fail(&mut self, what: &'static str, error: &Fault) {
        self.local.again_at = self.now() + AGAIN_MS;
        let text = format!("{what}: {error}");
        if self.local.failed.as_ref() != Some(&text) {
            self.refused(what, error);
            self.local.failed = Some(text);
        }
    }
}
