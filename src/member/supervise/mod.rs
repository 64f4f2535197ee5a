//! The one task that owns the volume and the process.
//!
//! Everything that changes something comes here, one at a time: what the agent asks for, the end of etcd, and the tick
//! that looks whether the data directory is still there. The guard runs before every start.

mod requests;
mod watch;

use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::federation::member::{DirFacts, EtcdOptions, Incarnation, MemberReport, Process};
use quorate_core::id::{ClusterId, IncarnationId, MemberId};
use quorate_core::joiner::{self, Joiner};
use quorate_core::reason::{Code, Reason};
use quorate_link::causes::chain;
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use quorate_link::etcd::ClientPort;
use quorate_link::identity::Identity;
use quorate_link::lock::{self, Lock};
use quorate_link::tls::{Admit, EtcdTls, Source, TlsStore, Trust, store};
use quorate_link::transport;
use quorate_link::{durable, host, transport::Limits};
use quorate_snapshot::wal;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch as channel};
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;

use crate::guard::{self, How, Verdict};
use crate::mark::Watermark;
use crate::options::Options;
use crate::process::backoff::Backoff;
use crate::process::child::Child;
use crate::process::command;
use crate::process::logs::Logs;
use crate::volume::Volume;
use crate::{api, http};

pub(crate) use requests::{Answer, Refusal, Request};
use watch::Seen;

/// How often the data directory is looked at: an etcd goes on for a while without it, and acknowledges writes that no
/// disk holds.
const TICK: Duration = Duration::from_secs(1);
/// How often certificates are looked at.
const RELOAD: Duration = Duration::from_secs(5);
/// An etcd that answers for so long is not hindered any more.
const WELL_MS: u64 = 5_000;
/// How long a joiner waits for the names of the others.
const NAMELESS_MS: u64 = 60_000;
/// Requests that wait for their turn.
const QUEUE: usize = 64;

