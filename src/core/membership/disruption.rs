//! Which running voter may be interrupted next: one at a time in the whole federation, under the margin rule
//! (networking.md 9, safety.md 6), the leader last and after it has handed leadership over (rule I10).
//!
//! The executor grants a token; its holder restarts its member. Nothing of it is durable: a token that is forgotten is
//! waited for as long as it could have lived.

use serde::{Deserialize, Serialize};

use crate::federation::member::EtcdOptions;
use crate::federation::view::{MemberView, View};
use crate::id::{MemberId, SiteName, Term};
use crate::membership::quorum::arithmetic;
use crate::membership::safety::{i8_only_the_executor, i11_quorum_lost_hands_off};
use crate::reason::{Code, Reason};

/// How long a token lives.
pub const TOKEN_MS: u64 = 30_000;

/// How long after its request the holder may still begin: the rest of the token's life is for what was begun, and for
/// clocks that do not run alike.
pub const BEGIN_MS: u64 = 20_000;

/// What an agent asks of the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// The voter that it wants to restart.
    pub member: MemberId,
}

/// The executor's yes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainGrant {
    /// The term in which it leads.
    pub term: Term,
    /// How long the holder may still begin, counted from its request, ms.
    pub begin_ms: u64,
}

/// A token that is out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    member: MemberId,
    site: Option<SiteName>,
    /// Own clock.
    granted_at: u64,
    /// What the member ran with then.
    before: Option<EtcdOptions>,
}

/// What an executor remembers of its tokens.
#[derive(Debug, Default)]
pub struct Tokens {
    out: Option<Token>,
    /// When the last token came back, own clock.
    freed_at: Option<u64>,
    /// The term in which the own member leads, and since when, own clock.
    leads: Option<(Term, u64)>,
}

impl Tokens {
    /// Looks who is back. To be called with each fresh view.
    pub fn note(&mut self, view: &View, now: u64) {
        if !view.own_leads {
            self.leads = None;
        } else if self.leads.is_none_or(|(term, _)| term != view.term) {
            self.leads = Some((view.term, now));
        }
        let Some(token) = &self.out else { return };
        let over = now.saturating_sub(token.granted_at) >= TOKEN_MS;
        let back = match view.member(token.member) {
            // It was restarted, or the holder let the token lapse.
            Some(m) if m.life.alive() => over || (m.options.is_some() && m.options != token.before),
            Some(m) => m.life.dead(),
            None => true,
        };
        if back {
            self.out = None;
            self.freed_at = Some(now);
        }
    }

    /// The restart that holds up everything else while its token lives.
    pub fn running(&self, now: u64) -> Option<Reason> {
        let token = self.out.as_ref().filter(|token| now.saturating_sub(token.granted_at) < TOKEN_MS)?;
        Some(Reason::new(Code::RestartRunning).member(token.member).maybe_site(token.site.as_ref()))
    }

    /// Grants the token for a voter, or says what stands against it. `busy`: a membership step runs or is planned.
    pub fn grant(
        &mut self,
        view: &View,
        request: DrainRequest,
        busy: bool,
        now: u64,
    ) -> Result<DrainGrant, Reason> {
        i11_quorum_lost_hands_off(view)?;
        i8_only_the_executor(view)?;
        let known = view.member(request.member);
        let m = known.ok_or_else(|| Reason::new(Code::IdRemoved).member(request.member))?;
        let voters = view.voters().count();
        if let Some(token) = self.out.as_ref().filter(|token| token.member != m.id) {
            let reason = Reason::new(Code::RestartRunning).member(token.member);
            return Err(reason.maybe_site(token.site.as_ref()));
        }
        nothing_in_flight(view, busy)?;
        // What is down already is not interrupted by a restart; and of one voter everybody knows that it pauses.
        if m.life.alive() && voters > 1 {
            self.margin(view, m, now)?;
        }
        let before = m.options.clone();
        self.out = Some(Token { member: m.id, site: m.site().cloned(), granted_at: now, before });
        Ok(DrainGrant { term: view.term, begin_ms: BEGIN_MS })
    }

