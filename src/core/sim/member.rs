//! The supervisors: the guard decides, etcd starts or does not.

use super::etcd::{At, Cluster};
use super::rng::Rng;
use super::world::{Event, World};
use crate::federation::member::{
    DirFacts, Grant, GrantKind, Incarnation, IncarnationState, Mark, MemberReport, Process,
};
use crate::id::{ClusterId, Index, MemberId, Term};
use crate::identity::{self, Evidence, Start};

/// A supervisor starts an etcd that ended again after so long.
const RESTART_MS: u64 = 1_000;

impl World {
    /// The etcd behind a volume.
    pub fn node(&self, s: usize, v: usize) -> Option<&super::etcd::Node> {
        let (cluster, at) = self.sites[s].volumes[v].node?;
        self.clusters.get(cluster)?.nodes.get(at)
    }

    /// What lies in a data directory.
    pub fn dir(&self, s: usize, v: usize) -> DirFacts {
        let Some((cluster, at)) = self.sites[s].volumes[v].node else { return DirFacts::Empty };
        let cluster = &self.clusters[cluster];
        let node = &cluster.nodes[at];
        if !node.disk {
            return DirFacts::Empty;
        }
        let index = Index(node.durable() as u64);
        DirFacts::Present { cluster: cluster.id, member: node.id, term: Term(node.term()), index }
    }

    /// The reports of a site's supervisors.
    pub fn reports(&self, s: usize) -> Vec<MemberReport> {
        let volumes = self.sites[s].volumes.iter().enumerate();
        volumes
            .filter(|(_, volume)| volume.supervised)
            .map(|(v, volume)| volume.report(self.dir(s, v)))
            .collect()
    }

    /// The supervisor looks at its volume and its process, and does what the guard permits.
    pub fn supervise(&mut self, s: usize, v: usize) {
        let running = self.node(s, v).is_some_and(|n| n.running);
        let volume = &mut self.sites[s].volumes[v];
        if !volume.supervised {
            return;
        }
        if volume.held_until > self.now {
            let rest = volume.held_until - self.now;
            self.schedule(rest, Event::Supervise(s, v));
            return;
        }
        if running {
            volume.process = Process::Running;
            return;
        }
        if matches!(volume.process, Process::Quarantined(_)) {
            return;
        }
        let dir = self.dir(s, v);
        let site = &self.sites[s];
        let volume = &site.volumes[v];
        let seen = self.seen_by_agent(s, v);
        let evidence = Evidence {
            incarnation: volume.incarnation.as_ref(),
            outside: volume.outside.as_ref(),
            dir: &dir,
            grant: volume.grant.as_ref(),
            seen,
            fenced: false,
        };
        match identity::decide(evidence) {
            Start::New => self.start_seed(s, v),
            Start::Join => self.start_join(s, v),
            Start::Resume => self.start_etcd(s, v),
            Start::ClearAndStart => {}
            Start::Await(reason) => {
                self.count(reason.rule());
                self.sites[s].volumes[v].process = Process::AwaitingGrant;
            }
            Start::Refuse(reason) => {
                self.count(reason.rule());
                self.note(|| format!("guard refuses: {reason}"), Some(s));
                self.sites[s].volumes[v].process = Process::Quarantined(reason);
            }
        }
    }

    /// An agent that answers tells how far it has seen this life.
    fn seen_by_agent(&self, s: usize, v: usize) -> Mark {
        let site = &self.sites[s];
        let id = site.volumes[v].incarnation.as_ref().map(|i| i.id);
        let record = site.agents.first().and_then(|agent| agent.record.as_ref());
        let known = record.and_then(|r| r.incarnations.iter().find(|i| Some(i.id) == id));
        let answering = site.agents.iter().filter(|agent| agent.paused_until <= self.now);
        let marks = answering.flat_map(|agent| &agent.marks);
        let fresh = marks.filter(|(i, ..)| Some(*i) == id).map(|(_, _, mark)| *mark);
        let own = fresh.fold(known.map(|i| i.mark).unwrap_or_default(), Mark::max);
        // What other sites' agents have seen comes with their gossip.
        let told = site.agents.iter().filter_map(|agent| Some(agent.tracker.seen_mark(id?)));
        told.fold(own, Mark::max)
    }

    fn beside(grant: &Grant, seed: bool) -> Incarnation {
        Incarnation {
            slot: grant.slot.clone(),
            id: grant.incarnation,
            state: IncarnationState::Started,
            epoch: grant.epoch,
            cluster: grant.cluster,
            member: grant.member,
            mark: Mark::default(),
            seed,
            granted: true,
            archived: false,
        }
    }

