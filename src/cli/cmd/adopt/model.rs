//! The steps that the agents will take, from the planner itself, on a model in which every site is there and every
//! preparation done. Pure.

use std::sync::Arc;

use quorate_api::manifest::Manifest;
use quorate_core::condition::{PlanLine, plan_lines};
use quorate_core::federation::observed::{DataCheck, Link, SiteObservation, SlotOffer};
use quorate_core::federation::view::{Life, MemberView, SiteView, View, Wish};
use quorate_core::id::{Generation, IncarnationId, Index, MemberId, PeerUrl, Revision, SiteName, Slot, Term};
use quorate_core::membership::plan;
use quorate_core::membership::safety;
use quorate_core::node;

use super::judge;
use super::look::Seen;

/// Longer than anything that a rule asks for.
const LONG_MS: u64 = 60_000;

pub(super) fn plan(seen: &Seen, wanted: &Manifest, site: &SiteName) -> Vec<PlanLine> {
    let view = view(seen, wanted, site);
    let (steps, _) = plan::plan(&view, &wish(wanted));
    let mut lines = plan_lines(&steps);
    for line in &mut lines {
        // The URLs of other sites are theirs to say.
        if let Some((step, _)) = line.step.split_once(" https://") {
            line.step = step.to_owned();
        }
        line.waits.clear();
    }
    lines
}

fn wish(wanted: &Manifest) -> Wish {
    Wish {
        generation: Generation(1),
        slots: wanted.layout.slots.clone(),
        allow_single_voter: wanted.layout.allow_single_voter,
        lost_members: Vec::new(),
        exception: None,
        adopts: wanted.spec.adopts().cloned(),
        max_backup_age_s: None,
        pending: None,
        retimed: None,
        url_changes: Vec::new(),
        leader: None,
        restarting: None,
        deadline_ms: 7_000,
        options: node::options(&wanted.spec, None),
    }
}

fn view(seen: &Seen, wanted: &Manifest, site: &SiteName) -> View {
    let list = judge::list(seen);
    let leader = seen.members.iter().filter_map(|m| m.status.as_ref()).map(|s| MemberId(s.leader)).next();
    let members: Vec<MemberView> = list
        .iter()
        .map(|m| MemberView {
            moves_to: None,
            restart: false,
            id: m.id,
            peer_url: m.peer_url.clone(),
            slot: Some(Slot::external(site, m.id)),
            learner: m.learner,
            named: true,
            life: Life::Alive,
            lag: Some(0),
            list: Some(list.digest()),
            says_learner: Some(m.learner),
            ready: true,
            alarm: false,
            downgrading: false,
            version: None,
            certificates_good: true,
            incarnation: None,
            linked_ms: LONG_MS,
            options: None,
        })
        .collect();
    let mut names: Vec<SiteName> = wanted.spec.sites().cloned().collect();
    names.sort();
    let links: Vec<Link> = members
        .iter()
        .map(|m| Link {
            member: m.id,
            misses: 0,
            good_ms: safety::PROVEN_MS,
            rtt_us: 1,
            least_us: 1,
            stale: false,
        })
        .collect();
    let sites = names.into_iter().map(|name| {
        let offers = wanted.layout.slots.iter().filter(|slot| slot.site == name);
        let offer = |slot: &Slot| SlotOffer {
            slot: slot.clone(),
            peer_url: PeerUrl(format!("https://{}", slot.name(&wanted.key.name)).into()),
            incarnation: IncarnationId(1),
        };
        let observation = SiteObservation {
            spec: Some(wanted.digest),
            offers: offers.map(offer).collect(),
            links: links.clone(),
            ..SiteObservation::empty(name.clone())
        };
        SiteView { name, age_ms: Some(0), observation: Some(Arc::new(observation)) }
    });
    let checks = members.iter().map(|m| DataCheck {
        member: m.id,
        revision: Revision(1),
        equal: true,
        as_voter: !m.learner,
    });
    View {
        me: site.clone(),
        sites: sites.collect(),
        own_leads: true,
        leader,
        term: Term(1),
        commit: Index(1),
        checks: checks.collect(),
        members,
        list: Some(list),
        learner: None,
        open: None,
        since_change_ms: LONG_MS,
        settle_ms: 5_000,
        no_quorum_ms: 0,
        leader_changes: 0,
        freed: Vec::new(),
        removed: Arc::default(),
        backing_off: Vec::new(),
    }
}
