//! The calls, and what a server refuses before it proposes anything (etcd-facts 3 and 5).

use smol_str::SmolStr;

use super::{At, Cluster, Entry, ID_SALT_MS, Late, Node, hash};
use crate::federation::observed::MemberList;
use crate::id::{MemberId, PeerUrl};
use crate::membership::quorum::quorum;

/// Number of a call.
pub type Ticket = usize;

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// `MemberAdd`.
    Add {
        /// Peer URL.
        url: PeerUrl,
        /// As a learner.
        learner: bool,
        /// The name that the member will publish.
        name: SmolStr,
        /// The site where it will run.
        site: usize,
    },
    /// `MemberPromote`.
    Promote(MemberId),
    /// `MemberRemove`.
    Remove(MemberId),
    /// `MemberUpdate`.
    Update(MemberId, PeerUrl),
    /// `MoveLeader`.
    MoveLeader(MemberId),
    /// A write.
    Put,
}

/// How a call ended. A call that is never answered ran into its caller's deadline: its outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It happened.
    Done,
    /// It was refused, for certain.
    Refused(Refusal),
}

/// Refusals by message class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The process does not run, or nobody is there.
    Unavailable,
    /// The id is a member already.
    IdExists,
    /// A member with this URL is listed.
    UrlExists,
    /// The URL is none.
    BadUrl,
    /// `--max-learners` is reached.
    TooManyLearners,
    /// Too few started voters would remain.
    NotEnoughStarted,
    /// Too few voters are connected for 5 s.
    Unhealthy,
    /// No such member.
    NotFound,
    /// Only a learner can be promoted.
    NotLearner,
    /// The learner's log is too short.
    NotInSync,
    /// The transferee does not vote.
    BadTransferee,
    /// Asked of a follower.
    NotLeader,
    /// The transferee did not take over.
    TransferTooLong,
    /// The backend is full.
    NoSpace,
    /// A learner serves next to nothing.
    Learner,
}

impl Refusal {
    /// A part of etcd's message that no other refusal contains.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::IdExists => "member ID already exist",
            Self::UrlExists => "Peer URLs already exists",
            Self::BadUrl => "given member URLs are invalid",
            Self::TooManyLearners => "too many learner members in cluster",
            Self::NotEnoughStarted => "re-configuration failed due to not enough started members",
            Self::Unhealthy => "unhealthy cluster",
            Self::NotFound => "member not found",
            Self::NotLearner => "can only promote a learner member",
            Self::NotInSync => "can only promote a learner member which is in sync with leader",
            Self::BadTransferee => "bad leader transferee",
            Self::NotLeader => "not leader",
            Self::TransferTooLong => "leader transfer took too long",
            Self::NoSpace => "mvcc: database space exceeded",
            Self::Learner => "rpc not supported for learner",
        }
    }

    /// The class of a message; the longer of two that match wins.
    pub fn of_message(text: &str) -> Option<Self> {
        const ALL: [Refusal; 14] = [
            Refusal::IdExists,
            Refusal::UrlExists,
            Refusal::BadUrl,
            Refusal::TooManyLearners,
            Refusal::NotEnoughStarted,
            Refusal::Unhealthy,
            Refusal::NotFound,
            Refusal::NotInSync,
            Refusal::NotLearner,
            Refusal::BadTransferee,
            Refusal::NotLeader,
            Refusal::TransferTooLong,
            Refusal::NoSpace,
            Refusal::Learner,
        ];
        ALL.into_iter().find(|refusal| text.contains(refusal.message()))
    }
}

