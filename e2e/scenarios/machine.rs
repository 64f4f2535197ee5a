//! C. What the machines do: a disk or a processor that stalls, clocks that jump.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use quorate_cli::demo::process::log_file;
use quorate_e2e::field::UP;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome, on_sites};
use quorate_link::clock::Clock;
use rustix::process::Signal;

use crate::stage::{FOUR, PATIENCE, Stage, THREE, signal};
use crate::witness::Witness;

pub(crate) const CASES: &[Case] = &[
    Case { name: "s44_disk_stall_on_the_leader", minors: ALL, short: None, run: s44 },
    Case { name: "s45_processor_starvation", minors: ALL, short: None, run: s45 },
    Case { name: "s52_clocks_that_jump", minors: ALL, short: None, run: s52 },
];

/// S44: the leader stands still, as when its disk does. Another one leads, the old one is unknown and not dead; what would
/// need its removal waits, and it goes on as a follower.
fn s44(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let [leader, second, third] = stage.cast().await?;
        let (id, term) = (stage.member(&leader)?, stage.term().await?);
        let etcd = stage.etcd(&leader).await?;
        let before = stage.witness.calls().await;
        stage.field.watch.from_now();
        signal(&etcd, Signal::STOP)?;
        stage
            .executing("another leader, to whom the old one is unknown", |status| {
                status.observed_from != leader
                    && status.members.iter().any(|m| m.id == id && m.state == "unknown")
            })
            .await?;
        let wished = [second.as_str(), third.as_str(), "south"];
        stage.wish(&wished)?;
        // Its agent is heard and its etcd does not answer: not lost, and nothing is done without it.
        stage.said(&[&format!("Starting: member {id} at site {leader}")]).await?;
        stage.writes().await?;
        stage.witness.untouched_since(&before).await?;
        ensure!(stage.etcds(&leader).iter().any(|e| e.pid == etcd.pid), "the stalled etcd was ended");
        signal(&etcd, Signal::CONT)?;
        stage.settled(&wished).await?;
        ensure!(stage.term().await? > term, "nobody else has led");
        stage.end(&wished, 0).await
    })
}

/// A group of processes with a share of a processor.
struct Throttle {
    group: PathBuf,
    parent: PathBuf,
}

impl Throttle {
    /// A millisecond of each second: less than what a leader needs for its heartbeats.
    fn new() -> Result<Self> {
        let name = format!("quorate-{}", std::process::id());
        let root = PathBuf::from("/sys/fs/cgroup");
        let unified = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let parent = if unified.split_whitespace().any(|word| word == "cpu") {
            root.clone()
        } else {
            root.join("cpu")
        };
        let group = parent.join(name);
        if let Err(error) = std::fs::create_dir(&group) {
            bail!(
                "cannot make a control group at {} ({error}): this case needs root and writable cgroups",
                group.display()
            );
        }
        let throttle = Self { group, parent };
        if throttle.parent == root {
            // Nothing to do where it is on already.
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+cpu");
            throttle.write("cpu.max", "1000 1000000")?;
        } else {
            throttle.write("cpu.cfs_period_us", "1000000")?;
            throttle.write("cpu.cfs_quota_us", "1000")?;
        }
        Ok(throttle)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let file = self.group.join(file);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    fn take(&self, pid: i32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    fn release(&self) -> Result<()> {
        for pid in std::fs::read_to_string(self.group.join("cgroup.procs"))?.lines() {
            std::fs::write(self.parent.join("cgroup.procs"), pid)?;
        }
        Ok(())
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let _ = self.release();
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// S45: a leader without processor time loses its leadership, and so does the next one. After two such changes in five
/// minutes the membership is frozen.
fn s45(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let members = stage.field.members();
        let before = stage.witness.calls().await;
        let throttle = Throttle::new()?;
        for _ in 0..2 {
            let leader = stage.field.leader().await?;
            throttle.take(stage.etcd(&leader).await?.pid)?;
            stage.executing("another leader", |status| status.observed_from != leader).await?;
            throttle.release()?;
            stage.settled(&THREE).await?;
        }
        drop(throttle);
        stage.wish(&["east", "north", "south"])?;
        stage.said(&["Frozen=True LeaderUnstable", "I13 LeaderUnstable: 2 unplanned leader changes"]).await?;
        stage.writes().await?;
        stage.witness.untouched_since(&before).await?;
        stage.wish(&THREE)?;
        stage.settled(&THREE).await?;
        ensure!(stage.field.members() == members, "members were replaced");
        stage.end(&THREE, 0).await
    })
}

/// libfaketime, from the package `faketime`.
fn faketime() -> Result<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let all = folders.map(|folder| folder.join("faketime/libfaketime.so.1"));
    all.into_iter()
        .find(|library| library.exists())
        .context("no libfaketime.so.1: e2e/stack/setup.sh network installs it")
}

/// S52: the wall clocks of agents and supervisors are hours apart and jump in the middle of every operation. Nothing is
/// decided by them.
fn s52(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let library = faketime()?;
        let witness = Witness::start(&field);
        field.apply(&field.spec(&THREE, &["members: 3"]))?;
        let clock_of = |site: &str| field.folder().join(format!("clock-{site}"));
        let set = |site: &str, offset: &str| std::fs::write(clock_of(site), format!("{offset}\n"));
        for site in &field.mesh.sites {
            set(&site.name, "+0")?;
            let mut agent = field.mesh.command(site);
            agent.args(["agent", "--config"]).arg(site.config());
            agent.env("LD_PRELOAD", &library).env("FAKETIME_TIMESTAMP_FILE", clock_of(&site.name));
            // The monotonic clock is the kernel's own; the file is read again each time.
            agent.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
            agent.env("FAKETIME_NO_CACHE", "1");
            let log = log_file(&site.log())?;
            drop(agent.stdout(log.try_clone()?).stderr(log).spawn()?);
        }
        for site in &field.mesh.sites {
            field.mesh.up(site, UP).await?;
        }
        field.until_settled(&field.in_spec(&field.spec(&THREE, &[])), 3).await?;
        let writer = field.writer().await?;
        let stage = Stage { field: std::sync::Arc::clone(&field), writer, witness };
        // Apart from each other, and then the other way round as soon as something has begun.
        let jump = |first: &str, second: &str| -> Result<()> {
            for (site, offset) in [("east", first), ("west", second), ("north", first), ("south", second)] {
                set(site, offset)?;
            }
            Ok(())
        };
        // New certificates begin an hour before their agent's clock: who makes some is never more than that ahead of the others.
        jump("+1h", "+0")?;
        let old = stage.member("west")?;
        stage.wipe("west")?;
        stage.executing("two voters", |status| status.arithmetic.voters == 2).await?;
        jump("+0", "-1h")?;
        stage.replaced("west", &old, &THREE).await?;
        let skewed = Clock::start();
        stage.wish(&["east", "north", "south"])?;
        stage.executing("four voters", |status| status.arithmetic.voters == 4).await?;
        jump("+1h", "-1h")?;
        stage.settled(&["east", "north", "south"]).await?;
        ensure!(skewed.elapsed() < PATIENCE + Duration::from_mins(1), "it took {:?}", skewed.elapsed());
        ensure!(
            !stage.field.watch.said().iter().any(|line| line.contains("dead")),
            "somebody was taken for dead"
        );
        stage.end(&["east", "north", "south"], 0).await
    })
}
