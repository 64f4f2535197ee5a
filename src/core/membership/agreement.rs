//! Which spec the sites agree on, counted over the CRs that are heard now (decisions.md 1, safety.md 4).

use crate::federation::view::{SiteView, View, Wish};
use crate::id::Digest;
use crate::membership::quorum::quorum;
use crate::reason::Code;

/// The digest that the CRs of sites with a quorum of the voters hold, if there is one: it may become effective, whatever
/// the CR beside the leader says.
pub fn held_by_quorum(view: &View) -> Option<Digest> {
    let need = quorum(view.voters().count());
    let held = |digest: Digest| -> usize {
        let holds = |site: &&SiteView| view.heard(&site.name).is_some_and(|o| o.spec == Some(digest));
        view.sites.iter().filter(holds).map(|site| view.voters_at(&site.name)).sum()
    };
    let digests = view.sites.iter().filter_map(|site| view.heard(&site.name)?.spec);
    digests.into_iter().find(|digest| held(*digest) >= need)
}

/// The first site of the effective spec that is heard and does not hold the spec that most of them hold, and what is wrong
/// with it. Of two halves the one with the effective spec is right, else the one with the first site by name; a site with a
/// spec is right before any number without one.
pub fn differing<'a>(view: &'a View, wish: &Wish) -> Option<(&'a SiteView, Code)> {
    let in_wish = |site: &&SiteView| wish.slots.iter().any(|slot| slot.site == site.name);
    let heard = || view.sites.iter().filter(|site| site.heard()).filter(in_wish);
    let spec = |site: &SiteView| site.observation.as_ref().and_then(|o| o.spec);
    let own = view.site(&view.me).and_then(|site| site.observation.as_ref());
    let effective = own.and_then(|o| o.record.effective);
    let weight = |site: &SiteView| {
        let said = spec(site);
        let holders = heard().filter(|other| spec(other) == said).count();
        (said.is_some(), holders, effective.is_some() && said == effective)
    };
    // `max_by_key` takes the last of equals, the first by name is wanted.
    let most = heard().rev().max_by_key(|site| weight(site)).map(spec)?;
    let wrong = heard().find(|site| spec(site) != most || most.is_none())?;
    let code = match &wrong.observation {
        Some(o) if o.spec.is_some() => Code::SpecDrift,
        Some(o) if o.deleted => Code::SpecDeleted,
        _ => Code::SpecAbsent,
    };
    Some((wrong, code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::scenario::Story;

    fn named(facts: &str) -> Option<String> {
        let story = Story::read(facts);
        differing(&story.view(), &story.wish()).map(|(site, _)| site.name.to_string())
    }

    #[test]
    fn the_site_that_differs_is_named_wherever_it_stands() {
        let three = "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north\n";
        assert_eq!(named(three), None);
        for site in ["east", "north", "west"] {
            assert_eq!(named(&format!("{three}drift {site}")).as_deref(), Some(site));
            assert_eq!(named(&format!("{three}drift {site}\nsilent {site}")), None, "it is not heard");
        }
        assert_eq!(named(&format!("{three}drift east west")).as_deref(), Some("north"));
        let leaving = format!("{three}member 4 south\ndrift south");
        assert_eq!(named(&leaving), None, "south is not in the effective spec any more");
        let two = "wish east west\nmember 1 east leader\nmember 2 west\ndrift east";
        assert_eq!(named(two).as_deref(), Some("west"), "of two halves the first by name");
    }

    #[test]
    fn a_site_without_a_spec_is_told_from_one_with_another() {
        let story = Story::read("wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north");
        let without = |gone: &[&str], deleted: bool| {
            let mut view = story.view();
            for site in view.sites.iter_mut().filter(|site| gone.contains(&site.name.as_str())) {
                let observation = std::sync::Arc::make_mut(site.observation.as_mut().unwrap());
                (observation.spec, observation.deleted) = (None, deleted);
            }
            differing(&view, &story.wish()).map(|(site, code)| (site.name.to_string(), code))
        };
        assert_eq!(without(&["east"], false), Some(("east".to_owned(), Code::SpecAbsent)));
        assert_eq!(without(&["west"], true), Some(("west".to_owned(), Code::SpecDeleted)));
        let gone = without(&["north", "west"], true);
        assert_eq!(gone, Some(("north".to_owned(), Code::SpecDeleted)), "east still has one");
        assert_eq!(without(&["east", "north", "west"], true), Some(("east".to_owned(), Code::SpecDeleted)));
    }

    #[test]
    fn a_quorum_of_voters_may_hold_what_the_leader_does_not() {
        let three = "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north\n";
        let held = |facts: &str| held_by_quorum(&Story::read(&format!("{three}{facts}")).view());
        assert_eq!(held(""), Some(Digest([0; 32])));
        assert_eq!(held("drift west north"), Some(Digest([1; 32])));
        assert_eq!(held("drift west north\nsilent west"), None);
        assert_eq!(held("drift west"), Some(Digest([0; 32])));
    }
}
