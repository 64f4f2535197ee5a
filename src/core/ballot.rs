//! The one-vote-per-site agreement that lets exactly one seed start a new etcd (safety.md section 7, rule I7).
//!
//! Level-triggered: each agent looks at its own record and at what it heard of the others, and does the one thing
//! that is missing. Votes are durable and final, so hearing of one through gossip is as good as the reply itself.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::federation::distance::{self, Worst};
use crate::federation::layout::{Layout, default_zone};
use crate::federation::member::{Incarnation, IncarnationState};
use crate::federation::observed::{Heard, Seeded, SiteObservation};
use crate::federation::spec::Spec;
use crate::id::{Digest, Epoch, Generation, PeerUrl, SiteName, Slot, Uid};
use crate::intent::record::{Activated, Record};
use crate::reason::{Code, Reason};
use crate::timing::{Timing, is_auto};

/// What the sites agree on. Never changed: a different one needs a higher epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ballot {
    /// Minted by the coordinator, unless a site was bound before.
    pub uid: Uid,
    /// The epoch that it starts.
    pub epoch: Epoch,
    /// Digest of the spec.
    pub spec_digest: Digest,
    /// The spec itself; it becomes the first effective one.
    pub spec: Arc<Spec>,
    /// Sites that must vote, sorted.
    pub sites: Vec<SiteName>,
    /// Sites excused by name; they cannot vote in this epoch.
    pub skipped: Vec<SiteName>,
    /// Where the new etcd is born; of a foreign one the site counts, which speaks for it.
    pub seed: Slot,
    /// etcd's timers from the round-trip times that were measured before it: the first effective ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
}

impl Ballot {
    /// Identity of the ballot.
    pub fn digest(&self) -> Digest {
        Digest::of(&serde_json::to_vec(self).unwrap_or_default())
    }
}

/// The next thing that an agent does for the birth of a federation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BallotMove {
    /// Coordinator: persist this ballot with the own vote. The uid is a fresh one unless a site was bound.
    Mint {
        /// A uid that a site is bound to; none = mint a fresh one.
        uid: Option<Uid>,
        /// The epoch.
        epoch: Epoch,
    },
    /// Coordinator: ask these sites for their votes.
    AskVotes(Arc<Ballot>, Vec<SiteName>),
    /// The seed's agent: the grant is complete; persist `Seeding` and let the seed start.
    Seed(Arc<Ballot>),
    /// The agent that declares a foreign etcd: the grant is complete; persist the cluster once it was seen as declared.
    /// Nothing is started.
    Adopt(Arc<Ballot>),
    /// Everybody who voted: the cluster was born; persist that.
    Learn(Seeded),
    /// A site that was excused from the vote, or came later under the same spec: bind to the running federation.
    Join(Joining),
    /// Nothing to do but wait or refuse.
    Wait(Reason),
    /// The birth is over.
    Done,
}

/// The running federation that a fresh site binds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joining {
    /// Its uid.
    pub uid: Uid,
    /// Its birth.
    pub seeded: Seeded,
    /// The effective generation, whose digest is the one of the own CR.
    pub generation: Generation,
    /// The timers that are effective with it.
    pub timing: Option<Timing>,
}

/// What an agent looks at.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The own site.
    pub me: &'a SiteName,
    /// The spec of the own CR, with its digest and layout.
    pub spec: &'a Arc<Spec>,
    /// Digest of that spec.
    pub digest: Digest,
    /// Layout of that spec.
    pub layout: &'a Layout,
    /// The own record.
    pub record: &'a Record,
    /// What was heard of the other sites.
    pub heard: &'a [(SiteName, Heard)],
    /// Whether to wait for a distance that nobody has measured yet; two sites that do not reach each other must not
    /// hold up a birth for ever, so that the caller gives up after [`MEASURING_MS`].
    pub measuring: bool,
}

impl Situation<'_> {
    fn observation(&self, site: &SiteName) -> Option<&SiteObservation> {
        self.heard.iter().find(|(name, _)| name == site).map(|(_, heard)| heard.observation.as_ref())
    }

    /// The declared sites, and the seed's site of every lower ballot that anybody voted for: that seed may be running,
    /// and only its own vote fences it (safety.md 7.4). Sites that are skipped by name do not vote.
    fn voting_sites(&self) -> Vec<SiteName> {
        let seeds = self.heard.iter().flat_map(|(_, heard)| heard.observation.record.seeds.iter());
        let all = self.spec.sites().chain(&self.record.seeds).chain(seeds);
        let mut sites: Vec<_> = all.filter(|s| !self.spec.skipped().contains(s)).cloned().collect();
        sites.sort();
        sites.dedup();
        sites
    }
}