impl Cluster {
    /// Makes a call to one member, whose caller gives up after `deadline_ms`. `late_ms` holds the proposal back on its
    /// way: it may arrive after the caller has given up, and in another term.
    pub fn call(&mut self, at: At, request: &Request, deadline_ms: u64, late_ms: u64) -> Ticket {
        let gives_up = self.now + deadline_ms;
        let ticket = self.answers.len();
        self.answers.push(None);
        match self.admit(at, request) {
            Err(refusal) => self.answer(ticket, Answer::Refused(refusal)),
            Ok(None) => {}
            Ok(Some(entry)) => {
                if late_ms > 0 {
                    let due = self.now + late_ms;
                    self.late.push(Late { due, at, entry, ticket, gives_up: due });
                } else {
                    self.forward(at, entry, ticket, gives_up);
                }
            }
        }
        if let Request::MoveLeader(to) = request
            && self.peek(ticket).is_none()
            && let Some(to) = self.find(*to)
        {
            self.transfers.push((self.now + self.election_ms, at, to, ticket));
        }
        self.advance(self.now);
        ticket
    }

    /// The answer to a call, if there is one.
    pub fn peek(&self, ticket: Ticket) -> Option<Answer> {
        self.answers.get(ticket).copied().flatten()
    }

    pub(super) fn answer(&mut self, ticket: Ticket, answer: Answer) {
        if let Some(slot) = self.answers.get_mut(ticket) {
            slot.get_or_insert(answer);
        }
    }

    /// Brings a proposal to the leader that the member follows now. Without a leader it waits in the member until its
    /// caller gives up; with one that cannot be reached it is lost.
    pub(super) fn forward(&mut self, at: At, entry: Entry, ticket: Ticket, gives_up: u64) {
        let Some(node) = self.nodes.get(at).filter(|n| n.running) else {
            return;
        };
        let Some(leader) = node.leader else {
            if self.now < gives_up {
                let due = self.now + 1;
                self.late.push(Late { due, at, entry, ticket, gives_up });
            }
            return;
        };
        let reached = leader == at || self.reaches(at, leader);
        let leads = self.nodes.get(leader).is_some_and(|n| n.running && n.leader == Some(leader));
        if !reached || !leads {
            return;
        }
        let put = entry == Entry::Put;
        let number = self.append(leader, entry, Some((at, ticket)));
        if put && let Some(number) = number {
            self.awaited_puts.push((ticket, number));
        }
    }

    fn admit(&mut self, at: At, request: &Request) -> Result<Option<Entry>, Refusal> {
        let Some(node) = self.nodes.get(at).filter(|n| n.running) else {
            return Err(Refusal::Unavailable);
        };
        if node.conf.has(at) && !node.conf.is_voter(at) {
            return Err(Refusal::Learner);
        }
        match request {
            Request::Put if self.no_space => Err(Refusal::NoSpace),
            Request::Put => Ok(Some(Entry::Put)),
            Request::Add { url, learner, name, site } => {
                if !url.0.contains("://") {
                    return Err(Refusal::BadUrl);
                }
                self.may_add(at, *learner)?;
                let id = self.salted_id(url);
                if self.nodes.len() >= 32 {
                    return Err(Refusal::Unavailable); // one bit per member; no history comes near
                }
                let nobody = std::sync::Arc::clone(&self.nobody);
                let new = self.push_node(id, name.clone(), url.clone(), *site, nobody);
                self.refresh_links();
                Ok(Some(Entry::Add { at: new, learner: *learner }))
            }
            Request::Promote(id) => {
                let id = *id;
                self.may_promote(at, id)?;
                Ok(Some(Entry::Promote(id)))
            }
            Request::Remove(id) => {
                self.may_remove(at, *id)?;
                Ok(Some(Entry::Remove(*id)))
            }
            Request::Update(id, url) => {
                if !url.0.contains("://") {
                    return Err(Refusal::BadUrl);
                }
                Ok(Some(Entry::Update(*id, url.clone())))
            }
            Request::MoveLeader(to) => {
                if node.leader != Some(at) {
                    return Err(Refusal::NotLeader);
                }
                let votes = self.find(*to).is_some_and(|to| node.conf.is_voter(to));
                if votes { Ok(None) } else { Err(Refusal::BadTransferee) }
            }
        }
    }

    /// Ids of added members are salted with the time in whole seconds (etcd-facts 2).
    fn salted_id(&self, url: &PeerUrl) -> MemberId {
        let second = self.now / ID_SALT_MS;
        MemberId(hash(&[url.0.as_bytes(), &self.token.to_be_bytes(), &second.to_be_bytes()]))
    }

