//! What one agent remembers over time, and the view that follows from it. Pure: the caller says what time it is,
//! in milliseconds of its own monotonic clock (safety.md 2.4).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::federation::layout::default_zone;
use crate::federation::member::{IncarnationState, Mark, Process};
use crate::federation::observed::{
    LeaderClaim, Link, ListedMember, LocalMember, MemberList, Seen, SiteObservation, Status,
};
use crate::federation::view::{HEARD_MS, LearnerTrack, Life, MAX_LAG, MemberView, SiteView, View, Wish};
use crate::id::{
    ClusterId, Epoch, FederationKey, IncarnationId, MemberId, PeerUrl, Seq, SiteName, Slot, Term,
};
use crate::intent::HeldIntent;
use crate::reason::Code;

/// Window of rule I13 for unplanned leader changes.
const LEADER_WINDOW_MS: u64 = 5 * 60 * 1000;

/// How long a freed peer URL is remembered; rule I6 needs 1.1 s, the rest is for people who read the view.
const FREED_MS: u64 = 10_000;

struct Told {
    observation: Arc<SiteObservation>,
    /// Own clock, at which the sample was true.
    true_at: u64,
    /// Own clock, at which its agent spoke last. One whose etcd stands still has old samples and speaks all the same.
    heard_at: u64,
}

struct Learner {
    member: MemberId,
    good_samples: u32,
    first_good: u64,
    last_good: u64,
    last_sample: u64,
    best_applied: u64,
    progress_at: u64,
}

/// Leadership went to `member` in `term`; before, it was seen in term `from`.
#[derive(Debug, Clone, Copy)]
struct LeaderChange {
    at: u64,
    member: MemberId,
    from: Term,
    term: Term,
}

/// How far an incarnation was seen. An index counts once a later Status showed a higher one (decisions.md 2).
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    last: Mark,
    proven: Mark,
}

/// The memory of one agent for one federation.
pub struct Tracker {
    me: SiteName,
    federation: FederationKey,
    sites: BTreeMap<SiteName, Told>,
    /// Highest (epoch, seq) that each site's record was seen at: a lower one later is a rolled-back record.
    highest: BTreeMap<SiteName, (Epoch, Seq)>,
    list: Option<MemberList>,
    changed_at: Option<u64>,
    quorum_at: Option<u64>,
    leader: Option<(MemberId, Term)>,
    /// The leader's process was seen down since it was seen leading: its loss explains the next change, also if its
    /// supervisor has started it again by then.
    leader_down: bool,
    leader_changes: Vec<LeaderChange>,
    /// Moves that executors announced, with the time at which they were heard.
    announced: Vec<(MemberId, Term, u64)>,
    /// The last move of the own executor.
    moved: Option<(MemberId, Term)>,
    /// How far the incarnations of other sites were seen: the last index, and the last one below a later one.
    marks: BTreeMap<IncarnationId, Progress>,
    learner: Option<Learner>,
    freed: Vec<(PeerUrl, u64)>,
    backing_off: Vec<(Slot, u64)>,
    removed: Arc<BTreeSet<MemberId>>,
    /// The site that speaks for foreign members.
    adopts: Option<SiteName>,
    started_at: u64,
}

/// What the tracker is told beside observations.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The own clock, ms.
    pub now: u64,
    /// The cluster that is ours, once born.
    pub cluster: Option<ClusterId>,
    /// Ids removed so far.
    pub removed: &'a BTreeSet<MemberId>,
    /// The wish, for slots and declared losses; none before birth.
    pub wish: Option<&'a Wish>,
    /// Sites that are expected, heard or not.
    pub expected: &'a [SiteName],
    /// 5 s + 2 x the worst round-trip time, ms (rule I13).
    pub settle_ms: u64,
}

impl Tracker {
    /// A memory that has seen nothing. A fresh agent counts as having seen a change just now: it cannot know better.
    pub fn new(me: SiteName, federation: FederationKey, now: u64) -> Self {
        Self {
            me,
            federation,
            sites: BTreeMap::new(),
            highest: BTreeMap::new(),
            list: None,
            changed_at: Some(now),
            quorum_at: None,
            leader: None,
            leader_down: false,
            leader_changes: Vec::new(),
            announced: Vec::new(),
            moved: None,
            marks: BTreeMap::new(),
            learner: None,
            freed: Vec::new(),
            backing_off: Vec::new(),
            removed: Arc::default(),
            adopts: None,
            started_at: now,
        }
    }

