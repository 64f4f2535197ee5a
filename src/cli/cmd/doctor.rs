//! `quorate doctor`: gathers facts, lets core judge them, and shows what was found.

pub(super) mod host;

use std::fmt::Write as _;
use std::process::ExitCode;

use quorate_api::config::SiteConfig;
use quorate_core::doctor::{Facts, Finding, Severity, examine};
use quorate_core::federation::view::View;
use quorate_core::report::{FederationReport, SiteReport};
use quorate_link::clock::Clock;
use serde_json::{Value, json};

use super::Outcome;
use super::target::{Target, full_name};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::table::{bytes, count, table, wrap};
use crate::output::{Plain, json, print};

/// What is wrong here, and what helps: links, certificates, files, clocks, versions, disks, etcds
///
/// It looks from this site: run it at every site that something is wrong with. Nothing is changed. A clock that is wrong is
/// only a warning, because no decision rests on it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate doctor
  $ quorate doctor --config /etc/quorate/quorate.yaml   # looks at certificates and etcds too, where it names other folders
  $ quorate doctor -o json | jq '.findings[] | select(.severity == \"error\")'

Exit codes: 0 nothing is wrong, 1 warnings, 2 errors.")]
pub(super) struct Args {
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Plain,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: Args) -> Outcome {
    let Args { output, target } = args;
    let config = target.config()?;
    let facts = gather(&target.client()?, config.as_ref(), target.state_dir(config.as_ref())).await?;
    let findings = examine(&facts);
    print(&match output {
        Plain::Json => json::json(&plain(&facts, &findings))?,
        Plain::Yaml => json::yaml(&plain(&facts, &findings))?,
        Plain::Table => text(&facts, &findings),
    });
    Ok(ExitCode::from(match findings.iter().map(|finding| finding.severity).max() {
        None | Some(Severity::Note) => 0,
        Some(Severity::Warning) => 1,
        Some(Severity::Error) => 2,
    }))
}

/// Everything that can be found out from here. An agent that does not answer is a fact too.
pub(super) async fn gather(
    client: &Client,
    config: Option<&SiteConfig>,
    state_dir: &std::path::Path,
) -> Result<Facts, Failure> {
    let agent = client.site().await;
    let mut federations = Vec::new();
    if agent.is_ok() {
        for status in client.all().await? {
            federations.extend(client.view(&status.namespace, &status.name).await?);
        }
    }
    let host = host::look(config, state_dir, &federations).await;
    let agent = agent.map_err(|failure| failure.to_string().replace("error: ", "").replace("\nhint: ", "; "));
    Ok(Facts { now: Clock::unix_seconds(), agent, host, federations })
}

pub(super) fn plain(facts: &Facts, findings: &[Finding]) -> Value {
    let Facts { now: _, agent, host, federations } = facts;
    let links = |report: &FederationReport| {
        let view = report.view.as_ref()?;
        Some(json!({
            "federation": full_name(&report.status),
            "links": matrix(view),
            "specs": report.status.sites,
            "members": report.status.members,
        }))
    };
    json!({
        "worst": findings.iter().map(|finding| finding.severity).max(),
        "findings": findings,
        "agent": agent.as_ref().ok(),
        "host": host,
        "federations": federations.iter().filter_map(links).collect::<Vec<_>>(),
    })
}

pub(super) fn text(facts: &Facts, findings: &[Finding]) -> String {
    let mut text = verdict(findings);
    if let Ok(agent) = &facts.agent {
        text.push_str(&agents(agent));
    }
    for report in &facts.federations {
        text.push_str(&federation(report));
    }
    text.push_str(&machine(facts));
    text
}

fn verdict(findings: &[Finding]) -> String {
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
    let mut text = match (errors, warnings) {
        (0, 0) => "nothing is wrong\n".to_owned(),
        (0, n) => format!("{}\n", count(n, "warning")),
        (n, 0) => format!("{}\n", count(n, "error")),
        (n, m) => format!("{}, {}\n", count(n, "error"), count(m, "warning")),
    };
    for Finding { severity, check, place, message, remedy } in findings {
        let word = match severity {
            Severity::Error => "ERROR",
            Severity::Warning => "WARNING",
            Severity::Note => "note",
        };
        let _ = write!(text, "\n{word:<8} {check}: {place}\n");
        let _ = writeln!(text, "         {}", wrap(message, 9, 110).trim_start());
        let _ = writeln!(text, "         remedy: {}", wrap(remedy, 17, 110).trim_start());
    }
    text
}

