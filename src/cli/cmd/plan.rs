//! `quorate plan`: what will be done and why not, and the lines with which a person can permit it.

use std::fmt::Write as _;
use std::process::ExitCode;

use quorate_core::condition::{MemberStatus, PlanLine, Status};
use quorate_core::id::SiteName;
use quorate_core::reason::{Code, Reason, Rule};
use serde_json::json;

use super::Outcome;
use super::target::{Target, federations, full_name};
use crate::output::table::{count, wrap};
use crate::output::{Plain, json, print};

/// What quorate will do, step by step, with the arithmetic before and after; what each step waits for.
///
/// Nothing is changed. Where only a person can decide, the lines to paste into the FederatedEtcd are printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate plan etcd/main
  $ quorate plan etcd/main -o json")]
pub(super) struct Args {
    /// NAMESPACE/NAME, or NAME if it is the only one
    federation: Option<String>,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Plain,
    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: Args) -> Outcome {
    let Args { federation, output, target } = args;
    let all = federations(&target.client()?, federation.as_deref()).await?;
    let plain = |s: &Status| json!({"federation": full_name(s), "decision": s.decision, "reason": s.reason, "plan": s.plan, "paste": paste(s)});
    let plain: Vec<_> = all.iter().map(plain).collect();
    print(&match output {
        Plain::Json => json::json(&plain)?,
        Plain::Yaml => json::yaml(&plain)?,
        Plain::Table => all.iter().map(text).collect::<Vec<_>>().join("\n"),
    });
    Ok(ExitCode::SUCCESS)
}

fn text(status: &Status) -> String {
    let name = full_name(status);
    let mut text = match (&status.reason, status.plan.len()) {
        (Some(reason), 0) => {
            format!("{name}: nothing can be done now\n\n{}\n", wrap(&reason.to_string(), 2, 110))
        }
        (Some(_), n) => format!("{name}: {} planned, the first one waits\n", count(n, "step")),
        (None, 0) if status.decision == "Done" => {
            format!("{name}: nothing to do, the members are as wished\n")
        }
        (None, 0) => format!("{name}: {}\n", status.decision),
        (None, n) => format!("{name}: {} planned, the first one goes now\n", count(n, "step")),
    };
    text.push_str(&steps(&status.plan));
    if let Some(reason) = &status.reason {
        let first_waits = status.plan.first().is_some_and(|line| line.waits.contains(&reason.to_string()));
        if !status.plan.is_empty() && !first_waits {
            let _ = write!(text, "\n  now: {}\n", wrap(&reason.to_string(), 7, 110).trim_start());
        }
        text.push_str(&remedy(reason));
    }
    text.push_str(&paste(status).map(|paste| paste.text()).unwrap_or_default());
    text
}

/// The steps with their arithmetic, what they wait for, and what to know of the state that they leave.
pub(super) fn steps(lines: &[PlanLine]) -> String {
    let mut text = String::new();
    for (i, line) in lines.iter().enumerate() {
        let _ = write!(text, "\n  {}. {}   ({})\n", i + 1, line.step, line.operation);
        let _ = write!(text, "       before  {}\n       after   {}\n", line.before, line.after);
        for (what, all) in [("waits", &line.waits), ("remark", &line.remarks)] {
            for one in all {
                let _ = writeln!(text, "       {what:<7} {}", wrap(one, 15, 110).trim_start());
            }
        }
    }
    text
}

/// What helps, and where more is said.
pub(super) fn remedy(reason: &Reason) -> String {
    let remedy = wrap(reason.code.remedy(), 10, 110);
    format!("\n  remedy: {}\n  more:   quorate explain {}\n", remedy.trim_start(), reason.code.name())
}

/// Lines that a person may add to the object, and when.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub(super) struct Paste {
    when: String,
    lines: String,
}

impl Paste {
    pub(super) fn text(&self) -> String {
        let lines: Vec<String> = self.lines.lines().map(|line| format!("    {line}\n")).collect();
        format!("\n{}\n\n{}", wrap(&self.when, 2, 110), lines.concat())
    }
}

pub(super) fn paste(status: &Status) -> Option<Paste> {
    let planned = status.plan.first().map(|line| line.operation.as_str());
    paste_for(status.reason.as_ref()?, &status.members, planned.or(status.operation.as_deref()))
}

/// The lines for one reason, with the members as they are and the operation that it stands against.
pub(super) fn paste_for(reason: &Reason, members: &[MemberStatus], operation: Option<&str>) -> Option<Paste> {
    match reason.code {
        Code::LostMemberUnconfirmed => {
            let member = reason.member?.to_string();
            let known = members.iter().find(|m| m.id == member);
            lost(known.map(|m| m.site.as_str()).or_else(|| reason.site.as_ref().map(SiteName::as_str))?, &[&member])
        }
        // The site that holds the intent up: only if it is gone with everything on it.
        Code::IntentUnresolved | Code::ExecutorUnavailable => {
            let site = reason.site.as_ref()?.as_str();
            let there = |m: &&MemberStatus| m.site == site && m.role == "voter";
            let ids: Vec<&str> = members.iter().filter(there).map(|m| m.id.as_str()).collect();
            lost(site, &ids)
        }
        Code::SingleVoterNotAllowed => Some(Paste {
            when: "If one voter, which survives nothing, is really wanted, add to the FederatedEtcd in every cluster:".into(),
            lines: "spec:\n  allowSingleVoter: true\n".into(),
        }),
        // Those pass by themselves, or are put right in the file; to override them would only hide it.
        Code::TooSoon | Code::SpecDrift | Code::NoBackup => None,
        _ => exception(operation?, reason.rule()?),
    }
}

fn lost(site: &str, members: &[&str]) -> Option<Paste> {
    if members.is_empty() {
        return None;
    }
    let quoted: Vec<String> = members.iter().map(|id| format!("{id:?}")).collect();
    let what = if members.len() == 1 { "that member's disk is" } else { "the disks of these members are" };
    Some(Paste {
        when: format!(
            "Only if {what} gone for good (it can never come back afterwards), add to the FederatedEtcd in every cluster:"
        ),
        lines: format!("spec:\n  clusters:\n  - name: {site}\n    lostMembers: [{}]\n", quoted.join(", ")),
    })
}

fn exception(operation: &str, rule: Rule) -> Option<Paste> {
    if !matches!(rule, Rule::I3 | Rule::I13 | Rule::I17) {
        return None;
    }
    Some(Paste {
        when: format!(
            "Only if you know why rule {rule} ({}) does not matter this once, add to the FederatedEtcd in every cluster; it \
             is used for this operation only:",
            rule.title()
        ),
        lines: format!(
            "spec:\n  override:\n    rule: {rule}\n    operation: {operation}\n    by: YOUR NAME\n"
        ),
    })
}

#[cfg(test)]
mod tests;
