//! B. Add, promote, remove.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::mesh::NAMESPACE;
use quorate_cli::demo::process::{Kind, Process};
use quorate_cli::demo::socket;
use quorate_cli::demo::watch::member_ids;
use quorate_e2e::field::FEDERATION;
use quorate_e2e::net::Traffic;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome, on_sites};
use quorate_link::clock::Clock;
use quorate_link::etcd::{Refused, Unknown};
use rustix::process::Signal;

use crate::raw::{Raw, on_raw, refused, unknown};
use crate::stage::{FOUR, QUIET, Stage, THREE, signal};

pub(crate) const CASES: &[Case] = &[
    Case { name: "s09_member_count_is_unequal", minors: ALL, short: None, run: s09 },
    Case { name: "s10_name_of_a_peer_unknown", minors: ALL, short: None, run: s10 },
    Case { name: "s15_voter_added_to_one_member", minors: ALL, short: None, run: s15 },
    Case { name: "s16_unstarted_voter_counts", minors: ALL, short: None, run: s16 },
    Case { name: "s17_dead_learner_promoted", minors: ALL, short: None, run: s17 },
    Case { name: "s19_learner_never_becomes_ready", minors: ALL, short: None, run: s19 },
    Case { name: "s22_healthy_voter_removed_while_another_is_down", minors: ALL, short: None, run: s22 },
    Case { name: "s23_remove_without_quorum", minors: ALL, short: None, run: s23 },
    Case { name: "s25_leader_removed", minors: ALL, short: Some(Minor::V3_6), run: s25 },
    Case { name: "s26_move_leader_misused", minors: ALL, short: None, run: s26 },
    Case { name: "s27_add_directly_after_a_start", minors: ALL, short: None, run: s27 },
    Case { name: "s28_add_while_one_of_three_is_down", minors: ALL, short: None, run: s28 },
    Case { name: "s29_live_member_replaced", minors: ALL, short: None, run: s29 },
    Case { name: "s30_stuck_in_an_even_state", minors: ALL, short: None, run: s30 },
    Case { name: "s32_peer_url_changes", minors: ALL, short: None, run: s32 },
    Case { name: "s37_more_than_one_learner", minors: ALL, short: None, run: s37 },
];

/// Three of four sites, after the third one was exchanged.
const SWAPPED: [&str; 3] = ["east", "north", "south"];

/// S09: an etcd that is started before the others know it ends. quorate starts none before every voter lists it.
fn s09(minor: Minor) -> Result<Outcome> {
    const WORDS: &str = "member count is unequal";
    on_raw(minor, |raw| async move {
        raw.cluster(3).await?;
        raw.start(4, "existing", "raw", &[1, 2, 3, 4])?;
        raw.ended(4).await?;
        ensure!(raw.log(4).contains(WORDS), "it ended for another reason: {}", raw.log(4));
        Ok(())
    })?;
    on_sites(minor, &["east", "west", "north", "south", "middle"], &[], |field| async move {
        let one = field.spec(&["east"], &["members: 1", "allowSingleVoter: true"]);
        let stage = Stage::with(field, &one, 1).await?;
        let five = ["east", "west", "north", "south", "middle"];
        stage.wish(&five)?;
        stage.settled(&five).await?;
        ensure!(!stage.witness.etcd_said(WORDS), "an etcd was started too early");
        let starts = stage.witness.starts()?;
        for start in &starts {
            let own = start.process.flag("name").unwrap_or_default();
            let list = start.process.flag("initial-cluster").unwrap_or_default();
            ensure!(list.contains(own), "{own} was started with {list}");
        }
        stage.end(&five, 0).await
    })
}

/// S10: the joiner does not find another member by name. That is said with the name, nothing is started that would end
/// again, and the join goes on once the name is known.
fn s10(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, other, _] = stage.cast().await?;
        let south = stage.field.site("south")?;
        let name = format!("main-{leader}-0.{leader}.quorate.test");
        let known = std::fs::read_to_string(south.hosts())?;
        let without: Vec<&str> = known.lines().filter(|line| !line.contains(&name)).collect();
        ensure!(without.len() + 1 == known.lines().count(), "{name} is not in the hosts file of south");
        std::fs::write(south.hosts(), without.join("\n") + "\n")?;
        stage.field.watch.from_now();
        let wished = [leader.as_str(), other.as_str(), "south"];
        stage.wish(&wished)?;
        stage.said(&["PeerDNSUnresolved", &name, "south"]).await?;
        ensure!(stage.etcds("south").is_empty(), "etcd was started without the name of the leader");
        stage.writes().await?;
        std::fs::write(south.hosts(), known)?;
        stage.settled(&wished).await?;
        stage.end(&wished, 0).await
    })
}

