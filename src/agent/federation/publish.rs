//! Says what is seen: to the other agents, and to people.

use std::sync::Arc;

use quorate_core::condition::endpoints;
use quorate_core::federation::observed::SiteObservation;
use quorate_core::id::{MemberId, SiteName};

use super::{Federation, Snapshot};
use crate::events::Events;
use crate::ports::{Etcd as _, Peers as _, Publication, Runtime as _, World};
use crate::status;

/// The status is made anew at least this often, because it holds what others do and how old that is.
const STATUS_BUSY_MS: u64 = 1_000;
const STATUS_CALM_MS: u64 = 2_000;

/// What was said last.
#[derive(Debug, Default)]
pub(super) struct Said {
    observation: Option<Arc<SiteObservation>>,
    true_at: u64,
    sites: Vec<SiteName>,
    version: u64,
    status_at: Option<u64>,
    /// From the own CR; kept here so that a witness can borrow it.
    pub(super) lost_members: Vec<MemberId>,
    pub(super) events: Events,
}

impl<W: World> Federation<W> {
    /// Tells the others, if there is something new, and makes the status.
    pub(super) fn say(&mut self) {
        self.said.lost_members =
            self.own.as_ref().map(|own| own.spec.lost_members().collect()).unwrap_or_default();
        self.note_own();
        let Some(observation) = self.tracker.observation(&self.names.site).cloned() else { return };
        let sites = self.audience();
        let changed = self.said.observation.as_ref() != Some(&observation);
        if changed {
            self.said.version += 1;
        }
        if changed || self.said.true_at != self.look.true_at || self.said.sites != sites {
            self.said.true_at = self.look.true_at;
            self.said.observation = Some(Arc::clone(&observation));
            self.said.sites.clone_from(&sites);
            self.ports.peers.publish(Publication {
                federation: self.names.federation.clone(),
                from: self.sender(),
                observation,
                true_at: self.look.true_at,
                sites,
                version: self.said.version,
                partings: self.partings(),
            });
        }
        let now = self.now();
        let period = if self.last.attention { STATUS_BUSY_MS } else { STATUS_CALM_MS };
        if changed || self.said.status_at.is_none_or(|at| now.saturating_sub(at) >= period) {
            self.said.status_at = Some(now);
            self.show();
        }
    }

    fn show(&mut self) {
        let wish = self.wish();
        let status = if self.record.departed() {
            status::retired(&self.names, &self.record)
        } else if self.record.deleted {
            status::deleted(&self.names, &self.record)
        } else if let Some((view, wish)) = self.last.view.as_ref().zip(wish.as_ref()) {
            status::living(&self.names, &self.record, view, wish, &self.last.decision)
        } else {
            let heard = self.tracker.heard(self.now());
            let own = self.hindrances(&self.ports.runtime.reports()).into_iter().map(|h| h.reason).next();
            let waits = own.or_else(|| self.ballot.waits.clone());
            status::unborn(&self.names, &self.record, &self.sites(), &heard, waits.as_ref())
        };
        let status = match &self.missing {
            Some(why) => status::without_record(status, &self.why_missing(), why),
            None => status,
        };
        let unknown = self.others().into_iter().find(|site| !self.ports.peers.has(site));
        let status = match unknown {
            Some(site) => status::without_peer(status, &site),
            None => status,
        };
        let endpoints = match (&self.last.view, &wish) {
            (Some(view), Some(wish)) => endpoints(view, wish, &self.ports.etcd.endpoints()),
            _ => Vec::new(),
        };
        let status = quorate_core::condition::Status { endpoints, ..status };
        self.metrics.federation(&status);
        let snapshot = Snapshot {
            status,
            view: self.last.view.clone(),
            wish,
            effective: self.record.effective.as_ref().map(|effective| Arc::clone(&effective.spec)),
            own: self.own.as_ref().map(|own| (own.digest, Arc::clone(&own.spec))),
            events: self.said.events.clone(),
            missing: self.missing.clone(),
        };
        self.snapshot.send_replace(Arc::new(snapshot));
    }
}
