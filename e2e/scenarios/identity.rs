//! A. Bootstrap, identity, data directory.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::process::Kind;
use quorate_e2e::net::Traffic;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome, on_sites};
use quorate_link::clock::Clock;
use quorate_link::etcd::Refused;

use crate::raw::{Raw, on_raw, refused};
use crate::stage::{FOUR, PATIENCE, Stage, THREE};
use crate::witness::{FOREIGN, is_new};

pub(crate) const CASES: &[Case] = &[
    Case { name: "s01_empty_dir_while_peers_answer", minors: ALL, short: Some(Minor::V3_7), run: s01 },
    Case { name: "s02_empty_dir_while_no_peer_answers", minors: ALL, short: None, run: s02 },
    Case { name: "s03_empty_dir_without_an_agent", minors: ALL, short: None, run: s03 },
    Case { name: "s05_removed_member_returns_with_its_dir", minors: ALL, short: None, run: s05 },
    Case { name: "s06_member_removed_while_partitioned", minors: ALL, short: None, run: s06 },
    Case { name: "s07_cluster_id_mismatch", minors: ALL, short: None, run: s07 },
    Case { name: "s08_each_site_alone", minors: ALL, short: Some(Minor::V3_5), run: s08 },
    Case { name: "s11_peer_url_listed_twice", minors: ALL, short: None, run: s11 },
    Case { name: "s12_two_members_with_one_name", minors: ALL, short: None, run: s12 },
    Case { name: "s14_state_new_left_behind", minors: ALL, short: None, run: s14 },
];

/// S01: the directory is gone, the peers answer. Plain etcd ends in a crash loop; quorate never starts it again, removes
/// the id, and joins under a new one.
fn s01(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(3).await?;
        let leader = raw.healthy(&[1, 2, 3]).await?;
        let victim = if leader == 2 { 3 } else { 2 };
        raw.kill(victim).await?;
        raw.wipe(victim)?;
        raw.start(victim, "new", "raw", &[1, 2, 3])?;
        raw.ended(victim).await?;
        ensure!(raw.log(victim).contains("has already been bootstrapped"), "etcd begins anew");
        Ok(())
    })?;
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [_, site, _] = stage.cast().await?;
        let old = stage.member(&site)?;
        let before = stage.witness.starts()?.len();
        stage.field.watch.from_now();
        stage.witness.forget();
        stage.wipe(&site)?;
        stage.said(&["DataLost=True", "I5 DataLost", &old, &site]).await?;
        stage.replaced(&site, &old, &THREE).await?;
        // Removed first: etcd refuses an addition while one of three is down.
        stage.witness.passed(&[(2, 0), (2, 1), (3, 0)]).await?;
        stage.witness.never(4)?;
        let later = stage.witness.starts()?.split_off(before);
        ensure!(!later.is_empty(), "no etcd was started");
        ensure!(!later.iter().any(|start| is_new(&start.process)), "started with state new: {later:?}");
        stage.end(&THREE, 0).await
    })
}

/// S02: the directory is gone and nobody who knows it answers. Plain etcd starts afresh under the same ids and an
/// acknowledged write is lost; quorate starts nothing.
fn s02(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [last, wiped, other] = stage.cast().await?;
        let old = stage.member(&wiped)?;
        // Only two of three hold what is written now.
        stage.kill(&other).await?;
        stage.writes().await?;
        stage.kill(&last).await?;
        stage.kill(&wiped).await?;
        std::fs::remove_dir_all(stage.volume(&wiped)?.join("data"))?;
        stage.field.watch.from_now();
        stage.start(&wiped).await?;
        stage.start(&other).await?;
        stage.etcd(&other).await?;
        stage.said(&[&wiped, "DataLost=True", "I5 DataLost", &old]).await?;
        stage.said(&[&other, "Quorate=False", "QuorumLost"]).await?;
        ensure!(stage.etcds(&wiped).is_empty(), "etcd was started on an empty directory");
        // With the third one there is a quorum again, and it has all that was written.
        stage.start(&last).await?;
        stage.replaced(&wiped, &old, &THREE).await?;
        stage.end(&THREE, 0).await
    })
}

