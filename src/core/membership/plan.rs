//! The planner: from the view to the next step towards the wish. Total: a step, a wait or a refusal, each with a
//! typed reason.

use crate::federation::observed::{DataCheck, ListedMember, MemberList, SiteObservation, SlotOffer};
use crate::federation::view::{LearnerTrack, Life, MemberView, Pending, SiteView, View, Wish};
use crate::id::{IncarnationId, Index, MemberId, PeerUrl, Revision, SiteName, Slot};
use crate::intent::{IntentKind, Operation, OperationKind};
use crate::membership::disruption;
use crate::membership::quorum::{Domain, after, arithmetic, at_risk, quorum};
use crate::membership::safety::{self, EVEN_STATE_MS, Proposed};
use crate::membership::step::{Decision, Step, StepKind};
use crate::reason::{Code, Reason};

/// A learner without progress for this long blocks everybody else's join and is dropped (safety.md 5).
pub const STUCK_LEARNER_MS: u64 = 5 * 60 * 1000;

/// The next step, or why there is none.
pub fn next(view: &View, wish: &Wish) -> Decision {
    if let Err(reason) =
        safety::i11_quorum_lost_hands_off(view).and_then(|()| safety::i8_only_the_executor(view))
    {
        return Decision::Wait(reason);
    }
    if let Some(reason) = &wish.restarting {
        return Decision::Wait(reason.clone());
    }
    if !only_forward(view, wish)
        && let Some(decision) = activation(view, wish)
    {
        return decision;
    }
    if let Some((kind, operation)) = divergent(view) {
        return judge(view, wish, kind, operation);
    }
    if let Err(reason) = safety::i15_settled(view) {
        return Decision::Wait(reason);
    }
    match goal(view, wish) {
        Goal::Step(kind, operation) => judge(view, wish, kind, operation),
        Goal::Wait(reason) => Decision::Wait(reason),
        Goal::Reached => match view.voters().find(|m| !m.life.alive()) {
            Some(m) => Decision::Wait(missing(view, m)),
            None => Decision::Done,
        },
    }
}

enum Goal {
    Step(StepKind, Operation),
    Wait(Reason),
    Reached,
}

fn missing(view: &View, m: &MemberView) -> Reason {
    if let Some(hindrance) = m.slot.as_ref().and_then(|slot| view.hindrance(slot)) {
        return hindrance.clone().member(m.id);
    }
    let code = match m.life {
        Life::Unknown(Code::Starting) => Code::Starting,
        Life::Unknown(_) => Code::LostMemberUnconfirmed,
        Life::Alive | Life::DeadAttested | Life::DeadDeclared => Code::SlotNotReady,
    };
    Reason::new(code).member(m.id).maybe_site(m.site())
}

/// Judges a step: every rule, then the arithmetic. A wait for something that passes is told apart from a refusal.
fn judge(view: &View, wish: &Wish, kind: StepKind, operation: Operation) -> Decision {
    let proposed = Proposed { view, wish, kind: &kind, operation };
    match proposed.permitted() {
        Ok(()) => {
            let overridden = proposed.needs_exception();
            let (before, after) = (arithmetic(view), arithmetic_after(view, &kind));
            Decision::Step(Box::new(Step { kind, operation, before, after, overridden }))
        }
        Err(reason) => instead(view, wish, reason),
    }
}