    /// Takes note of an observation that was true `age_ms` ago.
    pub fn hear(&mut self, observation: Arc<SiteObservation>, age_ms: u64, now: u64) {
        let record = &observation.record;
        let seen = (record.epoch, record.seq());
        if !record.missing {
            let highest = self.highest.entry(observation.site.clone()).or_default();
            *highest = seen.max(*highest);
        }
        let true_at = now.saturating_sub(age_ms);
        if let Some((to, term)) = observation.moved
            && !self.announced.iter().any(|(member, from, _)| (*member, *from) == (to, term))
        {
            self.announced.push((to, term, now));
        }
        if observation.site != self.me {
            self.note_progress(&observation);
        }
        if let Some((leader, _)) = self.leader {
            let down = |m: &LocalMember| {
                m.member == Some(leader) && !matches!(m.process, Process::Running | Process::Unknown)
            };
            self.leader_down |= observation.members.iter().any(down);
        }
        self.note_leader(&observation, now);
        self.sites.insert(observation.site.clone(), Told { observation, true_at, heard_at: now });
    }

    /// The last observation of a site is still true.
    pub fn renew(&mut self, site: &SiteName, age_ms: u64, now: u64) {
        if let Some(told) = self.sites.get_mut(site) {
            told.true_at = told.true_at.max(now.saturating_sub(age_ms));
            told.heard_at = now;
        }
    }

    /// Forgets what a site said that has no part any more; what it said, and the own clock at which that was true.
    pub fn forget(&mut self, site: &SiteName) -> Option<(Arc<SiteObservation>, u64)> {
        self.sites.remove(site).map(|told| (told.observation, told.true_at))
    }

    /// The sites that were heard and not forgotten, the own one included.
    pub fn known(&self) -> impl Iterator<Item = &SiteName> {
        self.sites.keys()
    }

    /// The last observation of a site.
    pub fn observation(&self, site: &SiteName) -> Option<&Arc<SiteObservation>> {
        self.sites.get(site).map(|told| &told.observation)
    }

    /// Highest (epoch, seq) that a site's record was ever seen at.
    pub fn highest(&self, site: &SiteName) -> Option<(Epoch, Seq)> {
        self.highest.get(site).copied()
    }

    /// The own executor moves leadership to this member: the change that follows does not count as unplanned, here and
    /// wherever the announcement is heard.
    pub fn expect_leader_change(&mut self, to: MemberId, now: u64) {
        let Some((_, term)) = self.leader else { return };
        self.moved = Some((to, term));
        self.announced.push((to, term, now));
    }

    /// The last move of the own executor, for the own observation.
    pub const fn moved(&self) -> Option<(MemberId, Term)> {
        self.moved
    }

    /// What was seen of the other sites, for the own observation.
    pub fn seen(&self) -> Vec<Seen> {
        let others = self.highest.iter().filter(|(site, _)| **site != self.me);
        others
            .map(|(site, (epoch, seq))| {
                let members =
                    self.sites.get(site).map(|told| told.observation.members.as_slice()).unwrap_or_default();
                let mark = |m: &LocalMember| {
                    let proven = self.marks.get(&m.incarnation)?.proven;
                    (proven != Mark::default()).then_some((m.incarnation, proven))
                };
                let marks = members.iter().filter_map(mark).collect();
                Seen { site: site.clone(), epoch: *epoch, seq: *seq, marks }
            })
            .collect()
    }

    /// How far other agents saw an incarnation of this site (rule I5).
    pub fn seen_mark(&self, id: IncarnationId) -> Mark {
        let marks = self.told_of_me().flat_map(|seen| seen.marks.iter());
        marks
            .filter(|(incarnation, _)| *incarnation == id)
            .fold(Mark::default(), |max, (_, mark)| max.max(*mark))
    }

