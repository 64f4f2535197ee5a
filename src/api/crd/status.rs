//! The status of a `FederatedEtcd`: the same picture in every cluster. Nothing here moves by itself: ages and indices
//! are only in the HTTP view.

use quorate_core::condition::{
    ArithmeticStatus, BackupStatus, Condition, ConditionStatus, MemberStatus, PlanLine, SiteStatus, Status,
    TimingStatus,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of a federation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FederatedEtcdStatus {
    /// The generation of the object that this status was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What the printer columns show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// Namespace of the federation.
    pub namespace: String,
    /// Name of the federation.
    pub name: String,
    /// The site that says this.
    pub observed_from: String,
    /// The federation's uid, minted by the bootstrap ballot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// It rises only by restore or forced recovery.
    #[schemars(extend("format" = "int64"))]
    pub epoch: u64,
    /// The number of the effective spec; not metadata.generation, which differs per cluster.
    #[schemars(extend("format" = "int64"))]
    pub generation: u64,
    /// Digest of the effective spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// etcd's cluster id, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Conditions by type.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<ConditionEntry>,
    /// Room for losses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arithmetic: Option<Arithmetic>,
    /// etcd's timers, the same in every site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
    /// The members of the etcd.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub members: Vec<Member>,
    /// The leading member's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The site whose agent changes the membership now: the one beside the raft leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The intent that is open or was last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent: Option<String>,
    /// The running operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// What will be done, step by step.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub plan: Vec<PlanStep>,
    /// What is decided now, or why nothing happens.
    pub decision: String,
    /// The reason of a wait or refusal, for `quorate explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The sites as seen from here.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub sites: Vec<Site>,
    /// Backups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<Backup>,
    /// Client endpoints of the voters; those that the spec takes out come last.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub endpoints: Vec<String>,
}

/// What the printer columns show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// The clusters by name.
    pub clusters: String,
    /// Alive voters of all voters.
    pub voters: String,
    /// The leading member by name.
    pub leader: String,
}

/// One condition, as `metav1.Condition`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionEntry {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// One word, never empty.
    pub reason: String,
    /// The sentence.
    pub message: String,
    /// The generation of the object that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: Option<String>,
}

/// Room for losses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Arithmetic {
    /// Voters.
    #[schemars(extend("format" = "int32"))]
    pub voters: usize,
    /// Alive voters.
    #[schemars(extend("format" = "int32"))]
    pub alive: usize,
    /// The majority that writes need.
    #[schemars(extend("format" = "int32"))]
    pub quorum: usize,
    /// alive - quorum; negative: writes have stopped.
    pub margin: i64,
    /// How many more members may be lost.
    #[schemars(extend("format" = "int32"))]
    pub can_lose_members: usize,
    /// Zones whose loss now would not stop writes.
    pub can_lose_zones: Vec<String>,
    /// Clusters whose loss now would not stop writes.
    pub can_lose_clusters: Vec<String>,
}

/// etcd's timers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_field_names, reason = "the unit is part of a name that people write")]
pub struct Timing {
    /// Heartbeat interval in milliseconds.
    #[schemars(extend("format" = "int32"))]
    pub heartbeat_ms: u32,
    /// Election timeout in milliseconds.
    #[schemars(extend("format" = "int32"))]
    pub election_ms: u32,
    /// The measured round-trip time that they were chosen for, in milliseconds; absent if the spec gives both.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32"))]
    pub rtt_ms: Option<u32>,
}

/// One member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Member {
    /// The name of its slot.
    pub name: String,
    /// etcd's id, hexadecimal.
    pub id: String,
    /// Its site.
    pub site: String,
    /// Its zone.
    pub zone: String,
    /// `voter` or `learner`.
    pub role: String,
    /// `alive`, `unknown` or `dead`.
    pub state: String,
    /// Why it is not alive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its peer URL, as etcd lists it.
    #[serde(rename = "peerURL")]
    pub peer_url: String,
    /// Size of its database in bytes.
    #[schemars(extend("format" = "int64"))]
    pub db_size: u64,
    /// Its etcd's version.
    pub version: String,
    /// It leads.
    pub leader: bool,
}

/// One line of the plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanStep {
    /// The step.
    pub step: String,
    /// Its operation, as an override names it.
    pub operation: String,
    /// The arithmetic before.
    pub before: String,
    /// The arithmetic after.
    pub after: String,
    /// What it waits for.
    pub waits: Vec<String>,
    /// What to know of the state that it leaves: an even number of voters, sites whose loss would stop writes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Why nothing happens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reason {
    /// The word.
    pub code: String,
    /// The member it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// The site it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// What there is.
    #[schemars(extend("format" = "int64"))]
    pub have: u64,
    /// What would be needed.
    #[schemars(extend("format" = "int64"))]
    pub need: u64,
    /// The place on that site's host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

