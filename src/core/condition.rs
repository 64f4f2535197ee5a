//! What users are told: conditions and status, the same picture in every site. Pure.

use serde::{Deserialize, Serialize};

use crate::federation::member::Process;
use crate::federation::observed::{LocalMember, SiteObservation};
use crate::federation::view::{Life, View, Wish};
use crate::id::{Digest, Epoch, Generation, MemberId, SiteName, Slot, Uid};
use crate::membership::disruption;
use crate::membership::plan::Planned;
use crate::membership::quorum::{arithmetic, at_risk};
use crate::membership::step::{Decision, Step, StepKind};
use crate::reason::{Code, Reason};
use crate::timing;

/// Condition types (decisions.md 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field's names; the reference describes each")]
pub enum ConditionType {
    Ready,
    Quorate,
    SpecAgreed,
    PeersReachable,
    TrustReady,
    AllMembersReady,
    AllMembersUpdated,
    BackupReady,
    Progressing,
    QuorumAtRisk,
    DataLost,
    Frozen,
    DivergentData,
    SlowFailover,
}

/// True, false or not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "Kubernetes' own words")]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// One condition; `reason` is a CamelCase word and never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    pub kind: ConditionType,
    /// How it stands.
    pub status: ConditionStatus,
    /// The word.
    pub reason: String,
    /// The sentence.
    pub message: String,
}

/// Room for losses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArithmeticStatus {
    /// Voters.
    pub voters: usize,
    /// Alive voters.
    pub alive: usize,
    /// Majority.
    pub quorum: usize,
    /// alive − quorum.
    pub margin: i64,
    /// How many more members may be lost.
    pub can_lose_members: usize,
    /// Zones whose loss now would not stop writes.
    pub can_lose_zones: Vec<String>,
    /// Clusters whose loss now would not stop writes.
    pub can_lose_clusters: Vec<String>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Slot name.
    pub name: String,
    /// etcd's id, hexadecimal.
    pub id: String,
    /// The site.
    pub site: String,
    /// The zone.
    pub zone: String,
    /// `voter` or `learner`.
    pub role: String,
    /// `alive`, `unknown` or `dead`.
    pub state: String,
    /// Why it is not alive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its peer URL, as etcd lists it.
    #[serde(default, rename = "peerURL")]
    pub peer_url: String,
    /// Database size, bytes.
    pub db_size: u64,
    /// etcd's version.
    pub version: String,
    /// It leads.
    pub leader: bool,
}

/// etcd's timers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TimingStatus {
    /// Heartbeat interval, ms.
    pub heartbeat_ms: u32,
    /// Election timeout, ms.
    pub election_ms: u32,
    /// The round-trip time that they were chosen for, ms; none if a person wrote both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<u32>,
}

/// One line of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanLine {
    /// The step.
    pub step: String,
    /// Its operation, as an override names it.
    pub operation: String,
    /// Arithmetic before.
    pub before: String,
    /// Arithmetic after.
    pub after: String,
    /// What it waits for.
    pub waits: Vec<String>,
    /// What to know of the state that it leaves: an even number of voters, sites whose loss would stop writes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// One site as seen from here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SiteStatus {
    /// The site.
    pub name: String,
    /// Its agent is heard.
    pub reachable: bool,
    /// Digest of the spec that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
}

/// Backups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// Whether this build runs backups.
    pub enabled: bool,
}

/// The status of a federation: a CR's `.status`, and `/v1/federations/<ns>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The site that says this.
    pub observed_from: String,
    /// The federation's uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// Its epoch.
    pub epoch: Epoch,
    /// The effective generation.
    pub generation: Generation,
    /// Digest of the effective spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// etcd's cluster id, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Conditions, by type.
    pub conditions: Vec<Condition>,
    /// Room for losses.
    pub arithmetic: ArithmeticStatus,
    /// etcd's timers, the same in every site; none before they are agreed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<TimingStatus>,
    /// Members.
    pub members: Vec<MemberStatus>,
    /// The leading member's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The site that executes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The intent that is open or was last, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent: Option<String>,
    /// The running operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// What will be done, step by step.
    pub plan: Vec<PlanLine>,
    /// What is decided now: `Done`, or why nothing happens.
    pub decision: String,
    /// The reason of a wait or refusal, for `quorate explain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Sites.
    pub sites: Vec<SiteStatus>,
    /// Backups.
    pub backup: BackupStatus,
    /// Client endpoints of the voters; those that the spec takes out come last. See [`endpoints`].
    pub endpoints: Vec<String>,
}

