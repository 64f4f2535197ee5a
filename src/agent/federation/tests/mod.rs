//! The loop with fakes: deadlines are conditions, time is paused.

mod abroad;
mod addresses;
mod deletion;
mod leaving;
mod restarts;
mod specs;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abroad::adopting;
use quorate_core::federation::observed::SiteObservation;
use quorate_core::reason::Code;
use world::{PLACEMENT_AFTER_MS, Sites, key, site};

use crate::federation::{Message, Question, Reply};

const THREE: [&str; 3] = ["east", "north", "west"];

#[tokio::test(start_paused = true)]
async fn three_sites_give_birth_once_and_grow_one_by_one() {
    let sites = Sites::start(&THREE).await;
    sites.until("birth", 3, |s| s.net.cluster().voters() == 1).await;
    let took = sites.until("three voters", 25, |s| s.settled(3)).await;
    assert!(took > 10_000, "the rules ask for five seconds between changes: {took}");
    let cluster = sites.net.cluster();
    assert_eq!(cluster.births, 1);
    let kinds: Vec<_> = cluster.calls.iter().map(|call| call.split('(').next().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["AddLearner", "Promote", "AddLearner", "Promote"]);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_born_while_a_declared_site_is_silent() {
    let mut sites = Sites::none();
    sites.net.cut.lock().unwrap().insert(site("west"));
    sites.begin(&THREE).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(sites.net.cluster().births, 0);
    let status = sites.get("east").handle.snapshot().status.clone();
    let reason = status.reason.unwrap();
    assert_eq!((reason.code, reason.site), (Code::WaitingForClusters, Some(site("west"))));
    sites.net.cut.lock().unwrap().clear();
    sites.until("birth", 70, |s| s.net.cluster().births == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_wiped_slot_is_replaced_also_where_the_leader_was() {
    let sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    for name in ["west", "east"] {
        let before: Vec<_> = sites.net.cluster().members.iter().map(|m| m.id).collect();
        sites.get(name).runtime.wipe();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let took = sites.until("three voters again", 40, |s| s.settled(3)).await;
        assert!(took <= 20_000, "{name}: {took}");
        let known = sites.net.cluster().members.iter().filter(|m| before.contains(&m.id)).count();
        assert_eq!(known, 2, "{name}");
    }
    assert_eq!(sites.net.cluster().births, 1);
}

#[tokio::test(start_paused = true)]
async fn peers_are_answered_while_a_call_hangs() {
    let sites = Sites::start(&THREE).await;
    sites.until("birth", 3, |s| s.net.cluster().voters() == 1).await;
    sites.net.cluster().hang = true;
    sites
        .until("a hanging call", 20, |s| s.net.cluster().calls.last().is_some_and(|c| c.ends_with("hangs")))
        .await;
    let began = sites.clock.now_ms();
    let reply = sites.get("east").handle.ask(&site("west"), Question::Record).await;
    assert!(
        matches!(reply, Some(Reply::Record(summary)) if summary.intent.as_ref().is_some_and(|held| held.sent_by_me))
    );
    assert!(sites.clock.now_ms() - began < 100);
    // The outcome is unknown; only the same step follows, and nothing else.
    sites.net.cluster().hang = false;
    sites.until("three voters", 60, |s| s.settled(3)).await;
    let calls = sites.net.cluster().calls.clone();
    let hanging = calls.iter().position(|call| call.ends_with("hangs")).unwrap();
    let after = calls.iter().skip(hanging).find(|call| !call.ends_with("hangs")).unwrap();
    assert_eq!(calls[hanging].strip_suffix(" hangs").unwrap(), after);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_durable_is_not_promised() {
    let sites = Sites::start(&THREE).await;
    for name in ["north", "west"] {
        sites.get(name).records.fail.store(true, Ordering::Relaxed);
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(sites.net.cluster().births, 0, "no vote without a record");
    assert!(
        sites.get("west").metrics.render().contains("quorate_refusals_total{reason=\"RecordNotWritten\"}")
    );
    for name in ["north", "west"] {
        sites.get(name).records.fail.store(false, Ordering::Relaxed);
    }
    sites.until("three voters", 40, |s| s.settled(3)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_record_is_asked_back_and_never_invented() {
    let mut sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    let before = sites.get("west").records.stored.lock().unwrap().0.clone().unwrap();
    // Cut off, it has nobody to ask and says so.
    sites.net.cut.lock().unwrap().insert(site("west"));
    sites.get("west").records.missing.store(true, Ordering::Relaxed);
    sites.restart("west", &THREE).await;
    sites.get("west").records.missing.store(false, Ordering::Relaxed);
    sites.get("west").records.stored.lock().unwrap().0 = None;
    sites.get("west").records.stored.lock().unwrap().1 = 0;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(sites.get("west").records.stored.lock().unwrap().0.is_none());
    let ask = Question::Record;
    let reply = sites.get("west").handle.ask(&site("east"), ask).await;
    assert!(matches!(reply, Some(Reply::Record(summary)) if summary.missing));
    sites.net.cut.lock().unwrap().clear();
    sites.until("the record", 30, |s| s.get("west").records.stored.lock().unwrap().0.is_some()).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    let after = sites.get("west").records.stored.lock().unwrap().0.clone().unwrap();
    assert_eq!((after.uid, after.epoch, after.seq()), (before.uid, before.epoch, before.seq()));
    assert_eq!(after.incarnations[0].id, before.incarnations[0].id, "its etcd runs on");
}

#[tokio::test(start_paused = true)]
async fn a_site_that_forgot_everything_does_not_begin_anew() {
    let mut sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    *sites.get("west").records.stored.lock().unwrap() = (None, 0);
    sites.restart("west", &THREE).await;
    sites.until("NoRecord", 10, |s| s.get("west").handle.snapshot().missing.is_some()).await;
    sites.until("the record", 30, |s| s.get("west").records.stored.lock().unwrap().0.is_some()).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    assert_eq!(sites.net.cluster().births, 1);
}

#[tokio::test(start_paused = true)]
async fn an_agent_comes_back_and_finds_its_members() {
    let mut sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    let calls = sites.net.cluster().calls.len();
    sites.restart("east", &THREE).await;
    sites.until("three voters", 10, |s| s.settled(3)).await;
    assert_eq!(sites.net.cluster().calls.len(), calls);
}

#[tokio::test(start_paused = true)]
async fn strangers_are_neither_heard_nor_answered() {
    let sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    let east = &sites.get("east").handle;
    assert!(matches!(east.ask(&site("south"), Question::Record).await, Some(Reply::NotAMember)));
    let observation = Arc::new(SiteObservation::empty(site("south")));
    east.tell(Message::View { site: site("south"), observation, age_ms: 0, arrival: 1 }).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let snapshot = east.snapshot();
    assert!(snapshot.view.as_ref().unwrap().site(&site("south")).is_none());
    assert!(sites.get("east").metrics.render().contains("reason=\"NotAMember\"} 2"));
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_is_gone_stops_nothing() {
    let sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    sites.get("west").handle.tell(Message::Spec(None)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(sites.net.cluster().voters(), 3);
    let status = sites.get("east").handle.snapshot().status.clone();
    let agreed =
        status.conditions.iter().find(|c| c.kind == quorate_core::condition::ConditionType::SpecAgreed);
    assert_eq!(agreed.unwrap().reason, "SpecAbsent");
    assert_eq!(status.arithmetic.alive, 3);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_agent_is_alone_lets_another_one_execute_and_only_once() {
    let sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    let moves =
        |s: &Sites| s.net.cluster().calls.iter().filter(|call| call.starts_with("MoveLeader")).count();
    // A step is wished (the lost slot is replaced), but the agent beside the leader hears nobody any more.
    sites.get("west").runtime.wipe();
    sites
        .until("the loss is known", 5, |s| {
            s.get("east").handle.snapshot().status.members.iter().any(|m| m.state == "dead")
        })
        .await;
    sites.net.cut.lock().unwrap().insert(site("east"));
    let took = sites.until("a moved leader", 60, |s| moves(s) == 1).await;
    assert!(took >= 20_000, "three operation deadlines: {took}");
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(moves(&sites), 1);
    let changes = sites.net.cluster().calls.iter().filter(|call| call.starts_with("Remove")).count();
    assert_eq!(changes, 0, "nothing is changed without the others' acknowledgement");
}

#[tokio::test(start_paused = true)]
async fn an_older_view_that_comes_later_changes_nothing() {
    let sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    let east = &sites.get("east").handle;
    // It would say that west holds no spec at all.
    let observation = Arc::new(SiteObservation::empty(site("west")));
    east.tell(Message::View { site: site("west"), observation, age_ms: 0, arrival: 1 }).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let status = east.snapshot().status.clone();
    let west = status.sites.iter().find(|s| s.name == "west").unwrap();
    assert!(west.spec_digest.is_some());
}

#[tokio::test(start_paused = true)]
async fn what_was_said_before_the_manifest_came_is_heard_afterwards() {
    let mut sites = Sites::start(&["east", "north"]).await;
    // The same views are not sent again: only what was kept can tell of them.
    tokio::time::sleep(Duration::from_secs(10)).await;
    sites.join_late("west", &THREE).await;
    sites.until("three voters", 40, |s| s.settled(3)).await;
}

#[tokio::test(start_paused = true)]
async fn calm_sites_never_look_silent_and_say_little() {
    let sites = Sites::start(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let oldest = std::cell::Cell::new(0);
    for _ in 0..3_000 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let snapshot = sites.get("east").handle.snapshot();
        assert_eq!(snapshot.status.arithmetic.alive, 3);
        let ages = snapshot.view.iter().flat_map(|view| &view.sites).filter_map(|site| site.age_ms);
        oldest.set(ages.max().unwrap().max(oldest.get()));
    }
    assert!(oldest.get() < 4_500, "{} of 5000 ms", oldest.get());
}

#[tokio::test(start_paused = true)]
async fn an_old_copy_of_the_record_is_seen_for_what_it_is() {
    let mut sites = Sites::start(&THREE).await;
    sites.until("birth", 3, |s| s.net.cluster().voters() == 1).await;
    let old = sites.get("west").records.stored.lock().unwrap().0.clone();
    sites.until("three voters", 25, |s| s.settled(3)).await;
    let newest = sites.get("west").records.stored.lock().unwrap().0.clone().unwrap();
    sites.get("west").records.stored.lock().unwrap().0 = old;
    sites.restart("west", &THREE).await;
    sites.until("NoRecord", 10, |s| s.get("west").handle.snapshot().missing.is_some()).await;
    let seq = |s: &Sites| s.get("west").records.stored.lock().unwrap().0.as_ref().unwrap().seq();
    sites.until("the record", 30, |s| seq(s) == newest.seq()).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    assert_eq!(sites.net.cluster().births, 1);
}

#[tokio::test(start_paused = true)]
async fn timers_are_born_with_the_measured_distance_and_follow_a_steady_change() {
    let mut sites = Sites::none();
    sites.net.distance_us.store(110_500, Ordering::Relaxed);
    sites.begin(&THREE).await;
    sites.until("three voters", 30, |s| s.settled(3)).await;
    let granted = |s: &Sites| THREE.iter().flat_map(|name| s.get(name).runtime.timers()).collect::<Vec<_>>();
    let timing = |s: &Sites, name: &str| {
        s.get(name).records.stored.lock().unwrap().0.as_ref().unwrap().timing().unwrap()
    };
    assert_eq!(granted(&sites), [(150, 2_500); 3]);
    assert_eq!(timing(&sites, "west").rtt_ms, 110);
    let before = sites.get("east").handle.snapshot().status.clone();
    assert_eq!(before.timing.unwrap().election_ms, 2_500);
    // Shorter than asked for, and gone again: nothing follows.
    sites.net.distance_us.store(40_000, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(PLACEMENT_AFTER_MS - 10_000)).await;
    sites.net.distance_us.store(110_500, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(timing(&sites, "east").election_ms, 2_500);
    sites.net.distance_us.store(40_000, Ordering::Relaxed);
    let same = |s: &Sites| THREE.iter().all(|name| timing(s, name).election_ms == 1_000);
    let took = sites.until("other timers in all records", 300, same).await;
    assert!(took >= PLACEMENT_AFTER_MS, "{took}");
    let after = sites.get("east").handle.snapshot().status.clone();
    assert_eq!(after.generation, before.generation.next(), "the same spec once more");
    assert_eq!(after.digest, before.digest);
}

/// An etcd that was there before: no seed, one learner after the other, leadership off the foreign members before they go,
/// and the foreign CA is believed until the spec no longer names it.
#[tokio::test(start_paused = true)]
async fn a_foreign_etcd_is_taken_over_and_its_members_leave_last() {
    for voters in [1, 3] {
        let mut sites = Sites::none();
        sites.net.cluster().abroad(voters);
        // West speaks for it, although it neither coordinates nor comes first.
        sites.begin_with(&THREE, &adopting(&THREE, "west")).await;
        let ours = |s: &Sites| s.net.cluster().members.iter().all(|m| m.peer_url.slot(&key().name).is_some());
        sites.until("three voters of ours", 120, |s| s.settled(3) && ours(s)).await;
        let cluster = sites.net.cluster().calls.clone();
        assert_eq!(sites.net.cluster().births, 1, "no seed was started");
        let kinds: Vec<&str> = cluster.iter().map(|call| call.split('(').next().unwrap()).collect();
        let last = if voters == 1 {
            ["Promote", "MoveLeader", "Remove"].as_slice()
        } else {
            ["MoveLeader", "Promote", "Remove", "Remove", "Remove"].as_slice()
        };
        let first = ["AddLearner", "Promote", "AddLearner", "Promote", "AddLearner"].as_slice();
        assert_eq!(kinds, [first, last].concat());
        let trusting =
            |s: &Sites| THREE.iter().filter(|n| s.get(n).adoption.trusted.lock().unwrap().is_some()).count();
        assert_eq!(trusting(&sites), 3);
        sites.apply(&THREE, &THREE).await;
        sites.until("the CA of the old peers to be forgotten", 60, |s| trusting(s) == 0).await;
        assert!(sites.settled(3));
    }
}

/// What leads to another etcd changes nothing, and says so.
#[tokio::test(start_paused = true)]
async fn another_etcd_than_the_declared_one_is_left_alone() {
    let mut sites = Sites::none();
    sites.net.cluster().abroad(1);
    sites.net.cluster().births = 2;
    sites.begin_with(&THREE, &adopting(&THREE, "east")).await;
    let says = |s: &Sites| s.get("east").handle.snapshot().status.reason.as_ref().map(|r| r.code);
    sites.until("the reason", 30, |s| says(s) == Some(Code::AdoptOtherCluster)).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(sites.net.cluster().calls.is_empty());
    sites.net.cluster().births = 1;
    sites.until("three voters", 120, |s| s.settled(3)).await;
}
