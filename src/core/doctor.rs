//! What is wrong, where, and what helps: judged from facts that somebody else has gathered. Pure; `quorate doctor` and the
//! support bundle print it.

mod mesh;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::condition::{Condition, ConditionStatus, ConditionType, Status};
use crate::federation::observed::Link;
use crate::federation::spec::Spec;
use crate::federation::view::View;
use crate::report::{FederationReport, SiteReport};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Good to know.
    Note,
    /// It will hurt, or already hurts a little.
    Warning,
    /// Something does not work.
    Error,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The part that was looked at.
    pub check: String,
    /// Where.
    pub place: String,
    /// What is wrong.
    pub message: String,
    /// What helps.
    pub remedy: String,
}

/// What the command found on its own machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Host {
    /// The state folder.
    pub state_dir: PathBuf,
    /// Its file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// Times of small synced writes in the state folder, microseconds, sorted.
    pub fsync_us: Vec<u64>,
    /// Why the state folder cannot be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unwritable: Option<String>,
    /// Where etcd was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_dir: Option<PathBuf>,
    /// The etcds that were found.
    pub etcds: Vec<Binary>,
    /// The certificate files of the site.
    pub certificates: Vec<File>,
    /// The peer ports, as this command reaches them with the agent's own probe certificate.
    pub peer_ports: Vec<PeerPort>,
}

/// Room on a file system, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Disk {
    /// In total.
    pub total: u64,
    /// Free for us.
    pub free: u64,
}

/// An etcd binary.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Binary {
    /// Where.
    pub path: PathBuf,
    /// What it says of itself, for example `3.6.16`; none if it does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// A certificate file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct File {
    /// Where.
    pub path: PathBuf,
    /// It is a root, not a leaf.
    pub root: bool,
    /// First moment, seconds since 1970.
    pub begins: u64,
    /// Last moment, seconds since 1970.
    pub ends: u64,
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A peer port, dialled by the command itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerPort {
    /// The site of the member.
    pub site: String,
    /// Its peer URL.
    pub url: String,
    /// Round-trip time, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// Why there was no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Everything that is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The wall clock, seconds since 1970; for certificates.
    pub now: u64,
    /// What the agent says, or why it says nothing.
    pub agent: Result<SiteReport, String>,
    /// This machine.
    pub host: Host,
    /// The federations of the agent.
    pub federations: Vec<FederationReport>,
}

const DAY: u64 = 24 * 60 * 60;
/// Leaves are renewed a month before their end: less than this is left only if that failed for weeks.
const LEAF_DAYS: u64 = 14;
/// A root has to reach every other site by hand.
const ROOT_DAYS: u64 = 90;
/// etcd's own advice is 10 ms for the slowest percent.
const FSYNC_SLOW_US: u64 = 10_000;
/// So slow that heartbeats are late.
const FSYNC_BAD_US: u64 = 100_000;
/// Less room than this: a database at its default quota, its snapshots and its log.
const DISK_LOW: u64 = 4 * 1024 * 1024 * 1024;
/// etcd stops writing for good when its log cannot grow.
const DISK_FULL: u64 = 128 * 1024 * 1024;
const DEFAULT_VERSION: &str = "3.6";

/// All findings, the worst first.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    match &facts.agent {
        Ok(agent) => {
            let place = format!("site {}", agent.site);
            for problem in &agent.problems {
                // A site that has no part in anything yet has an empty folder.
                let folder = problem.strip_prefix(&*agent.manifests.to_string_lossy());
                let spare = facts.federations.is_empty() && folder.is_some_and(|rest| rest.starts_with(':'));
                let severity = if spare { Severity::Note } else { Severity::Error };
                let remedy = "correct the file; what was in force before stays in force meanwhile";
                found.push(finding(severity, "files", &place, problem, remedy));
            }
            found.extend(mesh::agents(agent));
            found.extend(mesh::clocks(agent));
            found.extend(mesh::versions(agent));
            found.extend(presented(agent, facts.now));
        }
        Err(why) => {
            let remedy = "start the agent, or name its folder with --state-dir; etcd goes on without it";
            found.push(error("agent", "this machine", why, remedy));
        }
    }
    found.extend(files(&facts.host, facts.now));
    found.extend(disk(&facts.host));
    found.extend(etcds(&facts.host, &facts.federations));
    found.extend(peer_ports(&facts.host));
    for federation in &facts.federations {
        found.extend(conditions(&federation.status));
        found.extend(digests(federation));
        if let Some(view) = &federation.view {
            found.extend(links(&federation.status, view));
            found.extend(member_versions(&federation.status));
        }
    }
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

fn finding(severity: Severity, check: &str, place: &str, message: &str, remedy: &str) -> Finding {
    let text = str::to_owned;
    Finding { severity, check: text(check), place: text(place), message: text(message), remedy: text(remedy) }
}

