//! `quorate status`.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use quorate_core::condition::{
    Condition, ConditionStatus, ConditionType, MemberStatus, Status, TimingStatus,
};
use quorate_core::reason::Code;
use quorate_core::report::SiteReport;

use super::Outcome;
use super::target::{Target, federations, full_name};
use crate::failure::Failure;
use crate::output::table::{bytes, count, table, wrap};
use crate::output::{Format, json, print};

/// How a federation is: whether it writes, what it can lose, what happens next and why not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate status                     # all federations of the agent; in full if there is only one
  $ quorate status etcd/main
  $ quorate status etcd/main --watch
  $ quorate status -o json | jq '.[].arithmetic'")]
pub(super) struct Args {
    /// NAMESPACE/NAME, or NAME if it is the only one
    federation: Option<String>,
    /// Show it again whenever it changes
    #[arg(short, long)]
    watch: bool,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    #[command(flatten)]
    target: Target,
}

/// Looks again this often.
const WATCH: Duration = Duration::from_secs(1);
/// The width that text is broken at.
const WIDTH: usize = 110;

pub(super) async fn run(args: Args) -> Outcome {
    let Args { federation, watch, output, target } = args;
    let client = target.client()?;
    let mut last = None;
    loop {
        let looked = match federations(&client, federation.as_deref()).await {
            Ok(all) => {
                let site = client.site().await.unwrap_or_default();
                render(&all, federation.is_some(), output)? + &site_problems(&site, output)
            }
            // An agent that restarts is nothing to end a watch for.
            Err(failure) if watch && last.is_some() => format!("{failure}\n"),
            Err(failure) => return Err(failure),
        };
        if last.as_ref() != Some(&looked) {
            let clear = if watch && std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
            let gap = if last.is_some() && clear.is_empty() { "\n" } else { "" };
            print(&format!("{clear}{gap}{looked}"));
            last = Some(looked);
        }
        if !watch {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(WATCH).await;
    }
}

fn render(all: &[Status], one: bool, output: Format) -> Result<String, Failure> {
    let wide = output == Format::Wide;
    match (output, all) {
        (Format::Json, [status]) if one => json::json(status),
        (Format::Yaml, [status]) if one => json::yaml(status),
        (Format::Json, all) => json::json(&all),
        (Format::Yaml, all) => json::yaml(&all),
        (Format::Table | Format::Wide, []) => {
            Ok("no federations; put a FederatedEtcd file into the agent's manifest folder\n".to_owned())
        }
        (Format::Table | Format::Wide, [status]) => Ok(detail(status, wide)),
        (Format::Table | Format::Wide, all) => Ok(overview(all, wide)),
    }
}

/// Files that the agent could not use; nobody would look for them in its log.
fn site_problems(site: &SiteReport, output: Format) -> String {
    if site.problems.is_empty() || matches!(output, Format::Json | Format::Yaml) {
        return String::new();
    }
    let lines: Vec<String> = site.problems.iter().map(|problem| format!("  {problem}\n")).collect();
    format!("\nThe agent of {} cannot use:\n{}", site.site, lines.concat())
}

/// How it stands, for the first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mood {
    Stopped,
    NotBorn,
    Edge,
    Fine,
    /// Nothing of it runs at this site, and nothing is to.
    Out,
}

fn found(status: &Status, kind: ConditionType) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.kind == kind)
}

fn holds(status: &Status, kind: ConditionType) -> bool {
    found(status, kind).is_some_and(|condition| condition.status == ConditionStatus::True)
}

fn mood(status: &Status) -> Mood {
    let at_rest = |code| matches!(code, Code::Retired | Code::Deleted);
    if status.reason.as_ref().is_some_and(|reason| at_rest(reason.code)) {
        Mood::Out
    } else if status.members.is_empty() {
        Mood::NotBorn
    } else if !holds(status, ConditionType::Quorate) {
        Mood::Stopped
    } else if status.arithmetic.margin <= 0 && status.arithmetic.voters > 1 {
        Mood::Edge
    } else {
        Mood::Fine
    }
}