/// S15: a voter added to a cluster of one takes its quorum away at once, and cannot be taken back. quorate adds learners.
fn s15(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(1).await?;
        let client = raw.client(1).await?;
        client.put("a", "1").await?;
        raw.add_voter(1, 2).await?;
        unknown(client.put("a", "2").await, &[Unknown::ServerTimeout, Unknown::Leader])?;
        let list = client.member_list(false).await?;
        let voter = list.members.iter().find(|m| m.peer_urls == [Raw::url(2)]).context("not added")?;
        ensure!(!voter.is_learner, "etcdctl added a learner");
        let hasty = client.with_deadline(Duration::from_secs(3));
        unknown(hasty.member_remove(voter.id).await, &[Unknown::Deadline, Unknown::ServerTimeout])
    })?;
    on_sites(minor, &THREE, &[], |field| async move {
        let one = field.spec(&["east"], &["members: 1", "allowSingleVoter: true"]);
        let stage = Stage::with(field, &one, 1).await?;
        stage.wish(&THREE)?;
        stage.settled(&THREE).await?;
        stage.witness.passed(&[(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]).await?;
        let calls = stage.witness.calls().await;
        ensure!(calls.answered("MemberAdd", "OK") == 2, "{calls:?}");
        // `end` reads in etcd's own logs that both were learners.
        stage.end(&THREE, 0).await
    })
}

/// S16: an unstarted voter counts in the quorum: with it one failure stops writes. A learner that does not run costs none.
fn s16(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(3).await?;
        let leader = raw.healthy(&[1, 2, 3]).await?;
        raw.add_voter(leader, 4).await?;
        let client = raw.client(leader).await?;
        client.put("a", "1").await?;
        raw.kill(if leader == 2 { 3 } else { 2 }).await?;
        unknown(client.put("a", "2").await, &[Unknown::ServerTimeout, Unknown::Leader, Unknown::Deadline])
    })?;
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, down, _] = stage.cast().await?;
        let old = stage.member(&down)?;
        stage.witness.forget();
        // South is to take a voter's place, and its learner is there but never runs.
        stage.field.net()?.isolate("south", Traffic::Peer)?;
        let kept: Vec<&str> = THREE.into_iter().filter(|site| *site == leader || *site == down).collect();
        let wished = [kept.as_slice(), &["south"]].concat();
        stage.wish(&wished)?;
        stage.executing("a learner", |status| status.members.iter().any(|m| m.role == "learner")).await?;
        stage.kill(&down).await?;
        stage.writes().await?;
        stage.witness.never(4)?;
        stage.start(&down).await?;
        stage.field.net()?.heal()?;
        stage.settled(&wished).await?;
        ensure!(stage.member(&down)? == old, "the voter that was down was replaced");
        stage.end(&wished, 0).await
    })
}

/// S17: etcd promotes a learner that is dead, and stops with it. quorate does not.
fn s17(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(1).await?;
        let client = raw.client(1).await?;
        client.put("a", "1").await?;
        let (id, _) = client.member_add_learner(&Raw::url(2)).await?;
        raw.start(2, "existing", "raw", &[1, 2])?;
        let (learner, clock) = (raw.client(2).await?, Clock::start());
        while !learner.get("a", false).await.is_ok_and(|found| found.is_some()) {
            ensure!(clock.elapsed() < Duration::from_mins(1), "the learner gets no data");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        raw.kill(2).await?;
        client.member_promote(id).await.context("etcd refuses to promote a dead learner")?;
        unknown(client.put("a", "2").await, &[Unknown::ServerTimeout, Unknown::Leader])
    })?;
    on_sites(minor, &THREE, &[], |field| async move {
        let one = field.spec(&["east"], &["members: 1", "allowSingleVoter: true"]);
        let stage = Stage::with(field, &one, 1).await?;
        // North is not ready, so west's learner has to wait, in step with the leader (I12).
        stage.kill_all("north", Kind::Agent).await?;
        stage.wish(&THREE)?;
        stage.said(&["EvenStateUnprepared", "north"]).await?;
        let learner = stage.member("west")?;
        let before = stage.witness.calls().await;
        stage.kill("west").await?;
        stage
            .executing("the learner not to be alive", |status| {
                status.members.iter().any(|m| m.id == learner && m.state == "unknown")
            })
            .await?;
        stage.field.watch.from_now();
        stage.start("north").await?;
        stage.said(&["I9 LearnerNotAlive", &learner, "west"]).await?;
        stage.writes().await?;
        let calls = stage.witness.calls().await.since(&before);
        ensure!(calls.received("MemberPromote") == 0, "a dead learner was promoted: {calls:?}");
        stage.start("west").await?;
        stage.settled(&THREE).await?;
        stage.end(&THREE, 0).await
    })
}

