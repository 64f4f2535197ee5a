//! Leadership goes where a majority is near.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, case};

pub(crate) const CASES: &[Case] = &[case("placement::the_leader_goes_where_a_majority_is_near", near)];

/// The shortest time that may be set.
const AFTER: &str = "placementAfter: 10s";
const FAR: Duration = Duration::from_millis(60);
const NEAR: Duration = Duration::from_millis(4);

/// The first member is born far from the two others. One of those leads in the end, by one move, and stays.
fn near(minor: Minor) -> Result<Outcome> {
    let sites = ["a", "b", "c"];
    on_sites(minor, &sites, &[], |field| async move {
        let wan = field.stretch()?;
        wan.set_rtt("a", "b", FAR);
        wan.set_rtt("a", "c", FAR);
        wan.set_rtt("b", "c", NEAR);
        for site in sites {
            let mut config = std::fs::OpenOptions::new().append(true).open(field.site(site)?.config())?;
            writeln!(config, "{AFTER}")?;
        }
        let slots = ["a-0", "b-0", "c-0"];
        let mut course =
            Course::born(std::sync::Arc::clone(&field), &field.spec(&sites, &[]), &slots).await?;
        let begun = course.now();
        let moves =
            |course: &Course| course.told().into_iter().filter(|told| told.event == "LeaderMoved").count();
        course.for_a("a hand-over", |course| Ok((moves(course) > 0).then_some(()))).await?;
        course.executing("a leader near another voter", |status| status.observed_from != "a").await?;
        ensure!(field.leader().await? != "a", "the far member still leads");
        course.planned_since(begun);
        // Nobody hands back and forth: for twice the time that a better one would have needed.
        let hold = course.now() + 2 * Duration::from_secs(10);
        course.for_a("a while", |course| Ok((course.now() > hold).then_some(()))).await?;
        ensure!(moves(&course) == 1, "leadership was moved {} times", moves(&course));
        course.end(&sites, &slots, 0).await
    })
}