    fn told_of_me(&self) -> impl Iterator<Item = &Seen> {
        let others = self.sites.iter().filter(|(site, _)| **site != self.me);
        others.flat_map(|(_, told)| told.observation.seen.iter()).filter(|seen| seen.site == self.me)
    }

    fn note_progress(&mut self, observation: &SiteObservation) {
        for member in &observation.members {
            let Some(status) = member.status.as_ref().filter(|s| Some(s.member) == member.member) else {
                continue;
            };
            let progress = self.marks.entry(member.incarnation).or_default();
            if status.index > progress.last.index {
                progress.proven = progress.proven.max(progress.last);
                progress.last = Mark { term: status.term, index: status.index };
            }
        }
    }

    /// A slot's learner was dropped: leave the slot alone for a while.
    pub fn back_off(&mut self, slot: Slot, until: u64) {
        self.backing_off.retain(|(s, _)| *s != slot);
        self.backing_off.push((slot, until));
    }

    /// Everything heard, with ages, for the ballot and for the independent check.
    pub fn heard(&self, now: u64) -> Vec<(SiteName, crate::federation::observed::Heard)> {
        let age = |told: &Told| now.saturating_sub(told.true_at);
        self.sites
            .iter()
            .map(|(site, told)| {
                let observation = Arc::clone(&told.observation);
                (site.clone(), crate::federation::observed::Heard { observation, age_ms: age(told) })
            })
            .collect()
    }

    fn note_leader(&mut self, observation: &SiteObservation, now: u64) {
        let Some(claim) = &observation.leader else { return };
        let newer = self.leader.is_none_or(|(_, term)| claim.term > term);
        if !newer {
            return;
        }
        if let Some((member, from)) = self.leader
            && member != claim.member
            && !self.leader_down
            && !self.old_leader_gone(now)
        {
            self.leader_changes.push(LeaderChange { at: now, member: claim.member, from, term: claim.term });
        }
        self.leader_down = false;
        self.leader = Some((claim.member, claim.term));
    }

    fn unplanned_changes(&self) -> u32 {
        let planned = |change: &LeaderChange| {
            let announced =
                |(to, at): (MemberId, Term)| to == change.member && change.from <= at && at < change.term;
            self.announced.iter().any(|(to, at, _)| announced((*to, *at)))
        };
        let unplanned = self.leader_changes.iter().filter(|change| !planned(change)).count();
        u32::try_from(unplanned).unwrap_or(u32::MAX)
    }

    /// The old leader's process or site is known to be gone: its loss explains the change (decisions.md 4).
    fn old_leader_gone(&self, now: u64) -> bool {
        let Some((old, _)) = self.leader else { return true };
        let Some(told) =
            self.sites.values().find(|told| told.observation.members.iter().any(|m| m.member == Some(old)))
        else {
            return true;
        };
        // The site fell silent, or its supervisor says that etcd is not running. One that runs and does not answer stands
        // still, for want of a disk or a processor: that is just what the rule is about (S45).
        let silent = now.saturating_sub(told.heard_at) >= 2_500;
        let running =
            told.observation.members.iter().any(|m| m.member == Some(old) && m.process == Process::Running);
        silent || !running
    }