fn condition(kind: ConditionType, good: bool, reason: &str, message: String) -> Condition {
    let status = if good { ConditionStatus::True } else { ConditionStatus::False };
    Condition { kind, status, reason: reason.to_owned(), message }
}

fn from_reason(kind: ConditionType, status: bool, reason: &Reason) -> Condition {
    condition(kind, status, reason.code.name(), reason.to_string())
}

/// Where clients should go: learners serve no writes, so they are left out, and who is about to leave comes last, so that
/// clients go elsewhere while it still serves. `told` are the client URLs as a member lists them.
pub fn endpoints(view: &View, wish: &Wish, told: &[(MemberId, String)]) -> Vec<String> {
    let voter = |id: MemberId| view.member(id).is_some_and(|m| !m.learner);
    let leaves = |id: MemberId| crate::membership::safety::leaving(view, wish).any(|m| m.id == id);
    let mut all: Vec<(bool, &String)> =
        told.iter().filter(|(id, _)| voter(*id)).map(|(id, url)| (leaves(*id), url)).collect();
    all.sort();
    all.into_iter().map(|(_, url)| url.clone()).collect()
}

/// Arithmetic for people.
pub fn arithmetic_status(view: &View) -> ArithmeticStatus {
    let now = arithmetic(view);
    let safe = |zones: bool| {
        let risky = at_risk(view, zones);
        let mut names: Vec<String> = view
            .voters()
            .filter_map(|m| m.slot.as_ref())
            .map(|slot| if zones { format!("{}/{}", slot.site, slot.zone) } else { slot.site.to_string() })
            .filter(|name| now.margin() >= 0 && !risky.iter().any(|(d, _)| d.to_string() == *name))
            .collect();
        names.sort();
        names.dedup();
        names
    };
    ArithmeticStatus {
        voters: now.voters,
        alive: now.alive,
        quorum: now.quorum,
        margin: now.margin(),
        can_lose_members: usize::try_from(now.margin()).unwrap_or(0),
        can_lose_zones: safe(true),
        can_lose_clusters: safe(false),
    }
}

/// All conditions of a federation that was born. `data_lost` names a member whose directory was refused (rule I5).
pub fn conditions(
    view: &View,
    wish: &Wish,
    decision: &Decision,
    data_lost: Option<&Reason>,
) -> Vec<Condition> {
    use ConditionType as T;
    let now = arithmetic(view);
    let quorate = view.leader.is_some() && now.margin() >= 0;
    let mut all = vec![
        if quorate {
            condition(T::Quorate, true, "Quorate", now.to_string())
        } else {
            condition(T::Quorate, false, Code::QuorumLost.name(), missing(view, now.to_string()))
        },
        members_ready(view, wish),
        spec_agreed(view, wish),
        peers_reachable(view),
        condition(T::TrustReady, true, "TrustLoaded", "roots of all sites are loaded".to_owned()),
        condition(T::BackupReady, false, Code::NoBackup.name(), Reason::new(Code::NoBackup).to_string()),
        progressing(decision),
        at_risk_condition(view),
        frozen(decision),
        divergent(view),
        slow_failover(wish),
    ];
    all.push(match data_lost {
        Some(reason) => from_reason(T::DataLost, true, reason),
        None => condition(T::DataLost, false, "DataPresent", "no data directory was refused".to_owned()),
    });
    all.push(members_updated(view, wish));
    let ready =
        quorate && all.iter().any(|c| c.kind == T::AllMembersReady && c.status == ConditionStatus::True);
    let hindered = hindrance(view).map(|reason| reason.code.name());
    let waits = decision.reason().map(|reason| reason.code.name());
    let why = if ready { "AsWished" } else { hindered.or(waits).unwrap_or("Progressing") };
    all.push(condition(T::Ready, ready, why, now.to_string()));
    all.sort_by_key(|c| c.kind);
    all
}

