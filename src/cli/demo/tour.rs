//! The tour: grow, wipe, wipe the leader, kill sites, exchange a site, move everything, and prove that nothing was lost.

mod moves;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_link::etcd::EtcdClient;
use serde::Serialize;

use super::bare::{Bare, Timers};
use super::guide::{self, Guide};
use super::mesh::{Site, wipe};
use super::process::Kind;
use super::verify::verify;
use super::watch::{Statuses, Watch, endpoints, member_ids, settled, table};
use super::writer::{self, Gap, Writer, ms};
use super::{FEDERATION, Stage, UP};

/// How often the leader's site is killed, and the leader of the bare cluster: elections take a random time.
const ROUNDS: usize = 9;
const VOTERS: usize = 3;

const QUORATE: Duration = Duration::from_mins(1);
const SETTLED: Duration = Duration::from_mins(5);
const FAILOVER: Duration = Duration::from_secs(30);
/// Between two kills.
const BETWEEN: Duration = Duration::from_secs(1);
/// Longer than the rules ask for between two changes: a loss is measured in a calm cluster, not on the heels of a change.
const CALM: Duration = Duration::from_secs(6);
/// An answer that was on its way when a leader was killed can still come in.
const IN_FLIGHT: Duration = Duration::from_millis(300);

/// The figures; the first twelve are what is promised, in this order.
#[derive(Debug, Default, Serialize)]
struct Figures {
    etcd: String,
    acknowledged: usize,
    lost: usize,
    cluster_ids: usize,
    quorate_ms: u64,
    voters_ms: u64,
    replace_ms: u64,
    planned_gap_ms: u64,
    failover_gap_ms: u64,
    failover_bare_ms: u64,
    swap_ms: u64,
    move_gap_ms: u64,
    move_ms: u64,
    balanced_ms: u64,
    replaced_follower_ms: u64,
    replaced_leader_ms: u64,
    planned_gaps_ms: Vec<(&'static str, u64)>,
    failover_gaps_ms: Vec<u64>,
    failover_bare_gaps_ms: Vec<u64>,
    retried_puts: usize,
    seconds: u64,
}

impl Figures {
    fn planned(&mut self, what: &'static str, gap: Gap) {
        self.planned_gap_ms = self.planned_gap_ms.max(gap.ms());
        self.planned_gaps_ms.push((what, gap.ms()));
    }
}

struct Tour<'a> {
    stage: &'a Stage,
    /// When the last agent was up.
    zero: Duration,
    watch: Watch,
    writer: Writer,
    _guide: Guide,
    figures: Figures,
}

pub(super) async fn run(stage: &Stage) -> Result<ExitCode> {
    let begun = stage.clock.elapsed();
    let mut tour = Box::pin(begin(stage)).await?;
    tour.grow().await?;
    for leader in [false, true] {
        tour.wipe(leader).await?;
    }
    tour.move_leader().await?;
    Box::pin(tour.failover()).await?;
    Box::pin(tour.swap()).await?;
    Box::pin(tour.move_everything()).await?;
    let good = tour.prove().await?;
    tour.figures.seconds = stage.clock.elapsed().saturating_sub(begun).as_secs();
    tour.summary();
    tour.watch.stop().await;
    stage.story.result(&tour.figures);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts the agents; time counts from the moment when the last one is up.
async fn begin(stage: &Stage) -> Result<Tour<'_>> {
    let story = &stage.story;
    story.chapter("four sites, each with its own agent, trust roots and state folder");
    let zero = stage.raise().await?;
    story.chapter("bootstrap: one ballot, one seed, then learner by learner to three voters");
    let watch = Watch::start(&stage.mesh, FEDERATION, Some(story));
    let writer = Writer::start(stage.clients().await?, stage.clock);
    let guide = Guide::start(&stage.mesh, &watch, &writer);
    let figures = Figures { etcd: stage.version.clone(), ..Figures::default() };
    Ok(Tour { stage, zero, watch, writer, _guide: guide, figures })
}

impl<'a> Tour<'a> {
    fn now(&self) -> Duration {
        self.stage.clock.elapsed()
    }

    /// A gap with its time.
    fn gap(&self, gap: Gap) -> String {
        format!("{} ms (at {:.2} s)", gap.ms(), self.stage.story.seconds(gap.from))
    }