fn ago(ms: Option<u64>) -> String {
    match ms {
        None => "never".to_owned(),
        Some(ms) if ms < 1_000 => format!("{ms} ms"),
        Some(ms) => format!("{} s", ms / 1000),
    }
}

fn rtt(us: Option<u64>) -> String {
    us.map(|us| format!("{}.{} ms", us / 1000, us % 1000 / 100)).unwrap_or_default()
}

/// Who hears whom: rows hear, columns are heard.
fn agents(agent: &SiteReport) -> String {
    let mut names: Vec<&str> = agent.peers.iter().map(|peer| peer.name.as_str()).collect();
    names.push(&agent.site);
    names.sort_unstable();
    let heard = |from: &str, to: &str| -> String {
        if from == to {
            return ".".to_owned();
        }
        let (age, us) = if from == agent.site {
            let peer = agent.peers.iter().find(|peer| peer.name == to);
            (peer.and_then(|peer| peer.age_ms), peer.and_then(|peer| peer.rtt_us))
        } else {
            let peer = agent.peers.iter().find(|peer| peer.name == from);
            // What a site that is silent said once is not worth more than nothing.
            let Some(peer) = peer.filter(|peer| peer.age_ms.is_some_and(|age| age < 30_000)) else {
                return "?".to_owned();
            };
            let Some(link) = peer.hears.iter().find(|link| link.site == to) else { return "?".to_owned() };
            (link.age_ms, link.rtt_us)
        };
        match rtt(us) {
            rtt if rtt.is_empty() => format!("{} ago", ago(age)),
            rtt => format!("{rtt}, {} ago", ago(age)),
        }
    };
    let headings: Vec<String> = std::iter::once("AGENT HEARS".to_owned())
        .chain(names.iter().map(|name| name.to_uppercase()))
        .collect();
    let row = |from: &&str| {
        std::iter::once((*from).to_owned()).chain(names.iter().map(|to| heard(from, to))).collect()
    };
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut text = format!("\n{}", table(0, &headings, names.iter().map(row).collect()));
    let row = |peer: &quorate_core::report::PeerReport| {
        let skew = peer.clock_skew_ms.map(|skew| {
            format!(
                "{}{}.{} s",
                if skew < 0 { "-" } else { "+" },
                skew.unsigned_abs() / 1000,
                skew.unsigned_abs() % 1000 / 100
            )
        });
        vec![
            peer.name.clone(),
            peer.endpoint.clone(),
            peer.version.clone().unwrap_or_default(),
            peer.protocol.map(|protocol| protocol.to_string()).unwrap_or_default(),
            skew.unwrap_or_default(),
            peer.certificate_ends.map(days).unwrap_or_default(),
        ]
    };
    let own = vec![
        format!("{} (here)", agent.site),
        String::new(),
        agent.version.clone(),
        agent.protocol.to_string(),
        String::new(),
        agent.certificates.iter().find(|c| c.what == "leaf").map(|c| days(c.ends)).unwrap_or_default(),
    ];
    let rows = std::iter::once(own).chain(agent.peers.iter().map(row)).collect();
    let headings = ["AGENT OF", "ENDPOINT", "QUORATE", "PROTOCOL", "CLOCK", "CERTIFICATE"];
    let _ = write!(text, "\n{}", table(0, &headings, rows));
    text
}

fn days(ends: u64) -> String {
    let left = ends.saturating_sub(Clock::unix_seconds()) / (24 * 60 * 60);
    if left == 0 {
        "less than a day".to_owned()
    } else {
        count(usize::try_from(left).unwrap_or(usize::MAX), "day")
    }
}

