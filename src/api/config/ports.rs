//! The ports of an agent and of the members of its site.

use std::collections::BTreeSet;

use quorate_core::federation::layout::MAX_VOTERS;
use serde::{Deserialize, Serialize};

/// The distance between the ports of two members of one federation.
const MEMBER_STEP: u16 = 10;
/// The distance between the blocks of two federations: room for ten members each.
const BLOCK_STEP: u16 = 100;

/// The ports of an agent, and the bases of the members' ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ports {
    /// Mesh gRPC of the agent.
    pub agent: u16,
    /// Member API.
    pub member: u16,
    /// `/livez`, `/readyz`, `/metrics`.
    pub http: u16,
    /// etcd's clients.
    pub client: u16,
    /// etcd's peers.
    pub peer: u16,
    /// etcd's metrics and health.
    pub metrics: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self { agent: 8443, member: 8444, http: 8080, client: 2379, peer: 2380, metrics: 2381 }
    }
}

/// The ports of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberPorts {
    /// Member API of its supervisor.
    pub member: u16,
    /// `/livez`, `/readyz`, `/metrics` of its supervisor.
    pub http: u16,
    /// etcd's clients.
    pub client: u16,
    /// etcd's peers.
    pub peer: u16,
    /// etcd's metrics and health.
    pub metrics: u16,
}

impl MemberPorts {
    /// The ports with their names.
    pub fn named(&self) -> [(&'static str, u16); 5] {
        let Self { member, http, client, peer, metrics } = *self;
        [("member", member), ("http", http), ("client", client), ("peer", peer), ("metrics", metrics)]
    }
}

impl Ports {
    /// The ports of the member with this ordinal in the block of its federation: base + 100 × block + 10 × ordinal; the
    /// http ports of members start one above the agent's. None if one would be too high.
    pub fn of_member(self, block: u16, ordinal: u32) -> Option<MemberPorts> {
        let offset = u16::try_from(ordinal)
            .ok()?
            .checked_mul(MEMBER_STEP)?
            .checked_add(block.checked_mul(BLOCK_STEP)?)?;
        Some(MemberPorts {
            member: self.member.checked_add(offset)?,
            http: self.http.checked_add(1)?.checked_add(offset)?,
            client: self.client.checked_add(offset)?,
            peer: self.peer.checked_add(offset)?,
            metrics: self.metrics.checked_add(offset)?,
        })
    }

    /// All ports of a block. None if one would be too high.
    pub fn of_block(self, block: u16) -> Option<Vec<u16>> {
        let mut all = Vec::new();
        for ordinal in 0..MAX_VOTERS {
            all.extend(self.of_member(block, ordinal)?.named().map(|(_, port)| port));
        }
        Some(all)
    }

    /// The lowest block of which no port is taken, neither by somebody else nor by the agent nor twice by itself. None
    /// if there is no room.
    pub fn free_block(self, taken: &BTreeSet<u16>) -> Option<u16> {
        for block in 0.. {
            let ports = self.of_block(block)?;
            let mut used = taken.clone();
            used.extend([self.agent, self.http]);
            if ports.into_iter().all(|port| used.insert(port)) {
                return Some(block);
            }
        }
        None
    }

    /// Two names of ports that would be the same one, for a site with as many members as a federation may have.
    pub(super) fn collision(self) -> Option<String> {
        let mut taken = vec![("agent".to_owned(), self.agent), ("http".to_owned(), self.http)];
        for ordinal in 0..MAX_VOTERS {
            let Some(ports) = self.of_member(0, ordinal) else {
                return Some(format!("the ports of member {ordinal} would be too high"));
            };
            for (name, port) in ports.named() {
                let name = format!("{name} of member {ordinal}");
                if let Some((other, _)) = taken.iter().find(|(_, other)| *other == port) {
                    return Some(format!("{name} and {other} would both be {port}"));
                }
                taken.push((name, port));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_take_ten_ports_more_each_and_federations_a_hundred() {
        let ports = Ports::default();
        assert_eq!(ports.of_member(0, 0).unwrap().named().map(|(_, p)| p), [8444, 8081, 2379, 2380, 2381]);
        assert_eq!(ports.of_member(0, 2).unwrap().named().map(|(_, p)| p), [8464, 8101, 2399, 2400, 2401]);
        assert_eq!(ports.of_member(2, 1).unwrap().named().map(|(_, p)| p), [8654, 8291, 2589, 2590, 2591]);
        assert_eq!(ports.of_member(u16::MAX, 0), None);
        assert_eq!(Ports { peer: 65_530, ..ports }.of_member(0, 1), None);
    }

    #[test]
    fn a_new_federation_takes_the_lowest_block_that_is_free_as_a_whole() {
        let ports = Ports::default();
        let none = BTreeSet::new();
        assert_eq!(ports.free_block(&none), Some(0));
        let first: BTreeSet<u16> = ports.of_block(0).unwrap().into_iter().collect();
        assert_eq!(ports.free_block(&first), Some(1));
        // One port of somebody else in the middle of it is enough.
        let mut taken = first.clone();
        taken.insert(ports.of_member(1, 6).unwrap().metrics);
        assert_eq!(ports.free_block(&taken), Some(2));
        // A block in between that was given back is the next one.
        let third: BTreeSet<u16> = first.iter().copied().chain(ports.of_block(2).unwrap()).collect();
        assert_eq!(ports.free_block(&third), Some(1));
        // The agent's own ports are not for members.
        let near = Ports { agent: 2480, ..ports };
        assert_eq!(near.free_block(&first), Some(2));
        let high = Ports { client: 65_300, ..ports };
        assert_eq!(high.free_block(&high.of_block(0).unwrap().into_iter().collect()), Some(1));
        let all: BTreeSet<u16> = [0, 1].into_iter().flat_map(|b| high.of_block(b).unwrap()).collect();
        assert_eq!(high.free_block(&all), None);
    }
}
