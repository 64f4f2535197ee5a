//! Random sequences of operations, made from the model's state so that every kind of refusal has a chance.

use std::fmt;

use quorate_core::sim::rng::Rng;

/// Whom an operation is about; resolved when it is carried out, on both sides alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    Unknown,
    Leader,
    Follower,
    Learner,
    Down,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Many writes: enough to make a member that misses them lag by more than a tenth.
    Write,
    AddLearner,
    AddDuplicate,
    AddVoter,
    /// Start the member that was added and never ran.
    StartNew,
    Promote(Whom),
    Remove(Whom),
    MoveLeader(Whom),
    /// Ask a follower to move the leader.
    MoveByFollower,
    /// To an address of its own that no other member has.
    UpdateOwn(Whom),
    /// To an address that another member has.
    UpdateDuplicate(Whom),
    Kill(Whom),
    Restart,
    /// Longer than etcd's `HealthInterval`.
    Calm,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// What the generator looks at.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent fact")]
pub(crate) struct Situation {
    pub(crate) learner: bool,
    pub(crate) unstarted: bool,
    pub(crate) down: usize,
    pub(crate) voters: usize,
    pub(crate) quorum: bool,
    /// Membership calls may be refused for the five-second rule.
    pub(crate) calm: bool,
}

pub(crate) fn next(rng: &mut Rng, s: Situation) -> Op {
    use Whom::{Down, Follower, Leader, Learner, Unknown};
    if !s.quorum {
        let choices = [Op::Restart, Op::Restart, Op::Restart, Op::Write, Op::AddLearner, Op::Remove(Down)];
        return *rng.pick(&choices).unwrap_or(&Op::Restart);
    }
    if !s.calm && rng.chance(60) {
        return Op::Calm;
    }
    let mut choices = vec![
        Op::AddLearner,
        Op::AddLearner,
        Op::AddDuplicate,
        Op::Promote(Unknown),
        Op::Promote(Follower),
        Op::Promote(Leader),
        Op::Remove(Unknown),
        Op::MoveLeader(Unknown),
        Op::MoveLeader(Follower),
        Op::MoveByFollower,
        Op::UpdateOwn(Unknown),
        Op::UpdateOwn(Follower),
        Op::UpdateDuplicate(Follower),
        Op::Write,
        Op::Kill(Follower),
        Op::Kill(Leader),
    ];
    if s.voters > 3 {
        choices.extend([Op::Remove(Follower), Op::Remove(Follower), Op::Remove(Leader)]);
    } else {
        choices.push(Op::Remove(Follower));
    }
    if s.learner {
        choices.extend([Op::Promote(Learner), Op::Promote(Learner), Op::MoveLeader(Learner), Op::AddLearner]);
        choices.extend([Op::Remove(Learner), Op::UpdateOwn(Learner)]);
        if !s.unstarted {
            choices.push(Op::Kill(Learner));
        }
    } else if s.voters < 4 {
        choices.push(Op::AddVoter);
    }
    if s.unstarted {
        choices.extend([Op::StartNew; 4]);
    }
    if s.down > 0 {
        choices.extend([
            Op::Restart,
            Op::Restart,
            Op::Remove(Down),
            Op::Remove(Follower),
            Op::MoveLeader(Down),
        ]);
        choices.extend([Op::Promote(Down), Op::Promote(Down), Op::AddLearner]);
    }
    *rng.pick(&choices).unwrap_or(&Op::Calm)
}
