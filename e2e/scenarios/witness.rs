//! What a field looks like from outside of quorate: its processes with their command lines, the calls that etcd counts
//! itself, and what etcd writes into its own logs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::process::{Kind, Process};
use quorate_core::condition::Status;
use quorate_core::membership::quorum::Arithmetic;
use quorate_e2e::field::Field;
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How often it looks: each state between two membership changes lasts for seconds.
const EVERY: Duration = Duration::from_millis(250);
/// Metrics come from this host and take milliseconds; a stopped process never answers.
const PATIENCE: Duration = Duration::from_secs(1);
/// What changes the membership.
const MEMBERSHIP: [&str; 4] = ["MemberAdd", "MemberPromote", "MemberRemove", "MemberUpdate"];
/// The token of an etcd that is not quorate's.
pub(crate) const FOREIGN: &str = "foreign";
/// What else only quorate has a business with.
const OTHERS: [&str; 2] = ["MoveLeader", "Defragment"];

/// Calls that the etcds of a field received, by method; counted by etcd's own gRPC server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Calls(BTreeMap<(String, String), u64>);

impl Calls {
    /// How many arrived.
    pub(crate) fn received(&self, method: &str) -> u64 {
        self.answered(method, "")
    }

    /// How many were answered with this code.
    pub(crate) fn answered(&self, method: &str, code: &str) -> u64 {
        self.0.get(&(method.to_owned(), code.to_owned())).copied().unwrap_or(0)
    }

    /// Those since then.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let less = |(key, count): (&(String, String), &u64)| {
            (key.clone(), count.saturating_sub(before.0.get(key).copied().unwrap_or(0)))
        };
        Self(self.0.iter().map(less).filter(|(_, count)| *count > 0).collect())
    }
}

/// A member as etcd's log says it was added.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Logged {
    pub(crate) id: String,
    pub(crate) url: String,
    pub(crate) learner: bool,
    /// Seconds of the wall clock; all processes are on one machine.
    pub(crate) at: f64,
}

/// A start of an etcd.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Started {
    /// Only its command line is known.
    pub(crate) process: Process,
    /// Seconds of the wall clock.
    pub(crate) at: f64,
}

#[derive(Debug, Default)]
struct Seen {
    /// Voters and learners, each time that they changed.
    sizes: Vec<(usize, usize)>,
    most_learners: usize,
    least_margin: Option<i64>,
    /// Slots of the voters without a running process at the last look: what is missing twice is not just late.
    missing: BTreeSet<String>,
    /// Names of the etcds that ran at the last look.
    running: BTreeSet<String>,
    /// By process: its address and when it was started.
    calls: BTreeMap<(String, String), Calls>,
}

impl Seen {
    /// A status is older than a look at the processes, so it is held against the look before.
    fn note_margin(&mut self, status: &Status) {
        let voters = || status.members.iter().filter(|member| member.role == "voter");
        let runs = |slot: &str| self.running.iter().any(|name| name.starts_with(&format!("{slot}-")));
        let missing: BTreeSet<String> =
            voters().map(|voter| voter.name.clone()).filter(|slot| !runs(slot)).collect();
        let twice = missing.intersection(&self.missing).count();
        let margin = Arithmetic::new(voters().count(), voters().count() - twice).margin();
        self.least_margin = Some(self.least_margin.map_or(margin, |least| least.min(margin)));
        self.missing = missing;
    }
}

/// Watches a field until it is dropped.
pub(crate) struct Witness {
    field: Arc<Field>,
    seen: Arc<Mutex<Seen>>,
    drain: Drain,
}

