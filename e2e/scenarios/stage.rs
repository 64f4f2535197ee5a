//! What a case works with: a field with settled voters, a writer at work, and a witness of everything.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use quorate_cli::demo::mesh::wipe;
use quorate_cli::demo::process::{Kind, Process};
use quorate_cli::demo::verify::verify;
use quorate_cli::demo::watch::{Statuses, member_ids, settled};
use quorate_cli::demo::writer::Writer;
use quorate_core::condition::Status;
use quorate_e2e::field::{FEDERATION, Field, UP};
use quorate_e2e::suite::Outcome;
use quorate_link::clock::Clock;
use quorate_link::etcd::EtcdClient;
use rustix::process::{Pid, Signal};

use crate::witness::Witness;

/// Three sites, the least that survives the loss of one.
pub(crate) const THREE: [&str; 3] = ["east", "west", "north"];
/// The same, and one that can take over.
pub(crate) const FOUR: [&str; 4] = ["east", "west", "north", "south"];
/// How long something may take on a machine that does other things too. The limit of a whole case is ten minutes.
pub(crate) const PATIENCE: Duration = Duration::from_mins(4);
/// How long nothing may happen where nothing must: a planner that is allowed to acts within a second or two, and the last
/// change holds it up for five at most.
pub(crate) const QUIET: Duration = Duration::from_secs(12);
/// Between two looks at something that changes within milliseconds.
const LOOK: Duration = Duration::from_millis(20);

/// See the module.
pub(crate) struct Stage {
    pub(crate) field: Arc<Field>,
    pub(crate) writer: Writer,
    pub(crate) witness: Witness,
}

impl Stage {
    /// One voter in each of these clusters, all settled.
    pub(crate) async fn raise(field: Arc<Field>, clusters: &[&str]) -> Result<Self> {
        let spec = field.spec(clusters, &[&format!("members: {}", clusters.len())]);
        Self::with(field, &spec, clusters.len()).await
    }

    /// What a spec asks for, settled.
    pub(crate) async fn with(field: Arc<Field>, spec: &str, voters: usize) -> Result<Self> {
        // Before anything runs: it sees the seed's first command line too.
        let witness = Witness::start(&field);
        field.raise(spec, voters).await?;
        witness.forget();
        let writer = field.writer().await?;
        Ok(Self { field, writer, witness })
    }

    /// Applies a spec with one voter in each of these clusters, everywhere.
    pub(crate) fn wish(&self, clusters: &[&str]) -> Result<()> {
        self.field.apply(&self.field.spec(clusters, &[&format!("members: {}", clusters.len())]))
    }

    /// Waits until the clusters have one settled voter each; a cluster that is named twice, two.
    pub(crate) async fn settled(&self, clusters: &[&str]) -> Result<Statuses> {
        self.until(&format!("settled voters in {clusters:?}"), |now| are_settled(now, clusters)).await
    }

    /// Waits for something that the statuses show.
    pub(crate) async fn until(&self, what: &str, good: impl Fn(&Statuses) -> bool) -> Result<Statuses> {
        self.field.watch.until(what, PATIENCE, good).await
    }

    /// Waits until the site that executes says something that is good.
    pub(crate) async fn executing(&self, what: &str, good: impl Fn(&Status) -> bool) -> Result<()> {
        let leads = |s: &&Status| s.executor.as_deref() == Some(s.observed_from.as_str());
        self.until(what, |now| now.values().filter(leads).any(&good)).await.map(drop)
    }

