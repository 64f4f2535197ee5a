//! Growing and shrinking.

use anyhow::Result;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome, on_sites};

pub(crate) const CASES: &[Case] = &[Case {
    name: "grow_and_shrink::one_three_five_and_back",
    minors: ALL,
    short: Some(Minor::V3_6),
    run: one_three_five_and_back,
}];

/// 1-3-5 over five sites, and 5-3-1; one voter only where the spec permits it.
fn one_three_five_and_back(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &["a", "b", "c", "d", "e"], &[], |field| async move {
        let all = ["a", "b", "c", "d", "e"];
        let one = field.spec(&all[..1], &["members: 1", "allowSingleVoter: true"]);
        field.raise(&one, 1).await?;
        let writer = field.writer().await?;
        let begun = field.clock.elapsed();
        field.change(&field.spec(&all[..3], &["members: 3"]), 3).await?;
        field.change(&field.spec(&all, &["members: 5"]), 5).await?;
        field.change(&field.spec(&all[..3], &["members: 3"]), 3).await?;
        field.change(&one, 1).await?;
        let gap = writer.longest_gap(begun, field.clock.elapsed());
        let mut outcome = field.outcome(&writer).await?;
        outcome.planned_gap_ms = Some(gap.ms());
        Ok(outcome)
    })
}
