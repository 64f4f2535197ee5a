//! One function per rule of safety.md section 3 that concerns a planned step. Each returns `Ok` or says which rule,
//! which member and which site stand against it.
//!
//! Rules that guard something else live where that is decided: I5 in [`crate::identity`], I7 in [`crate::ballot`],
//! I8's acknowledgements and fence and I14's repetition in [`crate::executor`] and [`crate::intent::resolve`],
//! I18 in [`crate::intent::record`].

use crate::federation::observed::DataCheck;
use crate::federation::view::{Life, MemberView, View, Wish};
use crate::id::{MemberId, PeerUrl, SiteName};
use crate::intent::{Change, IntentKind, Operation, OperationKind};
use crate::membership::agreement;
use crate::membership::quorum::{after, arithmetic, concentration, quorum};
use crate::membership::step::StepKind;
use crate::reason::{Code, Reason, Rule};
use crate::timing::MAX_VOTER_RTT_MS;

/// Rule I6: etcd salts member ids with whole seconds, so one URL must rest for more than one second between removal
/// and addition, or the new member gets the removed id (etcd-facts.md section 2).
pub const URL_REST_MS: u64 = 1_100;

/// Rule I9: this many good samples in a row, over at least [`PROVEN_MS`].
pub const GOOD_SAMPLES: u32 = 3;

/// Rule I9 and decisions.md 3: a single good look may be luck; three over three seconds are not.
pub const PROVEN_MS: u64 = 3_000;

/// Rule I10: leadership moves only to a voter this close, so that the transfer needs one heartbeat.
pub const TRANSFEREE_LAG: u64 = 100;

/// Rule I12: how long a new voter may be missing before the even state is left backwards.
pub const EVEN_STATE_MS: u64 = 60_000;

type Verdict = Result<(), Reason>;

/// A step that is judged.
#[derive(Debug, Clone, Copy)]
pub struct Proposed<'a> {
    /// What was seen.
    pub view: &'a View,
    /// What is wanted.
    pub wish: &'a Wish,
    /// The step.
    pub kind: &'a StepKind,
    /// Its operation.
    pub operation: Operation,
}

fn about(code: Code, member: &MemberView) -> Reason {
    Reason::new(code).member(member.id).maybe_site(member.site())
}

impl Proposed<'_> {
    /// All rules, in the order in which a person wants to hear of them.
    pub fn permitted(self) -> Verdict {
        i11_quorum_lost_hands_off(self.view)?;
        i8_only_the_executor(self.view)?;
        i1_single_flight(self)?;
        if !self.kind.changes_membership() {
            return i10_transferee(self);
        }
        self.overridable(Rule::I13, i13_freeze(self.view, self.wish))?;
        i15_settled(self.view)?;
        i6_no_id_reuse(self)?;
        i16_updates_are_for_voters(self)?;
        i9_promotable(self)?;
        within_reach(self)?;
        i2_new_quorum_first(self)?;
        self.overridable(Rule::I3, i3_no_healthy_removal_while_degraded(self))?;
        i4_domain_bound(self)?;
        i12_bounded_even_state(self)?;
        i10_leader_out_of_the_way(self)?;
        self.overridable(Rule::I17, i17_backup_first(self))
    }

    /// A person may set aside I3, I13 and I17 for one operation.
    fn overridable(self, rule: Rule, verdict: Verdict) -> Verdict {
        if verdict.is_err() && self.exempt(rule) { Ok(()) } else { verdict }
    }

    /// Whether the exception in the CR names this rule and this operation.
    pub fn exempt(self, rule: Rule) -> bool {
        self.wish
            .exception
            .as_ref()
            .is_some_and(|e| e.rule == rule && e.operation == self.operation.to_string())
    }

    /// Whether the step is permitted only thanks to the exception.
    pub fn needs_exception(self) -> bool {
        let broken = |rule: Rule, verdict: Verdict| verdict.is_err() && self.exempt(rule);
        self.kind.changes_membership()
            && (broken(Rule::I13, i13_freeze(self.view, self.wish))
                || broken(Rule::I3, i3_no_healthy_removal_while_degraded(self))
                || broken(Rule::I17, i17_backup_first(self)))
    }
}

