//! Fakes of all ports: several sites in one process, with one etcd between them, and time that only moves when all
//! wait.

mod peers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quorate_api::config::MemberPorts;
use quorate_api::manifest::Manifest;
use quorate_core::adopt::CertificateRequest;
use quorate_core::ballot::Ballot;
use quorate_core::executor::{Call, CallResult};
use quorate_core::federation::distance::Distance;
use quorate_core::federation::member::{
    EtcdOptions, Grant, GrantKind, Incarnation, IncarnationState, Mark, MemberReport, OutsideMark, Process,
};
use quorate_core::federation::observed::{ListedMember, MemberList, RecordSummary, Status, Version};
use quorate_core::federation::spec::Spec;
use quorate_core::id::{
    ClusterId, Digest, IncarnationId, Index, MemberId, PeerUrl, Revision, SiteName, Slot, Term,
};
use quorate_core::intent::record::Record;
use quorate_core::intent::retirement::Retired;
use quorate_core::intent::{Intent, Resolution};
use quorate_core::membership::disruption::{DrainGrant, DrainRequest};
use quorate_core::reason::{Code, Reason};
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use tokio::sync::watch;

use super::abroad::FakeAdoption;
pub(super) use super::specs::{key, manifest_without, site};
use super::specs::{manifest, of_one, waiting};
use crate::federation::{Federation, Handle, Message, Names, Question, Reply, Settings};
use crate::metrics::Metrics;
use crate::ports::{
    self, DataHash, Etcd, Fault, Loaded, Parting, Peers, Ports, Publication, Records, Runtime, Sender,
    Serving, Supervised, Target, World,
};
use crate::process::Address;
use peers::FakePeers;

/// The setting `placementAfter` of all sites.
pub(super) const PLACEMENT_AFTER_MS: u64 = 60_000;

/// The etcd between all sites.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) births: u64,
    pub(super) members: Vec<ListedMember>,
    running: BTreeSet<MemberId>,
    term: u64,
    index: u64,
    ids: u64,
    /// Membership calls never return.
    pub(super) hang: bool,
    /// Whether leadership can be moved; to whom it was, then.
    pub(super) moves: bool,
    moved: Option<MemberId>,
    pub(super) calls: Vec<String>,
    /// Planned restarts: the site, whether it led, and its new timers.
    pub(super) restarts: Vec<String>,
    /// The fewest voters that ran during one.
    pub(super) fewest: Option<usize>,
}

impl Cluster {
    fn leader(&self) -> Option<MemberId> {
        let voters: Vec<MemberId> = self.members.iter().filter(|m| !m.learner).map(|m| m.id).collect();
        let up = voters.iter().filter(|id| self.running.contains(id)).count();
        let able = |id: &&MemberId| self.running.contains(id);
        let moved = voters.iter().filter(able).find(|id| self.moved == Some(**id));
        let first = moved.or_else(|| voters.iter().find(able)).copied();
        first.filter(|_| up * 2 > voters.len())
    }

    fn add(&mut self, url: &PeerUrl, learner: bool) -> MemberId {
        self.ids += 1;
        let id = MemberId(0x100 + self.ids);
        self.members.push(ListedMember { id, name: "".into(), peer_url: url.clone(), learner });
        id
    }

    pub(super) fn voters(&self) -> usize {
        self.members.iter().filter(|m| !m.learner).count()
    }

    /// Members that quorate did not create.
    fn foreign(&self) -> impl Iterator<Item = &ListedMember> {
        self.members.iter().filter(|m| m.peer_url.slot(&key().name).is_none())
    }

    /// An etcd that was there before all agents.
    pub(super) fn abroad(&mut self, voters: u64) {
        (self.births, self.term, self.moves) = (1, 2, true);
        for number in 1..=voters {
            let id = self.add(&PeerUrl(format!("https://10.0.0.{number}:2380").into()), false);
            self.members.iter_mut().for_each(|m| m.name = "default".into());
            self.running.insert(id);
        }
    }

    fn list(&self) -> MemberList {
        MemberList::new(self.members.clone())
    }