/// S19: a learner that makes no progress blocks everybody's join, and goes after five minutes.
fn s19(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(1).await?;
        let client = raw.client(1).await?;
        client.member_add_learner(&Raw::url(2)).await?;
        refused(client.member_add_learner(&Raw::url(3)).await, Refused::TooManyLearners)
    })?;
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        stage.field.watch.from_now();
        stage.wish(&SWAPPED)?;
        let south = stage.client("south").await?.with_deadline(Duration::from_secs(1));
        let clock = Clock::start();
        while !south.status().await.is_ok_and(|status| status.is_learner) {
            ensure!(clock.elapsed() < crate::stage::PATIENCE, "no learner runs at south");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stage.field.net()?.isolate("south", Traffic::Peer)?;
        let stuck = stage.member("south")?;
        stage.said(&["I9 LearnerUnreachable", &stuck, "south"]).await?;
        // Nothing but time helps: five minutes on the executor's own clock.
        let removed = || -> Result<bool> { Ok(stage.witness.removed()?.iter().any(|(id, _)| *id == stuck)) };
        let rest = Clock::start();
        while !removed()? {
            ensure!(
                rest.elapsed() < Duration::from_mins(7),
                "the stuck learner stays:\n{}",
                stage.field.watch.describe()
            );
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        ensure!(clock.elapsed() > Duration::from_mins(5), "the learner went too soon: {:?}", clock.elapsed());
        stage
            .for_a("the archive of the dropped learner", || {
                Ok(stage.archive("south")?.iter().any(|name| name.contains(&stuck)).then_some(()))
            })
            .await?;
        stage.field.net()?.heal()?;
        stage.settled(&SWAPPED).await?;
        ensure!(stage.member("south")? != stuck, "the id {stuck} came back");
        stage.end(&SWAPPED, 0).await
    })
}

/// S22: etcd removes a healthy voter while another one is down. quorate refuses, and says who is missing.
fn s22(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(5).await?;
        let leader = raw.healthy(&[1, 2, 3, 4, 5]).await?;
        let others: Vec<u8> = (1..=5).filter(|number| *number != leader).collect();
        let [down, healthy, ..] = others.as_slice() else { anyhow::bail!("five members") };
        let healthy = raw.id(*healthy).await?;
        raw.kill(*down).await?;
        raw.client(leader)
            .await?
            .member_remove(healthy)
            .await
            .context("etcd refuses what it should not allow")?;
        Ok(())
    })?;
    let all = ["a", "b", "c", "d", "e"];
    on_sites(minor, &all, &[], |field| async move {
        let stage = Stage::raise(field, &all).await?;
        let leader = stage.field.leader().await?;
        // Not the leader, so that only the voter is missing.
        let down = stage.field.other_than(&[&leader])?;
        let missing = stage.member(&down)?;
        stage.kill(&down).await?;
        stage
            .executing("the missing voter", |status| {
                (status.arithmetic.voters, status.arithmetic.alive) == (5, 4)
            })
            .await?;
        let before = stage.witness.calls().await;
        stage.field.watch.from_now();
        // To three, and the missing one is to stay.
        let mut kept = vec![leader.as_str(), down.as_str()];
        kept.extend(all.into_iter().find(|site| *site != leader && *site != down));
        stage.wish(&kept)?;
        stage.said(&["I3 RemovalWhileDegraded", &missing, &format!("at site {down} is missing")]).await?;
        stage.writes().await?;
        stage.witness.untouched_since(&before).await?;
        ensure!(stage.witness.least_margin() == Some(1), "{:?}", stage.witness.least_margin());
        stage.start(&down).await?;
        stage.settled(&kept).await?;
        ensure!(stage.member(&down)? == missing, "the missing voter was replaced");
        stage.end(&kept, 0).await
    })
}