impl Witness {
    pub(crate) fn start(field: &Arc<Field>) -> Self {
        let witness = Self { field: Arc::clone(field), seen: Arc::default(), drain: Drain::new() };
        let (field, seen) = (Arc::clone(field), Arc::clone(&witness.seen));
        witness.drain.spawn_until(async move {
            loop {
                look(&field, &seen).await;
                tokio::time::sleep(EVERY).await;
            }
        });
        witness
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// All calls up to now.
    pub(crate) async fn calls(&self) -> Calls {
        look(&self.field, &self.seen).await;
        let mut sum = Calls::default();
        for calls in self.seen().calls.values() {
            for (key, count) in &calls.0 {
                *sum.0.entry(key.clone()).or_default() += count;
            }
        }
        sum
    }

    /// Nobody has asked any etcd to change the membership since then.
    pub(crate) async fn untouched_since(&self, before: &Calls) -> Result<()> {
        let calls = self.calls().await.since(before);
        let sent: Vec<_> = MEMBERSHIP.iter().filter(|method| calls.received(method) > 0).collect();
        ensure!(sent.is_empty(), "membership calls were sent: {sent:?}, {calls:?}");
        Ok(())
    }

    /// The same for a while to come.
    pub(crate) async fn stays_untouched(&self, before: &Calls, duration: Duration) -> Result<()> {
        let clock = Clock::start();
        while clock.elapsed() < duration {
            self.untouched_since(before).await?;
            tokio::time::sleep(EVERY).await;
        }
        self.untouched_since(before).await
    }

    /// These numbers of (voters, learners) were passed through in this order, perhaps with others in between.
    pub(crate) async fn passed(&self, expected: &[(usize, usize)]) -> Result<()> {
        look(&self.field, &self.seen).await;
        let seen = self.seen();
        let mut sizes = seen.sizes.iter();
        let all = expected.iter().all(|size| sizes.any(|seen| seen == size));
        ensure!(all, "expected to pass through {expected:?}, saw {:?}", seen.sizes);
        Ok(())
    }

    /// The number of voters never was this.
    pub(crate) fn never(&self, voters: usize) -> Result<()> {
        let seen = self.seen();
        ensure!(seen.sizes.iter().all(|(n, _)| *n != voters), "there were {voters} voters: {:?}", seen.sizes);
        Ok(())
    }

    /// Every start of an etcd, by what it wrote into its log itself: also of those that lived for a moment only.
    pub(crate) fn starts(&self) -> Result<Vec<Started>> {
        let line = |line: &serde_json::Value| {
            let args = line.get("args")?.as_array()?.iter();
            let args = args.map(|arg| arg.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()?;
            let at = seconds(line.get("ts")?.as_str()?)?;
            let process = Process { pid: 0, kind: Kind::Etcd, site: String::new(), args };
            Some(Started { process, at })
        };
        let mut starts = self.logged("Running: ", line)?;
        starts.retain(|start| start.process.flag("initial-cluster-token") != Some(FOREIGN));
        starts.sort_by(|a, b| a.at.total_cmp(&b.at));
        Ok(starts)
    }

    /// The smallest margin by what really ran, not by what anybody said.
    pub(crate) fn least_margin(&self) -> Option<i64> {
        self.seen().least_margin
    }

    /// Forgets the numbers of voters and learners and the margin so far.
    pub(crate) fn forget(&self) {
        let mut seen = self.seen();
        seen.sizes.clear();
        seen.least_margin = None;
    }

    /// What must hold in every case, whatever it is about.
    pub(crate) fn rules(&self) -> Result<()> {
        let starts = self.starts()?;
        let etcds: Vec<&Process> = starts.iter().map(|start| &start.process).collect();
        ensure!(!etcds.is_empty(), "no etcd wrote how it was started");
        let most = self.seen().most_learners;
        ensure!(most <= 1, "there were {most} learners at once (I1)");
        for etcd in &etcds {
            for forbidden in ["force-new-cluster", "max-learners", "experimental-max-learners"] {
                ensure!(
                    etcd.flag(forbidden).is_none(),
                    "etcd was started with --{forbidden}: {:?}",
                    etcd.args
                );
            }
        }
        let seeds: BTreeSet<_> = etcds.iter().filter(|e| is_new(e)).map(|e| e.flag("name")).collect();
        ensure!(seeds.len() <= 1, "more than one etcd was started with state new (I7): {seeds:?}");
        let mut urls: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for etcd in &etcds {
            let (name, url) = (etcd.flag("name"), etcd.flag("initial-advertise-peer-urls"));
            urls.entry(name.unwrap_or_default()).or_default().extend(url);
        }
        let shared = urls.iter().find(|(_, urls)| urls.len() > 1);
        ensure!(shared.is_none(), "two members had one name (S12): {shared:?}");
        self.only_learners_were_added()
    }

    /// etcd's own logs know of one member that was added as a voter: the seed.
    fn only_learners_were_added(&self) -> Result<()> {
        let added = self.added()?;
        let voters: BTreeSet<&str> =
            added.iter().filter(|added| !added.learner).map(|added| added.id.as_str()).collect();
        ensure!(voters.len() <= 1, "members were added as voters: {voters:?} of {added:?}");
        Ok(())
    }

    /// Every member that some etcd saw added, from the logs of all of them.
    pub(crate) fn added(&self) -> Result<Vec<Logged>> {
        let line = |line: &serde_json::Value| {
            let text = |name: &str| line.get(name).and_then(serde_json::Value::as_str);
            Some(Logged {
                id: text("added-peer-id")?.to_owned(),
                url: line.get("added-peer-peer-urls")?.get(0)?.as_str()?.to_owned(),
                learner: line.get("added-peer-is-learner")?.as_bool()?,
                at: seconds(text("ts")?)?,
            })
        };
        self.logged("added member", line)
    }

    /// Every member that some etcd saw removed: its id, and when.
    pub(crate) fn removed(&self) -> Result<Vec<(String, f64)>> {
        let line = |line: &serde_json::Value| {
            let text = |name: &str| line.get(name).and_then(serde_json::Value::as_str);
            Some((text("removed-remote-peer-id")?.to_owned(), seconds(text("ts")?)?))
        };
        self.logged("removed member", line)
    }

    fn logged<T>(&self, message: &str, read: impl Fn(&serde_json::Value) -> Option<T>) -> Result<Vec<T>> {
        let mut found = Vec::new();
        for log in etcd_logs(&self.field) {
            let text = std::fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))?;
            for line in text.lines().filter(|line| line.contains(&format!("\"msg\":\"{message}\""))) {
                let line: serde_json::Value = serde_json::from_str(line)?;
                found.push(read(&line).with_context(|| format!("not understood: {line}"))?);
            }
        }
        Ok(found)
    }

