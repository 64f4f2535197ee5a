//! A lost or rolled-back record is made whole from what the others hold (safety.md 4).

use super::agent::{Agent, DEADLINE_MS};
use super::network::Body;
use super::world::World;
use crate::federation::member::IncarnationState;
use crate::federation::observed::MemberList;
use crate::id::{MemberId, SiteName};
use crate::intent::record::Record;
use crate::node;

impl World {
    /// A lost record is rebuilt from what the others hold (safety.md 4).
    pub(super) fn recover(&mut self, s: usize, agent: &mut Agent) {
        let (Some(since), now) = (agent.missing, agent.clock(self.now)) else { return };
        self.count(Some(crate::reason::Rule::I8));
        for site in self.names.clone() {
            if site != self.sites[s].name && !agent.told.iter().any(|(name, _)| *name == site) {
                self.request(s, agent, &site, 0, Body::WholeRecord);
            }
        }
        if now.saturating_sub(since) < DEADLINE_MS || agent.told.is_empty() {
            return;
        }
        let lists = agent.tracker.heard(now);
        let newest =
            lists.iter().filter_map(|(_, h)| h.observation.leader.as_ref()).max_by_key(|claim| claim.term);
        let Some(list) = newest.map(|claim| claim.list.clone()) else { return };
        let n = list.voters().count();
        let site_of = |url: &crate::id::PeerUrl| url.slot(&self.key.name).map(|(site, _)| site);
        let told = |site: &SiteName| agent.told.iter().any(|(name, _)| name == site);
        // Voters that are proven dead count as come.
        let declared = |id: MemberId| {
            self.sites[s].cr.as_ref().is_some_and(|cr| cr.spec.lost_members().any(|lost| lost == id))
        };
        let counts = |m: &&crate::federation::observed::ListedMember| {
            declared(m.id) || site_of(&m.peer_url).is_some_and(|site| told(&site))
        };
        let come = list.voters().filter(counts).count();
        if n > 1 && come <= n - crate::membership::quorum::quorum(n) {
            return;
        }
        let others: Vec<Record> = agent.told.iter().map(|(_, record)| record.as_ref().clone()).collect();
        let Some(mut next) = Record::recover(self.key.clone(), &others) else { return };
        self.lives_beside(s, &mut next, &list);
        agent.record = None;
        self.truth.forgive(s);
        agent.missing = None;
        agent.told.clear();
        let lives: Vec<_> = next.incarnations.iter().map(|i| (i.slot.ordinal, i.state, i.member)).collect();
        self.note(|| format!("rebuilds its record, with {lives:?}"), Some(s));
        if !self.persist(s, agent, next) && !agent.dies {
            agent.missing = Some(now);
        }
    }

    /// Incarnations come from the files beside running members; any other is lost.
    pub(super) fn lives_beside(&mut self, s: usize, next: &mut Record, list: &MemberList) {
        for (v, volume) in self.sites[s].volumes.iter().enumerate() {
            let Some(beside) = &volume.incarnation else { continue };
            let mut life = beside.clone();
            life.granted = true;
            if !self.node(s, v).is_some_and(|n| n.running) && life.state >= IncarnationState::Started {
                life.state = IncarnationState::Lost;
            }
            if life.member.is_none_or(|id| !next.removed.contains(&id)) {
                next.incarnations.push(life);
            } else {
                next.incarnations.push(crate::federation::member::Incarnation {
                    state: IncarnationState::Removed,
                    ..life
                });
            }
        }
        // Listed at an own address, and nothing here explains it: that life is lost. Without this nobody would ever
        // attest it, and an empty directory could be started under its id.
        let slots: Vec<_> = self.sites[s].volumes.iter().map(|v| v.slot.clone()).collect();
        for slot in slots {
            // By slot, not by address: that may have changed since.
            let here = |url: &crate::id::PeerUrl| {
                url.slot(&self.key.name).is_some_and(|(site, n)| site == slot.site && n == slot.ordinal)
            };
            let Some(listed) = list.iter().find(|m| here(&m.peer_url)) else { continue };
            if next.incarnations.iter().any(|i| i.member == Some(listed.id)) {
                continue;
            }
            let id = crate::id::IncarnationId(self.sites[s].rng.wide());
            let mut life = node::planned(next, &slot, id, false);
            life.state = IncarnationState::Lost;
            life.member = Some(listed.id);
            life.cluster = next.seeded.map(|seeded| seeded.cluster);
            next.incarnations.push(life);
        }
    }
}
