//! Looks at the own members, at all members' peer ports, and at the data of a member that is about to vote.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_core::federation::distance::{Distance, Window};
use quorate_core::federation::member::{Mark, MemberReport, OutsideMark, Process};
use quorate_core::federation::observed::{
    DataCheck, Hindrance, LeaderClaim, Link, ListedMember, LocalMember, MemberList, PROBE_MS, PeerLink,
    SiteObservation, Status,
};
use quorate_core::federation::view::HEARD_MS;
use quorate_core::id::{IncarnationId, MemberId, PeerUrl, Revision, SiteName, Slot, Term};
use quorate_core::membership::safety::PROVEN_MS;
use quorate_core::node;

use super::local::MARK;
use super::message::Sampled;
use super::watermark::Watermark;
use super::{Event, Federation};
use crate::ports::{Etcd as _, Peers as _, Records as _, Runtime as _, Target, World};

/// Between two looks at the own members. Together with the two seconds between pings this stays well below the 5 s
/// after which an agent counts as silent.
const SAMPLE_BUSY_MS: u64 = 500;
const SAMPLE_CALM_MS: u64 = 1_500;
/// Probes (safety.md 2.2): every second while something is wished or wrong, else every fifteen.
pub(super) const PROBE_BUSY_MS: u64 = 1_000;
const PROBE_CALM_MS: u64 = 15_000;
/// A probe that took longer is a miss: three of them must fit into the 5 s of `alive`.
const PROBE_LIMIT: Duration = Duration::from_millis(1_500);
/// How long a sample may take; older ones would make a living agent look silent.
const LIST_LIMIT: Duration = Duration::from_secs(2);
/// The age of a link beyond this says nothing more, and a number that always grows would be a change each second.
const GOOD_CAP_MS: u64 = 2 * PROVEN_MS;
/// After a comparison that said nothing: each reads the whole database of two members.
const COMPARE_MS: u64 = 1_000;

/// What was seen last.
#[derive(Debug, Default)]
pub(super) struct Look {
    statuses: BTreeMap<Slot, Status>,
    claim: Option<(Slot, MemberId, Term, MemberList)>,
    /// Own clock at which `statuses` and `claim` were true.
    pub(super) true_at: u64,
    sampling: bool,
    due: u64,
    links: BTreeMap<MemberId, Row>,
    /// The peer URLs that voters are to have.
    pub(super) moves: BTreeMap<(MemberId, PeerUrl), Row>,
    checks: BTreeMap<(MemberId, bool), DataCheck>,
    /// The leadership under which `checks` were made.
    compared_in: Option<(MemberId, Term)>,
    comparing: bool,
    compare_at: u64,
    marks: BTreeMap<IncarnationId, Watermark>,
}

#[derive(Debug, Default)]
pub(super) struct Row {
    misses: u32,
    good_since: Option<u64>,
    distance: Window,
    probed_at: Option<u64>,
    probing: bool,
    due: u64,
}

impl Row {
    /// Takes note that a probe begins; false if none is due.
    pub(super) fn begin(&mut self, now: u64, period: u64) -> bool {
        // What was calm may have become busy since the time was set.
        self.due = self.due.min(now + period);
        if self.probing || now < self.due {
            return false;
        }
        self.probing = true;
        self.due = now + period;
        true
    }

    /// Takes note of what a probe found.
    pub(super) fn end(&mut self, now: u64, rtt_us: Option<u32>) {
        self.probing = false;
        self.probed_at = Some(now);
        let Some(rtt) = rtt_us else {
            self.misses = self.misses.saturating_add(1).min(1_000);
            self.good_since = None;
            return;
        };
        self.misses = 0;
        self.good_since.get_or_insert(now);
        self.distance.add(now, rtt);
    }

    pub(super) fn link(&self, member: MemberId, now: u64) -> Link {
        let good_ms = self.good_since.map_or(0, |since| now.saturating_sub(since).clamp(1, GOOD_CAP_MS));
        let stale = self.probed_at.is_none_or(|at| now.saturating_sub(at) > PROBE_MS);
        let (rtt_us, least_us) = self.distance.told().map_or((0, 0), |told| (told.rtt_us, told.least_us));
        Link { member, misses: self.misses, good_ms, rtt_us, least_us, stale }
    }
}

