//! The independent check of a planned step. It shares no code with the planner: it reads the raw observations again,
//! with arithmetic of its own, and imports only ids, raw observations and words. A plan that fails here is a bug.

use crate::federation::member::IncarnationState;
use crate::federation::observed::{Heard, LeaderClaim, ListedMember, LocalMember, SiteObservation};
use crate::federation::view::Wish;
use crate::id::{MemberId, SiteName};
use crate::membership::step::StepKind;

/// Why a step must not be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The own member does not lead, or its claim is old.
    #[error("the own member does not lead")]
    NotLeader,
    /// A second learner would be added.
    #[error("a learner is listed already")]
    SecondLearner,
    /// The voters after the step would not have an alive majority.
    #[error("after the step {alive} of {voters} voters would be alive")]
    NoMajority {
        /// Alive voters after the step.
        alive: usize,
        /// Voters after the step.
        voters: usize,
    },
    /// A voter that is not proven dead would be removed while another one is not seen alive.
    #[error("voter {0} would be removed while another one is not seen alive")]
    HealthyRemoval(MemberId),
    /// The last voter would be removed, or the last but one without permission.
    #[error("too few voters would be left")]
    TooFew,
    /// The leader would be removed.
    #[error("voter {0} leads")]
    Leader(MemberId),
    /// The learner was not seen alive and equal.
    #[error("learner {0} was not seen alive and equal")]
    NotPromotable(MemberId),
    /// The target is not what the step says.
    #[error("member {0} is not listed as the step says")]
    WrongTarget(MemberId),
    /// An alarm is active.
    #[error("an alarm is active")]
    Alarm,
    /// Agents that are heard hold different specs.
    #[error("agents hold different specs")]
    Drift,
    /// The URL or slot is in use.
    #[error("the peer URL is in use")]
    UrlInUse,
}

/// What an agent said more than this long ago proves nothing (safety.md 2.2). Own constant on purpose.
const OLD_MS: u64 = 5_000;
const LAG: u64 = 1_000;

/// Judges a step on raw observations. `overridden`: a person has set I3 or I13 aside for it.
pub fn verify(
    raw: &[(SiteName, Heard)],
    me: &SiteName,
    wish: &Wish,
    kind: &StepKind,
    overridden: bool,
) -> Result<(), Violation> {
    let own = raw.iter().find(|(site, heard)| site == me && heard.age_ms < OLD_MS);
    let Some(claim) = own.and_then(|(_, heard)| heard.observation.leader.as_ref()) else {
        return Err(Violation::NotLeader);
    };
    let newer = |o: &SiteObservation| o.leader.as_ref().is_some_and(|other| other.term > claim.term);
    if raw.iter().any(|(_, heard)| heard.age_ms < OLD_MS && newer(&heard.observation)) {
        return Err(Violation::NotLeader);
    }
    let facts = Facts { raw, claim, wish };
    match kind {
        StepKind::AddLearner { peer_url, .. } => {
            facts.calm(overridden)?;
            if claim.list.learners().next().is_some() {
                return Err(Violation::SecondLearner);
            }
            if claim.list.by_url(peer_url).is_some() {
                return Err(Violation::UrlInUse);
            }
            facts.majority(|m| !m.learner)
        }
        StepKind::Promote { member } => {
            facts.calm(overridden)?;
            let learner =
                claim.list.get(*member).filter(|m| m.learner).ok_or(Violation::WrongTarget(*member))?;
            let equal = claim.checks.iter().any(|c| c.member == *member && c.equal);
            let differs = claim.checks.iter().any(|c| c.member == *member && !c.equal);
            if !facts.alive(learner) || !equal || differs {
                return Err(Violation::NotPromotable(*member));
            }
            facts.majority(|m| !m.learner || m.id == *member)
        }
        StepKind::Remove { member, learner } => {
            facts.calm(overridden)?;
            let target = claim.list.get(*member).filter(|m| m.learner == *learner);
            let target = target.ok_or(Violation::WrongTarget(*member))?;
            if *learner { Ok(()) } else { facts.removal(target, overridden) }
        }
        StepKind::UpdateUrl { member, .. } => {
            facts.calm(overridden)?;
            let voter =
                claim.list.get(*member).filter(|m| !m.learner).ok_or(Violation::WrongTarget(*member))?;
            if claim.list.voters().any(|m| m.id != voter.id && !facts.alive(m)) {
                return Err(Violation::HealthyRemoval(voter.id));
            }
            facts.majority(|m| !m.learner)
        }
        StepKind::MoveLeader { to } => {
            let voter = claim.list.get(*to).filter(|m| !m.learner).ok_or(Violation::WrongTarget(*to))?;
            if facts.alive(voter) { Ok(()) } else { Err(Violation::WrongTarget(*to)) }
        }
        StepKind::ActivateSpec { .. } | StepKind::Snapshot => Ok(()),
    }
}

