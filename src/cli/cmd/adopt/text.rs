//! The FederatedEtcd that is written, and the report for people. Pure.

use std::fmt::Write as _;

use quorate_core::id::{FederationKey, SiteName};

use super::judge::{self, Verdict};
use super::look::{Facts, Seen};
use super::{Args, Report};
use crate::output::table::{table, wrap};

/// The `FederatedEtcd`: the same bytes for all sites.
pub(super) fn manifest(
    args: &Args,
    key: &FederationKey,
    site: &SiteName,
    clusters: &[SiteName],
    seen: &Seen,
    facts: &Facts,
) -> String {
    let names: Vec<String> = clusters.iter().map(|name| format!("{{name: {name}}}")).collect();
    let mut text = format!(
        "apiVersion: quorate.dev/v1alpha1\nkind: FederatedEtcd\nmetadata: {{name: {}, namespace: {}}}\nspec:\n  \
         clusters: [{}]\n",
        key.name,
        key.namespace,
        names.join(", ")
    );
    if let Some(members) = args.members {
        let _ = writeln!(text, "  members: {members}");
        if members == 1 {
            text.push_str("  allowSingleVoter: true\n");
        }
    }
    if let Some(minor) = judge::minor(seen) {
        let _ = writeln!(text, "  version: {minor:?}");
    }
    text.push_str(&settings(args, seen));
    let mut endpoints: Vec<String> = seen.members.iter().filter_map(|m| m.endpoint.clone()).collect();
    endpoints.sort();
    let _ = write!(
        text,
        "  adopt:\n    cluster: {site}\n    clusterId: \"{:x}\"\n    endpoints: {endpoints:?}\n    peerCA: |\n",
        seen.cluster
    );
    for line in facts.peer_ca.lines() {
        let _ = writeln!(text, "      {line}");
    }
    text
}

/// Timers and quota that differ from ours: members of one etcd must have the same.
fn settings(args: &Args, seen: &Seen) -> String {
    let asked =
        seen.members.iter().filter_map(|m| m.status.as_ref()).map(|s| s.db_quota).find(|quota| *quota > 0);
    let quota = args.quota_bytes.or_else(|| asked.and_then(|quota| u64::try_from(quota).ok()));
    let fields = [
        ("quotaBytes", quota.map(|quota| quota.to_string())),
        ("heartbeatMs", args.heartbeat_ms.map(|ms| ms.to_string())),
        ("electionMs", args.election_ms.map(|ms| ms.to_string())),
    ];
    let given: Vec<String> =
        fields.into_iter().filter_map(|(name, value)| Some(format!("{name}: {}", value?))).collect();
    if given.is_empty() { String::new() } else { format!("  etcd: {{{}}}\n", given.join(", ")) }
}

/// The report for people.
pub(super) fn report(report: &Report, clusters: &[SiteName], site: &SiteName, missing: usize) -> String {
    let mut text = format!("{}: take over an etcd\n\n", report.federation);
    let rows = report.members.iter().map(|m| {
        let role = if m.learner {
            "learner"
        } else if m.leader {
            "leader"
        } else {
            "voter"
        };
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        vec![
            m.id.clone(),
            m.name.clone(),
            role.to_owned(),
            text(&m.version),
            m.peer_url.clone(),
            text(&m.endpoint),
        ]
    });
    text.push_str(&table(2, &["ID", "NAME", "ROLE", "VERSION", "PEER URL", "ENDPOINT"], rows.collect()));
    text.push('\n');
    for check in &report.checks {
        let mark = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "look",
            Verdict::Missing => "MISSING",
        };
        let line = format!("{:<8} {:<15} {}", mark, check.what, check.found);
        let _ = writeln!(text, "  {}", wrap_from(&line, 26));
        if !check.remedy.is_empty() {
            let _ = writeln!(text, "{}", wrap(&format!("-> {}", check.remedy), 27, 110));
        }
    }
    for (i, line) in report.plan.iter().enumerate() {
        let head = if i == 0 { "\n  the agents will do, one after the other:\n" } else { "" };
        let _ = write!(text, "{head}\n  {}. {}   ({})\n", i + 1, line.step, line.operation);
        let _ = write!(text, "       before  {}\n       after   {}\n", line.before, line.after);
    }
    text.push_str(&next(report, clusters, site, missing));
    text
}

fn wrap_from(line: &str, indent: usize) -> String {
    let (head, rest) = line.split_at_checked(indent - 1).unwrap_or((line, ""));
    format!("{head} {}", wrap(rest, indent + 1, 110).trim_start())
}

fn next(report: &Report, clusters: &[SiteName], site: &SiteName, missing: usize) -> String {
    if missing > 0 {
        return format!("\n  nothing was changed: {missing} things have to be put right first\n");
    }
    let Some(manifest) = &report.manifest else { return String::new() };
    let others: Vec<&str> = clusters.iter().filter(|other| *other != site).map(SiteName::as_str).collect();
    let mut text = String::new();
    if report.written.is_empty() {
        text.push_str("\n  nothing was changed; with --yes this FederatedEtcd is applied here:\n\n");
        for line in manifest.lines() {
            let _ = writeln!(text, "    {line}");
        }
        return text;
    }
    text.push_str("\n  written:\n");
    for path in &report.written {
        let _ = writeln!(text, "    {}", path.display());
    }
    if !others.is_empty() {
        let file = report.written.last().map(|path| path.display().to_string()).unwrap_or_default();
        let _ = writeln!(text, "\n  next: apply the same {file} in {}", others.join(", "));
    }
    let _ = writeln!(text, "  then: quorate status {}", report.federation);
    text
}
