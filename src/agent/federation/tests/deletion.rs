//! Deleted in one site, in all of them, and declared again.

use std::time::Duration;

use quorate_core::condition::{Condition, ConditionType};
use quorate_core::reason::Code;

use super::world::{Sites, site};
use crate::federation::Message;

const THREE: [&str; 3] = ["east", "north", "west"];

fn agreed(sites: &Sites, name: &str) -> Condition {
    let status = sites.get(name).handle.snapshot().status.clone();
    status.conditions.into_iter().find(|c| c.kind == ConditionType::SpecAgreed).unwrap()
}

async fn delete(sites: &Sites, names: &[&str]) {
    for name in names {
        sites.get(name).handle.tell(Message::Deleted).await;
    }
}

/// Everybody says that it is deleted, and nothing runs.
fn deleted(sites: &Sites) -> bool {
    THREE.iter().all(|name| {
        let status = sites.get(name).handle.snapshot().status.clone();
        status.reason.is_some_and(|r| r.code == Code::Deleted) && sites.get(name).runtime.running() == 0
    })
}

#[tokio::test(start_paused = true)]
async fn gone_in_some_sites_nothing_stops_and_gone_in_all_it_rests_until_it_is_declared_again() {
    let mut sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    let members = sites.net.cluster().members.clone();
    let calls = sites.net.cluster().calls.len();
    let uid = sites.get("east").handle.snapshot().status.uid;

    // East leads, and is the first by name: whoever differs is named all the same.
    delete(&sites, &["east"]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(agreed(&sites, "west").reason, "SpecDeleted");
    assert!(agreed(&sites, "west").message.contains("site east"), "{}", agreed(&sites, "west").message);
    assert_eq!(agreed(&sites, "east").reason, "DeletionWaits");
    delete(&sites, &["north"]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(agreed(&sites, "east").message.contains("site west"), "{}", agreed(&sites, "east").message);
    assert_eq!(sites.net.cluster().voters(), 3);
    assert_eq!(THREE.map(|name| sites.get(name).runtime.running()), [1, 1, 1]);

    // The last one is deleted while another one is not heard.
    sites.net.cut.lock().unwrap().insert(site("north"));
    tokio::time::sleep(Duration::from_secs(10)).await;
    delete(&sites, &["west"]).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(THREE.map(|name| sites.get(name).runtime.running()), [1, 1, 1]);
    sites.net.cut.lock().unwrap().clear();
    sites.until("everything to rest", 20, deleted).await;

    // Agents that start again leave it so.
    sites.restart_bare("north").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(sites.get("north").runtime.running(), 0);
    delete(&sites, &["north"]).await;

    sites.apply(&THREE, &THREE).await;
    sites.until("three voters again", 30, |s| s.settled(3)).await;
    assert_eq!(sites.net.cluster().births, 1);
    assert_eq!(sites.net.cluster().members, members);
    assert_eq!(sites.net.cluster().calls.len(), calls, "no step was needed");
    assert_eq!(sites.get("west").handle.snapshot().status.uid, uid);
}

#[tokio::test(start_paused = true)]
async fn one_site_declares_it_again_and_starts_only_its_own_member() {
    let sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    delete(&sites, &THREE).await;
    sites.until("everything to rest", 20, deleted).await;
    sites.apply(&["west"], &THREE).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(THREE.map(|name| sites.get(name).runtime.running()), [0, 0, 1]);
    assert_eq!(agreed(&sites, "west").reason, "SpecDeleted");
    assert_eq!(sites.net.cluster().births, 1);
}

#[tokio::test(start_paused = true)]
async fn volumes_without_any_record_are_not_begun_over() {
    use std::sync::atomic::Ordering;
    let mut sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    delete(&sites, &THREE).await;
    sites.until("everything to rest", 20, deleted).await;
    for name in THREE {
        let records = &sites.get(name).records;
        *records.stored.lock().unwrap() = (None, 0);
        records.missing.store(true, Ordering::Relaxed);
        sites.restart(name, &THREE).await;
    }
    let refused = |s: &Sites| {
        THREE.iter().all(|name| {
            let reason = s.get(name).handle.snapshot().status.reason.clone();
            reason.is_some_and(|r| r.code == Code::VolumesWithoutRecord && r.site == Some(site(name)))
        })
    };
    sites.until("a refusal with its reason", 20, refused).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(refused(&sites));
    assert_eq!(sites.net.cluster().births, 1);
    assert!(
        Code::VolumesWithoutRecord.remedy().contains("resume")
            && Code::VolumesWithoutRecord.remedy().contains("restore")
    );
}
