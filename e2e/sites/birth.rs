//! One cluster is born, and only when all sites agree.

use std::net::SocketAddr;

use anyhow::Result;
use quorate_cli::demo::mesh::{MESH_PORT, manifest};
use quorate_core::condition::{ConditionStatus, ConditionType, Status};
use quorate_e2e::field::{FEDERATION, Field};
use quorate_e2e::relay::Relay;

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

/// Puts a relay into each direction of each link between two agents, all of them cut.
async fn cut_off(field: &Field) -> Result<Vec<Relay>> {
    let mut links = Vec::new();
    for (number, from) in (1_u8..).zip(&field.mesh.sites) {
        let mut peers = Vec::new();
        for to in field.mesh.sites.iter().filter(|to| to.name != from.name) {
            // 127.77.100 + from.<third part of to>
            let [a, b, c, _] = to.address.octets();
            let address = SocketAddr::from(([a, b, 100 + number, c], MESH_PORT));
            let relay = Relay::cut_off(address, SocketAddr::from((to.address, MESH_PORT))).await?;
            peers.push((to.name.clone(), relay.address.to_string()));
            links.push(relay);
        }
        field.mesh.configure(from, &peers)?;
    }
    Ok(links)
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_off_sites_start_nothing_and_become_one_cluster_when_healed() -> Result<()> {
    let field = Field::new(&["east", "west", "north"]).await?;
    field.apply(&manifest(FEDERATION, &field.sites))?;
    let links = cut_off(&field).await?;
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

    links.iter().for_each(Relay::heal);
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
