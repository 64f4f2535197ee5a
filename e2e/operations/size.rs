//! Growing and shrinking.

use anyhow::{Result, ensure};
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, case};

pub(crate) const CASES: &[Case] =
    &[case("grow_and_shrink::one_three_five_and_back", one_three_five_and_back)];

const ALL: [&str; 5] = ["a", "b", "c", "d", "e"];
const ADD: [&str; 2] = ["LearnerAdded", "LearnerPromoted"];

/// 1-3-5 over five sites, and 5-3-1; one voter only where the spec permits it.
fn one_three_five_and_back(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &ALL, &[], |field| async move {
        let one = field.spec(&ALL[..1], &["members: 1", "allowSingleVoter: true"]);
        let three = field.spec(&ALL[..3], &["members: 3"]);
        let five = field.spec(&ALL, &["members: 5"]);
        let unpermitted = field.spec(&ALL[..1], &["members: 1"]);
        let mut course = Course::begin(field, &one, &["a-0"]).await?;

        let grown = [&["SpecActivated"][..], &ADD, &ADD].concat();
        course.change(&three, &["a-0", "b-0", "c-0"]).await?;
        course.took(&grown).await?;
        course.change(&five, &["a-0", "b-0", "c-0", "d-0", "e-0"]).await?;
        course.took(&grown).await?;
        let shrunk = ["SpecActivated", "VoterRemoved", "VoterRemoved"];
        course.change(&three, &["a-0", "b-0", "c-0"]).await?;
        course.took(&shrunk).await?;

        // Without the flag the file is refused in each site, and nothing happens.
        course.mark();
        let before = course.generation();
        course.field.apply(&unpermitted)?;
        for site in ALL {
            let log = course.field.site(site)?.log();
            course
                .for_a("the refusal of one voter", |_| {
                    let text = std::fs::read_to_string(&log)?;
                    let refused = |line: &&str| {
                        line.contains("a manifest cannot be used") && line.contains("allowSingleVoter")
                    };
                    Ok(text.lines().find(refused).map(drop))
                })
                .await?;
        }
        course.writes().await?;
        ensure!(course.generation() == before, "a spec that was refused became effective");
        course.untouched()?;

        course.change(&one, &["a-0"]).await?;
        course.took(&shrunk).await?;
        course.end(&ALL[..1], &["a-0"], 0).await
    })
}
