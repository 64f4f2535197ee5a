//! Specs that other sites hold and this one does not: asked for by digest, and believed because the digest fits. So that
//! an executor can activate what a quorum's CRs say although its own says something else, and so that a site that missed
//! an activation can take it over whatever its own CR says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::federation::layout::Layout;
use quorate_core::federation::spec::Spec;
use quorate_core::federation::view::{HEARD_MS, Pending};
use quorate_core::id::{Digest, MemberId, SiteName};
use quorate_core::membership::agreement;
use quorate_core::timing;

use super::{Event, Federation};
use crate::ports::{Peers as _, World};

/// After a site that did not have it.
const AGAIN_MS: u64 = 2_000;
const PATIENCE: Duration = Duration::from_secs(3);

/// What was asked for.
#[derive(Debug, Default)]
pub(super) struct Specs {
    known: BTreeMap<[u8; 32], Arc<Spec>>,
    asking: bool,
    again_at: u64,
}

impl<W: World> Federation<W> {
    /// The spec with this digest, if it lies here: in the own CR, as the effective one, or asked for.
    pub(super) fn spec_of(&self, digest: Digest) -> Option<Arc<Spec>> {
        let own = self.own.as_ref().filter(|own| own.digest == digest).map(|own| &own.spec);
        let effective = self.record.effective.as_ref().filter(|e| e.digest == digest).map(|e| &e.spec);
        own.or(effective).or_else(|| self.specs.known.get(&digest.0)).cloned()
    }

    /// The newest effective digest that this record or anybody who is heard holds.
    fn newest_digest(&self) -> Option<Digest> {
        let heard = self.tracker.heard(self.now());
        let told = heard.iter().map(|(_, h)| h.observation.record.as_ref());
        self.record.newest_effective(told).map(|(_, digest)| digest)
    }

    /// The spec that waits for its activation: the one that a quorum's CRs hold, else the own CR's while nobody else's
    /// has a quorum.
    pub(super) fn pending(&self, lost_members: &[MemberId]) -> Option<Pending> {
        let newest = self.newest_digest()?;
        let view = self.last.view.as_ref();
        let digest = match view.and_then(agreement::held_by_quorum) {
            Some(digest) => digest,
            None => self.own.as_ref()?.digest,
        };
        let spec = self.spec_of(digest).filter(|_| digest != newest)?;
        let lost = |site: &&SiteName| {
            let mut here =
                view.iter().flat_map(|v| v.members.iter()).filter(|m| m.site() == Some(*site)).peekable();
            here.peek().is_some() && here.all(|m| lost_members.contains(&m.id))
        };
        let sites: Vec<SiteName> = spec.sites().cloned().collect();
        let lost_sites = sites.iter().filter(lost).cloned().collect();
        let effective = self.record.effective.as_ref()?;
        let timing = timing::at_activation(effective.timing, self.measured(&sites));
        let Layout { slots, allow_single_voter, .. } = spec.layout().ok()?;
        let slots = self.seated(&slots);
        let cluster = self.record.seeded.map(|seeded| seeded.cluster);
        let other_cluster = spec.adopt.as_ref().is_some_and(|adopt| Some(adopt.cluster_id) != cluster);
        let adopts = spec.adopts().cloned();
        Some(Pending { digest, sites, slots, allow_single_voter, lost_sites, timing, adopts, other_cluster })
    }

    /// Asks for a spec that is needed and not here.
    pub(super) fn fetch_specs(&mut self) {
        let now = self.now();
        if self.record.effective.is_none() || self.specs.asking || now < self.specs.again_at {
            return;
        }
        let newest = self.newest_digest();
        let held = self.last.view.as_ref().and_then(agreement::held_by_quorum);
        let needed: Vec<Digest> = [newest, held].into_iter().flatten().collect();
        self.specs.known.retain(|digest, _| needed.iter().any(|needed| needed.0 == *digest));
        let Some(digest) = needed.into_iter().find(|digest| self.spec_of(*digest).is_none()) else { return };
        let heard = self.tracker.heard(now);
        let has = |(site, h): &&(SiteName, quorate_core::federation::observed::Heard)| {
            let o = &h.observation;
            let holds = o.spec == Some(digest) || o.record.effective == Some(digest);
            *site != self.names.site && h.age_ms < HEARD_MS && holds
        };
        let Some((site, _)) = heard.iter().find(has) else { return };
        self.specs.asking = true;
        self.specs.again_at = now + AGAIN_MS;
        let (site, from, peers) = (site.clone(), self.sender(), Arc::clone(&self.ports.peers));
        self.spawn(async move {
            let spec = tokio::time::timeout(PATIENCE, peers.spec(&site, from, digest)).await;
            Event::Spec(digest, spec.ok().flatten())
        });
    }

    /// A spec came, or did not.
    pub(super) fn fetched(&mut self, digest: Digest, spec: Option<Spec>) {
        self.specs.asking = false;
        let fits = |spec: &Spec| spec.digest(&self.names.federation) == digest && spec.layout().is_ok();
        if let Some(spec) = spec.filter(fits) {
            self.specs.again_at = 0;
            self.specs.known.insert(digest.0, Arc::new(spec));
        }
    }
}