fn error(check: &str, place: &str, message: &str, remedy: &str) -> Finding {
    finding(Severity::Error, check, place, message, remedy)
}

fn warning(check: &str, place: &str, message: &str, remedy: &str) -> Finding {
    finding(Severity::Warning, check, place, message, remedy)
}

/// What is left of a certificate, in words, if that is too little.
fn ending(ends: u64, now: u64, days: u64) -> Option<(Severity, String)> {
    let left = ends.saturating_sub(now);
    match left {
        0 => Some((Severity::Error, "it has expired".to_owned())),
        left if left < DAY => Some((Severity::Error, format!("it ends in {} h", left / 3600))),
        left if left < days * DAY => Some((Severity::Warning, format!("it ends in {} days", left / DAY))),
        _ => None,
    }
}

fn files(host: &Host, now: u64) -> Vec<Finding> {
    let judged = host.certificates.iter().filter_map(|file| {
        let place = file.path.display().to_string();
        if let Some(problem) = &file.problem {
            return Some(error("certificates", &place, problem, "restore the file, or let the agent make it anew"));
        }
        if file.begins > now {
            let message = "it is not good yet: was it made by a clock that is ahead?";
            return Some(error("certificates", &place, message, "set the clock of this machine"));
        }
        let (severity, message) = ending(file.ends, now, if file.root { ROOT_DAYS } else { LEAF_DAYS })?;
        let remedy = if file.root {
            "make a new root and let every site trust it before the old one ends"
        } else {
            "the agent renews it by itself while it runs and has the key of its root; its log says why it did not"
        };
        Some(finding(severity, "certificates", &place, &message, remedy))
    });
    judged.collect()
}

fn presented(agent: &SiteReport, now: u64) -> Vec<Finding> {
    let judged = agent.peers.iter().filter_map(|peer| {
        let (severity, message) = ending(peer.certificate_ends?, now, LEAF_DAYS)?;
        let message = format!("the certificate that its agent presents: {message}");
        let remedy = "look at the log of that agent: it renews its certificate by itself";
        Some(finding(severity, "certificates", &format!("site {}", peer.name), &message, remedy))
    });
    judged.collect()
}

fn disk(host: &Host) -> Vec<Finding> {
    let place = host.state_dir.display().to_string();
    let mut found = Vec::new();
    if let Some(why) = &host.unwritable {
        let remedy = "give the user of the agent this folder, on a file system that can be written";
        found.push(error("disk", &place, &format!("it cannot be written: {why}"), remedy));
    }
    if let Some(Disk { total, free }) = host.disk {
        let mib = free / 1024 / 1024;
        let message = format!("{mib} MiB of {} MiB are free", total / 1024 / 1024);
        let remedy = "make room; etcd stops when its log cannot grow";
        if free < DISK_FULL {
            found.push(error("disk", &place, &message, remedy));
        } else if free < DISK_LOW {
            found.push(warning("disk", &place, &message, remedy));
        }
    }
    if let Some(median) = host.fsync_us.get(host.fsync_us.len() / 2) {
        let message = format!(
            "a synced write takes {}.{} ms (median of {})",
            median / 1000,
            median % 1000 / 100,
            host.fsync_us.len()
        );
        let remedy = "give etcd a disk of its own; every write waits for the disks of a majority";
        if *median >= FSYNC_BAD_US {
            found.push(error("disk", &place, &message, remedy));
        } else if *median >= FSYNC_SLOW_US {
            found.push(warning("disk", &place, &message, remedy));
        }
    }
    found
}

