//! Voters move from one site to another.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_e2e::field::Told;
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, case};

pub(crate) const CASES: &[Case] = &[
    case("swap::west_out_south_in", swap),
    case("move_everything::three_voters_there_and_back", there_and_back),
    case("move_everything::aborted_before_the_first_removal", aborted),
];

/// How long an even number of voters may last (safety.md I12).
const EVEN: Duration = Duration::from_mins(1);
const REPLACED: [&str; 3] = ["LearnerAdded", "LearnerPromoted", "VoterRemoved"];

/// One site out, another one in; the one that goes is the one that leads.
fn swap(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &["east", "north", "south", "west"], &[], |field| async move {
        let (before, after) = (["east", "north", "west"], ["east", "north", "south"]);
        let begin = field.spec(&before, &[]);
        let swapped = field.spec(&after, &[]);
        let mut course = Course::begin(field, &begin, &["east-0", "north-0", "west-0"]).await?;
        lead(&course, "west-0").await?;
        let old = course.id("west-0")?;
        let kept = [course.id("east-0")?, course.id("north-0")?];
        course.change(&swapped, &["east-0", "north-0", "south-0"]).await?;
        course.took(&[&["SpecActivated"], &REPLACED[..]].concat()).await?;
        // Add, move leadership away, remove.
        let order: Vec<String> = course.told().into_iter().map(|told| told.event).collect();
        let place =
            |event: &str| order.iter().position(|told| told == event).with_context(|| format!("no {event}"));
        ensure!(
            place("LeaderMoved")? < place("VoterRemoved")?,
            "the leader was removed before it had handed over: {order:?}"
        );
        ensure!([course.id("east-0")?, course.id("north-0")?] == kept, "a voter that stays was replaced");
        // What is left of it is kept, and nothing of it runs.
        let archived = |course: &Course| {
            let archive = course.archive("west", "west-0")?;
            let gone = course.field.etcds().iter().all(|(site, _)| site != "west");
            Ok((gone && archive.iter().any(|name| name.contains(&old))).then_some(()))
        };
        course.for_a("the old directory in the archive, and no etcd in west", archived).await?;
        course.end(&after, &["east-0", "north-0", "south-0"], 1).await
    })
}

/// Hands leadership to the member in a slot, as an operator would.
async fn lead(course: &Course, slot: &str) -> Result<()> {
    let leader = course.field.leader().await?;
    let id = course.id(slot)?;
    if !course.ids(&leader).contains(&id) {
        let target = u64::from_str_radix(&id, 16)?;
        course.field.site(&leader)?.client().await?.move_leader(target).await?;
    }
    course.executing("the move of leadership", |status| status.leader.as_deref() == Some(&id)).await
}

/// Everything moves from two sites to two others: all new voters come in before the first old one goes, and leadership is
/// with the new ones before old and new are as many: then a cut between them would stop writes, for as short as can be.
async fn relocate(course: &mut Course, spec: &str, slots: &[&str]) -> Result<()> {
    let voters = slots.len();
    let old = course.field.members();
    course.change(spec, slots).await?;
    ensure!(
        slots.iter().all(|slot| course.id(slot).is_ok_and(|id| !old.contains(&id))),
        "a voter stayed behind"
    );
    course.took(&moved(voters)).await?;

    let told = course.told();
    let promoted = nth(&told, "LearnerPromoted", voters)?;
    let removed = nth(&told, "VoterRemoved", 1)?;
    let lasted = between(&told[promoted], &told[removed])?;
    ensure!(lasted < EVEN, "the balanced state lasted {lasted:?}");
    let handed = told[..promoted].iter().rev().find(|told| told.event == "LeaderMoved");
    let handed = &handed.context("leadership was not moved before the balanced state")?.message;
    ensure!(!old.iter().any(|id| handed.contains(id)), "{handed}, and that one is to go");
    Ok(())
}

/// The steps of such a move.
fn moved(voters: usize) -> Vec<&'static str> {
    let add = ["LearnerAdded", "LearnerPromoted"].into_iter().cycle().take(2 * voters);
    ["SpecActivated"].into_iter().chain(add).chain(std::iter::repeat_n("VoterRemoved", voters)).collect()
}

/// Where the n-th (from one) of these transitions is.
fn nth(told: &[Told], event: &str, n: usize) -> Result<usize> {
    let mut found = told.iter().enumerate().filter(|(_, told)| told.event == event).map(|(at, _)| at);
    found.nth(n - 1).with_context(|| format!("there are not {n} of {event}"))
}

/// The time between two transitions of less than a day.
fn between(from: &Told, to: &Told) -> Result<Duration> {
    // 2006-01-02T15:04:05.999999Z
    let seconds = |told: &Told| -> Result<f64> {
        let time = told.timestamp.split(['T', 'Z']).nth(1).context("no time")?;
        time.split(':').try_fold(0.0, |sum, part| Ok(sum * 60.0 + part.parse::<f64>()?))
    };
    let day = 24.0 * 3600.0;
    Ok(Duration::from_secs_f64((seconds(to)? - seconds(from)?).rem_euclid(day)))
}

const FOUR: [&str; 4] = ["a", "b", "c", "d"];

fn there_and_back(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let here = field.spec(&["a, members: 2", "b, members: 1"], &[]);
        let there = field.spec(&["c, members: 2", "d, members: 1"], &[]);
        let mut course = Course::begin(field, &here, &["a-0", "a-1", "b-0"]).await?;
        relocate(&mut course, &there, &["c-0", "c-1", "d-0"]).await?;
        relocate(&mut course, &here, &["a-0", "a-1", "b-0"]).await?;
        course.end(&["a", "b"], &["a-0", "a-1", "b-0"], 1).await
    })
}

/// The old spec is back in the balanced state, before anybody was removed: the newcomers go again, and all others stay.
fn aborted(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let slots = ["a-0", "a-1", "b-0"];
        let here = field.spec(&["a, members: 2", "b, members: 1"], &[]);
        let there = field.spec(&["c, members: 2", "d, members: 1"], &[]);
        let mut course = Course::begin(field, &here, &slots).await?;
        let before = course.field.members();
        let begun = course.now();
        course.mark();
        course.field.apply(&there)?;
        course.executing("six voters", |status| status.arithmetic.voters == 6).await?;
        let generation = course.generation();
        course.field.apply(&here)?;
        course.effective(&course.field.in_spec(&here), generation).await?;
        course.settled(&course.field.in_spec(&here), &slots).await?;
        course.planned_since(begun);
        let mut steps = moved(slots.len());
        steps.insert(1 + 2 * slots.len(), "SpecActivated");
        course.took(&steps).await?;
        ensure!(
            before.iter().all(|id| course.field.members().contains(id)),
            "a voter of before was removed: {before:?} became {:?}",
            course.field.members()
        );
        course.end(&["a", "b"], &slots, 1).await
    })
}
