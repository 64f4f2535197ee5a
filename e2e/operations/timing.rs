//! Timers of running members change: planned restarts, one voter at a time, the leader last and not as leader.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::process::Kind;
use quorate_core::condition::{ConditionStatus, ConditionType, Status};
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, case};

pub(crate) const CASES: &[Case] = &[
    case("timing::longer_and_shorter_timers_as_written", written),
    case("timing::longer_timers_for_a_longer_way", measured),
    case("timing::every_agent_dies_in_the_middle", agents),
    Case { short: Some(Minor::V3_6), ..case("timing::a_single_voter_pauses", single) },
];

const SITES: [&str; 3] = ["east", "north", "west"];
const SLOTS: [&str; 3] = ["east-0", "north-0", "west-0"];

/// Heartbeat and election timeout of a running etcd, ms.
type Timers = (u32, u32);

/// What the etcds of all sites run with, as their processes have it.
fn running(course: &Course) -> Result<Vec<Timers>> {
    let etcds = course.field.mesh.run.processes().into_iter().filter(|process| process.kind == Kind::Etcd);
    let timers = etcds.map(|etcd| {
        let flag = |name: &str| {
            etcd.flag(name)
                .with_context(|| format!("etcd without --{name}"))?
                .parse()
                .context(name.to_owned())
        };
        Ok((flag("heartbeat-interval")?, flag("election-timeout")?))
    });
    timers.collect()
}

/// Waits until all etcds run with these timers. Meanwhile at most one is away, and whoever leads sends its heartbeats at
/// least five times in the election timeout of each follower.
async fn reach(course: &Course, goal: Timers) -> Result<()> {
    let all = course.field.etcds().len();
    let mut seen = BTreeSet::new();
    let settled = |course: &Course| {
        let now = running(course)?;
        ensure!(now.len() + 1 >= all, "{} of {all} etcds run", now.len());
        let slowest = now.iter().map(|(heartbeat, _)| *heartbeat).max().unwrap_or(0);
        let least = now.iter().map(|(_, election)| *election).min().unwrap_or(u32::MAX);
        ensure!(5 * slowest <= least, "these run side by side: {now:?}");
        seen.extend(now.clone());
        let updated = |status: &Status| {
            let updated = status.conditions.iter().find(|c| c.kind == ConditionType::AllMembersUpdated);
            updated.is_some_and(|c| c.status == ConditionStatus::True)
        };
        let told = course.field.watch.statuses().values().all(updated);
        Ok((told && now.len() == all && now.iter().all(|timers| *timers == goal)).then_some(()))
    };
    course.for_a(&format!("all etcds with {goal:?}"), settled).await?;
    println!("seen on the way to {goal:?}: {seen:?}");
    Ok(())
}

/// What was restarted since the mark: of each restart whether its member led by then.
fn restarts(course: &Course) -> (usize, usize) {
    let told = course.told();
    let count = |event: &str| told.iter().filter(|told| told.event == event).count();
    (count("Restarting"), count("LeaderMoved"))
}

/// A person writes other timers into the spec, longer ones and then the old ones.
fn written(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let near = field.spec(&SITES, &["etcd: {heartbeatMs: 100, electionMs: 1000}"]);
        let far = field.spec(&SITES, &["etcd: {heartbeatMs: 300, electionMs: 3000}"]);
        let mut course = Course::begin(field, &near, &SLOTS).await?;
        ensure!(running(&course)? == [(100, 1_000); 3], "{:?}", running(&course)?);
        let members = course.field.members();
        for (spec, goal) in [(&far, (300, 3_000)), (&near, (100, 1_000))] {
            let begun = course.now();
            course.field.watch.from_now();
            course.change(spec, &SLOTS).await?;
            reach(&course, goal).await?;
            course.settled(&course.field.sites, &SLOTS).await?;
            course.planned_since(begun);
            // Both followers in the first half; all three in the second.
            let (restarted, moved) = restarts(&course);
            ensure!(restarted == 5 && moved >= 1, "{restarted} restarts, {moved} moves of leadership");
            course.took(&["SpecActivated"]).await?;
            ensure!(course.field.members() == members, "a member was replaced");
        }
        course.said(&["AllMembersUpdated=False", "RestartPending"]).await?;
        course.end_between(&SITES, &SLOTS, 0, 1).await
    })
}