/// One link from a site to a member's peer port.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Cell {
    from: String,
    to: String,
    up: bool,
    rtt_us: u32,
    good_ms: u64,
    misses: u32,
    age_ms: Option<u64>,
}

fn matrix(view: &View) -> Vec<Cell> {
    let mut cells = Vec::new();
    for site in &view.sites {
        let Some(observation) = &site.observation else { continue };
        for member in &view.members {
            let Some(link) = observation.link(member.id) else { continue };
            cells.push(Cell {
                from: site.name.to_string(),
                to: member.slot.as_ref().map_or_else(|| member.id.to_string(), ToString::to_string),
                up: link.up(),
                rtt_us: link.rtt_us,
                good_ms: link.good_ms,
                misses: link.misses,
                age_ms: site.age_ms,
            });
        }
    }
    cells
}

fn federation(report: &FederationReport) -> String {
    let FederationReport { status, view, .. } = report;
    let mut text = format!("\n{}\n", full_name(status));
    if let Some(view) = view.as_ref().filter(|view| !view.members.is_empty()) {
        let cells = matrix(view);
        let names: Vec<String> = view
            .members
            .iter()
            .map(|m| m.slot.as_ref().map_or_else(|| m.id.to_string(), ToString::to_string))
            .collect();
        let cell = |from: &str, to: &str| match cells.iter().find(|cell| cell.from == from && cell.to == to) {
            Some(cell) if cell.up => {
                format!("{}, {} ago", rtt(Some(u64::from(cell.rtt_us))), ago(cell.age_ms))
            }
            Some(_) => "NO".to_owned(),
            None => String::new(),
        };
        let headings: Vec<&str> =
            std::iter::once("REACHES PEER PORT").chain(names.iter().map(String::as_str)).collect();
        let row = |site: &quorate_core::federation::view::SiteView| {
            std::iter::once(site.name.to_string())
                .chain(names.iter().map(|to| cell(site.name.as_str(), to)))
                .collect()
        };
        text.push_str(&table(2, &headings, view.sites.iter().map(row).collect()));
        text.push('\n');
    }
    let own = report.own_digest.map(|digest| digest.to_string());
    let short = |digest: &str| digest.chars().take(12).collect::<String>();
    let row = |site: &quorate_core::condition::SiteStatus| {
        let here = site.name == status.observed_from;
        let digest = if here { own.clone() } else { site.spec_digest.clone() };
        let versions: Vec<&str> =
            status.members.iter().filter(|m| m.site == site.name).map(|m| m.version.as_str()).collect();
        vec![site.name.clone(), digest.as_deref().map(short).unwrap_or_default(), versions.join(", ")]
    };
    text.push_str(&table(2, &["SITE", "HOLDS SPEC", "ETCD"], status.sites.iter().map(row).collect()));
    text
}

fn machine(facts: &Facts) -> String {
    let host = &facts.host;
    let mut text = "\nthis machine\n".to_owned();
    let room = host
        .disk
        .map_or_else(String::new, |disk| format!(", {} of {} free", bytes(disk.free), bytes(disk.total)));
    let fsync = match host.fsync_us.get(host.fsync_us.len() / 2) {
        Some(median) => format!(", a synced write takes {}", rtt(Some(*median))),
        None => String::new(),
    };
    let _ = writeln!(text, "  state folder   {}{room}{fsync}", host.state_dir.display());
    let etcds: Vec<String> = host
        .etcds
        .iter()
        .map(|etcd| {
            format!("{} ({})", etcd.version.as_deref().unwrap_or("does not run"), etcd.path.display())
        })
        .collect();
    let etcds = if etcds.is_empty() { "none found".to_owned() } else { etcds.join(", ") };
    let _ = writeln!(text, "  etcd           {etcds}");
    let leaves = || host.certificates.iter().filter(|file| file.problem.is_none());
    if let Some(first) = leaves().min_by_key(|file| file.ends) {
        let _ = writeln!(
            text,
            "  certificates   {}, the first one ends in {} ({})",
            count(leaves().count(), "file"),
            days(first.ends),
            first.path.display()
        );
    }
    text
}
