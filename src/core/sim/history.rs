//! One history: the world of a seed, its faults, the healing, and what came of it.

use std::collections::BTreeMap;

use super::faults::{self, Timed};
use super::invariants::unsettled;
use super::rng::Rng;
use super::scenario::{BEGIN_MS, Scenario};
use super::world::{Event, Options, Violation, World};
use crate::federation::view::{View, Wish};

/// Faults strike within this time of the world.
const FAULTS_MS: u64 = 22_000;
/// The troubles end here.
const HEAL_MS: u64 = 28_000;
/// A person looks after so long whether something waits for him.
const PERSON_MS: u64 = 120_000;
/// After the healing the world must be as wished within so many events.
const PATIENCE: u64 = 6_000;

/// What came of a history.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Events.
    pub events: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Steps by kind.
    pub steps: BTreeMap<&'static str, u64>,
    /// The world ended as wished.
    pub converged: bool,
    /// A membership operation was completed.
    pub completed: bool,
    /// Broken invariants.
    pub violations: Vec<Violation>,
    /// Refusals by rule.
    pub refusals: [u64; 18],
    /// The readable log.
    pub trace: Vec<String>,
    /// Acknowledged writes.
    pub writes: usize,
    /// Views for the benchmark.
    pub views: Vec<(View, Wish)>,
}

/// The faults of a seed.
pub fn faults_of(seed: u64) -> Vec<Timed> {
    let sites = Scenario::draw(&mut Rng::new(seed, 1)).map_or(3, |scenario| scenario.names.len());
    faults::generate(&mut Rng::new(seed, 2), sites, BEGIN_MS + 2_500, BEGIN_MS + FAULTS_MS)
}

/// Plays a seed with its own faults, or with those that are given.
pub fn play(seed: u64, given: Option<&[Timed]>, trace: bool) -> Report {
    let backups = Rng::new(seed, 7).chance(40);
    play_with(seed, given, trace, Options { backups, questions: 25, keep_views: 0 }, None)
}

/// Plays a seed under other circumstances.
pub fn play_with(
    seed: u64,
    given: Option<&[Timed]>,
    trace: bool,
    options: Options,
    scenario: Option<Scenario>,
) -> Report {
    let drawn = if given.is_none() { faults_of(seed) } else { Vec::new() };
    let faults = given.unwrap_or(&drawn);
    let scenario = scenario.or_else(|| Scenario::draw(&mut Rng::new(seed, 1)));
    let Some(scenario) = scenario else { return nothing(seed) };
    let name = scenario.name;
    let mut world = World::begin(seed, scenario, options, trace);
    for timed in faults {
        world.schedule(timed.at.saturating_sub(world.now), Event::Strike(timed.fault));
    }
    while world.now < BEGIN_MS + HEAL_MS && world.violations.is_empty() && world.step() {}
    heal(&mut world);
    let end = world.events + PATIENCE;
    let mut why = unsettled(&world);
    while why.is_some() && world.events < end && world.violations.is_empty() && world.step() {
        why = if world.events.is_multiple_of(8) { unsettled(&world) } else { why };
    }
    if let (Some(why), true) = (&why, world.violations.is_empty()) {
        world.violate("not converged", why.clone());
    }
    if world.clusters.iter().any(|cluster| !cluster.leader_holds_everything()) {
        world.violate("no acknowledged write is lost", "the leader lacks an acknowledged write".to_owned());
    }
    let operations = ["AddLearner", "Promote", "Remove", "UpdateUrl"];
    Report {
        seed,
        scenario: name,
        events: world.events,
        faults: world.faults,
        converged: why.is_none(),
        completed: operations.iter().any(|kind| world.truth.steps.contains_key(kind)),
        steps: world.truth.steps,
        violations: world.violations,
        refusals: world.refusals,
        trace: world.trace.unwrap_or_default(),
        writes: world.clusters.iter().map(super::etcd::Cluster::acknowledged).sum(),
        views: world.views,
    }
}

const fn nothing(seed: u64) -> Report {
    Report {
        seed,
        scenario: "none",
        events: 0,
        faults: 0,
        steps: BTreeMap::new(),
        converged: false,
        completed: false,
        violations: Vec::new(),
        refusals: [0; 18],
        trace: Vec::new(),
        writes: 0,
        views: Vec::new(),
    }
}

/// Everything that can be mended from outside is: links, machines, agents, specs. What was lost stays lost.
fn heal(world: &mut World) {
    world.note(|| "everything is mended".to_owned(), None);
    world.healed = true;
    world.good_network();
    world.apply_wanted();
    for s in 0..world.sites.len() {
        for other in 0..world.sites.len() {
            world.set_link(s, other, true);
        }
        world.ease(s);
        world.sites[s].armed.clear();
        world.sites[s].agents.truncate(1);
        world.sites[s].agents.iter_mut().for_each(|agent| agent.paused_until = 0);
        world.schedule(2_500, Event::SameSpec(s));
        world.schedule(10, Event::StartAgent(s));
        for v in 0..world.sites[s].volumes.len() {
            world.sites[s].volumes[v].held_until = 0;
            if let Some((c, at)) = world.sites[s].volumes[v].node {
                world.clusters[c].nodes[at].slow_disk = false;
            }
            world.schedule(20, Event::Supervise(s, v));
        }
    }
    world.schedule(10, Event::Space);
    world.schedule(PERSON_MS, Event::Person);
}