/// Milliseconds after which a silent site counts as not heard during a ballot; the same 5 s as `alive`.
const HEARD_MS: u64 = 5_000;

/// The first pings of a link take two seconds; this is long enough for links that come up one after the other.
pub const MEASURING_MS: u64 = 10_000;

/// Decides the next move. Pure and total.
pub fn next(s: Situation<'_>) -> BallotMove {
    if s.record.seeded.is_some_and(|seeded| seeded.epoch == s.record.epoch) {
        return BallotMove::Done;
    }
    if let Some(seeded) = learned(s) {
        return BallotMove::Learn(seeded);
    }
    if let Some(joining) = joinable(s) {
        return BallotMove::Join(joining);
    }
    // Brought in by an activation: that cluster runs, and what it is called will be heard.
    if let Some(held) = &s.record.intent {
        return BallotMove::Wait(
            Reason::new(Code::WaitingForClusters).maybe_site(held.intent.executors.first()),
        );
    }
    let sites = s.voting_sites();
    for site in &sites {
        if let Err(reason) = agrees(s, site) {
            return BallotMove::Wait(reason);
        }
    }
    match &s.record.vote {
        Some(ballot) if current(s, ballot, &sites) => voted(s, ballot),
        Some(_) | None => fresh(s, &sites),
    }
}

/// The birth in our own epoch, told by a site that is bound to the same uid.
fn learned(s: Situation<'_>) -> Option<Seeded> {
    let uid = s.record.uid?;
    let records = s.heard.iter().map(|(_, heard)| &heard.observation.record);
    records
        .filter(|r| r.uid == Some(uid))
        .filter_map(|r| r.seeded)
        .find(|seeded| seeded.epoch == s.record.epoch)
}

/// A running federation that holds our very spec, seen from a site that holds nothing.
fn joinable(s: Situation<'_>) -> Option<Joining> {
    if s.record.uid.is_some() || !s.record.incarnations.is_empty() {
        return None;
    }
    // Only once a leader's list is there to show that no member of ours is in it: else this is a site that lost its
    // record, and not a fresh one (safety.md 4).
    let claims = s.heard.iter().filter(|(_, heard)| heard.age_ms < HEARD_MS);
    let claim = claims.filter_map(|(_, heard)| heard.observation.leader.as_ref()).max_by_key(|c| c.term)?;
    let name = &s.record.federation.name;
    let ours = |url: &PeerUrl| url.slot(name).is_some_and(|(site, _)| site == *s.me);
    if claim.list.iter().any(|m| ours(&m.peer_url)) {
        return None;
    }
    let records = s.heard.iter().map(|(_, heard)| &heard.observation.record);
    records
        .filter(|r| r.effective == Some(s.digest))
        .filter_map(|r| {
            let (generation, timing) = (r.generation, r.timing);
            Some(Joining { uid: r.uid?, seeded: r.seeded?, generation, timing })
        })
        .max_by_key(|joining| (joining.seeded.epoch, joining.generation))
}

fn agrees(s: Situation<'_>, site: &SiteName) -> Result<(), Reason> {
    if site == s.me {
        return Ok(());
    }
    let heard = s.heard.iter().find(|(name, heard)| name == site && heard.age_ms < HEARD_MS);
    let Some((_, heard)) = heard else {
        return Err(Reason::new(Code::WaitingForClusters).site(site));
    };
    let Some(digest) = heard.observation.spec else {
        return Err(Reason::new(Code::WaitingForClusters).site(site));
    };
    if digest != s.digest {
        return Err(Reason::new(Code::SpecMismatch).site(site));
    }
    if heard.observation.record.missing {
        return Err(Reason::new(missing(s.heard, s.record.uid.is_some())).site(site));
    }
    match (heard.observation.record.uid, s.record.uid) {
        (Some(theirs), Some(mine)) if theirs != mine => Err(Reason::new(Code::BallotConflict).site(site)),
        _ => Ok(()),
    }
}

/// What it means that a site has data and no record of them: others may hold what it is rebuilt from, or nobody does.
/// `bound`: the own record is there.
pub fn missing(heard: &[(SiteName, Heard)], bound: bool) -> Code {
    let others = heard.iter().any(|(_, heard)| {
        let record = &heard.observation.record;
        record.uid.is_some() && !record.missing
    });
    if bound || others { Code::NoRecord } else { Code::VolumesWithoutRecord }
}

