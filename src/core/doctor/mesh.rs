//! The agents among each other.

use super::{Finding, Severity, error, finding, warning};
use crate::federation::view::HEARD_MS;
use crate::report::{PeerReport, SiteReport};

/// More than this is worth a word (safety.md 2.4); certificates and logs suffer, decisions do not.
pub(super) const SKEW_MS: u64 = 5_000;

const fn fresh(age_ms: Option<u64>) -> bool {
    matches!(age_ms, Some(age) if age < HEARD_MS)
}

fn ago(age_ms: Option<u64>) -> String {
    match age_ms {
        None => "never".to_owned(),
        Some(ms) => format!("{} s ago", ms / 1000),
    }
}

/// Who does not hear whom.
pub(super) fn agents(agent: &SiteReport) -> Vec<Finding> {
    let mut found = Vec::new();
    for peer in &agent.peers {
        let place = format!("{} to {}", peer.name, agent.site);
        if !peer.trusted {
            let remedy = "`quorate mesh invite` here and `quorate mesh accept` there, or the other way round";
            let message = format!("no root of {} is trusted here", peer.name);
            found.push(error("mesh", &place, &message, remedy));
        }
        if !fresh(peer.age_ms) {
            let why = peer
                .trouble
                .as_ref()
                .map(|why| format!("; dialling {}: {why}", peer.endpoint))
                .unwrap_or_default();
            let message = format!("{} was last heard: {}{why}", peer.name, ago(peer.age_ms));
            let remedy = "check that agent, its address in peers, and the mesh port in firewalls on the way";
            found.push(error("mesh", &place, &message, remedy));
            continue;
        }
        if let Some(trouble) = &peer.trouble {
            let message = format!("{} is heard, but {} does not answer: {trouble}", peer.name, peer.endpoint);
            let remedy = "check the address in peers and the mesh port in firewalls on the way there";
            found.push(error("mesh", &format!("{} to {}", agent.site, peer.name), &message, remedy));
        }
        found.extend(one_way(agent, peer));
    }
    found
}

/// What a peer says of links that do not end here.
fn one_way(agent: &SiteReport, peer: &PeerReport) -> Vec<Finding> {
    let here =
        |name: &str| name == agent.site || agent.peers.iter().any(|p| p.name == name && fresh(p.age_ms));
    let broken = peer.hears.iter().filter(|link| !fresh(link.age_ms) && here(&link.site));
    broken
        .map(|link| {
            let message =
                format!("{} last heard {}: {}; both are heard here", peer.name, link.site, ago(link.age_ms));
            let remedy = "check that one link: peers and trust at both sites, firewalls on the way";
            error("mesh", &format!("{} to {}", link.site, peer.name), &message, remedy)
        })
        .collect()
}

/// Wall clocks.
pub(super) fn clocks(agent: &SiteReport) -> Vec<Finding> {
    let wrong = agent.peers.iter().filter_map(|peer| {
        let skew = peer.clock_skew_ms.filter(|skew| skew.unsigned_abs() > SKEW_MS)?;
        let way = if skew > 0 { "ahead of" } else { "behind" };
        let message = format!("its clock is {} s {way} that of {}", skew.unsigned_abs() / 1000, agent.site);
        let remedy =
            "run a time service at both sites; no decision rests on these clocks, but certificates do";
        Some(warning("clocks", &format!("site {}", peer.name), &message, remedy))
    });
    wrong.collect()
}

/// Versions of quorate and of the protocol.
pub(super) fn versions(agent: &SiteReport) -> Vec<Finding> {
    let mut found = Vec::new();
    for peer in &agent.peers {
        let place = format!("site {}", peer.name);
        if peer.version.as_ref().is_some_and(|version| *version != agent.version) {
            let theirs = peer.version.as_deref().unwrap_or_default();
            let message = format!("it runs quorate {theirs}, {} runs {}", agent.site, agent.version);
            found.push(finding(Severity::Note, "versions", &place, &message, "finish the update of quorate"));
        }
        if peer.protocol.is_some_and(|protocol| protocol != agent.protocol) {
            let theirs = peer.protocol.unwrap_or_default();
            let message = format!("it speaks protocol {theirs}, {} speaks {}", agent.site, agent.protocol);
            found.push(warning("versions", &place, &message, "update quorate at the older site"));
        }
    }
    found
}
