//! The agent that executes is killed before and after every effect of an add, a promotion, a removal and a move of
//! leadership, by itself at the named moment (the feature `crash-points` of the agent).
//!
//! What is durable then is all that the next run has: the record of each agent, and the list of etcd.

use anyhow::{Context as _, Result, bail, ensure};
use quorate_cli::demo::process::Kind;
use quorate_e2e::field::UP;
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};
use quorate_link::clock::Clock;

use crate::course::{Course, PATIENCE, case};

pub(crate) const CASES: &[Case] = &[
    case("executor_killed::before_the_proposal_and_while_it_is_written", |minor| {
        killed(minor, &["1 ProveRole", "2 Collect", "3 Look", "4 Propose", "4 ProposeOwn"], &["5 MarkSent"])
    }),
    case("executor_killed::around_the_fence_and_the_call", |minor| {
        killed(minor, &["6 ProveRole"], &["7 Send"])
    }),
    case("executor_killed::after_the_call", |minor| killed(minor, &["8 ProveRole"], &["9 Tell"])),
    case("executor_killed::while_it_is_told", |minor| killed(minor, &["9 TellOwn"], &["10 Finish"])),
    case("executor_killed::while_it_resolves_what_it_left", |minor| {
        killed(minor, &["5 MarkSent", "4 Wait", "7 Propose", "10 Send"], &["8 ProveRole", "6 Look", "7 Tell"])
    }),
    case("executor_killed::while_it_moves_leadership", moving),
];

const ALL: [&str; 5] = ["a", "b", "c", "d", "e"];
const SLOTS: [&str; 5] = ["a-0", "b-0", "c-0", "d-0", "e-0"];
const STEPS: [&str; 3] = ["AddLearner", "Promote", "Remove"];

/// Growth from three to five voters and back, which is each step twice: the agent dies at all moments of `first` in the
/// first of the two, and at those of `second` in the second. Between two deaths it is started again, and goes on.
fn killed(minor: Minor, first: &'static [&'static str], second: &'static [&'static str]) -> Result<Outcome> {
    on_sites(minor, &ALL, &[], |field| async move {
        let three = field.spec(&ALL[..3], &["members: 3"]);
        let five = field.spec(&ALL, &["members: 5"]);
        let course = Course::begin(field, &three, &SLOTS[..3]).await?;
        let etcds = course.field.etcds();
        let kept: Vec<String> = SLOTS[..3].iter().map(|slot| course.id(slot)).collect::<Result<_>>()?;
        // Nobody that leads is to be removed: that is the last case.
        let mut deaths: Vec<String> = Vec::new();
        for moments in [first, second] {
            for step in &STEPS[..2] {
                deaths.extend(moments.iter().map(|moment| format!("{step} {moment}")));
            }
        }
        course.dies_at(&deaths, &five, &SLOTS).await?;
        ensure!(ALL[..3].contains(&course.field.leader().await?.as_str()), "a newcomer leads");
        let removals =
            |moments: &[&str]| moments.iter().map(|moment| format!("Remove {moment}")).collect::<Vec<_>>();
        course.dies_at(&[removals(first), removals(second)].concat(), &three, &SLOTS[..3]).await?;

        let ids: Vec<String> = SLOTS[..3].iter().map(|slot| course.id(slot)).collect::<Result<_>>()?;
        ensure!(ids == kept, "a voter that stays was replaced: {kept:?} became {ids:?}");
        let now = course.field.etcds();
        ensure!(
            etcds.iter().all(|etcd| now.contains(etcd)),
            "an etcd that stays was restarted: {etcds:?}, {now:?}"
        );
        course.end(&ALL[..3], &SLOTS[..3], 1).await
    })
}

/// A swap of the site that leads: the agent dies around the call that moves leadership away.
fn moving(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &ALL[..4], &[], |field| async move {
        let before = field.spec(&ALL[..3], &[]);
        let course = Course::begin(field, &before, &SLOTS[..3]).await?;
        let leader = course.field.leader().await?;
        let stay: Vec<&str> = ALL[..4].iter().copied().filter(|site| *site != leader).collect();
        let slots: Vec<&str> = SLOTS[..4].iter().copied().filter(|slot| !slot.starts_with(&leader)).collect();
        let after = course.field.spec(&stay, &[]);
        let deaths = ["4 ProveRole", "5 Send", "6 Finish"].map(|moment| format!("MoveLeader {moment}"));
        course.dies_at(&deaths, &after, &slots).await?;
        course.end(&stay, &slots, 1).await
    })
}

impl Course {
    /// Applies a spec and lets the executing agent die at each of these moments, one after the other.
    async fn dies_at(&self, moments: &[String], spec: &str, slots: &[&str]) -> Result<()> {
        let before = self.generation();
        let mut moments = moments.iter();
        let mut moment = moments.next().context("no moment")?;
        self.arm(moment)?;
        self.field.apply(spec)?;
        loop {
            let site = self.dead_agent(moment).await?;
            let Some(next) = moments.next() else {
                self.start(&site).await?;
                break;
            };
            // Before it is back: what it does first may be what is named.
            self.arm(next)?;
            moment = next;
            self.start(&site).await?;
        }
        let sites = self.field.in_spec(spec);
        self.effective(&sites, before).await?;
        self.settled(&sites, slots).await.map(drop)
    }

    /// Whichever agent comes to this moment first is to die there. What an agent left open is closed by the same step once
    /// more or by a Void, as its successor sees the others by then: then the moments of those count as well.
    fn arm(&self, moment: &str) -> Result<()> {
        for site in &self.field.mesh.sites {
            let also = match moment.split_once(' ') {
                Some((_, late @ "7 Propose")) => format!("\nVoid {late}"),
                Some((step, "10 Send")) => format!("\n{step} 7 Send"),
                _ => String::new(),
            };
            std::fs::write(site.state().join("crash-point"), format!("{moment}{also}"))?;
        }
        Ok(())
    }

    /// Waits until an agent has died at this moment; its site. The others live on unharmed.
    async fn dead_agent(&self, moment: &str) -> Result<String> {
        let clock = Clock::start();
        let reached = |site: &&quorate_cli::demo::mesh::Site| !site.state().join("crash-point").exists();
        let site = loop {
            if let Some(site) = self.field.mesh.sites.iter().find(reached) {
                break site;
            }
            if clock.elapsed() > PATIENCE {
                bail!(
                    "no agent came to {moment:?} (is the binary built with --all-features?):\n{}\n{:?}",
                    self.field.watch.describe(),
                    self.steps()
                );
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        };
        for other in self.field.mesh.sites.iter().filter(|other| other.name != site.name) {
            // Leadership may move: nobody else is to follow.
            let _ = std::fs::remove_file(other.state().join("crash-point"));
        }
        self.field.mesh.run.gone(&site.name, &[Kind::Agent], UP).await?;
        Ok(site.name.clone())
    }
}
