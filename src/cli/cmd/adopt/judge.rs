//! What stands against taking over an etcd, from what was seen of it. Pure.

use quorate_agent::etcd::words::{self, version};
use quorate_api::config::SiteConfig;
use quorate_api::manifest::Manifest;
use quorate_core::adopt::{self, Foreign};
use quorate_core::federation::observed::{MemberList, Status};
use quorate_core::federation::spec::AdoptSpec;
use quorate_core::federation::view::MAX_LAG;
use quorate_core::id::{ClusterId, FederationKey, SiteName};
use serde::Serialize;

use super::look::{Facts, Found, PeerAnswer, Seen};

/// The oldest patch of each minor whose membership changes are known to be sound (etcd-facts.md 8).
const OLDEST: [(u16, u16, u16); 3] = [(3, 5, 30), (3, 6, 11), (3, 7, 0)];

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// It is as it should be.
    Ok,
    /// Only a person can tell.
    Warn,
    /// It has to be put right first.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) what: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) remedy: String,
}

/// A member, for people.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Member {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) peer_url: String,
    pub(super) endpoint: Option<String>,
    pub(super) version: Option<String>,
    pub(super) leader: bool,
    pub(super) learner: bool,
}

fn ok(what: &'static str, found: impl Into<String>) -> Check {
    Check { what, verdict: Verdict::Ok, found: found.into(), remedy: String::new() }
}

fn warn(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { what, verdict: Verdict::Warn, found: found.into(), remedy: remedy.into() }
}

fn missing(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { what, verdict: Verdict::Missing, found: found.into(), remedy: remedy.into() }
}

/// Either what is missing, or that nothing is.
fn all_of(what: &'static str, good: impl Into<String>, found: Vec<String>, remedy: &str) -> Vec<Check> {
    if found.is_empty() {
        return vec![ok(what, good)];
    }
    found.into_iter().map(|found| missing(what, found, remedy)).collect()
}

/// Everything that was checked, in the order in which it is put right.
pub(super) fn checks(facts: &Facts, key: &FederationKey, site: &SiteName, ca_key: bool) -> Vec<Check> {
    let remedy = "check the URL, --cacert, --cert and --key";
    let silent = facts.silent.iter().map(|(url, error)| format!("{url}: {error}")).collect();
    let mut all = all_of("endpoints", "all answer", silent, remedy);
    let Some(seen) = &facts.seen else { return all };
    all.extend(cluster(seen, key, site));
    all.extend(health(seen));
    all.extend(versions(seen));
    all.extend(data(seen));
    all.extend(authentication(seen));
    all.extend(peers(facts, ca_key));
    all.extend(reach(facts));
    if let Some(error) = &facts.no_binary {
        all.push(missing("etcd here", error, "install it in etcdDir of every site"));
    }
    if !ca_key {
        let found = "--peer-ca-key is not given: certificates for the peer side are signed by hand";
        all.push(warn(
            "certificates",
            found,
            "see docs/how-to/adopt: requests wait in the adopt folder of this site",
        ));
    }
    let found = "nothing of ours can fence what else changes the members of this etcd";
    all.push(warn(
        "others",
        found,
        "stop its operator, its scripts and whatever restarts its members anew, before --yes",
    ));
    all
}

/// The same obstacles that the agent looks for before it takes anything over.
fn cluster(seen: &Seen, key: &FederationKey, site: &SiteName) -> Vec<Check> {
    let statuses = seen.members.iter().filter_map(|m| m.status.as_ref());
    let statuses: Vec<Status> = statuses.map(|s| words::status(s, None, true)).collect();
    let list = list(seen);
    let adopt = AdoptSpec {
        cluster: site.clone(),
        cluster_id: ClusterId(seen.cluster),
        endpoints: Vec::new(),
        peer_ca: String::new(),
    };
    let foreign = Foreign { statuses: &statuses, list: seen.stale.is_none().then_some(&list) };
    let found = adopt::obstacles(&adopt, &key.name, foreign);
    if found.is_empty() {
        return vec![ok("members", format!("{} of cluster {:x}", list.iter().count(), seen.cluster))];
    }
    found.into_iter().map(|reason| missing("members", reason.to_string(), reason.code.remedy())).collect()
}

fn health(seen: &Seen) -> Vec<Check> {
    let mut found = Vec::new();
    let statuses = || seen.members.iter().filter_map(|m| Some((m.listed.id, m.status.as_ref()?)));
    let leader = statuses().map(|(_, s)| (s.leader, s.header.raft_term)).max_by_key(|(_, term)| *term);
    let commit = statuses().map(|(_, s)| s.raft_index).max().unwrap_or_default();
    for (id, status) in statuses() {
        if Some((status.leader, status.header.raft_term)) != leader || status.leader == 0 {
            found.push(format!("member {id:x} follows another leader"));
        }
        if commit.saturating_sub(status.applied_index) > MAX_LAG {
            found.push(format!("member {id:x} is {} entries behind", commit - status.applied_index));
        }
        let troubles = status.errors.iter().filter(|error| !error.contains("alarm:"));
        found.extend(troubles.map(|error| format!("member {id:x} says {error}")));
        if status.downgrade_to.is_some() {
            found.push(format!("member {id:x} is in a downgrade"));
        }
    }
    let mut all = all_of("health", "one leader, nobody behind", found, "bring the etcd to health first");
    let alarms = seen.alarms.iter().map(|alarm| format!("{:?} of member {:x}", alarm.kind, alarm.member_id));
    all.extend(all_of("alarms", "none", alarms.collect(), "see docs/runbooks/alarm"));
    all
}