    fn start_seed(&mut self, s: usize, v: usize) {
        let Some(grant) = self.sites[s].volumes[v].grant.clone() else { return };
        let rng = Rng::new(self.seed, 1_000 + self.clusters.len() as u64);
        let cluster =
            Cluster::seed(&grant.token(), grant.peer_url.clone(), grant.name.clone(), s, self.now, rng);
        let (id, member) = (cluster.id, cluster.nodes[0].id);
        self.truth.note_seed(&grant, s);
        self.clusters.push(cluster);
        let number = self.clusters.len() - 1;
        self.copy_links(number);
        let volume = &mut self.sites[s].volumes[v];
        volume.incarnation = Some(Self::beside(&grant, grant.kind == GrantKind::Seed));
        volume.node = Some((number, 0));
        self.start_etcd(s, v);
        // The supervisor asks its etcd for the ids as soon as it answers.
        if let Some(incarnation) = &mut self.sites[s].volumes[v].incarnation {
            incarnation.cluster = Some(id);
            incarnation.member = Some(member);
        }
    }

    fn start_join(&mut self, s: usize, v: usize) {
        let Some(grant) = self.sites[s].volumes[v].grant.clone() else { return };
        let Some((cluster, at)) = grant.cluster.zip(grant.member).and_then(|(c, m)| self.find_node(c, m))
        else {
            return;
        };
        let volume = &mut self.sites[s].volumes[v];
        volume.incarnation = Some(Self::beside(&grant, false));
        volume.node = Some((cluster, at));
        self.start_etcd(s, v);
    }

    fn find_node(&self, cluster: ClusterId, member: MemberId) -> Option<(usize, At)> {
        self.clusters
            .iter()
            .enumerate()
            .filter(|(_, c)| c.id == cluster)
            .find_map(|(number, c)| Some((number, c.find(member)?)))
    }

    fn start_etcd(&mut self, s: usize, v: usize) {
        let Some((cluster, at)) = self.sites[s].volumes[v].node else { return };
        self.note(|| format!("etcd of volume {v} starts"), Some(s));
        // A seed has nothing to be compared with.
        let fresh = at > 0 && self.fresh_storage_fault(s);
        let cluster = &mut self.clusters[cluster];
        cluster.advance(self.now);
        let node = &mut cluster.nodes[at];
        node.site = s;
        if fresh && !node.started {
            node.corrupt = true;
        }
        cluster.start(at);
        let volume = &mut self.sites[s].volumes[v];
        volume.process = Process::Running;
        volume.running = volume.grant.as_ref().map(|grant| grant.settings.clone());
        volume.starts += 1;
    }

    /// The process ended: the supervisor looks again after a back-off.
    pub fn etcd_ended(&mut self, s: usize, v: usize) {
        let volume = &mut self.sites[s].volumes[v];
        if volume.process == Process::Running {
            volume.process = Process::Exited;
        }
        self.schedule(RESTART_MS, Event::Supervise(s, v));
    }

    /// Notices processes that ended by themselves (removed, or panicked).
    pub fn notice_ends(&mut self, s: usize) {
        for v in 0..self.sites[s].volumes.len() {
            let running = self.node(s, v).is_some_and(|n| n.running);
            if self.sites[s].volumes[v].process == Process::Running && !running {
                self.etcd_ended(s, v);
            }
        }
    }

    /// Stops etcd and moves its directory away.
    pub fn archive(&mut self, s: usize, v: usize) {
        if let Some((cluster, at)) = self.sites[s].volumes[v].node {
            let attested = self.attested_lost(self.clusters[cluster].nodes[at].id);
            self.truth.note_archive(&self.clusters[cluster], at, attested);
            self.clusters[cluster].stop(at);
        }
        let volume = &mut self.sites[s].volumes[v];
        volume.incarnation = None;
        volume.grant = None;
        volume.outside = None;
        volume.node = None;
        volume.archived += 1;
        volume.process = Process::AwaitingGrant;
    }

    /// A grant arrives at the supervisor.
    pub fn granted(&mut self, s: usize, v: usize, grant: Grant) {
        let volume = &mut self.sites[s].volumes[v];
        volume.listed = grant.peer_url.clone();
        volume.grant = Some(grant);
        if !matches!(volume.process, Process::Quarantined(_)) {
            self.supervise(s, v);
        }
    }

    pub(super) fn copy_links(&mut self, number: usize) {
        let count = self.sites.len();
        for from in 0..count {
            for to in 0..count {
                let up = !self.links.is_cut(from, to);
                if !up {
                    self.clusters[number].set_link(from, to, false);
                }
            }
        }
    }

    /// The lists and links of a whole site change at once.
    pub fn set_link(&mut self, from: usize, to: usize, up: bool) {
        self.links.set(from, to, up);
        for cluster in &mut self.clusters {
            cluster.set_link(from, to, up);
        }
    }
}

impl World {
    /// The site whose member leads.
    pub fn leading_site(&self) -> Option<usize> {
        let cluster = self.clusters.last()?;
        let leader = cluster.true_leader()?;
        let number = self.clusters.len() - 1;
        (0..self.sites.len())
            .find(|s| self.sites[*s].volumes.iter().any(|v| v.node == Some((number, leader))))
    }
}