    fn apply(&mut self, call: &Call) -> CallResult {
        self.calls.push(format!("{call:?}"));
        self.index += 1;
        match call {
            Call::AddLearner(url) if self.members.iter().any(|m| m.learner || m.peer_url == *url) => {
                return CallResult::Refused("too many learner members".to_owned());
            }
            Call::AddLearner(url) => drop(self.add(url, true)),
            Call::Promote(id) => {
                self.members.iter_mut().filter(|m| m.id == *id).for_each(|m| m.learner = false);
            }
            Call::Remove(id) => {
                self.members.retain(|m| m.id != *id);
                self.running.remove(id);
            }
            Call::MoveLeader(id) if self.moves => {
                self.moved = Some(*id);
                self.term += 1;
            }
            Call::Update(id, url) => {
                self.members.iter_mut().filter(|m| m.id == *id).for_each(|m| m.peer_url = url.clone());
            }
            Call::MoveLeader(_) => {}
        }
        CallResult::Done
    }
}

/// What all sites share.
#[derive(Debug, Default)]
pub(super) struct Net {
    pub(super) cluster: Mutex<Cluster>,
    handles: Mutex<BTreeMap<SiteName, Handle>>,
    arrivals: AtomicU64,
    /// Between any two agents, microseconds.
    pub(super) distance_us: AtomicU32,
    /// Agents that hear nobody and are not heard.
    pub(super) cut: Mutex<BTreeSet<SiteName>>,
    /// Peer URLs at which nobody answers.
    pub(super) unreachable: Mutex<BTreeSet<PeerUrl>>,
}

impl Net {
    pub(super) fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap()
    }

    fn handle(&self, from: &SiteName, to: &SiteName) -> Option<Handle> {
        let cut = self.cut.lock().unwrap();
        let open = !cut.contains(from) && !cut.contains(to);
        self.handles.lock().unwrap().get(to).filter(|_| open).cloned()
    }
}

#[derive(Debug)]
pub(super) struct FakeEtcd {
    net: Arc<Net>,
    runtime: Arc<FakeRuntime>,
}

impl Etcd for FakeEtcd {
    async fn status(&self, slot: &Slot) -> Option<Status> {
        let cluster = self.net.cluster();
        let abroad = cluster.foreign().map(|m| m.id).find(|id| Slot::external(&slot.site, *id) == *slot);
        let member = abroad.or_else(|| self.runtime.member(slot))?;
        cluster.running.get(&member)?;
        let learner = cluster.members.iter().find(|m| m.id == member)?.learner;
        Some(Status {
            cluster: ClusterId(cluster.births),
            member,
            leader: cluster.leader(),
            term: Term(cluster.term),
            index: Index(cluster.index),
            applied: Index(cluster.index),
            revision: Revision(1),
            db_size: 4096,
            version: Version { major: 3, minor: 6, patch: 16 },
            learner,
            alarm: false,
            faulty: false,
            list: (!learner).then(|| cluster.list().digest()),
            ready: true,
            downgrading: false,
        })
    }

    async fn list(&self, _: &Slot) -> Option<(MemberList, Term)> {
        let cluster = self.net.cluster();
        cluster.leader()?;
        Some((cluster.list(), Term(cluster.term)))
    }

    async fn call(&self, _: &Slot, call: &Call, deadline_ms: u64) -> CallResult {
        if self.net.cluster().hang {
            self.net.cluster().calls.push(format!("{call:?} hangs"));
            tokio::time::sleep(Duration::from_millis(deadline_ms)).await;
            return CallResult::Unknown;
        }
        self.net.cluster().apply(call)
    }

    async fn hash(&self, _: &Slot, _: Revision) -> Option<DataHash> {
        Some(DataHash { hash: 7, compacted: Revision(0) })
    }

    async fn probe(&self, target: &Target) -> Option<u32> {
        let rtt_us = self.net.distance_us.load(Ordering::Relaxed).max(300);
        if self.net.unreachable.lock().unwrap().contains(&target.peer_url) {
            return None;
        }
        self.net.cluster().running.get(&target.member).map(|_| rtt_us)
    }

    async fn peer_hash(&self, _: &Target, _: Revision) -> Option<DataHash> {
        Some(DataHash { hash: 7, compacted: Revision(0) })
    }

    async fn foreign(&self, site: &SiteName, _: &[String]) -> Vec<(Slot, Status)> {
        let ids: Vec<MemberId> = self.net.cluster().foreign().map(|m| m.id).collect();
        let mut found = Vec::new();
        for slot in ids.into_iter().map(|id| Slot::external(site, id)) {
            found.extend(self.status(&slot).await.map(|status| (slot, status)));
        }
        found
    }

    fn endpoints(&self) -> Vec<(MemberId, String)> {
        Vec::new()
    }
}