/// I1: at most one open intent, at most one learner.
pub fn i1_single_flight(p: Proposed<'_>) -> Verdict {
    if let Some((site, held)) = &p.view.open {
        return Err(Reason::new(Code::IntentUnresolved).site(site).numbers(held.intent.seq.0, 0));
    }
    if let (StepKind::AddLearner { .. }, Some(learner)) = (p.kind, p.view.learners().next()) {
        return Err(about(Code::LearnerPresent, learner));
    }
    Ok(())
}

/// I2: the new quorum must be alive before the change; for an added learner the voters stay as they are.
pub fn i2_new_quorum_first(p: Proposed<'_>) -> Verdict {
    let then = match p.kind {
        StepKind::Promote { member } => after(p.view, Some(*member), None),
        StepKind::Remove { member, learner: false } => after(p.view, None, Some(*member)),
        StepKind::Remove { learner: true, .. } => return Ok(()), // margin-neutral and always allowed (safety.md 6)
        StepKind::AddLearner { .. }
        | StepKind::UpdateUrl { .. }
        | StepKind::MoveLeader { .. }
        | StepKind::ActivateSpec { .. }
        | StepKind::Snapshot => arithmetic(p.view),
    };
    if then.margin() < 0 {
        let missing = p.view.voters().find(|m| !m.life.alive());
        let reason = Reason::new(Code::NewQuorumNotAlive).numbers(then.alive as u64, then.quorum as u64);
        return Err(match missing {
            Some(member) => reason.member(member.id).maybe_site(member.site()),
            None => reason,
        });
    }
    Ok(())
}

/// I3: a voter is removed only (a) with all others alive and room left, (b) when it is proven dead, or (c) as I12's
/// roll-back.
pub fn i3_no_healthy_removal_while_degraded(p: Proposed<'_>) -> Verdict {
    let StepKind::Remove { member, learner: false } = p.kind else {
        return Ok(());
    };
    let Some(m) = p.view.member(*member) else {
        return Ok(());
    };
    if m.life.dead() {
        return Ok(());
    }
    let then = after(p.view, None, Some(m.id));
    let missing = p.view.voters().find(|other| other.id != m.id && !other.life.alive());
    if let Some(other) = missing {
        return Err(about(Code::RemovalWhileDegraded, other).numbers(then.alive as u64, then.voters as u64));
    }
    if p.operation.kind == OperationKind::RollBack {
        return Ok(());
    }
    // The way from three to one begins with the first removal, so the flag is asked for there (safety.md 5).
    let to_one = then.voters == 1 || p.wish.slots.len() == 1;
    if then.voters == 0 || (to_one && !single_voter_wanted(p.wish)) {
        return Err(about(Code::SingleVoterNotAllowed, m).numbers(then.voters as u64 + 1, 1));
    }
    if then.voters >= 3 && then.margin() < 1 {
        return Err(about(Code::RemovalWhileDegraded, m).numbers(then.alive as u64, then.quorum as u64 + 1));
    }
    if !m.life.alive() && then.voters < 3 {
        return Err(about(Code::LostMemberUnconfirmed, m));
    }
    Ok(())
}

fn single_voter_wanted(wish: &Wish) -> bool {
    wish.allow_single_voter && wish.slots.len() == 1
}