    fn started(node: &Node, without: Option<MemberId>) -> (usize, usize) {
        let voters = || node.conf.list.voters().filter(|m| Some(m.id) != without);
        (voters().count(), voters().filter(|m| !m.name.is_empty()).count())
    }

    fn may_add(&self, at: At, learner: bool) -> Result<(), Refusal> {
        let Some(node) = self.nodes.get(at) else {
            return Err(Refusal::Unavailable);
        };
        let (voters, started) = Self::started(node, None);
        let first_growth = started == 1 && voters == 1;
        if !learner && !first_growth && started < quorum(voters + 1) {
            return Err(Refusal::NotEnoughStarted);
        }
        // From 3.5.30 and 3.6.11 on: enough for the next larger cluster.
        if voters > 1 && self.connected(at) < voters.div_ceil(2) + 1 {
            return Err(Refusal::Unhealthy);
        }
        Ok(())
    }

    fn may_remove(&self, at: At, id: MemberId) -> Result<(), Refusal> {
        let Some(node) = self.nodes.get(at) else {
            return Err(Refusal::Unavailable);
        };
        if node.conf.list.get(id).is_some_and(|m| m.learner) {
            return Ok(());
        }
        let (rest, started) = Self::started(node, Some(id));
        if started < quorum(rest) {
            return Err(Refusal::NotEnoughStarted);
        }
        let target = self.find(id).filter(|t| node.conf.has(*t));
        let active = target.is_some_and(|t| t == at || self.active_since(at, t).is_some());
        if !active {
            return Ok(());
        }
        if self.connected(at).saturating_sub(1) < quorum(node.conf.voter_count() - 1) {
            return Err(Refusal::Unhealthy);
        }
        Ok(())
    }

    /// No liveness check: a killed learner is promoted (etcd-facts 5). Followers forward the call.
    fn may_promote(&self, at: At, id: MemberId) -> Result<(), Refusal> {
        let leader = self.nodes.get(at).and_then(|n| n.leader).unwrap_or(at);
        let Some(node) = self.nodes.get(leader) else {
            return Err(Refusal::Unavailable);
        };
        let Some(target) = self.find(id).filter(|t| node.conf.has(*t)) else {
            return Err(Refusal::NotFound);
        };
        if target != leader {
            let matched = node.progress.get(target).copied().unwrap_or(0) as usize;
            if matched * 10 < node.durable * 9 {
                return Err(Refusal::NotInSync);
            }
        }
        let (voters, started) = Self::started(node, None);
        if started + 1 < quorum(voters + 1) {
            return Err(Refusal::NotEnoughStarted);
        }
        Ok(())
    }

    /// `MemberList` answered from the member's own state.
    pub fn local_list(&self, at: At) -> Option<&MemberList> {
        self.nodes.get(at).filter(|n| n.running).map(|n| &n.conf.list)
    }

    /// Linearizable `MemberList`: only with a leader that has committed in its term and reaches a majority.
    pub fn linearizable_list(&self, at: At) -> Option<(u64, &MemberList)> {
        let node = self.nodes.get(at).filter(|n| n.running)?;
        if !node.conf.is_voter(at) {
            return None;
        }
        let leader = node.leader?;
        let lead = self
            .nodes
            .get(leader)
            .filter(|n| n.running && n.leader == Some(leader) && n.term == node.term)?;
        if !self.both_ways(at, leader) || !self.has_quorum(leader) || !self.committed_in_term(leader) {
            return None;
        }
        // The member waits until it has applied what the leader had committed.
        (node.applied >= lead.commit).then_some((node.term, &node.conf.list))
    }

    fn committed_in_term(&self, at: At) -> bool {
        let Some(node) = self.nodes.get(at) else {
            return false;
        };
        let last = node.commit.checked_sub(1).and_then(|i| node.log.get(i));
        last.and_then(|e| self.entries.get(*e as usize)).is_some_and(|e| e.term == node.term)
    }
}
