//! A member goes and another one takes its place.

use anyhow::{Result, ensure};
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, case};

pub(crate) const CASES: &[Case] = &[
    case("replace_lost::a_follower_and_then_the_leader", lost),
    case("replace_live::in_another_zone", another_zone),
];

const SITES: [&str; 3] = ["east", "north", "west"];
const SLOTS: [&str; 3] = ["east-0", "north-0", "west-0"];

/// A zone of a site is given up for another one, and taken back: the voter there is replaced while it lives.
fn another_zone(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &["a"], &["w", "x", "y", "z"], |field| async move {
        let zones = |third: &str| field.spec(&[&format!("a, zones: [x, y, {third}]")], &["members: 3"]);
        let (before, after) = (zones("z"), zones("w"));
        let slots = ["a-0", "a-1", "a-2"];
        let mut course = Course::begin(std::sync::Arc::clone(&field), &before, &slots).await?;
        let kept = [course.id("a-0")?, course.id("a-1")?];
        let steps = ["SpecActivated", "LearnerAdded", "LearnerPromoted", "VoterRemoved"];

        // The address of a member is its own for life: the new one gets the next ordinal, and the old one is free again.
        for (spec, slot, zone) in [(&after, "a-3", "w"), (&before, "a-2", "z")] {
            course.change(spec, &["a-0", "a-1", slot]).await?;
            course.took(&steps).await?;
            ensure!(course.zone(slot)? == zone, "{slot} is in zone {}", course.zone(slot)?);
            ensure!([course.id("a-0")?, course.id("a-1")?] == kept, "a voter that stays was replaced");
        }
        course.end(&["a"], &slots, 1).await
    })
}

/// The data of a member are lost, first those of a follower, then those of the leader.
fn lost(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        let mut course = Course::begin(field, &spec, &SLOTS).await?;
        for leader in [false, true] {
            let leading = course.field.leader().await?;
            let site = if leader { leading } else { course.field.other_than(&[&leading])? };
            let slot = format!("{site}-0");
            let (old, begun) = (course.id(&slot)?, course.now());
            course.mark();
            course.wipe(&site)?;
            course.said(&["DataLost=True", &old, &site]).await?;
            course.until("another member there", |_| course.id(&slot).is_ok_and(|id| id != old)).await?;
            course.settled(&course.field.sites, &SLOTS).await?;
            // A dead member goes first: etcd adds nobody while one of three is missing.
            course.took(&["VoterRemoved", "LearnerAdded", "LearnerPromoted"]).await?;
            ensure!(!course.field.members().contains(&old), "{old} is still listed");
            // The death of a leader is no planned gap; what follows is.
            if !leader {
                course.planned_since(begun);
            }
        }
        course.end(&SITES, &SLOTS, 0).await
    })
}
