//! The merge of all observations; what is unknown or contradictory stays so.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::federation::distance;
use crate::federation::member::EtcdOptions;
use crate::federation::observed::{DataCheck, MemberList, SiteObservation, Version};
use crate::federation::spec::Override;
use crate::id::{Digest, Generation, IncarnationId, Index, MemberId, PeerUrl, SiteName, Slot, Term};
use crate::intent::HeldIntent;
use crate::reason::{Code, Reason};
use crate::timing::Timing;

/// Whether a member is alive, by proof (safety.md 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    /// Everything that must be seen was seen.
    Alive,
    /// Neither alive nor dead is proven; the code says what is missing.
    Unknown(Code),
    /// Its own agent attests that its data are lost.
    DeadAttested,
    /// A person listed its id in `lostMembers`.
    DeadDeclared,
}

impl Life {
    /// Counts in a margin.
    pub const fn alive(self) -> bool {
        matches!(self, Self::Alive)
    }

    /// May be removed under I3 (b).
    pub const fn dead(self) -> bool {
        matches!(self, Self::DeadAttested | Self::DeadDeclared)
    }
}

/// One listed member, joined with what is known of it.
#[expect(clippy::struct_excessive_bools, reason = "each is one fact that a rule asks for")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// Its id.
    pub id: MemberId,
    /// Its peer URL.
    pub peer_url: PeerUrl,
    /// Its slot; none for a foreign member that no site declares.
    pub slot: Option<Slot>,
    /// Listed as a learner.
    pub learner: bool,
    /// It has published a name once: it was started.
    pub named: bool,
    /// Whether it is alive.
    pub life: Life,
    /// Leader's commit index − its applied index.
    pub lag: Option<u64>,
    /// Digest of the list that it answers itself.
    pub list: Option<Digest>,
    /// It calls itself a learner.
    pub says_learner: Option<bool>,
    /// `/readyz` is good.
    pub ready: bool,
    /// An alarm is active.
    pub alarm: bool,
    /// A downgrade is enabled.
    pub downgrading: bool,
    /// Its version.
    pub version: Option<Version>,
    /// Its certificates last long enough.
    pub certificates_good: bool,
    /// The incarnation behind it, if its agent says so.
    pub incarnation: Option<IncarnationId>,
    /// For how long leader and member have reached each other in both directions, ms.
    pub linked_ms: u64,
    /// What its etcd was started with, if its agent says so now.
    pub options: Option<EtcdOptions>,
    /// The peer URL that it is to have instead of the listed one; it is served already.
    pub moves_to: Option<PeerUrl>,
    /// It has to be restarted to listen where its peer URLs say.
    pub restart: bool,
}

impl MemberView {
    /// Quorate did not create it, and has no agent beside it.
    pub fn external(&self) -> bool {
        self.slot.as_ref().is_none_or(Slot::is_external)
    }

    /// The site that hosts it, or speaks for it.
    pub fn site(&self) -> Option<&SiteName> {
        self.slot.as_ref().map(|slot| &slot.site)
    }
}

/// What was seen of the one learner over time (rule I9 and the stuck learner of safety.md 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnerTrack {
    /// The learner.
    pub member: MemberId,
    /// Good samples in a row: alive, linked both ways, lag small.
    pub good_samples: u32,
    /// Milliseconds from the first to the last of them.
    pub good_ms: u64,
    /// Milliseconds without progress of its applied index while it lags or does not answer.
    pub stalled_ms: u64,
}

/// One site as the own agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteView {
    /// The site.
    pub name: SiteName,
    /// Milliseconds since its last observation was true; none if it was never heard.
    pub age_ms: Option<u64>,
    /// What it said.
    pub observation: Option<Arc<SiteObservation>>,
}

impl SiteView {
    /// Heard less than 5 s ago (safety.md 2.2).
    pub fn heard(&self) -> bool {
        self.age_ms.is_some_and(|age| age < HEARD_MS)
    }
}

/// An agent that was silent for longer is not heard (safety.md 2.2).
pub const HEARD_MS: u64 = 5_000;

/// A member that lags more is not alive (safety.md 2.2); etcd's catch-up entries are 5 000 and more.
pub const MAX_LAG: u64 = 1_000;

/// What a person wants, in planner's words: the effective spec, plus what acts from the CR without activation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// The effective generation.
    pub generation: Generation,
    /// The wanted slots, sorted.
    pub slots: Vec<Slot>,
    /// A layout of one voter is accepted.
    pub allow_single_voter: bool,
    /// Ids that a person declared lost, from the own CR.
    pub lost_members: Vec<MemberId>,
    /// The exception, from the own CR.
    pub exception: Option<Override>,
    /// The site that speaks for members which quorate did not create.
    pub adopts: Option<SiteName>,
    /// Largest age of the newest verified backup, seconds; none = rule I17 is off.
    pub max_backup_age_s: Option<u64>,
    /// A spec that waits for its activation.
    pub pending: Option<Pending>,
    /// The effective spec once more, with timers that fit the round-trip times better for long enough.
    pub retimed: Option<Pending>,
    /// Peer URLs that sites want to change: (member, new URL, proven good from every voter).
    pub url_changes: Vec<(MemberId, PeerUrl, bool)>,
    /// The voter that would have led better for long enough (networking.md 7); see [`crate::membership::placement`].
    #[serde(default)]
    pub leader: Option<MemberId>,
    /// Operation deadline, ms (rule I14).
    pub deadline_ms: u64,
    /// What every etcd is to be started with.
    pub options: EtcdOptions,
    /// A planned restart that holds up everything else.
    pub restarting: Option<Reason>,
}

