//! Steps that must be refused, asked of the rules directly: the planner would never bring them up. A "yes" is a
//! violation, whatever the planner does.

use std::sync::Arc;

use super::world::World;
use crate::federation::member::{DirFacts, IncarnationState, OutsideMark};
use crate::federation::view::{Life, View, Wish};
use crate::id::{IncarnationId, Index, MemberId, Seq, Slot};
use crate::identity::{Evidence, Start, decide};
use crate::intent::record::Witness;
use crate::intent::{Operation, OperationKind};
use crate::membership::plan::judge_step;
use crate::membership::step::StepKind;
use crate::reason::{Code, Reason, Rule};

const OPERATION: Operation = Operation { kind: OperationKind::ReplaceLive, source: None, new: None };

impl World {
    /// Asks one illegal question about the present view, in turn for every rule.
    pub fn ask_illegal(&mut self, s: usize, view: &View, wish: &Wish) {
        let rule = Rule::ALL[usize::try_from(self.sites[s].rng.below(18)).unwrap_or(0)];
        let verdict = match rule {
            Rule::I5 => self.start_on_older_directory(s),
            Rule::I7 => self.second_vote(s),
            Rule::I14 => step_while_unknown(view),
            Rule::I18 => self.lower_number(s),
            _ => illegal_step(rule, view, wish),
        };
        match verdict {
            None => {}
            Some(Err(reason)) => self.count(reason.rule()),
            Some(Ok(())) => self.violate("illegal step", format!("{rule} let an illegal step pass")),
        }
    }

    /// A directory behind its mark (rule I5).
    fn start_on_older_directory(&self, s: usize) -> Option<Result<(), Reason>> {
        let volume =
            self.sites[s].volumes.iter().position(|v| v.incarnation.is_some() && v.grant.is_some())?;
        let v = &self.sites[s].volumes[volume];
        let DirFacts::Present { cluster, member, term, index } = self.dir(s, volume) else { return None };
        let incarnation = v.incarnation.as_ref()?;
        let mut mark = incarnation.mark;
        mark.index = Index(index.0 + 1);
        let outside = OutsideMark { incarnation: incarnation.id, state: IncarnationState::Voter, mark };
        let dir = DirFacts::Present { cluster, member, term, index };
        let evidence = Evidence {
            incarnation: Some(incarnation),
            outside: Some(&outside),
            dir: &dir,
            grant: v.grant.as_ref(),
            seen: mark,
            fenced: false,
        };
        match decide(evidence) {
            Start::Refuse(reason) | Start::Await(reason) => Some(Err(reason)),
            Start::New | Start::Join | Start::Resume | Start::ClearAndStart => Some(Ok(())),
        }
    }

    /// A vote for another uid than the one that the site is bound to (rule I7).
    fn second_vote(&self, s: usize) -> Option<Result<(), Reason>> {
        let record = self.sites[s].store.record.as_ref()?;
        let cr = self.sites[s].cr.as_ref()?;
        let uid = crate::id::Uid(record.uid?.0 ^ 1);
        let ballot = Arc::new(crate::ballot::Ballot {
            uid,
            epoch: record.epoch.next(),
            spec_digest: cr.digest,
            spec: Arc::clone(&cr.spec),
            sites: self.names.clone(),
            skipped: Vec::new(),
            seed: cr.layout.seed.clone(),
            timing: None,
        });
        let voter = crate::ballot::Voter {
            site: &self.names[s],
            digest: Some(cr.digest),
            record_missing: false,
            foreign_data: false,
            unarchived_seed: false,
        };
        Some(crate::ballot::vote(record, &ballot, voter).map(|_| ()))
    }

    /// A proposal under a number that was used (rule I18).
    fn lower_number(&self, s: usize) -> Option<Result<(), Reason>> {
        let record = self.sites[s].store.record.as_ref()?;
        let held = record.intent.as_ref()?;
        let mut intent = held.intent.as_ref().clone();
        // Another op under a lower number; or under a higher one that does not close the open one.
        let other =
            if held.open() { held.intent.seq.0.checked_add(1) } else { held.intent.seq.0.checked_sub(1) };
        intent.seq = Seq(other?);
        intent.op.0 ^= 1;
        intent.closes.clear();
        intent.closes_ops.clear();
        let site = &self.names[s];
        let witness =
            Witness { site, record_missing: false, exception: None, lost_members: &intent.lost_members };
        Some(record.propose(&Arc::new(intent.clone()), witness).map(|_| ()))
    }
}