impl Look {
    /// The own members are looked at again at once.
    pub(super) fn soon(&mut self) {
        self.due = 0;
    }

    /// How long until the own members are due, if no look is on its way.
    pub(super) fn pause(&self, now: u64) -> Option<Duration> {
        // At least a moment: what is due now was just started or cannot be.
        (!self.sampling).then(|| Duration::from_millis(self.due.saturating_sub(now).max(10)))
    }

    /// The worst round-trip time, ms.
    pub(super) fn rtt_ms(&self) -> u64 {
        let known = self.links.values().filter_map(|row| row.distance.told());
        known.map(|told| u64::from(told.rtt_us) / 1_000).max().unwrap_or(0)
    }

    /// Rule I13: 5 s + 2 x the worst round-trip time.
    pub(super) fn settle_ms(&self) -> u64 {
        HEARD_MS + 2 * self.rtt_ms()
    }

    /// The last status of a slot.
    pub(super) fn status(&self, slot: &Slot) -> Option<&Status> {
        self.statuses.get(slot)
    }

    /// The statuses of foreign members.
    pub(super) fn foreign(&self) -> impl Iterator<Item = &Status> {
        self.statuses.iter().filter(|(slot, _)| slot.is_external()).map(|(_, status)| status)
    }

    /// The linearizable list of the foreign member that leads.
    pub(super) fn foreign_list(&self) -> Option<&MemberList> {
        self.claim.as_ref().filter(|(slot, ..)| slot.is_external()).map(|(.., list)| list)
    }

    /// Whether the peer port of a member is reached from here.
    pub(super) fn reaches(&self, member: MemberId, now: u64) -> bool {
        self.links.get(&member).is_some_and(|row| row.link(member, now).up())
    }

    /// The slot of the own member that leads.
    pub(super) fn leading(&self) -> Option<&Slot> {
        self.claim.as_ref().map(|(slot, ..)| slot)
    }
}

impl<W: World> Federation<W> {
    /// Starts the looks that are due.
    pub(super) fn observe(&mut self) {
        let now = self.now();
        if !self.look.sampling && now >= self.look.due {
            self.sample(now);
        }
        self.probe(now);
        self.probe_moves(now);
        if !self.look.comparing && now >= self.look.compare_at {
            self.compare(now);
        }
    }

    /// Everybody who is heard and looks every second makes this agent look every second.
    fn busy(&self) -> bool {
        self.last.attention || self.run.active() || self.local.active() || self.others_busy()
    }

    fn others_busy(&self) -> bool {
        let heard = |site: &SiteName| self.tracker.observation(site);
        self.sites().iter().filter(|site| **site != self.names.site).filter_map(heard).any(|o| o.attention)
    }

    fn sample(&mut self, now: u64) {
        self.look.sampling = true;
        self.look.due = now + if self.busy() { SAMPLE_BUSY_MS } else { SAMPLE_CALM_MS };
        let running =
            |process: &Process| matches!(process, Process::Running | Process::Starting | Process::Unknown);
        let reports = self.ports.runtime.reports();
        let slots: Vec<Slot> = reports.into_iter().filter(|r| running(&r.process)).map(|r| r.slot).collect();
        let etcd = Arc::clone(&self.ports.etcd);
        let foreign = self.declares();
        self.spawn(async move {
            let looks = slots.into_iter().map(|slot| async {
                let status = etcd.status(&slot).await;
                (slot, status)
            });
            let foreign = async {
                match &foreign {
                    Some(adopt) => etcd.foreign(&adopt.cluster, &adopt.endpoints).await,
                    None => Vec::new(),
                }
            };
            let (mut statuses, foreign) =
                futures::future::join(futures::future::join_all(looks), foreign).await;
            statuses.extend(foreign.into_iter().map(|(slot, status)| (slot, Some(status))));
            let leads = |s: &Status| s.leader == Some(s.member);
            let leader = statuses.iter().find(|(_, status)| status.as_ref().is_some_and(leads));
            let leading = match leader {
                Some((slot, Some(status))) => {
                    // The commit index was read with the status, before anybody else was asked (safety.md 2.2).
                    let read = tokio::time::timeout(LIST_LIMIT, etcd.list(slot)).await.ok().flatten();
                    read.filter(|(_, term)| *term == status.term)
                        .map(|(list, term)| (slot.clone(), list, term))
                }
                _ => None,
            };
            Event::Sampled(Box::new(Sampled { true_at: now, statuses, leading }))
        });
    }