/// S03: the same with state existing, and with nobody beside the supervisor who could know better. Plain etcd panics or
/// votes with an empty log.
fn s03(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(3).await?;
        let leader = raw.healthy(&[1, 2, 3]).await?;
        raw.client(leader).await?.put("a", "1").await?;
        let victim = if leader == 2 { 3 } else { 2 };
        raw.kill(victim).await?;
        raw.wipe(victim)?;
        raw.start(victim, "existing", "raw", &[1, 2, 3])?;
        raw.ended(victim).await?;
        ensure!(raw.log(victim).contains("tocommit"), "etcd does not panic");
        Ok(())
    })?;
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [_, site, _] = stage.cast().await?;
        let old = stage.member(&site)?;
        stage.kill_all(&site, Kind::Agent).await?;
        let log = stage.volume(&site)?.join("supervisor.log");
        let refusals =
            || std::fs::read_to_string(&log).map(|log| log.matches("the start was refused").count());
        let before = refusals()?;
        stage.wipe(&site)?;
        stage.for_a("the refusal of the supervisor", || Ok((refusals()? > before).then_some(()))).await?;
        stage.writes().await?;
        ensure!(stage.etcds(&site).is_empty(), "etcd was started on an empty directory");
        stage.start(&site).await?;
        stage.said(&["DataLost=True", "I5 DataLost", &old, &site]).await?;
        stage.replaced(&site, &old, &THREE).await?;
        ensure!(!stage.witness.etcd_said("tocommit"), "an etcd ran with an empty log under an old id");
        stage.end(&THREE, 0).await
    })
}

/// S05: a member that was removed while it was down comes back with its old directory: archived, then a new learner.
fn s05(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(3).await?;
        let leader = raw.healthy(&[1, 2, 3]).await?;
        let gone = if leader == 2 { 3 } else { 2 };
        let id = raw.id(gone).await?;
        raw.kill(gone).await?;
        raw.client(leader).await?.member_remove(id).await?;
        raw.start(gone, "existing", "raw", &[1, 2, 3])?;
        raw.ended(gone).await?;
        let log = raw.log(gone);
        ensure!(
            log.contains("the member has been permanently removed from the cluster"),
            "etcd says nothing of it"
        );
        Ok(())
    })?;
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, site, _] = stage.cast().await?;
        let old = stage.member(&site)?;
        stage.kill(&site).await?;
        remove_by_hand(&stage, &leader, &old).await?;
        stage.writes().await?;
        stage.field.watch.from_now();
        stage.start(&site).await?;
        let archived = format!("removed-{old}");
        // In this order: when its successor is listed, the old directory is out of the way already.
        stage
            .until("a new member at the site", |now| {
                let ids = quorate_cli::demo::watch::member_ids(now, &site);
                !ids.is_empty() && !ids.contains(&old)
            })
            .await?;
        let archive = stage.archive(&site)?;
        ensure!(archive.iter().any(|name| name.starts_with(&archived)), "no {archived} in {archive:?}");
        stage.replaced(&site, &old, &THREE).await?;
        stage.end(&THREE, 0).await
    })
}

