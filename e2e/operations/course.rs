//! What a case works with: a field with a writer at work, the steps that were taken, and how it has to end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use quorate_cli::demo::mesh::wipe;
use quorate_cli::demo::process::Kind;
use quorate_cli::demo::watch::{Statuses, member_ids, settled};
use quorate_cli::demo::writer::{Gap, Writer};
use quorate_core::condition::{MemberStatus, Status};
use quorate_e2e::field::{FEDERATION, Field, Told, UP};
use quorate_e2e::suite::{ALL, Case, Minor, Outcome};
use quorate_link::clock::Clock;
use quorate_link::etcd::EtcdClient;

use crate::pulse::Pulse;

/// How long something may take on a machine that does other things too. The limit of a whole case is ten minutes.
pub(crate) const PATIENCE: Duration = Duration::from_mins(4);
/// The seconds of a day.
const DAY: f64 = 24.0 * 3600.0;
/// A planned gap that is longer is explained.
const LONG_GAP: Duration = Duration::from_millis(300);
/// Between two looks at something that is not in the statuses.
const LOOK: Duration = Duration::from_millis(20);
/// What changes members, leadership or the effective spec.
const STEPS: [&str; 7] = [
    "SpecActivated",
    "LearnerAdded",
    "LearnerPromoted",
    "LearnerRemoved",
    "VoterRemoved",
    "LeaderMoved",
    "UrlUpdated",
];

/// A case on all minors.
pub(crate) const fn case(name: &'static str, run: fn(Minor) -> Result<Outcome>) -> Case {
    Case { name, minors: ALL, short: None, run }
}

/// See the module.
pub(crate) struct Course {
    pub(crate) field: Arc<Field>,
    pub(crate) writer: Writer,
    pulse: Pulse,
    /// The longest gap while something planned went on.
    planned: Option<Gap>,
    /// How much of the history was there when the current operation began.
    mark: usize,
}

impl Course {
    /// Starts all agents under a spec and waits until exactly these slots are settled voters, with a writer that begins
    /// before the first of them is there. What follows is what the margin and the steps count for.
    pub(crate) async fn begin(field: Arc<Field>, spec: &str, slots: &[&str]) -> Result<Self> {
        let course = Self::born(field, spec, slots).await?;
        course.field.watch.from_now();
        course.pulse.forget();
        Ok(Self { planned: None, mark: course.field.history().len(), ..course })
    }

    /// The same, with the birth itself as the first operation.
    pub(crate) async fn born(field: Arc<Field>, spec: &str, slots: &[&str]) -> Result<Self> {
        field.apply(spec)?;
        field.start().await?;
        let writer = Writer::start(field.clients().await?, field.clock);
        let mut course = Self::beside(field, writer, Vec::new());
        course.for_a("the first acknowledged write", |course| Ok(course.writer.first())).await?;
        let first = course.writer.first().context("no acknowledged write")?;
        course.settled(&course.field.in_spec(spec), slots).await?;
        course.planned_since(first);
        Ok(course)
    }

    /// Agents that are up, and a writer at an etcd that none of them has started and that `strangers` lead to.
    pub(crate) fn beside(field: Arc<Field>, writer: Writer, strangers: Vec<EtcdClient>) -> Self {
        let pulse = Pulse::start(&field, strangers);
        Self { field, writer, pulse, planned: None, mark: 0 }
    }

    /// The time on the clock of the writer.
    pub(crate) fn now(&self) -> Duration {
        self.field.clock.elapsed()
    }

    /// What was until now had this smallest margin.
    pub(crate) fn margin_was(&self, least: i64) -> Result<()> {
        let margin = self.pulse.smallest();
        ensure!(margin == Some(least), "the smallest margin was {margin:?}, not {least}");
        Ok(())
    }

    /// Forgets what the margin was until now: a voter was killed on purpose, and may or may not have been missed.
    pub(crate) fn forget_margin(&self) {
        self.pulse.forget();
    }

    /// All gaps since then belong to something that was planned.
    pub(crate) fn planned_since(&mut self, begun: Duration) {
        let gap = self.writer.longest_gap(begun, self.now());
        if self.planned.is_none_or(|longest| gap.length() > longest.length()) {
            self.planned = Some(gap);
        }
    }

    /// Says what went on around a long gap. How long it may be is for a machine that does nothing else to show, and for
    /// whoever reads the figures.
    fn explain_gap(&self) {
        if let Some(gap) = self.planned.filter(|gap| gap.length() > LONG_GAP) {
            eprintln!("a planned gap of {} ms:\n{}", gap.ms(), self.around(gap));
        }
    }