/// S23: in a cluster of two with one dead nothing can be removed: the call hangs. quorate sends none.
fn s23(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(2).await?;
        let (client, dead) = (raw.client(1).await?, raw.id(2).await?);
        raw.kill(2).await?;
        let hasty = client.with_deadline(Duration::from_secs(4));
        unknown(hasty.member_remove(dead).await, &[Unknown::Deadline])?;
        ensure!(client.member_list(false).await?.members.len() == 2, "it was removed");
        Ok(())
    })?;
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, lost, other] = stage.cast().await?;
        // One is dead and was removed; its successor cannot come.
        let old = stage.member(&lost)?;
        stage.field.net()?.isolate(&lost, Traffic::Peer)?;
        stage.wipe(&lost)?;
        stage
            .executing("two voters", |status| {
                status.arithmetic.voters == 2 && !status.members.iter().any(|m| m.id == old)
            })
            .await?;
        let id = stage.member(&other)?;
        stage.kill(&other).await?;
        stage.field.watch.from_now();
        stage.said(&[&format!("{leader}: Quorate=False QuorumLost"), "/2 alive, quorum 2"]).await?;
        // The wish to be rid of the dead one changes nothing.
        let before = stage.witness.calls().await;
        let more = format!("{leader}, lostMembers: [\"{id}\"]");
        let spec = stage.field.spec(&[&more, &lost], &["members: 1", "allowSingleVoter: true"]);
        stage.field.apply(&spec)?;
        stage.said(&[&leader, "I11 QuorumLost"]).await?;
        stage.witness.stays_untouched(&before, QUIET).await?;
        stage.wish(&THREE)?;
        stage.field.net()?.heal()?;
        stage.start(&other).await?;
        stage.settled(&THREE).await?;
        ensure!(stage.member(&other)? == id, "the voter that was down was replaced");
        stage.end(&THREE, -1).await
    })
}

/// S25: the leader is removed. Leadership moves first, so nobody waits for an election.
fn s25(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, second, third] = stage.cast().await?;
        let old = stage.member(&leader)?;
        let (before, begun) = (stage.witness.calls().await, stage.field.clock.elapsed());
        stage.field.watch.from_now();
        let wished = [second.as_str(), third.as_str(), "south"];
        stage.wish(&wished)?;
        stage.settled(&wished).await?;
        let gap = stage.writer.longest_gap(begun, stage.field.clock.elapsed());
        let calls = stage.witness.calls().await.since(&before);
        ensure!(calls.answered("MoveLeader", "OK") >= 1, "leadership was not moved: {calls:?}");
        // Whoever removed it led then.
        ensure!(
            !reports(&stage, &leader, "VoterRemoved", &old).await?,
            "{leader} removed its own member while it led"
        );
        ensure!(
            reports(&stage, &leader, "LeaderMoved", "").await?,
            "the leader's agent did not move leadership"
        );
        // An election takes at least the election timeout of one second.
        ensure!(gap.ms() < 1_000, "no acknowledged write for {} ms", gap.ms());
        let mut outcome = stage.end(&wished, 0).await?;
        outcome.planned_gap_ms = Some(gap.ms());
        Ok(outcome)
    })
}

/// Whether the agent of a site reports a transition of this kind with this word.
async fn reports(stage: &Stage, site: &str, kind: &str, word: &str) -> Result<bool> {
    let socket = stage.field.site(site)?.socket();
    let events = socket::events(&socket, NAMESPACE, FEDERATION).await?;
    Ok(events.iter().any(|event| event.kind == kind && event.text.contains(word)))
}

