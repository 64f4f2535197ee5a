//! Specs that differ block membership changes and nothing else.

use anyhow::Result;
use quorate_cli::demo::mesh::manifest;
use quorate_cli::demo::watch::Statuses;
use quorate_core::condition::{ConditionStatus, ConditionType};
use quorate_e2e::field::{FEDERATION, Field};

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_that_differs_in_one_site_is_named_and_an_equal_one_is_activated() -> Result<()> {
    let field = Field::of_three().await?;
    let writer = field.writer().await?;
    let before = field.watch.statuses();
    let generation = before.get("east").unwrap().generation;
    let etcds = field.etcds();

    // The same layout, said explicitly: another digest.
    let other = format!("{}  members: 3\n", manifest(FEDERATION, &field.sites));
    field.site("north")?.apply(FEDERATION, &other)?;
    let drifted = field
        .until("SpecAgreed=False with the name of the site, in each site", |now| {
            now.len() == 3
                && now.values().all(|status| {
                    status.conditions.iter().any(|c| {
                        c.kind == ConditionType::SpecAgreed
                            && c.status == ConditionStatus::False
                            && c.message.contains("north")
                    })
                })
        })
        .await?;
    let ids =
        |now: &Statuses| now.get("east").unwrap().members.iter().map(|m| m.id.clone()).collect::<Vec<_>>();
    assert!(drifted.values().all(|status| status.generation == generation));
    assert_eq!(ids(&drifted), ids(&before));
    assert_eq!(field.etcds(), etcds);
    field.writes(&writer).await?;

    field.apply(&other)?;
    let after = field
        .until("the new spec to be effective in each site", |now| {
            now.len() == 3
                && now.values().all(|status| {
                    let agreed = status.conditions.iter().find(|c| c.kind == ConditionType::SpecAgreed);
                    status.generation > generation
                        && agreed.is_some_and(|c| c.status == ConditionStatus::True)
                })
        })
        .await?;
    assert_eq!(ids(&after), ids(&before));
    field.settled("three settled voters under the new spec").await?;
    assert_eq!(field.etcds(), etcds);
    field.prove(&writer).await?;
    Ok(())
}
