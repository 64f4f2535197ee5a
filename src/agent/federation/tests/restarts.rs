//! Planned restarts: one voter at a time, in the order that the timers ask for, the leader last and not as leader.

use std::sync::atomic::Ordering;
use std::time::Duration;

use quorate_core::condition::{ConditionStatus, ConditionType};
use quorate_core::membership::disruption::TOKEN_MS;

use super::world::{PLACEMENT_AFTER_MS, Sites};

const THREE: [&str; 3] = ["east", "north", "west"];
/// A new measurement has to be there for so long; five restarts and two moves follow.
const LIMIT_S: u64 = PLACEMENT_AFTER_MS / 1_000 + 300;

fn timers(sites: &Sites) -> Vec<(u32, u32)> {
    THREE.iter().flat_map(|name| sites.get(name).runtime.timers()).collect()
}

async fn near() -> Sites {
    let sites = Sites::start(&THREE).await;
    sites.net.cluster().moves = true;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    assert_eq!(timers(&sites), [(100, 1_000); 3]);
    sites
}

/// The new timers of each restart, in turn, without where it was.
fn course(sites: &Sites) -> Vec<String> {
    let cluster = sites.net.cluster();
    let words = |restart: &String| restart.split_once(' ').map(|(_, timers)| timers.to_owned()).unwrap();
    cluster.restarts.iter().map(words).collect()
}

#[tokio::test(start_paused = true)]
async fn longer_timers_are_a_longer_election_first_and_shorter_ones_a_shorter_heartbeat_first() {
    let sites = near().await;
    sites.net.distance_us.store(250_500, Ordering::Relaxed);
    sites.until("longer timers", LIMIT_S, |s| timers(s) == [(300, 5_000); 3]).await;
    // Both followers, then the one that led: nobody is less patient by now.
    let up = ["100 5000", "100 5000", "300 5000", "300 5000", "300 5000"];
    assert_eq!(course(&sites), up, "{:?}", sites.net.cluster().restarts);
    sites.until("calm", 60, |s| s.settled(3)).await;

    sites.net.cluster().restarts.clear();
    sites.net.distance_us.store(20_000, Ordering::Relaxed);
    sites.until("shorter timers", LIMIT_S, |s| timers(s) == [(100, 1_000); 3]).await;
    let down = ["100 5000", "100 5000", "100 1000", "100 1000", "100 1000"];
    assert_eq!(course(&sites), down, "{:?}", sites.net.cluster().restarts);
    assert_eq!(sites.net.cluster().fewest, Some(2), "never two at once");
    sites.until("calm", 60, |s| s.settled(3)).await;
    let status = sites.get("east").handle.snapshot().status.clone();
    let updated = status.conditions.iter().find(|c| c.kind == ConditionType::AllMembersUpdated).unwrap();
    assert_eq!(updated.status, ConditionStatus::True, "{updated:?}");
}

#[tokio::test(start_paused = true)]
async fn agents_that_come_back_go_on_from_what_members_run_with() {
    let mut sites = near().await;
    sites.net.distance_us.store(250_500, Ordering::Relaxed);
    let restarted = |n: usize| move |s: &Sites| s.net.cluster().restarts.len() == n;
    sites.until("the first restart", LIMIT_S, restarted(1)).await;
    // The supervisor goes on with what it was told.
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Whoever executes and whoever is being restarted: a new one knows of no token, and waits for as long as one lives.
    let began = sites.clock.now_ms();
    for name in THREE {
        sites.restart(name, &THREE).await;
    }
    sites.until("the second restart", 120, restarted(2)).await;
    assert!(sites.clock.now_ms() - began >= TOKEN_MS);
    sites.until("longer timers", LIMIT_S, |s| timers(s) == [(300, 5_000); 3]).await;
    assert_eq!(course(&sites).len(), 5);
    assert_eq!(sites.net.cluster().fewest, Some(2));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_restarted_while_a_voter_is_missed() {
    let mut sites = near().await;
    sites.net.distance_us.store(250_500, Ordering::Relaxed);
    sites.until("the first restart", LIMIT_S, |s| s.net.cluster().restarts.len() == 1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    // The one that does not lead and was not restarted yet.
    let first = sites.net.cluster().restarts[0].clone();
    let lost = if first.starts_with("west") { "north" } else { "west" };
    let off = sites.off(lost);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(sites.net.cluster().restarts.len(), 1);
    let status = sites.get("east").handle.snapshot().status.clone();
    let updated = status.conditions.iter().find(|c| c.kind == ConditionType::AllMembersUpdated).unwrap();
    assert_eq!(updated.reason, "RestartPending");
    sites.on(lost, off).await;
    sites.apply(&[lost], &THREE).await;
    sites.until("longer timers", LIMIT_S, |s| timers(s) == [(300, 5_000); 3]).await;
    assert_eq!(sites.net.cluster().fewest, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_single_voter_pauses_and_says_so() {
    let mut sites = Sites::none();
    sites.spare("east").await;
    sites.single("east", "").await;
    sites.until("one voter", 60, |s| s.settled(1)).await;
    sites.single("east", "etcd: {heartbeatMs: 200, electionMs: 3000}").await;
    sites.until("other timers", 60, |s| s.get("east").runtime.timers() == [(200, 3_000)]).await;
    assert_eq!(sites.net.cluster().restarts, ["east leads 200 3000"]);
    let snapshot = sites.get("east").handle.snapshot();
    let told =
        snapshot.events.list().iter().any(|e| e.kind == "Restarting" && e.text.contains("writes pause"));
    assert!(told, "{:?}", snapshot.events);
}