/// I4: the loss of one site or zone must not stop writes, if the declared layout can promise that.
pub fn i4_domain_bound(p: Proposed<'_>) -> Verdict {
    let (joins, leaves) = match p.kind {
        StepKind::Promote { member } => (Some(*member), None),
        StepKind::Remove { member, learner: false } => (None, Some(*member)),
        StepKind::Remove { learner: true, .. }
        | StepKind::AddLearner { .. }
        | StepKind::UpdateUrl { .. }
        | StepKind::MoveLeader { .. }
        | StepKind::ActivateSpec { .. }
        | StepKind::Snapshot => return Ok(()),
    };
    let dead = leaves.and_then(|id| p.view.member(id)).is_some_and(|m| m.life.dead());
    for zones in [false, true] {
        let Some(goal) = wished_concentration(p.wish, zones) else {
            continue;
        };
        let then =
            p.view.members.iter().filter(|m| (!m.learner || Some(m.id) == joins) && Some(m.id) != leaves);
        let even = i64::from(then.clone().count() % 2 == 0);
        let (now, _) = concentration(&p.view.voters(), zones);
        let (next, worst) = concentration(&then, zones);
        // A dead voter weighs in no quorum: taking it out changes numbers, not what a loss can do.
        if dead {
            continue;
        }
        // What the even state may add is lent, not given: leaving it gives it back, if another voter's leaving would.
        let lent = (now - 1).max(0).max(goal);
        let better = |m: &&MemberView| {
            let without = p.view.voters().filter(|other| other.id != m.id).collect::<Vec<_>>();
            concentration(&without.iter().copied(), zones).0 < next
        };
        let keeps = leaves.is_some() && even == 0 && next > lent && p.view.voters().any(|m| better(&m));
        if keeps || next > now.max(0).max(goal) + even {
            let holds = u64::try_from(next).unwrap_or(0);
            return Err(Reason::new(Code::DomainBound).maybe_site(worst.as_ref()).numbers(holds, 0));
        }
    }
    Ok(())
}

/// c of the declared layout; none if fewer than three domains are declared, where no bound is possible.
fn wished_concentration(wish: &Wish, zones: bool) -> Option<i64> {
    let same = |a: &crate::id::Slot, b: &crate::id::Slot| a.site == b.site && (!zones || a.zone == b.zone);
    let first = |i: usize, slot: &crate::id::Slot| !wish.slots.iter().take(i).any(|other| same(other, slot));
    let domains = wish.slots.iter().enumerate().filter(|(i, slot)| first(*i, slot)).count();
    if domains < 3 {
        return None;
    }
    let heaviest = wish.slots.iter().map(|slot| wish.slots.iter().filter(|o| same(o, slot)).count()).max()?;
    let spare = wish.slots.len() - quorum(wish.slots.len());
    i64::try_from(heaviest).ok().zip(i64::try_from(spare).ok()).map(|(heaviest, spare)| heaviest - spare)
}

/// I6: a freed URL rests, and a removed id never comes back.
pub fn i6_no_id_reuse(p: Proposed<'_>) -> Verdict {
    let rest = |url: &PeerUrl| p.view.freed.iter().find(|(freed, age)| freed == url && *age < URL_REST_MS);
    match p.kind {
        StepKind::AddLearner { slot, peer_url, .. } => match rest(peer_url) {
            Some((_, age)) => Err(Reason::new(Code::UrlTooFresh).site(&slot.site).numbers(*age, URL_REST_MS)),
            None => Ok(()),
        },
        StepKind::Promote { member } | StepKind::UpdateUrl { member, .. }
            if p.view.removed.contains(member) =>
        {
            Err(Reason::new(Code::IdRemoved).member(*member).maybe_site(p.view.site_of(*member)))
        }
        StepKind::Promote { .. }
        | StepKind::UpdateUrl { .. }
        | StepKind::Remove { .. }
        | StepKind::MoveLeader { .. }
        | StepKind::ActivateSpec { .. }
        | StepKind::Snapshot => Ok(()),
    }
}

/// I8, first half: only the agent whose own member leads sends anything. Acknowledgements and fence come later.
pub fn i8_only_the_executor(view: &View) -> Verdict {
    if view.own_leads {
        return Ok(());
    }
    let Some(leader) = view.leader else {
        return Err(Code::ExecutorUnavailable.into());
    };
    let site = view.site_of(leader);
    let heard = site.is_some_and(|site| view.heard(site).is_some());
    let code = if heard { Code::NotExecutor } else { Code::ExecutorUnavailable };
    Err(Reason::new(code).member(leader).maybe_site(site))
}

