//! Where a history begins and what its user wants: always something that needs a membership operation.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::etcd::Cluster;
use super::rng::Rng;
use super::site::{Cr, Site, Store, Volume};
use super::world::{Event, Options, World};
use crate::federation::member::{
    EtcdOptions, Grant, GrantKind, Incarnation, IncarnationState, Mark, OutsideMark, Process,
};
use crate::federation::observed::Seeded;
use crate::federation::spec::{ClusterSpec, Spec};
use crate::id::{
    Epoch, FederationKey, Generation, IncarnationId, Index, MemberId, ObjectName, PeerUrl, SiteName, Slot,
    Term, Uid, ZoneName,
};
use crate::intent::record::{Activated, Record};
use crate::node::etcd_name;

/// Worlds begin a little after their etcd was born.
pub const BEGIN_MS: u64 = 10_000;

/// The first wish is applied so long after the beginning.
const WISH_MS: u64 = 2_000;

/// What the user does.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// A name for people.
    pub name: &'static str,
    /// The federation.
    pub key: FederationKey,
    /// The sites of the mesh.
    pub names: Vec<SiteName>,
    /// The spec at the beginning.
    pub first: Option<Arc<Cr>>,
    /// The spec that the user holds now.
    pub current: Option<Arc<Cr>>,
    /// The spec that he wants after a while.
    pub wanted: Option<Arc<Cr>>,
    /// Nothing runs at the beginning: the sites vote.
    pub unborn: bool,
    /// Something is lost at the beginning, so that it must be replaced.
    pub loses: bool,
}

fn names(count: usize) -> Vec<SiteName> {
    ["a", "b", "c", "d", "e", "f"].iter().take(count).filter_map(|name| SiteName::new(name).ok()).collect()
}

fn spec(clusters: &[(&str, u32)], single: bool) -> Spec {
    let zone = |name: &str| ZoneName::new(name).ok();
    let cluster = |(name, members): &(&str, u32)| {
        let zones: Vec<ZoneName> = ["x", "y", "z"].into_iter().filter_map(zone).collect();
        Some(ClusterSpec {
            name: SiteName::new(name).ok()?,
            members: Some(*members),
            zones: (zones.len() == 3).then_some(zones).filter(|_| clusters.len() == 1 && *members == 3),
            preferred: None,
            lost_members: None,
        })
    };
    Spec {
        members: None,
        clusters: clusters.iter().filter_map(cluster).collect(),
        survive: None,
        version: None,
        etcd: None,
        allow_single_voter: single.then_some(true),
        bootstrap: None,
        adopt: None,
        exception: None,
    }
}

/// Voters by site.
type Voters = &'static [(&'static str, u32)];

