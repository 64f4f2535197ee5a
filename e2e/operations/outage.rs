//! Sites and agents that are away for a while: nothing is replaced, nothing is lost, and etcd goes on without agents.

use std::time::Duration;

use anyhow::{Result, ensure};
use quorate_cli::demo::watch::Statuses;
use quorate_core::condition::{ConditionStatus, ConditionType, Status};
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, PATIENCE, case};

pub(crate) const CASES: &[Case] = &[
    case("outage::a_site_is_lost_and_returns", site),
    Case { short: Some(Minor::V3_5), ..case("outage::two_agents_and_then_all", agents) },
    case("outage::the_larger_of_two_sites", two_sites),
];

const SITES: [&str; 3] = ["east", "north", "west"];
const SLOTS: [&str; 3] = ["east-0", "north-0", "west-0"];

/// First a follower's site, then the leader's: the others write on, wait for it, and take it back as it was.
fn site(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        let mut course = Course::begin(field, &spec, &SLOTS).await?;
        let members = course.field.members();
        for leader in [false, true] {
            let leading = course.field.leader().await?;
            let site = if leader { leading } else { course.field.other_than(&[&leading])? };
            let id = course.id(&format!("{site}-0"))?;
            course.field.watch.from_now();
            course.mark();
            course.kill_site(&site).await?;
            // Silence is no proof of death: whoever executes says so, and what would be needed to act on it.
            course.said(&["PeersReachable=False", &site]).await?;
            course.said(&["LostMemberUnconfirmed", &id]).await?;
            course
                .executing("two of three voters, and no other site that may be lost", |status| {
                    let now = &status.arithmetic;
                    (now.voters, now.alive, now.margin) == (3, 2, 0)
                        && now.can_lose_clusters == [site.as_str()]
                })
                .await?;
            course.writes().await?;
            course.start(&site).await?;
            course.settled(&course.field.sites, &SLOTS).await?;
            ensure!(course.steps().is_empty(), "members were changed: {:?}", course.steps());
            ensure!(course.field.members() == members, "a member was replaced");
        }
        course.end(&SITES, &SLOTS, 0).await
    })
}

/// Agents die, their members do not: no etcd is restarted, no write waits, and the agents adopt what they find.
fn agents(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        let mut course = Course::begin(field, &spec, &SLOTS).await?;
        let (members, etcds) = (course.field.members(), course.field.etcds());
        let begun = course.now();
        course.mark();
        // The one that executes, and another one.
        let leader = course.field.leader().await?;
        let other = course.field.other_than(&[&leader])?;
        let left = course.field.other_than(&[&leader, &other])?;
        course.kill_agents(&[&leader, &other]).await?;
        course.said(&[&format!("{left}: PeersReachable=False")]).await?;
        course
            .until("the agent that is left to miss the others", |now| {
                let reachable = |status: &Status| status.sites.iter().filter(|site| site.reachable).count();
                now.len() == 1 && now.get(&left).is_some_and(|status| reachable(status) == 1)
            })
            .await?;
        course.writes().await?;
        course.start(&leader).await?;
        course.start(&other).await?;
        course.settled(&course.field.sites, &SLOTS).await?;

        course.kill_agents(&SITES).await?;
        course.until("no agent to answer", Statuses::is_empty).await?;
        course.writes().await?;
        ensure!(course.field.etcds() == etcds, "an etcd was restarted or ended");
        for site in SITES {
            course.start(site).await?;
        }
        course.settled(&course.field.sites, &SLOTS).await?;

        ensure!(course.field.etcds() == etcds, "an etcd was restarted");
        ensure!(course.field.members() == members, "a member was replaced");
        ensure!(course.steps().is_empty(), "members were changed: {:?}", course.steps());
        course.planned_since(begun);
        course.end(&SITES, &SLOTS, 1).await
    })
}

/// Two sites work, and the status says which of them must not be lost. When it is, nobody touches anything.
fn two_sites(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &["large", "small"], &[], |field| async move {
        let slots = ["large-0", "large-1", "small-0"];
        let spec = field.spec(&["large, members: 2", "small, members: 1"], &[]);
        let mut course = Course::begin(field, &spec, &slots).await?;
        let members = course.field.members();
        course.said(&["QuorumAtRisk=True", "large"]).await?;
        course.mark();

        course.kill_site("small").await?;
        course.said(&["PeersReachable=False", "small"]).await?;
        course.writes().await?;
        course.start("small").await?;
        course.settled(&course.field.sites, &slots).await?;

        course.kill_site("large").await?;
        let lost = |status: &Status| {
            let quorate = status.conditions.iter().find(|c| c.kind == ConditionType::Quorate);
            quorate.is_some_and(|c| c.status == ConditionStatus::False && c.reason == "QuorumLost")
        };
        course.until("the loss of quorum to be told", |now| now.get("small").is_some_and(lost)).await?;
        // A put that was in flight may have come through; then there is nothing more.
        let (acknowledged, since) = (course.writer.acknowledged(), course.now());
        course
            .for_a("a while without a leader", |course| Ok((course.now() > since + QUIET).then_some(())))
            .await?;
        ensure!(course.writer.acknowledged() == acknowledged, "a minority acknowledged a write");
        course.start("large").await?;
        course.settled(&course.field.sites, &slots).await?;
        course.writes().await?;

        ensure!(course.steps().is_empty(), "members were changed: {:?}", course.steps());
        ensure!(course.field.members() == members, "a member was replaced");
        course.end(&["large", "small"], &slots, -1).await
    })
}

/// Longer than an election and than all deadlines of the writer.
const QUIET: Duration = Duration::from_secs(5);
const _: () = assert!(QUIET.as_secs() < PATIENCE.as_secs());
