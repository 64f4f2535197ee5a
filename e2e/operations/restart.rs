//! Agents are killed and started again while a member is added.

use anyhow::{Result, ensure};
use quorate_core::condition::Status;
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, case};

pub(crate) const CASES: &[Case] = &[case("restart::every_agent_at_any_point_of_an_add", every_agent)];

const SITES: [&str; 3] = ["a", "b", "c"];

/// Whether a status shows the point.
type Point = fn(&Status) -> bool;

/// What the statuses show of an add, in order; at each of these all agents die at once and come back.
const POINTS: [(&str, Point); 5] = [
    ("the new spec", |status| status.generation.0 > 1),
    ("an open intent", |status| status.intent.as_deref().is_some_and(|intent| intent.contains("Open"))),
    ("a learner", |status| status.members.iter().any(|member| member.role == "learner")),
    ("a learner that is alive", |status| {
        status.members.iter().any(|member| member.role == "learner" && member.state == "alive")
    }),
    ("two voters", |status| status.arithmetic.voters == 2),
];

fn every_agent(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let one = field.spec(&SITES, &["members: 1", "allowSingleVoter: true"]);
        let three = field.spec(&SITES, &["members: 3"]);
        let course = Course::begin(field, &one, &["a-0"]).await?;
        let (first, seed) = (course.id("a-0")?, course.field.etcds());
        course.field.apply(&three)?;
        // Before anybody has acted on it, and then whenever something has happened.
        course.all_again().await?;
        for (what, seen) in POINTS {
            course.until(&format!("{what}, at some site"), |now| now.values().any(seen)).await?;
            course.all_again().await?;
        }
        course.settled(&course.field.sites, &["a-0", "b-0", "c-0"]).await?;
        ensure!(course.id("a-0")? == first, "the first voter was replaced");
        let now = course.field.etcds();
        ensure!(
            seed.iter().all(|etcd| now.contains(etcd)),
            "the first voter was restarted: {seed:?}, {now:?}"
        );
        course.end(&SITES, &["a-0", "b-0", "c-0"], 0).await
    })
}

impl Course {
    /// Kills all agents at once and starts them again.
    async fn all_again(&self) -> Result<()> {
        self.kill_agents(&SITES).await?;
        for site in SITES {
            self.start(site).await?;
        }
        Ok(())
    }
}