/// A spec in the own CR that is not effective yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Its digest.
    pub digest: Digest,
    /// The sites that it names.
    pub sites: Vec<SiteName>,
    /// The slots that it asks for, sorted; plans for people go on with them. Whatever is done follows the effective spec.
    pub slots: Vec<Slot>,
    /// It accepts a layout of one voter.
    pub allow_single_voter: bool,
    /// Whether all its members are declared lost, by site: such a site is not counted (safety.md 4).
    pub lost_sites: Vec<SiteName>,
    /// etcd's timers that become effective with it.
    pub timing: Option<Timing>,
    /// The site that it lets speak for members which quorate did not create.
    pub adopts: Option<SiteName>,
    /// It adopts another etcd cluster than the one that this federation is.
    pub other_cluster: bool,
}

/// Everything the planner looks at. Ages instead of times, so that it needs no clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The own site.
    pub me: SiteName,
    /// All sites of the mesh that matter, sorted by name.
    pub sites: Vec<SiteView>,
    /// The member list: the own linearizable one if the own member leads, else the newest told one.
    pub list: Option<MemberList>,
    /// The own member leads and a linearizable read succeeded in its term.
    pub own_leads: bool,
    /// The raft leader.
    pub leader: Option<MemberId>,
    /// The term.
    pub term: Term,
    /// The commit index.
    pub commit: Index,
    /// The members by ascending id.
    pub members: Vec<MemberView>,
    /// The learner over time.
    pub learner: Option<LearnerTrack>,
    /// Data comparisons by the leader's agent.
    pub checks: Vec<DataCheck>,
    /// An open intent that somebody holds.
    pub open: Option<(SiteName, Arc<HeldIntent>)>,
    /// Milliseconds since the last membership change was seen.
    pub since_change_ms: u64,
    /// Milliseconds that the last change needs before the next one (5 s + 2 RTT, rule I13).
    pub settle_ms: u64,
    /// Milliseconds without a linearizable read anywhere.
    pub no_quorum_ms: u64,
    /// Unplanned leader changes in five minutes (rule I13).
    pub leader_changes: u32,
    /// Peer URLs that were freed by a removal, with milliseconds since.
    pub freed: Vec<(PeerUrl, u64)>,
    /// Ids that were removed (rule I6).
    pub removed: Arc<BTreeSet<MemberId>>,
    /// Operations that were tried and dropped lately: the slot and how long to wait still, ms.
    pub backing_off: Vec<(Slot, u64)>,
}

impl View {
    /// The voters.
    pub fn voters(&self) -> impl Iterator<Item = &MemberView> + Clone {
        self.members.iter().filter(|member| !member.learner)
    }

    /// The learners.
    pub fn learners(&self) -> impl Iterator<Item = &MemberView> {
        self.members.iter().filter(|member| member.learner)
    }

    /// Finds a member.
    pub fn member(&self, id: MemberId) -> Option<&MemberView> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Finds a site.
    pub fn site(&self, name: &SiteName) -> Option<&SiteView> {
        self.sites.iter().find(|site| site.name == *name)
    }

    /// Site of a member.
    pub fn site_of(&self, id: MemberId) -> Option<&SiteName> {
        self.member(id).and_then(MemberView::site)
    }

    /// The observation of a site that is heard now.
    pub fn heard(&self, name: &SiteName) -> Option<&SiteObservation> {
        self.site(name).filter(|site| site.heard()).and_then(|site| site.observation.as_deref())
    }

    /// The shortest round trip between two sites, microseconds, as far as it was measured.
    pub fn distance(&self, a: &SiteName, b: &SiteName) -> Option<u32> {
        distance::least_between(a, b, |name| self.site(name).and_then(|site| site.observation.as_deref()))
    }

    /// What on its host keeps the member of a slot from running, as its agent says now.
    pub fn hindrance(&self, slot: &Slot) -> Option<&Reason> {
        let hindered = &self.heard(&slot.site)?.hindered;
        hindered.iter().find(|h| h.slot.as_ref().is_none_or(|s| s == slot)).map(|h| &h.reason)
    }

    /// Number of current voters hosted at a site.
    pub fn voters_at(&self, site: &SiteName) -> usize {
        self.voters().filter(|member| member.site() == Some(site)).count()
    }
}