    fn say(&self, text: &str) {
        self.stage.story.say(text);
    }

    /// Waits for the first acknowledgement after `then`.
    async fn acknowledged(&self, writer: &Writer, then: Duration, patience: Duration) -> Result<()> {
        while writer.last().is_none_or(|last| last <= then) {
            if self.now() > then + patience {
                let error = writer.last_error().unwrap_or_else(|| "no attempt has failed".to_owned());
                let how = self.watch.describe();
                bail!(
                    "waited {} s for an acknowledged write ({error}); this is how it stands:\n{how}",
                    patience.as_secs()
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Waits until every site sees three live voters, none of which is in `old`.
    async fn settled(&self, what: &str, old: &BTreeSet<String>) -> Result<()> {
        let sites = &self.stage.sites;
        let good = |statuses: &Statuses| {
            let new = sites.iter().all(|site| member_ids(statuses, site).is_disjoint(old));
            new && settled(statuses, sites, VOTERS)
        };
        self.watch.until(what, SETTLED, good).await.map(drop)
    }

    fn show_members(&self) {
        if let Some(status) = self.watch.statuses().values().next() {
            self.stage.story.more(table(status).trim_start_matches('\n'));
        }
    }

    async fn leader(&self) -> Result<&'a Site> {
        let begun = self.now();
        let stage: &'a Stage = self.stage;
        loop {
            match stage.mesh.leader().await {
                Some(site) => return Ok(site),
                None if self.now() > begun + FAILOVER => bail!("nobody leads:\n{}", self.watch.describe()),
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn grow(&mut self) -> Result<()> {
        self.acknowledged(&self.writer, Duration::ZERO, QUORATE).await?;
        let first = self.writer.first().context("no acknowledged write")?;
        self.figures.quorate_ms = ms(first.saturating_sub(self.zero));
        self.say(&format!(
            "first acknowledged write, {} ms after the last agent was up",
            self.figures.quorate_ms
        ));
        self.settled("three settled voters", &BTreeSet::new()).await?;
        self.figures.voters_ms = ms(self.now().saturating_sub(self.zero));
        let gap = self.writer.longest_gap(first, self.now());
        self.figures.planned("growth", gap);
        self.say(&format!("three settled voters; longest gap between acknowledged writes {}", self.gap(gap)));
        self.show_members();
        Ok(())
    }

    /// Kills an etcd and empties its data directory.
    async fn wipe(&mut self, leader: bool) -> Result<()> {
        let word = if leader { "leader" } else { "follower" };
        self.stage.story.chapter(&format!("the {word}'s data directory is lost"));
        self.calm(&self.writer, CALM).await?;
        let leading = self.leader().await?.name.clone();
        let follower = self.stage.sites.iter().find(|site| **site != leading).context("no follower")?;
        let name = if leader { &leading } else { follower };
        let site = self.stage.mesh.site(name)?;
        let statuses = self.watch.statuses();
        let old = member_ids(&statuses, name);
        let at = self.now();
        wipe(&self.stage.mesh, site)?;
        self.say(&format!("killed etcd of {name} (member {}) and removed its data", join(&old)));
        self.settled(&format!("a new member at {name}, and three settled voters"), &old).await?;
        let took = ms(self.now().saturating_sub(at));
        // The gap that the kill itself makes is not a planned one; it is measured below, against bare etcd.
        let own = self.writer.longest_gap_beginning(at.saturating_sub(IN_FLIGHT), at + IN_FLIGHT);
        let from = if leader { own.to + Duration::from_micros(1) } else { at };
        let gap = self.writer.longest_gap(from, self.now());
        self.figures.replace_ms = self.figures.replace_ms.max(took);
        if leader {
            self.figures.replaced_leader_ms = took;
            self.figures.planned("replace leader", gap);
        } else {
            self.figures.replaced_follower_ms = took;
            self.figures.planned("replace follower", gap);
        }
        let election =
            if leader { format!(", after {} ms for the election", own.ms()) } else { String::new() };
        let gap = self.gap(gap);
        self.say(&format!("three settled voters {took} ms after the loss; longest gap {gap}{election}"));
        self.show_members();
        Ok(())
    }

    /// Hands leadership over while the writer runs.
    async fn move_leader(&mut self) -> Result<()> {
        self.stage.story.chapter("the leader hands over");
        let from = self.leader().await?;
        let to = self.stage.sites.iter().find(|name| **name != from.name).context("no other site")?;
        let target = self.stage.mesh.site(to)?.client().await?.status().await?.header.member_id;
        let at = self.now();
        from.client().await?.move_leader(target).await.context("moving the leader")?;
        let patience = at + FAILOVER;
        while self.leader().await?.name != *to {
            if self.now() > patience {
                bail!("{to} does not lead {} s after it was asked to", FAILOVER.as_secs());
            }
        }
        // A put that was lost on the way shows only when its deadline is over.
        self.acknowledged(&self.writer, self.now() + writer::DEADLINE, FAILOVER).await?;
        let gap = self.writer.longest_gap(at, self.now());
        self.figures.planned("leader move", gap);
        self.say(&format!("{} handed over to {to}; longest gap {}", from.name, self.gap(gap)));
        Ok(())
    }

    /// Kills the leader's site, and the leader of a bare cluster, in turn.
    async fn failover(&mut self) -> Result<()> {
        let Stage { mesh, sites, etcd, .. } = self.stage;
        self.stage
            .story
            .chapter("the leader's site dies and returns, beside a bare etcd cluster killed the same way");
        let running = mesh.run.of(sites.first().context("no sites")?, Kind::Etcd);
        let timers = Timers::of(running.first().context("no etcd runs")?);
        self.say(&format!(
            "bare etcd: heartbeat {} ms, election {} ms, as here",
            timers.heartbeat, timers.election
        ));
        let bare = Bare::start(&mesh.run, etcd.clone(), self.stage.network, timers)?;
        bare.healthy(QUORATE).await?;
        let bare_writer = Writer::start(bare.clients().await?, self.stage.clock);
        for round in 1..=ROUNDS {
            let (site, gap) = self.kill_site().await?;
            self.figures.failover_gaps_ms.push(gap.ms());
            let (number, bare_gap) = self.kill_bare(&bare, &bare_writer).await?;
            self.figures.failover_bare_gaps_ms.push(bare_gap.ms());
            self.say(&format!(
                "round {round} of {ROUNDS}: site {site} killed and back, gap {} ms; bare-{number} killed, gap {} ms",
                gap.ms(),
                bare_gap.ms()
            ));
        }
        self.figures.failover_gap_ms = median(&self.figures.failover_gaps_ms);
        self.figures.failover_bare_ms = median(&self.figures.failover_bare_gaps_ms);
        bare_writer.stop().await;
        bare.stop(&mesh.run);
        Ok(())
    }

    async fn kill_site(&self) -> Result<(String, Gap)> {
        let mesh = &self.stage.mesh;
        let site = self.leader().await?;
        self.calm(&self.writer, BETWEEN).await?;
        let old = member_ids(&self.watch.statuses(), &site.name);
        let at = self.now();
        mesh.run.kill_site(&site.name)?;
        self.say(&format!("killed the agent and the supervisor of {}, which leads", site.name));
        mesh.gone(site, &[Kind::Agent, Kind::Member, Kind::Etcd], FAILOVER).await?;
        self.acknowledged(&self.writer, at + IN_FLIGHT, FAILOVER).await?;
        mesh.start(site)?;
        mesh.up(site, UP).await?;
        self.say(&format!("{} is back", site.name));
        self.settled(
            &format!("{} to resume on its data, and three settled voters", site.name),
            &BTreeSet::new(),
        )
        .await?;
        if member_ids(&self.watch.statuses(), &site.name) != old {
            bail!(
                "{} came back as another member than {}:\n{}",
                site.name,
                join(&old),
                self.watch.describe()
            );
        }
        Ok((site.name.clone(), self.writer.longest_gap(at, self.now())))
    }

    async fn kill_bare(&self, bare: &Bare, writer: &Writer) -> Result<(u8, Gap)> {
        let run = &self.stage.mesh.run;
        let number = bare.healthy(FAILOVER).await?;
        self.calm(writer, BETWEEN).await?;
        let at = self.now();
        bare.kill(run, number);
        bare.gone(run, number, FAILOVER).await?;
        self.acknowledged(writer, at + IN_FLIGHT, FAILOVER).await?;
        bare.spawn(run, number)?;
        bare.healthy(FAILOVER).await?;
        Ok((number, writer.longest_gap(at, self.now())))
    }

    /// Lets some time of undisturbed writing pass, so that one event does not run into the next.
    async fn calm(&self, writer: &Writer, time: Duration) -> Result<()> {
        self.acknowledged(writer, self.now() + time, FAILOVER).await
    }

    /// Looks for everything that was acknowledged, through every voter.
    async fn prove(&mut self) -> Result<bool> {
        self.stage.story.chapter("proof");
        self.figures.acknowledged = self.writer.stop().await;
        self.figures.retried_puts = self.writer.retries();
        let urls = endpoints(&self.watch.statuses()).context("nobody says where the voters are")?;
        let voters = guide::clients(&self.stage.mesh.sites, &urls).await?;
        let lists = member_lists(&voters).await?;
        let proof = verify(&voters, self.figures.acknowledged).await?;
        self.figures.lost = proof.lost;
        self.say(&format!(
            "{} acknowledged keys read through each of {} voters: {} lost",
            self.figures.acknowledged,
            voters.len(),
            proof.lost
        ));
        self.say(&format!(
            "HashKV {:08x} at revision {} on all voters; members {lists}",
            proof.hash, proof.revision
        ));
        let ids = self.watch.cluster_ids();
        self.figures.cluster_ids = ids.len();
        self.say(&format!("cluster ids ever seen: {}", join(&ids)));
        Ok(proof.lost == 0 && ids.len() == 1)
    }

    fn summary(&self) {
        let f = &self.figures;
        let story = &self.stage.story;
        story.chapter(&format!("etcd {}, {} s; reach in brackets", f.etcd, f.seconds));
        let rows = [
            ("lost of the acknowledged writes", format!("{} of {} [0]", f.lost, f.acknowledged)),
            ("cluster ids ever seen", format!("{} [1]", f.cluster_ids)),
            ("first acknowledged write", format!("{} ms [5000]", f.quorate_ms)),
            ("three settled voters", format!("{} ms [25000]", f.voters_ms)),
            (
                "wiped to three settled voters again",
                format!(
                    "{} ms [20000] (follower {}, leader {})",
                    f.replace_ms, f.replaced_follower_ms, f.replaced_leader_ms
                ),
            ),
            (
                "longest gap in planned changes",
                format!("{} ms [300] {:?}", f.planned_gap_ms, f.planned_gaps_ms),
            ),
            (
                "gap when the leader's site dies",
                format!(
                    "{} ms, bare etcd {} ms [1.2 x] (medians of {:?} and {:?})",
                    f.failover_gap_ms, f.failover_bare_ms, f.failover_gaps_ms, f.failover_bare_gaps_ms
                ),
            ),
        ];
        let rows = rows.into_iter().chain([
            ("a site exchanged for another one", format!("{} ms", f.swap_ms)),
            (
                "everything moved to two other sites",
                format!(
                    "gap {} ms [300], {} ms in all, {} ms with as many old voters as new ones",
                    f.move_gap_ms, f.move_ms, f.balanced_ms
                ),
            ),
        ]);
        for (what, figure) in rows {
            story.line(&format!("  {what:<38} {figure}"));
        }
    }
}

/// Every voter's own list has to be the same: three voters, no learner.
async fn member_lists(voters: &[EtcdClient]) -> Result<String> {
    let mut all = BTreeSet::new();
    for voter in voters {
        let list = voter.member_list(false).await.with_context(|| format!("asking {}", voter.endpoint()))?;
        if list.members.len() != VOTERS || list.members.iter().any(|member| member.is_learner) {
            bail!("{} has another list of members: {:?}", voter.endpoint(), list.members);
        }
        all.insert(
            list.members.iter().map(|m| format!("{:x} {}", m.id, m.name)).collect::<Vec<_>>().join(", "),
        );
    }
    match all.pop_first() {
        Some(list) if all.is_empty() => Ok(list),
        _ => bail!("the voters' lists of members differ: {all:?}"),
    }
}

fn join(words: &BTreeSet<String>) -> String {
    words.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
