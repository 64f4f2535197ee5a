//! Taking over an etcd that quorate did not create.

use std::sync::Arc;

use anyhow::{Result, ensure};
use quorate_e2e::field::Field;
use quorate_e2e::foreign::Foreign;
use quorate_e2e::net::{self, Net};
use quorate_e2e::suite::{ALL, Case, Minor, Outcome};

// `sites::stretch` is the short form.
pub(crate) const CASES: &[Case] = &[
    Case { name: "adopt::one_foreign_member", minors: ALL, short: None, run: one },
    Case { name: "adopt::three_foreign_members", minors: ALL, short: None, run: three },
];

const OURS: [&str; 3] = ["east", "west", "north"];

fn one(minor: Minor) -> Result<Outcome> {
    taken_over(minor, 1)
}

fn three(minor: Minor) -> Result<Outcome> {
    taken_over(minor, 3)
}

fn taken_over(minor: Minor, members: u16) -> Result<Outcome> {
    let net = Net::new(&["east", "west", "north", "old"])?;
    net::within(&net, |net| async move {
        let field = Arc::new(Field::among(&net, minor, &[], &OURS).await?);
        let (address, network) = (net.address("old")?, net.path("old")?);
        let foreign = Foreign::start(&field, address, Some(network), members).await?;
        let cluster = foreign.cluster_id().await?;
        field.start().await?;
        let writer = foreign.writer(&field).await?;
        let begun = field.clock.elapsed();
        foreign.taken_over(&field, "east").await?;
        let gap = writer.longest_gap(begun, field.clock.elapsed());
        let mut outcome = field.outcome(&writer).await?;
        ensure!(field.watch.cluster_ids().contains(&cluster), "another cluster than the foreign one");
        outcome.planned_gap_ms = Some(gap.ms());
        Ok(outcome)
    })
}