    /// What was told from two seconds before a gap until a second after it, each with its time from the gap's begin, ms.
    fn around(&self, gap: Gap) -> String {
        let begin = Clock::wall() - self.now().saturating_sub(gap.from);
        let begin = begin.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64() % DAY;
        let length = gap.length().as_secs_f64();
        let mut lines = Vec::new();
        for Told { timestamp, site, event, message } in self.field.history() {
            // 2006-01-02T15:04:05.999999Z
            let time = timestamp.split(['T', 'Z']).nth(1).unwrap_or_default().split(':');
            let at = time.fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap_or(0.0)) - begin;
            if at > -2.0 && at < length + 1.0 {
                lines.push(format!("{:6.0} {site} {event}: {message}", at * 1_000.0));
            }
        }
        lines.join("\n")
    }

    /// The steps are counted from here.
    pub(crate) fn mark(&mut self) {
        self.mark = self.field.history().len();
    }

    /// All transitions since the mark.
    pub(crate) fn told(&self) -> Vec<Told> {
        self.field.history().split_off(self.mark)
    }

    /// The steps that were taken since the mark, without moves of leadership.
    pub(crate) fn steps(&self) -> Vec<String> {
        let told = self.told().into_iter().map(|told| told.event);
        told.filter(|event| STEPS.contains(&event.as_str()) && event != "LeaderMoved").collect()
    }

    /// Exactly these steps were taken since the mark, in this order. The members of the last one are there a moment before
    /// it is told.
    pub(crate) async fn took(&self, expected: &[&str]) -> Result<()> {
        let all_told = |course: &Self| Ok((course.steps().len() >= expected.len()).then_some(()));
        let told = self.for_a("the steps to be told", all_told).await;
        let steps = self.steps();
        ensure!(told.is_ok() && steps == expected, "these steps were taken: {steps:?}, not {expected:?}");
        Ok(())
    }

    /// Nothing was changed since the mark, not even who leads.
    pub(crate) fn untouched(&self) -> Result<()> {
        let told: Vec<Told> =
            self.told().into_iter().filter(|told| STEPS.contains(&told.event.as_str())).collect();
        ensure!(told.is_empty(), "something was changed: {told:?}");
        Ok(())
    }

    /// Applies a spec everywhere and waits until it is effective and exactly these slots are settled voters. What the
    /// writer felt of it counts as planned.
    pub(crate) async fn change(&mut self, spec: &str, slots: &[&str]) -> Result<()> {
        let (begun, before) = (self.now(), self.generation());
        self.mark();
        self.field.apply(spec)?;
        let sites = self.field.in_spec(spec);
        self.effective(&sites, before).await?;
        self.settled(&sites, slots).await?;
        self.planned_since(begun);
        Ok(())
    }

    /// The newest effective generation that a site tells.
    pub(crate) fn generation(&self) -> u64 {
        self.field.watch.statuses().values().map(|status| status.generation.0).max().unwrap_or(0)
    }

    /// Waits until a newer generation than this one is effective in all of these sites.
    pub(crate) async fn effective(&self, sites: &[String], before: u64) -> Result<()> {
        let newer = |now: &Statuses| {
            sites.iter().all(|site| now.get(site).is_some_and(|status| status.generation.0 > before))
        };
        self.until("the new spec to be effective", newer).await.map(drop)
    }

    /// Waits until these sites see exactly these slots as live voters, and nothing is left to do.
    pub(crate) async fn settled(&self, sites: &[String], slots: &[&str]) -> Result<Statuses> {
        let good = |now: &Statuses| {
            settled(now, sites, slots.len()) && now.values().filter(executes).all(|s| names(s) == slots)
        };
        self.until(&format!("settled voters in {slots:?} and nowhere else"), good).await
    }

    /// Waits for something that the statuses show.
    pub(crate) async fn until(&self, what: &str, good: impl Fn(&Statuses) -> bool) -> Result<Statuses> {
        self.field.watch.until(what, PATIENCE, good).await
    }

    /// Waits until the site that executes tells something.
    pub(crate) async fn executing(&self, what: &str, good: impl Fn(&Status) -> bool) -> Result<()> {
        self.until(what, |now| now.values().filter(executes).any(&good)).await.map(drop)
    }

    /// Waits until a status has said all of these words in one sentence.
    pub(crate) async fn said(&self, words: &[&str]) -> Result<String> {
        let what = format!("a status to say {words:?}");
        let said = |course: &Self| {
            let said = course.field.watch.said();
            Ok(said.into_iter().find(|line| words.iter().all(|word| line.contains(word))))
        };
        let found = self.for_a(&what, said).await;
        found.with_context(|| format!("what was said:\n{}", self.field.watch.said().join("\n")))
    }

    /// Waits for something that is not in the statuses.
    pub(crate) async fn for_a<T>(
        &self,
        what: &str,
        mut look: impl FnMut(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let clock = Clock::start();
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if clock.elapsed() > PATIENCE {
                let how = self.field.watch.describe();
                let error = self.writer.last_error().unwrap_or_default();
                bail!("waited {PATIENCE:?} for {what} (writer: {error}); this is how it stands:\n{how}");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Some more acknowledged writes, through whatever is there.
    pub(crate) async fn writes(&self) -> Result<()> {
        let then = self.writer.acknowledged();
        let more = |course: &Self| Ok((course.writer.acknowledged() > then + 2).then_some(()));
        self.for_a("more acknowledged writes", more).await
    }

    /// The id of the member in a slot.
    pub(crate) fn id(&self, slot: &str) -> Result<String> {
        self.told_of(slot, |member| member.id.clone())
    }

    /// The zone of the member in a slot.
    pub(crate) fn zone(&self, slot: &str) -> Result<String> {
        self.told_of(slot, |member| member.zone.clone())
    }

    /// What the site that executes says of a member; any other one while none does, as in a hand-over.
    fn told_of<T>(&self, slot: &str, of: impl Fn(&MemberStatus) -> T) -> Result<T> {
        let statuses = self.field.watch.statuses();
        let members = statuses.values().filter(executes).chain(statuses.values()).flat_map(|s| &s.members);
        let mut named = members.filter(|member| short(&member.name) == slot);
        named.next().map(of).with_context(|| format!("{slot} has no member"))
    }

    /// The ids of the members of a site.
    pub(crate) fn ids(&self, site: &str) -> Vec<String> {
        member_ids(&self.field.watch.statuses(), site).into_iter().collect()
    }

    /// Starts the agent of a site and waits until it is up.
    pub(crate) async fn start(&self, site: &str) -> Result<()> {
        let site = self.field.site(site)?;
        self.field.mesh.start(site)?;
        self.field.mesh.up(site, UP).await
    }

    /// Kills the agents of these sites and waits for their end; their members go on.
    pub(crate) async fn kill_agents<S: AsRef<str>>(&self, sites: &[S]) -> Result<()> {
        for site in sites {
            let killed = self.field.mesh.run.kill(site.as_ref(), Kind::Agent);
            ensure!(killed.len() == 1, "{} runs {} agents", site.as_ref(), killed.len());
        }
        for site in sites {
            self.field.mesh.run.gone(site.as_ref(), &[Kind::Agent], PATIENCE).await?;
        }
        Ok(())
    }

    /// Kills a whole site and waits until nothing of it is left.
    pub(crate) async fn kill_site(&self, site: &str) -> Result<()> {
        self.field.mesh.run.kill_site(site)?;
        let kinds = [Kind::Agent, Kind::Member, Kind::Etcd, Kind::Other];
        self.field.mesh.run.gone(site, &kinds, PATIENCE).await
    }

    /// Kills the etcd of a site and removes its data directory.
    pub(crate) fn wipe(&self, site: &str) -> Result<()> {
        wipe(&self.field.mesh, self.field.site(site)?)
    }

    /// What lies in the archive of a slot.
    pub(crate) fn archive(&self, site: &str, slot: &str) -> Result<Vec<String>> {
        let volume = self.field.site(site)?.member(FEDERATION, &format!("{FEDERATION}-{slot}"));
        let entries = std::fs::read_dir(volume.join("archive")).into_iter().flatten().flatten();
        Ok(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    }

    /// Ends a case with settled voters in exactly these slots: what etcd itself lists, whether all that was acknowledged is
    /// there, and that `least` was the smallest margin of the etcds.
    pub(crate) async fn end(self, sites: &[&str], slots: &[&str], least: i64) -> Result<Outcome> {
        self.end_between(sites, slots, least, least).await
    }

    /// The same for something so short that two looks may have missed it: the smallest margin is one of these.
    pub(crate) async fn end_between(
        self,
        sites: &[&str],
        slots: &[&str],
        least: i64,
        most: i64,
    ) -> Result<Outcome> {
        let sites: Vec<String> = sites.iter().map(|site| (*site).to_owned()).collect();
        let statuses = self.settled(&sites, slots).await?;
        let executing = statuses.values().find(executes).context("no site executes")?;
        let mut expected: Vec<String> = executing.members.iter().map(|member| member.id.clone()).collect();
        expected.sort();
        for voter in self.field.voters().await? {
            let list = voter.member_list(true).await?;
            let mut ids: Vec<String> = list.members.iter().map(|member| format!("{:x}", member.id)).collect();
            ids.sort();
            ensure!(ids == expected, "{} lists {ids:?}, not {expected:?}", voter.endpoint());
            ensure!(list.members.iter().all(|member| !member.is_learner), "a learner is left: {list:?}");
        }
        let mut outcome = self.field.outcome(&self.writer).await?;
        self.explain_gap();
        outcome.planned_gap_ms = self.planned.map(Gap::ms);
        // A short case can be over before the second look.
        self.for_a("a margin that was felt twice", |course| Ok(course.pulse.smallest())).await?;
        outcome.smallest_margin = self.pulse.smallest();
        let margin = outcome.smallest_margin.context("no margin was ever felt")?;
        ensure!(
            (least..=most).contains(&margin),
            "the smallest margin was {margin}, not from {least} to {most}"
        );
        Ok(outcome)
    }
}

/// Whether this status is of the site that executes.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as a filter passes it")]
pub(crate) fn executes(status: &&Status) -> bool {
    status.executor.as_deref() == Some(status.observed_from.as_str())
}

/// `east-0` of `main-east-0`.
pub(crate) fn short(name: &str) -> &str {
    name.strip_prefix(FEDERATION).and_then(|rest| rest.strip_prefix('-')).unwrap_or(name)
}

/// The slots of all members, sorted.
fn names(status: &Status) -> Vec<&str> {
    let mut names: Vec<&str> = status.members.iter().map(|member| short(&member.name)).collect();
    names.sort_unstable();
    names
}