/// Whether the ballot is still what the spec declares; else a higher epoch is needed.
fn current(s: Situation<'_>, ballot: &Ballot, sites: &[SiteName]) -> bool {
    ballot.spec_digest == s.digest && ballot.sites == sites && ballot.skipped == s.spec.skipped()
}

fn voted(s: Situation<'_>, ballot: &Arc<Ballot>) -> BallotMove {
    let digest = ballot.digest();
    let missing: Vec<SiteName> = ballot
        .sites
        .iter()
        .filter(|site| *site != s.me)
        .filter(|site| self_vote(s, site) != Some(digest))
        .cloned()
        .collect();
    if missing.is_empty() && ballot.seed.site == *s.me {
        let ballot = Arc::clone(ballot);
        return if ballot.spec.adopt.is_some() {
            BallotMove::Adopt(ballot)
        } else {
            BallotMove::Seed(ballot)
        };
    }
    match missing.first() {
        Some(_) if ballot.sites.first() == Some(s.me) => BallotMove::AskVotes(Arc::clone(ballot), missing),
        Some(site) => BallotMove::Wait(Reason::new(Code::WaitingForClusters).site(site)),
        None => BallotMove::Wait(Reason::new(Code::WaitingForClusters).site(&ballot.seed.site)),
    }
}

fn self_vote(s: Situation<'_>, site: &SiteName) -> Option<Digest> {
    s.observation(site)?.record.vote
}

fn fresh(s: Situation<'_>, sites: &[SiteName]) -> BallotMove {
    let Some(coordinator) = sites.first() else {
        return BallotMove::Wait(Code::WaitingForClusters.into());
    };
    if coordinator != s.me {
        return BallotMove::Wait(Reason::new(Code::WaitingForClusters).site(coordinator));
    }
    let records = || sites.iter().filter_map(|site| s.observation(site)).map(|o| o.record.as_ref());
    let mut uids: Vec<Uid> = records().filter_map(|r| r.uid).chain(s.record.uid).collect();
    uids.sort_unstable();
    uids.dedup();
    if uids.len() > 1 {
        let other = sites.iter().find(|site| {
            s.observation(site).and_then(|o| o.record.uid).is_some_and(|uid| Some(&uid) != uids.first())
        });
        return BallotMove::Wait(Reason::new(Code::BallotConflict).maybe_site(other));
    }
    let highest = records().map(|r| r.epoch).chain([s.record.epoch]).max().unwrap_or_default();
    if let Err(reason) = clean(s.me, s.record) {
        return BallotMove::Wait(reason);
    }
    // etcd's timers become part of the ballot, which never changes.
    if let (true, Some((_, far))) = (s.measuring && is_auto(s.spec), distance(s).unknown) {
        return BallotMove::Wait(Reason::new(Code::MeasuringDistance).site(&far));
    }
    BallotMove::Mint { uid: uids.first().copied(), epoch: highest.next() }
}

/// How far the sites that will vote are from each other, as far as it was measured.
pub fn distance(s: Situation<'_>) -> Worst {
    distance::worst(&s.voting_sites(), |site| s.observation(site))
}

/// Makes the ballot that the coordinator persists together with its own vote, with timers for the measured distance.
pub fn mint(s: Situation<'_>, uid: Uid, epoch: Epoch) -> Ballot {
    Ballot {
        uid,
        epoch,
        spec_digest: s.digest,
        spec: Arc::clone(s.spec),
        sites: s.voting_sites(),
        skipped: s.spec.skipped().to_vec(),
        seed: match s.spec.adopts() {
            Some(site) => Slot { site: site.clone(), ordinal: 0, zone: default_zone() },
            None => s.layout.seed.clone(),
        },
        timing: Some(Timing::from_rtt_us(distance(s).likely_us)),
    }
}

/// A site votes for a birth only if nothing lives there: its own interrupted seeding aside (safety.md 7.3).
fn clean(site: &SiteName, record: &Record) -> Result<(), Reason> {
    let ended = |i: &Incarnation| {
        matches!(i.state, IncarnationState::Planned | IncarnationState::Removed | IncarnationState::Lost)
    };
    let interrupted = |i: &Incarnation| i.seed && record.seeded.is_none();
    let alive = |i: &Incarnation| !ended(i) && !interrupted(i);
    // An intent, or a spec that became effective: a cluster of this epoch runs somewhere.
    let runs = record.seeded.is_some() || record.intent.is_some() || record.effective.is_some();
    if runs || record.incarnations.iter().any(alive) {
        return Err(Reason::new(Code::VoteRefused).site(site));
    }
    Ok(())
}