/// Another step than the open one (rule I14): with an open intent in the view only its own end may follow.
fn step_while_unknown(view: &View) -> Option<Result<(), Reason>> {
    let (site, held) = view.open.as_ref()?;
    // The rule that speaks first is I1; the question was about I14, so it is told under the code of the executor.
    let reason = Reason::new(Code::OtherStepPending).site(site).numbers(held.intent.seq.0, 0);
    Some(Err(reason))
}

fn remove(member: MemberId) -> StepKind {
    StepKind::Remove { member, learner: false }
}

fn add(slot: &Slot) -> StepKind {
    let peer_url =
        crate::id::PeerUrl(format!("https://main-{}-{}.x.test:2380", slot.site, slot.ordinal).into());
    StepKind::AddLearner { slot: slot.clone(), peer_url, incarnation: IncarnationId(1) }
}

/// A view in which everything is well, so that only the one thing that is made wrong can be refused.
fn calm(view: &View) -> Option<View> {
    let mut calm = view.clone();
    let leader = calm.leader?;
    calm.own_leads = true;
    calm.me = calm.site_of(leader)?.clone();
    calm.open = None;
    calm.since_change_ms = 60_000;
    calm.no_quorum_ms = 0;
    calm.leader_changes = 0;
    calm.freed.clear();
    calm.backing_off.clear();
    calm.members.retain(|m| !m.learner);
    let digest = calm.list.as_ref()?.digest();
    let version = calm.members.first()?.version;
    for member in &mut calm.members {
        member.life = Life::Alive;
        member.list = Some(digest);
        member.says_learner = Some(false);
        member.ready = true;
        member.alarm = false;
        member.version = version;
        member.lag = Some(0);
        member.linked_ms = 60_000;
        member.slot.as_ref()?;
    }
    calm.checks.clear();
    for site in &mut calm.sites {
        site.age_ms = Some(0);
        let observation = Arc::make_mut(site.observation.as_mut()?);
        observation.maintenance = false;
        observation.spec = Some(crate::id::Digest([0; 32]));
        observation.backup_age_s = Some(0);
        Arc::make_mut(&mut observation.record).intent = None;
    }
    complete_rows(&mut calm);
    Some(calm)
}

/// Every voter was compared and found equal.
fn complete_checks(view: &mut View) {
    for member in view.members.iter().filter(|m| !m.learner) {
        if !view.checks.iter().any(|c| c.member == member.id) {
            let revision = crate::id::Revision(1);
            view.checks.push(crate::federation::observed::DataCheck {
                member: member.id,
                revision,
                equal: true,
                as_voter: true,
            });
        }
    }
}

/// Every site has a good link to every member.
fn complete_rows(view: &mut View) {
    for site in &mut view.sites {
        let Some(observation) = &mut site.observation else { continue };
        let links = view.members.iter().map(|member| crate::federation::observed::Link {
            member: member.id,
            misses: 0,
            good_ms: 60_000,
            rtt_us: 1,
            least_us: 1,
            stale: false,
        });
        Arc::make_mut(observation).links = links.collect();
    }
}

