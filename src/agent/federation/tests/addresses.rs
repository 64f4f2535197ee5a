//! Another peer URL for a voter: both are served, everybody reaches the new one, the update, and the old one goes.

use std::time::Duration;

use quorate_core::id::PeerUrl;
use quorate_core::reason::Code;

use super::world::{Sites, site};

const THREE: [&str; 3] = ["east", "north", "west"];

async fn settled() -> Sites {
    let sites = Sites::start(&THREE).await;
    sites.net.cluster().moves = true;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    sites
}

fn new_url(name: &str) -> PeerUrl {
    PeerUrl(format!("https://main-{name}-0.new.test:2680").into())
}

fn listed(sites: &Sites, name: &str) -> PeerUrl {
    let start = format!("https://main-{name}-0.");
    let cluster = sites.net.cluster();
    cluster.members.iter().map(|m| m.peer_url.clone()).find(|url| url.0.starts_with(&start)).unwrap()
}

fn updates(sites: &Sites) -> usize {
    sites.net.cluster().calls.iter().filter(|call| call.starts_with("Update")).count()
}

/// A follower's, and then the leader's, which hands leadership over before each of its restarts.
#[tokio::test(start_paused = true)]
async fn served_beside_the_old_one_then_listed_then_alone() {
    for name in ["west", "east"] {
        let sites = settled().await;
        let ids: Vec<_> = sites.net.cluster().members.iter().map(|m| m.id).collect();
        *sites.get(name).runtime.configured.lock().unwrap() = ("new.test".to_owned(), 2680);
        sites.until("the new URL in the list", 120, |s| listed(s, name) == new_url(name)).await;
        let both = format!("{name} 100 1000 [2380, 2680]");
        assert_eq!(
            sites.net.cluster().restarts,
            std::slice::from_ref(&both),
            "it listens on both before the update"
        );
        let alone = format!("{name} 100 1000");
        sites
            .until("the new port alone", 120, |s| s.net.cluster().restarts == [both.clone(), alone.clone()])
            .await;
        sites.until("calm", 60, |s| s.settled(3)).await;
        assert_eq!(updates(&sites), 1);
        let after: Vec<_> = sites.net.cluster().members.iter().map(|m| m.id).collect();
        assert_eq!(after, ids, "nobody was replaced");
        assert_eq!(sites.net.cluster().fewest, Some(2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_url_that_somebody_does_not_reach_is_not_listed() {
    let mut sites = settled().await;
    sites.net.unreachable.lock().unwrap().insert(new_url("west"));
    *sites.get("west").runtime.configured.lock().unwrap() = ("new.test".to_owned(), 2680);
    let waits = |s: &Sites| {
        let status = &s.get("east").handle.snapshot().status;
        status.reason.as_ref().is_some_and(|reason| reason.code == Code::UpdateUnproven)
            || status.decision.contains("UpdateUnproven")
    };
    sites.until("the reason", 60, waits).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(updates(&sites), 0);
    // An agent that comes back goes on with what was served.
    sites.restart("west", &THREE).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    sites.net.unreachable.lock().unwrap().clear();
    sites.until("the new URL in the list", 60, |s| listed(s, "west") == new_url("west")).await;
    sites.until("calm", 120, |s| s.settled(3)).await;
    assert_eq!(updates(&sites), 1);
    let slots = sites.net.cluster().restarts.len();
    assert_eq!(slots, 2, "{:?} at {}", sites.net.cluster().restarts, site("west"));
}