/// I9: promotable(l). etcd itself promotes the dead and the empty (etcd-facts.md 5, backup.md 1.7).
pub fn i9_promotable(p: Proposed<'_>) -> Verdict {
    let StepKind::Promote { member } = p.kind else {
        return Ok(());
    };
    let Some(l) = p.view.member(*member).filter(|m| m.learner) else {
        return Err(Reason::new(Code::LearnerNotAlive).member(*member));
    };
    match l.life {
        Life::Alive => {}
        Life::Unknown(Code::LearnerUnreachable) => return Err(about(Code::LearnerUnreachable, l)),
        Life::Unknown(Code::LearnerLagging) => {
            return Err(
                about(Code::LearnerLagging, l).numbers(l.lag.unwrap_or(0), crate::federation::view::MAX_LAG)
            );
        }
        Life::Unknown(_) | Life::DeadAttested | Life::DeadDeclared => {
            return Err(about(Code::LearnerNotAlive, l));
        }
    }
    let track = p.view.learner.filter(|track| track.member == l.id);
    if !track.is_some_and(|t| t.good_samples >= GOOD_SAMPLES && t.good_ms >= PROVEN_MS) {
        let max = crate::federation::view::MAX_LAG;
        return Err(about(Code::LearnerLagging, l).numbers(l.lag.unwrap_or(0), max));
    }
    if l.linked_ms < PROVEN_MS {
        return Err(about(Code::LearnerUnreachable, l));
    }
    if !p.view.checks.iter().any(|c| c.member == l.id && c.equal) {
        return Err(about(Code::LearnerDataUnproven, l));
    }
    let oldest = p.view.voters().filter_map(|m| m.version).map(|v| (v.major, v.minor)).min();
    if l.version.map(|v| (v.major, v.minor)) < oldest {
        return Err(about(Code::LearnerTooOld, l));
    }
    if !l.certificates_good {
        return Err(about(Code::CertificateExpiring, l));
    }
    Ok(())
}

/// networking.md 7: no voter where a round trip to another one takes so long that elections do not end. Not an
/// invariant: what was never measured is permitted.
pub fn within_reach(p: Proposed<'_>) -> Verdict {
    let StepKind::Promote { member } = p.kind else {
        return Ok(());
    };
    match p.view.site_of(*member).and_then(|site| too_far(p.view, site)) {
        Some(reason) => Err(reason.member(*member)),
        None => Ok(()),
    }
}

/// Why a site may not have voters, if it is too far from one. The shortest round trip of a minute decides: the longer ones
/// tell of busy machines as well, and whoever is busy is not far.
pub fn too_far(view: &View, site: &SiteName) -> Option<Reason> {
    let far = view.voters().filter_map(|m| view.distance(site, m.site()?)).max()? / 1_000;
    let reason = Reason::new(Code::TooFar).site(site).numbers(far.into(), MAX_VOTER_RTT_MS.into());
    (far > MAX_VOTER_RTT_MS).then_some(reason)
}

/// I10: leadership leaves a member before it is removed, and a domain before it becomes the doubled one.
pub fn i10_leader_out_of_the_way(p: Proposed<'_>) -> Verdict {
    let Some(leader) = p.view.leader.and_then(|id| p.view.member(id)) else {
        return Ok(());
    };
    match p.kind {
        StepKind::Remove { member, learner: false }
            if *member == leader.id && p.view.voters().count() > 1 =>
        {
            Err(about(Code::LeaderInTheWay, leader))
        }
        StepKind::Promote { member }
            if doubles_leaders_domain(p, *member, leader) || balances_a_move(p, *member, leader) =>
        {
            Err(about(Code::LeaderInTheWay, leader))
        }
        StepKind::Promote { .. }
        | StepKind::Remove { .. }
        | StepKind::AddLearner { .. }
        | StepKind::UpdateUrl { .. }
        | StepKind::MoveLeader { .. }
        | StepKind::ActivateSpec { .. }
        | StepKind::Snapshot => Ok(()),
    }
}

fn doubles_leaders_domain(p: Proposed<'_>, joins: MemberId, leader: &MemberView) -> bool {
    let even_after = p.view.voters().count() % 2 == 1;
    let site = p.view.site_of(joins);
    let same_site = site.is_some() && site == leader.site();
    even_after
        && same_site
        && p.operation.kind == OperationKind::ReplaceLive
        && transferee(p.view, p.wish, site).is_some()
}

