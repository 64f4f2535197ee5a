//! The rules of safety.md as predicates on what really happened: one function each, run after every event.

use super::etcd::{At, Conf};
use super::world::World;
use crate::federation::member::IncarnationState;
use crate::id::{SiteName, Slot};
use crate::membership::quorum::quorum;

type Check = fn(&World) -> Option<String>;
const STATE: [(&str, Check); 6] = [
    ("i1", i1_one_learner_at_most),
    ("i5", i5_nothing_starts_on_lost_data),
    ("i7", i7_one_seed_per_epoch),
    ("i11", i11_nothing_living_is_archived),
    ("i18", i18_numbers_never_fall),
    ("no acknowledged write is lost", no_acknowledged_write_is_lost),
];

/// All invariants on the state, after every event.
pub fn after_event(w: &mut World) {
    let now = w.now;
    let change = match w.clusters.last() {
        Some(cluster) => w.truth.follow(cluster, now),
        None => None,
    };
    for (name, check) in STATE {
        if let Some(text) = check(w) {
            once(w, name, text);
        }
    }
    if let Some((before, after)) = change {
        for (name, text) in [
            ("i4", i4_domain_bound(w, &before, &after)),
            ("i6", i6_ids_are_used_once(w)),
            ("margin", margin_is_kept(w, &before, &after)),
        ] {
            if let Some(text) = text {
                once(w, name, text);
            }
        }
    }
}

/// A state that stays broken is told once.
fn once(w: &mut World, name: &'static str, text: String) {
    if !w.violations.iter().any(|v| v.invariant == name) {
        w.violate(name, text);
    }
}

fn i1_one_learner_at_most(w: &World) -> Option<String> {
    let learners = w.truth.conf.as_ref()?.members.iter().filter(|(_, learner)| *learner).count();
    (learners > 1).then(|| format!("{learners} learners"))
}

fn i5_nothing_starts_on_lost_data(w: &World) -> Option<String> {
    let node = w.clusters.last()?.nodes.iter().find(|n| n.amnesia)?;
    Some(format!("member {} was started on a directory that had lost its past", node.id))
}

fn i7_one_seed_per_epoch(w: &World) -> Option<String> {
    if w.clusters.len() < 2 && w.truth.seeds.len() < 2 {
        return None;
    }
    let served = w.clusters.iter().filter(|c| c.acknowledged() > 0 || c.nodes.len() > 1).count();
    if served > 1 {
        return Some(format!("{served} clusters served"));
    }
    let seeds = &w.truth.seeds;
    let twice = seeds
        .iter()
        .enumerate()
        .find(|(i, a)| seeds.iter().take(*i).any(|b| (a.0, a.1) == (b.0, b.1) && a.2 != b.2));
    twice.map(|(_, (uid, epoch, _))| format!("two seeds of {uid}/{epoch}"))
}

fn i11_nothing_living_is_archived(w: &World) -> Option<String> {
    w.truth.told[11].then(|| "the directory of a listed, unharmed voter was archived".to_owned())
}

fn i18_numbers_never_fall(w: &World) -> Option<String> {
    w.truth.told[18].then(|| "a record was written with a lower number than the one it replaced".to_owned())
}

fn no_acknowledged_write_is_lost(w: &World) -> Option<String> {
    w.clusters.iter().flat_map(super::etcd::Cluster::losses).next().map(|loss| format!("{loss:?}"))
}

fn i4_domain_bound(w: &World, before: &Conf, after: &Conf) -> Option<String> {
    let cluster = w.clusters.last()?;
    let declared = w
        .sites
        .iter()
        .filter_map(|s| s.store.record.as_ref()?.effective.clone())
        .max_by_key(|e| e.generation)?;
    let layout = declared.spec.layout().ok()?;
    let sites = |w: &World| {
        (0..w.sites.len()).filter(|s| layout.slots.iter().any(|slot| slot.site == w.names[*s])).count()
    };
    if sites(w) < 3 || after.voter_count() == before.voter_count() {
        return None;
    }
    let worst = |conf: &Conf| -> i64 {
        let at = |s: usize| conf.voters().filter(|at| cluster.nodes[*at].site == s).count();
        let most = (0..w.sites.len()).map(at).max().unwrap_or(0);
        let n = conf.voter_count();
        i64::try_from(most).unwrap_or(0) - i64::try_from(n - quorum(n)).unwrap_or(0)
    };
    let goal = {
        let n = layout.slots.len();
        let at = |name: &SiteName| layout.slots.iter().filter(|slot| slot.site == *name).count();
        let most = w.names.iter().map(at).max().unwrap_or(0);
        i64::try_from(most).unwrap_or(0) - i64::try_from(n - quorum(n)).unwrap_or(0)
    };
    let even = i64::from(after.voter_count().is_multiple_of(2));
    let dead = before
        .voters()
        .any(|at| !after.has(at) && (w.truth.lost(&cluster.nodes[at]) || !cluster.nodes[at].running));
    let (was, is) = (worst(before), worst(after));
    let left = before.voter_count() > after.voter_count() && even == 0 && is > (was - 1).max(0).max(goal);
    let better = |gone: At| {
        let at = |s: usize| before.voters().filter(|at| *at != gone && cluster.nodes[*at].site == s).count();
        let most = (0..w.sites.len()).map(at).max().unwrap_or(0);
        let n = after.voter_count();
        i64::try_from(most).unwrap_or(0) - i64::try_from(n - quorum(n)).unwrap_or(0) < is
    };
    let kept = left && before.voters().any(better);
    (!dead && (kept || is > was.max(0).max(goal) + even))
        .then(|| format!("concentration rose from {was} to {is}"))
}