    pub(super) async fn sampled(&mut self, sampled: Box<Sampled>) {
        let Sampled { true_at, statuses, leading } = *sampled;
        self.look.sampling = false;
        self.look.true_at = true_at;
        self.look.statuses =
            statuses.into_iter().filter_map(|(slot, status)| Some((slot, status?))).collect();
        let before = self.look.claim.as_ref().map(|(_, member, term, list)| (*member, *term, list.digest()));
        self.look.claim = leading.and_then(|(slot, list, term)| {
            let member = self.look.statuses.get(&slot)?.member;
            Some((slot, member, term, list))
        });
        let after = self.look.claim.as_ref().map(|(_, member, term, list)| (*member, *term, list.digest()));
        if before != after {
            // The new list is probed and its followers are waited for: look again soon.
            self.look.due = 0;
        }
        self.note_own();
        self.high_water().await;
        self.looked(true_at).await;
    }

    /// Tells the own tracker what is seen now.
    pub(super) fn note_own(&mut self) {
        let now = self.now();
        let observation = self.observation(now);
        let age = now.saturating_sub(self.look.true_at);
        if self.tracker.observation(&self.names.site).is_none_or(|old| **old != observation) {
            self.tracker.hear(Arc::new(observation), age, now);
        } else {
            let site = self.names.site.clone();
            self.tracker.renew(&site, age, now);
        }
    }

    /// The own observation.
    pub(super) fn observation(&self, now: u64) -> SiteObservation {
        let reports = self.ports.runtime.reports();
        let layout = self.spec().map(|(_, layout)| layout);
        let urls = self.urls();
        let mut summary = self.record.summary();
        summary.missing = self.missing.is_some();
        let listed = self.listed();
        let held_up = self.held_up();
        SiteObservation {
            site: self.names.site.clone(),
            spec: self.own.as_ref().map(|own| own.digest),
            deleted: self.deleted,
            record: Arc::new(summary),
            members: self.local_members(&reports),
            offers: layout
                .filter(|_| held_up.is_none())
                .map(|layout| node::offers(&self.record, &layout, &self.names.site, &reports, &urls))
                .unwrap_or_default(),
            links: listed.iter().filter_map(|m| Some(self.look.links.get(&m.id)?.link(m.id, now))).collect(),
            peers: self.peer_links(),
            reached: self.reached_rows(now),
            leader: self.claim(),
            attention: self.last.attention && self.record.seeded.is_some(),
            backup_age_s: None,
            maintenance: false,
            has_data: self.missing.is_some() || !self.record.incarnations.is_empty(),
            seen: self.tracker.seen(),
            held_up,
            moved: self.tracker.moved(),
            hindered: self.hindrances(&reports),
        }
    }

    /// How long a probe of a member may take. A new connection and the question take four round trips: a far member answers
    /// later, not worse.
    pub(super) fn probe_limit(&self, site: &SiteName) -> Duration {
        let far_us = self.ports.peers.round_trip(site).map_or(0, |distance| distance.rtt_us);
        PROBE_LIMIT + Duration::from_micros(u64::from(far_us) * 4).min(PROBE_LIMIT)
    }

    fn peer_links(&self) -> Vec<PeerLink> {
        let row = |site: SiteName| {
            let Distance { rtt_us, least_us } = self.ports.peers.round_trip(&site)?;
            Some(PeerLink { site, rtt_us, least_us })
        };
        self.others().into_iter().filter_map(row).collect()
    }

    /// What the host refuses to the own members, and to this agent.
    pub(super) fn hindrances(&self, reports: &[MemberReport]) -> Vec<Hindrance> {
        let members = reports.iter().filter_map(|report| {
            Some(Hindrance { slot: Some(report.slot.clone()), reason: report.hindered.clone()? })
        });
        let own = self.hindered.values().map(|reason| Hindrance { slot: None, reason: reason.clone() });
        members.chain(own).collect()
    }