    fn margin(&self, view: &View, m: &MemberView, now: u64) -> Result<(), Reason> {
        // The executor before may have granted a token just before it lost the lead.
        let led = self.leads.map_or(0, |(_, since)| now.saturating_sub(since));
        if led < TOKEN_MS {
            return Err(Reason::new(Code::TokenUnsure).numbers(led, TOKEN_MS));
        }
        let about = |code: Code| Reason::new(code).member(m.id).maybe_site(m.site());
        // What is back has to reach everybody again before the next one goes, as after a change (rule I13).
        let rested = self.freed_at.map_or(view.settle_ms, |at| now.saturating_sub(at));
        if rested < view.settle_ms {
            return Err(Reason::new(Code::TooSoon).numbers(rested, view.settle_ms));
        }
        let now = arithmetic(view);
        if now.alive <= now.quorum {
            return Err(about(Code::NoSlack).numbers(now.alive as u64, now.quorum as u64 + 1));
        }
        if view.leader_changes >= 2 {
            return Err(Reason::new(Code::LeaderUnstable).numbers(u64::from(view.leader_changes), 1));
        }
        if view.leader == Some(m.id) {
            return Err(about(Code::LeaderInTheWay));
        }
        Ok(())
    }
}

fn nothing_in_flight(view: &View, busy: bool) -> Result<(), Reason> {
    if let Some((site, held)) = &view.open {
        return Err(Reason::new(Code::IntentUnresolved).site(site).numbers(held.intent.seq.0, 0));
    }
    if let Some(learner) = view.learners().next() {
        return Err(Reason::new(Code::LearnerPresent).member(learner.id).maybe_site(learner.site()));
    }
    if busy { Err(Code::StepsFirst.into()) } else { Ok(()) }
}

/// What a voter is restarted with next on the way from its own options to the effective ones; its own ones if there is
/// nothing to do now. The version stays: another one is an upgrade, and no matter of a restart alone.
///
/// Timers change in an order in which no leader's heartbeat ever comes too seldom for a follower: a larger election
/// timeout on all voters first, then the heartbeat; a smaller one only after the heartbeat (networking.md 7).
#[expect(clippy::needless_pass_by_value, reason = "whoever asks makes the iterator for this one question")]
pub fn next_options<'a>(
    own: &EtcdOptions,
    effective: &EtcdOptions,
    others: impl Iterator<Item = Option<&'a EtcdOptions>> + Clone,
) -> EtcdOptions {
    let all = |good: fn(&EtcdOptions, &EtcdOptions) -> bool| {
        others.clone().all(|other| other.is_some_and(|other| good(other, effective)))
    };
    let slower = effective.heartbeat_ms > own.heartbeat_ms;
    let patient = all(|other, effective| other.election_ms >= effective.election_ms);
    let sooner = effective.election_ms < own.election_ms;
    let brisk = all(|other, effective| other.heartbeat_ms <= effective.heartbeat_ms);
    EtcdOptions {
        version: own.version.clone(),
        heartbeat_ms: if slower && !patient { own.heartbeat_ms } else { effective.heartbeat_ms },
        election_ms: if sooner && !brisk { own.election_ms } else { effective.election_ms },
        quota_bytes: effective.quota_bytes,
        peer_ports: effective.peer_ports.clone(),
    }
}

/// What a listed voter is to be restarted with now; none if there is nothing to do for it, or its own options are not
/// known.
pub fn due(view: &View, effective: &EtcdOptions, member: MemberId) -> Option<EtcdOptions> {
    let own = view.member(member).filter(|m| !m.learner)?.options.as_ref()?;
    let others = view.voters().filter(|m| m.id != member).map(|m| m.options.as_ref());
    // Where a member listens is known to its own agent alone.
    let effective = EtcdOptions { peer_ports: own.peer_ports.clone(), ..effective.clone() };
    let next = next_options(own, &effective, others);
    (next != *own).then_some(next)
}

/// Whether the leader is the only voter with something to do now: then it hands leadership over first.
pub fn leader_is_next(view: &View, effective: &EtcdOptions) -> bool {
    let Some(leader) = view.leader else { return false };
    let now = arithmetic(view);
    let due = |m: &MemberView| m.restart || due(view, effective, m.id).is_some();
    now.voters > 1 && now.alive > now.quorum && view.voters().all(|m| due(m) == (m.id == leader))
}

