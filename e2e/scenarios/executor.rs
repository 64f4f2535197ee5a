//! B, continued: agents that die, stand still or are two in the middle of a change.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use quorate_api::document::format;
use quorate_cli::demo::mesh::NAMESPACE;
use quorate_cli::demo::process::Kind;
use quorate_core::intent::record::Record;
use quorate_core::intent::{HeldIntent, IntentState};
use quorate_e2e::field::FEDERATION;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome, on_sites};
use quorate_link::clock::Clock;
use quorate_link::durable;
use quorate_link::etcd::Error;
use rustix::process::Signal;

use crate::raw::on_raw;
use crate::stage::{FOUR, PATIENCE, Stage, THREE, are_settled, signal};

pub(crate) const CASES: &[Case] = &[
    Case { name: "s20_agent_dies_in_the_middle_of_an_add", minors: ALL, short: None, run: s20 },
    Case { name: "s21_two_changes_at_once", minors: ALL, short: None, run: s21 },
];

/// The record of a site as it is on disk now.
fn record(stage: &Stage, site: &str) -> Result<Option<Record>> {
    let folder =
        stage.field.site(site)?.state().join("federations").join(format!("{NAMESPACE}.{FEDERATION}"));
    Ok(durable::read(&folder.join("record.json"), format::RECORD)?)
}

/// A moment in the life of a step, as the executor's record shows it.
#[derive(Debug, Clone, Copy)]
struct Moment {
    kind: &'static str,
    /// The mark that is set before the call is sent.
    sent: bool,
    state: IntentState,
}

impl Moment {
    const fn open(kind: &'static str, sent: bool) -> Self {
        Self { kind, sent, state: IntentState::Open }
    }

    fn is_now(self, held: &HeldIntent, site: &str, after: u64) -> bool {
        let own = held.intent.executors.last().is_some_and(|executor| executor.as_str() == site);
        let sent = held.sent_by_me == self.sent || !held.open();
        let kind = held.intent.kind.name() == self.kind;
        own && kind && sent && held.state == self.state && held.intent.seq.0 > after
    }
}

/// Stops (SIGSTOP) the agent of the site that executes in this moment of a change towards `wished`; none if the change was
/// over before.
async fn stop_in(stage: &Stage, moment: Moment, wished: &[&str]) -> Result<Option<String>> {
    let highest = |site: &str| -> Result<u64> { Ok(record(stage, site)?.map_or(0, |record| record.seq().0)) };
    let mut before = 0;
    for site in FOUR {
        before = before.max(highest(site)?);
    }
    stage.wish(wished)?;
    let clock = Clock::start();
    loop {
        for site in FOUR {
            let now = || -> Result<bool> {
                let held = record(stage, site)?.and_then(|record| record.intent);
                Ok(held.is_some_and(|held| moment.is_now(&held, site, before)))
            };
            if !now()? {
                continue;
            }
            let agents = stage.field.mesh.run.of(site, Kind::Agent);
            agents.iter().try_for_each(|agent| signal(agent, Signal::STOP))?;
            if now()? {
                return Ok(Some(site.to_owned()));
            }
            // It went on before it was stopped.
            agents.iter().try_for_each(|agent| signal(agent, Signal::CONT))?;
        }
        if are_settled(&stage.field.watch.statuses(), wished) {
            return Ok(None);
        }
        ensure!(clock.elapsed() < PATIENCE, "{moment:?} never came:\n{}", stage.field.watch.describe());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The three sites after one that does not lead was exchanged for the one that is not there.
async fn exchanged(stage: &Stage, now: &[String]) -> Result<Vec<String>> {
    let leader = stage.field.leader().await?;
    let leaves = now.iter().find(|site| **site != leader).context("no follower")?;
    let joins = stage.field.other_than(&now.iter().map(String::as_str).collect::<Vec<_>>())?;
    let stays = now.iter().filter(|site| *site != leaves).cloned();
    Ok(stays.chain([joins]).collect())
}

/// S20: the executor's agent dies at each point of an addition, and either comes back or another site's agent takes over.
/// The open intent is resolved; there is one learner at any time and no orphan at the end.
fn s20(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let mut sites: Vec<String> = THREE.map(str::to_owned).to_vec();
        let applied = Moment { kind: "AddLearner", sent: true, state: IntentState::Applied };
        let moments = [
            Moment::open("AddLearner", false),
            Moment::open("AddLearner", true),
            applied,
            Moment::open("Promote", true),
        ];
        for (number, moment) in moments.into_iter().enumerate() {
            let before = stage.witness.calls().await;
            let mut tries = 0;
            let executor = loop {
                sites = exchanged(&stage, &sites).await?;
                let wished: Vec<&str> = sites.iter().map(String::as_str).collect();
                if let Some(executor) = stop_in(&stage, moment, &wished).await? {
                    break executor;
                }
                tries += 1;
                ensure!(tries < 8, "{moment:?} was never caught");
            };
            stage.kill_all(&executor, Kind::Agent).await?;
            if number % 2 == 1 {
                // Any other voter's site: its agent has to find out what was begun.
                let heir =
                    THREE.into_iter().find(|site| **site != executor && sites.iter().any(|s| s == site));
                stage.lead(&executor, heir.context("no heir")?).await?;
            }
            stage.start(&executor).await?;
            let wished: Vec<&str> = sites.iter().map(String::as_str).collect();
            stage.settled(&wished).await?;
            for site in &sites {
                let held = record(&stage, site)?.and_then(|record| record.intent).context("no intent")?;
                ensure!(!held.open(), "{moment:?}: {site} still holds {held:?}");
            }
            let calls = stage.witness.calls().await.since(&before);
            ensure!(
                calls.answered("MemberAdd", "OK") == tries + 1,
                "{moment:?}: {calls:?} after {tries} more"
            );
        }
        stage.end(&sites.iter().map(String::as_str).collect::<Vec<_>>(), 0).await
    })
}