/// S26: what etcd says to a wrong transfer of leadership; and quorate asks only the leader itself, for a voter.
fn s26(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(3).await?;
        let leader = raw.healthy(&[1, 2, 3]).await?;
        let client = raw.client(leader).await?;
        let (follower, dead) = if leader == 1 { (2, 3) } else { (1, if leader == 2 { 3 } else { 2 }) };
        let (leader_id, dead_id) = (raw.id(leader).await?, raw.id(dead).await?);
        let (learner, _) = client.member_add_learner(&Raw::url(4)).await?;
        refused(client.move_leader(4711).await, Refused::BadTransferee)?;
        refused(client.move_leader(learner).await, Refused::BadTransferee)?;
        refused(raw.client(follower).await?.move_leader(leader_id).await, Refused::NotLeader)?;
        // One that dies in between: nobody knows, until it is looked at.
        raw.kill(dead).await?;
        unknown(client.move_leader(dead_id).await, &[Unknown::ServerTimeout, Unknown::Deadline])?;
        ensure!(raw.id(leader).await? == leader_id && client.status().await?.leader == leader_id, "it moved");
        client.put("a", "1").await?;
        Ok(())
    })?;
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let before = stage.witness.calls().await;
        // Twice, so that whoever leads then leads in the way.
        let mut wished: Vec<String> = stage.field.in_spec(&stage.field.spec(&THREE, &[]));
        for _ in 0..2 {
            let leader = stage.field.leader().await?;
            let new = stage.field.other_than(&wished.iter().map(String::as_str).collect::<Vec<_>>())?;
            wished.retain(|site| *site != leader);
            wished.push(new);
            let sites: Vec<&str> = wished.iter().map(String::as_str).collect();
            stage.wish(&sites)?;
            stage.settled(&sites).await?;
        }
        let calls = stage.witness.calls().await.since(&before);
        ensure!(calls.answered("MoveLeader", "OK") >= 2, "leadership was not moved: {calls:?}");
        ensure!(
            calls.answered("MoveLeader", "FailedPrecondition") == 0,
            "a wrong transfer was asked for: {calls:?}"
        );
        stage.end(&wished.iter().map(String::as_str).collect::<Vec<_>>(), 0).await
    })
}

/// S27: directly after a start etcd refuses additions for five seconds. That is a definite no, and no failure.
fn s27(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(3).await?;
        let leader = raw.healthy(&[1, 2, 3]).await?;
        let client = raw.client(leader).await?;
        let other = if leader == 2 { 3 } else { 2 };
        raw.kill(other).await?;
        raw.start(other, "existing", "raw", &[1, 2, 3])?;
        raw.healthy(&[1, 2, 3]).await?;
        let clock = Clock::start();
        let mut refusals = 0;
        loop {
            let answer = client.member_add_learner(&Raw::url(4)).await;
            if answer.is_ok() {
                break;
            }
            refused(answer, Refused::UnhealthyCluster)?;
            refusals += 1;
            ensure!(clock.elapsed() < Duration::from_mins(1), "refused for ever");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ensure!(refusals > 0, "an addition directly after a start was not refused");
        Ok(())
    })?;
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, ..] = stage.cast().await?;
        let before = stage.witness.calls().await;
        // A new leader and a member that was just started, and at once something is wished.
        let wished: Vec<&str> = THREE.into_iter().filter(|site| *site != leader).chain(["south"]).collect();
        stage.kill_all(&leader, Kind::Etcd).await?;
        stage.wish(&wished)?;
        stage.settled(&wished).await?;
        let calls = stage.witness.calls().await.since(&before);
        ensure!(calls.answered("MemberAdd", "OK") == 1, "{calls:?}");
        ensure!(calls.received("MemberRemove") == 1 && calls.received("MemberPromote") >= 1, "{calls:?}");
        stage.end(&wished, 0).await
    })
}

