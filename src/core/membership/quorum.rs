//! Quorum arithmetic by member, zone and site (safety.md 2.1 and 2.3).

use serde::{Deserialize, Serialize};

use crate::federation::view::{MemberView, View};
use crate::id::{MemberId, SiteName, ZoneName};

/// q(n): the smallest majority of n voters.
pub const fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Arithmetic {
    /// n.
    pub voters: usize,
    /// Alive voters.
    pub alive: usize,
    /// q(n).
    pub quorum: usize,
}

impl Arithmetic {
    /// For n voters of which some are alive.
    pub const fn new(voters: usize, alive: usize) -> Self {
        Self { voters, alive, quorum: quorum(voters) }
    }

    /// alive − q(n); negative means quorum lost.
    #[expect(clippy::cast_possible_wrap, reason = "at most a few dozen voters")]
    pub const fn margin(&self) -> i64 {
        self.alive as i64 - self.quorum as i64
    }
}

impl std::fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} alive, quorum {}, margin {}", self.alive, self.voters, self.quorum, self.margin())
    }
}

/// The arithmetic of the present voters.
pub fn arithmetic(view: &View) -> Arithmetic {
    let (mut voters, mut alive) = (0, 0);
    for member in view.voters() {
        voters += 1;
        alive += usize::from(member.life.alive());
    }
    Arithmetic::new(voters, alive)
}

/// The arithmetic after a member became a voter, or after a voter went.
pub fn after(view: &View, joins: Option<MemberId>, leaves: Option<MemberId>) -> Arithmetic {
    let (mut voters, mut alive) = (0, 0);
    for member in &view.members {
        let counts = (!member.learner || Some(member.id) == joins) && Some(member.id) != leaves;
        voters += usize::from(counts);
        alive += usize::from(counts && member.life.alive());
    }
    Arithmetic::new(voters, alive)
}

/// A failure domain: a site, or a zone within one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Domain {
    /// The site.
    pub site: SiteName,
    /// The zone; none = the whole site.
    pub zone: Option<ZoneName>,
}

impl std::fmt::Display for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.zone {
            Some(zone) => write!(f, "{}/{zone}", self.site),
            None => write!(f, "{}", self.site),
        }
    }
}

/// Domains without tol(d): their loss now would stop writes. `zones` selects zones instead of sites.
pub fn at_risk(view: &View, zones: bool) -> Vec<(Domain, usize)> {
    let now = arithmetic(view);
    let mut domains: Vec<(Domain, usize)> = Vec::new();
    for member in view.voters().filter(|m| m.life.alive()) {
        let Some(slot) = &member.slot else { continue };
        let domain = Domain { site: slot.site.clone(), zone: zones.then(|| slot.zone.clone()) };
        match domains.iter_mut().find(|(d, _)| *d == domain) {
            Some((_, alive)) => *alive += 1,
            None => domains.push((domain, 1)),
        }
    }
    domains.retain(|(_, alive)| now.alive - alive < now.quorum);
    domains.sort();
    domains
}

/// c(V) = max_d w_d − (n − q(n)) over sites or zones, for voters given by their member views (rule I4).
#[expect(clippy::cast_possible_wrap, reason = "at most a few dozen voters")]
pub fn concentration<'a>(
    voters: &(impl Iterator<Item = &'a MemberView> + Clone),
    zones: bool,
) -> (i64, Option<SiteName>) {
    let n = voters.clone().count();
    let mut worst: (usize, Option<&SiteName>) = (0, None);
    for member in voters.clone() {
        let Some(slot) = &member.slot else { continue };
        let same = |other: &&MemberView| {
            other.slot.as_ref().is_some_and(|s| s.site == slot.site && (!zones || s.zone == slot.zone))
        };
        let weight = voters.clone().filter(same).count();
        if weight > worst.0 {
            worst = (weight, Some(&slot.site));
        }
    }
    let spare = n - quorum(n).min(n);
    (worst.0 as i64 - spare as i64, worst.1.cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majorities() {
        let expected = [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4), (9, 5)];
        for (n, q) in expected {
            assert_eq!(quorum(n), q, "q({n})");
        }
        assert_eq!(Arithmetic::new(3, 1).margin(), -1);
        assert_eq!(Arithmetic::new(3, 3).to_string(), "3/3 alive, quorum 2, margin 1");
    }
}