/// Some refusals name their own cure: move the leader, take a backup.
fn instead(view: &View, wish: &Wish, reason: Reason) -> Decision {
    let cure = match reason.code {
        Code::LeaderInTheWay => {
            let elsewhere = safety::transferee(view, wish, reason.site.as_ref());
            let Some(to) = elsewhere.or_else(|| safety::transferee(view, wish, None)) else {
                let none = Reason { code: Code::NoTransferee, ..reason };
                return Decision::Wait(none.numbers(0, safety::TRANSFEREE_LAG));
            };
            Some(StepKind::MoveLeader { to: to.id })
        }
        Code::BackupTooOld => Some(StepKind::Snapshot),
        _ => None,
    };
    match cure {
        Some(kind) => {
            let operation = Operation { kind: OperationKind::Backup, source: None, new: None };
            let operation = match kind {
                StepKind::MoveLeader { to } => {
                    Operation { kind: OperationKind::ReplaceLive, source: view.leader, new: Some(to) }
                }
                _ => operation,
            };
            let (before, after) = (arithmetic(view), arithmetic(view));
            Decision::Step(Box::new(Step { kind, operation, before, after, overridden: false }))
        }
        None if passes(reason.code) => Decision::Wait(reason),
        None => Decision::Refuse(reason),
    }
}

/// The step that takes a backup, because another one needs it fresh (rule I17).
pub fn snapshot(view: &View) -> Step {
    let operation = Operation { kind: OperationKind::Backup, source: None, new: None };
    let now = arithmetic(view);
    Step { kind: StepKind::Snapshot, operation, before: now, after: now, overridden: false }
}

/// Whether waiting alone can end it.
const fn passes(code: Code) -> bool {
    !matches!(
        code,
        Code::NewQuorumNotAlive
            | Code::RemovalWhileDegraded
            | Code::LostMemberUnconfirmed
            | Code::SingleVoterNotAllowed
            | Code::DomainBound
            | Code::AlarmActive
            | Code::MixedVersions
            | Code::IdRemoved
            | Code::UpdateOfLearner
            | Code::UpdateUnproven
            | Code::LearnerTooOld
            | Code::CertificateExpiring
            | Code::TooFar
            | Code::AdoptOtherCluster
            | Code::AdoptUnfinished
    )
}

fn arithmetic_after(view: &View, kind: &StepKind) -> crate::membership::quorum::Arithmetic {
    match kind {
        StepKind::Promote { member } => after(view, Some(*member), None),
        StepKind::Remove { member, learner: false } => after(view, None, Some(*member)),
        StepKind::Remove { .. }
        | StepKind::AddLearner { .. }
        | StepKind::UpdateUrl { .. }
        | StepKind::MoveLeader { .. }
        | StepKind::ActivateSpec { .. }
        | StepKind::Snapshot => arithmetic(view),
    }
}

/// A changed spec becomes effective when the sites of a quorum of the voters and more than half of the new spec's
/// sites hold it (safety.md 4). It comes before anything else: what follows must follow the effective spec.
fn activation(view: &View, wish: &Wish) -> Option<Decision> {
    if let Some(pending) = &wish.pending {
        return Some(activate(view, wish, pending));
    }
    // Other timers are no reason to hold anything up: without agreement they wait.
    let retimed = activate(view, wish, wish.retimed.as_ref()?);
    matches!(retimed, Decision::Step(_)).then_some(retimed)
}

fn activate(view: &View, wish: &Wish, pending: &Pending) -> Decision {
    if pending.other_cluster {
        return Decision::Refuse(Reason::new(Code::AdoptOtherCluster).maybe_site(pending.adopts.as_ref()));
    }
    // Without its site nobody could speak for a foreign member: it would stay listed, unknown for ever.
    if let (None, Some(m)) = (&pending.adopts, view.members.iter().find(|m| m.external())) {
        return Decision::Refuse(Reason::new(Code::AdoptUnfinished).member(m.id).maybe_site(m.site()));
    }
    let holds = |site: &SiteName| view.heard(site).is_some_and(|o| o.spec == Some(pending.digest));
    let voters = view.voters().count();
    let held = view.voters().filter(|m| m.site().is_some_and(holds)).count();
    let sites: Vec<&SiteName> = pending.sites.iter().filter(|s| !pending.lost_sites.contains(s)).collect();
    let agreed = sites.iter().filter(|site| holds(site)).count();
    if held < quorum(voters) || agreed * 2 <= sites.len() {
        let lagging = sites.iter().find(|site| !holds(site)).copied();
        let lagging = lagging.or_else(|| view.voters().filter_map(|m| m.site()).find(|s| !holds(s)));
        let numbers = (held.min(agreed) as u64, quorum(voters).max(sites.len() / 2 + 1) as u64);
        let reason = Reason::new(Code::ActivationPending).maybe_site(lagging).numbers(numbers.0, numbers.1);
        return Decision::Wait(reason);
    }
    let (generation, digest, timing) = (wish.generation.next(), pending.digest, pending.timing);
    let kind = StepKind::ActivateSpec { generation, digest, timing };
    let operation = Operation { kind: OperationKind::Activate, source: None, new: None };
    judge(view, wish, kind, operation)
}