/// What a site says of a member that it may speak for: its slot is there and its URL is the listed one. For a member that
/// quorate did not create only the site that the spec names may speak.
fn spoken_for<'a>(
    site: &'a SiteObservation,
    member: &ListedMember,
    adopts: Option<&SiteName>,
) -> Option<&'a LocalMember> {
    let may =
        |m: &LocalMember| m.slot.site == site.site && (!m.slot.is_external() || adopts == Some(&site.site));
    let own = |m: &&LocalMember| m.member == Some(member.id) && may(m);
    site.members.iter().find(own).filter(|m| m.peer_url == member.peer_url)
}

struct Facts<'a> {
    raw: &'a [(SiteName, Heard)],
    claim: &'a LeaderClaim,
    wish: &'a Wish,
}

impl Facts<'_> {
    fn fresh(&self) -> impl Iterator<Item = &SiteObservation> {
        self.raw
            .iter()
            .filter(|(_, heard)| heard.age_ms < OLD_MS)
            .map(|(_, heard)| heard.observation.as_ref())
    }

    fn alive(&self, member: &ListedMember) -> bool {
        let seen = self.fresh().any(|site| {
            let spoken = spoken_for(site, member, self.wish.adopts.as_ref());
            let Some(status) = spoken.and_then(|m| m.status.as_ref()) else { return false };
            let mut leaders =
                self.fresh().filter(|o| o.leader.as_ref().is_some_and(|c| c.term == self.claim.term));
            let sees =
                |o: &SiteObservation, id: MemberId| o.links.iter().any(|l| l.member == id && l.misses < 3);
            let linked = member.id == self.claim.member
                || (sees(site, self.claim.member) && leaders.any(|o| sees(o, member.id)));
            status.leader == Some(self.claim.member)
                && status.term == self.claim.term
                && !status.faulty
                && self.claim.commit.0.saturating_sub(status.applied.0) <= LAG
                && linked
        });
        seen && !self.attested(member)
    }

    fn attested(&self, member: &ListedMember) -> bool {
        let adopts = self.wish.adopts.as_ref();
        let mut all = self.raw.iter().filter_map(|(_, heard)| spoken_for(&heard.observation, member, adopts));
        all.any(|m| m.state == IncarnationState::Lost && !m.slot.is_external())
    }

    fn dead(&self, member: &ListedMember) -> bool {
        self.attested(member) || (self.wish.lost_members.contains(&member.id) && !self.alive(member))
    }

    fn majority(&self, is_voter: impl Fn(&ListedMember) -> bool) -> Result<(), Violation> {
        let voters: Vec<&ListedMember> = self.claim.list.iter().filter(|m| is_voter(m)).collect();
        let alive = voters.iter().filter(|m| self.alive(m)).count();
        if alive * 2 > voters.len() {
            Ok(())
        } else {
            Err(Violation::NoMajority { alive, voters: voters.len() })
        }
    }

    fn removal(&self, target: &ListedMember, overridden: bool) -> Result<(), Violation> {
        let rest: Vec<&ListedMember> = self.claim.list.voters().filter(|m| m.id != target.id).collect();
        if rest.is_empty() || (rest.len() == 1 && !self.dead(target) && self.wish.slots.len() > 1) {
            return Err(Violation::TooFew);
        }
        if self.claim.member == target.id {
            return Err(Violation::Leader(target.id));
        }
        if !self.dead(target) && !overridden && rest.iter().any(|m| !self.alive(m)) {
            return Err(Violation::HealthyRemoval(target.id));
        }
        self.majority(|m| !m.learner && m.id != target.id)
    }

    fn calm(&self, overridden: bool) -> Result<(), Violation> {
        if overridden {
            return Ok(());
        }
        if self.fresh().flat_map(|o| &o.members).filter_map(|m| m.status.as_ref()).any(|s| s.alarm) {
            return Err(Violation::Alarm);
        }
        let concerned = |o: &&SiteObservation| self.wish.slots.iter().any(|slot| slot.site == o.site);
        let mut specs = self.fresh().filter(concerned).map(|o| o.spec);
        let first = specs.next();
        if specs.any(|spec| Some(spec) != first) { Err(Violation::Drift) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{IncarnationId, PeerUrl, Slot};
    use crate::membership::scenario::Story;

    fn remove(id: u64) -> StepKind {
        StepKind::Remove { member: MemberId(id), learner: false }
    }

    fn add(site: &str) -> StepKind {
        let site = SiteName::new(site).unwrap();
        let peer_url = PeerUrl(format!("https://main-{site}-0.{site}.quorate.test:2380").into());
        let zone = crate::federation::layout::default_zone();
        StepKind::AddLearner {
            slot: Slot { site, ordinal: 0, zone },
            peer_url,
            incarnation: IncarnationId(1),
        }
    }

    /// What a planner with one rule missing would ask for; the check alone must refuse each.
    #[test]
    fn planted_planner_bugs_are_caught_by_the_check_alone() {
        let three = "wish east west north\nmember 1 east leader\nmember 2 west\n";
        let promote = StepKind::Promote { member: MemberId(3) };
        let cases: Vec<(&str, String, StepKind, Violation)> = vec![
            (
                "I1: a second learner",
                format!("{three}member 3 north learner"),
                add("south"),
                Violation::SecondLearner,
            ),
            (
                "I2: no alive majority afterwards",
                format!("{three}member 3 north dead\nmember 4 south unknown"),
                remove(2),
                Violation::HealthyRemoval(MemberId(2)),
            ),
            (
                "I2: an add without a majority",
                "wish east west north\nmember 1 east leader\nmember 2 west unknown\nmember 3 north unknown"
                    .to_owned(),
                add("south"),
                Violation::NoMajority { alive: 1, voters: 3 },
            ),
            (
                "I3: a healthy voter removed while another one is silent",
                format!("{three}member 3 north unknown\nmember 4 south"),
                remove(4),
                Violation::HealthyRemoval(MemberId(4)),
            ),
            (
                "I9: a dead learner promoted",
                format!("{three}member 3 north learner unknown"),
                promote.clone(),
                Violation::NotPromotable(MemberId(3)),
            ),
            (
                "I9: an empty learner promoted",
                format!("{three}member 3 north learner different"),
                promote.clone(),
                Violation::NotPromotable(MemberId(3)),
            ),
            (
                "I10: the leader removed",
                format!("{three}member 3 north"),
                remove(1),
                Violation::Leader(MemberId(1)),
            ),
            (
                "I13: an alarm",
                format!("{three}member 3 north dead alarm\nmember 4 south alarm"),
                remove(3),
                Violation::Alarm,
            ),
            (
                "I13: specs differ",
                format!("{three}member 3 north dead\ndrift west"),
                remove(3),
                Violation::Drift,
            ),
            (
                "a voter promoted",
                format!("{three}member 3 north"),
                promote,
                Violation::WrongTarget(MemberId(3)),
            ),
            (
                "the last but one removed",
                "wish east west north\nmember 1 east leader\nmember 2 west".to_owned(),
                remove(2),
                Violation::TooFew,
            ),
            ("a URL added twice", format!("{three}member 3 north"), add("north"), Violation::UrlInUse),
        ];
        for (name, story, step, violation) in cases {
            assert_eq!(Story::read(&story).check(&step), Err(violation), "{name}");
        }
    }

    #[test]
    fn an_agent_without_the_lead_may_do_nothing() {
        let story =
            "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north dead\nsilent east";
        assert_eq!(Story::read(story).check(&remove(3)), Err(Violation::NotLeader));
    }

    /// The check must not lean on what it checks.
    #[test]
    fn it_imports_nothing_of_the_planner() {
        let source = include_str!("check.rs");
        let product = source.split("#[cfg(test)]").next().unwrap();
        let imports: Vec<&str> = product.lines().filter(|l| l.starts_with("use ")).collect();
        assert_eq!(imports.len(), 5, "{imports:?}");
        for import in imports {
            let allowed = [
                "federation::member",
                "federation::observed",
                "federation::view::Wish",
                "id::",
                "step::StepKind",
            ];
            assert!(allowed.iter().any(|a| import.contains(a)), "{import}");
        }
        for forbidden in ["plan::", "safety::", "quorum::", "View", "arithmetic"] {
            assert!(
                !product.contains(&format!("{forbidden}(")) && !product.contains(&format!("::{forbidden}")),
                "{forbidden}"
            );
        }
    }
}