/// A voter that does not run with the effective options yet, whatever stands against its restart.
pub fn outdated<'a>(view: &'a View, effective: &EtcdOptions) -> Option<&'a MemberView> {
    let current = |own: &EtcdOptions| {
        let (version, peer_ports) = (own.version.clone(), own.peer_ports.clone());
        EtcdOptions { version, peer_ports, ..effective.clone() } == *own
    };
    view.voters().find(|m| m.restart || m.options.as_ref().is_some_and(|own| !current(own)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::scenario::Story;

    fn options(heartbeat_ms: u32, election_ms: u32) -> EtcdOptions {
        EtcdOptions {
            version: "3.6".into(),
            heartbeat_ms,
            election_ms,
            quota_bytes: 1,
            peer_ports: Vec::new(),
        }
    }

    /// The options of all voters after each restart, in turn.
    fn walk(from: &EtcdOptions, to: &EtcdOptions, voters: usize) -> Vec<Vec<(u32, u32)>> {
        let mut all = vec![from.clone(); voters];
        let mut seen = Vec::new();
        'restarts: loop {
            for i in 0..voters {
                let others = all.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, o)| Some(o));
                let next = next_options(&all[i], to, others);
                if next != all[i] {
                    all[i] = next;
                    seen.push(all.iter().map(|o| (o.heartbeat_ms, o.election_ms)).collect());
                    continue 'restarts;
                }
            }
            return seen;
        }
    }

    #[test]
    fn a_larger_election_timeout_everywhere_comes_before_the_heartbeat() {
        let (near, far) = (options(100, 1_000), options(500, 8_000));
        let (n, m, f) = ((100, 1_000), (100, 8_000), (500, 8_000));
        let up = walk(&near, &far, 3);
        assert_eq!(up, [vec![m, n, n], vec![m, m, n], vec![m, m, f], vec![f, m, f], vec![f, f, f]]);
        let down = walk(&far, &near, 3);
        assert_eq!(down, [vec![m, f, f], vec![m, m, f], vec![m, m, n], vec![n, m, n], vec![n, n, n]]);
        for states in [up, down] {
            for state in states {
                let slowest = state.iter().map(|(h, _)| *h).max().unwrap();
                let least = state.iter().map(|(_, e)| *e).min().unwrap();
                assert!(least >= 5 * slowest || slowest == 100, "{state:?}");
                assert!(state.iter().all(|(h, e)| e >= &(5 * h)), "{state:?}");
            }
        }
        assert_eq!(walk(&near, &far, 1), [vec![f]], "nobody else is to be waited for");
    }

    #[test]
    fn an_unknown_voter_holds_up_only_the_second_half() {
        let (near, far) = (options(100, 1_000), options(500, 8_000));
        assert_eq!(next_options(&near, &far, [None].into_iter()), options(100, 8_000));
        assert_eq!(next_options(&far, &near, [None].into_iter()), options(100, 8_000));
        let newer = EtcdOptions { version: "3.7".into(), ..near.clone() };
        assert_eq!(next_options(&near, &newer, [None].into_iter()), near, "an upgrade is no restart");
    }

    const THREE: &str = "wish east west north\nmember 1 east leader\nmember 2 west\nmember 3 north\n";

    fn ask(story: &str, tokens: &mut Tokens, member: u64, now: u64) -> Result<(), Code> {
        let view = Story::read(story).view();
        tokens.note(&view, now);
        let request = DrainRequest { member: MemberId(member) };
        tokens.grant(&view, request, false, now).map(drop).map_err(|reason| reason.code)
    }

    /// An executor that has led for long enough.
    fn settled() -> Tokens {
        let mut tokens = Tokens::default();
        tokens.note(&Story::read(THREE).view(), 0);
        tokens
    }

    #[test]
    fn one_token_and_only_with_room() {
        let now = TOKEN_MS;
        let mut tokens = settled();
        assert_eq!(ask(THREE, &mut tokens, 2, now), Ok(()));
        assert_eq!(ask(THREE, &mut tokens, 3, now + 1), Err(Code::RestartRunning));
        assert_eq!(ask(THREE, &mut tokens, 2, now + 2), Ok(()), "the answer may have been lost");
        assert!(tokens.running(now + 3).is_some());
        let cases = [
            ("member 2 west unknown", Code::NoSlack),
            ("member 2 west\nmember 4 south learner", Code::LearnerPresent),
            ("member 2 west\nelections 2", Code::LeaderUnstable),
        ];
        for (change, code) in cases {
            let story = THREE.replace("member 2 west", change);
            assert_eq!(ask(&story, &mut settled(), 3, now), Err(code), "{change}");
        }
        assert_eq!(ask(THREE, &mut settled(), 1, now), Err(Code::LeaderInTheWay));
        assert_eq!(ask(THREE, &mut settled(), 9, now), Err(Code::IdRemoved));
        let view = Story::read(THREE).view();
        let busy = settled().grant(&view, DrainRequest { member: MemberId(2) }, true, now);
        assert_eq!(busy.unwrap_err().code, Code::StepsFirst);
        let two = "wish east west north\nmember 1 east leader\nmember 2 west\n";
        assert_eq!(ask(two, &mut settled(), 2, now), Err(Code::NoSlack), "of two voters none may stop");
        let one = "wish east\nsingle\nmember 1 east leader\n";
        assert_eq!(ask(one, &mut Tokens::default(), 1, 0), Ok(()), "an announced pause");
        let down = THREE.replace("member 2 west", "member 2 west unknown");
        assert_eq!(ask(&down, &mut settled(), 2, now), Ok(()), "what is down is not interrupted");
    }

    #[test]
    fn a_new_executor_waits_as_long_as_a_token_lives() {
        let mut tokens = Tokens::default();
        assert_eq!(ask(THREE, &mut tokens, 2, 1_000), Err(Code::TokenUnsure));
        assert_eq!(ask(THREE, &mut tokens, 2, 1_000 + TOKEN_MS - 1), Err(Code::TokenUnsure));
        assert_eq!(ask(THREE, &mut tokens, 2, 1_000 + TOKEN_MS), Ok(()));
    }

    #[test]
    fn a_token_ends_with_the_restart_or_with_its_time() {
        let now = TOKEN_MS;
        let mut tokens = settled();
        assert_eq!(ask(THREE, &mut tokens, 2, now), Ok(()));
        // Down and not back: nobody else, however long.
        let down = THREE.replace("member 2 west", "member 2 west unknown");
        tokens.note(&Story::read(&down).view(), now + 2 * TOKEN_MS);
        assert_eq!(ask(&down, &mut tokens, 3, now + 2 * TOKEN_MS), Err(Code::RestartRunning));
        assert!(tokens.running(now + 2 * TOKEN_MS).is_none(), "but nothing else is held up that long");
        // Back with other options; the next one waits until everybody has reached it again.
        let mut view = Story::read(THREE).view();
        let back = now + 2 * TOKEN_MS + 1;
        view.members[1].options.as_mut().unwrap().quota_bytes += 1;
        tokens.note(&view, back);
        assert_eq!(ask(THREE, &mut tokens, 3, back + view.settle_ms - 1), Err(Code::TooSoon));
        let next = back + view.settle_ms;
        assert_eq!(ask(THREE, &mut tokens, 3, next), Ok(()));
        // Never used.
        assert_eq!(ask(THREE, &mut tokens, 2, next + TOKEN_MS - 1), Err(Code::RestartRunning));
        assert_eq!(ask(THREE, &mut tokens, 2, next + TOKEN_MS), Err(Code::TooSoon));
        let next = next + TOKEN_MS + view.settle_ms;
        assert_eq!(ask(THREE, &mut tokens, 2, next), Ok(()));
        // Its data are lost: it will never come back.
        let lost = THREE.replace("member 2 west", "member 2 west dead");
        tokens.note(&Story::read(&lost).view(), next + 1);
        assert!(tokens.running(next + 2).is_none());
    }

    #[test]
    fn the_leader_is_the_last() {
        let mut view = Story::read(THREE).view();
        let current = view.members[0].options.clone().unwrap();
        let wished = EtcdOptions { quota_bytes: current.quota_bytes + 1, ..current.clone() };
        assert!(!leader_is_next(&view, &current) && outdated(&view, &current).is_none());
        assert!(!leader_is_next(&view, &wished));
        assert_eq!(due(&view, &wished, MemberId(2)), Some(wished.clone()));
        for i in [1, 2] {
            assert!(!leader_is_next(&view, &wished));
            view.members[i].options = Some(wished.clone());
        }
        assert!(leader_is_next(&view, &wished));
        assert_eq!(outdated(&view, &wished).unwrap().id, MemberId(1));
    }
}
