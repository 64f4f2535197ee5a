//! D. Capacity, alarms, corruption; E. the loss of a quorum.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::process::Kind;
use quorate_e2e::net::Traffic;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome, on_sites};
use quorate_link::clock::Clock;
use quorate_link::etcd::Refused;
use quorate_link::pki::Root;
use tokio::process::Command;

use crate::raw::programs;
use crate::stage::{FOUR, PATIENCE, QUIET, Stage, THREE};
use crate::witness::metrics;

pub(crate) const CASES: &[Case] = &[
    Case { name: "s53_no_space_freezes_the_membership", minors: ALL, short: None, run: s53 },
    Case { name: "s55_silent_inconsistency", minors: ALL, short: None, run: s55 },
    Case { name: "s58_quorum_lost_and_a_minority_left", minors: ALL, short: None, run: s58 },
];

/// What takes over from west.
const SWAPPED: [&str; 3] = ["east", "north", "south"];

/// Runs etcdctl at the member of a site, as its operator would.
async fn ctl(stage: &Stage, site: &str, arguments: &[&str]) -> Result<String> {
    let site = stage.field.site(site)?;
    let pair = site.user_pair();
    let mut ctl = Command::new(programs(stage.field.minor).await?.join("etcdctl"));
    ctl.arg(format!("--endpoints=https://{}:2379", site.address)).arg("--command-timeout=60s");
    ctl.arg(format!("--cacert={}", site.pki()?.root_path(Root::Client).display()));
    ctl.arg(format!("--cert={}", pair.cert.display())).arg(format!("--key={}", pair.key.display()));
    let output = ctl.args(arguments).output().await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "etcdctl {arguments:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// S53: the database is full. etcd would still change its membership; quorate does not before a person has made room.
fn s53(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let quota = "etcd: {quotaBytes: 16777216}";
        let spec = |clusters: &[&str]| field.spec(clusters, &["members: 3", quota]);
        let (three, swapped) = (spec(&THREE), spec(&SWAPPED));
        let stage = Stage::with(std::sync::Arc::clone(&field), &three, 3).await?;
        let leader = stage.field.leader().await?;
        let client = stage.client(&leader).await?;
        let mut full = None;
        for number in 0..200 {
            if let Err(error) = client.put(&format!("big/{number}"), vec![b'x'; 1_000_000]).await {
                full = Some(error);
                break;
            }
        }
        let full = full.context("200 MB fit into 16")?;
        ensure!(full.refused() == Some(Refused::NoSpace), "{full}");
        let before = stage.witness.calls().await;
        stage.field.watch.from_now();
        stage.field.apply(&swapped)?;
        stage.said(&["Frozen=True AlarmActive", "I13 AlarmActive", "has an alarm"]).await?;
        stage.witness.stays_untouched(&before, QUIET).await?;
        // A person makes room: what is not needed goes, then each member in turn.
        let deleted = ctl(&stage, &leader, &["del", "--prefix", "big/"]).await?;
        ensure!(deleted.trim().parse::<u32>()? > 0, "nothing was deleted");
        let revision = client.status().await?.header.revision.to_string();
        ctl(&stage, &leader, &["compact", "--physical", &revision]).await?;
        for site in THREE.iter().filter(|site| **site != leader).copied().chain([leader.as_str()]) {
            ctl(&stage, site, &["defrag"]).await?;
        }
        ctl(&stage, &leader, &["alarm", "disarm"]).await?;
        stage.settled(&SWAPPED).await?;
        stage.writes().await?;
        stage.end(&SWAPPED, 0).await
    })
}

/// Changes values in the database of a stopped member, as a bad disk would. etcd's file has no checksum over them.
fn damage(database: &Path) -> Result<usize> {
    let (old, new) = (b"value of key 7", b"value of kEy 7");
    let mut bytes = std::fs::read(database)?;
    let places: Vec<usize> =
        bytes.windows(old.len()).enumerate().filter(|(_, window)| window == old).map(|(at, _)| at).collect();
    for at in &places {
        if let Some(place) = bytes.get_mut(*at..*at + new.len()) {
            place.copy_from_slice(new);
        }
    }
    std::fs::write(database, bytes)?;
    Ok(places.len())
}

