//! What if: the arithmetic and the planner on a view in which sites, zones or members are lost. Pure; `quorate simulate`.

use serde::Serialize;

use crate::federation::view::{HEARD_MS, Life, View, Wish};
use crate::id::{MemberId, SiteName, ZoneName};
use crate::membership::plan::{self, Planned};
use crate::membership::quorum::{Arithmetic, arithmetic};
use crate::membership::step::Decision;
use crate::reason::Code;

/// Something that is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// A site with its agent and all its members.
    Site(SiteName),
    /// A zone, of one site or of all that have one of this name; agents stay.
    Zone(Option<SiteName>, ZoneName),
    /// One member.
    Member(MemberId),
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Site(site) => write!(f, "site {site}"),
            Self::Zone(Some(site), zone) => write!(f, "zone {site}/{zone}"),
            Self::Zone(None, zone) => write!(f, "zone {zone}"),
            Self::Member(id) => write!(f, "member {id}"),
        }
    }
}

/// Nothing of that kind takes part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no member is in {0}")]
pub struct Unknown(pub Loss);

/// What would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// Now.
    pub before: Arithmetic,
    /// After the loss.
    pub after: Arithmetic,
    /// Writes would go on.
    pub writable: bool,
    /// The members that would be lost, learners included.
    pub lost: Vec<MemberId>,
    /// The raft leader is among them: there is an election first.
    pub election: bool,
    /// What quorate would do while nobody says that they are gone for good.
    pub silent: (Vec<Planned>, Decision),
    /// What it would do if a person listed the lost members in `lostMembers`; none while writes have stopped.
    pub declared: Option<(Vec<Planned>, Decision)>,
    /// What a second loss would do.
    pub second: Vec<Second>,
}

/// A further loss.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Second {
    /// Of what.
    pub what: String,
    /// The arithmetic after both.
    pub arithmetic: Arithmetic,
    /// Writes would go on.
    pub writable: bool,
}

/// Loses all of it at once.
///
/// # Errors
/// The first loss that no member belongs to.
pub fn simulate(view: &View, wish: &Wish, losses: &[Loss]) -> Result<Outlook, Unknown> {
    let mut model = view.clone();
    for loss in losses {
        lose(&mut model, loss).ok_or_else(|| Unknown(loss.clone()))?;
    }
    let before = arithmetic(view);
    let lost: Vec<MemberId> = view
        .members
        .iter()
        .filter(|m| m.life.alive() && model.member(m.id).is_some_and(|now| !now.life.alive()))
        .map(|m| m.id)
        .collect();
    let election = view.leader.is_some_and(|leader| lost.contains(&leader));
    elect(&mut model);
    let after = arithmetic(&model);
    let writable = model.leader.is_some() && after.margin() >= 0;
    let silent = plan::plan(&model, wish);
    let declared = writable.then(|| {
        let mut model = model.clone();
        let gone = model.members.iter_mut().filter(|m| lost.contains(&m.id));
        gone.for_each(|m| m.life = Life::DeadDeclared);
        plan::plan(&model, wish)
    });
    Ok(Outlook { before, after, writable, lost, election, silent, declared, second: second(&model) })
}

fn hits(loss: &Loss, member: &crate::federation::view::MemberView) -> bool {
    match loss {
        Loss::Site(site) => member.site() == Some(site),
        Loss::Zone(site, zone) => member
            .slot
            .as_ref()
            .is_some_and(|slot| slot.zone == *zone && site.as_ref().is_none_or(|site| slot.site == *site)),
        Loss::Member(id) => member.id == *id,
    }
}

/// None if nothing is hit.
fn lose(model: &mut View, loss: &Loss) -> Option<()> {
    let code = match loss {
        Loss::Site(_) => Code::PeerUnreachable,
        Loss::Zone(..) | Loss::Member(_) => Code::Starting,
    };
    let mut hit = false;
    for member in model.members.iter_mut().filter(|member| hits(loss, member)) {
        hit = true;
        member.lag = None;
        member.linked_ms = 0;
        if member.life.alive() {
            member.life = Life::Unknown(code);
        }
    }
    if let Loss::Site(name) = loss
        && let Some(site) = model.sites.iter_mut().find(|site| site.name == *name)
    {
        hit = true;
        site.age_ms = Some(site.age_ms.unwrap_or(0).saturating_add(HEARD_MS));
    }
    hit.then_some(())
}

/// A lost leader is followed by the alive voter that is closest, if a majority is left to elect it.
fn elect(model: &mut View) {
    if arithmetic(model).margin() < 0 {
        (model.leader, model.own_leads) = (None, false);
        model.no_quorum_ms = u64::MAX;
        return;
    }
    let leads = model.leader.and_then(|id| model.member(id)).is_some_and(|m| m.life.alive());
    if !leads {
        let next = model.voters().filter(|m| m.life.alive()).min_by_key(|m| (m.lag, m.id)).map(|m| m.id);
        model.leader = next;
    }
}

