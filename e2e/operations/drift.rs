//! Sites that do not hold the same spec.

use anyhow::{Result, ensure};
use quorate_core::condition::{ConditionStatus, ConditionType, Status};
use quorate_e2e::field::FEDERATION;
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, case};

pub(crate) const CASES: &[Case] = &[case("drift::a_spec_that_differs_in_one_site", one_site)];

const SITES: [&str; 3] = ["east", "north", "west"];
const SLOTS: [&str; 3] = ["east-0", "north-0", "west-0"];

/// One site holds another spec: each status names it, what needs no agreement goes on, and no member is changed until all
/// agree. Not even one whose data are lost.
fn one_site(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        // The same layout, said explicitly: another digest.
        let other = field.spec(&SITES, &["members: 3"]);
        let mut course = Course::begin(field, &spec, &SLOTS).await?;
        let leader = course.field.leader().await?;
        let odd = course.field.other_than(&[&leader])?;
        let lost = course.field.other_than(&[&leader, &odd])?;
        let old = course.id(&format!("{lost}-0"))?;
        course.mark();
        course.field.site(&odd)?.apply(FEDERATION, &other)?;
        let drifted = |status: &Status| {
            let agreed = status.conditions.iter().find(|c| c.kind == ConditionType::SpecAgreed);
            agreed.is_some_and(|c| c.status == ConditionStatus::False && c.message.contains(&odd))
        };
        course
            .until(&format!("each status to name {odd}"), |now| now.len() == 3 && now.values().all(drifted))
            .await?;
        course.writes().await?;

        course.wipe(&lost)?;
        course.said(&["DataLost=True", &old]).await?;
        course.said(&["Frozen=True", "SpecDrift", &odd]).await?;
        course.writes().await?;
        ensure!(course.steps().is_empty(), "something was changed: {:?}", course.steps());
        ensure!(course.field.members().contains(&old), "{old} was removed under a drift");

        let before = course.generation();
        course.field.apply(&other)?;
        course.effective(&course.field.sites, before).await?;
        course
            .until("another member in place of the lost one", |_| {
                course.id(&format!("{lost}-0")).is_ok_and(|id| id != old)
            })
            .await?;
        course.settled(&course.field.sites, &SLOTS).await?;
        course.took(&["SpecActivated", "VoterRemoved", "LearnerAdded", "LearnerPromoted"]).await?;
        course.end(&SITES, &SLOTS, 0).await
    })
}