/// S55: a member whose data differ without a word. etcd's check at the start keeps it out while it can ask the others;
/// if it cannot, the agents find it, say who it is, and change nothing before it is replaced.
fn s55(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        for _ in 0..30 {
            stage.writes().await?;
        }
        let [leader, site, other] = stage.cast().await?;
        let id = stage.member(&site)?;
        let data = stage.volume(&site)?.join("data");
        // etcd writes to its file ten times a second.
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.kill(&site).await?;
        ensure!(damage(&data.join("member/snap/db"))? > 0, "nothing to damage");
        stage.field.watch.from_now();
        stage.start(&site).await?;
        stage
            .for_a("etcd's own check at the start", || {
                let said = |words| stage.witness.etcd_said(words);
                Ok((said("found different hash values") || said("data inconsistency")).then_some(()))
            })
            .await?;
        stage.writes().await?;
        ensure!(stage.member(&site)? == id, "it was replaced");
        // The same while nobody can be asked: it serves, and differs.
        stage.kill(&site).await?;
        stage.field.net()?.isolate(&site, Traffic::Peer)?;
        stage.start(&site).await?;
        let clock = Clock::start();
        loop {
            let etcd = stage.etcd(&site).await?;
            let url = etcd.flag("listen-metrics-urls").context("no metrics")?.to_owned();
            if metrics(&url).await.is_ok() {
                break;
            }
            ensure!(clock.elapsed() < PATIENCE, "the damaged etcd does not start alone either");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        stage.field.net()?.heal()?;
        stage.executing("all to be alive", |status| status.arithmetic.alive == 3).await?;
        // A new leader compares the voters before it changes anything.
        let before = stage.witness.calls().await;
        stage.lead(&leader, &other).await?;
        stage.wish(&[&leader, &other, "south"])?;
        stage.said(&["DivergentData=True", &id, &site]).await?;
        stage.writes().await?;
        stage.witness.untouched_since(&before).await?;
        // Its operator takes the directory away: then it is lost, and may be replaced.
        stage.wipe(&site)?;
        let wished = [leader.as_str(), other.as_str(), "south"];
        stage.settled(&wished).await?;
        ensure!(!stage.field.members().contains(&id), "{id} is still listed");
        stage.end(&wished, 0).await
    })
}

/// S58, as far as nothing is restored: two of three sites are gone. The last one does not go on alone, whatever is started
/// again there, and the two come back to the same cluster.
fn s58(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &THREE, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [first, survivor, second] = stage.cast().await?;
        let (members, before) = (stage.field.members(), stage.witness.calls().await);
        stage.kill(&first).await?;
        stage.kill(&second).await?;
        stage.field.watch.from_now();
        stage.said(&[&format!("{survivor}: Quorate=False QuorumLost"), "quorum 2"]).await?;
        stage.kill_all(&survivor, Kind::Etcd).await?;
        stage.etcd(&survivor).await?;
        stage.kill_all(&survivor, Kind::Agent).await?;
        stage.start(&survivor).await?;
        stage.said(&[&format!("{survivor}: "), "I11 QuorumLost"]).await?;
        let acknowledged = stage.writer.acknowledged();
        stage.witness.stays_untouched(&before, QUIET).await?;
        ensure!(stage.writer.acknowledged() == acknowledged, "one of three acknowledges writes");
        stage.start(&first).await?;
        stage.start(&second).await?;
        stage.settled(&THREE).await?;
        ensure!(stage.field.members() == members, "members were replaced");
        // `end` looks at every command line for --force-new-cluster, and at the cluster ids.
        stage.end(&THREE, -1).await
    })
}
