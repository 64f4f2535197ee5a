//! `quorate simulate`: what if something were lost now.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::str::FromStr;

use quorate_core::condition::{self, Status};
use quorate_core::id::{MemberId, SiteName, ZoneName};
use quorate_core::membership::loss::{Loss, Outlook, simulate};
use quorate_core::membership::plan::Planned;
use quorate_core::membership::step::Decision;
use quorate_core::report::FederationReport;
use serde_json::{Value, json};

use super::Outcome;
use super::plan::steps;
use super::target::{Target, federations, full_name};
use crate::failure::{Exit, Failure};
use crate::output::table::{table, wrap};
use crate::output::{Plain, json, print};

/// What if a site, a zone or a member were lost now: whether writes go on, and what would happen next
///
/// On the live view: the arithmetic, what quorate would do while nobody says more, what it would do if the loss were declared
/// for good, and what a second loss would do. Nothing is touched.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate simulate --lose site=west
  $ quorate simulate etcd/main --lose zone=east/a --lose member=main-west-0
  $ quorate simulate --lose site=west -o json | jq '.[].writable'")]
pub(super) struct Args {
    /// NAMESPACE/NAME, or NAME if it is the only one
    federation: Option<String>,
    /// What is lost: site=NAME, zone=[SITE/]NAME or member=NAME-OR-ID; several are lost at once
    #[arg(long, value_name = "WHAT", required = true)]
    lose: Vec<Lost>,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Plain,
    #[command(flatten)]
    target: Target,
}

/// A loss as it is typed; members have names only when a federation is known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Lost {
    Site(SiteName),
    Zone(Option<SiteName>, ZoneName),
    Member(String),
}

impl FromStr for Lost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is none of site=NAME, zone=[SITE/]NAME, member=NAME-OR-ID");
        let (kind, name) = text.split_once('=').ok_or_else(wrong)?;
        let site = |name: &str| SiteName::new(name).map_err(|error| error.to_string());
        let zone = |name: &str| ZoneName::new(name).map_err(|error| error.to_string());
        match (kind, name.split_once('/')) {
            ("site" | "cluster", None) => Ok(Self::Site(site(name)?)),
            ("zone", None) => Ok(Self::Zone(None, zone(name)?)),
            ("zone", Some((of, name))) => Ok(Self::Zone(Some(site(of)?), zone(name)?)),
            ("member", None) if !name.is_empty() => Ok(Self::Member(name.to_owned())),
            _ => Err(wrong()),
        }
    }
}

pub(super) async fn run(args: Args) -> Outcome {
    let Args { federation, lose, output, target } = args;
    let client = target.client()?;
    let mut found = Vec::new();
    for status in federations(&client, federation.as_deref()).await? {
        let Some(report) = client.view(&status.namespace, &status.name).await? else { continue };
        let outlook = outlook(&report, &lose)?;
        found.push((report.status, outlook));
    }
    print(&match output {
        Plain::Json => json::json(
            &found.iter().map(|(status, outlook)| plain(status, &lose, outlook)).collect::<Vec<_>>(),
        )?,
        Plain::Yaml => json::yaml(
            &found.iter().map(|(status, outlook)| plain(status, &lose, outlook)).collect::<Vec<_>>(),
        )?,
        Plain::Table => {
            found.iter().map(|(status, outlook)| text(status, &lose, outlook)).collect::<Vec<_>>().join("\n")
        }
    });
    Ok(ExitCode::SUCCESS)
}

fn outlook(report: &FederationReport, lose: &[Lost]) -> Result<Outlook, Failure> {
    let FederationReport { status, view, wish, .. } = report;
    let name = full_name(status);
    let Some((view, wish)) = view.as_ref().zip(wish.as_ref()) else {
        return Err(Failure::message(Exit::Usage, format!("{name} is not born yet: it has nothing to lose")));
    };
    let member = |name: &str| {
        let known = status.members.iter().find(|m| m.name == *name || m.id == *name);
        known.and_then(|m| m.id.parse::<MemberId>().ok()).ok_or_else(|| {
            let names: Vec<&str> = status.members.iter().map(|m| m.name.as_str()).collect();
            Failure::message(Exit::Usage, format!("{} has no member {name}", full_name(status)))
                .hint(format!("it has {}", names.join(", ")))
        })
    };
    let losses = lose.iter().map(|lost| match lost {
        Lost::Site(site) => Ok(Loss::Site(site.clone())),
        Lost::Zone(site, zone) => Ok(Loss::Zone(site.clone(), zone.clone())),
        Lost::Member(name) => member(name).map(Loss::Member),
    });
    let losses: Vec<Loss> = losses.collect::<Result<_, Failure>>()?;
    simulate(view, wish, &losses).map_err(|unknown| {
        let mut places: Vec<String> =
            status.members.iter().map(|m| format!("{}/{}", m.site, m.zone)).collect();
        places.dedup();
        Failure::message(Exit::Usage, format!("{name}: {unknown}"))
            .hint(format!("its members are in {}", places.join(", ")))
    })
}