    fn local_members(&self, reports: &[MemberReport]) -> Vec<LocalMember> {
        use quorate_core::federation::member::IncarnationState::Removed;
        let incarnations =
            self.record.incarnations.iter().filter(|i| {
                i.state != Removed && i.member.is_some_and(|id| !self.record.removed.contains(&id))
            });
        let member = |i: &quorate_core::federation::member::Incarnation| {
            let report = reports.iter().find(|r| r.slot == i.slot);
            let here = report.filter(|r| r.incarnation.as_ref().is_some_and(|there| there.id == i.id));
            let serving = self.ports.runtime.serving(&i.slot)?;
            let view = self.last.view.as_ref().and_then(|view| view.member(i.member?));
            // The list may show a change before it is taken note of here.
            let listed = view.map(|m| &m.peer_url).filter(|url| serving.also.contains(url));
            let options = here.and_then(|r| r.options.clone());
            let listens = options.as_ref().map(|options| options.peer_ports == serving.ports);
            Some(LocalMember {
                slot: i.slot.clone(),
                incarnation: i.id,
                state: i.state,
                member: i.member,
                peer_url: listed.unwrap_or(&serving.peer_url).clone(),
                process: here.map_or(Process::Unknown, |r| r.process.clone()),
                options,
                moves_to: serving.moves_to.filter(|_| listens == Some(true)),
                restart: listens == Some(false),
                status: self.look.statuses.get(&i.slot).filter(|s| Some(s.member) == i.member).cloned(),
                certificates_good: self.ports.runtime.certificates_good(&i.slot),
            })
        };
        incarnations.filter_map(member).chain(self.foreign_members()).collect()
    }

    fn claim(&self) -> Option<LeaderClaim> {
        let (slot, member, term, list) = self.look.claim.as_ref()?;
        let commit = self.look.statuses.get(slot)?.index;
        let checks =
            self.look.checks.values().filter(|c| list.get(c.member).is_some_and(|m| m.learner != c.as_voter));
        Some(LeaderClaim {
            member: *member,
            term: *term,
            commit,
            list: list.clone(),
            checks: checks.cloned().collect(),
        })
    }

    /// The newest list that anybody read.
    pub(super) fn listed(&self) -> Vec<ListedMember> {
        let own = self.look.claim.as_ref().map(|(.., list)| list);
        let list = own.or_else(|| self.last.view.as_ref().and_then(|view| view.list.as_ref()));
        list.map(|list| list.iter().cloned().collect()).unwrap_or_default()
    }

    fn target(&self, member: &ListedMember) -> Option<Target> {
        let known = self.last.view.as_ref().and_then(|view| view.site_of(member.id)).cloned();
        let told = || member.peer_url.slot(&self.names.federation.name).map(|(site, _)| site);
        let site = known.or_else(told).or_else(|| self.adopts().map(|adopt| adopt.cluster.clone()))?;
        Some(Target {
            uid: self.record.uid?,
            site,
            member: member.id,
            peer_url: member.peer_url.clone(),
            cluster: self.record.seeded?.cluster,
        })
    }

    fn probe(&mut self, now: u64) {
        let period = if self.busy() { PROBE_BUSY_MS } else { PROBE_CALM_MS };
        let listed = self.listed();
        self.look.links.retain(|id, _| listed.iter().any(|m| m.id == *id));
        for member in &listed {
            let Some(target) = self.target(member) else { continue };
            if !self.look.links.entry(member.id).or_default().begin(now, period) {
                continue;
            }
            let etcd = Arc::clone(&self.ports.etcd);
            let limit = self.probe_limit(&target.site);
            self.spawn(async move {
                let rtt_us = tokio::time::timeout(limit, etcd.probe(&target)).await.ok().flatten();
                Event::Probed { member: target.member, rtt_us }
            });
        }
    }

    pub(super) fn probed(&mut self, member: MemberId, rtt_us: Option<u32>) {
        let now = self.now();
        if let Some(row) = self.look.links.get_mut(&member) {
            row.end(now, rtt_us);
        }
    }