fn second(model: &View) -> Vec<Second> {
    let now = arithmetic(model);
    let mut domains: Vec<(String, usize)> = Vec::new();
    let mut count = |name: String| match domains.iter_mut().find(|(known, _)| *known == name) {
        Some((_, members)) => *members += 1,
        None => domains.push((name, 1)),
    };
    let alive = || model.voters().filter(|m| m.life.alive()).filter_map(|m| m.slot.as_ref());
    alive().for_each(|slot| count(format!("site {}", slot.site)));
    // Zones only where a site has more than one.
    let several = |site: &SiteName| {
        let mut zones = alive().filter(|slot| slot.site == *site).map(|slot| &slot.zone);
        let first = zones.next();
        zones.any(|zone| Some(zone) != first)
    };
    alive()
        .filter(|slot| several(&slot.site))
        .for_each(|slot| count(format!("zone {}/{}", slot.site, slot.zone)));
    let row = |(what, members): (String, usize)| {
        let arithmetic = Arithmetic::new(now.voters, now.alive.saturating_sub(members));
        Second { what, arithmetic, writable: now.margin() >= 0 && arithmetic.margin() >= 0 }
    };
    let member = (now.alive > 0).then(|| ("any 1 member".to_owned(), 1));
    member.into_iter().chain(domains).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::scenario::Story;

    fn outlook(story: &str, losses: &[Loss]) -> Outlook {
        let story = Story::read(story);
        simulate(&story.view(), &story.wish(), losses).unwrap()
    }

    fn site(name: &str) -> Loss {
        Loss::Site(SiteName::new(name).unwrap())
    }

    const THREE: &str =
        "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north\noffer south";

    #[test]
    fn one_site_of_three_may_be_lost_and_no_second_one() {
        let found = outlook(THREE, &[site("west")]);
        assert_eq!((found.before.margin(), found.after.margin()), (1, 0));
        assert!(found.writable && !found.election);
        assert_eq!(found.lost, [MemberId(2)]);
        assert!(found.silent.0.is_empty());
        assert_eq!(found.silent.1.reason().map(|r| r.code), Some(Code::LostMemberUnconfirmed));
        assert!(found.second.iter().all(|second| !second.writable), "{:?}", found.second);
        assert_eq!(found.second.len(), 3, "any member, and the two sites that are left");
    }

    #[test]
    fn the_leaders_site_costs_an_election() {
        let found = outlook(THREE, &[site("east")]);
        assert!(found.writable && found.election);
    }

    #[test]
    fn two_of_three_stop_writes_and_nothing_is_touched() {
        let found = outlook(THREE, &[site("west"), Loss::Member(MemberId(3))]);
        assert!(!found.writable);
        assert_eq!(found.silent.1.reason().map(|r| r.code), Some(Code::QuorumLost));
        assert_eq!(found.declared, None);
        assert!(found.second.iter().all(|second| !second.writable));
    }

    #[test]
    fn five_over_three_survive_a_site_and_not_a_member_more() {
        let five =
            "wish a a-1 b b-1 c\nmember 1 a leader\nmember 2 a-1\nmember 3 b\nmember 4 b-1\nmember 5 c";
        let found = outlook(five, &[site("a")]);
        assert!(found.writable && found.election);
        assert_eq!(found.after.margin(), 0);
        let found = outlook(five, &[site("c")]);
        assert_eq!(found.after.margin(), 1);
        let writable = |what: &str| found.second.iter().find(|s| s.what == what).unwrap().writable;
        assert!(writable("any 1 member") && !writable("site a"));
    }

    #[test]
    fn zones_are_lost_by_name_and_listed_where_there_are_several() {
        let zones = "wish e/x e/y-1 e/z-2\nmember 1 e/x leader\nmember 2 e/y-1\nmember 3 e/z-2";
        let zone = |name: &str| Loss::Zone(None, ZoneName::new(name).unwrap());
        let found = outlook(zones, &[zone("y")]);
        assert!(found.writable);
        assert!(found.second.iter().any(|second| second.what == "zone e/x" && !second.writable));
        let story = Story::read(zones);
        let unknown = simulate(&story.view(), &story.wish(), &[zone("q")]).unwrap_err();
        assert_eq!(unknown.to_string(), "no member is in zone q");
    }

    #[test]
    fn what_a_declaration_would_bring_is_told_while_writes_go_on() {
        let spare = "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north";
        let found = outlook(spare, &[Loss::Member(MemberId(2))]);
        let (_, end) = found.declared.unwrap();
        assert!(end.reason().is_some() || end == Decision::Done, "{end:?}");
    }
}
