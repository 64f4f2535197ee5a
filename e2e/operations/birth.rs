//! One ballot, one seed, and growth to the layout that was asked for: 1, 3 and 5 voters over sites and zones.

use anyhow::{Result, ensure};
use quorate_core::condition::{ConditionStatus, ConditionType, Status};
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, case};

const SITES: [&str; 5] = ["a", "b", "c", "d", "e"];
const ZONES: [&str; 3] = ["x", "y", "z"];

pub(crate) const CASES: &[Case] = &[
    Case { short: Some(Minor::V3_7), ..case("bootstrap::one_voter_at_one_site", |minor| over(minor, 1, 1)) },
    case("bootstrap::one_voter_over_two_sites", |minor| over(minor, 2, 1)),
    case("bootstrap::one_voter_over_three_sites", |minor| over(minor, 3, 1)),
    case("bootstrap::one_voter_over_five_sites", |minor| over(minor, 5, 1)),
    case("bootstrap::three_voters_at_one_site", |minor| over(minor, 1, 3)),
    case("bootstrap::three_voters_over_two_sites", |minor| over(minor, 2, 3)),
    case("bootstrap::three_voters_over_three_sites", |minor| over(minor, 3, 3)),
    case("bootstrap::three_voters_over_five_sites", |minor| over(minor, 5, 3)),
    case("bootstrap::five_voters_at_one_site", |minor| over(minor, 1, 5)),
    case("bootstrap::five_voters_over_two_sites", |minor| over(minor, 2, 5)),
    case("bootstrap::five_voters_over_three_sites", |minor| over(minor, 3, 5)),
    case("bootstrap::five_voters_over_five_sites", |minor| over(minor, 5, 5)),
    case("bootstrap::three_voters_over_three_zones", |minor| over_zones(minor, 3)),
    case("bootstrap::five_voters_over_three_zones", |minor| over_zones(minor, 5)),
];

/// The slots that `voters` make when they are dealt out to `sites`, one each in turn.
fn dealt(sites: &[&str], voters: usize) -> Vec<String> {
    let mut slots: Vec<String> =
        (0..voters).map(|n| format!("{}-{}", sites[n % sites.len()], n / sites.len())).collect();
    slots.sort();
    slots
}

fn over(minor: Minor, sites: usize, voters: usize) -> Result<Outcome> {
    let sites = &SITES[..sites];
    on_sites(minor, sites, &[], |field| async move {
        let members = format!("members: {voters}");
        let single: &[&str] = if voters == 1 { &["allowSingleVoter: true"] } else { &[] };
        let spec = field.spec(sites, &[&[members.as_str()], single].concat());
        let slots = dealt(sites, voters);
        let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
        let course = Course::born(field, &spec, &slots).await?;
        grown(&course, voters).await?;
        // A site whose loss leaves fewer than a majority is at risk, and the status says so.
        let weight = |site: &&str| slots.iter().filter(|slot| slot.starts_with(site)).count();
        let quorum = voters / 2 + 1;
        let fatal: Vec<&str> = sites.iter().copied().filter(|site| voters - weight(site) < quorum).collect();
        let harmless: Vec<&str> =
            sites.iter().copied().filter(|site| weight(site) > 0 && !fatal.contains(site)).collect();
        course
            .executing(
                &format!("the loss of {fatal:?} to be told as fatal, that of {harmless:?} not"),
                |status| {
                    status.arithmetic.can_lose_clusters == harmless
                        && status.arithmetic.can_lose_members == voters - quorum
                        && at_risk(status, if voters == 1 { &[] } else { &fatal })
                },
            )
            .await?;
        course.end(sites, &slots, 0).await
    })
}

/// Whether `QuorumAtRisk` names these sites; none of them is the state without risk.
fn at_risk(status: &Status, sites: &[&str]) -> bool {
    let risk = status.conditions.iter().find(|c| c.kind == ConditionType::QuorumAtRisk);
    risk.is_some_and(|risk| match sites {
        [] => risk.status == ConditionStatus::False,
        sites => {
            let named = format!("(sites at risk: {})", sites.join(", "));
            risk.status == ConditionStatus::True && risk.message.ends_with(&named)
        }
    })
}

fn over_zones(minor: Minor, voters: usize) -> Result<Outcome> {
    on_sites(minor, &["a"], &ZONES, |field| async move {
        let members = format!("members: {voters}");
        let spec = field.spec(&["a, zones: [x, y, z]"], &[&members]);
        let slots: Vec<String> = (0..voters).map(|n| format!("a-{n}")).collect();
        let slots: Vec<&str> = slots.iter().map(String::as_str).collect();
        let course = Course::born(field, &spec, &slots).await?;
        grown(&course, voters).await?;
        let spread: Vec<&str> = (0..voters).map(|n| ZONES[n % ZONES.len()]).collect();
        course
            .executing(
                "the voters to be spread over the zones, and each zone to be one that can be lost",
                |status| {
                    let mut members: Vec<_> = status.members.iter().collect();
                    members.sort_by(|a, b| a.name.cmp(&b.name));
                    let zones: Vec<&str> = members.iter().map(|member| member.zone.as_str()).collect();
                    zones == spread
                        && status.arithmetic.can_lose_zones == ["a/x", "a/y", "a/z"]
                        && at_risk(status, &["a"])
                },
            )
            .await?;
        course.end(&["a"], &slots, 0).await
    })
}

/// One seed was voted for, and everybody else joined as a learner, one after the other.
async fn grown(course: &Course, voters: usize) -> Result<()> {
    let told = course.told();
    let count = |event: &str| told.iter().filter(|told| told.event == event).count();
    ensure!(count("BallotMinted") == 1, "{} ballots were minted", count("BallotMinted"));
    ensure!(count("Seeding") == 1, "{} seeds were started", count("Seeding"));
    let each = ["LearnerAdded", "LearnerPromoted"];
    let expected: Vec<&str> = each.iter().copied().cycle().take(2 * (voters - 1)).collect();
    course.took(&expected).await
}
