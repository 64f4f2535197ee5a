//! C. Partitions and long links.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_core::membership::quorum::Arithmetic;
use quorate_core::timing::Timing;
use quorate_e2e::net::Traffic;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome, on_sites};
use quorate_e2e::wan::Quality;

use crate::stage::{FOUR, QUIET, Stage, THREE};

pub(crate) const CASES: &[Case] = &[
    Case { name: "s38_two_sites", minors: ALL, short: Some(Minor::V3_5), run: s38 },
    Case { name: "s39_a_domain_and_one_more_member", minors: ALL, short: None, run: s39 },
    Case { name: "s40_leader_hears_nothing", minors: ALL, short: None, run: s40 },
    Case { name: "s41_one_link_blackholed", minors: ALL, short: Some(Minor::V3_6), run: s41 },
    Case { name: "s42_timers_for_long_links", minors: ALL, short: None, run: s42 },
    Case { name: "s46_large_database_over_a_slow_link", minors: SNAPSHOTS, short: None, run: s46 },
];

/// etcd 3.5 keeps 100 000 entries before it makes a snapshot: a joiner of such a small cluster never needs one.
const SNAPSHOTS: &[Minor] = &[Minor::V3_6, Minor::V3_7];

/// S38: two sites. The loss of the larger one stops writes; the status says so before, and nothing is chosen after.
fn s38(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &["east", "west"], &[], |field| async move {
        let spec = field.spec(&["east", "west"], &["members: 3"]);
        let stage = Stage::with(field, &spec, 3).await?;
        let layout = ["east", "east", "west"];
        stage.settled(&layout).await?;
        stage
            .said(&[
                "east: QuorumAtRisk=True",
                "the loss of site east would stop writes",
                "(sites at risk: east)",
            ])
            .await?;
        let (members, before) = (stage.field.members(), stage.witness.calls().await);
        stage.kill("east").await?;
        stage.field.watch.from_now();
        stage.said(&["west: Quorate=False QuorumLost"]).await?;
        stage.said(&["west:", "I11 QuorumLost"]).await?;
        stage.witness.stays_untouched(&before, QUIET).await?;
        ensure!(stage.etcds("west").len() == 1, "the survivor does not run as before");
        stage.start("east").await?;
        stage.settled(&layout).await?;
        ensure!(stage.field.members() == members, "members were replaced");
        stage.witness.untouched_since(&before).await?;
        stage.end(&layout, -1).await
    })
}

/// Voters by domain, and the room that is left after the heaviest of them (safety.md 2.3): one more member may be lost
/// where that is above zero.
const LAYOUTS: [(&[usize], i64); 9] = [
    (&[1, 1, 1], 0),
    (&[2, 2, 1], 0),
    (&[1, 1, 1, 1, 1], 1),
    (&[3, 2, 2], 0),
    (&[2, 2, 2, 1], 1),
    (&[3, 3, 3], 1),
    (&[2, 1], -1),
    (&[3, 2], -1),
    (&[1, 1], -1),
];

/// S39: five voters in three sites survive the loss of a site, and nothing more. The status never promises more.
fn s39(minor: Minor) -> Result<Outcome> {
    for (split, margin) in LAYOUTS {
        let (n, heaviest) = (split.iter().sum::<usize>(), split.iter().max().copied().unwrap_or(0));
        let left = Arithmetic::new(n, n - heaviest).margin();
        ensure!(left == margin, "{split:?}: {left} is left, not {margin}");
    }
    on_sites(minor, &THREE, &[], |field| async move {
        let clusters = ["east, members: 2", "west, members: 2", "north, members: 1"];
        let spec = field.spec(&clusters, &[]);
        let stage = Stage::with(field, &spec, 5).await?;
        let layout = ["east", "east", "west", "west", "north"];
        stage.settled(&layout).await?;
        let (members, before) = (stage.field.members(), stage.witness.calls().await);
        stage
            .executing("room for two members or any one site", |status| {
                let now = &status.arithmetic;
                (now.can_lose_members, now.can_lose_clusters.len()) == (2, 3)
            })
            .await?;
        stage.kill("west").await?;
        stage
            .executing("no room at all", |status| {
                let now = &status.arithmetic;
                // The site that is lost already could be lost again at no cost.
                let spare = now.can_lose_clusters.iter().all(|site| site == "west");
                (now.alive, now.margin, now.can_lose_members) == (3, 0, 0) && spare
            })
            .await?;
        stage.said(&["QuorumAtRisk=True", "would stop writes"]).await?;
        stage.writes().await?;
        stage.start("west").await?;
        stage.settled(&layout).await?;
        ensure!(stage.field.members() == members, "members were replaced");
        stage.witness.untouched_since(&before).await?;
        stage.end(&layout, 0).await
    })
}