/// The way between the sites gets longer: the agents measure it, activate other timers, and restart.
fn measured(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let wan = field.stretch()?;
        for site in &field.mesh.sites {
            let config = std::fs::read_to_string(site.config())?;
            std::fs::write(site.config(), format!("{config}placementAfter: 20s\n"))?;
        }
        let spec = field.spec(&SITES, &[]);
        let mut course = Course::begin(field, &spec, &SLOTS).await?;
        // A busy machine is far from itself: the timers of the beginning are those that were measured then.
        let first = as_told(&course, 0).await?;
        let (members, begun) = (course.field.members(), course.now());
        course.mark();
        let way = Duration::from_millis(250);
        for (one, other) in [("east", "north"), ("north", "west"), ("west", "east")] {
            wan.set_rtt(one, other, way);
        }
        let then = as_told(&course, 250).await?;
        ensure!(then.0 > first.0 && then.1 > first.1, "{first:?} became {then:?}");
        course.settled(&course.field.sites, &SLOTS).await?;
        ensure!(course.steps().iter().all(|step| step == "SpecActivated"), "{:?}", course.steps());
        ensure!(restarts(&course).0 >= 5, "{:?}", restarts(&course));
        ensure!(course.field.members() == members, "a member was replaced");
        course.planned_since(begun);
        course.end_between(&SITES, &SLOTS, 0, 1).await
    })
}

/// Waits until all etcds run with the timers of the effective generation, for a way of at least so many milliseconds.
async fn as_told(course: &Course, rtt_ms: u32) -> Result<Timers> {
    let agreed = |course: &Course| {
        let statuses = course.field.watch.statuses();
        let mut told = statuses.values().filter_map(|status| status.timing.as_ref());
        let Some(timing) = told.next().filter(|timing| timing.rtt_ms.unwrap_or(0) >= rtt_ms) else {
            return Ok(None);
        };
        let goal = (timing.heartbeat_ms, timing.election_ms);
        let now = running(course)?;
        let all = now.len() == SITES.len() && now.iter().all(|timers| *timers == goal);
        Ok((all && told.all(|other| other == timing)).then_some(goal))
    };
    course.for_a(&format!("the timers of a way of {rtt_ms} ms or more"), agreed).await
}

/// All agents die when the first voter was restarted: what members run with is all that the new ones need to know.
fn agents(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let near = field.spec(&SITES, &["etcd: {heartbeatMs: 100, electionMs: 1000}"]);
        let far = field.spec(&SITES, &["etcd: {heartbeatMs: 300, electionMs: 3000}"]);
        let mut course = Course::begin(field, &near, &SLOTS).await?;
        let begun = course.now();
        course.mark();
        course.field.apply(&far)?;
        let one = |course: &Course| Ok(running(course)?.contains(&(100, 3_000)).then_some(()));
        course.for_a("a first restarted etcd", one).await?;
        course.kill_agents(&SITES).await?;
        for site in SITES {
            course.start(site).await?;
        }
        reach(&course, (300, 3_000)).await?;
        course.settled(&course.field.sites, &SLOTS).await?;
        course.planned_since(begun);
        course.end_between(&SITES, &SLOTS, 0, 1).await
    })
}

/// One voter alone: the pause is announced, and short.
fn single(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &["east"], &[], |field| async move {
        let lines = ["members: 1", "allowSingleVoter: true"];
        let near = field.spec(&["east"], &lines);
        let far =
            field.spec(&["east"], &[&lines[..], &["etcd: {heartbeatMs: 300, electionMs: 3000}"]].concat());
        let mut course = Course::begin(field, &near, &["east-0"]).await?;
        course.mark();
        course.field.apply(&far)?;
        let changed = |course: &Course| Ok((running(course)? == [(300, 3_000)]).then_some(()));
        course.for_a("the other timers", changed).await?;
        course.settled(&course.field.sites, &["east-0"]).await?;
        let told = course.told();
        let said = told.iter().find(|told| told.event == "Restarting").context("no restart was told")?;
        ensure!(said.message.contains("writes pause"), "{said:?}");
        course.writes().await?;
        course.end_between(&["east"], &["east-0"], -1, 0).await
    })
}