/// S28: with one of three down etcd refuses every addition, so a dead member is removed first, on proof, and only then
/// replaced.
fn s28(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(5).await?;
        let leader = raw.healthy(&[1, 2, 3, 4, 5]).await?;
        let client = raw.client(leader).await?;
        let others: Vec<u8> = (1..=5).filter(|number| *number != leader).collect();
        let [first, second, ..] = others.as_slice() else { anyhow::bail!("five members") };
        let (first_id, second_id) = (raw.id(*first).await?, raw.id(*second).await?);
        raw.kill(*first).await?;
        let (learner, _) = client.member_add_learner(&Raw::url(6)).await.context("5 voters, 1 down")?;
        client.member_remove(learner).await?;
        raw.kill(*second).await?;
        refused(client.member_add_learner(&Raw::url(6)).await, Refused::UnhealthyCluster)?;
        // Down to three, of which one is down then.
        client.member_remove(first_id).await?;
        client.member_remove(second_id).await?;
        let third = others.get(2).context("five members")?;
        raw.kill(*third).await?;
        refused(client.member_add_learner(&Raw::url(6)).await, Refused::UnhealthyCluster)
    })?;
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [one, dead, other] = stage.cast().await?;
        let id = stage.member(&dead)?;
        stage.kill(&dead).await?;
        stage.field.watch.from_now();
        stage.witness.forget();
        let before = stage.witness.calls().await;
        stage.wish(&[&one, &other, "south"])?;
        stage.said(&["I3 LostMemberUnconfirmed", &id, &format!("site {dead} is silent")]).await?;
        stage.writes().await?;
        stage.witness.untouched_since(&before).await?;
        // A person says that it is lost for ever.
        let lost = format!("{one}, lostMembers: [\"{id}\"]");
        stage.field.apply(&stage.field.spec(&[&lost, &other, "south"], &["members: 3"]))?;
        let wished = [one.as_str(), other.as_str(), "south"];
        stage.settled(&wished).await?;
        stage.witness.passed(&[(3, 0), (2, 0), (2, 1), (3, 0)]).await?;
        stage.witness.never(4)?;
        ensure!(!stage.field.members().contains(&id), "{id} is still listed");
        stage.end(&wished, 0).await
    })
}

/// S29: a live member is replaced: added first, so that no single loss stops writes at any time.
fn s29(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        stage.field.watch.from_now();
        stage.witness.forget();
        let begun = stage.field.clock.elapsed();
        stage.wish(&SWAPPED)?;
        stage.settled(&SWAPPED).await?;
        let gap = stage.writer.longest_gap(begun, stage.field.clock.elapsed());
        stage.witness.passed(&[(3, 0), (3, 1), (4, 0), (3, 0)]).await?;
        stage.witness.never(2)?;
        let mut outcome = stage.end(&SWAPPED, 1).await?;
        outcome.planned_gap_ms = Some(gap.ms());
        Ok(outcome)
    })
}

/// S30: the new voter is lost while there are four. The even state is left backwards: the new one goes, and comes again
/// when its site is back.
fn s30(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        stage.witness.forget();
        stage.wish(&SWAPPED)?;
        stage.executing("four voters", |status| status.arithmetic.voters == 4).await?;
        let clock = Clock::start();
        // The agent that would go on stands still while the new voter's site dies.
        let leader = stage.field.leader().await?;
        let agents = stage.field.mesh.run.of(&leader, Kind::Agent);
        for agent in &agents {
            signal(agent, Signal::STOP)?;
        }
        let new = stage.member("south")?;
        stage.kill("south").await?;
        for agent in &agents {
            signal(agent, Signal::CONT)?;
        }
        stage.field.watch.from_now();
        stage
            .executing("three voters without the new one", |status| {
                status.arithmetic.voters == 3 && !status.members.iter().any(|m| m.id == new)
            })
            .await?;
        ensure!(clock.elapsed() > Duration::from_secs(55), "rolled back after {:?} only", clock.elapsed());
        let west = member_ids(&stage.field.watch.statuses(), "west");
        ensure!(west.len() == 1, "the old voter went although the new one was lost");
        let mut told = false;
        for site in THREE {
            told |= reports(&stage, site, "VoterRemoved", &format!("RollBack/{new}")).await?;
        }
        ensure!(told, "the new voter was not removed to leave the even state");
        stage.writes().await?;
        stage.start("south").await?;
        stage.settled(&SWAPPED).await?;
        stage.witness.passed(&[(4, 0), (3, 0), (3, 1), (4, 0), (3, 0)]).await?;
        stage.witness.never(2)?;
        ensure!(stage.member("south")? != new, "the id {new} was used again");
        let archive = stage.archive("south")?;
        ensure!(archive.iter().any(|name| name.starts_with(&format!("removed-{new}"))), "{archive:?}");
        stage.end(&SWAPPED, 0).await
    })
}