/// S40: the leader can send and hears nothing. etcd copes, and nobody takes it for dead.
fn s40(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, _, other] = stage.cast().await?;
        let (members, deaf) = (stage.field.members(), stage.member(&leader)?);
        let before = stage.witness.calls().await;
        stage.field.watch.from_now();
        stage.field.net()?.deafen(&leader)?;
        stage
            .executing("another leader, to whom the deaf one is unknown", |status| {
                status.observed_from != leader
                    && status.members.iter().any(|m| m.id == deaf && m.state == "unknown")
            })
            .await?;
        stage.said(&[&format!("{other}: PeersReachable=False"), &leader]).await?;
        stage.writes().await?;
        ensure!(stage.field.net()?.dropped(&leader)? > 0, "nothing was dropped");
        stage.field.net()?.heal()?;
        stage.settled(&THREE).await?;
        ensure!(stage.field.members() == members, "a member was replaced");
        stage.witness.untouched_since(&before).await?;
        stage.end(&THREE, 0).await
    })
}

/// S41: leader and one follower do not reach each other, the third sees all. Nobody is removed and nothing is added,
/// although etcd would do it; the status says what is wrong, and it heals.
fn s41(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, follower, third] = stage.cast().await?;
        let id = stage.member(&follower)?;
        let before = stage.witness.calls().await;
        stage.field.watch.from_now();
        stage.field.net()?.cut(&leader, &follower, Traffic::All)?;
        stage.said(&[&format!("{leader}: PeersReachable=False NonTransitivePartition"), &follower]).await?;
        stage
            .executing("the follower to be unknown", |status| {
                status.members.iter().any(|m| m.id == id && m.state == "unknown")
            })
            .await?;
        // What is wished now has to wait for the link.
        stage.wish(&[&leader, &third, "south"])?;
        stage.said(&["I3 LostMemberUnconfirmed", &id, &follower]).await?;
        stage.writes().await?;
        ensure!(stage.field.net()?.dropped(&follower)? > 0, "nothing was dropped");
        stage.witness.untouched_since(&before).await?;
        stage.field.net()?.heal()?;
        let wished = [leader.as_str(), third.as_str(), "south"];
        stage.settled(&wished).await?;
        stage.end(&wished, 0).await
    })
}

/// Round-trip time, heartbeat and election timeout, ms (networking.md 7).
const TIMERS: [(u32, u32, u32); 5] =
    [(10, 100, 1_000), (50, 100, 1_000), (100, 150, 2_000), (250, 300, 5_000), (400, 500, 8_000)];