impl Scenario {
    /// Draws one.
    pub fn draw(rng: &mut Rng) -> Option<Self> {
        let key =
            FederationKey { namespace: ObjectName::new("etcd").ok()?, name: ObjectName::new("main").ok()? };
        let abc: Voters = &[("a", 1), ("b", 1), ("c", 1)];
        let (name, sites, first, wanted): (_, _, Voters, Voters) = match rng.below(100) {
            0..=21 => ("replace-a-site", 4, abc, &[("a", 1), ("b", 1), ("d", 1)]),
            22..=47 => ("replace-a-lost-member", 3, abc, abc),
            48..=55 => ("grow-3-to-5", 3, abc, &[("a", 2), ("b", 2), ("c", 1)]),
            56..=63 => ("shrink-5-to-3", 3, &[("a", 2), ("b", 2), ("c", 1)], abc),
            64..=69 => ("one-site", 1, &[("a", 3)], &[("a", 3)]),
            70..=75 => ("move-two-sites", 2, &[("a", 2), ("b", 1)], &[("a", 1), ("b", 2)]),
            76..=79 => ("move-all", 2, &[("a", 3)], &[("b", 3)]),
            80..=84 => ("grow-1-to-3", 3, &[("a", 1)], abc),
            85..=88 => ("shrink-3-to-1", 3, abc, &[("b", 1)]),
            89..=94 => ("birth", 3, abc, abc),
            95..=96 => {
                let five: Voters = &[("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)];
                ("five-sites", 5, five, five)
            }
            _ => ("spare-site", 4, abc, abc),
        };
        Self::of(name, key, sites, first, wanted)
    }

    /// Seven voters at five sites, one of which is lost: the benchmark's.
    pub fn seven() -> Option<Self> {
        let key =
            FederationKey { namespace: ObjectName::new("etcd").ok()?, name: ObjectName::new("main").ok()? };
        let sites: &[(&str, u32)] = &[("a", 2), ("b", 2), ("c", 1), ("d", 1), ("e", 1)];
        Self::of("seven", key, 5, sites, sites)
    }

    fn of(
        name: &'static str,
        key: FederationKey,
        sites: usize,
        first: &[(&str, u32)],
        wanted: &[(&str, u32)],
    ) -> Option<Self> {
        let single = |clusters: &[(&str, u32)]| clusters.iter().map(|(_, n)| n).sum::<u32>() == 1;
        let any = single(first) || single(wanted);
        let first_cr = Cr::new(spec(first, any), &key)?;
        let wanted_cr = Cr::new(spec(wanted, any), &key)?;
        let changes = first != wanted;
        Some(Self {
            name,
            names: names(sites),
            current: Some(Arc::clone(&first_cr)),
            first: Some(first_cr),
            wanted: changes.then_some(wanted_cr),
            unborn: name == "birth",
            loses: !changes && name != "birth",
            key,
        })
    }
}

/// The address of a slot.
pub fn url(key: &FederationKey, slot: &Slot) -> PeerUrl {
    PeerUrl(format!("https://{}.{}.quorate.test:2380", slot.name(&key.name), slot.site).into())
}

impl World {
    /// Builds the world at the beginning of its scenario.
    pub fn begin(seed: u64, scenario: Scenario, options: Options, trace: bool) -> Self {
        let mut world = Self::new(seed, scenario, options, trace);
        let now = world.now;
        for (s, name) in world.names.clone().into_iter().enumerate() {
            let cr = world.scenario.current.clone();
            let layouts = [world.scenario.first.as_ref(), world.scenario.wanted.as_ref()];
            let mut slots: Vec<Slot> =
                layouts.into_iter().flatten().flat_map(|cr| cr.layout.slots.clone()).collect();
            slots.retain(|slot| slot.site == name);
            if slots.is_empty() {
                let zone = crate::federation::layout::default_zone();
                slots.push(Slot { site: name.clone(), ordinal: 0, zone });
            }
            slots.sort();
            slots.dedup_by_key(|slot| slot.ordinal);
            let volumes =
                slots.into_iter().map(|slot| Volume::new(slot.clone(), url(&world.key, &slot))).collect();
            world.sites.push(Site {
                name,
                cr,
                store: Store::default(),
                volumes,
                agents: Vec::new(),
                armed: Vec::new(),
                skew: 0,
                backup_at: i64::try_from(now).ok(),
                maintenance: false,
                older_etcd: false,
                certificates_end: false,
                gone: false,
                rng: Rng::new(seed, 100 + s as u64),
            });
        }
        if !world.scenario.unborn {
            world.born();
        }
        for s in 0..world.sites.len() {
            world.start_agent(s);
        }
        world.schedule(500, Event::Write);
        if world.scenario.wanted.is_some() {
            world.schedule(WISH_MS, Event::Apply(usize::MAX));
        }
        if world.scenario.loses {
            let lost = usize::try_from(seed % world.sites.len() as u64).unwrap_or(0);
            let gone = world.scenario.name == "spare-site";
            let fault = if gone {
                super::faults::Fault::Gone(lost % 3)
            } else if seed.is_multiple_of(2) {
                super::faults::Fault::Wipe(lost)
            } else {
                super::faults::Fault::LoseVolume(lost)
            };
            world.schedule(WISH_MS, Event::Strike(fault));
        }
        world
    }

    /// An etcd that runs already, with everything that its birth left behind.
    fn born(&mut self) {
        let Some(cr) = self.scenario.first.clone() else { return };
        let mut rng = Rng::new(self.seed, 5);
        let (uid, epoch) = (Uid(rng.wide()), Epoch(1));
        let lives: Vec<(Slot, IncarnationId)> =
            cr.layout.slots.iter().map(|slot| (slot.clone(), IncarnationId(rng.wide()))).collect();
        let site_of = |slot: &Slot| self.names.iter().position(|name| *name == slot.site).unwrap_or(0);
        let members = lives
            .iter()
            .map(|(slot, id)| (url(&self.key, slot), etcd_name(&self.key, slot, *id), site_of(slot)))
            .collect();
        let mut cluster = Cluster::born(&format!("{uid}/{epoch}"), members, 0, Rng::new(self.seed, 6));
        (0..lives.len()).for_each(|at| cluster.start(at));
        for ms in [1_000, 1_500, 2_000, 3_000, self.now] {
            cluster.advance(ms);
        }
        let seeded = Seeded { epoch, cluster: cluster.id, member: cluster.nodes[0].id };
        let activated = Arc::new(Activated {
            generation: Generation(1),
            digest: cr.digest,
            spec: Arc::clone(&cr.spec),
            timing: None,
        });
        self.clusters.push(cluster);
        self.truth.note_birth(uid, epoch, site_of(&lives[0].0));
        for s in 0..self.sites.len() {
            let mut record = Record::new(self.key.clone());
            if cr.spec.has_site(&self.names[s]) {
                record.uid = Some(uid);
                record.epoch = epoch;
                record.seeded = Some(seeded);
                record.effective = Some(Arc::clone(&activated));
                record.removed = BTreeSet::new();
                let name = self.names[s].clone();
                for (at, (slot, id)) in lives.iter().enumerate().filter(|(_, (slot, _))| slot.site == name) {
                    let life = self.settle(s, at, slot, *id, uid, seeded);
                    record.incarnations.push(life);
                }
                let record = Arc::new(record);
                self.sites[s].store = Store {
                    version: 1,
                    copy: Some(Arc::clone(&record)),
                    record: Some(record),
                    written: true,
                };
            }
        }
    }

    /// One running member with its volume.
    fn settle(
        &mut self,
        s: usize,
        at: usize,
        slot: &Slot,
        id: IncarnationId,
        uid: Uid,
        seeded: Seeded,
    ) -> Incarnation {
        let node = &self.clusters[0].nodes[at];
        let (member, mark) = (node.id, Mark { term: Term(node.term()), index: Index(1) });
        let life = Incarnation {
            slot: slot.clone(),
            id,
            state: IncarnationState::Voter,
            epoch: seeded.epoch,
            cluster: Some(seeded.cluster),
            member: Some(member),
            mark: Mark::default(),
            seed: false,
            granted: true,
            archived: false,
        };
        let grant = self.old_grant(slot, id, uid, seeded, member);
        self.truth.note_slot(member, slot);
        let Some(volume) = self.sites[s].volumes.iter_mut().find(|v| v.slot == *slot) else { return life };
        volume.supervised = true;
        volume.incarnation = Some(Incarnation { state: IncarnationState::Started, ..life.clone() });
        volume.running = Some(grant.settings.clone());
        volume.grant = Some(grant);
        volume.node = Some((0, at));
        volume.process = Process::Running;
        volume.outside = Some(OutsideMark { incarnation: id, state: IncarnationState::Voter, mark });
        volume.starts = 1;
        life
    }

    fn old_grant(&self, slot: &Slot, id: IncarnationId, uid: Uid, seeded: Seeded, member: MemberId) -> Grant {
        Grant {
            federation: self.key.clone(),
            uid,
            epoch: seeded.epoch,
            slot: slot.clone(),
            incarnation: id,
            kind: GrantKind::Join,
            cluster: Some(seeded.cluster),
            member: Some(member),
            name: etcd_name(&self.key, slot, id),
            peer_url: url(&self.key, slot),
            initial_cluster: Vec::new(),
            mark: Mark::default(),
            settings: EtcdOptions {
                version: "3.6".into(),
                heartbeat_ms: 100,
                election_ms: 1_000,
                quota_bytes: 2 << 30,
                peer_ports: Vec::new(),
            },
        }
    }

    /// The user applies the wanted spec, site after site.
    pub fn apply_wanted(&mut self) {
        let Some(wanted) = self.scenario.wanted.take() else { return };
        self.apply_spec(wanted);
    }

    pub(super) fn apply_spec(&mut self, cr: Arc<Cr>) {
        self.note(|| format!("the user wants {} voters: {:?}", cr.layout.voters(), cr.layout.slots), None);
        self.scenario.current = Some(cr);
        for s in 0..self.sites.len() {
            let ms = self.clients.below(2_500);
            self.schedule(ms, Event::Apply(s));
        }
    }

    /// The user changes his mind: sites are swapped, or the size.
    pub fn edit_again(&mut self, s: usize) -> bool {
        let declared =
            self.scenario.current.as_ref().is_some_and(|cr| cr.spec.lost_members().next().is_some());
        if self.scenario.unborn || declared || self.sites.len() < 3 {
            return false;
        }
        let names = self.names.clone();
        let pick = |i: usize| names[(s + i) % names.len()].as_str();
        let spec = match s % 3 {
            0 => spec(&[(pick(0), 1), (pick(1), 1), (pick(2), 1)], false),
            1 => spec(&[(pick(0), 1), (pick(1), 1), (pick(2), 1)], true),
            _ => {
                let mut again = spec(&[(pick(0), 1), (pick(1), 1), (pick(2), 1)], false);
                again.etcd.get_or_insert_default().election_ms = Some(1_100);
                again
            }
        };
        let Some(cr) = Cr::new(spec, &self.key) else { return false };
        if self.sites.iter().any(|site| site.gone && cr.spec.has_site(&site.name)) {
            return false;
        }
        self.scenario.wanted = None;
        self.apply_spec(cr);
        true
    }

    /// An open removal of a healthy voter, while another one has died since, is a person's to decide (safety.md 4): he
    /// sets I3 aside for this operation.
    pub(super) fn person(&mut self) {
        let held = self.sites.iter().filter_map(|site| site.store.record.as_ref()?.intent.clone());
        let stuck = held.filter(|held| held.open()).find(|held| {
            matches!(held.intent.kind, crate::intent::IntentKind::Remove { learner: false, .. })
        });
        let (Some(stuck), Some(cr)) = (stuck, self.scenario.current.clone()) else { return };
        let mut spec = cr.spec.as_ref().clone();
        spec.exception = Some(crate::federation::spec::Override {
            rule: crate::reason::Rule::I3,
            operation: stuck.intent.operation.to_string(),
            by: "a person".to_owned(),
        });
        if let Some(cr) = Cr::new(spec, &self.key) {
            self.note(|| format!("the user sets I3 aside for {}", stuck.intent.operation), None);
            self.apply_spec(cr);
        }
    }

    /// A person takes a burnt site out of the spec, puts the spare one in, and lists the lost ids.
    pub fn declare_lost(&mut self, s: usize) {
        let lost: Vec<MemberId> = self.sites[s]
            .volumes
            .iter()
            .filter_map(|v| v.node)
            .map(|(c, at)| self.clusters[c].nodes[at].id)
            .collect();
        let mut usable: Vec<usize> = (0..self.sites.len()).filter(|o| !self.sites[*o].gone).collect();
        usable.sort_by_key(|o| !self.sites[*o].volumes.iter().any(|v| v.node.is_some()));
        let clusters: Vec<(&str, u32)> =
            usable.iter().take(3).map(|o| (self.names[*o].as_str(), 1)).collect();
        let mut spec = spec(&clusters, false);
        if let Some(first) = spec.clusters.first_mut() {
            first.lost_members = Some(lost);
        }
        if let Some(cr) = Cr::new(spec, &self.key) {
            self.scenario.wanted = None;
            self.apply_spec(cr);
        }
    }
}
