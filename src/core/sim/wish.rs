//! What is wished at a site, and what its agent takes for the state of the world.

use std::sync::Arc;

use super::agent::{Agent, DEADLINE_MS, MAX_BACKUP_AGE_S, SETTLE_MS};
use super::site::Cr;
use super::world::World;
use crate::federation::spec::Spec;
use crate::federation::track::Frame;
use crate::federation::view::{Pending, View, Wish};
use crate::id::{Digest, MemberId};
use crate::membership::agreement;

impl World {
    /// The merge of what this agent has heard.
    pub fn view(&mut self, s: usize, agent: &mut Agent) -> Option<View> {
        let record = agent.record.clone()?;
        let wish = self.wish(s, agent, None);
        let frame = Frame {
            now: agent.clock(self.now),
            cluster: record.seeded.map(|seeded| seeded.cluster),
            removed: &record.removed,
            wish: wish.as_ref(),
            expected: &self.names,
            settle_ms: SETTLE_MS,
        };
        Some(agent.tracker.view(frame))
    }

    /// What is wished here: the effective spec, and what acts from the own CR without activation.
    pub fn wish(&self, s: usize, agent: &Agent, view: Option<&View>) -> Option<Wish> {
        let effective = agent.effective.as_ref()?;
        let cr = self.sites[s].cr.as_ref();
        let told = self.names.iter().filter_map(|name| agent.tracker.observation(name));
        let newest = agent.record.as_ref()?.newest_effective(told.map(|o| o.record.as_ref()));
        let (generation, digest) = newest.unwrap_or((effective.of.generation, effective.of.digest));
        let pending = self.pending(s, view).filter(|cr| cr.digest != digest).map(|cr| Pending {
            digest: cr.digest,
            sites: cr.spec.sites().cloned().collect(),
            slots: Vec::new(),
            allow_single_voter: false,
            lost_sites: Vec::new(),
            timing: effective.of.timing,
            adopts: None,
            other_cluster: false,
        });
        Some(Wish {
            generation,
            slots: effective.layout.slots.clone(),
            allow_single_voter: effective.layout.allow_single_voter,
            lost_members: cr.map(|cr| cr.spec.lost_members().collect()).unwrap_or_default(),
            exception: cr.and_then(|cr| cr.spec.exception.clone()),
            adopts: None,
            max_backup_age_s: self.options.backups.then_some(MAX_BACKUP_AGE_S),
            pending,
            retimed: None,
            leader: None,
            url_changes: view.map(|view| url_changes(self, view)).unwrap_or_default(),
            deadline_ms: DEADLINE_MS,
            options: crate::node::options(&effective.of.spec, effective.of.timing),
            restarting: None,
        })
    }
}

impl World {
    /// A spec by its digest, wherever it lies: agents ask each other for it.
    pub(super) fn spec_of(&self, digest: Digest) -> Option<Arc<Spec>> {
        let held = self.sites.iter().filter_map(|site| site.cr.as_ref()).find(|cr| cr.digest == digest);
        let records = self.sites.iter().filter_map(|site| site.store.record.as_ref()?.effective.as_ref());
        let effective = || records.into_iter().find(|e| e.digest == digest).map(|e| Arc::clone(&e.spec));
        held.map(|cr| Arc::clone(&cr.spec)).or_else(effective)
    }

    /// The spec that may become effective: the one that a quorum's CRs hold, else the own one. What lies elsewhere is
    /// asked for by its digest; that cannot change anything but when it is known.
    pub(super) fn pending(&self, s: usize, view: Option<&View>) -> Option<Arc<Cr>> {
        match view.and_then(agreement::held_by_quorum) {
            Some(digest) => {
                let held = self.sites.iter().filter_map(|site| site.cr.as_ref());
                held.into_iter().find(|cr| cr.digest == digest).cloned()
            }
            None => self.sites[s].cr.clone(),
        }
    }
}

/// Addresses that sites want changed: their own configuration says another one than the list.
fn url_changes(w: &World, view: &View) -> Vec<(MemberId, crate::id::PeerUrl, bool)> {
    let mut changes = Vec::new();
    for volume in w.sites.iter().flat_map(|site| &site.volumes).filter(|v| v.url != v.listed) {
        let member =
            view.voters().find(|m| m.slot.as_ref() == Some(&volume.slot) && m.peer_url != volume.url);
        let Some(member) = member else { continue };
        let proven = view.voters().all(|other| other.id == member.id || other.life.alive());
        changes.push((member.id, volume.url.clone(), proven));
    }
    changes
}