/// The one line that counts.
fn headline(status: &Status) -> String {
    let now = &status.arithmetic;
    let voters = format!("{} of {} alive, {} needed", now.alive, count(now.voters, "voter"), now.quorum);
    let missing = missing(status);
    match mood(status) {
        Mood::Out if status.reason.as_ref().is_some_and(|reason| reason.code == Code::Deleted) => {
            format!("DELETED: no member runs at {}; its data are kept", status.observed_from)
        }
        Mood::Out => {
            format!("TAKEN OUT: no member runs at {}; its volumes are kept", status.observed_from)
        }
        Mood::NotBorn if status.cluster_id.is_some() => {
            "MEMBERS NOT KNOWN: no member of its etcd answers the agents that are heard".to_owned()
        }
        Mood::NotBorn => {
            match status.reason.as_ref().and_then(|reason| Some((reason, reason.site.as_ref()?))) {
                Some((reason, site)) => {
                    format!("NOT BORN YET: there is no etcd; {} {site}", reason.code.name())
                }
                None => "NOT BORN YET: there is no etcd".to_owned(),
            }
        }
        Mood::Stopped if !unheard(status).is_empty() => {
            format!("NO WRITES AS FAR AS {} SEES: {voters}{missing}", status.observed_from)
        }
        Mood::Stopped if now.margin >= 0 => format!("NO WRITES: {voters}, but nobody leads"),
        Mood::Stopped => format!("NO WRITES: {voters}{missing}"),
        Mood::Edge => format!("QUORATE, ON THE EDGE: {voters}; one more loss stops writes{missing}"),
        Mood::Fine if now.voters == 1 => {
            format!("QUORATE: the only voter is alive; its loss stops writes{}", dangers(status))
        }
        Mood::Fine => {
            let spare = count(now.can_lose_members, "member");
            format!("QUORATE: {voters}; {spare} may be lost{missing}{}", dangers(status))
        }
    }
}

/// The voters that are not alive.
fn missing(status: &Status) -> String {
    let dead = status.members.iter().filter(|m| m.role == "voter" && m.state != "alive");
    let names: Vec<&str> = dead.map(|m| m.name.as_str()).collect();
    if names.is_empty() { String::new() } else { format!("; missing: {}", names.join(", ")) }
}

/// What is bad although writes go on.
fn dangers(status: &Status) -> String {
    let words = [
        (ConditionType::DivergentData, "; DATA DIFFER BETWEEN MEMBERS"),
        (ConditionType::DataLost, "; a member lost its data"),
    ];
    words.into_iter().filter(|(kind, _)| holds(status, *kind)).map(|(_, word)| word).collect()
}

/// The sites of voters whose agents are not heard: this agent cannot know what they do.
fn unheard(status: &Status) -> Vec<&str> {
    let voters = |site: &str| status.members.iter().any(|m| m.role == "voter" && m.site == site);
    let silent = status.sites.iter().filter(|site| !site.reachable);
    silent.map(|site| site.name.as_str()).filter(|site| voters(site)).collect()
}

fn overview(all: &[Status], wide: bool) -> String {
    let mut all: Vec<&Status> = all.iter().collect();
    // What needs somebody is on top.
    all.sort_by_key(|status| (mood(status), full_name(status)));
    let mut headings = vec!["FEDERATION", "QUORATE", "VOTERS", "CAN LOSE", "LEADER", "EPOCH", "REASON"];
    if wide {
        headings.extend(["SITES", "DECISION"]);
    }
    let row = |status: &&Status| {
        let quorate = found(status, ConditionType::Quorate).map_or(ConditionStatus::Unknown, |c| c.status);
        let leader = status.members.iter().find(|m| m.leader).map(|m| m.name.clone()).unwrap_or_default();
        let mut row = vec![
            full_name(status),
            format!("{quorate:?}"),
            format!("{}/{}", status.arithmetic.alive, status.arithmetic.voters),
            can_lose_short(status),
            leader,
            status.epoch.to_string(),
            reason_word(status),
        ];
        if wide {
            row.push(status.sites.iter().map(|site| site.name.as_str()).collect::<Vec<_>>().join(","));
            row.push(status.decision.clone());
        }
        row
    };
    table(0, &headings, all.iter().map(row).collect())
}

fn reason_word(status: &Status) -> String {
    let ready = found(status, ConditionType::Ready).map(|condition| condition.reason.clone());
    status.reason.as_ref().map(|reason| reason.code.name().to_owned()).or(ready).unwrap_or_default()
}