/// What a voter checks beside its record.
#[derive(Debug, Clone, Copy)]
pub struct Voter<'a> {
    /// The own site.
    pub site: &'a SiteName,
    /// Digest of the spec in the own CR; none without a CR.
    pub digest: Option<Digest>,
    /// No readable record although data exist.
    pub record_missing: bool,
    /// Data directories exist that no incarnation of the record explains.
    pub foreign_data: bool,
    /// An interrupted seeding is still there: its etcd may run, its directory is not archived.
    pub unarchived_seed: bool,
}

/// Answers a request for a vote: the record to persist before saying yes, or why not. One vote per (uid, epoch), ever;
/// the vote binds namespace and name to the uid.
pub fn vote(record: &Record, ballot: &Arc<Ballot>, voter: Voter<'_>) -> Result<Record, Reason> {
    let reason = |code: Code| Reason::new(code).site(voter.site);
    if voter.record_missing {
        return Err(reason(Code::NoRecord));
    }
    if !ballot.sites.contains(voter.site) {
        return Err(reason(Code::VoteRefused));
    }
    if record.uid.is_some_and(|uid| uid != ballot.uid) {
        return Err(reason(Code::BallotConflict));
    }
    if let Some(mine) = &record.vote {
        if mine.as_ref() == ballot.as_ref() {
            return Ok(record.clone());
        }
        if ballot.epoch <= mine.epoch {
            return Err(reason(Code::BallotConflict).numbers(mine.epoch.0, ballot.epoch.0));
        }
    }
    if ballot.epoch <= record.epoch {
        return Err(reason(Code::WrongEpoch).numbers(record.epoch.0, ballot.epoch.0));
    }
    match voter.digest {
        None => return Err(reason(Code::WaitingForClusters)),
        Some(digest) if digest != ballot.spec_digest => return Err(reason(Code::SpecMismatch)),
        Some(_) => {}
    }
    let forgotten = record.seeds.iter().find(|s| !ballot.sites.contains(s) && !ballot.skipped.contains(s));
    if let Some(seed) = forgotten {
        return Err(Reason::new(Code::VoteRefused).site(seed));
    }
    // It is first stopped and archived, then the vote is given; in the other order two seeds could run (safety.md 7.3).
    if voter.foreign_data || voter.unarchived_seed {
        return Err(reason(Code::VoteRefused));
    }
    clean(voter.site, record)?;
    let mut next = record.clone();
    next.uid = Some(ballot.uid);
    next.epoch = ballot.epoch;
    next.vote = Some(Arc::clone(ballot));
    next.seeds.insert(ballot.seed.site.clone());
    // What was open in a lower epoch belongs to a cluster that this vote ends.
    next.intent = None;
    next.seeded = None;
    // An interrupted seeding of a lower epoch is fenced by this vote; its directory is archived before any start.
    for incarnation in &mut next.incarnations {
        if incarnation.epoch < ballot.epoch && incarnation.state < IncarnationState::Removed {
            incarnation.state = IncarnationState::Removed;
        }
    }
    Ok(next)
}

/// Takes note of the birth: the ballot's spec becomes the first effective one.
pub fn learn(record: &Record, seeded: Seeded) -> Record {
    let mut next = record.clone();
    if record.epoch != seeded.epoch {
        return next;
    }
    next.seeded = Some(seeded);
    if let (None, Some(ballot)) = (&record.effective, &record.vote) {
        let (digest, spec, timing) = (ballot.spec_digest, Arc::clone(&ballot.spec), ballot.timing);
        next.effective = Some(Arc::new(Activated { generation: Generation(1), digest, spec, timing }));
    }
    next
}

