//! What an agent sees of its own members and of the links to others.

use std::sync::Arc;

use super::agent::{Agent, Probe};
use super::etcd::At;
use super::world::World;
use crate::federation::member::{IncarnationState, Process};
use crate::federation::observed::{
    DataCheck, LeaderClaim, Link, LocalMember, SiteObservation, Status, Version,
};
use crate::id::{Index, Revision, Term};
use crate::node;

impl World {
    /// Probes every listed member's peer port, both ways of the link being needed for an answer.
    pub fn probe(&mut self, s: usize, agent: &mut Agent) {
        let now = agent.clock(self.now);
        let Some(cluster) = self.cluster_of(s) else { return };
        let Some(list) = self.known_list(s, agent) else { return };
        agent.probes.retain(|probe| list.get(probe.member).is_some());
        for member in list.iter() {
            let cluster = &self.clusters[cluster];
            let target = cluster.find(member.id).map(|at| &cluster.nodes[at]);
            let up = target
                .is_some_and(|n| n.running && !self.links.is_cut(s, n.site) && !self.links.is_cut(n.site, s));
            let at = agent.probes.iter().position(|p| p.member == member.id).unwrap_or_else(|| {
                agent.probes.push(Probe { member: member.id, misses: 0, good_since: None, at: now });
                agent.probes.len() - 1
            });
            let probe = &mut agent.probes[at];
            if up {
                probe.misses = 0;
                probe.good_since.get_or_insert(now);
            } else {
                // One probe a second; the looks of the simulated agent are further apart.
                let missed = (now.saturating_sub(probe.at) / 1_000).max(1);
                probe.misses = probe.misses.saturating_add(u32::try_from(missed).unwrap_or(u32::MAX));
                probe.good_since = None;
            }
            probe.at = now;
        }
    }

    fn known_list(&self, s: usize, agent: &Agent) -> Option<crate::federation::observed::MemberList> {
        let own = self.sites[s].volumes.iter().filter_map(|v| v.node).find_map(|(c, at)| {
            let node = self.clusters[c].nodes.get(at)?;
            (node.running && node.conf().has(at)).then(|| node.conf().list.clone())
        });
        own.or_else(|| {
            let told = self.names.iter().filter_map(|name| agent.tracker.observation(name));
            told.filter_map(|o| o.leader.as_ref())
                .max_by_key(|claim| claim.term)
                .map(|claim| claim.list.clone())
        })
    }

    /// The cluster that a site's members belong to; else the newest one.
    fn cluster_of(&self, s: usize) -> Option<usize> {
        let own = self.sites[s].volumes.iter().find_map(|v| v.node).map(|(cluster, _)| cluster);
        own.or_else(|| self.clusters.len().checked_sub(1))
    }

    /// A member that runs knows under which address it is listed.
    fn follow_addresses(&mut self, s: usize) {
        for v in 0..self.sites[s].volumes.len() {
            let listed = self.node(s, v).filter(|n| n.running).and_then(|n| n.conf().list.get(n.id));
            let Some(url) = listed.map(|m| &m.peer_url) else { continue };
            if *url != self.sites[s].volumes[v].listed {
                let url = url.clone();
                self.sites[s].volumes[v].listed = url;
            }
        }
    }

    /// The observation that this agent tells.
    pub fn observe(&mut self, s: usize, agent: &Agent) -> Arc<SiteObservation> {
        self.follow_addresses(s);
        let now = agent.clock(self.now);
        let site = &self.sites[s];
        let mut observation = SiteObservation::empty(site.name.clone());
        observation.spec = site.cr.as_ref().map(|cr| cr.digest);
        observation.record = Arc::clone(&agent.summary);
        observation.attention = true;
        observation.maintenance = site.maintenance;
        observation.backup_age_s = if self.options.backups { self.backup_age(s) } else { None };
        if let Some(record) = &agent.record {
            observation.has_data = !record.incarnations.is_empty();
            observation.members.reserve_exact(record.incarnations.len());
            for incarnation in &record.incarnations {
                // A lost one is told until it is removed: that is the attestation.
                let shown = incarnation.state >= IncarnationState::Added
                    && incarnation.state != IncarnationState::Removed;
                if shown {
                    observation.members.push(self.local_member(s, incarnation));
                }
            }
            if let Some(effective) = &agent.effective {
                let reports = self.reports(s);
                let urls = site.urls();
                observation.offers = node::offers(record, &effective.layout, &site.name, &reports, &urls);
            }
        }
        observation.links = agent
            .probes
            .iter()
            .map(|probe| {
                let good_ms = probe.good_since.map_or(0, |since| now.saturating_sub(since).max(1));
                Link {
                    member: probe.member,
                    misses: probe.misses,
                    good_ms,
                    rtt_us: u32::from(good_ms > 0) * 500,
                    least_us: u32::from(good_ms > 0) * 500,
                    stale: false,
                }
            })
            .collect();
        observation.leader = self.claim(s);
        observation.seen = agent.tracker.seen();
        observation.moved = agent.tracker.moved();
        Arc::new(observation)
    }

