//! Where leadership belongs: at the voter that is nearest to a majority (networking.md 7). A write waits for the round
//! trip to the voter whose acknowledgement completes the majority; which one that is follows from who leads.

use crate::federation::view::{MemberView, View};
use crate::id::MemberId;

/// Another leader must be better by so much, percent: a hand-over costs every client a moment.
pub const WORTH_PERCENT: u64 = 30;

/// And by so much, microseconds. Within a site or a zone the disk decides how long a write takes, not the way.
pub const WORTH_US: u32 = 1_000;

/// How long a commit waits for others if this voter leads, microseconds; none while a distance is not known.
pub fn commit_us(view: &View, leader: &MemberView) -> Option<u32> {
    let here = leader.site()?;
    let others = view.voters().filter(|m| m.id != leader.id);
    let mut ways: Vec<u32> = others.map(|m| view.distance(here, m.site()?)).collect::<Option<_>>()?;
    ways.sort_unstable();
    // The leader is one of the majority itself.
    match view.voters().count() / 2 {
        0 => Some(0),
        needed => ways.get(needed - 1).copied(),
    }
}

/// The voter that had better lead, if that is worth a hand-over. Only where it can be acted on, and only while nothing
/// is missing: whoever leads well with everybody there may not with somebody away.
pub fn better(view: &View) -> Option<MemberId> {
    let leader = view.leader.and_then(|id| view.member(id)).filter(|_| view.own_leads)?;
    if view.learners().next().is_some() || !view.voters().all(|m| m.life.alive()) {
        return None;
    }
    let now_us = commit_us(view, leader)?;
    let ways = view.voters().map(|m| Some((commit_us(view, m)?, m.id))).collect::<Option<Vec<_>>>()?;
    let (best_us, best) = ways.into_iter().min()?;
    let clear = now_us.saturating_sub(best_us) >= WORTH_US
        && u64::from(best_us) * 100 <= u64::from(now_us) * (100 - WORTH_PERCENT);
    clear.then_some(best)
}

/// Watches whether the same voter would have led better for long enough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Patience {
    since: Option<(u64, MemberId)>,
}

impl Patience {
    /// Takes note of a judgement; the voter that leadership should go to once every judgement of the last `after_ms` named
    /// it.
    pub fn note(&mut self, now_ms: u64, after_ms: u64, better: Option<MemberId>) -> Option<MemberId> {
        self.since = better.map(|to| match self.since {
            Some((at, same)) if same == to => (at, same),
            _ => (now_ms, to),
        });
        self.since.filter(|(at, _)| now_ms.saturating_sub(*at) >= after_ms).map(|(_, to)| to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_steady_judgement_counts() {
        let (one, two) = (MemberId(1), MemberId(2));
        let mut patience = Patience::default();
        assert_eq!(patience.note(0, 600, Some(one)), None);
        assert_eq!(patience.note(500, 600, Some(one)), None);
        assert_eq!(patience.note(590, 600, Some(two)), None, "another one begins anew");
        assert_eq!(patience.note(600, 600, Some(two)), None);
        assert_eq!(patience.note(1_190, 600, Some(two)), Some(two));
        assert_eq!(patience.note(1_200, 600, None), None);
        assert_eq!(patience.note(1_300, 600, Some(two)), None);
    }
}