    /// Whether some etcd ever wrote this.
    pub(crate) fn etcd_said(&self, words: &str) -> bool {
        etcd_logs(&self.field)
            .iter()
            .any(|log| std::fs::read_to_string(log).unwrap_or_default().contains(words))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.drain.start();
    }
}

/// Whether an etcd was told to begin a cluster.
pub(crate) fn is_new(etcd: &Process) -> bool {
    etcd.flag("initial-cluster-state") == Some("new")
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The logs of all etcds of all sites.
fn etcd_logs(field: &Field) -> Vec<PathBuf> {
    let entries =
        |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let members =
        field.mesh.sites.iter().flat_map(|site| {
            entries(site.state().join("federations")).flat_map(|f| entries(f.join("members")))
        });
    members.map(|member| member.join("etcd.log")).filter(|log| log.is_file()).collect()
}

/// `2026-12-01T12:15:05.422444Z` within its day: cases do not last longer, and midnight is a jump that fails loudly.
fn seconds(time: &str) -> Option<f64> {
    let clock = time.split('T').nth(1)?;
    let clock = clock.trim_end_matches('Z').split(['+', '-']).next()?;
    let mut parts = clock.split(':').map(str::parse::<f64>);
    let mut next = || parts.next()?.ok();
    Some(next()? * 3600.0 + next()? * 60.0 + next()?)
}

async fn look(field: &Field, seen: &Mutex<Seen>) {
    let processes = field.mesh.run.processes();
    let etcds: Vec<Process> = processes.into_iter().filter(|process| process.kind == Kind::Etcd).collect();
    let urls: BTreeSet<String> =
        etcds.iter().filter_map(|etcd| etcd.flag("listen-metrics-urls")).map(str::to_owned).collect();
    {
        let mut seen = lock(seen);
        let running = etcds.iter().filter_map(|etcd| Some(etcd.flag("name")?.to_owned())).collect();
        let statuses = field.watch.statuses();
        let executing = statuses.values().find(|s| s.executor.as_deref() == Some(s.observed_from.as_str()));
        if let Some(status) = executing.filter(|status| !status.members.is_empty()) {
            let learners = status.members.iter().filter(|member| member.role == "learner").count();
            let size = (status.members.len() - learners, learners);
            seen.most_learners = seen.most_learners.max(learners);
            if seen.sizes.last() != Some(&size) {
                seen.sizes.push(size);
            }
            seen.note_margin(status);
        }
        seen.running = running;
    }
    let scrapes = urls.into_iter().map(|url| async move {
        let metrics = tokio::time::timeout(PATIENCE, metrics(&url)).await.ok()?.ok()?;
        Some((url, metrics))
    });
    for (url, text) in futures::future::join_all(scrapes).await.into_iter().flatten() {
        if let Some((started, calls)) = read(&text) {
            lock(seen).calls.insert((url, started), calls);
        }
    }
}

/// The metrics of an etcd. It answers as soon as it serves, with or without a leader.
pub(crate) async fn metrics(url: &str) -> Result<String> {
    let address = url.strip_prefix("http://").context("no http URL")?;
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// When the process was started, and its calls.
fn read(metrics: &str) -> Option<(String, Calls)> {
    let value = |name: &str| {
        metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned)
    };
    let started = value("process_start_time_seconds")?;
    let mut calls = Calls::default();
    for line in metrics.lines() {
        let (Some((name, rest)), Some((_, count))) = (line.split_once('{'), line.rsplit_once("} ")) else {
            continue;
        };
        let label = |label: &str| {
            let (_, rest) = rest.split_once(&format!("{label}=\""))?;
            rest.split('"').next().map(str::to_owned)
        };
        let code = match name {
            "grpc_server_started_total" => Some(String::new()),
            "grpc_server_handled_total" => label("grpc_code"),
            _ => None,
        };
        let (Some(code), Some(method)) = (code, label("grpc_method")) else { continue };
        let ours = MEMBERSHIP.contains(&method.as_str()) || OTHERS.contains(&method.as_str());
        // Large ones are written as 1.2e+06.
        let count = count.parse::<f64>().ok().and_then(|count| format!("{count:.0}").parse::<u64>().ok());
        if let (true, Some(count)) = (ours, count) {
            *calls.0.entry((method, code)).or_default() += count;
        }
    }
    Some((started, calls))
}