/// The members that are missed, and what their sites know of them (safety.md 9, `QuorumLost`).
fn missing(view: &View, arithmetic: String) -> String {
    let listed = view.members.iter().filter(|m| !m.life.alive()).map(|m| {
        let (state, reason) = life_words(m.life);
        let site = m.site().map(|site| format!(" at {site}")).unwrap_or_default();
        format!("member {}{site}: {state}{}", m.id, reason.map(|r| format!(" ({r})")).unwrap_or_default())
    });
    // Nobody can read the list: what the sites hold is told instead.
    let told = view.sites.iter().filter_map(|s| s.observation.as_deref()).flat_map(|o| {
        let member = |m: &LocalMember| {
            let id = m.member?;
            Some(format!("member {id} at {}: {:?}, {}", o.site, m.state, process_words(&m.process)))
        };
        o.members.iter().filter_map(member)
    });
    let silent = view.sites.iter().filter(|s| !s.heard()).map(|s| format!("site {}: not heard", s.name));
    let mut all: Vec<String> = if view.list.is_some() { listed.collect() } else { told.collect() };
    all.extend(silent);
    if all.is_empty() { arithmetic } else { format!("{arithmetic}; {}", all.join("; ")) }
}

fn process_words(process: &Process) -> String {
    match process {
        Process::Quarantined(reason) => reason.to_string(),
        other => format!("{other:?}"),
    }
}

/// A trouble of some site's host, as its agent says now.
fn hindrance(view: &View) -> Option<&Reason> {
    let heard = view.sites.iter().filter(|site| site.heard()).filter_map(|site| site.observation.as_ref());
    heard.flat_map(|o| &o.hindered).map(|hindrance| &hindrance.reason).next()
}

fn members_ready(view: &View, wish: &Wish) -> Condition {
    use ConditionType::AllMembersReady;
    if let Some(reason) = hindrance(view) {
        return from_reason(AllMembersReady, false, reason);
    }
    if let Some(m) = view.members.iter().find(|m| !m.life.alive()) {
        let reason = Reason::new(Code::Starting).member(m.id).maybe_site(m.site());
        return from_reason(AllMembersReady, false, &reason);
    }
    let as_wished = view.voters().count() == wish.slots.len() && view.learners().next().is_none();
    let message = format!("{} of {} voters", view.voters().count(), wish.slots.len());
    condition(AllMembersReady, as_wished, if as_wished { "AsWished" } else { "MembersMissing" }, message)
}

fn members_updated(view: &View, wish: &Wish) -> Condition {
    use ConditionType::AllMembersUpdated;
    if let Some(m) = disruption::outdated(view, &wish.options) {
        let reason = Reason::new(Code::RestartPending).member(m.id).maybe_site(m.site());
        return from_reason(AllMembersUpdated, false, &reason);
    }
    let updated = view.voters().all(|m| m.version.is_some());
    let message = "members run with the effective settings".to_owned();
    condition(AllMembersUpdated, updated, "Versions", message)
}

fn spec_agreed(view: &View, wish: &Wish) -> Condition {
    use ConditionType::SpecAgreed;
    if let Some(reason) = deletion_waits(view) {
        return from_reason(SpecAgreed, false, &reason);
    }
    if let Err(reason) = crate::membership::safety::i13_spec_drift(view, wish) {
        return from_reason(SpecAgreed, false, &reason);
    }
    match &wish.pending {
        Some(_) => {
            condition(SpecAgreed, false, Code::ActivationPending.name(), "a new spec waits".to_owned())
        }
        None => condition(SpecAgreed, true, "Agreed", format!("generation {}", wish.generation)),
    }
}

/// Here it is deleted: for whom the deletion waits.
fn deletion_waits(view: &View) -> Option<Reason> {
    let deleted = |site: &SiteName| view.heard(site).is_some_and(|o| o.deleted);
    if !deleted(&view.me) {
        return None;
    }
    let site = view.sites.iter().find(|site| !deleted(&site.name))?;
    Some(Reason::new(Code::DeletionWaits).site(&site.name))
}

/// A reaches B, B reaches C, A does not reach C (safety.md 9). Told by fresh rows of sites that are heard, so that neither
/// a silent site nor a dead member is taken for a broken link; `None` if there is no such pair.
fn non_transitive(view: &View) -> Option<(&SiteName, &SiteName)> {
    let rows = || view.sites.iter().filter(|site| site.heard()).filter_map(|s| s.observation.as_deref());
    let fresh = |o: &SiteObservation, id: MemberId| o.link(id).filter(|link| !link.stale).cloned();
    // Who dies is missed by everybody, only not in the same moment: one miss is enough to say nothing.
    let good =
        |o: &SiteObservation, id: MemberId| fresh(o, id).is_some_and(|link| link.up() && link.misses == 0);
    rows().find_map(|from| {
        let cut = view.members.iter().find(|m| {
            let seen_by = |other: &SiteObservation| {
                other.site != from.site && m.site() != Some(&other.site) && good(other, m.id)
            };
            let down = fresh(from, m.id).is_some_and(|link| !link.up());
            m.site() != Some(&from.site) && down && rows().any(seen_by)
        });
        Some((&from.site, cut?.site()?))
    })
}

