//! Sites that are taken out of the spec, and come back.

use std::time::Duration;

use quorate_core::condition::{ConditionStatus, ConditionType, Status};
use quorate_core::reason::Code;

use super::world::{Sites, manifest_without, site};

const THREE: [&str; 3] = ["east", "north", "west"];
const SWAPPED: [&str; 3] = ["east", "north", "south"];
const ALL: [&str; 4] = ["east", "north", "south", "west"];

fn status(sites: &Sites, name: &str) -> Status {
    sites.get(name).handle.snapshot().status.clone()
}

/// Nothing of the federation runs there, and the site says why.
fn retired(sites: &Sites, name: &str) -> bool {
    status(sites, name).reason.is_some_and(|reason| reason.code == Code::Retired)
        && sites.get(name).runtime.running() == 0
}

/// These sites hold the only voters, and miss nobody.
fn only(sites: &Sites, names: &[&str]) -> bool {
    names.iter().all(|name| {
        let status = status(sites, name);
        let mut members: Vec<_> = status.members.iter().map(|m| m.site.as_str()).collect();
        members.sort_unstable();
        let heard = |c: &quorate_core::condition::Condition| {
            c.kind == ConditionType::PeersReachable && c.status == ConditionStatus::True
        };
        let known: Vec<_> = status.sites.iter().map(|s| s.name.as_str()).collect();
        members == names && known == names && status.conditions.iter().any(heard) && status.plan.is_empty()
    })
}

async fn of_three_with_south() -> Sites {
    let mut sites = Sites::start(&THREE).await;
    sites.net.cluster().moves = true;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    sites.spare("south").await;
    sites
}

#[tokio::test(start_paused = true)]
async fn a_site_is_swapped_and_leaves_nothing_running() {
    let sites = of_three_with_south().await;
    sites.apply(&ALL, &SWAPPED).await;
    sites.until("south for west", 60, |s| only(s, &SWAPPED) && retired(s, "west")).await;
    assert_eq!(status(&sites, "west").generation.0, 2);
    assert_eq!(sites.net.cluster().births, 1);
    let kinds: Vec<_> =
        sites.net.cluster().calls.iter().map(|c| c.split('(').next().unwrap().to_owned()).collect();
    assert_eq!(kinds[4..], ["AddLearner", "Promote", "Remove"]);
    // And brought back: a new life, although the old word was that it is out.
    sites.apply(&ALL, &THREE).await;
    sites.until("west for south", 60, |s| only(s, &THREE) && retired(s, "south")).await;
    assert_eq!(status(&sites, "west").generation.0, 3);
    let record = sites.get("west").records.stored.lock().unwrap().0.clone().unwrap();
    assert_eq!((record.retired, record.incarnations.len()), (None, 2));
}

#[tokio::test(start_paused = true)]
async fn the_site_that_leaves_may_lead_and_may_hold_any_manifest_or_none() {
    let sites = of_three_with_south().await;
    let leader = status(&sites, "north").executor.unwrap();
    assert_eq!(leader, "east");
    // East keeps the manifest that names it.
    sites.apply(&["north", "south", "west"], &["north", "south", "west"]).await;
    sites.until("south for east", 90, |s| only(s, &["north", "south", "west"]) && retired(s, "east")).await;
}

#[tokio::test(start_paused = true)]
async fn a_site_that_was_away_is_told_and_archives_its_old_directory() {
    let mut sites = of_three_with_south().await;
    let west = sites.off("west");
    // Silence proves no death: a person says that its data are not to be waited for.
    let id = west.records.stored.lock().unwrap().0.as_ref().unwrap().incarnations[0].member.unwrap();
    for name in ["east", "north", "south"] {
        let declared = manifest_without(&SWAPPED, id);
        sites.get(name).handle.tell(crate::federation::Message::Spec(Some(declared))).await;
    }
    sites.until("south for west", 90, |s| only(s, &SWAPPED)).await;
    sites.on("west", west).await;
    sites.apply(&["west"], &THREE).await;
    sites.until("west hears of it", 20, |s| retired(s, "west")).await;
    let record = sites.get("west").records.stored.lock().unwrap().0.clone().unwrap();
    assert_eq!(record.retired.map(|g| g.0), Some(2));
    assert_eq!(sites.get("west").runtime.kept(), ["removed"]);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(only(&sites, &SWAPPED), "its old manifest changes nothing");
    assert!(retired(&sites, "west"));
}

#[tokio::test(start_paused = true)]
async fn a_stranger_cannot_retire_a_site() {
    use quorate_core::id::Generation;
    use quorate_core::intent::retirement::Retired;
    let sites = of_three_with_south().await;
    let record = sites.get("west").records.stored.lock().unwrap().0.clone().unwrap();
    let told = Retired {
        uid: record.uid.unwrap(),
        epoch: record.epoch,
        generation: Generation(9),
        removed: vec![record.incarnations[0].member.unwrap()],
    };
    let message = crate::federation::Message::Retired { site: site("south"), told };
    sites.get("west").handle.tell(message).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(*sites.get("west").records.stored.lock().unwrap().0.as_ref().unwrap(), record);
    assert!(sites.settled_at(&THREE, 3));
}

#[tokio::test(start_paused = true)]
async fn everything_moves_to_two_other_sites_and_no_second_cluster_is_born() {
    let mut sites = Sites::start(&["east", "west"]).await;
    sites.net.cluster().moves = true;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    for name in ["north", "south"] {
        sites.spare(name).await;
    }
    // The new sites have the manifest long before the old ones.
    sites.apply(&["north", "south"], &["north", "south"]).await;
    sites
        .until("north knows that the name is taken", 20, |s| {
            status(s, "north").reason.is_some_and(|r| r.code == Code::NameTaken && r.site.is_some())
        })
        .await;
    assert_eq!(sites.net.cluster().births, 1);
    sites.apply(&["east", "west"], &["north", "south"]).await;
    let there = |s: &Sites| {
        let status = status(s, "south");
        let here = |m: &quorate_core::condition::MemberStatus| m.site == "north" || m.site == "south";
        status.members.len() == 3 && status.members.iter().all(here) && status.plan.is_empty()
    };
    sites.until("all of it is there", 120, |s| there(s) && retired(s, "east") && retired(s, "west")).await;
    assert_eq!(sites.net.cluster().births, 1);
    let uid = |name: &str| status(&sites, name).uid;
    assert_eq!(uid("north"), uid("east"));
}