/// A promoted voter whose data differ goes at once: it was empty or foreign (rule I9, backup.md 1.7).
fn divergent(view: &View) -> Option<(StepKind, Operation)> {
    let promoted = safety::last_promoted(view)?;
    let differs = view.checks.iter().any(|c| c.member == promoted && c.as_voter && !c.equal);
    let member = view.member(promoted).filter(|m| !m.learner && differs)?;
    Some(remove(member, OperationKind::RollBack))
}

fn remove(member: &MemberView, kind: OperationKind) -> (StepKind, Operation) {
    let step = StepKind::Remove { member: member.id, learner: member.learner };
    (step, Operation { kind, source: Some(member.id), new: None })
}

fn goal(view: &View, wish: &Wish) -> Goal {
    if let Some(learner) = view.learners().next() {
        let goal = with_learner(view, wish, learner);
        // A promotion that has to wait must not hold up the removal of a dead voter: it may be waiting for just that.
        return match (&goal, dead_voter(view, wish)) {
            (Goal::Step(kind @ StepKind::Promote { .. }, operation), Some((remove, why)))
                if (Proposed { view, wish, kind, operation: *operation }).permitted().is_err() =>
            {
                Goal::Step(remove, why)
            }
            _ => goal,
        };
    }
    if let Some((kind, operation)) = dead_voter(view, wish) {
        return Goal::Step(kind, operation);
    }
    if let Some((kind, operation)) = roll_back(view) {
        return Goal::Step(kind, operation);
    }
    let n = view.voters().count();
    let open = || wish.slots.iter().filter(|slot| !view.voters().any(|m| m.slot.as_ref() == Some(*slot)));
    let extra = extras(view, wish).max_by_key(|m| departure_order(view, m));
    // Add before remove, but never more than one voter above the wish; or all of them, if everything moves.
    if open().next().is_some() && (n <= wish.slots.len() || safety::everything_moves(view, wish)) {
        return fill(view, wish, n, extra);
    }
    if let Some(extra) = extra {
        let kind = if open().next().is_some() || replaces(view) {
            OperationKind::ReplaceLive
        } else {
            OperationKind::ScaleDown
        };
        let (kind, operation) = remove(extra, kind);
        return Goal::Step(kind, operation);
    }
    if let Some((member, peer_url, _)) = wish.url_changes.first() {
        let operation = Operation { kind: OperationKind::ChangeUrl, source: Some(*member), new: None };
        return Goal::Step(StepKind::UpdateUrl { member: *member, peer_url: peer_url.clone() }, operation);
    }
    // Rule I10: the leader is restarted last, and not as leader.
    if disruption::leader_is_next(view, &wish.options)
        && let Some(to) = safety::transferee(view, wish, None)
    {
        let operation = Operation { kind: OperationKind::Restart, source: view.leader, new: Some(to.id) };
        return Goal::Step(StepKind::MoveLeader { to: to.id }, operation);
    }
    match wish.leader.filter(|to| view.leader != Some(*to)) {
        Some(to) => {
            let operation =
                Operation { kind: OperationKind::PlaceLeader, source: view.leader, new: Some(to) };
            Goal::Step(StepKind::MoveLeader { to }, operation)
        }
        None => Goal::Reached,
    }
}