/// A person removes a member, without quorate.
async fn remove_by_hand(stage: &Stage, leader: &str, id: &str) -> Result<()> {
    let (id, client, clock) = (u64::from_str_radix(id, 16)?, stage.client(leader).await?, Clock::start());
    loop {
        match client.member_remove(id).await {
            Ok(_) => return Ok(()),
            // For some seconds after each change.
            Err(error)
                if error.refused() == Some(Refused::UnhealthyCluster) && clock.elapsed() < PATIENCE => {}
            Err(error) => return Err(error).context("removing by hand"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// S06: a member that is removed while it is cut off never hears of it. Its agent does, and stops it; and when the links
/// are whole again nobody's term has moved.
fn s06(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, site, _] = stage.cast().await?;
        let net = stage.field.net()?;
        for traffic in [Traffic::Peer, Traffic::All] {
            let old = stage.member(&site)?;
            let etcd = stage.etcd(&site).await?;
            stage.field.watch.from_now();
            net.isolate(&site, traffic)?;
            stage.said(&[&format!("{leader}: AllMembersReady=False"), &site]).await?;
            let term = stage.term().await?;
            remove_by_hand(&stage, &leader, &old).await?;
            stage.writes().await?;
            if traffic == Traffic::All {
                // Long enough to campaign: etcd without pre-vote would come back with a higher term.
                tokio::time::sleep(Duration::from_secs(5)).await;
                ensure!(stage.etcds(&site).iter().any(|e| e.pid == etcd.pid), "who told it of its removal?");
                net.heal()?;
            }
            stage
                .for_a("the end of the removed etcd", || {
                    Ok((!stage.etcds(&site).iter().any(|e| e.pid == etcd.pid)).then_some(()))
                })
                .await?;
            net.heal()?;
            stage.replaced(&site, &old, &THREE).await?;
            let archived = stage.archive(&site)?;
            ensure!(archived.iter().any(|name| name.contains(&old)), "{old} is not in {archived:?}");
            ensure!(stage.term().await? == term, "the term moved from {term} to {}", stage.term().await?);
        }
        stage.end(&THREE, 0).await
    })
}

/// S07: another cluster answers where a member should be. It is never merged, and is no voter to anybody.
fn s07(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, site, other] = stage.cast().await?;
        let (id, ours) = (stage.member(&site)?, stage.field.watch.cluster_ids());
        let etcd = stage.etcd(&site).await?;
        stage.kill(&site).await?;
        // What is written from now on is written to ours.
        stage.writer.go_to(vec![stage.client(&leader).await?, stage.client(&other).await?]);
        stage.writes().await?;
        // Somebody starts an etcd of his own in its place: the same address, certificates and name, another token.
        let site_ = stage.field.site(&site)?;
        let network = site_.network.as_ref().context("no network")?;
        let program = etcd.args.first().context("no program")?;
        let mut foreign = stage.field.mesh.run.command(std::path::Path::new("nsenter"), &site);
        foreign.arg(format!("--net={}", network.display())).arg(program);
        let own = format!(
            "{}={}",
            etcd.flag("name").unwrap_or_default(),
            etcd.flag("initial-advertise-peer-urls").unwrap_or_default()
        );
        let data = stage.field.folder().join("foreign");
        for argument in etcd.args.iter().skip(1) {
            let flag = argument.split('=').next().unwrap_or_default();
            match flag {
                "--data-dir" => foreign.arg(format!("{flag}={}", data.display())),
                "--initial-cluster" => foreign.arg(format!("{flag}={own}")),
                "--initial-cluster-state" => foreign.arg(format!("{flag}=new")),
                "--initial-cluster-token" => foreign.arg(format!("{flag}={FOREIGN}")),
                _ => foreign.arg(argument),
            };
        }
        foreign.spawn().context("starting the foreign etcd")?;
        let stranger = stage.etcd(&site).await?;
        let before = stage.witness.calls().await;
        stage.field.watch.from_now();
        stage.start(&site).await?;
        // It is seen, by whoever probes it too, and counts as nobody.
        let two = |ids: &std::collections::BTreeSet<String>| ids.len() == ours.len() + 1;
        stage
            .for_a("the foreign cluster to be seen", || {
                Ok(two(&stage.field.watch.cluster_ids()).then_some(()))
            })
            .await?;
        let log = stage.field.site(&other)?.log();
        stage
            .for_a("a word about the other cluster", || {
                let log = std::fs::read_to_string(&log)?;
                Ok(log.contains("another cluster answers on the peer port").then_some(()))
            })
            .await?;
        stage
            .until("two of three alive in the eyes of everybody", |now| {
                let two =
                    |s: &quorate_core::condition::Status| (s.arithmetic.voters, s.arithmetic.alive) == (3, 2);
                now.len() == 3 && now.values().all(two)
            })
            .await?;
        stage.writes().await?;
        for status in stage.field.watch.statuses().values() {
            let told = status.cluster_id.clone().unwrap_or_default();
            ensure!(ours.contains(&told), "{} takes {told} for its cluster", status.observed_from);
            ensure!(status.members.len() == 3, "{:?}", status.members);
        }
        stage.witness.untouched_since(&before).await?;
        quorate_cli::demo::process::kill(stranger.pid);
        stage.settled(&THREE).await?;
        ensure!(stage.member(&site)? == id, "the member was replaced");
        stage.end_among(&THREE, 0).await
    })
}