/// One site as seen from here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Site {
    /// The site.
    pub name: String,
    /// Its agent is heard.
    pub reachable: bool,
    /// Digest of the spec that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
}

/// Backups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Backup {
    /// Whether backups run.
    pub enabled: bool,
}

impl FederatedEtcdStatus {
    /// The status of core in the words of the CRD. `previous` keeps the times of conditions that did not flip; `now` is
    /// the time (RFC 3339) for those that did.
    pub fn from_core(status: &Status, generation: Option<i64>, previous: Option<&Self>, now: &str) -> Self {
        // Without `..`: a new field must be thought of here.
        let Status {
            namespace,
            name,
            observed_from,
            uid,
            epoch,
            generation: effective,
            digest,
            cluster_id,
            conditions,
            arithmetic,
            timing,
            members,
            leader,
            executor,
            intent,
            operation,
            plan,
            decision,
            reason,
            sites,
            backup: BackupStatus { enabled },
            endpoints,
        } = status.clone();
        let old = previous.map(|status| status.conditions.as_slice()).unwrap_or_default();
        let summary = Summary {
            clusters: sites.iter().map(|site| site.name.as_str()).collect::<Vec<_>>().join(","),
            voters: format!("{}/{}", arithmetic.alive, arithmetic.voters),
            leader: members.iter().find(|m| m.leader).map(|m| m.name.clone()).unwrap_or_default(),
        };
        Self {
            observed_generation: generation,
            summary: Some(summary),
            namespace,
            name,
            observed_from,
            uid: uid.map(|uid| uid.to_string()),
            epoch: epoch.0,
            generation: effective.0,
            digest: digest.map(|digest| digest.to_string()),
            cluster_id,
            conditions: conditions.iter().map(|c| condition(c, generation, old, now)).collect(),
            arithmetic: Some(Arithmetic::from(arithmetic)),
            timing: timing.map(Timing::from),
            members: members.into_iter().map(Member::from).collect(),
            leader,
            executor,
            intent,
            operation,
            plan: plan.into_iter().map(PlanStep::from).collect(),
            decision,
            reason: reason.map(|reason| {
                let quorate_core::reason::Reason { code, member, site, have, need, place } = reason;
                Reason {
                    code: code.name().to_owned(),
                    member: member.map(|member| member.to_string()),
                    site: site.map(|site| site.to_string()),
                    have,
                    need,
                    place: place.map(|place| place.to_string()),
                }
            }),
            sites: sites.into_iter().map(Site::from).collect(),
            backup: Some(Backup { enabled }),
            endpoints,
        }
    }
}

fn condition(new: &Condition, generation: Option<i64>, old: &[ConditionEntry], now: &str) -> ConditionEntry {
    let Condition { kind, status, reason, message } = new;
    let kind = format!("{kind:?}");
    let status = match status {
        ConditionStatus::True => "True",
        ConditionStatus::False => "False",
        ConditionStatus::Unknown => "Unknown",
    };
    let same = old.iter().find(|old| old.kind == kind && old.status == status);
    ConditionEntry {
        last_transition_time: same
            .and_then(|old| old.last_transition_time.clone())
            .or_else(|| Some(now.to_owned())),
        kind,
        status: status.to_owned(),
        reason: reason.clone(),
        message: message.clone(),
        observed_generation: generation,
    }
}

impl From<ArithmeticStatus> for Arithmetic {
    fn from(status: ArithmeticStatus) -> Self {
        let ArithmeticStatus {
            voters,
            alive,
            quorum,
            margin,
            can_lose_members,
            can_lose_zones,
            can_lose_clusters,
        } = status;
        Self { voters, alive, quorum, margin, can_lose_members, can_lose_zones, can_lose_clusters }
    }
}

impl From<TimingStatus> for Timing {
    fn from(status: TimingStatus) -> Self {
        let TimingStatus { heartbeat_ms, election_ms, rtt_ms } = status;
        Self { heartbeat_ms, election_ms, rtt_ms }
    }
}

impl From<MemberStatus> for Member {
    fn from(status: MemberStatus) -> Self {
        let MemberStatus { name, id, site, zone, role, state, reason, peer_url, db_size, version, leader } =
            status;
        Self { name, id, site, zone, role, state, reason, peer_url, db_size, version, leader }
    }
}

impl From<PlanLine> for PlanStep {
    fn from(line: PlanLine) -> Self {
        let PlanLine { step, operation, before, after, waits, remarks } = line;
        Self { step, operation, before, after, waits, remarks }
    }
}

impl From<SiteStatus> for Site {
    fn from(status: SiteStatus) -> Self {
        let SiteStatus { name, reachable, spec_digest } = status;
        Self { name, reachable, spec_digest }
    }
}