    /// Merges everything into the view.
    pub fn view(&mut self, frame: Frame<'_>) -> View {
        let now = frame.now;
        self.adopts = frame.wish.and_then(|wish| wish.adopts.clone());
        let claim = self.newest_claim(frame);
        let (list, own_leads) = match &claim {
            Some((told, claim)) => (Some(claim.list.clone()), told.site == self.me),
            None => (self.list.clone(), false),
        };
        self.note_list(claim.as_ref().map(|(_, c)| &c.list), now);
        if let Some((told, _)) = &claim
            && self.age(&told.site, now).is_some_and(|age| age < HEARD_MS)
        {
            self.quorum_at = Some(now.saturating_sub(self.age(&told.site, now).unwrap_or(0)));
        }
        let members = list.as_ref().map(|list| self.members(list, claim.as_ref(), frame)).unwrap_or_default();
        self.note_learner(&members, now);
        self.freed.retain(|(_, at)| now.saturating_sub(*at) < FREED_MS);
        self.backing_off.retain(|(_, until)| *until > now);
        self.leader_changes.retain(|change| now.saturating_sub(change.at) < LEADER_WINDOW_MS);
        self.announced.retain(|(_, _, at)| now.saturating_sub(*at) < LEADER_WINDOW_MS);
        if *self.removed != *frame.removed {
            self.removed = Arc::new(frame.removed.clone());
        }
        View {
            me: self.me.clone(),
            sites: self.site_views(frame),
            own_leads,
            leader: claim.as_ref().map(|(_, c)| c.member),
            term: claim.as_ref().map(|(_, c)| c.term).unwrap_or_default(),
            commit: claim.as_ref().map(|(_, c)| c.commit).unwrap_or_default(),
            checks: claim.as_ref().map(|(_, c)| c.checks.clone()).unwrap_or_default(),
            members,
            list,
            learner: self.learner_track(now),
            open: self.open_intent(),
            since_change_ms: self.changed_at.map_or(u64::MAX, |at| now.saturating_sub(at)),
            settle_ms: frame.settle_ms,
            no_quorum_ms: now.saturating_sub(self.quorum_at.unwrap_or(self.started_at)),
            leader_changes: self.unplanned_changes(),
            freed: self.freed.iter().map(|(url, at)| (url.clone(), now.saturating_sub(*at))).collect(),
            removed: Arc::clone(&self.removed),
            backing_off: self
                .backing_off
                .iter()
                .map(|(slot, until)| (slot.clone(), until.saturating_sub(now)))
                .collect(),
        }
    }

    fn age(&self, site: &SiteName, now: u64) -> Option<u64> {
        self.sites.get(site).map(|told| now.saturating_sub(told.true_at))
    }

    /// The claim of the highest term among those that are fresh, for our cluster.
    fn newest_claim(&self, frame: Frame<'_>) -> Option<(Arc<SiteObservation>, LeaderClaim)> {
        let fresh = |told: &&Told| frame.now.saturating_sub(told.true_at) < HEARD_MS;
        let ours = |o: &SiteObservation, claim: &LeaderClaim| {
            let status =
                o.members.iter().find(|m| m.member == Some(claim.member)).and_then(|m| m.status.as_ref());
            frame.cluster.is_none_or(|cluster| status.is_some_and(|s| s.cluster == cluster))
        };
        let claims = self.sites.values().filter(fresh).filter_map(|told| {
            let claim = told.observation.leader.as_ref()?;
            ours(&told.observation, claim).then_some((told, claim))
        });
        let (told, claim) = claims.max_by_key(|(_, claim)| claim.term)?;
        Some((Arc::clone(&told.observation), claim.clone()))
    }

    fn note_list(&mut self, list: Option<&MemberList>, now: u64) {
        let Some(list) = list else { return };
        match &self.list {
            Some(old) if old.digest() == list.digest() => {
                if old != list {
                    self.list = Some(list.clone()); // only a name appeared
                }
                return;
            }
            Some(old) => {
                for member in old.iter().filter(|m| list.get(m.id).is_none()) {
                    self.freed.push((member.peer_url.clone(), now));
                }
                self.changed_at = Some(now);
            }
            // The first list that this agent sees: it cannot know when it changed, unless it has one member and no
            // intent was ever acknowledged here: then there never was a change that the next one could collide with.
            None => {
                let own = self.sites.get(&self.me).and_then(|told| told.observation.record.intent.as_ref());
                self.changed_at = (list.iter().count() > 1 || own.is_some()).then_some(now);
            }
        }
        self.list = Some(list.clone());
    }

    fn members(
        &self,
        list: &MemberList,
        claim: Option<&(Arc<SiteObservation>, LeaderClaim)>,
        frame: Frame<'_>,
    ) -> Vec<MemberView> {
        list.iter().map(|listed| self.member(listed, claim, frame)).collect()
    }