fn wanted(wish: &Wish, m: &MemberView) -> bool {
    m.slot.as_ref().is_some_and(|slot| wish.slots.contains(slot))
}

/// The voters that the wish has no place for.
pub fn leaving<'a>(view: &'a View, wish: &'a Wish) -> impl Iterator<Item = &'a MemberView> {
    view.voters().filter(|m| !wanted(wish, m))
}

/// As many voters go as are wished: everything moves, and the majority must cross a balanced state (safety.md 5). Then all
/// new voters come before the first old one goes. That balanced state has more to spare than one that is reached by turns,
/// and until the first removal the move can be called off. An old voter that is missing goes first, though.
pub fn everything_moves(view: &View, wish: &Wish) -> bool {
    let alive = leaving(view, wish).all(|m| m.life.alive());
    alive && leaving(view, wish).count() == wish.slots.len()
}

/// The promotion that balances old and new voters: what follows are the removals, so leadership goes to a new voter first.
fn balances_a_move(p: Proposed<'_>, joins: MemberId, leader: &MemberView) -> bool {
    let filled = |slot: &crate::id::Slot| {
        let there = |m: &MemberView| m.slot.as_ref() == Some(slot) && (!m.learner || m.id == joins);
        p.view.members.iter().any(there)
    };
    everything_moves(p.view, p.wish)
        && p.wish.slots.iter().all(filled)
        && !wanted(p.wish, leader)
        && p.view.voters().any(|m| wanted(p.wish, m))
}

/// The best next leader: alive, close, in a wanted slot if possible (and if everything moves in no other), alone at its
/// site if possible, not at `avoid`.
pub fn transferee<'a>(view: &'a View, wish: &Wish, avoid: Option<&SiteName>) -> Option<&'a MemberView> {
    let target = everything_moves(view, wish) && view.voters().any(|m| wanted(wish, m));
    let doubled = |m: &MemberView| wish.slots.iter().filter(|slot| m.site() == Some(&slot.site)).count() > 1;
    view.voters()
        .filter(|m| {
            Some(m.id) != view.leader && m.life.alive() && m.lag.is_some_and(|lag| lag <= TRANSFEREE_LAG)
        })
        .filter(|m| (avoid.is_none() || m.site() != avoid) && (!target || wanted(wish, m)))
        .min_by_key(|m| (!wanted(wish, m), doubled(m), m.lag, m.id))
}

/// I10 for the move itself: only to an alive voter that is close.
pub fn i10_transferee(p: Proposed<'_>) -> Verdict {
    let StepKind::MoveLeader { to } = p.kind else {
        return Ok(());
    };
    let good = p
        .view
        .member(*to)
        .is_some_and(|m| !m.learner && m.life.alive() && m.lag.is_some_and(|lag| lag <= TRANSFEREE_LAG));
    if good {
        Ok(())
    } else {
        Err(Reason::new(Code::NoTransferee)
            .member(*to)
            .maybe_site(p.view.site_of(*to))
            .numbers(0, TRANSFEREE_LAG))
    }
}

/// I11: without a linearizable read nothing is changed. An agent that leads has just read; the others look at ages.
pub fn i11_quorum_lost_hands_off(view: &View) -> Verdict {
    let now = arithmetic(view);
    if view.own_leads && view.no_quorum_ms < view.settle_ms + 2_000 && now.margin() >= 0 {
        return Ok(());
    }
    if view.leader.is_some() && now.margin() >= 0 {
        return Ok(());
    }
    let missing = view.voters().find(|m| !m.life.alive());
    let reason = Reason::new(Code::QuorumLost).numbers(now.alive as u64, now.quorum as u64);
    Err(match missing {
        Some(member) => reason.member(member.id).maybe_site(member.site()),
        None => reason,
    })
}