fn can_lose_short(status: &Status) -> String {
    let now = &status.arithmetic;
    if now.can_lose_members == 0 {
        return "nothing".to_owned();
    }
    format!("{}, {}", count(now.can_lose_members, "member"), count(now.can_lose_clusters.len(), "cluster"))
}

/// One federation in full.
pub fn detail(status: &Status, wide: bool) -> String {
    let mut text = format!("{}: {}\n", full_name(status), headline(status));
    text.push_str(&can_lose(status));
    text.push_str(&next(status));
    text.push_str(&problems(status));
    if !status.members.is_empty() {
        text.push('\n');
        text.push_str(&members(status, wide));
    }
    // Before the first start it is the sites that everybody waits for.
    if (wide || status.members.is_empty()) && !status.sites.is_empty() {
        text.push('\n');
        text.push_str(&sites(status));
    }
    let effective = match &status.digest {
        Some(digest) => format!("generation {} ({})", status.generation, digest.short()),
        None => "no spec is effective yet".to_owned(),
    };
    let executor = status.executor.as_ref().map_or_else(String::new, |site| format!(", {site} executes"));
    let _ = write!(
        text,
        "\nAs {} sees it: epoch {}, {effective}{executor}.\n",
        status.observed_from, status.epoch
    );
    if wide {
        let uid = status.uid.map_or_else(|| "-".to_owned(), |uid| uid.to_string());
        let _ = writeln!(text, "uid {uid}, etcd cluster {}", status.cluster_id.as_deref().unwrap_or("-"));
        if let Some(TimingStatus { heartbeat_ms, election_ms, rtt_ms }) = &status.timing {
            let why = rtt_ms
                .map_or_else(|| "by the spec".to_owned(), |rtt| format!("for a round trip of {rtt} ms"));
            let _ = writeln!(text, "heartbeat {heartbeat_ms} ms, election timeout {election_ms} ms, {why}");
        }
        if let Some(intent) = &status.intent {
            let _ = writeln!(text, "last intent: {intent}");
        }
        for endpoint in &status.endpoints {
            let _ = writeln!(text, "endpoint {endpoint}");
        }
    }
    text
}

fn field(name: &str, value: &str) -> String {
    let wrapped = wrap(value, 12, WIDTH);
    format!("  {name:<10}{}\n", wrapped.trim_start())
}

fn can_lose(status: &Status) -> String {
    let now = &status.arithmetic;
    if mood(status) == Mood::Stopped {
        let silent = unheard(status);
        if silent.is_empty() {
            return String::new();
        }
        let silent = silent.join(" and ");
        return field(
            "but",
            &format!("no agent of {silent} is heard from here; they may be quorate without us: ask there"),
        );
    }
    if status.members.is_empty() {
        return String::new();
    }
    let any = |names: &[String], word: &str, all: usize| match names.len() {
        0 => format!("no {word}"),
        n if n == all && n > 1 => format!("any one {word}"),
        _ => format!("{word} {}", names.join(" or ")),
    };
    let voters = || status.members.iter().filter(|m| m.role == "voter");
    let distinct = |name: &dyn Fn(&MemberStatus) -> String| {
        let mut names: Vec<String> = voters().map(name).collect();
        names.sort();
        names.dedup();
        names.len()
    };
    let clusters = distinct(&|m| m.site.clone());
    let zones = distinct(&|m| format!("{}/{}", m.site, m.zone));
    let mut parts = vec![match now.can_lose_members {
        0 => "no member".to_owned(),
        n => count(n, "member"),
    }];
    // With one zone per cluster the zones say the same twice.
    if zones > clusters {
        parts.push(any(&now.can_lose_zones, "zone", zones));
    }
    parts.push(any(&now.can_lose_clusters, "cluster", clusters));
    field("can lose", &parts.join("; "))
}

