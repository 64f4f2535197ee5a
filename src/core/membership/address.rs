//! Which voters are to have another peer URL, and what is proven of it (rule I16).

use crate::federation::view::View;
use crate::id::{MemberId, PeerUrl};
use crate::membership::safety::PROVEN_MS;

/// The wished changes: voter, new URL, and whether the agent of every other voter has reached the voter there for as long
/// as a step asks for.
///
/// etcd's peer port tells the cluster's id, but not its own member's. What proves the member is the certificate: its host
/// is that of the slot, and the agent that probes believes only the root of the slot's own site.
pub fn url_changes(view: &View) -> Vec<(MemberId, PeerUrl, bool)> {
    let wished = view.voters().filter_map(|m| {
        let url = m.moves_to.as_ref().filter(|url| **url != m.peer_url)?;
        Some((m.id, url.clone()))
    });
    wished
        .map(|(id, url)| {
            let mut others = view.voters().filter(|other| other.id != id);
            let proven = others.all(|other| {
                let said = other.site().and_then(|site| view.heard(site));
                said.is_some_and(|o| {
                    let good = |r: &crate::federation::observed::Reached| {
                        r.member == id && r.peer_url == url && r.good_ms >= PROVEN_MS
                    };
                    o.reached.iter().any(good)
                })
            });
            (id, url, proven)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::federation::observed::Reached;
    use crate::membership::plan;
    use crate::membership::scenario::Story;
    use crate::membership::step::{Decision, StepKind};
    use crate::reason::Code;

    const THREE: &str = "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north\n";

    fn view(story: &str, reached: &[(&str, u64)]) -> View {
        let mut view = Story::read(story).view();
        let url = PeerUrl("https://main-west-0.new.test:2680".into());
        view.members[1].moves_to = Some(url.clone());
        for (site, good_ms) in reached {
            let site = view.sites.iter_mut().find(|s| s.name.as_str() == *site).unwrap();
            let reached = Reached { member: MemberId(2), peer_url: url.clone(), good_ms: *good_ms };
            Arc::make_mut(site.observation.as_mut().unwrap()).reached.push(reached);
        }
        view
    }

    fn decide(story: &str, reached: &[(&str, u64)]) -> Decision {
        let view = view(story, reached);
        let mut wish = Story::read(story).wish();
        wish.url_changes = url_changes(&view);
        plan::next(&view, &wish)
    }

    #[test]
    fn every_other_voter_must_have_reached_the_new_url_for_a_while() {
        let good = [("east", PROVEN_MS), ("north", PROVEN_MS)];
        let Decision::Step(step) = decide(THREE, &good) else { panic!("{:?}", decide(THREE, &good)) };
        assert!(matches!(step.kind, StepKind::UpdateUrl { member: MemberId(2), .. }));
        for reached in [&[][..], &good[..1], &[("east", PROVEN_MS), ("north", PROVEN_MS - 1)][..]] {
            assert_eq!(decide(THREE, reached).reason().unwrap().code, Code::UpdateUnproven, "{reached:?}");
        }
        let silent = THREE.replace("member 3 north", "member 3 north unknown");
        assert_eq!(decide(&silent, &good).reason().unwrap().code, Code::UpdateUnproven);
        // It alone: nobody else has to reach it.
        assert!(
            url_changes(&view("wish east west\nmember 2 west leader\nmember 3 east learner\n", &[]))
                .is_empty()
        );
    }

    #[test]
    fn the_listed_url_is_no_change() {
        let mut view = view(THREE, &[]);
        view.members[1].moves_to = Some(view.members[1].peer_url.clone());
        assert!(url_changes(&view).is_empty());
    }
}