/// `3.6` of `3.6.16`.
fn minor(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

fn etcds(host: &Host, federations: &[FederationReport]) -> Vec<Finding> {
    let place =
        host.etcd_dir.as_ref().map_or_else(|| "PATH".to_owned(), |folder| folder.display().to_string());
    let mut found: Vec<Finding> = host
        .etcds
        .iter()
        .filter(|binary| binary.version.is_none())
        .map(|binary| {
            error(
                "etcd",
                &binary.path.display().to_string(),
                "it does not run",
                "install an etcd for this machine",
            )
        })
        .collect();
    for FederationReport { status, effective, own, .. } in federations {
        let here =
            |spec: &&Spec| spec.clusters.iter().any(|cluster| cluster.name.as_str() == status.observed_from);
        let Some(spec) = effective.as_deref().or(own.as_deref()).filter(here) else { continue };
        let wanted = spec.version.as_deref().unwrap_or(DEFAULT_VERSION);
        let exact = wanted.split('.').count() > 2;
        let fits = |version: &str| if exact { version == wanted } else { minor(version) == wanted };
        if !host.etcds.iter().filter_map(|binary| binary.version.as_deref()).any(fits) {
            let message =
                format!("{}/{} wants etcd {wanted}, and there is none", status.namespace, status.name);
            found.push(error(
                "etcd",
                &place,
                &message,
                "install it there, or set etcdDir in the configuration",
            ));
        }
    }
    found
}

fn peer_ports(host: &Host) -> Vec<Finding> {
    let failed = host.peer_ports.iter().filter_map(|port| {
        let problem = port.problem.as_ref()?;
        let remedy = "check that the name resolves here, the peer port in firewalls on the way, and that the member runs";
        Some(error("peer ports", &format!("{} (site {})", port.url, port.site), problem, remedy))
    });
    failed.collect()
}

fn conditions(status: &Status) -> Vec<Finding> {
    use ConditionType as T;
    let place = format!("{}/{}", status.namespace, status.name);
    let judge = |condition: &Condition| {
        let Condition { kind, status, reason, message } = condition;
        let (bad, severity) = match kind {
            T::Quorate | T::DivergentData | T::DataLost => {
                (if *kind == T::Quorate { ConditionStatus::False } else { ConditionStatus::True }, Severity::Error)
            }
            T::QuorumAtRisk | T::Frozen | T::SlowFailover => (ConditionStatus::True, Severity::Warning),
            T::AllMembersReady | T::TrustReady => (ConditionStatus::False, Severity::Warning),
            // Backups are not there yet, and every status says so.
            T::BackupReady
            // Looked at more closely below.
            | T::SpecAgreed | T::PeersReachable | T::AllMembersUpdated
            // Made of the others.
            | T::Ready | T::Progressing => return None,
        };
        (*status == bad).then(|| {
            let remedy = format!("quorate explain {reason}");
            finding(severity, "federation", &place, &format!("{kind:?}={status:?}: {message}"), &remedy)
        })
    };
    status.conditions.iter().filter_map(judge).collect()
}

fn digests(federation: &FederationReport) -> Vec<Finding> {
    let FederationReport { status, own_digest, file, .. } = federation;
    let place = |site: &str| format!("{}/{} at site {site}", status.namespace, status.name);
    let wanted = own_digest.or(status.digest).map(|digest| digest.to_string());
    let mut found = Vec::new();
    if own_digest.is_none() {
        let remedy = "put the file back: a file that is gone is never a deletion";
        let message = "no file describes it here; it goes on as it was";
        found.push(warning("specs", &place(&status.observed_from), message, remedy));
    }
    for site in status.sites.iter().filter(|site| site.reachable && site.name != status.observed_from) {
        let short = |digest: &str| digest.chars().take(12).collect::<String>();
        let name = file.as_ref().map_or_else(|| "FILE".to_owned(), |file| file.display().to_string());
        let remedy = format!("quorate apply -f {name} at both sites, with the same bytes");
        match &site.spec_digest {
            digest if *digest == wanted => {}
            Some(digest) => {
                let own = wanted.as_deref().map_or_else(|| "none".to_owned(), short);
                let message = format!("it holds {}, here is {own}", short(digest));
                found.push(warning("specs", &place(&site.name), &message, &remedy));
            }
            None => found.push(warning("specs", &place(&site.name), "it holds no file", &remedy)),
        }
    }
    found
}

/// Every site should reach every member's peer port.
fn links(status: &Status, view: &View) -> Vec<Finding> {
    let mut found = Vec::new();
    for site in view.sites.iter().filter(|site| site.heard()) {
        let Some(observation) = &site.observation else { continue };
        // A site without a member need not reach anybody.
        if !view.members.iter().any(|m| m.site() == Some(&site.name)) {
            continue;
        }
        for member in view.members.iter().filter(|m| m.site() != Some(&site.name)) {
            let down = observation.link(member.id).is_some_and(|link: &Link| !link.up());
            if !down {
                continue;
            }
            let to = member.slot.as_ref().map_or_else(|| member.id.to_string(), ToString::to_string);
            let place = format!("{}/{}: {} to {to}", status.namespace, status.name, site.name);
            let message = format!("the peer port {} does not answer", member.peer_url);
            let remedy =
                "check the member, the address behind that name, and the peer port in firewalls on the way";
            found.push(error("links", &place, &message, remedy));
        }
    }
    found
}

fn member_versions(status: &Status) -> Vec<Finding> {
    let known = || status.members.iter().filter(|m| !m.version.is_empty());
    let Some(first) = known().next() else { return Vec::new() };
    let Some(other) = known().find(|m| m.version != first.version) else { return Vec::new() };
    let message = format!("{} runs {}, {} runs {}", first.name, first.version, other.name, other.version);
    let place = format!("{}/{}", status.namespace, status.name);
    let found = if minor(&first.version) == minor(&other.version) {
        finding(Severity::Note, "versions", &place, &message, "install the same etcd at all sites")
    } else {
        warning("versions", &place, &message, "finish the upgrade: membership is frozen until then (I13)")
    };
    vec![found]
}
