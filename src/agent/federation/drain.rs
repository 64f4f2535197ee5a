//! Planned restarts of own members: asks the executor for the one token, and as executor answers who asks
//! (networking.md 9). What is decided is decided in [`quorate_core::membership::disruption`].

use std::sync::Arc;

use quorate_core::federation::member::{EtcdOptions, Incarnation, IncarnationState, MemberReport, Process};
use quorate_core::id::{MemberId, SiteName};
use quorate_core::membership::disruption::{self, DrainGrant, DrainRequest, Tokens};
use quorate_core::membership::step::Decision;
use quorate_core::reason::{Code, Reason};

use super::{Event, Federation};
use crate::ports::{Peers as _, Runtime as _, World};

/// After a refusal; what stands against a restart takes seconds to pass.
const AGAIN_MS: u64 = 2_000;

/// What goes on about restarts.
#[derive(Debug, Default)]
pub(super) struct Drains {
    /// As executor.
    pub(super) tokens: Tokens,
    asking: bool,
    again_at: u64,
    /// Why the own member is not restarted yet.
    pub(super) refused: Option<Reason>,
}

/// A running own member with other options than it should have now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Due {
    incarnation: Incarnation,
    member: MemberId,
    from: EtcdOptions,
    to: EtcdOptions,
}

/// The executor's answer.
pub(crate) struct Drained {
    due: Due,
    asked_at: u64,
    answer: Result<DrainGrant, Reason>,
}

impl<W: World> Federation<W> {
    /// Restarts an own member with the options that it should have, if that is permitted.
    pub(super) async fn restart(&mut self) {
        let now = self.now();
        if self.drains.asking || self.local.active() || now < self.drains.again_at {
            return;
        }
        let Some(due) = self.due() else {
            self.drains.refused = None;
            return;
        };
        let request = DrainRequest { member: due.member };
        let Some(view) = self.last.view.as_ref() else { return };
        if view.own_leads {
            let answer = self.grant_token(request);
            self.drained(Drained { due, asked_at: now, answer }).await;
            return;
        }
        let Some(executor) = view.leader.and_then(|id| view.site_of(id)).cloned() else {
            self.refuse_restart(Code::ExecutorUnavailable.into());
            return;
        };
        self.drains.asking = true;
        let (peers, from) = (Arc::clone(&self.ports.peers), self.sender());
        self.spawn(async move {
            let answer = peers.drain(&executor, from, request).await;
            Event::Drained(Box::new(Drained { due, asked_at: now, answer }))
        });
    }

    /// The own member that is to be restarted now; the leader only while it is alone.
    fn due(&self) -> Option<Due> {
        let view = self.last.view.as_ref()?;
        let effective = self.options()?;
        let reports = self.ports.runtime.reports();
        let due = |i: &Incarnation| {
            let member = i
                .member
                .filter(|_| matches!(i.state, IncarnationState::Started | IncarnationState::Voter))?;
            // One that does not run yet is started with what its last grant says, and comes back here after that.
            let here = |r: &&MemberReport| {
                let same = r.incarnation.as_ref().is_some_and(|there| there.id == i.id);
                r.slot == i.slot && r.process == Process::Running && same
            };
            let from = reports.iter().find(here)?.options.clone()?;
            let ports = self.ports.runtime.serving(&i.slot)?.ports;
            let effective = EtcdOptions { peer_ports: ports, ..effective.clone() };
            let others = view.voters().filter(|m| m.id != member).map(|m| m.options.as_ref());
            view.member(member).filter(|m| !m.learner)?;
            let to = disruption::next_options(&from, &effective, others);
            (to != from).then(|| Due { incarnation: i.clone(), member, from, to })
        };
        let mut all = self.record.incarnations.iter().filter_map(due);
        // The leader's turn comes when it does not lead any more, unless there is nobody else.
        let leads = |due: &Due| view.leader == Some(due.member) && view.voters().count() > 1;
        all.find(|due| !leads(due))
    }

    /// The answer to a request for the token.
    pub(super) async fn drained(&mut self, drained: Drained) {
        self.drains.asking = false;
        let Drained { due, asked_at, answer } = drained;
        match answer {
            Ok(DrainGrant { begin_ms, .. }) => {
                let late = self.now().saturating_sub(asked_at) >= begin_ms;
                // Something may have happened since it was asked.
                if !late && !self.local.active() && self.due().as_ref() == Some(&due) {
                    self.restart_now(due).await;
                }
            }
            Err(reason) => self.refuse_restart(reason),
        }
    }

    fn refuse_restart(&mut self, reason: Reason) {
        self.drains.again_at = self.now() + AGAIN_MS;
        self.metrics.refused(reason.code.name());
        let known = self.drains.refused.as_ref().is_some_and(|old| old.code == reason.code);
        if !known {
            self.event("RestartWaits", reason.to_string());
        }
        self.drains.refused = Some(reason);
    }

    async fn restart_now(&mut self, due: Due) {
        let Due { incarnation, from, to, .. } = due;
        let Some(grant) = self.resume_grant(&incarnation, to.clone()) else { return };
        self.drains.refused = None;
        let gap = if self.last.view.as_ref().is_some_and(|view| view.voters().count() == 1) {
            "; writes pause until it is back"
        } else {
            ""
        };
        self.event("Restarting", format!("{}: {}{gap}", incarnation.slot, change(&from, &to)));
        self.grant(grant).await;
    }

    /// Answers a site that wants to restart its own member.
    pub(super) fn token_for(&mut self, site: &SiteName, request: DrainRequest) -> Result<DrainGrant, Reason> {
        let view = self.last.view.as_ref();
        if view.and_then(|view| view.site_of(request.member)) != Some(site) {
            return Err(Reason::new(Code::IdRemoved).member(request.member).site(site));
        }
        self.grant_token(request)
    }

    fn grant_token(&mut self, request: DrainRequest) -> Result<DrainGrant, Reason> {
        let now = self.now();
        let busy = self.run.active() || matches!(self.last.decision, Decision::Step(_));
        let Some(view) = self.last.view.as_ref() else { return Err(Code::QuorumLost.into()) };
        let granted = self.drains.tokens.grant(view, request, busy, now);
        let site = view.site_of(request.member).map(ToString::to_string).unwrap_or_default();
        match &granted {
            Ok(_) => self.event("RestartPermitted", format!("member {} at {site}", request.member)),
            Err(reason) => self.metrics.refused(reason.code.name()),
        }
        granted
    }
}

/// What differs, for people.
fn change(from: &EtcdOptions, to: &EtcdOptions) -> String {
    let EtcdOptions { version: _, heartbeat_ms, election_ms, quota_bytes, peer_ports } = to;
    let parts = [
        ("heartbeat", u64::from(from.heartbeat_ms), u64::from(*heartbeat_ms), "ms"),
        ("election timeout", u64::from(from.election_ms), u64::from(*election_ms), "ms"),
        ("quota", from.quota_bytes, *quota_bytes, "bytes"),
    ];
    let changed = parts.iter().filter(|(_, old, new, _)| old != new);
    let mut words: Vec<String> =
        changed.map(|(name, old, new, unit)| format!("{name} from {old} to {new} {unit}")).collect();
    if from.peer_ports != *peer_ports {
        let numbers: Vec<String> = peer_ports.iter().map(ToString::to_string).collect();
        words.push(match numbers.as_slice() {
            [] => "peers on the port of its peer URL alone".to_owned(),
            numbers => format!("peers on the ports {}", numbers.join(" and ")),
        });
    }
    words.join(", ")
}