    fn member(
        &self,
        listed: &ListedMember,
        claim: Option<&(Arc<SiteObservation>, LeaderClaim)>,
        frame: Frame<'_>,
    ) -> MemberView {
        let local = self.owner(listed.id, &listed.peer_url);
        let fresh =
            local.filter(|(told, _)| frame.now.saturating_sub(told.true_at) < HEARD_MS).map(|(_, m)| m);
        let status = fresh.and_then(|m| m.status.as_ref());
        let lag = match (claim, status) {
            (Some((_, claim)), Some(status)) => Some(claim.commit.0.saturating_sub(status.applied.0)),
            _ => None,
        };
        let linked_ms = Self::linked_ms(listed.id, local.map(|(told, _)| told), claim, frame.now);
        MemberView {
            id: listed.id,
            peer_url: listed.peer_url.clone(),
            slot: self.slot(listed, local.map(|(_, m)| m), frame.wish),
            learner: listed.learner,
            named: !listed.name.is_empty(),
            life: Self::life(listed.id, local.map(|(_, m)| m), fresh, claim, linked_ms, lag, frame),
            lag,
            list: status.and_then(|s| s.list),
            says_learner: status.map(|s| s.learner),
            ready: status.is_some_and(|s| s.ready),
            alarm: status.is_some_and(|s| s.alarm),
            downgrading: status.is_some_and(|s| s.downgrading),
            version: status.map(|s| s.version),
            certificates_good: fresh.is_some_and(|m| m.certificates_good),
            incarnation: local.map(|(_, m)| m.incarnation),
            linked_ms,
            options: fresh.and_then(|m| m.options.clone()),
            moves_to: fresh.and_then(|m| m.moves_to.clone()),
            restart: fresh.is_some_and(|m| m.restart),
        }
    }

    /// What the agent of the site that hosts a member says of it. Only that agent may speak for it: the site follows
    /// from the peer URL. A foreign member, whose URL tells no site, belongs to the site that the spec lets declare it.
    fn owner(&self, id: MemberId, url: &PeerUrl) -> Option<(&Told, &LocalMember)> {
        let its = |told: &'_ Told| told.observation.members.iter().position(|m| m.member == Some(id));
        let told = match url.slot(&self.federation.name) {
            Some((site, _)) => self.sites.get(&site)?,
            None => self.sites.get(self.adopts.as_ref()?)?,
        };
        Some((told, told.observation.members.get(its(told)?)?))
    }

    /// For how long the leader's site and the member's site have reached each other's member, both ways.
    fn linked_ms(
        id: MemberId,
        owner: Option<&Told>,
        claim: Option<&(Arc<SiteObservation>, LeaderClaim)>,
        now: u64,
    ) -> u64 {
        let (Some((from, claim)), Some(told)) = (claim, owner) else { return 0 };
        if now.saturating_sub(told.true_at) >= HEARD_MS {
            return 0;
        }
        let good = |link: Option<&Link>| link.filter(|l| l.up()).map_or(0, |l| l.good_ms.max(1));
        let there = good(from.link(id));
        if claim.member == id {
            return there.max(1);
        }
        there.min(good(told.observation.link(claim.member)))
    }

    fn life(
        id: MemberId,
        local: Option<&LocalMember>,
        fresh: Option<&LocalMember>,
        claim: Option<&(Arc<SiteObservation>, LeaderClaim)>,
        linked_ms: u64,
        lag: Option<u64>,
        frame: Frame<'_>,
    ) -> Life {
        // An attestation is durable, so it holds however old it is. Nobody can attest for a foreign member (safety.md 4).
        if local.is_some_and(|m| m.state == IncarnationState::Lost && !m.slot.is_external()) {
            return Life::DeadAttested;
        }
        match Self::seen_alive(fresh, claim, linked_ms, lag, frame.cluster) {
            Ok(()) => Life::Alive,
            // A declaration kills no member that is seen alive: I3 (b) asks for both.
            Err(_) if frame.wish.is_some_and(|wish| wish.lost_members.contains(&id)) => Life::DeadDeclared,
            Err(code) => Life::Unknown(code),
        }
    }