/// Whether the last step was one of a replacement.
fn replaces(view: &View) -> bool {
    last_operation(view).is_some_and(|o| o.kind == OperationKind::ReplaceLive)
}

fn last_operation(view: &View) -> Option<Operation> {
    safety::last_change(view).map(|change| change.operation)
}

fn wanted(wish: &Wish, member: &MemberView) -> bool {
    member.slot.as_ref().is_some_and(|slot| wish.slots.contains(slot))
}

/// No member fills it, not even a learner.
fn open_slot(view: &View, slot: &Slot) -> bool {
    !view.members.iter().any(|m| m.slot.as_ref() == Some(slot))
}

fn extras<'a>(view: &'a View, wish: &'a Wish) -> impl Iterator<Item = &'a MemberView> {
    safety::leaving(view, wish)
}

/// A move is past its first removal and the new voters are all there: it only goes on forward (safety.md 5), so a spec
/// that waits for its activation waits a little longer. With a voter missing people may want anything.
fn only_forward(view: &View, wish: &Wish) -> bool {
    let removed = safety::last_change(view).is_some_and(|change| {
        matches!(change.kind, IntentKind::Remove { .. })
            && change.operation.kind == OperationKind::ReplaceLive
    });
    let complete = wish.slots.iter().all(|slot| view.voters().any(|m| m.slot.as_ref() == Some(slot)));
    removed && complete && extras(view, wish).next().is_some() && view.voters().all(|m| m.life.alive())
}

/// Who goes first: dead before unknown before alive, from the most loaded site, the leader last (safety.md 5).
fn departure_order(view: &View, m: &MemberView) -> (u8, usize, bool, std::cmp::Reverse<MemberId>) {
    let rank = match m.life {
        Life::DeadAttested | Life::DeadDeclared => 2,
        Life::Unknown(_) => 1,
        Life::Alive => 0,
    };
    let load = m.site().map_or(0, |site| view.voters_at(site));
    (rank, load, view.leader != Some(m.id), std::cmp::Reverse(m.id))
}

/// One learner at a time: promote it, wait for it, or drop it.
fn with_learner(view: &View, wish: &Wish, learner: &MemberView) -> Goal {
    let duplicate = view.voters().any(|m| m.slot == learner.slot);
    let different = view.checks.iter().any(|c| c.member == learner.id && !c.equal);
    let stuck =
        view.learner.is_some_and(|track| track.member == learner.id && track.stalled_ms >= STUCK_LEARNER_MS);
    // Its agent is heard and runs another incarnation in that slot: nobody will ever start this id.
    let orphan = learner.site().and_then(|site| view.heard(site)).is_some_and(|o| {
        o.offers
            .iter()
            .any(|offer| Some(&offer.slot) == learner.slot.as_ref() && offer.peer_url == learner.peer_url)
            && !o.members.iter().any(|m| m.member == Some(learner.id))
            && view.since_change_ms > ORPHAN_MS
    });
    // It can never vote there, and while it is listed nobody else can join.
    let far = |site: &SiteName| safety::too_far(view, site).is_some();
    let better = |slot: &Slot| open_slot(view, slot) && !far(&slot.site) && offer(view, slot).is_some();
    let displaced = learner.site().is_some_and(far) && wish.slots.iter().any(better);
    if !wanted(wish, learner) || duplicate || different || stuck || orphan || displaced || learner.life.dead()
    {
        let (kind, operation) = remove(learner, OperationKind::DropLearner);
        return Goal::Step(kind, operation);
    }
    let n = view.voters().count();
    let source = extras(view, wish).max_by_key(|m| (m.site() == learner.site(), departure_order(view, m)));
    let operation = match source {
        Some(source) if n >= wish.slots.len() => {
            Operation { kind: OperationKind::ReplaceLive, source: Some(source.id), new: Some(learner.id) }
        }
        _ => Operation { kind: OperationKind::ScaleUp, source: None, new: Some(learner.id) },
    };
    Goal::Step(StepKind::Promote { member: learner.id }, operation)
}