#[derive(Debug)]
pub(super) struct FakeRuntime {
    net: Arc<Net>,
    reports: Mutex<BTreeMap<Slot, MemberReport>>,
    version: watch::Sender<u64>,
    archive: Mutex<Vec<String>>,
    /// Volumes without a supervisor.
    shelf: Mutex<BTreeMap<Slot, MemberReport>>,
    /// Addresses of slots whose voter was to have another one.
    addresses: Mutex<BTreeMap<Slot, Address>>,
    /// Domain and port that the configuration gives to peers.
    pub(super) configured: Mutex<(String, u16)>,
}

impl FakeRuntime {
    fn set(&self, report: MemberReport) {
        self.reports.lock().unwrap().insert(report.slot.clone(), report);
        self.version.send_modify(|version| *version += 1);
    }

    fn wanted(&self, slot: &Slot) -> PeerUrl {
        let (domain, port) = self.configured.lock().unwrap().clone();
        PeerUrl(format!("https://main-{}-{}.{domain}:{port}", slot.site, slot.ordinal).into())
    }

    fn address(&self, slot: &Slot) -> Address {
        let url = format!("https://main-{}-{}.{}.test:2380", slot.site, slot.ordinal, slot.site);
        let ports = MemberPorts { member: 8444, http: 8081, client: 2379, peer: 2380, metrics: 2381 };
        let fresh = Address {
            ordinal: slot.ordinal,
            bind: std::net::Ipv4Addr::LOCALHOST.into(),
            ports,
            peer_url: PeerUrl(url.into()),
            also: Vec::new(),
        };
        self.addresses.lock().unwrap().get(slot).cloned().unwrap_or(fresh)
    }

    /// What the slots of this site run with: heartbeat and election timeout, ms.
    pub(super) fn timers(&self) -> Vec<(u32, u32)> {
        let options = self.reports().into_iter().filter_map(|report| report.options);
        options.map(|o| (o.heartbeat_ms, o.election_ms)).collect()
    }

    /// A running etcd that is granted other settings stops and is back a moment later.
    async fn stop_for_restart(&self, grant: &Grant) {
        let Some(report) = self.reports().into_iter().find(|report| report.slot == grant.slot) else {
            return;
        };
        let other = report.options.as_ref().is_some_and(|options| *options != grant.settings);
        let Some(id) = grant.member.filter(|_| other && report.process == Process::Running) else { return };
        {
            let mut cluster = self.net.cluster();
            let leads = if cluster.leader() == Some(id) { " leads" } else { "" };
            let EtcdOptions { heartbeat_ms, election_ms, peer_ports, .. } = &grant.settings;
            let ports = if peer_ports.is_empty() { String::new() } else { format!(" {peer_ports:?}") };
            cluster.restarts.push(format!("{}{leads} {heartbeat_ms} {election_ms}{ports}", grant.slot.site));
            cluster.running.remove(&id);
            let up = cluster.members.iter().filter(|m| !m.learner && cluster.running.contains(&m.id)).count();
            cluster.fewest = Some(cluster.fewest.map_or(up, |fewest| fewest.min(up)));
        }
        self.set(MemberReport { process: Process::Starting, ..report });
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    fn member(&self, slot: &Slot) -> Option<MemberId> {
        self.reports.lock().unwrap().get(slot)?.incarnation.as_ref()?.member
    }

    /// Members that run here.
    pub(super) fn running(&self) -> usize {
        let reports = self.reports.lock().unwrap();
        reports.values().filter(|report| report.process == Process::Running).count()
    }

    /// Why directories were archived here.
    pub(super) fn kept(&self) -> Vec<String> {
        self.archive.lock().unwrap().clone()
    }

    /// All processes of the site end, or run again as far as they may.
    pub(super) fn power(&self, on: bool) {
        let mut cluster = self.net.cluster();
        for report in self.reports.lock().unwrap().values() {
            let member = report.incarnation.as_ref().and_then(|i| i.member);
            let Some(id) = member.filter(|_| report.process == Process::Running) else { continue };
            let listed = cluster.members.iter().any(|m| m.id == id);
            if on && listed {
                cluster.running.insert(id);
            } else if cluster.running.remove(&id) {
                cluster.term += 1;
            }
        }
    }

    /// The data directory of a slot is wiped; its guard refuses it.
    pub(super) fn wipe(&self) {
        let mut report = self.reports().remove(0);
        if let Some(id) = self.member(&report.slot) {
            self.net.cluster().running.remove(&id);
            self.net.cluster().term += 1;
        }
        report.process = Process::Quarantined(Code::DataLost.into());
        self.set(report);
    }
}

impl Runtime for FakeRuntime {
    async fn place(&self, _: &[Slot]) -> Result<(), Fault> {
        Ok(())
    }