    /// The definition of alive, or what is missing (safety.md 2.2).
    fn seen_alive(
        fresh: Option<&LocalMember>,
        claim: Option<&(Arc<SiteObservation>, LeaderClaim)>,
        linked_ms: u64,
        lag: Option<u64>,
        cluster: Option<ClusterId>,
    ) -> Result<(), Code> {
        let member = fresh.ok_or(Code::PeerUnreachable)?;
        let status = member.status.as_ref().ok_or(Code::Starting)?;
        let (_, claim) = claim.ok_or(Code::QuorumLost)?;
        if !Self::follows(status, claim, cluster) || status.faulty {
            return Err(Code::Starting);
        }
        if linked_ms == 0 {
            return Err(Code::LearnerUnreachable);
        }
        if lag.is_none_or(|lag| lag > MAX_LAG) {
            return Err(Code::LearnerLagging);
        }
        Ok(())
    }

    fn follows(status: &Status, claim: &LeaderClaim, cluster: Option<ClusterId>) -> bool {
        cluster.is_none_or(|c| c == status.cluster)
            && status.leader == Some(claim.member)
            && status.term == claim.term
    }

    fn slot(&self, listed: &ListedMember, local: Option<&LocalMember>, wish: Option<&Wish>) -> Option<Slot> {
        if let Some(local) = local {
            return Some(local.slot.clone());
        }
        let Some((site, ordinal)) = listed.peer_url.slot(&self.federation.name) else {
            return self.adopts.as_ref().map(|site| Slot::external(site, listed.id));
        };
        let wished = wish.and_then(|w| w.slots.iter().find(|s| s.site == site && s.ordinal == ordinal));
        Some(wished.cloned().unwrap_or_else(|| Slot { site, ordinal, zone: default_zone() }))
    }

    fn note_learner(&mut self, members: &[MemberView], now: u64) {
        let Some(member) = members.iter().find(|m| m.learner) else {
            self.learner = None;
            return;
        };
        let owner = self.owner(member.id, &member.peer_url);
        let applied = owner.and_then(|(_, m)| m.status.as_ref()).map_or(0, |status| status.applied.0);
        let sample = owner.map_or(0, |(told, _)| told.true_at);
        let fresh = Learner {
            member: member.id,
            good_samples: 0,
            first_good: now,
            last_good: now,
            last_sample: 0,
            best_applied: applied,
            progress_at: now,
        };
        let mut track = match self.learner.take() {
            Some(track) if track.member == member.id => track,
            _ => fresh,
        };
        if applied > track.best_applied || member.life.alive() {
            track.best_applied = applied.max(track.best_applied);
            track.progress_at = now;
        }
        if !member.life.alive() {
            track.good_samples = 0;
        } else if sample > track.last_sample {
            if track.good_samples == 0 {
                track.first_good = sample;
            }
            track.good_samples += 1;
            track.last_good = sample;
        }
        track.last_sample = track.last_sample.max(sample);
        self.learner = Some(track);
    }

    fn learner_track(&self, now: u64) -> Option<LearnerTrack> {
        self.learner.as_ref().map(|track| LearnerTrack {
            member: track.member,
            good_samples: track.good_samples,
            good_ms: track.last_good.saturating_sub(track.first_good),
            stalled_ms: now.saturating_sub(track.progress_at),
        })
    }

    fn open_intent(&self) -> Option<(SiteName, Arc<HeldIntent>)> {
        let epoch = self.sites.get(&self.me).map(|told| told.observation.record.epoch);
        let held = |told: &'_ Told| -> Option<(SiteName, Arc<HeldIntent>)> {
            let held = told.observation.record.intent.as_ref()?;
            let current = epoch.is_none_or(|epoch| held.intent.epoch == epoch);
            (held.open() && current).then(|| (told.observation.site.clone(), Arc::clone(held)))
        };
        self.sites.values().filter_map(held).max_by_key(|(_, held)| held.intent.seq)
    }

    fn site_views(&self, frame: Frame<'_>) -> Vec<SiteView> {
        let mut views: Vec<SiteView> = self
            .sites
            .iter()
            .map(|(name, told)| SiteView {
                name: name.clone(),
                age_ms: Some(frame.now.saturating_sub(told.true_at)),
                observation: Some(Arc::clone(&told.observation)),
            })
            .collect();
        for site in frame.expected {
            if !self.sites.contains_key(site) {
                views.push(SiteView { name: site.clone(), age_ms: None, observation: None });
            }
        }
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }
}
