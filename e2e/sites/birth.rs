//! One cluster is born, and only when all sites agree.

use anyhow::Result;
use quorate_cli::demo::mesh::manifest;
use quorate_core::condition::{ConditionStatus, ConditionType, Status};
use quorate_e2e::field::{FEDERATION, Field};

/// What has to be the same wherever it is asked.
fn picture(status: &Status) -> serde_json::Value {
    let mut value = serde_json::to_value(status).unwrap();
    let object = value.as_object_mut().unwrap();
    object.remove("observedFrom");
    for member in object.get_mut("members").unwrap().as_array_mut().unwrap() {
        // It moves while it is looked at.
        member.as_object_mut().unwrap().remove("dbSize");
    }
    value
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_off_sites_start_nothing_and_become_one_cluster_when_healed() -> Result<()> {
    let field = Field::new(&["east", "west", "north"]).await?;
    field.apply(&manifest(FEDERATION, &field.sites))?;
    for site in &field.mesh.sites {
        // The discard port: nobody listens there.
        let peers = field.mesh.peers_of(site);
        let wrong: Vec<_> =
            peers.into_iter().map(|(name, _)| (name, format!("{}:9", site.address))).collect();
        field.mesh.configure(site, &wrong)?;
    }
    field.start().await?;

    let waits = |status: &Status, me: &str| {
        let said = |other: &&String| {
            let named = |text: &str| text.contains(other.as_str());
            status.conditions.iter().any(|c| c.reason == "WaitingForClusters" && named(&c.message))
        };
        field.sites.iter().filter(|other| *other != me).any(|other| said(&other))
    };
    field
        .until("WaitingForClusters with the name of a missing site, in each site", |now| {
            now.len() == 3 && now.iter().all(|(site, status)| waits(status, site))
        })
        .await?;
    assert_eq!(field.etcds(), []);
    for site in &field.mesh.sites {
        assert!(!site.member(FEDERATION, &format!("main-{}-0", site.name)).join("data").exists());
    }

    for site in &field.mesh.sites {
        field.mesh.configure(site, &field.mesh.peers_of(site))?;
    }
    field.settled("three settled voters after the links were healed").await?;
    assert_eq!(field.watch.cluster_ids().len(), 1);
    assert_eq!(field.etcds().len(), 3);

    let same = field
        .until("the same picture in all sites", |now| {
            let mut pictures = now.values().map(picture);
            let first = pictures.next();
            now.len() == 3 && pictures.all(|other| Some(other) == first)
        })
        .await?;
    let status = same.values().next().unwrap();
    let condition = |kind| status.conditions.iter().find(|c| c.kind == kind).map(|c| c.status);
    assert_eq!(condition(ConditionType::Ready), Some(ConditionStatus::True));
    assert_eq!(condition(ConditionType::Quorate), Some(ConditionStatus::True));
    assert_eq!((status.arithmetic.voters, status.arithmetic.margin), (3, 1));
    assert_eq!(status.arithmetic.can_lose_clusters.len(), 3);
    Ok(())
}