/// S21: raft drops the second of two changes, and its caller waits for ever. quorate's adapter never takes that for a
/// result; and of two agents that both take themselves for the executor one changes nothing.
fn s21(minor: Minor) -> Result<Outcome> {
    on_raw(minor, |raw| async move {
        raw.cluster(5).await?;
        let leader = raw.healthy(&[1, 2, 3, 4, 5]).await?;
        let others: Vec<u8> = (1..=5).filter(|number| *number != leader).collect();
        let mut removals = Vec::new();
        let [one, two, three, _] = others.as_slice() else { bail!("five members") };
        for (at, target) in [(leader, one), (*one, two), (*two, three)] {
            let target = raw.id(*target).await?;
            let client = raw.client(at).await?.with_deadline(Duration::from_secs(9));
            removals.push(async move { (target, client.member_remove(target).await) });
        }
        let results = futures::future::join_all(removals).await;
        let list = raw.client(leader).await?.member_list(true).await?;
        let listed = |id: u64| list.members.iter().any(|member| member.id == id);
        for (id, result) in &results {
            match result {
                Ok(_) => ensure!(!listed(*id), "{id:x} was acknowledged and is still listed"),
                Err(Error::Unknown { .. }) => {}
                Err(error) if error.is_definite() => {
                    ensure!(listed(*id), "{id:x} was refused ({error}) and is gone");
                }
                Err(error) => bail!("{error}"),
            }
        }
        ensure!(results.iter().any(|(id, _)| !listed(*id)), "nothing was removed: {results:?}");
        Ok(())
    })?;
    on_sites(minor, &FOUR, &[], |field| async move {
        let stage = Stage::raise(field, &THREE).await?;
        let mut sites: Vec<String> = THREE.map(str::to_owned).to_vec();
        let mut before = stage.witness.calls().await;
        let first = loop {
            sites = exchanged(&stage, &sites).await?;
            let wished: Vec<&str> = sites.iter().map(String::as_str).collect();
            let moment = Moment::open("AddLearner", false);
            if let Some(first) = stop_in(&stage, moment, &wished).await? {
                break first;
            }
            before = stage.witness.calls().await;
        };
        // It stands still with a change in its hands, and another one leads and executes meanwhile.
        let second = sites.iter().find(|site| **site != first && THREE.contains(&site.as_str()));
        let second = second.context("no second")?;
        stage.lead(&first, second).await?;
        let resolved = || -> Result<bool> {
            Ok(record(&stage, second)?.and_then(|record| record.intent).is_some_and(|held| !held.open()))
        };
        let clock = Clock::start();
        while !resolved()? {
            ensure!(
                clock.elapsed() < PATIENCE,
                "the second executor leaves it open:\n{}",
                stage.field.watch.describe()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for agent in stage.field.mesh.run.of(&first, Kind::Agent) {
            signal(&agent, Signal::CONT)?;
        }
        let wished: Vec<&str> = sites.iter().map(String::as_str).collect();
        stage.settled(&wished).await?;
        let calls = stage.witness.calls().await.since(&before);
        let once =
            ["MemberAdd", "MemberPromote", "MemberRemove"].iter().all(|m| calls.answered(m, "OK") == 1);
        ensure!(once, "two executors did the same: {calls:?}");
        stage.end(&wished, 0).await
    })
}