/// Why a supervisor cannot work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another one works on the volume.
    #[error(transparent)]
    Lock(#[from] lock::Error),
    /// The volume cannot be used.
    #[error(transparent)]
    Volume(#[from] durable::Error),
    /// The certificates of the member API cannot be used.
    #[error("the member API has no certificates; the agent makes them")]
    Tls(#[from] store::Error),
    /// A port cannot be bound.
    #[error("cannot listen on {address}; stop what uses it, or change the ports of the site")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The death signal of etcd would follow a thread that may end.
    #[error("the supervisor needs a current-thread runtime on the main thread")]
    Runtime,
}

/// `quorate member`.
#[derive(Debug)]
pub struct Service;

impl Service {
    /// Works until `drain` begins, then stops etcd and returns. Call it in `block_on` of a current-thread runtime on
    /// the main thread: etcd's death signal follows the thread that starts it.
    pub async fn run(options: Options, drain: Drain) -> Result<(), Error> {
        let flavor = tokio::runtime::Handle::current().runtime_flavor();
        // The main thread is the one whose id is that of the process.
        let main = rustix::thread::gettid() == rustix::process::getpid();
        if flavor != tokio::runtime::RuntimeFlavor::CurrentThread || !main {
            return Err(Error::Runtime);
        }
        durable::create_folder(&options.volume)?;
        let lock = Lock::acquire(&options.volume)?;
        let site = options.slot.site.to_string();
        let tls = TlsStore::load(Source {
            trust_domain: options.trust_domain.clone(),
            leaf: options.certificates.api(),
            trust: Trust::Site { site: site.clone(), path: options.certificates.agent_roots.clone() },
        })?;
        let listen = |address| async move {
            TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
        };
        let api_listener = listen(options.address(options.ports.member)).await?;
        let http_listener = listen(options.address(options.ports.http)).await?;

        let options = Arc::new(options);
        let (requests, queue) = mpsc::channel(QUEUE);
        let (supervisor, report) = Supervisor::new(options.clone(), drain.clone(), queue);
        drain.spawn(tls.clone().follow(RELOAD, drain.child()));
        drain.spawn(http::serve(http_listener, options, report.clone(), drain.clone()));
        let router = api::router(requests, report, drain.clone());
        let admit = Admit::Only(Identity::agent(site));
        let serve = transport::serve(
            api_listener,
            tls,
            admit,
            router,
            Limits::default(),
            Arc::default(),
            drain.clone(),
        );
        drain.spawn(serve);
        supervisor.run().await;
        drop(lock);
        Ok(())
    }
}

/// What the process does.
enum Phase {
    /// Nothing; `await_mark` if a mark from outside would change that.
    Idle { await_mark: bool },
    /// Starts when the time has come.
    Waiting { until_ms: u64 },
    /// etcd runs.
    Running(Box<Running>),
}

struct Running {
    child: Child,
    since_ms: u64,
    /// The folder of the log, once it is there: device and inode.
    log: Option<(u64, u64)>,
    answers: bool,
    /// What it was started with.
    options: EtcdOptions,
    /// A seed that clients cannot reach yet; once its ids are written down it is started again in the open.
    private: bool,
    /// A joiner that has not opened its client port yet.
    joiner: Option<Joiner>,
    /// They end with the process that they follow.
    _watchers: Vec<AbortOnDropHandle<Option<()>>>,
    watermark: Watermark,
}

enum Event {
    Drain,
    Request(Request),
    Exit(io::Result<std::process::ExitStatus>),
    Start,
    Tick,
    Seen(u64, Seen),
}

struct Supervisor {
    options: Arc<Options>,
    volume: Volume,
    clock: Clock,
    drain: Drain,
    queue: mpsc::Receiver<Request>,
    /// What the watcher of the running process saw, with the number of its start.
    seen: (mpsc::Sender<watch::Numbered>, mpsc::Receiver<watch::Numbered>),
    logs: Logs,
    backoff: Backoff,
    phase: Phase,
    process: Process,
    incarnation: Option<Incarnation>,
    dir: Option<DirFacts>,
    starts: u64,
    last_words: Option<String>,
    /// What on this host keeps etcd from running.
    hindered: Option<Reason>,
    /// Since when a joiner does not find the name of another member.
    nameless_since_ms: Option<u64>,
    report: channel::Sender<MemberReport>,
}

impl Supervisor {
    fn new(
        options: Arc<Options>,
        drain: Drain,
        queue: mpsc::Receiver<Request>,
    ) -> (Self, channel::Receiver<MemberReport>) {
        let volume = Volume::new(options.volume.clone(), options.outside_mark.clone());
        let (report, reader) = channel::channel(MemberReport::unknown(options.slot.clone()));
        let supervisor = Self {
            logs: Logs::new(volume.etcd_log()),
            options,
            volume,
            clock: Clock::start(),
            drain,
            queue,
            seen: mpsc::channel(QUEUE),
            backoff: Backoff::default(),
            phase: Phase::Waiting { until_ms: 0 },
            process: Process::Unknown,
            incarnation: None,
            dir: None,
            starts: 0,
            last_words: None,
            hindered: None,
            nameless_since_ms: None,
            report,
        };
        (supervisor, reader)
    }

    async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            match self.event(&mut tick).await {
                Event::Drain => break,
                Event::Request(request) => self.request(request).await,
                Event::Exit(status) => self.ended(&status),
                Event::Start => self.start().await,
                Event::Tick => self.tick().await,
                Event::Seen(start, seen) if start == self.starts => self.see(seen).await,
                Event::Seen(..) => {}
            }
            self.open_seed().await;
            self.publish();
        }
        self.halt().await;
        self.process = Process::Stopped;
        self.publish();
    }

    async fn event(&mut self, tick: &mut tokio::time::Interval) -> Event {
        let now_ms = self.clock.now_ms();
        let phase = &mut self.phase;
        let process = async move {
            match phase {
                Phase::Running(running) => Event::Exit(running.child.wait().await),
                Phase::Waiting { until_ms } => {
                    tokio::time::sleep(Duration::from_millis(until_ms.saturating_sub(now_ms))).await;
                    Event::Start
                }
                Phase::Idle { .. } => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.drain.signalled() => Event::Drain,
            event = process => event,
            Some((start, seen)) = self.seen.1.recv() => Event::Seen(start, seen),
            _ = tick.tick() => Event::Tick,
            Some(request) = self.queue.recv() => Event::Request(request),
        }
    }

    /// Runs the guard and, if it permits, etcd.
    async fn start(&mut self) {
        let volume = self.volume.clone();
        // Before the guard: a directory that is exchanged after it looked is noticed by the tick.
        let looked_at = log_folder(&self.volume);
        // Reads the whole log: not on the thread that answers the agent.
        let checked = tokio::task::spawn_blocking(move || guard::check(&volume)).await;
        let (findings, verdict) = match checked {
            Ok(Ok(checked)) => checked,
            Ok(Err(error)) => return self.retry(trouble(&error)),
            Err(error) => return self.retry(trouble(&error)),
        };
        self.incarnation = findings.incarnation;
        self.dir = Some(findings.dir);
        let permit = match verdict {
            Verdict::Start(permit) => permit,
            Verdict::Await(reason) => {
                self.hindered = None;
                self.phase = Phase::Idle { await_mark: reason.code == Code::HighWaterMissing };
                self.process = if reason.code == Code::AwaitingGrant {
                    Process::AwaitingGrant
                } else {
                    Process::Quarantined(reason)
                };
                return;
            }
            Verdict::Refuse(reason) => {
                tracing::error!(%reason, dir = ?self.dir, "the start was refused");
                self.hindered = None;
                self.phase = Phase::Idle { await_mark: false };
                self.process = if findings.fenced { Process::Fenced } else { Process::Quarantined(reason) };
                return;
            }
        };
        match self.spawn(&permit, looked_at).await {
            Ok(()) => {
                tracing::info!(how = ?permit.how, incarnation = %permit.incarnation.id, "etcd started");
                self.process = Process::Starting;
                self.dir = None;
            }
            Err(trouble) => self.retry(trouble),
        }
    }

    async fn spawn(&mut self, permit: &guard::Permit, looked_at: Option<(u64, u64)>) -> Result<(), Reason> {
        let (etcd, minor) = command::find(&self.options.etcd_dir, &permit.grant.settings.version)
            .await
            .map_err(|error| error.trouble())?;
        let args = command::arguments(&self.options, &self.volume, minor, permit);
        let args = args.map_err(|error| error.trouble())?;
        command::ports_free(&self.options, permit)?;
        self.names_known(permit).await?;
        let log = self.logs.open().map_err(|error| {
            host::refused(format_args!("cannot open {}", self.volume.etcd_log().display()), &error)
        })?;
        // Last, so that a missing program or file does not spend the one start of a joiner.
        permit.begin(&self.volume).map_err(|error| trouble(&error))?;
        self.incarnation = Some(permit.incarnation.clone());
        let child = Child::spawn(&etcd, &args, log)
            .map_err(|error| host::refused(format_args!("cannot start {}", etcd.display()), &error))?;
        let now_ms = self.clock.now_ms();
        self.starts += 1;
        let joiner = (permit.how == How::Join).then(Joiner::default);
        let mut watchers = vec![self.watch(watch::follow(
            command::metrics(&self.options),
            self.starts,
            self.seen.0.clone(),
        ))];
        if let Some(port) = joiner.as_ref().and_then(|_| self.client_port()) {
            let (metrics, seen) = (command::metrics(&self.options), self.seen.0.clone());
            watchers.push(self.watch(watch::follow_joiner(port, metrics, self.starts, seen)));
        }
        self.phase = Phase::Running(Box::new(Running {
            child,
            since_ms: now_ms,
            log: looked_at.filter(|_| permit.how == How::Resume),
            answers: false,
            options: permit.grant.settings.clone(),
            private: permit.private(),
            joiner,
            _watchers: watchers,
            watermark: Watermark::new(permit.incarnation.mark, now_ms),
        }));
        Ok(())
    }

    /// Holds a joiner back that does not find the others, and says whom. Not for ever: the name of a member that is gone
    /// for good may be gone too, and must not keep its successor out.
    async fn names_known(&mut self, permit: &guard::Permit) -> Result<(), Reason> {
        let now_ms = self.clock.now_ms();
        let known = if permit.how == How::Join { command::names_known(permit).await } else { Ok(()) };
        let Err(trouble) = known else {
            self.nameless_since_ms = None;
            return Ok(());
        };
        let since_ms = *self.nameless_since_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(since_ms) < NAMELESS_MS {
            return Err(trouble);
        }
        tracing::warn!("etcd is started all the same: {trouble}");
        Ok(())
    }

    fn watch(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<Option<()>> {
        AbortOnDropHandle::new(self.drain.spawn_until(work))
    }

    /// Where clients will find etcd; none if that cannot be looked at, which only costs time.
    fn client_port(&self) -> Option<ClientPort> {
        let Options { certificates, client_urls, ports, .. } = &*self.options;
        let tls = EtcdTls::load(certificates.client_roots.clone(), certificates.client())
            .inspect_err(|error| tracing::warn!(error = chain(error), "the client port cannot be looked at"));
        let url = client_urls.first()?;
        ClientPort::new(url, self.options.address(ports.client), tls.ok()?)
            .inspect_err(|error| tracing::warn!(error = chain(error), "the client port cannot be looked at"))
            .ok()
    }

    /// Not started, for a reason that may pass.
    fn retry(&mut self, trouble: Reason) {
        let trouble = trouble.site(&self.options.slot.site);
        if self.hindered.as_ref() != Some(&trouble) {
            let (reason, remedy) = (trouble.code.name(), trouble.code.remedy());
            tracing::error!(reason, remedy, "etcd was not started: {trouble}");
        }
        let until_ms = self.clock.now_ms() + self.backoff.after(0);
        self.last_words = Some(trouble.to_string());
        self.hindered = Some(trouble);
        self.process = Process::Exited;
        self.phase = Phase::Waiting { until_ms };
    }

    /// etcd ended by itself. Its exit code says nothing that could be relied on; the guard looks before the next start.
    fn ended(&mut self, status: &io::Result<std::process::ExitStatus>) {
        let Phase::Running(running) = &self.phase else {
            return;
        };
        let now_ms = self.clock.now_ms();
        let wait = self.backoff.after(now_ms.saturating_sub(running.since_ms));
        self.logs.poll();
        self.last_words = self.logs.last_words();
        let told = self.logs.of_this_process().join("\n");
        let place = self.options.volume.display().to_string();
        // On a full disk there may be no room for the words.
        let trouble = host::full(&self.options.volume).or_else(|| host::last_words(&told, &place));
        self.hindered = trouble.map(|trouble| trouble.site(&self.options.slot.site));
        tracing::warn!(?status, last_words = self.last_words, wait_ms = wait, "etcd ended");
        self.process = Process::Exited;
        self.phase = Phase::Waiting { until_ms: now_ms + wait };
    }

    /// Stops etcd, if it runs.
    async fn halt(&mut self) {
        if let Some(child) = self.take_child() {
            let status = child.stop().await;
            tracing::info!(?status, "etcd stopped");
        }
        self.logs.poll();
    }

    fn take_child(&mut self) -> Option<Child> {
        match std::mem::replace(&mut self.phase, Phase::Idle { await_mark: false }) {
            Phase::Running(running) => Some(running.child),
            Phase::Idle { .. } | Phase::Waiting { .. } => None,
        }
    }

    async fn tick(&mut self) {
        self.logs.poll();
        match &mut self.phase {
            Phase::Running(running) => {
                // An etcd on a full disk starts and answers, and ends with the next write.
                let lived_ms = self.clock.now_ms().saturating_sub(running.since_ms);
                if running.answers && lived_ms >= WELL_MS {
                    self.hindered = None;
                }
                let log = log_folder(&self.volume);
                match (running.log, log) {
                    (None, Some(_)) => running.log = log,
                    // An etcd that answers has a log, also if it vanished before the first look.
                    (None, None) if running.answers => return self.vanished().await,
                    (Some(before), now) if now != Some(before) => return self.vanished().await,
                    _ => {}
                }
                // A seed is not seeded until this is written down; nothing may delay it for long.
                if running.answers && self.ids_unknown() {
                    self.read_log();
                }
            }
            Phase::Idle { await_mark: true } => {
                if self.mark_came() {
                    self.start().await;
                }
            }
            Phase::Idle { .. } | Phase::Waiting { .. } => {}
        }
    }

    /// Whether the mark from outside is there now. One that cannot be read is not.
    fn mark_came(&self) -> bool {
        matches!(self.volume.outside(), Ok(Some(mark)) if self.is_here(mark.incarnation))
    }

    /// The log is gone or another one lies there: whatever this etcd acknowledges from now on is on no disk.
    async fn vanished(&mut self) {
        tracing::error!(log = %self.volume.wal().display(), "the write-ahead log is gone or replaced; killing etcd");
        if let Some(child) = self.take_child() {
            // It would only wait for the disk.
            let status = child.kill().await;
            tracing::info!(?status, "etcd killed");
        }
        self.start().await;
    }

    async fn see(&mut self, seen: Seen) {
        let Phase::Running(running) = &mut self.phase else {
            return;
        };
        match seen {
            Seen::Answers(answers) => {
                running.answers = answers;
                if answers {
                    running.log = running.log.or_else(|| log_folder(&self.volume));
                    // "Running" tells the agent that clients are served.
                    self.process = if running.private { Process::Starting } else { Process::Running };
                    if self.ids_unknown() {
                        self.read_log();
                    }
                }
            }
            Seen::Joining(look) => {
                let now_ms = self.clock.now_ms();
                match running.joiner.as_mut().map(|joiner| joiner.look(look, now_ms)) {
                    None | Some(joiner::Verdict::Wait) => {}
                    Some(joiner::Verdict::Open) => running.joiner = None,
                    Some(joiner::Verdict::Restart) => self.start_joiner_again().await,
                }
            }
            // Every look reads the whole log, so it is taken only if it could lead to a write.
            Seen::Moved if running.watermark.due(self.clock.now_ms()) => self.read_log(),
            Seen::Moved => {}
            Seen::Log(facts) => self.record(&facts),
        }
    }

    /// The joiner has its data, and its own proposal is not coming back (see [`Joiner`]).
    async fn start_joiner_again(&mut self) {
        tracing::info!(
            "the joiner has its snapshot and does not open its client port; it is started again on its data"
        );
        self.halt().await;
        self.start().await;
    }

    /// A seed whose ids are written down now comes into the open.
    async fn open_seed(&mut self) {
        let private = matches!(&self.phase, Phase::Running(running) if running.private);
        if private && !self.ids_unknown() {
            tracing::info!("the seed is recorded; it is started again where clients reach it");
            self.halt().await;
            self.start().await;
        }
    }

    fn ids_unknown(&self) -> bool {
        self.incarnation
            .as_ref()
            .is_some_and(|incarnation| incarnation.cluster.is_none() || incarnation.member.is_none())
    }

    fn read_log(&self) {
        let (volume, start, sender) = (self.volume.clone(), self.starts, self.seen.0.clone());
        self.drain.spawn_until(watch::read_log(volume, start, sender));
    }

    /// Writes what the log says into the record: the ids of a seed, and the high-water mark.
    fn record(&mut self, facts: &wal::WalFacts) {
        let Phase::Running(running) = &mut self.phase else {
            return;
        };
        let Some(incarnation) = &self.incarnation else {
            return;
        };
        let mut next = incarnation.clone();
        // From now on `new` is never rendered again for this incarnation.
        next.cluster.get_or_insert(ClusterId(facts.cluster_id));
        next.member.get_or_insert(MemberId(facts.member_id));
        if let Some(mark) = running.watermark.observe(watch::mark(facts), self.clock.now_ms()) {
            next.mark = next.mark.max(mark);
        }
        if next == *incarnation {
            return;
        }
        match self.volume.write_incarnation(&next) {
            Ok(_) => self.incarnation = Some(next),
            Err(error) => {
                tracing::error!(error = chain(&error), "cannot write the record of this incarnation");
            }
        }
    }

    fn publish(&self) {
        let running = match &self.phase {
            Phase::Running(running) => Some(running),
            Phase::Idle { .. } | Phase::Waiting { .. } => None,
        };
        let next = MemberReport {
            slot: self.options.slot.clone(),
            incarnation: self.incarnation.clone(),
            dir: self.dir.clone(),
            process: self.process.clone(),
            pid: running.map(|running| running.child.pid()),
            starts: self.starts,
            options: running.map(|running| running.options.clone()),
            last_words: self.last_words.clone(),
            archived: self.volume.archived().unwrap_or_default(),
            hindered: self.hindered.clone(),
        };
        self.report.send_if_modified(|report| {
            let changed = *report != next;
            if changed {
                *report = next;
            }
            changed
        });
    }

    fn is_here(&self, id: IncarnationId) -> bool {
        self.incarnation.as_ref().is_some_and(|incarnation| incarnation.id == id)
    }
}

/// Device and inode of the folder of the log, if there is a segment in it.
fn log_folder(volume: &Volume) -> Option<(u64, u64)> {
    let folder = volume.wal();
    let meta = std::fs::metadata(&folder).ok()?;
    let segment = |name: std::ffi::OsString| name.to_string_lossy().ends_with(".wal");
    let there = std::fs::read_dir(&folder).ok()?.flatten().any(|entry| segment(entry.file_name()));
    there.then(|| (meta.dev(), meta.ino()))
}

/// What an error says of the host.
fn trouble(error: &(dyn std::error::Error + 'static)) -> Reason {
    host::trouble(error).unwrap_or_else(|| Reason::new(Code::HostFault).place(chain(error)))
}
