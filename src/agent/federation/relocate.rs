//! Another peer URL for an own voter (rule I16, safety.md 5): it is served beside the listed one, every other voter's agent
//! reaches it, the executor sends the update, and then the old one goes. What is decided is decided in
//! [`quorate_core::membership::address`] and by the runtime; the listening changes with planned restarts.

use std::sync::Arc;

use quorate_core::federation::member::IncarnationState;
use quorate_core::federation::observed::Reached;
use quorate_core::federation::view::View;
use quorate_core::id::{MemberId, PeerUrl, SiteName, Slot};

use super::observe::{PROBE_BUSY_MS, Row};
use super::{Event, Federation};
use crate::ports::{Etcd as _, Runtime as _, Serving, Target, World};

/// What is tried.
const PEER_URL: &str = "peer URL";

impl<W: World> Federation<W> {
    /// Serves own voters where the configuration wants them, and no longer where they were.
    pub(super) async fn relocate(&mut self) {
        if self.now() < self.local.again_at() {
            return;
        }
        for (slot, listed) in self.listed_voters() {
            if !self.ports.runtime.strays(&slot, &listed) {
                continue;
            }
            match self.ports.runtime.follow(&slot, &listed).await {
                Ok(()) => {
                    self.hindered.remove(PEER_URL);
                    let Some(Serving { moves_to, .. }) = self.ports.runtime.serving(&slot) else { continue };
                    let text = match moves_to {
                        Some(url) => format!("{slot}: {url} is to take the place of {listed}"),
                        None => format!("{slot}: {listed} is the only one from now on"),
                    };
                    self.event("PeerUrlChanges", text);
                }
                Err(error) => self.fail(PEER_URL, &error),
            }
        }
    }

    /// The own voters with the URLs that they are listed with.
    fn listed_voters(&self) -> Vec<(Slot, PeerUrl)> {
        let Some(view) = self.last.view.as_ref().filter(|view| view.leader.is_some()) else {
            return Vec::new();
        };
        let own = self.record.incarnations.iter().filter(|i| i.state == IncarnationState::Voter);
        own.filter_map(|i| {
            let listed = view.member(i.member?).filter(|m| !m.learner)?;
            Some((i.slot.clone(), listed.peer_url.clone()))
        })
        .collect()
    }

    /// Probes the URLs that voters are to have. etcd's peer port tells the id of the cluster, but not that of its own
    /// member: the certificate is what proves that, since its host is the slot's and the only root that is believed is
    /// that of the slot's site.
    pub(super) fn probe_moves(&mut self, now: u64) {
        let moves: Vec<(MemberId, PeerUrl, SiteName)> = {
            let voters = self.last.view.iter().flat_map(View::voters);
            voters.filter_map(|m| Some((m.id, m.moves_to.clone()?, m.site()?.clone()))).collect()
        };
        self.look.moves.retain(|(member, url), _| moves.iter().any(|(id, to, _)| id == member && to == url));
        let Some((uid, cluster)) = self.record.uid.zip(self.record.seeded.map(|seeded| seeded.cluster))
        else {
            return;
        };
        for (member, peer_url, site) in moves {
            let row = self.look.moves.entry((member, peer_url.clone())).or_default();
            if !row.begin(now, PROBE_BUSY_MS) {
                continue;
            }
            let limit = self.probe_limit(&site);
            let target = Target { uid, site, member, peer_url, cluster };
            let etcd = Arc::clone(&self.ports.etcd);
            self.spawn(async move {
                let rtt_us = tokio::time::timeout(limit, etcd.probe(&target)).await.ok().flatten();
                Event::Reached { member, peer_url: target.peer_url, rtt_us }
            });
        }
    }

    pub(super) fn reached(&mut self, member: MemberId, peer_url: PeerUrl, rtt_us: Option<u32>) {
        let now = self.now();
        if let Some(row) = self.look.moves.get_mut(&(member, peer_url)) {
            row.end(now, rtt_us);
        }
    }

    /// For the own observation.
    pub(super) fn reached_rows(&self, now: u64) -> Vec<Reached> {
        let row = |((member, peer_url), row): (&(MemberId, PeerUrl), &Row)| {
            let good_ms = row.link(*member, now).good_ms;
            Reached { member: *member, peer_url: peer_url.clone(), good_ms }
        };
        self.look.moves.iter().map(row).collect()
    }
}