fn peers_reachable(view: &View) -> Condition {
    use ConditionType::PeersReachable;
    if let Some((from, to)) = non_transitive(view) {
        let mut condition =
            from_reason(PeersReachable, false, &Reason::new(Code::NonTransitivePartition).site(from));
        condition.message = format!("{} (not {to})", condition.message);
        return condition;
    }
    match view.sites.iter().find(|site| !site.heard()) {
        Some(site) => {
            let reason = Reason::new(Code::PeerUnreachable).site(&site.name);
            if let Some(age) = site.age_ms {
                from_reason(PeersReachable, false, &reason.numbers(age, 0))
            } else {
                let message = format!("the agent of site {} was not heard yet", site.name);
                condition(PeersReachable, false, reason.code.name(), message)
            }
        }
        None => condition(PeersReachable, true, "AllHeard", "all agents are heard".to_owned()),
    }
}

fn progressing(decision: &Decision) -> Condition {
    use ConditionType::Progressing;
    match decision {
        Decision::Step(step) => condition(Progressing, true, step.kind.name(), step.to_string()),
        Decision::Wait(reason) => from_reason(Progressing, true, reason),
        Decision::Refuse(reason) => from_reason(Progressing, false, reason),
        Decision::Done => condition(Progressing, false, "AsWished", "nothing to do".to_owned()),
    }
}

fn at_risk_condition(view: &View) -> Condition {
    use ConditionType::QuorumAtRisk;
    let risky = at_risk(view, false);
    let now = arithmetic(view);
    match risky.first() {
        // A single voter is at risk by wish; the layout says so already.
        Some((domain, alive)) if now.voters > 1 => {
            let reason = Reason::new(Code::QuorumAtRisk).site(&domain.site);
            let reason = reason.numbers((now.alive - alive) as u64, now.quorum as u64);
            let sites: Vec<String> = risky.iter().map(|(d, _)| d.to_string()).collect();
            let mut condition = from_reason(QuorumAtRisk, true, &reason);
            condition.message = format!("{} (sites at risk: {})", condition.message, sites.join(", "));
            condition
        }
        _ => condition(QuorumAtRisk, false, "Tolerant", "no single site stops writes".to_owned()),
    }
}

fn frozen(decision: &Decision) -> Condition {
    let rule = decision.reason().and_then(Reason::rule);
    match decision.reason() {
        Some(reason) if rule == Some(crate::reason::Rule::I13) && reason.code != Code::TooSoon => {
            from_reason(ConditionType::Frozen, true, reason)
        }
        _ => condition(ConditionType::Frozen, false, "Calm", "membership changes are permitted".to_owned()),
    }
}

fn divergent(view: &View) -> Condition {
    let different =
        view.checks.iter().find(|c| !c.equal && view.member(c.member).is_some_and(|m| !m.learner));
    match different {
        Some(check) => {
            let reason =
                Reason::new(Code::DivergentData).member(check.member).maybe_site(view.site_of(check.member));
            from_reason(ConditionType::DivergentData, true, &reason)
        }
        None => condition(ConditionType::DivergentData, false, "Equal", "no difference was seen".to_owned()),
    }
}

fn slow_failover(wish: &Wish) -> Condition {
    use ConditionType::SlowFailover;
    let election_ms = wish.options.election_ms;
    if timing::slow_failover(election_ms) {
        let longest = 3 * u64::from(election_ms);
        let reason = Reason::new(Code::SlowFailover).numbers(longest, timing::LEASE_RENEWAL_MS.into());
        return from_reason(SlowFailover, true, &reason);
    }
    condition(SlowFailover, false, "InTime", format!("election timeout {election_ms} ms"))
}

/// The state of a member as one word, with the reason.
pub fn life_words(life: Life) -> (&'static str, Option<&'static str>) {
    match life {
        Life::Alive => ("alive", None),
        Life::Unknown(code) => ("unknown", Some(code.name())),
        Life::DeadAttested => ("dead", Some("Attested")),
        Life::DeadDeclared => ("dead", Some("Declared")),
    }
}