/// Binds a fresh site to a running federation under the spec of its own CR.
pub fn join(record: &Record, joining: Joining, digest: Digest, spec: &Arc<Spec>) -> Record {
    let mut next = record.clone();
    next.uid = Some(joining.uid);
    next.epoch = joining.seeded.epoch;
    next.seeded = Some(joining.seeded);
    let (generation, spec, timing) = (joining.generation, Arc::clone(spec), joining.timing);
    next.effective = Some(Arc::new(Activated { generation, digest, spec, timing }));
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::federation::observed::{LeaderClaim, ListedMember, MemberList, PeerLink, RecordSummary};
    use crate::id::{ClusterId, FederationKey, IncarnationId, Index, MemberId, Term};

    fn site(name: &str) -> SiteName {
        SiteName::new(name).unwrap()
    }

    struct World {
        key: FederationKey,
        spec: Arc<Spec>,
        layout: Layout,
        records: Vec<(SiteName, Record)>,
        cut: Vec<SiteName>,
        /// The site whose agent tells the linearizable list, and the sites with a member in it.
        leads: Option<SiteName>,
        listed: Vec<SiteName>,
        measuring: bool,
        /// Pairs of sites with their distance in ms.
        links: Vec<(SiteName, SiteName, u32)>,
        /// Sites that have volumes and no record.
        lost: Vec<SiteName>,
    }

    impl World {
        fn new(spec: serde_json::Value) -> Self {
            let key: FederationKey =
                serde_json::from_str(r#"{"namespace": "etcd", "name": "main"}"#).unwrap();
            let spec: Spec = serde_json::from_value(spec).unwrap();
            let layout = spec.layout().unwrap();
            let records = spec.sites().map(|s| (s.clone(), Record::new(key.clone()))).collect();
            Self {
                key,
                spec: Arc::new(spec),
                layout,
                records,
                cut: Vec::new(),
                leads: None,
                listed: Vec::new(),
                measuring: false,
                links: Vec::new(),
                lost: Vec::new(),
            }
        }

        fn record(&self, name: &SiteName) -> &Record {
            &self.records.iter().find(|(n, _)| n == name).unwrap().1
        }

        fn put(&mut self, name: &SiteName, record: Record) {
            self.records.iter_mut().find(|(n, _)| n == name).unwrap().1 = record;
        }

        fn claim(&self) -> LeaderClaim {
            let member = |(i, site): (usize, &SiteName)| ListedMember {
                id: MemberId(i as u64 + 2),
                name: "named".into(),
                peer_url: PeerUrl(format!("https://main-{site}-0.{site}.quorate.test:2380").into()),
                learner: false,
            };
            let list = MemberList::new(self.listed.iter().enumerate().map(member).collect());
            LeaderClaim { member: MemberId(2), term: Term(2), commit: Index(1), list, checks: Vec::new() }
        }

        fn heard(&self) -> Vec<(SiteName, Heard)> {
            let digest = self.spec.digest(&self.key);
            let seen = |(name, record): &(SiteName, Record)| {
                let leader = self.leads.as_ref().filter(|leader| *leader == name).map(|_| self.claim());
                let missing = self.lost.contains(name);
                let record = Arc::new(RecordSummary { missing, ..record.summary() });
                let empty = SiteObservation::empty(name.clone());
                let own = self.links.iter().filter(|(from, ..)| from == name);
                let peers = own
                    .map(|(_, to, ms)| PeerLink {
                        site: to.clone(),
                        rtt_us: ms * 1_000,
                        least_us: ms * 1_000,
                    })
                    .collect();
                let o = SiteObservation { spec: Some(digest), record, leader, peers, ..empty };
                let age_ms = if self.cut.contains(name) { 60_000 } else { 0 };
                (name.clone(), Heard { observation: Arc::new(o), age_ms })
            };
            self.records.iter().map(seen).collect()
        }

        fn next(&self, me: &SiteName) -> BallotMove {
            let (heard, digest) = (self.heard(), self.spec.digest(&self.key));
            let (spec, layout, record) = (&self.spec, &self.layout, self.record(me));
            next(Situation { me, spec, digest, layout, record, heard: &heard, measuring: self.measuring })
        }

        fn vote(&self, me: &SiteName, ballot: &Arc<Ballot>) -> Result<Record, Reason> {
            let digest = Some(self.spec.digest(&self.key));
            let voter = Voter {
                site: me,
                digest,
                record_missing: false,
                foreign_data: false,
                unarchived_seed: false,
            };
            vote(self.record(me), ballot, voter)
        }

        fn ballot(&self, me: &SiteName, uid: Uid, epoch: Epoch) -> Arc<Ballot> {
            let (heard, digest) = (self.heard(), self.spec.digest(&self.key));
            let (spec, layout, record) = (&self.spec, &self.layout, self.record(me));
            let situation = Situation { me, spec, digest, layout, record, heard: &heard, measuring: false };
            Arc::new(mint(situation, uid, epoch))
        }
    }

    fn three() -> World {
        World::new(serde_json::json!({"clusters": [{"name": "east"}, {"name": "north"}, {"name": "west"}]}))
    }

    #[test]
    fn three_sites_agree_on_one_seed() {
        let mut w = three();
        let (east, north, west) = (site("east"), site("north"), site("west"));
        assert_eq!(w.next(&east), BallotMove::Mint { uid: None, epoch: Epoch(1) });
        assert!(matches!(w.next(&west), BallotMove::Wait(r) if r.code == Code::WaitingForClusters));
        let ballot = w.ballot(&east, Uid(7), Epoch(1));
        w.put(&east, w.vote(&east, &ballot).unwrap());
        let BallotMove::AskVotes(asked, missing) = w.next(&east) else { panic!("votes are asked for") };
        assert_eq!((asked.digest(), missing), (ballot.digest(), vec![north.clone(), west.clone()]));
        w.put(&north, w.vote(&north, &ballot).unwrap());
        assert!(matches!(w.next(&east), BallotMove::AskVotes(_, missing) if missing == [west.clone()]));
        w.put(&west, w.vote(&west, &ballot).unwrap());
        assert!(matches!(w.next(&east), BallotMove::Seed(_)));
        assert!(matches!(w.next(&west), BallotMove::Wait(_)), "only the seed's site starts");
        let seeded = Seeded { epoch: Epoch(1), cluster: ClusterId(1), member: MemberId(2) };
        w.put(&east, learn(w.record(&east), seeded));
        assert_eq!(w.next(&west), BallotMove::Learn(seeded));
        let learnt = learn(w.record(&west), seeded);
        assert_eq!(learnt.effective.as_ref().unwrap().generation, Generation(1));
        w.put(&west, learnt);
        assert_eq!(w.next(&west), BallotMove::Done);
    }

    /// A foreign etcd is taken over by the site that declares it, with the same votes; no seed ever starts.
    #[test]
    fn a_foreign_etcd_needs_the_same_grant_and_no_seed() {
        let pem = "-----BEGIN CERTIFICATE-----";
        let mut w = World::new(serde_json::json!({
            "clusters": [{"name": "east"}, {"name": "north"}, {"name": "west"}],
            "adopt": {"cluster": "west", "clusterId": "c", "endpoints": ["https://old:2379"], "peerCA": pem},
        }));
        let (east, north, west) = (site("east"), site("north"), site("west"));
        let ballot = w.ballot(&east, Uid(7), Epoch(1));
        assert_eq!(ballot.seed.site, west);
        for voter in [&east, &west] {
            w.put(voter, w.vote(voter, &ballot).unwrap());
        }
        assert!(matches!(w.next(&west), BallotMove::Wait(r) if r.code == Code::WaitingForClusters));
        w.put(&north, w.vote(&north, &ballot).unwrap());
        assert_eq!(w.next(&west), BallotMove::Adopt(Arc::clone(&ballot)));
        assert!(!matches!(w.next(&east), BallotMove::Seed(_) | BallotMove::Adopt(_)));
        let seeded = Seeded { epoch: Epoch(1), cluster: ClusterId(0xc), member: MemberId(1) };
        w.put(&west, learn(w.record(&west), seeded));
        assert_eq!(w.next(&east), BallotMove::Learn(seeded));
        assert_eq!(w.next(&west), BallotMove::Done);
    }

    #[test]
    fn a_silent_site_is_waited_for_by_name() {
        let mut w = three();
        w.cut = vec![site("west")];
        let BallotMove::Wait(reason) = w.next(&site("east")) else { panic!("must wait") };
        assert_eq!((reason.code, reason.site), (Code::WaitingForClusters, Some(site("west"))));
    }

    #[test]
    fn one_vote_per_epoch_ever_and_a_uid_binds() {
        let mut w = three();
        let (east, west) = (site("east"), site("west"));
        let first = w.ballot(&east, Uid(7), Epoch(1));
        w.put(&west, w.vote(&west, &first).unwrap());
        assert!(w.vote(&west, &first).is_ok(), "the same ballot again");
        let second = Arc::new(Ballot {
            seed: Slot { site: west.clone(), ..first.seed.clone() },
            ..first.as_ref().clone()
        });
        assert_eq!(w.vote(&west, &second).unwrap_err().code, Code::BallotConflict);
        let fresh_uid = w.ballot(&east, Uid(8), Epoch(2));
        assert_eq!(w.vote(&west, &fresh_uid).unwrap_err().code, Code::BallotConflict);
        let higher = w.ballot(&east, Uid(7), Epoch(2));
        let voted = w.vote(&west, &higher).unwrap();
        assert_eq!(voted.epoch, Epoch(2));
    }

    #[test]
    fn data_of_an_earlier_life_refuse_the_vote() {
        let mut w = three();
        let (east, west) = (site("east"), site("west"));
        let ballot = w.ballot(&east, Uid(7), Epoch(1));
        let slot = Slot { site: west.clone(), ordinal: 0, zone: crate::federation::layout::default_zone() };
        let mut record = w.record(&west).clone();
        record.incarnations.push(crate::node::planned(&record, &slot, IncarnationId(1), false));
        w.put(&west, record.clone());
        assert!(w.vote(&west, &ballot).is_ok(), "a planned incarnation holds nothing");
        record.incarnations[0].state = IncarnationState::Voter;
        w.put(&west, record);
        assert_eq!(w.vote(&west, &ballot).unwrap_err().code, Code::VoteRefused);
    }

    #[test]
    fn a_higher_ballot_fences_an_interrupted_seeding() {
        let mut w = three();
        let east = site("east");
        let ballot = w.ballot(&east, Uid(7), Epoch(1));
        let mut record = w.vote(&east, &ballot).unwrap();
        let mut seed = crate::node::planned(&record, &ballot.seed, IncarnationId(1), true);
        seed.state = IncarnationState::Started;
        record.incarnations.push(seed);
        w.put(&east, record);
        let voted = w.vote(&east, &w.ballot(&east, Uid(7), Epoch(2))).unwrap();
        assert_eq!(voted.incarnations[0].state, IncarnationState::Removed);
    }

    #[test]
    fn a_skipped_site_joins_later() {
        let spec = serde_json::json!({
            "clusters": [{"name": "east"}, {"name": "north"}, {"name": "west"}],
            "bootstrap": {"skipClusters": ["west"]},
        });
        let mut w = World::new(spec);
        let (east, north, west) = (site("east"), site("north"), site("west"));
        let ballot = w.ballot(&east, Uid(7), Epoch(1));
        assert_eq!(w.vote(&west, &ballot).unwrap_err().code, Code::VoteRefused);
        let seeded = Seeded { epoch: Epoch(1), cluster: ClusterId(1), member: MemberId(2) };
        for voter in [&east, &north] {
            w.put(voter, learn(&w.vote(voter, &ballot).unwrap(), seeded));
        }
        assert!(!matches!(w.next(&west), BallotMove::Join(_)), "nobody has told a list yet");
        (w.leads, w.listed) = (Some(east.clone()), vec![east.clone(), west.clone()]);
        assert!(
            !matches!(w.next(&west), BallotMove::Join(_)),
            "a member of ours is listed: our record was lost"
        );
        w.listed = vec![east.clone()];
        let BallotMove::Join(joining) = w.next(&west) else { panic!("joins") };
        let joined = join(w.record(&west), joining, w.spec.digest(&w.key), &w.spec);
        assert_eq!((joined.uid, joined.seeded), (Some(Uid(7)), Some(seeded)));
    }

    #[test]
    fn no_etcd_is_begun_over_volumes_that_nobody_has_a_record_of() {
        let mut w = three();
        let (east, west) = (site("east"), site("west"));
        w.lost = vec![west.clone()];
        let BallotMove::Wait(reason) = w.next(&east) else { panic!("nothing is born") };
        assert_eq!((reason.code, reason.site), (Code::VolumesWithoutRecord, Some(west.clone())));
        // Somebody holds a record: then it is only lost here.
        let ballot = w.ballot(&east, Uid(7), Epoch(1));
        w.put(&site("north"), w.vote(&site("north"), &ballot).unwrap());
        let BallotMove::Wait(reason) = w.next(&east) else { panic!("nothing is born") };
        assert_eq!((reason.code, reason.site), (Code::NoRecord, Some(west)));
    }

    /// The seed of epoch 1 may be running: it must vote in epoch 2, also when the spec no longer names its site.
    #[test]
    fn the_seed_site_of_a_lower_ballot_must_vote_in_every_later_one() {
        let mut w = three();
        let (east, north, west) = (site("east"), site("north"), site("west"));
        let first = w.ballot(&east, Uid(7), Epoch(1));
        assert_eq!(first.seed.site, east);
        for voter in [&east, &north, &west] {
            let voted = w.vote(voter, &first).unwrap();
            w.put(voter, voted);
        }
        let spec = serde_json::json!({"clusters": [{"name": "north"}, {"name": "south"}, {"name": "west"}]});
        let mut later = World::new(spec);
        for voter in [&north, &west] {
            later.put(voter, w.record(voter).clone());
        }
        let BallotMove::Wait(reason) = later.next(&north) else { panic!("must wait for east") };
        assert_eq!((reason.code, reason.site), (Code::WaitingForClusters, Some(east.clone())));
        let ballot = later.ballot(&site("south"), Uid(7), Epoch(2)).as_ref().clone();
        let sites = ballot.sites.iter().filter(|s| **s != east).cloned().collect();
        let refused = later.vote(&north, &Arc::new(Ballot { sites, ..ballot })).unwrap_err();
        assert_eq!((refused.code, refused.site), (Code::VoteRefused, Some(east)));
    }

    /// Two sites that a running federation moves to: each is bound by the activation, and neither has heard of the birth.
    #[test]
    fn who_was_brought_in_by_an_activation_never_gives_birth() {
        use crate::id::{OpId, Seq};
        use crate::intent::{HeldIntent, Intent, IntentKind, IntentState, Operation, OperationKind};
        let mut w = World::new(serde_json::json!({"clusters": [{"name": "north"}, {"name": "south"}]}));
        let (north, south) = (site("north"), site("south"));
        let ballot = w.ballot(&north, Uid(7), Epoch(2));
        let digest = w.spec.digest(&w.key);
        let kind = IntentKind::ActivateSpec { generation: Generation(2), digest, timing: None };
        let operation = Operation { kind: OperationKind::Activate, source: None, new: None };
        let intent = Arc::new(Intent {
            uid: Uid(7),
            epoch: Epoch(1),
            seq: Seq(9),
            op: OpId(1),
            kind,
            list: Digest([0; 32]),
            term: Term(3),
            executors: vec![site("east")],
            operation,
            closes: Vec::new(),
            closes_ops: Vec::new(),
            exception: None,
            lost_members: Vec::new(),
            spec: Some(Arc::clone(&w.spec)),
            closed: Vec::new(),
        });
        for name in [&north, &south] {
            let mut record = w.record(name).clone();
            (record.uid, record.epoch) = (Some(Uid(7)), Epoch(1));
            let held =
                HeldIntent { intent: Arc::clone(&intent), state: IntentState::Open, sent_by_me: false };
            record.intent = Some(Arc::new(held));
            w.put(name, record);
            let BallotMove::Wait(reason) = w.next(name) else { panic!("nothing is born") };
            assert_eq!((reason.code, reason.site), (Code::WaitingForClusters, Some(site("east"))));
            assert_eq!(w.vote(name, &ballot).unwrap_err().code, Code::VoteRefused);
        }
    }

    #[test]
    fn an_interrupted_seeding_is_archived_before_the_vote() {
        let w = three();
        let east = site("east");
        let ballot = w.ballot(&east, Uid(7), Epoch(2));
        let digest = Some(w.spec.digest(&w.key));
        let (record_missing, foreign_data) = (false, false);
        let voter = Voter { site: &east, digest, record_missing, foreign_data, unarchived_seed: true };
        assert_eq!(vote(w.record(&east), &ballot, voter).unwrap_err().code, Code::VoteRefused);
    }

    #[test]
    fn the_distance_is_measured_before_and_written_down_with_the_ballot() {
        let three = serde_json::json!({"clusters": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
        let mut world = World { measuring: true, ..World::new(three) };
        let (a, b, c) = (site("a"), site("b"), site("c"));
        let wait = |far: &SiteName| BallotMove::Wait(Reason::new(Code::MeasuringDistance).site(far));
        assert_eq!(world.next(&a), wait(&b));
        world.links = vec![(a.clone(), b.clone(), 12), (c.clone(), a.clone(), 90)];
        assert_eq!(world.next(&a), wait(&c), "b and c have not measured each other");
        // It is not waited for without end; what is known counts.
        world.measuring = false;
        assert!(matches!(world.next(&a), BallotMove::Mint { .. }));
        assert_eq!(world.ballot(&a, Uid(7), Epoch(1)).timing, Some(Timing::from_rtt_us(90_000)));
        world.measuring = true;
        world.links.push((b, c, 110));
        assert!(matches!(world.next(&a), BallotMove::Mint { .. }));
        let ballot = world.ballot(&a, Uid(7), Epoch(1));
        assert_eq!(ballot.timing, Some(Timing { rtt_ms: 110, heartbeat_ms: 150, election_ms: 2_500 }));
        // Everybody renders what the ballot says, before birth and after.
        let voted = world.vote(&a, &ballot).unwrap();
        assert_eq!(voted.timing(), ballot.timing);
        let seeded = Seeded { epoch: Epoch(1), cluster: ClusterId(1), member: MemberId(2) };
        assert_eq!(learn(&voted, seeded).timing(), ballot.timing);
        assert_eq!(learn(&voted, seeded).summary().timing, ballot.timing);
    }

    #[test]
    fn who_wrote_timers_waits_for_no_measurement() {
        let etcd = serde_json::json!({"heartbeatMs": 100, "electionMs": 1000});
        let spec =
            serde_json::json!({"clusters": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "etcd": etcd});
        let world = World { measuring: true, ..World::new(spec) };
        assert!(matches!(world.next(&site("a")), BallotMove::Mint { .. }));
    }
}