    fn wall(&self, s: usize) -> i64 {
        i64::try_from(self.now).unwrap_or(i64::MAX) + self.sites[s].skew
    }

    /// By the wall clock, which may have jumped since.
    fn backup_age(&self, s: usize) -> Option<u64> {
        let age = self.wall(s) - self.sites[s].backup_at?;
        Some(u64::try_from(age).unwrap_or(0) / 1_000)
    }

    /// A verified backup is there now.
    pub fn take_backup(&mut self, s: usize) {
        self.truth.backup_at = Some(self.now);
        self.sites[s].backup_at = Some(self.wall(s));
    }

    fn local_member(&self, s: usize, i: &crate::federation::member::Incarnation) -> LocalMember {
        let site = &self.sites[s];
        let volume = site.volumes.iter().find(|v| v.slot == i.slot);
        let here = volume.filter(|v| v.incarnation.as_ref().is_some_and(|there| there.id == i.id));
        let status = here.and_then(|v| v.node).and_then(|(c, at)| self.status(c, at));
        LocalMember {
            slot: i.slot.clone(),
            incarnation: i.id,
            state: i.state,
            member: i.member,
            peer_url: volume.map_or_else(|| crate::id::PeerUrl("".into()), |v| v.listed.clone()),
            process: here.map_or(Process::Unknown, |v| v.process.clone()),
            options: here.and_then(|v| v.running.clone()).filter(|_| status.is_some()),
            moves_to: None,
            restart: false,
            status,
            certificates_good: !site.certificates_end,
        }
    }

    fn status(&self, cluster: usize, at: At) -> Option<Status> {
        let cluster = &self.clusters[cluster];
        let node = cluster.nodes.get(at).filter(|n| n.running)?;
        let minor = if self.sites[node.site].older_etcd { 5 } else { 6 };
        Some(Status {
            cluster: cluster.id,
            member: node.id,
            leader: node.leader().and_then(|leader| cluster.nodes.get(leader)).map(|leader| leader.id),
            term: Term(node.term()),
            index: Index(node.commit() as u64),
            applied: Index(node.applied() as u64),
            revision: Revision(node.revision()),
            db_size: 1 << 20,
            version: Version { major: 3, minor, patch: 16 },
            learner: node.conf().has(at) && !node.conf().is_voter(at),
            alarm: cluster.no_space,
            faulty: node.leader().is_none(),
            list: cluster.local_list(at).map(crate::federation::observed::MemberList::digest),
            ready: node.leader().is_some(),
            downgrading: false,
        })
    }

    /// The own member that leads, with its linearizable list.
    pub fn leading(&self, s: usize) -> Option<(usize, At)> {
        let nodes = self.sites[s].volumes.iter().filter_map(|v| v.node);
        nodes.into_iter().find(|(c, at)| {
            let node = &self.clusters[*c].nodes[*at];
            node.running && node.leader() == Some(*at)
        })
    }

    fn claim(&self, s: usize) -> Option<LeaderClaim> {
        let (c, at) = self.leading(s)?;
        let cluster = &self.clusters[c];
        let (term, list) = cluster.linearizable_list(at)?;
        let leader = &cluster.nodes[at];
        let check = |(other, learner): &(At, bool)| {
            let node = &cluster.nodes[*other];
            let asked =
                *other != at && node.running && node.applied() > 0 && !self.links.is_cut(s, node.site);
            let comparable = asked && !self.links.is_cut(node.site, s);
            comparable.then(|| DataCheck {
                member: node.id,
                revision: Revision(node.revision().min(leader.revision())),
                equal: node.corrupt == leader.corrupt,
                as_voter: !learner,
            })
        };
        Some(LeaderClaim {
            member: leader.id,
            term: Term(term),
            commit: Index(leader.commit() as u64),
            list: list.clone(),
            checks: leader.conf().members.iter().filter_map(check).collect(),
        })
    }
}