fn losses(lose: &[Lost]) -> String {
    let words = lose.iter().map(|lost| match lost {
        Lost::Site(site) => format!("site {site}"),
        Lost::Zone(Some(site), zone) => format!("zone {site}/{zone}"),
        Lost::Zone(None, zone) => format!("zone {zone}"),
        Lost::Member(name) => format!("member {name}"),
    });
    words.collect::<Vec<_>>().join(" and ")
}

fn text(status: &Status, lose: &[Lost], outlook: &Outlook) -> String {
    let Outlook { before, after, writable, lost, election, silent, declared, second } = outlook;
    let mut text = format!("{}: if {} were lost now\n\n", full_name(status), losses(lose));
    let verdict = if *writable { "writes go on" } else { "WRITES STOP" };
    let _ = write!(text, "  now     {before}\n  then    {after}: {verdict}\n");
    let names: Vec<String> = lost
        .iter()
        .map(|id| {
            status
                .members
                .iter()
                .find(|m| m.id == id.to_string())
                .map_or_else(|| id.to_string(), |m| m.name.clone())
        })
        .collect();
    let names = if names.is_empty() { "no member that is alive now".to_owned() } else { names.join(", ") };
    let _ = writeln!(text, "  lost    {names}");
    if *election && *writable {
        text.push_str("  leader  it is among them: one election, in which no write is acknowledged\n");
    }
    text.push_str("\n  While nobody says more, quorate would:\n");
    text.push_str(&would(silent));
    if let Some(declared) = declared {
        text.push_str(
            "\n  If it were gone for good, and its members listed in lostMembers, quorate would:\n",
        );
        text.push_str(&would(declared));
    }
    if !second.is_empty() {
        let row = |second: &quorate_core::membership::loss::Second| {
            let now = &second.arithmetic;
            let left = format!("{} of {} left, {} needed", now.alive, now.voters, now.quorum);
            vec![second.what.clone(), left, if second.writable { "go on" } else { "STOP" }.to_owned()]
        };
        text.push('\n');
        text.push_str(&table(
            2,
            &["A SECOND LOSS OF", "ARITHMETIC", "WRITES"],
            second.iter().map(row).collect(),
        ));
    }
    text
}

fn would((plan, end): &(Vec<Planned>, Decision)) -> String {
    let mut text = steps(&condition::plan_lines(plan));
    let end = match end {
        Decision::Done if plan.is_empty() => "do nothing: the members are as wished".to_owned(),
        Decision::Done => String::new(),
        Decision::Step(_) => "and more".to_owned(),
        Decision::Wait(reason) if plan.is_empty() => format!("wait: {reason}"),
        Decision::Wait(reason) => format!("then wait: {reason}"),
        Decision::Refuse(reason) => format!("refuse: {reason}"),
    };
    if !end.is_empty() {
        let _ = writeln!(text, "    {}", wrap(&end, 6, 110).trim_start());
    }
    text
}

fn plain(status: &Status, lose: &[Lost], outlook: &Outlook) -> Value {
    let Outlook { before, after, writable, lost, election, silent, declared, second } = outlook;
    let would = |(plan, end): &(Vec<Planned>, Decision)| {
        json!({
            "steps": condition::plan_lines(plan),
            "reason": end.reason(),
            "message": end.reason().map(ToString::to_string),
        })
    };
    json!({
        "federation": full_name(status),
        "losses": losses(lose),
        "before": before,
        "after": after,
        "writable": writable,
        "lost": lost,
        "election": election,
        "next": would(silent),
        "ifDeclaredLost": declared.as_ref().map(would),
        "second": second,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_typed_as_kind_and_name() {
        let site = |name: &str| SiteName::new(name).unwrap();
        assert_eq!("site=west".parse(), Ok(Lost::Site(site("west"))));
        assert_eq!("cluster=west".parse(), Ok(Lost::Site(site("west"))));
        assert_eq!("zone=a".parse(), Ok(Lost::Zone(None, ZoneName::new("a").unwrap())));
        assert_eq!("zone=west/a".parse(), Ok(Lost::Zone(Some(site("west")), ZoneName::new("a").unwrap())));
        assert_eq!("member=main-west-0".parse(), Ok(Lost::Member("main-west-0".to_owned())));
        for wrong in ["west", "site=", "site=a/b", "member=", "rack=3", "zone=a/b/c"] {
            assert!(wrong.parse::<Lost>().is_err(), "{wrong}");
        }
    }
}