    /// Compares each learner and each alive voter once per leadership with the own leading member (rules I9 and I15).
    fn compare(&mut self, now: u64) {
        let Some((slot, leader, term, list)) = &self.look.claim else {
            self.look.checks.clear();
            return;
        };
        let leadership = Some((*leader, *term));
        if self.look.compared_in != leadership {
            self.look.compared_in = leadership;
            self.look.checks.clear();
        }
        self.look.checks.retain(|(id, _), _| list.get(*id).is_some());
        // Who does not answer would only hold the others up.
        let alive = |id: MemberId| {
            let view = self.last.view.as_ref().and_then(|view| view.member(id));
            view.is_some_and(|m| m.life.alive())
        };
        let wanted = |m: &&ListedMember| {
            let open = m.id != *leader && !m.name.is_empty() && (m.learner || alive(m.id));
            open && !self.look.checks.contains_key(&(m.id, !m.learner))
        };
        // A learner waits for it, voters only if a step comes.
        let Some(member) = list.iter().filter(wanted).min_by_key(|m| !m.learner) else { return };
        let Some(revision) = self.look.statuses.get(slot).map(|s| s.revision) else { return };
        let Some(target) = self.target(member) else { return };
        let (id, as_voter, slot) = (member.id, !member.learner, slot.clone());
        self.look.comparing = true;
        self.look.compare_at = now + COMPARE_MS;
        let etcd = Arc::clone(&self.ports.etcd);
        self.spawn(async move {
            let (ours, theirs) =
                futures::future::join(etcd.hash(&slot, revision), etcd.peer_hash(&target, revision)).await;
            // Hashes of different compact revisions say nothing: it is tried again.
            let comparable = ours.zip(theirs).filter(|(a, b)| a.compacted == b.compacted);
            let check = comparable.map(|(a, b)| DataCheck {
                member: id,
                revision: Revision(revision.0),
                equal: a.hash == b.hash,
                as_voter,
            });
            Event::Compared { member: id, as_voter, check }
        });
    }

    pub(super) fn compared(&mut self, member: MemberId, as_voter: bool, check: Option<DataCheck>) {
        self.look.comparing = false;
        let Some(check) = check else { return };
        // The next one need not wait: each member is compared once.
        self.look.compare_at = 0;
        if !check.equal {
            self.event(
                "DivergentData",
                format!("data of member {member} differ at revision {}", check.revision),
            );
        }
        self.look.checks.insert((member, as_voter), check);
    }

    /// A site that knows of a higher number from here than the own record holds: the record was rolled back.
    pub(super) fn rolled_back(&self) -> Option<SiteName> {
        let mine = (self.record.epoch, self.record.seq());
        let knows = |o: &SiteObservation| {
            o.seen.iter().any(|seen| seen.site == self.names.site && (seen.epoch, seen.seq) > mine)
        };
        let heard = self.tracker.heard(self.now());
        // Only of sites that can be asked for what they know.
        heard
            .into_iter()
            .find(|(_, heard)| heard.age_ms < HEARD_MS && knows(&heard.observation))
            .map(|(site, _)| site)
    }

    /// Writes how far the own incarnations were seen, outside their volumes.
    async fn high_water(&mut self) {
        let now = self.now();
        let running = self.record.incarnations.iter().filter_map(|i| {
            let status = self.look.statuses.get(&i.slot).filter(|s| Some(s.member) == i.member)?;
            Some((i.clone(), Mark { term: status.term, index: status.index }))
        });
        let running: Vec<_> = running.collect();
        self.look.marks.retain(|id, _| running.iter().any(|(i, _)| i.id == *id));
        for (i, seen) in running {
            let mark = self.look.marks.entry(i.id).or_insert_with(|| Watermark::new(i.mark, now));
            let Some(mark) = mark.observe(seen, now) else { continue };
            let outside = OutsideMark { incarnation: i.id, state: i.state, mark };
            let written = match self.ports.records.mark(&i.slot, &outside).await {
                Ok(()) => {
                    self.hindered.remove(MARK);
                    true
                }
                Err(fault) => {
                    self.refused(MARK, &fault);
                    false
                }
            };
            let record = node::with(&self.record, i.id, |i| i.mark = i.mark.max(mark));
            if !written || !self.persist(record).await {
                // Tried again with the next sample.
                self.look.marks.remove(&i.id);
            }
        }
    }
}