/// I12: an even number of voters is entered only when the way out is open.
pub fn i12_bounded_even_state(p: Proposed<'_>) -> Verdict {
    let n = p.view.voters().count();
    match p.kind {
        StepKind::Promote { member } if n % 2 == 1 => way_out_after_promotion(p, *member),
        // A removal from an odd number needs no more than I3 asked for: a dead voter is followed by its replacement,
        // a scale-down by the next removal, for which all other voters are alive.
        StepKind::Promote { .. }
        | StepKind::Remove { .. }
        | StepKind::AddLearner { .. }
        | StepKind::UpdateUrl { .. }
        | StepKind::MoveLeader { .. }
        | StepKind::ActivateSpec { .. }
        | StepKind::Snapshot => Ok(()),
    }
}

fn way_out_after_promotion(p: Proposed<'_>, joins: MemberId) -> Verdict {
    let n = p.view.voters().count();
    if n >= p.wish.slots.len() {
        // The way out is the removal of the source: all others alive.
        let source = p.operation.source;
        let missing = p.view.voters().find(|m| Some(m.id) != source && !m.life.alive());
        if let Some(m) = missing {
            return Err(about(Code::EvenStateUnprepared, m));
        }
        if !everything_moves(p.view, p.wish) {
            return Ok(());
        }
        // If everything moves it is only the second way out.
    }
    // The way out is the next slot: its agent is heard and offers it.
    let taken = |slot: &crate::id::Slot| {
        p.view.members.iter().any(|m| m.slot.as_ref() == Some(slot) && (!m.learner || m.id == joins))
    };
    let open = p.wish.slots.iter().filter(|slot| !taken(slot));
    let ready = |slot: &&crate::id::Slot| {
        too_far(p.view, &slot.site).is_none()
            && p.view.heard(&slot.site).is_some_and(|o| o.offers.iter().any(|offer| offer.slot == **slot))
    };
    let mut open = open.peekable();
    let Some(first) = open.peek().copied() else {
        return Ok(());
    };
    if open.any(|slot| ready(&slot)) {
        return Ok(());
    }
    if let Some(reason) = too_far(p.view, &first.site) {
        return Err(reason);
    }
    Err(Reason::new(Code::EvenStateUnprepared).site(&first.site))
}

/// I13: membership changes only on a calm cluster.
pub fn i13_freeze(view: &View, wish: &Wish) -> Verdict {
    if let Some(m) = view.members.iter().find(|m| m.alarm) {
        return Err(about(Code::AlarmActive, m));
    }
    if let Some(m) = mixed_versions(view) {
        return Err(about(Code::MixedVersions, m));
    }
    if view.leader_changes >= 2 {
        return Err(Reason::new(Code::LeaderUnstable).numbers(u64::from(view.leader_changes), 1));
    }
    if let Some(site) =
        view.sites.iter().find(|s| s.heard() && s.observation.as_ref().is_some_and(|o| o.maintenance))
    {
        return Err(Reason::new(Code::MaintenanceRunning).site(&site.name));
    }
    i13_spec_drift(view, wish)?;
    fresh_matrix(view)?;
    if view.since_change_ms < view.settle_ms {
        return Err(Reason::new(Code::TooSoon).numbers(view.since_change_ms, view.settle_ms));
    }
    Ok(())
}

fn mixed_versions(view: &View) -> Option<&MemberView> {
    let mut alive = view.members.iter().filter(|m| m.life.alive());
    let minor = |m: &MemberView| m.version.map(|v| (v.major, v.minor));
    let first = alive.clone().next().and_then(minor);
    alive.find(|m| minor(m) != first || m.downgrading)
}

/// The agents that are heard, of sites of the effective spec, must hold one spec.
pub fn i13_spec_drift(view: &View, wish: &Wish) -> Verdict {
    match agreement::differing(view, wish) {
        Some((site, difference)) => Err(Reason::new(difference).site(&site.name)),
        None => Ok(()),
    }
}