/// S42: long links. Every member is started with timers for the distance that was measured, and a site that is too far
/// away for elections gets no voter.
fn s42(minor: Minor) -> Result<Outcome> {
    const LONG: Duration = Duration::from_millis(110);
    const TOO_LONG: Duration = Duration::from_millis(600);
    for (rtt, heartbeat, election) in TIMERS {
        let timing = Timing::from_rtt_us(rtt * 1_000);
        let found = (timing.heartbeat_ms, timing.election_ms);
        ensure!(found == (heartbeat, election), "{rtt} ms: {found:?}");
    }
    on_sites(minor, &FOUR, &[], |field| async move {
        let wan = field.stretch()?;
        for (at, one) in FOUR.iter().enumerate() {
            for other in &FOUR[at + 1..] {
                wan.set_rtt(one, other, if *other == "south" { TOO_LONG } else { LONG });
            }
        }
        let stage = Stage::raise(field, &THREE).await?;
        let statuses = stage.field.watch.statuses();
        let told =
            statuses.values().find_map(|status| status.timing.clone()).context("no timing in a status")?;
        let measured = told.rtt_ms.context("no distance in a status")?;
        // What is in the way of a busy machine comes on top.
        ensure!((110..=300).contains(&measured), "{LONG:?} were measured as {measured} ms");
        let due = Timing::from_rtt_us(measured * 1_000);
        ensure!(
            (told.heartbeat_ms, told.election_ms) == (due.heartbeat_ms, due.election_ms),
            "{told:?}, not {due:?}"
        );
        let rendered = |flag: &str, due: u32| -> Result<()> {
            for start in stage.witness.starts()? {
                let found = start.process.flag(flag);
                ensure!(found == Some(due.to_string().as_str()), "--{flag} is {found:?}, not {due}");
            }
            Ok(())
        };
        rendered("heartbeat-interval", due.heartbeat_ms)?;
        rendered("election-timeout", due.election_ms)?;
        let (term, before) = (stage.term().await?, stage.witness.calls().await);
        stage.field.watch.from_now();
        let wished = ["east", "north", "south"];
        stage.wish(&wished)?;
        stage.said(&["TooFar", "south"]).await?;
        stage.writes().await?;
        let promoted = stage.witness.calls().await.since(&before).answered("MemberPromote", "OK");
        ensure!(promoted == 0, "a voter was made where no election can end");
        for site in THREE {
            wan.set_rtt(site, "south", LONG);
        }
        stage.settled(&wished).await?;
        let moved = stage.witness.calls().await.since(&before).answered("MoveLeader", "OK");
        let now = stage.term().await?;
        ensure!(now <= term + moved, "elections went on: term {term} became {now} by {moved} moves");
        stage.end(&wished, 0).await
    })
}

/// S46: a joiner that needs the whole database over a slow link. It is promoted when it has it, and nobody's leadership
/// suffers meanwhile.
fn s46(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let wan = field.stretch()?;
        let stage = Stage::raise(field, &THREE).await?;
        let leader = stage.field.leader().await?;
        let client = stage.client(&leader).await?;
        // More than etcd's 10 000 entries between snapshots, so that the log alone does not suffice.
        let puts = |lane: usize| {
            let client = client.clone();
            async move {
                for number in 0..400 {
                    client.put(&format!("big/{lane}/{number}"), vec![b'x'; 3_000]).await?;
                }
                anyhow::Ok(())
            }
        };
        futures::future::try_join_all((0..32).map(puts)).await?;
        let size = client.status().await?.db_size;
        ensure!(size > 30_000_000, "the database has only {size} bytes");
        let slow =
            Quality { delay: Duration::from_millis(20), bandwidth: Some(1_500_000), ..Quality::default() };
        for site in THREE {
            wan.set(site, "south", slow);
        }
        let (term, before) = (stage.term().await?, stage.witness.calls().await);
        stage.field.watch.from_now();
        let wished: Vec<&str> = THREE
            .into_iter()
            .filter(|site| *site != leader)
            .take(1)
            .chain([leader.as_str(), "south"])
            .collect();
        stage.wish(&wished)?;
        stage.said(&["I9 Learner", "south"]).await?;
        stage.settled(&wished).await?;
        ensure!(
            stage.witness.etcd_said("applied snapshot")
                || stage.witness.etcd_said("received and saved database snapshot"),
            "no snapshot was sent"
        );
        let calls = stage.witness.calls().await.since(&before);
        ensure!(calls.answered("MemberAdd", "OK") == 1, "more than one attempt: {calls:?}");
        let moved = calls.answered("MoveLeader", "OK");
        ensure!(
            stage.term().await? <= term + moved,
            "an election went on: term {term} became {}",
            stage.term().await?
        );
        stage.end(&wished, 0).await
    })
}