/// An agent binds a new id to its incarnation within a second or two of hearing of it; this is much more.
const ORPHAN_MS: u64 = 60_000;

/// A dead voter goes if there are more voters than wanted, if its replacement is ready or coming, or if two are dead:
/// with no place for a new one it stays listed, the margin is the same (safety.md 5).
fn dead_voter(view: &View, wish: &Wish) -> Option<(StepKind, Operation)> {
    let dead = || view.voters().filter(|m| m.life.dead());
    let first = dead().max_by_key(|m| (!wanted(wish, m), replacement_ready(view, wish, m), m.id))?;
    let coming = view.learners().any(|l| l.life.alive());
    let surplus = view.voters().count() > wish.slots.len();
    let go = surplus || coming || replacement_ready(view, wish, first) || dead().count() >= 2;
    go.then(|| remove(first, OperationKind::ReplaceDead))
}

fn replacement_ready(view: &View, wish: &Wish, dead: &MemberView) -> bool {
    let free = |slot: &Slot| !view.voters().any(|m| m.id != dead.id && m.slot.as_ref() == Some(slot));
    wish.slots.iter().filter(|slot| free(slot)).any(|slot| offer(view, slot).is_some())
}

/// The even state is left backwards when the new voter fell silent (rule I12).
fn roll_back(view: &View) -> Option<(StepKind, Operation)> {
    let operation = last_operation(view).filter(|o| o.kind == OperationKind::ReplaceLive)?;
    let new = view.member(operation.new?).filter(|m| !m.learner && matches!(m.life, Life::Unknown(_)))?;
    let even = view.voters().count().is_multiple_of(2);
    let others_alive = view.voters().all(|m| m.id == new.id || m.life.alive());
    (even && others_alive && view.since_change_ms >= EVEN_STATE_MS)
        .then(|| remove(new, OperationKind::RollBack))
}

fn offer<'a>(view: &'a View, slot: &Slot) -> Option<&'a SlotOffer> {
    view.heard(&slot.site)?.offers.iter().find(|offer| offer.slot == *slot)
}

/// Adds a learner for an open slot; in the same site as the voter that will go, if there is one.
fn fill(view: &View, wish: &Wish, n: usize, extra: Option<&MemberView>) -> Goal {
    let open = wish.slots.iter().filter(|slot| !view.voters().any(|m| m.slot.as_ref() == Some(*slot)));
    let resting = |slot: &Slot| view.backing_off.iter().find(|(s, _)| s == slot);
    let near = |slot: &Slot| extra.and_then(|m| m.site()) == Some(&slot.site);
    let best = open.min_by_key(|slot| {
        let ready = offer(view, slot).is_some() && resting(slot).is_none();
        let far = safety::too_far(view, &slot.site).is_some();
        (!ready, far, !near(slot), view.voters_at(&slot.site), (*slot).clone())
    });
    let Some(slot) = best else { return Goal::Reached };
    let Some(offer) = offer(view, slot) else {
        let not_ready = || Reason::new(Code::SlotNotReady).site(&slot.site);
        let held_up = || view.heard(&slot.site).and_then(|o| o.held_up.clone());
        return Goal::Wait(view.hindrance(slot).cloned().or_else(held_up).unwrap_or_else(not_ready));
    };
    if let Some((_, ms)) = resting(slot) {
        return Goal::Wait(Reason::new(Code::TooSoon).site(&slot.site).numbers(0, *ms));
    }
    // etcd refuses every add unless q(n + 1) voters are connected (etcd-facts.md 5): asking would only use up numbers.
    if n > 1 && arithmetic(view).alive < quorum(n + 1) {
        return view
            .voters()
            .find(|m| !m.life.alive())
            .map_or(Goal::Reached, |m| Goal::Wait(missing(view, m)));
    }
    let operation = match extra {
        Some(extra) if n >= wish.slots.len() => {
            Operation { kind: OperationKind::ReplaceLive, source: Some(extra.id), new: None }
        }
        _ => Operation { kind: OperationKind::ScaleUp, source: None, new: None },
    };
    let (peer_url, incarnation) = (offer.peer_url.clone(), offer.incarnation);
    Goal::Step(StepKind::AddLearner { slot: slot.clone(), peer_url, incarnation }, operation)
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The step.
    pub step: Step,
    /// What the step waits for now; empty = it could be taken as soon as the one before is settled.
    pub waits: Vec<Reason>,
    /// The slot of the member that it is about.
    pub place: Option<Slot>,
    /// That member is not listed yet: its id in the step is made up.
    pub invented: bool,
    /// What a person should know of the state that it leaves.
    pub remarks: Vec<Remark>,
}