/// S08: every site has the manifest and no site hears another. Nothing is born before all of them have agreed.
fn s08(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &THREE, &[], |field| async move {
        let net = field.net()?;
        for (one, other) in [("east", "west"), ("west", "north"), ("north", "east")] {
            net.cut(one, other, Traffic::Mesh)?;
        }
        let witness = crate::witness::Witness::start(&field);
        let spec = field.spec(&THREE, &[]);
        field.apply(&spec)?;
        field.start().await?;
        for site in THREE {
            field.said(&[&format!("{site}: Ready=False WaitingForClusters"), "I7"]).await?;
        }
        ensure!(field.etcds().is_empty(), "an etcd runs: {:?}", field.etcds());
        // Two of three are a majority, and still not all.
        net.heal()?;
        net.isolate("north", Traffic::Mesh)?;
        field.watch.from_now();
        for site in ["east", "west"] {
            field.said(&[&format!("{site}: Ready=False WaitingForClusters"), "north"]).await?;
        }
        ensure!(witness.starts()?.is_empty(), "an etcd was started: {:?}", witness.starts()?);
        ensure!(field.watch.cluster_ids().is_empty(), "a cluster was born: {:?}", field.watch.cluster_ids());
        net.heal()?;
        field.until_settled(&field.sites, 3).await?;
        let writer = field.writer().await?;
        Stage { field, writer, witness }.end(&THREE, 0).await
    })
}

/// S11: a peer URL that is listed already, and one that was freed a moment ago.
fn s11(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(1).await?;
        let client = raw.client(1).await?;
        let mut reused = false;
        for _ in 0..10 {
            let (id, _) = client.member_add_learner(&Raw::url(2)).await?;
            // The id is made of the URL and the second: within it the id exists, afterwards the URL.
            let again = client.member_add_learner(&Raw::url(2)).await;
            let kind = again.as_ref().err().and_then(quorate_link::etcd::Error::refused);
            ensure!(matches!(kind, Some(Refused::MemberIdExists | Refused::PeerUrlExists)), "{again:?}");
            tokio::time::sleep(Duration::from_millis(1100)).await;
            refused(client.member_add_learner(&Raw::url(2)).await, Refused::PeerUrlExists)?;
            client.member_remove(id).await?;
            let (second, _) = client.member_add_learner(&Raw::url(2)).await?;
            client.member_remove(second).await?;
            // Within one second the old id comes out again, and that one is removed for ever.
            match client.member_add_learner(&Raw::url(2)).await {
                Ok((third, _)) => drop(client.member_remove(third).await?),
                other => {
                    refused(other, Refused::MemberNotFound)?;
                    reused = true;
                    break;
                }
            }
        }
        ensure!(reused, "ten removals and additions, and never within one second");
        Ok(())
    })?;
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let leader = stage.field.leader().await?;
        let client = stage.client(&leader).await?;
        let url = "https://main-south-0.south.quorate.test:2380";
        // A learner that nobody asked for, at the URL of a slot that will be wanted: it goes.
        let (stray, _) = client.member_add_learner(url).await?;
        stage
            .for_a("the removal of the stray learner", || {
                Ok(stage.witness.removed()?.iter().any(|(id, _)| *id == format!("{stray:x}")).then_some(()))
            })
            .await?;
        stage.wish(&["east", "west", "south"])?;
        stage.settled(&["east", "west", "south"]).await?;
        let added = stage.witness.added()?;
        let mine =
            added.iter().find(|a| a.url == url && a.id != format!("{stray:x}")).context("never added")?;
        let removed = stage.witness.removed()?;
        let (_, freed) =
            removed.iter().find(|(id, _)| *id == format!("{stray:x}")).context("never removed")?;
        ensure!(mine.at - freed >= 1.1, "the URL rested only {} s (I6)", mine.at - freed);
        stage.end(&["east", "west", "south"], 0).await
    })
}