    fn peer_url(&self, slot: &Slot) -> Option<PeerUrl> {
        Some(self.address(slot).peer_url)
    }

    fn serving(&self, slot: &Slot) -> Option<Serving> {
        let address = self.address(slot);
        let moves_to = Some(self.wanted(slot)).filter(|wanted| address.also.contains(wanted));
        let ports = address.peer_ports();
        Some(Serving { peer_url: address.peer_url, also: address.also, moves_to, ports })
    }

    fn strays(&self, slot: &Slot, listed: &PeerUrl) -> bool {
        self.address(slot).follow(Some(&self.wanted(slot)), listed).is_some()
    }

    async fn follow(&self, slot: &Slot, listed: &PeerUrl) -> Result<(), Fault> {
        if let Some(next) = self.address(slot).follow(Some(&self.wanted(slot)), listed) {
            self.addresses.lock().unwrap().insert(slot.clone(), next);
        }
        Ok(())
    }

    async fn supervise(&self, wanted: &Supervised) -> Result<(), Fault> {
        if let Some(report) = self.shelf.lock().unwrap().remove(&wanted.slot) {
            self.set(report);
            self.power(true);
        }
        if !self.reports.lock().unwrap().contains_key(&wanted.slot) {
            self.set(waiting(&wanted.slot));
        }
        Ok(())
    }

    async fn resume(&self) {}

    async fn grant(&self, grant: &Grant) -> Result<(), Fault> {
        self.stop_for_restart(grant).await;
        let member = {
            let mut cluster = self.net.cluster();
            let id = match grant.kind {
                GrantKind::Seed => {
                    cluster.births += 1;
                    cluster.term = 2;
                    cluster.add(&grant.peer_url, false)
                }
                GrantKind::Join | GrantKind::Resume => grant.member.unwrap(),
            };
            let listed =
                cluster.members.iter_mut().find(|m| m.id == id).ok_or_else(|| Fault::new("not listed"))?;
            listed.name = grant.name.clone();
            cluster.running.insert(id);
            cluster.index += 1;
            id
        };
        let incarnation = Incarnation {
            slot: grant.slot.clone(),
            id: grant.incarnation,
            state: IncarnationState::Started,
            epoch: grant.epoch,
            cluster: Some(ClusterId(self.net.cluster().births)),
            member: Some(member),
            mark: Mark::default(),
            seed: grant.kind == GrantKind::Seed,
            granted: false,
            archived: false,
        };
        self.set(MemberReport {
            incarnation: Some(incarnation),
            dir: None,
            process: Process::Running,
            starts: 1,
            options: Some(grant.settings.clone()),
            ..waiting(&grant.slot)
        });
        Ok(())
    }

    async fn stop(&self, slot: &Slot, _: IncarnationId, archive: Option<&str>) -> Result<(), Fault> {
        let member = self.member(slot);
        if let Some(member) = member {
            self.net.cluster().running.remove(&member);
        }
        self.archive.lock().unwrap().extend(archive.map(ToOwned::to_owned));
        self.set(waiting(slot));
        Ok(())
    }

    async fn retire(&self, slot: &Slot) -> Result<(), Fault> {
        if let Some(member) = self.member(slot) {
            self.net.cluster().running.remove(&member);
        }
        if let Some(report) = self.reports.lock().unwrap().remove(slot) {
            self.shelf.lock().unwrap().insert(slot.clone(), report);
        }
        self.version.send_modify(|version| *version += 1);
        Ok(())
    }

    async fn stop_all(&self) {}

    fn reports(&self) -> Vec<MemberReport> {
        self.reports.lock().unwrap().values().cloned().collect()
    }

    fn version(&self) -> u64 {
        *self.version.borrow()
    }

    async fn changed(&self, seen: u64) {
        let mut version = self.version.subscribe();
        version.wait_for(|now| *now != seen).await.unwrap();
    }

    fn renew(&self) {}