/// What a person should know of the state between two steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// The number of voters is even (rule I12).
    EvenState(usize),
    /// The loss of any of these sites would stop writes.
    AtRisk(Vec<Domain>),
}

impl std::fmt::Display for Remark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::EvenState(voters) => {
                write!(
                    f,
                    "I12: {voters} voters survive no more losses than {}; left as soon as possible",
                    voters - 1
                )
            }
            Self::AtRisk(sites) => {
                let names: Vec<String> = sites.iter().map(ToString::to_string).collect();
                let any = if names.len() == 1 { "" } else { "any of " };
                write!(f, "QuorumAtRisk: the loss of {any}{} would stop writes", names.join(", "))
            }
        }
    }
}

fn remarks(model: &View, step: &Step) -> Vec<Remark> {
    let moves_voters =
        matches!(step.kind, StepKind::Promote { .. } | StepKind::Remove { learner: false, .. });
    if !moves_voters {
        return Vec::new();
    }
    let n = model.voters().count();
    let risky: Vec<Domain> = at_risk(model, false).into_iter().map(|(domain, _)| domain).collect();
    let even = n.is_multiple_of(2).then_some(Remark::EvenState(n));
    even.into_iter().chain((!risky.is_empty()).then_some(Remark::AtRisk(risky))).collect()
}

/// A bound for plans: the longest sensible way (5 voters from two sites to two others) has about 40 steps.
const MAX_STEPS: usize = 64;

/// `next`, iterated on a model in which every step succeeds, every wait passes, and every site that is heard, or was
/// never asked before, does its part: for people.
pub fn plan(view: &View, wish: &Wish) -> (Vec<Planned>, Decision) {
    let mut model = view.clone();
    let mut wish = wish.clone();
    let mut steps = Vec::new();
    let mut waits: Vec<Reason> = next(view, &wish).reason().cloned().into_iter().collect();
    // Any site may ask what will happen, not only the executor.
    model.own_leads = model.leader.is_some();
    loop {
        settle(&mut model, &mut wish);
        match next(&model, &wish) {
            Decision::Step(step) if steps.len() < MAX_STEPS => {
                let target = step.kind.target();
                let place = match &step.kind {
                    StepKind::AddLearner { slot, .. } => Some(slot.clone()),
                    _ => target.and_then(|id| model.member(id)).and_then(|m| m.slot.clone()),
                };
                apply(&mut model, &mut wish, &step);
                steps.push(Planned {
                    waits: std::mem::take(&mut waits),
                    place,
                    invented: target.is_some_and(|id| view.member(id).is_none()),
                    remarks: remarks(&model, &step),
                    step: *step,
                });
            }
            Decision::Wait(reason) if assume(&mut model, &wish, &reason) => {
                if !waits.contains(&reason) {
                    waits.push(reason);
                }
            }
            end => return (steps, end),
        }
    }
}

