//! The last part of the tour: a site is exchanged for another one, then everything moves, while the writer goes on.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_core::condition::ConditionType;

use super::{CALM, SETTLED, Tour, VOTERS, ms};
use crate::demo::mesh::{self, Site};
use crate::demo::process::Kind;
use crate::demo::watch::settled_as;
use crate::demo::{FEDERATION, writer};

/// How long a site that was left may need to put its data aside.
const LEFT: Duration = Duration::from_secs(30);

impl Tour<'_> {
    /// The second site leaves and the spare one comes.
    pub(super) async fn swap(&mut self) -> Result<()> {
        let [first, leaves, third] = self.sites()?;
        let comes = self.stage.spare.clone();
        self.stage.story.chapter(&format!("a site is exchanged: {leaves} leaves, {comes} comes"));
        self.calm(&self.writer, CALM).await?;
        let at = self.now();
        self.shape(&[(&first, 1), (&third, 1), (&comes, 1)]).await?;
        self.left(&leaves).await?;
        let took = ms(self.now().saturating_sub(at));
        self.figures.swap_ms = took;
        let gap = self.writer.longest_gap(at, self.now());
        self.figures.planned("swap", gap);
        self.say(&format!(
            "three settled voters, and {leaves} has put its data aside, {took} ms after the manifest was applied; longest gap {}",
            self.gap(gap)
        ));
        self.show_members();
        Ok(())
    }

    /// Everything moves from two sites to the two others.
    pub(super) async fn move_everything(&mut self) -> Result<()> {
        let [first, second, third] = self.sites()?;
        let fourth = self.stage.spare.clone();
        self.stage.story.chapter(&format!(
            "everything moves from two sites to two others: from {first} and {fourth} to {third} and {second}"
        ));
        self.calm(&self.writer, CALM).await?;
        let at = self.now();
        self.shape(&[(&first, 2), (&fourth, 1)]).await?;
        self.left(&third).await?;
        let gap = self.writer.longest_gap(at, self.now());
        self.figures.planned("two sites", gap);
        self.say(&format!("two voters at {first}, one at {fourth}; longest gap {}", self.gap(gap)));
        self.show_members();
        self.say_risk();

        self.calm(&self.writer, CALM).await?;
        let at = self.now();
        let balanced = self.shape(&[(&third, 2), (&second, 1)]).await?;
        for site in [&first, &fourth] {
            self.left(site).await?;
        }
        self.figures.move_ms = ms(self.now().saturating_sub(at));
        self.figures.balanced_ms = ms(balanced);
        let gap = self.writer.longest_gap(at, self.now());
        self.figures.move_gap_ms = gap.ms();
        self.figures.planned("move", gap);
        self.say(&format!(
            "everything is at {third} and {second} {} ms after the manifest was applied; longest gap {}; six voters for {} ms",
            self.figures.move_ms,
            self.gap(gap),
            self.figures.balanced_ms
        ));
        self.show_members();
        Ok(())
    }

    fn sites(&self) -> Result<[String; 3]> {
        self.stage.sites.clone().try_into().ok().context("the tour needs three sites")
    }

    /// Applies a manifest with so many voters at each of these sites in all sites and waits until it is as it says; returns
    /// for how long there were as many old voters as new ones, as all of them moved.
    async fn shape(&self, shape: &[(&str, usize)]) -> Result<Duration> {
        let manifest = mesh::with_etcd(mesh::spread(FEDERATION, shape), self.stage.minor);
        self.stage.mesh.sites.iter().try_for_each(|site| site.apply(FEDERATION, &manifest))?;
        let words: Vec<String> = shape.iter().map(|(site, voters)| format!("{voters} at {site}")).collect();
        self.say(&format!("applied in all sites: {}", words.join(", ")));
        let (begun, ended) = (Cell::new(None), Cell::new(None));
        let good = |statuses: &super::Statuses| {
            let most = statuses.values().map(|status| status.arithmetic.voters).max();
            if most == Some(2 * VOTERS) {
                begun.set(begun.get().or_else(|| Some(self.now())));
                ended.set(Some(self.now()));
            }
            settled_as(statuses, shape)
        };
        self.watch.until(&format!("settled voters: {}", words.join(", ")), SETTLED, good).await?;
        // A put that was lost on the way shows only when its deadline is over.
        self.acknowledged(&self.writer, self.now() + writer::DEADLINE, super::FAILOVER).await?;
        Ok(ended.get().zip(begun.get()).map(|(ended, begun)| ended.saturating_sub(begun)).unwrap_or_default())
    }

    /// Waits until a site that is no longer wanted runs no etcd and has put the data aside.
    async fn left(&self, name: &str) -> Result<()> {
        let site = self.stage.mesh.site(name)?;
        let begun = self.now();
        loop {
            let etcds = self.stage.mesh.run.of(name, Kind::Etcd).len();
            let kept = data_directories(site)?;
            if etcds == 0 && kept == 0 {
                return Ok(());
            }
            if self.now() > begun + LEFT {
                bail!(
                    "{name} still runs {etcds} etcds and has {kept} data directories in use {} s after its members were removed:\n{}",
                    LEFT.as_secs(),
                    site.log_tail(20)
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What the status says of two sites (safety.md 2.5).
    fn say_risk(&self) {
        let statuses = self.watch.statuses();
        let mut conditions = statuses.values().flat_map(|status| &status.conditions);
        if let Some(risk) = conditions.find(|c| c.kind == ConditionType::QuorumAtRisk) {
            self.say(&format!("{:?}={:?}: {}", risk.kind, risk.status, risk.message));
        }
    }
}

/// How many data directories of a site are in use: not yet in the archive of their member.
fn data_directories(site: &Site) -> Result<usize> {
    let members = site.member(FEDERATION, "");
    let slots = match std::fs::read_dir(&members) {
        Ok(slots) => slots,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error).with_context(|| format!("cannot look into {}", members.display())),
    };
    Ok(slots.flatten().filter(|slot| slot.path().join("data").exists()).count())
}