fn i6_ids_are_used_once(w: &World) -> Option<String> {
    let nodes = &w.clusters.last()?.nodes;
    let listed = &w.truth.conf.as_ref()?.list;
    let again = nodes.iter().enumerate().find(|(i, node)| {
        listed.get(node.id).is_some()
            && nodes.iter().take(*i).any(|other| other.id == node.id && other.started)
    });
    again.map(|(_, node)| format!("id {} was used twice", node.id))
}

/// After a change the voters that were alive of late make a majority, unless they did not before either.
fn margin_is_kept(w: &World, before: &Conf, after: &Conf) -> Option<String> {
    let alive = |conf: &Conf| conf.voters().filter(|at| w.truth.alive(*at, w.now)).count();
    let (was, is) = (alive(before), alive(after));
    let kept = is >= quorum(after.voter_count()) || was < quorum(before.voter_count());
    (!kept).then(|| format!("{is} of {} voters alive after the change", after.voter_count()))
}

/// Why the world is not as wished; none if it is.
pub fn unsettled(w: &World) -> Option<String> {
    let cr = w.scenario.current.as_ref()?;
    let cluster = w.clusters.last()?;
    let Some(leader) = cluster.true_leader() else { return Some("no leader".to_owned()) };
    let conf = cluster.nodes[leader].conf();
    if let Some((at, _)) = conf.members.iter().find(|(_, learner)| *learner) {
        return Some(format!("learner {} is listed", cluster.nodes[*at].id));
    }
    let mut slots: Vec<Slot> = Vec::new();
    for at in conf.voters() {
        let node = &cluster.nodes[at];
        if !node.running || w.truth.lost(node) || !(at == leader || cluster.reaches(leader, at)) {
            return Some(format!("voter {} is not alive", node.id));
        }
        let volume = w.sites.iter().flat_map(|s| &s.volumes).find(|v| v.node.is_some_and(|(_, n)| n == at));
        slots.extend(volume.map(|v| v.slot.clone()));
    }
    slots.sort();
    if slots != cr.layout.slots {
        return Some(format!("voters at {slots:?} instead of {:?}", cr.layout.slots));
    }
    let behind = w.sites.iter().find(|site| {
        let record = site.store.record.as_ref();
        let wrong = record.is_none_or(|r| r.effective.as_ref().is_none_or(|e| e.digest != cr.digest));
        let open = record.and_then(|r| r.intent.as_ref()).is_some_and(|held| held.open());
        !site.gone && cr.spec.has_site(&site.name) && (wrong || open)
    });
    if let Some(site) = behind {
        let record = site.store.record.as_ref();
        let open =
            record.and_then(|r| r.intent.as_ref()).filter(|held| held.open()).map(|held| held.intent.seq);
        let generation = record.and_then(|r| r.effective.as_ref()).map(|e| e.generation);
        return Some(format!("site {} is at {generation:?} with open intent {open:?}", site.name));
    }
    let done = w.sites.iter().any(|site| {
        site.agents
            .iter()
            .any(|a| a.decision == Some(crate::membership::step::Decision::Done) && a.run.is_none())
    });
    let leads = w.leading_site();
    let empty = leads
        .and_then(|s| w.agent(s))
        .is_some_and(|a| a.decision == Some(crate::membership::step::Decision::Done) && a.run.is_none());
    if !done || !empty {
        return Some("the plan of the leader's agent is not empty".to_owned());
    }
    let lost =
        w.sites.iter().filter_map(|s| s.store.record.as_ref()).flat_map(|r| &r.incarnations).find(|i| {
            i.state == IncarnationState::Lost && i.member.is_some_and(|id| conf.list.get(id).is_some())
        });
    lost.map(|i| format!("lost member {:?} is still listed", i.member))
}