    /// Waits for something that is not in the statuses.
    pub(crate) async fn for_a<T>(
        &self,
        what: &str,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let clock = Clock::start();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if clock.elapsed() > PATIENCE {
                bail!(
                    "waited {PATIENCE:?} for {what}; this is how it stands:\n{}",
                    self.field.watch.describe()
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until a status has said all of these words in one sentence.
    pub(crate) async fn said(&self, words: &[&str]) -> Result<String> {
        let clock = Clock::start();
        loop {
            let said = self.field.watch.said();
            if let Some(line) = said.iter().find(|line| words.iter().all(|word| line.contains(word))) {
                return Ok(line.clone());
            }
            if clock.elapsed() > PATIENCE {
                bail!("no status ever said {words:?}; what was said:\n{}", said.join("\n"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The site that leads, and the two others of three.
    pub(crate) async fn cast(&self) -> Result<[String; 3]> {
        let leader = self.field.leader().await?;
        let other = self.field.other_than(&[&leader])?;
        let third = self.field.other_than(&[&leader, &other])?;
        Ok([leader, other, third])
    }

    /// The id of the one member of a site, as the statuses have it.
    pub(crate) fn member(&self, site: &str) -> Result<String> {
        let ids = member_ids(&self.field.watch.statuses(), site);
        ensure!(ids.len() == 1, "{site} has not one member but {ids:?}");
        ids.into_iter().next().context("no member")
    }

    /// Waits until a site has another member than this one, and everything is settled in the clusters; its id.
    pub(crate) async fn replaced(&self, site: &str, old: &str, clusters: &[&str]) -> Result<String> {
        let other = |now: &Statuses| {
            let ids = member_ids(now, site);
            ids.len() == 1 && !ids.contains(old)
        };
        self.until(&format!("another member at {site} than {old}"), other).await?;
        let statuses = self.settled(clusters).await?;
        let new = member_ids(&statuses, site).into_iter().next().context("no new member")?;
        ensure!(new != old, "the id {old} was used again");
        ensure!(!self.field.members().contains(old), "{old} is still listed");
        Ok(new)
    }

    /// The folder of the member of a site.
    pub(crate) fn volume(&self, site: &str) -> Result<PathBuf> {
        Ok(self.field.site(site)?.member(FEDERATION, &format!("main-{site}-0")))
    }

    /// What lies in the archive of a site's member.
    pub(crate) fn archive(&self, site: &str) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(self.volume(site)?.join("archive")).into_iter().flatten().flatten();
        Ok(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    }

    /// Kills a whole site and waits until nothing of it is left.
    pub(crate) async fn kill(&self, site: &str) -> Result<()> {
        self.field.mesh.run.kill_site(site)?;
        let kinds = [Kind::Agent, Kind::Member, Kind::Etcd, Kind::Other];
        self.field.mesh.run.gone(site, &kinds, PATIENCE).await
    }

    /// Kills processes of one kind at a site.
    pub(crate) async fn kill_all(&self, site: &str, kind: Kind) -> Result<()> {
        let killed = self.field.mesh.run.kill(site, kind);
        ensure!(!killed.is_empty(), "nothing to kill: no {kind:?} at {site}");
        self.for_a("the end of what was killed", || {
            let left = self.field.mesh.run.of(site, kind).iter().any(|process| killed.contains(&process.pid));
            Ok((!left).then_some(()))
        })
        .await
    }

    /// Starts the agent of a site and waits until it is up.
    pub(crate) async fn start(&self, site: &str) -> Result<()> {
        let site = self.field.site(site)?;
        self.field.mesh.start(site)?;
        self.field.mesh.up(site, UP).await
    }

    /// Kills the etcd of a site and removes its data directory.
    pub(crate) fn wipe(&self, site: &str) -> Result<()> {
        wipe(&self.field.mesh, self.field.site(site)?)
    }

    /// The etcd processes of a site.
    pub(crate) fn etcds(&self, site: &str) -> Vec<Process> {
        self.field.mesh.run.of(site, Kind::Etcd)
    }

    /// Waits until a site runs an etcd; its process.
    pub(crate) async fn etcd(&self, site: &str) -> Result<Process> {
        self.for_a(&format!("an etcd at {site}"), || Ok(self.etcds(site).into_iter().next())).await
    }

    /// A client of the member of a site, as a user has it.
    pub(crate) async fn client(&self, site: &str) -> Result<EtcdClient> {
        self.field.site(site)?.client().await
    }

    /// Leadership goes from one site to another, by hand.
    pub(crate) async fn lead(&self, from: &str, to: &str) -> Result<()> {
        let to = u64::from_str_radix(&self.member(to)?, 16)?;
        self.client(from).await?.move_leader(to).await.context("moving leadership by hand")
    }

    /// Some more acknowledged writes.
    pub(crate) async fn writes(&self) -> Result<()> {
        for _ in 0..3 {
            self.field.writes(&self.writer).await?;
        }
        Ok(())
    }

    /// The raft term, as the leader has it.
    pub(crate) async fn term(&self) -> Result<u64> {
        let leader = self.field.leader().await?;
        Ok(self.client(&leader).await?.status().await?.header.raft_term)
    }

    /// Ends a case with one voter in each of these clusters: what etcd itself lists, what was written, and the rules that
    /// hold in every case. The margin never was below `least` since [`Witness::forget`].
    pub(crate) async fn end(&self, clusters: &[&str], least: i64) -> Result<Outcome> {
        let outcome = self.end_among(clusters, least).await?;
        ensure!(outcome.cluster_ids == 1, "cluster ids: {:?}", self.field.watch.cluster_ids());
        Ok(outcome)
    }

    /// The same where a foreign etcd was about on purpose.
    pub(crate) async fn end_among(&self, clusters: &[&str], least: i64) -> Result<Outcome> {
        let statuses = self.settled(clusters).await?;
        let expected: BTreeSet<String> =
            clusters.iter().flat_map(|site| member_ids(&statuses, site)).collect();
        let acknowledged = self.writer.stop().await;
        let voters = self.field.voters().await?;
        for voter in &voters {
            let status = voter.status().await?;
            ensure!(!status.is_learner && status.errors.is_empty(), "{} says {status:?}", voter.endpoint());
            for linearizable in [true, false] {
                let list = voter.member_list(linearizable).await?.members;
                let ids: BTreeSet<String> = list.iter().map(|member| format!("{:x}", member.id)).collect();
                ensure!(ids == expected, "{} lists {ids:?}, not {expected:?}", voter.endpoint());
                ensure!(list.iter().all(|member| !member.is_learner), "a learner is left: {list:?}");
            }
        }
        self.witness.rules()?;
        let proof = verify(&voters, acknowledged).await?;
        let outcome = Outcome {
            acknowledged,
            lost: proof.lost,
            cluster_ids: self.field.watch.cluster_ids().len(),
            smallest_margin: self.witness.least_margin(),
            voters: voters.len(),
            planned_gap_ms: None,
        };
        ensure!(outcome.lost == 0, "{} of {acknowledged} acknowledged keys are lost", outcome.lost);
        // By what really ran: an agent that has only just found out who leads takes the others for missing.
        let margin = self.witness.least_margin();
        ensure!(margin >= Some(least), "the margin fell to {margin:?}, not only to {least}");
        Ok(outcome)
    }
}

/// Whether the clusters have one settled voter each, as often as they are named, and nobody else has one.
pub(crate) fn are_settled(now: &Statuses, clusters: &[&str]) -> bool {
    let sites: Vec<String> = clusters.iter().map(|site| (*site).to_owned()).collect();
    let wished = |site: &String| sites.iter().filter(|other| *other == site).count();
    settled(now, &sites, sites.len()) && sites.iter().all(|site| member_ids(now, site).len() == wished(site))
}

/// Sends a signal to a process.
pub(crate) fn signal(process: &Process, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(process.pid).context("no process id")?;
    Ok(rustix::process::kill_process(pid, signal)?)
}