    fn certificates_good(&self, _: &Slot) -> bool {
        true
    }
}

#[derive(Debug, Default)]
pub(super) struct FakeRecords {
    pub(super) stored: Mutex<(Option<Record>, u64)>,
    pub(super) fail: AtomicBool,
    pub(super) missing: AtomicBool,
    marks: Mutex<BTreeMap<Slot, OutsideMark>>,
}

impl Records for FakeRecords {
    async fn load(&self) -> Loaded {
        if self.missing.load(Ordering::Relaxed) {
            return Loaded::Missing;
        }
        match &*self.stored.lock().unwrap() {
            (Some(record), version) => Loaded::Found(Box::new(record.clone()), *version),
            (None, _) => Loaded::Fresh,
        }
    }

    async fn store(&self, record: &Record, version: u64) -> Result<u64, Fault> {
        let mut stored = self.stored.lock().unwrap();
        if self.fail.load(Ordering::Relaxed) || stored.1 != version {
            return Err(Fault::new("not written"));
        }
        *stored = (Some(record.clone()), version + 1);
        Ok(version + 1)
    }

    async fn mark(&self, slot: &Slot, mark: &OutsideMark) -> Result<(), Fault> {
        self.marks.lock().unwrap().insert(slot.clone(), mark.clone());
        Ok(())
    }

    async fn marked(&self, slot: &Slot) -> Option<OutsideMark> {
        self.marks.lock().unwrap().get(slot).cloned()
    }
}

#[derive(Debug)]
pub(super) struct FakeClock(Clock);

impl ports::Clock for FakeClock {
    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }
}

#[derive(Debug)]
pub(super) struct Counter(AtomicU64, u128);

