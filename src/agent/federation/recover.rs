//! A lost or unreadable record (safety.md 4, "Record lost"): nothing is assumed; the others are asked.

use std::sync::Arc;
use std::time::Duration;

use quorate_core::federation::member::{Incarnation, IncarnationState, Process};
use quorate_core::id::SiteName;
use quorate_core::intent::record::Record;
use quorate_core::membership::quorum::quorum;
use quorate_core::node;

use super::{Answers, Event, Federation};
use crate::ports::{Peers as _, Runtime as _, Sender, World};

/// Between two rounds of asking.
const AGAIN_MS: u64 = 2_000;
const PATIENCE: Duration = Duration::from_secs(4);

/// What came so far.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    asking: bool,
    again_at: u64,
    /// Own clock at which the records were enough for the first time.
    enough_at: Option<u64>,
    records: Answers<Record>,
}

impl<W: World> Federation<W> {
    /// Asks, and rebuilds the record once enough have answered and one request timeout is over.
    pub(super) async fn recover(&mut self) {
        let now = self.now();
        if !self.recovery.asking && now >= self.recovery.again_at {
            self.ask_records();
        }
        let Some((n, listed_here)) = self.known_voters() else { return };
        let came: usize = self.recovery.records.keys().map(|site| self.voters_of(site)).sum();
        if came <= n - quorum(n).min(n) && n > 1 {
            self.recovery.enough_at = None;
            return;
        }
        let since = *self.recovery.enough_at.get_or_insert(now);
        if now.saturating_sub(since) < self.deadline_ms() {
            return;
        }
        let records: Vec<Record> = self.recovery.records.values().cloned().collect();
        let Some(mut next) = Record::recover(self.names.federation.clone(), &records) else { return };
        next.incarnations = self.lives(&next, &listed_here);
        if self.persist(next).await {
            self.missing = None;
            self.event("RecordRecovered", format!("from {} sites", self.recovery.records.len()));
            self.recovery = Recovery::default();
        }
    }

    fn ask_records(&mut self) {
        self.recovery.asking = true;
        let sites = self.others();
        let peers = Arc::clone(&self.ports.peers);
        self.spawn(async move {
            let ask = |site: SiteName| {
                let peers = &peers;
                async move {
                    let asked = peers.whole_record(&site, Sender::default());
                    let record = tokio::time::timeout(PATIENCE, asked).await.ok().flatten();
                    (site, record)
                }
            };
            Event::Records(futures::future::join_all(sites.into_iter().map(ask)).await.into_iter().collect())
        });
    }

    pub(super) fn recovered_from(&mut self, records: Answers<Option<Record>>) {
        self.recovery.asking = false;
        self.recovery.again_at = self.now() + AGAIN_MS;
        // Only the newest answers count: a record may have moved on since the last round.
        for (site, record) in records {
            match record {
                Some(record) => self.recovery.records.insert(site, record),
                None => self.recovery.records.remove(&site),
            };
        }
    }

    /// The number of voters that anybody told of, and what is listed at the own site.
    fn known_voters(&self) -> Option<(usize, Vec<quorate_core::federation::observed::ListedMember>)> {
        let heard = self.tracker.heard(self.now());
        let claim = heard.iter().filter_map(|(_, h)| h.observation.leader.as_ref()).max_by_key(|c| c.term)?;
        let name = &self.names.federation.name;
        let here =
            |url: &quorate_core::id::PeerUrl| url.slot(name).is_some_and(|(site, _)| site == self.names.site);
        let listed = claim.list.iter().filter(|m| here(&m.peer_url)).cloned().collect();
        Some((claim.list.voters().count(), listed))
    }

    /// Whether somebody lists a member at the own site.
    pub(super) fn listed_here(&self) -> bool {
        self.known_voters().is_some_and(|(_, listed)| !listed.is_empty())
    }

    fn voters_of(&self, site: &SiteName) -> usize {
        let heard = self.tracker.heard(self.now());
        let claim = heard.iter().filter_map(|(_, h)| h.observation.leader.as_ref()).max_by_key(|c| c.term);
        let name = &self.names.federation.name;
        claim.map_or(0, |claim| {
            // The own CR is all that tells who speaks for foreign members.
            let speaks = self.own.as_ref().and_then(|own| own.spec.adopts()) == Some(site);
            let hosted = |url: &quorate_core::id::PeerUrl| url.slot(name).map_or(speaks, |(s, _)| s == *site);
            claim.list.voters().filter(|m| hosted(&m.peer_url)).count()
        })
    }

    /// The own incarnations: from the file next to the directory if that etcd runs, else the slot is lost.
    fn lives(
        &self,
        record: &Record,
        listed: &[quorate_core::federation::observed::ListedMember],
    ) -> Vec<Incarnation> {
        let reports = self.ports.runtime.reports();
        let layout = record.effective.as_ref().and_then(|e| e.spec.layout().ok());
        let mut lives = Vec::new();
        for member in listed {
            let Some((site, ordinal)) = member.peer_url.slot(&self.names.federation.name) else { continue };
            let report = reports.iter().find(|r| r.slot.site == site && r.slot.ordinal == ordinal);
            let running =
                report.filter(|r| r.process == Process::Running).and_then(|r| r.incarnation.clone());
            let slot = report.map(|r| r.slot.clone()).or_else(|| {
                let slots = layout.iter().flat_map(|l| l.slots.iter());
                slots.clone().find(|s| s.site == site && s.ordinal == ordinal).cloned()
            });
            match (running.filter(|i| i.member == Some(member.id)), slot) {
                (Some(i), _) => lives.push(Incarnation { granted: true, ..i }),
                (None, Some(slot)) => {
                    let id = quorate_core::id::IncarnationId(self.fresh());
                    let lost = Incarnation {
                        state: IncarnationState::Lost,
                        cluster: record.seeded.map(|s| s.cluster),
                        member: Some(member.id),
                        ..node::planned(record, &slot, id, false)
                    };
                    lives.push(lost);
                }
                (None, None) => {}
            }
        }
        lives
    }
}