/// S12: two members with one name. A spec that would give them one is refused, and no name is ever used twice.
fn s12(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let (before, members) = (stage.witness.calls().await, stage.field.members());
        let twice = stage.field.spec(&["east", "west", "north", "east", "west"], &["members: 5"]);
        stage.field.apply(&twice)?;
        for site in THREE {
            let log = stage.field.site(site)?.log();
            stage
                .for_a("a refusal of the manifest", || {
                    let log = std::fs::read_to_string(&log)?;
                    let refusal =
                        |line: &str| line.contains("spec.clusters[3].name") && line.contains("named twice");
                    Ok(log.lines().any(refusal).then_some(()))
                })
                .await?;
        }
        stage.writes().await?;
        stage.witness.untouched_since(&before).await?;
        ensure!(stage.field.members() == members, "the members changed");
        // One slot, two lives: another name each time.
        stage.wish(&THREE)?;
        let [_, site, _] = stage.cast().await?;
        let (old, first) = (stage.member(&site)?, stage.etcd(&site).await?);
        stage.wipe(&site)?;
        stage.replaced(&site, &old, &THREE).await?;
        let second = stage.etcd(&site).await?;
        ensure!(
            first.flag("name") != second.flag("name"),
            "the name {:?} was used again",
            first.flag("name")
        );
        stage.end(&THREE, 0).await
    })
}

/// S14: once a cluster is recorded no etcd is started with state new, whatever ends and whatever is lost.
fn s14(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let starts = stage.witness.starts()?;
        let seed = starts.iter().find(|start| is_new(&start.process)).context("nothing was ever begun")?;
        let url = seed.process.flag("initial-advertise-peer-urls").context("no URL")?.to_owned();
        let site =
            THREE.into_iter().find(|site| url.contains(&format!("main-{site}-0"))).context("no site")?;
        let grant = stage.volume(site)?.join("desired.json");
        ensure!(std::fs::read_to_string(&grant)?.contains("Seed"), "not the seed's own grant");
        let before = starts.len();
        // Its etcd, its supervisor, its agent; each of them starts it again from what is written.
        for kind in [Kind::Etcd, Kind::Member, Kind::Agent] {
            stage.kill_all(site, kind).await?;
            if kind == Kind::Agent {
                stage.start(site).await?;
            }
            stage.settled(&THREE).await?;
        }
        // And with an empty directory beside that old permission to begin a cluster.
        let old = stage.member(site)?;
        stage.kill(site).await?;
        std::fs::remove_dir_all(stage.volume(site)?.join("data"))?;
        stage.start(site).await?;
        stage.replaced(site, &old, &THREE).await?;
        let later = stage.witness.starts()?.split_off(before);
        ensure!(later.len() >= 3, "it was not started again: {later:?}");
        ensure!(!later.iter().any(|start| is_new(&start.process)), "started with state new: {later:?}");
        stage.end(&THREE, 0).await
    })
}
