//! The simulator is judged too: it must be the same every time, explore something, and see what it is there to see.

use super::etcd::{Answer, Cluster, Loss, Refusal, Request};
use super::history::{faults_of, play};
use super::rng::Rng;
use super::run::{kept_seeds, run};
use crate::id::PeerUrl;

#[test]
fn histories_keep_every_invariant_and_explore_every_rule() {
    let summary = run(1, 300, 2);
    assert_eq!(summary.failed, Vec::<u64>::new(), "replay with quorate-sim --seed N --trace");
    assert_eq!(summary.converged, summary.histories);
    assert_eq!(summary.silent_rules(), Vec::<String>::new(), "these rules never refused anything");
    let enough = |part: u64| part * 10 >= summary.histories * 9;
    assert!(enough(summary.completed_troubled), "{summary:?}");
    assert!(summary.histories >= 300 + kept_seeds().len() as u64);
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [3, 7, 42] {
        let (one, two) = (play(seed, None, true), play(seed, None, true));
        assert_eq!(one.trace, two.trace);
        assert_eq!(one.events, two.events);
        assert!(one.trace.len() > 10);
    }
}

#[test]
fn a_history_without_faults_is_another_one_that_ends_as_wished() {
    let faults = faults_of(5);
    assert!(faults.len() >= 3);
    let calm = play(5, Some(&[]), false);
    assert!(calm.violations.is_empty() && calm.converged, "{:?}", calm.violations);
}

fn url(n: usize) -> PeerUrl {
    PeerUrl(format!("http://m{n}:2380").into())
}

fn three() -> Cluster {
    let members = (0..3).map(|n| (url(n), format!("m{n}").into(), n)).collect();
    let mut cluster = Cluster::born("test", members, 0, Rng::new(1, 1));
    (0..3).for_each(|at| cluster.start(at));
    advance(&mut cluster, 8_000);
    cluster
}

fn advance(cluster: &mut Cluster, ms: u64) {
    for _ in 0..ms / 100 {
        let now = cluster.now() + 100;
        cluster.advance(now);
    }
}

fn call(cluster: &mut Cluster, request: &Request) -> Option<Answer> {
    let leader = cluster.true_leader().unwrap();
    let ticket = cluster.call(leader, request, 7_000, 0);
    cluster.peek(ticket)
}

fn add(n: usize, learner: bool) -> Request {
    Request::Add { url: url(n), learner, name: format!("m{n}").into(), site: n }
}

#[test]
fn a_member_added_as_a_voter_costs_the_quorum_at_once() {
    let mut cluster = three();
    assert_eq!(call(&mut cluster, &add(3, false)), Some(Answer::Done));
    let leader = cluster.true_leader().unwrap();
    let other = (0..3).find(|at| *at != leader).unwrap();
    cluster.crash(other);
    advance(&mut cluster, 3_000);
    assert_eq!(cluster.true_leader(), None, "two of four, although only one of three has failed");

    let mut cluster = three();
    assert_eq!(call(&mut cluster, &add(3, true)), Some(Answer::Done));
    let leader = cluster.true_leader().unwrap();
    cluster.crash((0..3).find(|at| *at != leader).unwrap());
    advance(&mut cluster, 3_000);
    assert!(cluster.true_leader().is_some(), "a learner is in no quorum");
}

#[test]
fn a_second_change_is_dropped_without_a_word() {
    let mut cluster = three();
    let leader = cluster.true_leader().unwrap();
    // The followers are slow: the first change is not yet committed when the second comes.
    (0..3).filter(|at| *at != leader).for_each(|at| cluster.nodes[at].intake = 0);
    let first = cluster.call(leader, &add(3, true), 7_000, 0);
    let second = cluster.call(leader, &Request::Remove(cluster.nodes[(leader + 1) % 3].id), 7_000, 0);
    (0..3).for_each(|at| cluster.nodes[at].intake = usize::MAX);
    advance(&mut cluster, 1_000);
    assert_eq!((cluster.peek(first), cluster.peek(second)), (Some(Answer::Done), None));
}

#[test]
fn an_emptied_voter_that_is_started_again_loses_acknowledged_writes() {
    let mut cluster = three();
    let leader = cluster.true_leader().unwrap();
    let (slow, wiped) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.set_link(leader, slow, false);
    cluster.set_link(slow, leader, false);
    assert_eq!(call(&mut cluster, &Request::Put), Some(Answer::Done));
    // Only leader and one follower hold the write. That follower is emptied, and nobody guards it.
    cluster.crash(leader);
    cluster.wipe(wiped);
    cluster.start(wiped);
    advance(&mut cluster, 5_000);
    assert!(cluster.nodes[wiped].amnesia);
    assert!(
        cluster.losses().iter().any(|loss| matches!(loss, Loss::ElectedWithout { .. })),
        "{:?}",
        cluster.losses()
    );
}

#[test]
fn etcd_promotes_a_dead_learner_and_refuses_adds_with_one_voter_down() {
    let mut cluster = three();
    assert_eq!(call(&mut cluster, &add(3, true)), Some(Answer::Done));
    let learner = cluster.nodes.len() - 1;
    cluster.start(learner);
    advance(&mut cluster, 2_000);
    cluster.crash(learner);
    let id = cluster.nodes[learner].id;
    assert_eq!(call(&mut cluster, &Request::Promote(id)), Some(Answer::Done), "fact 2 of safety.md");
    advance(&mut cluster, 6_000);
    assert_eq!(call(&mut cluster, &Request::Remove(id)), Some(Answer::Done));
    let leader = cluster.true_leader().unwrap();
    cluster.crash((leader + 1) % 3);
    advance(&mut cluster, 6_000);
    assert_eq!(call(&mut cluster, &add(4, true)), Some(Answer::Refused(Refusal::Unhealthy)), "fact 5");
}

#[test]
fn the_url_of_a_removed_member_gets_the_removed_id_within_one_second() {
    let mut cluster = three();
    assert_eq!(call(&mut cluster, &add(3, true)), Some(Answer::Done));
    let id = cluster.nodes.last().unwrap().id;
    assert_eq!(call(&mut cluster, &Request::Remove(id)), Some(Answer::Done));
    assert_eq!(call(&mut cluster, &add(3, true)), Some(Answer::Refused(Refusal::NotFound)));
    advance(&mut cluster, 1_100);
    assert_eq!(call(&mut cluster, &add(3, true)), Some(Answer::Done));
}