/// S32: etcd keeps the old URL of a member that moved, and cannot reach it. quorate serves both, and lets nobody list a URL
/// that one voter does not reach.
fn s32(minor: Minor) -> Result<Outcome> {
    const DOMAIN: &str = "new.quorate.test";
    const PORT: u16 = 2680;
    on_raw(minor, |raw| async move {
        raw.cluster(3).await?;
        let (id, url) = (raw.id(3).await?, Raw::url(3).replace("2380", &PORT.to_string()));
        raw.kill(3).await?;
        let moved = ["listen-peer-urls", "initial-advertise-peer-urls"].map(|flag| format!("--{flag}={url}"));
        raw.start_with(3, "existing", "raw", &[1, 2, 3], &moved.each_ref().map(String::as_str))?;
        raw.healthy(&[1, 2, 3]).await?;
        let listed = async || -> Result<Vec<String>> {
            let list = raw.client(1).await?.member_list(true).await?.members;
            Ok(list.into_iter().find(|member| member.id == id).context("m3 is not listed")?.peer_urls)
        };
        ensure!(listed().await? == [Raw::url(3)], "etcd lists the new URL by itself");
        let unreached =
            format!("dial tcp {}: connect: connection refused", Raw::url(3).replace("https://", ""));
        ensure!(raw.log(1).contains(&unreached), "m1 does not miss m3:\n{}", raw.log(1));
        raw.client(1).await?.member_update(id, &url).await?;
        ensure!(listed().await? == [url], "the update is not listed");
        Ok(())
    })?;
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, moved, third] = stage.cast().await?;
        let (members, before) = (stage.field.members(), stage.witness.calls().await);
        let id = stage.member(&moved)?;
        stage.field.net()?.cut_one_way(&third, &moved, Traffic::Port(PORT))?;
        stage.kill_all(&moved, Kind::Agent).await?;
        stage.field.readdress(&moved, DOMAIN, PORT)?;
        stage.field.watch.from_now();
        stage.start(&moved).await?;
        stage.said(&["I16 UpdateUnproven", &id, &moved]).await?;
        let both = format!("https://{}:{PORT}", stage.field.site(&moved)?.address);
        let serves = |etcd: &Process| etcd.flag("listen-peer-urls").unwrap_or_default().to_owned();
        let now = serves(&stage.etcd(&moved).await?);
        ensure!(now.contains(":2380") && now.contains(&both), "it serves {now}");
        stage.writes().await?;
        stage.witness.stays_untouched(&before, QUIET).await?;
        stage.field.net()?.heal()?;
        stage
            .for_a("etcd on the new port alone", || {
                Ok(stage.etcds(&moved).first().is_some_and(|etcd| serves(etcd) == both).then_some(()))
            })
            .await?;
        stage.settled(&THREE).await?;
        ensure!(stage.field.members() == members, "members were replaced");
        let calls = stage.witness.calls().await.since(&before);
        ensure!(calls.answered("MemberUpdate", "OK") == 1, "{calls:?}");
        let list = stage.client(&leader).await?.member_list(true).await?.members;
        let url = format!("https://{FEDERATION}-{moved}-0.{DOMAIN}:{PORT}");
        let listed = list.iter().find(|member| format!("{:x}", member.id) == id).context("not listed")?;
        ensure!(listed.peer_urls == [url], "it is listed at {:?}", listed.peer_urls);
        stage.end(&THREE, 0).await
    })
}

/// S37: from 3.6 etcd can be told to allow more learners, and then takes as many. quorate says nothing of it and counts on
/// one.
fn s37(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        if minor == Minor::V3_5 {
            return Ok(());
        }
        raw.start_with(1, "new", "raw", &[1], &["--max-learners=2"])?;
        raw.healthy(&[1]).await?;
        let client = raw.client(1).await?;
        client.member_add_learner(&Raw::url(2)).await?;
        client.member_add_learner(&Raw::url(3)).await?;
        refused(client.member_add_learner(&Raw::url(4)).await, Refused::TooManyLearners)?;
        Ok(())
    })?;
    let all = ["a", "b", "c", "d", "e"];
    on_sites(minor, &all, &[], |field| async move {
        let three = ["a", "b", "c"];
        let stage = Stage::raise(field, &three).await?;
        stage.wish(&all)?;
        stage.settled(&all).await?;
        stage.witness.passed(&[(3, 0), (3, 1), (4, 0), (4, 1), (5, 0)]).await?;
        // `end` looks at every command line for the flag, and at every number of learners that was seen.
        stage.end(&all, 0).await
    })
}
