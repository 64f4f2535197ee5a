//! What a changed file would bring about: the planner on the present view with another wish. Nothing is done, and nobody
//! is asked.

use std::sync::Arc;

use crate::federation::layout::Layout;
use crate::federation::observed::{ListedMember, MemberList, SiteObservation, SlotOffer, Version};
use crate::federation::spec::Spec;
use crate::federation::view::{Life, MemberView, Pending, SiteView, View, Wish};
use crate::id::{Digest, Generation, IncarnationId, Index, MemberId, PeerUrl, SiteName, Slot, Term};
use crate::membership::safety::PROVEN_MS;
use crate::node;
use crate::reason::Code;

/// A spec that is not in force, with what follows from it.
#[derive(Debug, Clone, Copy)]
pub struct Draft<'a> {
    /// The spec.
    pub spec: &'a Spec,
    /// Its digest.
    pub digest: Digest,
    /// Its layout.
    pub layout: &'a Layout,
}

/// View and wish as they would be as soon as this site held the draft.
pub fn drafted(view: &View, wish: &Wish, draft: Draft<'_>) -> (View, Wish) {
    let Draft { spec, digest, layout } = draft;
    let (mut view, mut wish) = (view.clone(), wish.clone());
    let me = view.me.clone();
    if let Some(own) = view.sites.iter_mut().find(|site| site.name == me).and_then(|s| s.observation.as_mut())
    {
        Arc::make_mut(own).spec = Some(digest);
    }
    wish.lost_members = spec.lost_members().collect();
    wish.exception.clone_from(&spec.exception);
    for member in &mut view.members {
        let listed = wish.lost_members.contains(&member.id);
        member.life = match member.life {
            Life::Unknown(_) if listed => Life::DeadDeclared,
            Life::DeadDeclared if !listed => Life::Unknown(Code::PeerUnreachable),
            life => life,
        };
    }
    let timing = wish.pending.as_ref().and_then(|pending| pending.timing);
    wish.pending = (effective(&view) != Some(digest)).then(|| {
        let sites: Vec<SiteName> = spec.sites().cloned().collect();
        let lost = |site: &&SiteName| {
            let mut here = view.members.iter().filter(|m| m.site() == Some(*site)).peekable();
            here.peek().is_some() && here.all(|m| wish.lost_members.contains(&m.id))
        };
        let lost_sites = sites.iter().filter(lost).cloned().collect();
        let (slots, allow_single_voter) = (layout.slots.clone(), layout.allow_single_voter);
        let seeded = view.site(&me).and_then(|site| site.observation.as_ref()?.record.seeded);
        let cluster = seeded.map(|seeded| seeded.cluster);
        let other_cluster = spec.adopt.as_ref().is_some_and(|adopt| Some(adopt.cluster_id) != cluster);
        let adopts = spec.adopts().cloned();
        Pending { digest, sites, slots, allow_single_voter, lost_sites, timing, adopts, other_cluster }
    });
    (view, wish)
}

/// The newest effective spec that anybody tells of.
fn effective(view: &View) -> Option<Digest> {
    let records = view.sites.iter().filter_map(|site| site.observation.as_ref()).map(|o| &o.record);
    records.max_by_key(|record| record.generation)?.effective
}