/// Every row of an alive voter must be young and complete: it has an entry for every listed voter.
fn fresh_matrix(view: &View) -> Verdict {
    for voter in view.voters().filter(|m| m.life.alive()) {
        let Some(site) = voter.site() else { continue };
        let row = view.site(site);
        let age = row.and_then(|s| s.age_ms).unwrap_or(u64::MAX);
        let complete = row.and_then(|s| s.observation.as_ref()).is_some_and(|o| {
            view.voters().all(|other| other.id == voter.id || o.link(other.id).is_some_and(|l| !l.stale))
        });
        if age >= crate::federation::view::HEARD_MS || !complete {
            return Err(about(Code::MatrixStale, voter).numbers(age, crate::federation::view::HEARD_MS));
        }
    }
    Ok(())
}

/// I15: the last step is complete: every alive voter answers the leader's list itself, a promoted one calls itself
/// voter and is ready, and its data were compared once more (I9).
pub fn i15_settled(view: &View) -> Verdict {
    let Some(list) = &view.list else {
        return Err(Code::QuorumLost.into());
    };
    for voter in view.voters().filter(|m| m.life.alive()) {
        if voter.list != Some(list.digest()) {
            return Err(about(Code::NotSettled, voter));
        }
        if voter.says_learner == Some(true) || !voter.ready {
            return Err(about(Code::PromotionNotSettled, voter));
        }
    }
    let divergent =
        view.checks.iter().find(|c| !c.equal && view.member(c.member).is_some_and(|m| !m.learner));
    if let Some(m) = divergent.and_then(|c| view.member(c.member)) {
        return Err(about(Code::DivergentData, m));
    }
    // Once per voter and leadership, also for those that were not promoted just now: the rule says all alive voters, and
    // an intent without a change may have followed the promotion.
    let compared =
        |m: &MemberView| view.checks.iter().any(|c: &DataCheck| c.member == m.id && c.as_voter && c.equal);
    let mut others = view.voters().filter(|m| m.life.alive() && view.leader != Some(m.id));
    match others.find(|m| !compared(m)) {
        Some(uncompared) => Err(about(Code::DataUnproven, uncompared)),
        None => Ok(()),
    }
}

/// The last membership change; from the own record.
pub fn last_change(view: &View) -> Option<&Change> {
    view.site(&view.me)?.observation.as_ref()?.record.changed.as_deref()
}

/// The member of the last change, if that was a promotion.
pub fn last_promoted(view: &View) -> Option<MemberId> {
    match &last_change(view)?.kind {
        IntentKind::Promote { member } => Some(*member),
        IntentKind::AddLearner { .. }
        | IntentKind::Remove { .. }
        | IntentKind::UpdateUrl { .. }
        | IntentKind::Void { .. }
        | IntentKind::ActivateSpec { .. } => None,
    }
}

/// I16: a peer URL changes only for a voter, with all other voters alive and the new URL proven from each of them.
pub fn i16_updates_are_for_voters(p: Proposed<'_>) -> Verdict {
    let StepKind::UpdateUrl { member, peer_url } = p.kind else {
        return Ok(());
    };
    let Some(m) = p.view.member(*member) else {
        return Err(Reason::new(Code::UpdateUnproven).member(*member));
    };
    if m.learner {
        return Err(about(Code::UpdateOfLearner, m));
    }
    let others_alive = p.view.voters().filter(|other| other.id != m.id).all(|other| other.life.alive());
    let proven = p.wish.url_changes.iter().any(|(id, url, good)| *id == m.id && url == peer_url && *good);
    let now = arithmetic(p.view);
    let room = !m.life.alive() || now.voters < 3 || now.margin() >= 1;
    if others_alive && proven && room { Ok(()) } else { Err(about(Code::UpdateUnproven, m)) }
}

/// I17: a verified backup young enough before a voter goes; off when no backup target is declared.
pub fn i17_backup_first(p: Proposed<'_>) -> Verdict {
    let (Some(limit), StepKind::Remove { learner: false, .. }) = (p.wish.max_backup_age_s, p.kind) else {
        return Ok(());
    };
    let youngest =
        p.view.sites.iter().filter(|s| s.heard()).filter_map(|s| s.observation.as_ref()?.backup_age_s).min();
    match youngest {
        Some(age) if age <= limit => Ok(()),
        age => Err(Reason::new(Code::BackupTooOld).numbers(age.unwrap_or(u64::MAX), limit)),
    }
}