/// The lines of a plan.
pub fn plan_lines(plan: &[Planned]) -> Vec<PlanLine> {
    let line = |planned: &Planned| {
        let Planned { step, waits, place, invented, remarks } = planned;
        PlanLine {
            step: step_words(step, place.as_ref(), *invented),
            operation: match step.operation.source {
                None if *invented => format!("{:?}", step.operation.kind),
                _ => step.operation.to_string(),
            },
            before: step.before.to_string(),
            after: step.after.to_string(),
            waits: waits.iter().map(ToString::to_string).collect(),
            remarks: remarks.iter().map(ToString::to_string).collect(),
        }
    };
    plan.iter().map(line).collect()
}

/// A step with the place of its member; a member that is not listed yet has no id to tell.
fn step_words(step: &Step, place: Option<&Slot>, invented: bool) -> String {
    // The place of a foreign member is made from its id, and tells no more.
    match (&step.kind, place.filter(|slot| !slot.is_external())) {
        (StepKind::AddLearner { .. }, _) | (_, None) => step.kind.to_string(),
        (kind, Some(slot)) if invented => format!("{} the new member of {slot}", kind.verb()),
        (kind, Some(slot)) => format!("{kind} of {slot}"),
    }
}

/// The names of sites, for messages.
pub fn names<'a>(sites: impl Iterator<Item = &'a SiteName>) -> String {
    sites.map(SiteName::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::membership::scenario::Story;

    const STORY: &str = "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north";

    fn view(changes: &[(&str, u64, u32)]) -> View {
        let mut view = Story::read(STORY).view();
        for (site, member, misses) in changes {
            let site = view.sites.iter_mut().find(|s| s.name.as_str() == *site).unwrap();
            let observation = Arc::make_mut(site.observation.as_mut().unwrap());
            let link = observation.links.iter_mut().find(|link| link.member.0 == *member).unwrap();
            (link.misses, link.good_ms) = (*misses, 0);
        }
        view
    }

    fn told(view: &View) -> (String, String) {
        let condition = peers_reachable(view);
        (condition.reason, condition.message)
    }

    #[test]
    fn one_broken_link_is_told_apart_from_a_silent_site_and_a_dead_member() {
        assert_eq!(told(&view(&[])).0, "AllHeard");
        // East does not reach west, and north reaches both.
        let (reason, message) = told(&view(&[("east", 2, 3)]));
        assert_eq!(reason, "NonTransitivePartition");
        assert_eq!(message, "NonTransitivePartition: site east reaches some sites but not others (not west)");
        // A miss or two are none.
        assert_eq!(told(&view(&[("east", 2, 2)])).0, "AllHeard");
        // Nobody reaches it: it is down, not cut off. The others notice a moment later.
        assert_eq!(told(&view(&[("east", 2, 3), ("north", 2, 3)])).0, "AllHeard");
        assert_eq!(told(&view(&[("east", 2, 3), ("north", 2, 1)])).0, "AllHeard");
        // A site that is silent says nothing of its links now.
        let mut silent = view(&[("east", 2, 3)]);
        let mut heard = |age_ms| {
            silent.sites.iter_mut().find(|s| s.name.as_str() == "north").unwrap().age_ms = age_ms;
            told(&silent)
        };
        assert_eq!(heard(Some(60_000)).0, "PeerUnreachable");
        assert!(heard(Some(60_000)).1.ends_with("the agent of site north was last heard 60000 ms ago"));
        assert_eq!(heard(None).1, "the agent of site north was not heard yet");
    }

    #[test]
    fn clients_go_to_voters_and_to_those_that_leave_last() {
        let told: Vec<(MemberId, String)> = (1..=5).map(|n| (MemberId(n), format!("https://{n}"))).collect();
        let urls = |facts: &str| {
            let story = Story::read(facts);
            endpoints(&story.view(), &story.wish(), &told).join(" ")
        };
        let members = "member 1 east leader\nmember 2 west\nmember 3 north\nmember 4 south learner";
        assert_eq!(urls(&format!("wish east west north\n{members}")), "https://1 https://2 https://3");
        assert_eq!(urls(&format!("wish west north south\n{members}")), "https://2 https://3 https://1");
        let all = "wish centre coast\nmember 1 east leader\nmember 2 west";
        assert_eq!(urls(all), "https://1 https://2");
    }
}