/// Lets another site do what is waited for: hold the new spec, offer its slot. A site that was heard before and is silent
/// now does nothing. True if the model moved on.
fn assume(model: &mut View, wish: &Wish, reason: &Reason) -> bool {
    match reason.code {
        Code::ActivationPending | Code::SpecDrift => {
            let own = model.site(&model.me).and_then(|site| site.observation.as_ref()?.spec);
            let Some(digest) = wish.pending.as_ref().map(|pending| pending.digest).or(own) else {
                return false;
            };
            let mut sites: Vec<SiteName> = model.voters().filter_map(|m| m.site().cloned()).collect();
            sites.extend(wish.slots.iter().map(|slot| slot.site.clone()));
            sites.extend(wish.pending.iter().flat_map(|pending| pending.sites.iter().cloned()));
            let mut moved = false;
            for site in sites {
                if let Some(o) = willing(model, &site).filter(|o| o.spec != Some(digest)) {
                    o.spec = Some(digest);
                    moved = true;
                }
            }
            moved
        }
        Code::SlotNotReady | Code::EvenStateUnprepared => {
            let taken = |slot: &&Slot| model.members.iter().any(|m| m.slot.as_ref() == Some(*slot));
            let open = wish.slots.iter().filter(|slot| Some(&slot.site) == reason.site.as_ref());
            let open: Vec<Slot> = open.filter(|slot| !taken(slot)).cloned().collect();
            let mut moved = false;
            for slot in open {
                let offered = |o: &&mut SiteObservation| o.offers.iter().any(|offer| offer.slot == slot);
                if let Some(o) = willing(model, &slot.site).filter(|o| !offered(o)) {
                    let (peer_url, incarnation) = (PeerUrl("".into()), IncarnationId(0));
                    o.offers.push(SlotOffer { slot, peer_url, incarnation });
                    moved = true;
                }
            }
            moved
        }
        _ => false,
    }
}

/// What a site that will do its part says; none for one that has fallen silent.
fn willing<'a>(model: &'a mut View, name: &SiteName) -> Option<&'a mut SiteObservation> {
    use std::sync::Arc;
    let known = model.sites.iter().position(|site| site.name == *name);
    let at = known.unwrap_or_else(|| {
        model.sites.push(SiteView { name: name.clone(), age_ms: None, observation: None });
        model.sites.len() - 1
    });
    let site = model.sites.get_mut(at)?;
    if site.age_ms.is_some() && !site.heard() {
        return None;
    }
    site.age_ms = Some(site.age_ms.unwrap_or(0));
    let observation = site.observation.get_or_insert_with(|| Arc::new(SiteObservation::empty(name.clone())));
    Some(Arc::make_mut(observation))
}

/// Lets everything that only needs time pass. Who is alive stays as it is.
fn settle(model: &mut View, wish: &mut Wish) {
    model.since_change_ms = model.settle_ms; // enough for I13, too little for a roll-back
    model.no_quorum_ms = 0;
    wish.restarting = None;
    model.freed.clear();
    model.backing_off.clear();
    model.open = None;
    let list = model.members.iter().map(|m| ListedMember {
        id: m.id,
        name: if m.named { "named".into() } else { "".into() },
        peer_url: m.peer_url.clone(),
        learner: m.learner,
    });
    let list = MemberList::new(list.collect());
    let digest = list.digest();
    model.list = Some(list);
    for member in model.members.iter_mut().filter(|m| m.life.alive()) {
        member.list = Some(digest);
        member.says_learner = Some(member.learner);
        member.ready = true;
    }
    let voters: Vec<(MemberId, bool)> = model.members.iter().map(|m| (m.id, m.learner)).collect();
    for (member, learner) in voters {
        if !model.checks.iter().any(|c| c.member == member && c.as_voter != learner) {
            model.checks.push(DataCheck { member, revision: Revision(1), equal: true, as_voter: !learner });
        }
        let linked = model.members.iter().map(|m| m.id).collect::<Vec<_>>();
        complete_rows(model, &linked);
    }
    model.learner = model.members.iter().find(|m| m.learner && m.life.alive()).map(|m| LearnerTrack {
        member: m.id,
        good_samples: safety::GOOD_SAMPLES,
        good_ms: safety::PROVEN_MS,
        stalled_ms: 0,
    });
}