/// What happens next, or why nothing does, and what a person can do.
fn next(status: &Status) -> String {
    let mut text = match (&status.reason, status.plan.first()) {
        (Some(reason), _) if mood(status) == Mood::Out => {
            field("because", &reason.to_string()) + &field("remedy", reason.code.remedy())
        }
        (Some(reason), _) => field("waits", &reason.to_string()) + &field("remedy", reason.code.remedy()),
        (None, _) if status.decision == "Done" => field("next", "nothing to do: the members are as wished"),
        (None, Some(line)) => {
            field("next", &format!("{} [{} -> {}] ({})", line.step, line.before, line.after, line.operation))
        }
        (None, None) => field("next", &status.decision),
    };
    if status.plan.len() > 1 {
        text.push_str(&field(
            "then",
            &format!("{}; see `quorate plan`", count(status.plan.len() - 1, "more step")),
        ));
    }
    text
}

/// Whether a condition is good when it is true.
fn positive(kind: ConditionType) -> bool {
    use ConditionType as T;
    match kind {
        T::Ready
        | T::Quorate
        | T::SpecAgreed
        | T::PeersReachable
        | T::TrustReady
        | T::AllMembersReady
        | T::AllMembersUpdated
        | T::BackupReady => true,
        T::Progressing | T::QuorumAtRisk | T::DataLost | T::Frozen | T::DivergentData | T::SlowFailover => {
            false
        }
    }
}

/// The conditions that matter now: what is not good, and is not said by the lines above.
fn problems(status: &Status) -> String {
    let matters = |condition: &&Condition| {
        let good = if positive(condition.kind) { ConditionStatus::True } else { ConditionStatus::False };
        let said = status.reason.as_ref().is_some_and(|reason| condition.message == reason.to_string());
        let above = matches!(
            condition.kind,
            ConditionType::Ready | ConditionType::Quorate | ConditionType::Progressing
        );
        // Nothing is at risk any more when writes have stopped.
        let past = condition.kind == ConditionType::QuorumAtRisk && mood(status) == Mood::Stopped;
        condition.status != good && !said && !above && !past
    };
    let rows: Vec<Vec<String>> = status
        .conditions
        .iter()
        .filter(matters)
        .map(|c| {
            let name = format!("{:?}", c.kind);
            // `QuorumAtRisk=True QuorumAtRisk: …` would say it twice.
            let message = c.message.strip_prefix(&format!("{name}: ")).unwrap_or(&c.message).to_owned();
            vec![format!("{name}={:?}", c.status), message]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let width = rows.iter().filter_map(|row| row.first()).map(String::len).max().unwrap_or(0);
    let mut text = "\n".to_owned();
    for row in rows {
        if let [name, message] = row.as_slice() {
            let wrapped = wrap(message, width + 5, WIDTH);
            let _ = writeln!(text, "  {name:<width$}   {}", wrapped.trim_start());
        }
    }
    text
}

/// The members as a table.
pub(super) fn members(status: &Status, wide: bool) -> String {
    let mut headings = vec!["MEMBER", "ROLE", "STATE", "SITE", "ZONE", "VERSION", "DB SIZE"];
    if wide {
        headings.extend(["ID", "PEER URL"]);
    }
    let row = |member: &MemberStatus| {
        let role = if member.leader { "leader".to_owned() } else { member.role.clone() };
        let state = match &member.reason {
            Some(reason) => format!("{} ({reason})", member.state),
            None => member.state.clone(),
        };
        let size = if member.db_size == 0 { String::new() } else { bytes(member.db_size) };
        let mut row = vec![
            member.name.clone(),
            role,
            state,
            member.site.clone(),
            member.zone.clone(),
            member.version.clone(),
            size,
        ];
        if wide {
            row.extend([member.id.clone(), member.peer_url.clone()]);
        }
        row
    };
    table(2, &headings, status.members.iter().map(row).collect())
}

fn sites(status: &Status) -> String {
    let row = |site: &quorate_core::condition::SiteStatus| {
        let own = status.digest.map(|digest| digest.to_string());
        let spec = match &site.spec_digest {
            None => String::new(),
            Some(digest) if Some(digest) == own.as_ref() => "effective".to_owned(),
            Some(digest) => format!("{} (not effective)", digest.chars().take(12).collect::<String>()),
        };
        vec![site.name.clone(), if site.reachable { "yes" } else { "NO" }.to_owned(), spec]
    };
    table(2, &["SITE", "AGENT HEARD", "SPEC"], status.sites.iter().map(row).collect())
}

#[cfg(test)]
pub(super) mod tests;