impl ports::Rng for Counter {
    fn uuid(&self) -> u128 {
        (self.1 << 64) | u128::from(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

pub(super) struct Fakes;

impl World for Fakes {
    type Etcd = FakeEtcd;
    type Runtime = FakeRuntime;
    type Adoption = FakeAdoption;
    type Peers = FakePeers;
    type Records = FakeRecords;
    type Clock = FakeClock;
    type Rng = Counter;
}

/// One site with its running task.
pub(super) struct Site {
    pub(super) handle: Handle,
    pub(super) runtime: Arc<FakeRuntime>,
    pub(super) records: Arc<FakeRecords>,
    pub(super) adoption: Arc<FakeAdoption>,
    pub(super) metrics: Arc<Metrics>,
    drain: Drain,
}

/// Several sites.
pub(super) struct Sites {
    pub(super) net: Arc<Net>,
    pub(super) clock: Clock,
    running: BTreeMap<SiteName, Site>,
}

impl Sites {
    pub(super) fn none() -> Self {
        Self { net: Arc::default(), clock: Clock::start(), running: BTreeMap::new() }
    }

    /// All sites run and hold the same manifest.
    pub(super) async fn start(names: &[&str]) -> Self {
        let mut all = Self::none();
        all.begin(names).await;
        all
    }

    pub(super) async fn begin(&mut self, names: &[&str]) {
        self.begin_with(names, &manifest(names)).await;
    }

    pub(super) async fn begin_with(&mut self, names: &[&str], manifest: &Arc<Manifest>) {
        for name in names {
            self.add(name, Arc::default(), None).await;
        }
        for name in names {
            self.get(name).handle.tell(Message::Spec(Some(Arc::clone(manifest)))).await;
        }
    }

    /// A site whose agent hears the others before it has a manifest; then all get one that names it.
    pub(super) async fn join_late(&mut self, name: &str, names: &[&str]) {
        self.add(name, Arc::default(), None).await;
        for other in names.iter().filter(|other| **other != name) {
            self.get(other).handle.tell(Message::Spec(Some(manifest(names)))).await;
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        self.get(name).handle.tell(Message::Spec(Some(manifest(names)))).await;
    }

    pub(super) fn get(&self, name: &str) -> &Site {
        &self.running[&site(name)]
    }

    /// A site whose agent runs, without any manifest.
    pub(super) async fn spare(&mut self, name: &str) {
        self.add(name, Arc::default(), None).await;
    }

    /// A site gets a manifest of a single voter, with one more line of the spec.
    pub(super) async fn single(&self, site: &str, more: &str) {
        let manifest = of_one(site, &if more.is_empty() { String::new() } else { format!("  {more}") });
        self.get(site).handle.tell(Message::Spec(Some(manifest))).await;
    }

    /// All these sites get a manifest over `names`.
    pub(super) async fn apply(&self, to: &[&str], names: &[&str]) {
        for site in to {
            self.get(site).handle.tell(Message::Spec(Some(manifest(names)))).await;
        }
    }

    /// The machine of a site is switched off, members and all.
    pub(super) fn off(&mut self, name: &str) -> Site {
        let old = self.running.remove(&site(name)).unwrap();
        old.drain.start();
        self.net.handles.lock().unwrap().remove(&site(name));
        old.runtime.power(false);
        old
    }

    /// It is switched on again.
    pub(super) async fn on(&mut self, name: &str, old: Site) {
        old.runtime.power(true);
        self.add(name, old.records, Some(old.runtime)).await;
    }

    /// The agent of a site dies and comes back; its members go on.
    pub(super) async fn restart(&mut self, name: &str, names: &[&str]) {
        let old = self.running.remove(&site(name)).unwrap();
        old.drain.start();
        self.add(name, old.records, Some(old.runtime)).await;
        self.get(name).handle.tell(Message::Spec(Some(manifest(names)))).await;
    }

    /// The same, without its manifest being read yet.
    pub(super) async fn restart_bare(&mut self, name: &str) {
        let old = self.running.remove(&site(name)).unwrap();
        old.drain.start();
        self.add(name, old.records, Some(old.runtime)).await;
    }

    async fn add(&mut self, name: &str, records: Arc<FakeRecords>, runtime: Option<Arc<FakeRuntime>>) {
        let (me, drain, net) = (site(name), Drain::new(), Arc::clone(&self.net));
        let fresh = || FakeRuntime {
            net: Arc::clone(&net),
            reports: Mutex::default(),
            version: watch::Sender::new(1),
            archive: Mutex::default(),
            shelf: Mutex::default(),
            addresses: Mutex::default(),
            configured: Mutex::new((format!("{name}.test"), 2380)),
        };
        let runtime = runtime.unwrap_or_else(|| Arc::new(fresh()));
        let adoption: Arc<FakeAdoption> = Arc::default();
        let peers = FakePeers {
            me: me.clone(),
            net: Arc::clone(&net),
            drain: drain.clone(),
            clock: self.clock,
            told: Mutex::default(),
            parted: Mutex::default(),
        };
        let ports: Ports<Fakes> = Ports {
            etcd: Arc::new(FakeEtcd { net: Arc::clone(&net), runtime: Arc::clone(&runtime) }),
            runtime: Arc::clone(&runtime),
            adoption: Arc::clone(&adoption),
            peers: Arc::new(peers),
            records: Arc::clone(&records),
            clock: Arc::new(FakeClock(self.clock)),
            rng: Arc::new(Counter(AtomicU64::new(u64::from(name.as_bytes()[0]) * 1000), 9)),
        };
        let names = Names { site: me.clone(), federation: key() };
        let metrics = Metrics::shared();
        let settings = Settings { placement_after_ms: PLACEMENT_AFTER_MS };
        let (task, handle) = Federation::open(names, settings, ports, Arc::clone(&metrics)).await;
        drain.spawn(task.run(drain.clone()));
        net.handles.lock().unwrap().insert(me.clone(), handle.clone());
        self.running.insert(me, Site { handle, runtime, records, adoption, metrics, drain });
    }

    /// Waits until something holds; the milliseconds that it took.
    pub(super) async fn until(&self, what: &str, limit_s: u64, holds: impl Fn(&Self) -> bool) -> u64 {
        let began = self.clock.now_ms();
        while !holds(self) {
            let status: Vec<_> =
                self.running.values().map(|s| s.handle.snapshot().status.decision.clone()).collect();
            let waited = self.clock.now_ms() - began;
            assert!(waited < limit_s * 1000, "{what}: {status:?}, {:?}", self.net.cluster());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.clock.now_ms() - began
    }

    /// Three voters, and everybody says that all is as wished.
    pub(super) fn settled(&self, voters: usize) -> bool {
        let names: Vec<&str> = self.running.keys().map(SiteName::as_str).collect();
        self.settled_at(&names, voters)
    }

    /// The same, of these sites.
    pub(super) fn settled_at(&self, names: &[&str], voters: usize) -> bool {
        let done = |name: &&str| {
            let status = &self.get(name).handle.snapshot().status;
            status.arithmetic.alive == voters && status.arithmetic.voters == voters && status.plan.is_empty()
        };
        self.net.cluster().voters() == voters && names.iter().all(done)
    }
}