/// A federation that does not exist yet, as it will be when its seed has started: the rest is the planner's. A foreign etcd
/// stands for the seed; how many members it has can only be seen there, so it has one here.
pub fn unborn(draft: Draft<'_>) -> (View, Wish) {
    const SEED: MemberId = MemberId(1);
    const TERM: Term = Term(2);
    let Draft { spec, digest, layout } = draft;
    let first = spec.adopts().map_or_else(|| layout.seed.clone(), |site| Slot::external(site, SEED));
    let me = first.site.clone();
    let options = node::options(spec, None);
    let url = PeerUrl("".into());
    let list = MemberList::new(vec![ListedMember {
        id: SEED,
        name: "seed".into(),
        peer_url: url.clone(),
        learner: false,
    }]);
    let seed = MemberView {
        id: SEED,
        peer_url: url.clone(),
        slot: Some(first.clone()),
        learner: false,
        named: true,
        life: Life::Alive,
        lag: Some(0),
        list: Some(list.digest()),
        says_learner: Some(false),
        ready: true,
        alarm: false,
        downgrading: false,
        version: Some(Version::default()),
        certificates_good: true,
        incarnation: None,
        linked_ms: PROVEN_MS,
        options: Some(options.clone()),
        moves_to: None,
        restart: false,
    };
    let offer =
        |slot: &Slot| SlotOffer { slot: slot.clone(), peer_url: url.clone(), incarnation: IncarnationId(0) };
    let site = |name: &SiteName| SiteView {
        name: name.clone(),
        age_ms: Some(0),
        observation: Some(Arc::new(SiteObservation {
            spec: Some(digest),
            // Nothing is born before every site is there.
            offers: layout
                .slots
                .iter()
                .filter(|slot| slot.site == *name && **slot != first)
                .map(offer)
                .collect(),
            ..SiteObservation::empty(name.clone())
        })),
    };
    let view = View {
        me,
        sites: spec.sites().map(site).collect(),
        list: Some(list),
        own_leads: true,
        leader: Some(SEED),
        term: TERM,
        commit: Index(1),
        members: vec![seed],
        learner: None,
        checks: Vec::new(),
        open: None,
        since_change_ms: u64::MAX,
        settle_ms: 0,
        no_quorum_ms: 0,
        leader_changes: 0,
        freed: Vec::new(),
        removed: Arc::default(),
        backing_off: Vec::new(),
    };
    let wish = Wish {
        generation: Generation(1),
        slots: layout.slots.clone(),
        allow_single_voter: layout.allow_single_voter,
        lost_members: Vec::new(),
        exception: None,
        adopts: spec.adopts().cloned(),
        max_backup_age_s: None,
        pending: None,
        retimed: None,
        url_changes: Vec::new(),
        leader: None,
        deadline_ms: 0,
        options,
        restarting: None,
    };
    (view, wish)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::federation::spec::AdoptSpec;
    use crate::id::ClusterId;
    use crate::membership::plan::{self, Planned, Remark};
    use crate::membership::scenario::Story;
    use crate::membership::step::{Decision, StepKind};

    fn spec(sites: &[&str]) -> Spec {
        let clusters: Vec<_> = sites.iter().map(|site| serde_json::json!({"name": site})).collect();
        serde_json::from_value(serde_json::json!({"clusters": clusters})).unwrap()
    }

    fn preview(story: &str, spec: &Spec) -> (Vec<Planned>, Decision) {
        let story = Story::read(story);
        let layout = spec.layout().unwrap();
        let draft = Draft { spec, digest: Digest([7; 32]), layout: &layout };
        let (view, wish) = drafted(&story.view(), &story.wish(), draft);
        plan::plan(&view, &wish)
    }

    fn kinds(steps: &[Planned]) -> Vec<&'static str> {
        steps.iter().map(|planned| planned.step.kind.name()).collect()
    }

    const THREE: &str = "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north";

    #[test]
    fn a_swap_is_foreseen_to_its_end_with_what_it_waits_for() {
        let (steps, end) = preview(THREE, &spec(&["east", "north", "south"]));
        assert_eq!(end, Decision::Done);
        assert_eq!(kinds(&steps), ["ActivateSpec", "AddLearner", "Promote", "RemoveVoter"]);
        let codes: Vec<Vec<Code>> =
            steps.iter().map(|p| p.waits.iter().map(|reason| reason.code).collect()).collect();
        assert_eq!(codes, [vec![Code::ActivationPending], vec![Code::SlotNotReady], vec![], vec![]]);
        assert!(steps[2].invented && !steps[3].invented);
        assert_eq!(steps[2].place.as_ref().unwrap().site.as_str(), "south");
        assert_eq!(steps[3].place.as_ref().unwrap().site.as_str(), "west");
        assert_eq!(steps[2].remarks, [Remark::EvenState(4)]);
        assert_eq!(steps[3].remarks, []);
        assert!(steps.iter().all(|planned| planned.step.after.margin() >= 1));
    }

    #[test]
    fn a_file_that_is_in_force_already_changes_nothing() {
        let story = Story::read(THREE);
        let (mut view, wish) = (story.view(), story.wish());
        let spec = spec(&["east", "north", "west"]);
        let layout = spec.layout().unwrap();
        for site in &mut view.sites {
            let observation = Arc::make_mut(site.observation.as_mut().unwrap());
            observation.spec = Some(Digest([7; 32]));
            let record = Arc::make_mut(&mut observation.record);
            (record.generation, record.effective) = (Generation(4), Some(Digest([7; 32])));
        }
        let draft = Draft { spec: &spec, digest: Digest([7; 32]), layout: &layout };
        let (view, wish) = drafted(&view, &wish, draft);
        assert_eq!(wish.pending, None);
        assert_eq!(plan::plan(&view, &wish), (Vec::new(), Decision::Done));
    }

    #[test]
    fn a_silent_site_is_not_trusted_to_do_its_part() {
        let silent =
            "wish east west north\nmember 1 east leader\nmember 2 west unknown\nmember 3 north\nsilent west";
        let (steps, end) = preview(silent, &spec(&["east", "north", "south"]));
        // Two of three hold it: it becomes effective, and then a live voter is missing.
        assert_eq!(kinds(&steps), ["ActivateSpec"]);
        assert!(end.reason().is_some(), "{end:?}");
    }

    #[test]
    fn a_declared_loss_acts_in_the_preview_as_it_will_act_from_the_file() {
        let silent =
            "wish east west north\nmember 1 east leader\nmember 2 west unknown\nmember 3 north\nsilent west";
        let mut spec = spec(&["east", "north", "south"]);
        spec.clusters[0].lost_members = Some(vec![MemberId(2)]);
        let (steps, end) = preview(silent, &spec);
        assert_eq!(end, Decision::Done);
        assert!(kinds(&steps).contains(&"RemoveVoter"), "{steps:?}");
    }

    #[test]
    fn going_down_to_one_voter_is_refused_with_the_flag_named() {
        let mut one = spec(&["east"]);
        one.members = Some(1);
        // The layout would not accept it without the flag; the planner has a rule of its own.
        let layout = { Spec { allow_single_voter: Some(true), ..one.clone() }.layout().unwrap() };
        let layout = Layout { allow_single_voter: false, ..layout };
        let story = Story::read(THREE);
        let draft = Draft { spec: &one, digest: Digest([7; 32]), layout: &layout };
        let (view, wish) = drafted(&story.view(), &story.wish(), draft);
        let (_, end) = plan::plan(&view, &wish);
        assert_eq!(end.reason().map(|reason| reason.code), Some(Code::SingleVoterNotAllowed), "{end:?}");
    }

    #[test]
    fn a_birth_is_foreseen_learner_by_learner() {
        for sites in [vec!["a"], vec!["a", "b"], vec!["a", "b", "c"], vec!["a", "b", "c", "d", "e"]] {
            let spec = spec(&sites);
            let layout = spec.layout().unwrap();
            let draft = Draft { spec: &spec, digest: Digest([7; 32]), layout: &layout };
            let (view, wish) = unborn(draft);
            let (steps, end) = plan::plan(&view, &wish);
            assert_eq!(end, Decision::Done, "{sites:?}: {steps:?}");
            let added = steps.iter().filter(|p| matches!(p.step.kind, StepKind::AddLearner { .. })).count();
            assert_eq!(added, layout.voters() - 1, "{sites:?}");
            assert!(steps.iter().all(|planned| planned.waits.is_empty()), "{steps:?}");
        }
    }

    #[test]
    fn a_foreign_etcd_is_foreseen_to_leave() {
        let cluster_id = ClusterId(0xc);
        let cluster = SiteName::new("b").unwrap();
        let adopt = AdoptSpec { cluster, cluster_id, endpoints: Vec::new(), peer_ca: String::new() };
        let layout = spec(&["a", "b", "c"]).layout().unwrap();
        let spec = Spec { adopt: Some(adopt), ..spec(&["a", "b", "c"]) };
        let draft = Draft { spec: &spec, digest: Digest([7; 32]), layout: &layout };
        let (view, wish) = unborn(draft);
        let (steps, end) = plan::plan(&view, &wish);
        assert_eq!(end, Decision::Done, "{steps:?}");
        let added = steps.iter().filter(|p| matches!(p.step.kind, StepKind::AddLearner { .. })).count();
        assert_eq!(added, layout.voters());
        let last = steps.last().map(|planned| &planned.step.kind);
        assert_eq!(last, Some(&StepKind::Remove { member: MemberId(1), learner: false }));
    }
}