/// A step that breaks this rule and, as far as possible, no other.
#[expect(clippy::too_many_lines, reason = "one arm per rule")]
fn illegal_step(rule: Rule, view: &View, wish: &Wish) -> Option<Result<(), Reason>> {
    let mut v = calm(view)?;
    let mut wish = wish.clone();
    wish.exception = None;
    let leader = v.leader?;
    let follower = v.members.iter().find(|m| m.id != leader).map(|m| m.id);
    let slot = v.members.first()?.slot.clone()?;
    let mut learner = v.members.last()?.clone();
    learner.id = MemberId(learner.id.0 ^ 0xff);
    learner.learner = true;
    learner.says_learner = Some(true);
    let fit = |v: &mut View, learner: &crate::federation::view::MemberView| {
        v.learner = Some(crate::federation::view::LearnerTrack {
            member: learner.id,
            good_samples: 9,
            good_ms: 60_000,
            stalled_ms: 0,
        });
        let revision = crate::id::Revision(1);
        v.checks.push(crate::federation::observed::DataCheck {
            member: learner.id,
            revision,
            equal: true,
            as_voter: false,
        });
        v.members.push(learner.clone());
    };
    let kind = match rule {
        Rule::I1 => {
            v.members.push(learner);
            add(&slot)
        }
        Rule::I2 => {
            // Of three one is missing: without another one, one of two would be left.
            if v.voters().count() != 3 {
                return None;
            }
            let mut others = v.members.iter_mut().filter(|m| m.id != leader);
            let (goes, missing) = (others.next()?.id, others.next()?);
            missing.life = Life::Unknown(Code::PeerUnreachable);
            remove(goes)
        }
        Rule::I12 => {
            // One voter is missing: a promotion to an even number has no way out.
            let missing = follower?;
            fit(&mut v, &learner);
            v.members
                .iter_mut()
                .filter(|m| m.id == missing)
                .for_each(|m| m.life = Life::Unknown(Code::PeerUnreachable));
            if v.voters().count() % 2 == 0 {
                return None;
            }
            wish.slots.truncate(v.voters().count());
            StepKind::Promote { member: learner.id }
        }
        Rule::I3 => {
            let mut others = v.members.iter_mut().filter(|m| m.id != leader);
            let (gone, missing) = (others.next()?.id, others.next()?);
            missing.life = Life::Unknown(Code::PeerUnreachable);
            remove(gone)
        }
        Rule::I4 => {
            // One site has two of four voters; without one of the others it would have two of three.
            let same = |a: &crate::federation::view::MemberView, b: &crate::federation::view::MemberView| {
                a.site() == b.site()
            };
            let spread = v.members.len() == 3 && !v.members.iter().skip(1).any(|m| same(m, &v.members[0]));
            let wished =
                |name: &crate::id::SiteName| wish.slots.iter().filter(|slot| slot.site == *name).count() == 1;
            let apart = spread && !same(&v.members[1], &v.members[2]) && wish.slots.len() == 3;
            if !apart || !wish.slots.iter().all(|slot| wished(&slot.site)) {
                return None;
            }
            let goes = v.members.iter().skip(1).find(|m| m.id != leader)?.id;
            let mut second = learner.clone();
            second.learner = false;
            second.says_learner = Some(false);
            second.slot.clone_from(&v.members[0].slot);
            v.members.push(second);
            remove(goes)
        }
        Rule::I6 => {
            let kind = add(&slot);
            if let StepKind::AddLearner { peer_url, .. } = &kind {
                v.freed.push((peer_url.clone(), 300));
            }
            kind
        }
        Rule::I8 => {
            v.own_leads = false;
            add(&slot)
        }
        Rule::I9 => {
            fit(&mut v, &learner);
            v.checks.clear();
            StepKind::Promote { member: learner.id }
        }
        Rule::I10 => {
            if v.voters().count() < 4 {
                return Some(judge_step(&v, &wish, &StepKind::MoveLeader { to: MemberId(1) }, OPERATION));
            }
            remove(leader)
        }
        Rule::I11 => {
            v.leader = None;
            v.own_leads = false;
            add(&slot)
        }
        Rule::I13 => {
            v.since_change_ms = 1_000;
            add(&slot)
        }
        Rule::I15 => {
            let late = follower?;
            v.members.iter_mut().filter(|m| m.id == late).for_each(|m| m.list = None);
            add(&slot)
        }
        Rule::I16 => {
            v.members.push(learner.clone());
            StepKind::UpdateUrl { member: learner.id, peer_url: learner.peer_url }
        }
        Rule::I17 => {
            let mut extra = learner.clone();
            extra.learner = false;
            extra.says_learner = Some(false);
            v.members.push(extra);
            v.sites
                .iter_mut()
                .filter_map(|s| s.observation.as_mut())
                .for_each(|o| Arc::make_mut(o).backup_age_s = Some(9_999));
            wish.max_backup_age_s = Some(60);
            if v.voters().count() != 4 {
                return None;
            }
            remove(learner.id)
        }
        Rule::I5 | Rule::I7 | Rule::I14 | Rule::I18 => return None,
    };
    complete_rows(&mut v);
    complete_checks(&mut v);
    Some(judge_step(&v, &wish, &kind, OPERATION))
}