fn versions(seen: &Seen) -> Vec<Check> {
    let all =
        || seen.members.iter().filter_map(|m| Some((m.listed.id, version(&m.status.as_ref()?.version))));
    let mut found = Vec::new();
    let first = all().next().map(|(_, v)| (v.major, v.minor));
    for (id, v) in all() {
        if Some((v.major, v.minor)) != first {
            found.push(format!("member {id:x} runs {v}, others another minor"));
        }
        let oldest = OLDEST.into_iter().find(|(major, minor, _)| (*major, *minor) == (v.major, v.minor));
        match oldest {
            Some((.., patch)) if v.patch >= patch => {}
            Some((major, minor, patch)) => {
                found.push(format!("member {id:x} runs {v}; {major}.{minor}.{patch} or newer is needed"));
            }
            None => found.push(format!("member {id:x} runs {v}; only 3.5, 3.6 and 3.7 are supported")),
        }
    }
    let good = all().next().map(|(_, v)| v.to_string()).unwrap_or_default();
    all_of("versions", good, found, "upgrade the etcd first, all members to one version")
}

fn data(seen: &Seen) -> Vec<Check> {
    let voters: Vec<&Found> = seen.members.iter().filter(|m| !m.listed.is_learner).collect();
    let hashes: Vec<(u32, i64)> = voters.iter().filter_map(|m| m.hash).collect();
    let mut found = Vec::new();
    if hashes
        .iter()
        .any(|(hash, compacted)| hashes.iter().any(|(other, same)| same == compacted && other != hash))
    {
        found.push("HashKV differs between members at one revision".to_owned());
    }
    let remedy = "see docs/runbooks/divergent-data";
    let mut all = all_of("data", "equal on all members", found, remedy);
    if hashes.len() < voters.len()
        || hashes.iter().any(|(_, compacted)| Some(*compacted) != hashes.first().map(|h| h.1))
    {
        let found = "not all members could be compared at one revision";
        all.push(warn("data", found, "try again; each agent compares before each step anyway"));
    }
    all
}

fn authentication(seen: &Seen) -> Vec<Check> {
    vec![match seen.auth {
        Some((false, _)) => ok("authentication", "off"),
        Some((true, true)) => ok("authentication", "on, and user quorate-agent has the role root"),
        Some((true, false)) => missing(
            "authentication",
            "it is on, and there is no user quorate-agent with the role root",
            "etcdctl user add quorate-agent --no-password; etcdctl user grant-role quorate-agent root",
        ),
        None => warn(
            "authentication",
            "could not be asked",
            "it must be off, or user quorate-agent have the role root",
        ),
    }]
}

fn peers(facts: &Facts, ca_key: bool) -> Vec<Check> {
    let closed = |(url, answer): (&String, &PeerAnswer)| match answer {
        PeerAnswer::Closed(why) => Some(format!("{url}: {why}")),
        PeerAnswer::Open | PeerAnswer::Vouched => None,
    };
    let good = if ca_key { "let certificates of --peer-ca in" } else { "are vouched for by --peer-ca" };
    let found = facts.peer_ports.iter().filter_map(closed).collect();
    all_of(
        "peer ports",
        good,
        found,
        "--peer-ca must be the CA of their certificates and of their --peer-trusted-ca-file",
    )
}

fn reach(facts: &Facts) -> Vec<Check> {
    if let Some(error) = &facts.agent {
        let found = format!("the agent of this site cannot ask the others ({error})");
        return vec![warn("reach", found, "start the agents, and run this again")];
    }
    let closed = facts.reach.iter().flat_map(|(url, sites)| {
        let blocked = sites.iter().filter_map(|(site, why)| Some((site, why.as_ref()?)));
        blocked.map(move |(site, why)| format!("{url} from {site}: {why}"))
    });
    let sites = facts.reach.values().next().map_or(0, std::collections::BTreeMap::len);
    all_of(
        "reach",
        format!("peer ports, from {sites} sites"),
        closed.collect(),
        "open the peer ports for every site",
    )
}

/// What cannot be tried from here.
pub(super) fn names(wanted: &Manifest, site: &SiteConfig) -> Vec<Check> {
    let own = wanted.layout.slots.iter().find(|slot| slot.site == site.site);
    let example = own.map(|slot| format!("{}.{}", slot.name(&wanted.key.name), site.peer_domain));
    let found = match example {
        Some(example) => {
            format!("the hosts of the etcd must resolve and reach {example} and its like at all sites")
        }
        None => "the hosts of the etcd must resolve and reach the peer URLs of all sites".to_owned(),
    };
    vec![warn("way back", found, "a learner that they do not reach is dropped after five minutes")]
}

/// The minor that they run.
pub(super) fn minor(seen: &Seen) -> Option<String> {
    let status = seen.members.iter().find_map(|m| m.status.as_ref())?;
    let version = version(&status.version);
    Some(format!("{}.{}", version.major, version.minor))
}

/// The members, for people.
pub(super) fn members(seen: &Seen) -> Vec<Member> {
    let member = |m: &Found| Member {
        id: format!("{:x}", m.listed.id),
        name: m.listed.name.clone(),
        peer_url: m.listed.peer_urls.join(","),
        endpoint: m.endpoint.clone(),
        version: m.status.as_ref().map(|s| s.version.clone()),
        leader: m.status.as_ref().is_some_and(|s| s.leader == m.listed.id),
        learner: m.listed.is_learner,
    };
    seen.members.iter().map(member).collect()
}

/// The list as the agents will read it.
pub(super) fn list(seen: &Seen) -> MemberList {
    words::members(seen.members.iter().map(|m| &m.listed))
}