fn complete_rows(model: &mut View, members: &[MemberId]) {
    use crate::federation::observed::Link;
    use std::sync::Arc;
    for site in &mut model.sites {
        let Some(observation) = &mut site.observation else {
            continue;
        };
        for member in members {
            if observation.link(*member).is_none() {
                let (good_ms, us) = (safety::PROVEN_MS, 1);
                let link =
                    Link { member: *member, misses: 0, good_ms, rtt_us: us, least_us: us, stale: false };
                Arc::make_mut(observation).links.push(link);
            }
        }
    }
}

/// The model after a step that succeeded.
fn apply(model: &mut View, wish: &mut Wish, step: &Step) {
    use std::sync::Arc;
    match &step.kind {
        StepKind::AddLearner { slot, peer_url, incarnation } => {
            let id = MemberId(model.members.iter().map(|m| m.id.0).max().unwrap_or(0).wrapping_add(1));
            model.members.push(MemberView {
                id,
                peer_url: peer_url.clone(),
                slot: Some(slot.clone()),
                learner: true,
                named: true,
                life: Life::Alive,
                lag: Some(0),
                list: None,
                says_learner: Some(true),
                ready: true,
                alarm: false,
                downgrading: false,
                version: model.members.first().and_then(|m| m.version),
                certificates_good: true,
                incarnation: Some(*incarnation),
                linked_ms: safety::PROVEN_MS,
                options: Some(wish.options.clone()),
                moves_to: None,
                restart: false,
            });
            model.commit = Index(model.commit.0 + 1);
            for o in model.sites.iter_mut().filter_map(|s| s.observation.as_mut()) {
                if o.site == slot.site {
                    Arc::make_mut(o).offers.retain(|offer| offer.slot != *slot);
                }
            }
        }
        StepKind::Promote { member } => {
            if let Some(m) = model.members.iter_mut().find(|m| m.id == *member) {
                m.learner = false;
            }
        }
        StepKind::Remove { member, .. } => {
            model.members.retain(|m| m.id != *member);
            model.checks.retain(|c| c.member != *member);
        }
        StepKind::UpdateUrl { member, peer_url } => {
            if let Some(m) = model.members.iter_mut().find(|m| m.id == *member) {
                m.peer_url = peer_url.clone();
            }
            wish.url_changes.retain(|(id, _, _)| id != member);
        }
        StepKind::MoveLeader { to } => {
            model.leader = Some(*to);
            // Where it belongs is measured anew by whoever leads then.
            wish.leader = None;
        }
        StepKind::ActivateSpec { generation, .. } => {
            wish.generation = *generation;
            if let Some(pending) = wish.pending.take() {
                wish.slots = pending.slots;
                wish.allow_single_voter = pending.allow_single_voter;
            }
            wish.retimed = None;
        }
        StepKind::Snapshot => {
            for site in &mut model.sites {
                if let Some(o) = &mut site.observation {
                    Arc::make_mut(o).backup_age_s = Some(0);
                }
            }
        }
    }
    remember(model, step);
}

/// The own record would hold the step as its last change: replacements are told apart by it.
fn remember(model: &mut View, step: &Step) {
    use crate::intent::Change;
    use std::sync::Arc;
    let Some(kind) = step.kind.intent().filter(|_| step.kind.changes_membership()) else {
        return;
    };
    let me = model.me.clone();
    let own = model.sites.iter_mut().find(|s| s.name == me).and_then(|s| s.observation.as_mut());
    if let Some(observation) = own {
        let change = Change { kind, operation: step.operation };
        Arc::make_mut(&mut Arc::make_mut(observation).record).changed = Some(Arc::new(change));
    }
}

/// What the rules say of a step that was not planned just now: an open intent that is to be repeated.
pub fn judge_step(view: &View, wish: &Wish, kind: &StepKind, operation: Operation) -> Result<(), Reason> {
    Proposed { view, wish, kind, operation }.permitted()
}
