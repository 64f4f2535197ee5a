//! C. Partitions.

use anyhow::{Result, ensure};
use quorate_e2e::net::Traffic;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome, on_sites};

pub(crate) const CASES: &[Case] =
    &[Case { name: "s41_one_link_blackholed", minors: ALL, short: Some(Minor::V3_6), run: s41 }];

const SITES: [&str; 3] = ["east", "west", "north"];
const CLUSTERS: [&str; 3] = ["east", "west", "north"];

/// S41: leader and one follower do not reach each other, the third sees all. Nobody is removed, the status says what is
/// wrong, and it heals.
fn s41(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        field.raise(&field.spec(&CLUSTERS, &[]), 3).await?;
        let writer = field.writer().await?;
        let before = field.members();
        let leader = field.leader().await?;
        let follower = field.other_than(&[&leader])?;
        field.watch.from_now();
        field.net()?.cut(&leader, &follower, Traffic::All)?;
        field.said(&["PeersReachable=False", &follower]).await?;
        field.writes(&writer).await?;
        ensure!(field.net()?.dropped(&follower)? > 0, "nothing was dropped");
        field.net()?.heal()?;
        field.until_settled(&field.sites, 3).await?;
        ensure!(field.members() == before, "a member was replaced: {before:?} became {:?}", field.members());
        field.outcome(&writer).await
    })
}
