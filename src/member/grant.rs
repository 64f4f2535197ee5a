//! Which grants a supervisor takes, and what it writes for them. Pure: the caller reads and writes the files.
//!
//! A grant is for one incarnation and used once. The record is written before the grant, so that a grant without its
//! record shows that the volume is not the one that it was.

use quorate_core::federation::member::{DirFacts, Grant, GrantKind, Incarnation, IncarnationState};
use quorate_core::id::IncarnationId;

use crate::guard;
use crate::options::Options;

/// Why a grant is refused; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is meant for somebody else.
    #[error(
        "the grant is for another {what} ({theirs}, this supervisor serves {ours}); send it to the right member"
    )]
    NotOurs {
        /// Federation, uid, slot or peer URL.
        what: &'static str,
        /// What the grant says.
        theirs: String,
        /// What the options say.
        ours: String,
    },
    /// Another incarnation lives here.
    #[error(
        "incarnation {here} ({state:?}) is here, the grant is for {granted}; stop and archive that one first"
    )]
    OtherIncarnation {
        /// The one in the record.
        here: IncarnationId,
        /// How far it is.
        state: IncarnationState,
        /// The one in the grant.
        granted: IncarnationId,
    },
    /// This incarnation is over.
    #[error("incarnation {0} is over ({1:?}) and can never run again; grant a new one")]
    Over(IncarnationId, IncarnationState),
    /// This incarnation is barred.
    #[error("incarnation {0} is fenced and can never run again; grant a new one")]
    Fenced(IncarnationId),
    /// The cluster exists.
    #[error("the seed grant of incarnation {0} is void: its cluster exists; resume it instead")]
    Seeded(IncarnationId),
    /// The grant was used.
    #[error("the grant of incarnation {0} was used and this one says something else; resume it instead")]
    Used(IncarnationId),
    /// There is nothing to resume.
    #[error("incarnation {0} was never started here, so there is nothing to resume")]
    NothingToResume(IncarnationId),
    /// The directory of an earlier life is still there.
    #[error("the data directory is not empty; stop and archive it before a new incarnation")]
    NotArchived,
    /// The grant contradicts itself.
    #[error("the grant contradicts itself: {0}")]
    Contradiction(&'static str),
}

/// What stands on the volume.
#[derive(Debug, Clone, Copy)]
pub struct Present<'a> {
    /// `incarnation.json`.
    pub incarnation: Option<&'a Incarnation>,
    /// `desired.json`.
    pub grant: Option<&'a Grant>,
    /// The directory.
    pub dir: &'a DirFacts,
    /// The granted incarnation is barred.
    pub fenced: bool,
}

/// What has to be written, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The record, if it is a new one.
    pub incarnation: Option<Incarnation>,
    /// The grant.
    pub grant: Grant,
}

/// Judges a grant.
pub fn accept(options: &Options, present: Present<'_>, grant: Grant) -> Result<Accepted, Refusal> {
    ours(options, &grant)?;
    consistent(&grant)?;
    let id = grant.incarnation;
    if present.fenced {
        return Err(Refusal::Fenced(id));
    }
    match present.incarnation {
        Some(here) if here.id == id => again(here, present.grant, grant),
        Some(here) if here.state < IncarnationState::Removed => {
            Err(Refusal::OtherIncarnation { here: here.id, state: here.state, granted: id })
        }
        _ if grant.kind == GrantKind::Resume => Err(Refusal::NothingToResume(id)),
        _ if *present.dir != DirFacts::Empty => Err(Refusal::NotArchived),
        _ => Ok(Accepted { incarnation: Some(guard::planned(&grant)), grant }),
    }
}

/// A grant for the incarnation that is here.
fn again(here: &Incarnation, old: Option<&Grant>, grant: Grant) -> Result<Accepted, Refusal> {
    if here.state >= IncarnationState::Removing {
        return Err(Refusal::Over(here.id, here.state));
    }
    let started = here.state >= IncarnationState::Started;
    match grant.kind {
        GrantKind::Resume if !started => Err(Refusal::NothingToResume(here.id)),
        GrantKind::Resume => {
            let known =
                |ours: Option<u64>, theirs: Option<u64>| ours.is_none() || theirs.is_none() || ours == theirs;
            if !known(here.cluster.map(|c| c.0), grant.cluster.map(|c| c.0))
                || !known(here.member.map(|m| m.0), grant.member.map(|m| m.0))
            {
                return Err(Refusal::Contradiction("it names another cluster or member id than the record"));
            }
            Ok(Accepted { incarnation: None, grant: resumed(old, grant) })
        }
        GrantKind::Seed if here.cluster.is_some() => Err(Refusal::Seeded(here.id)),
        GrantKind::Seed | GrantKind::Join if !started => {
            Ok(Accepted { incarnation: Some(guard::planned(&grant)), grant })
        }
        // Sent again because the answer was lost.
        GrantKind::Seed | GrantKind::Join if old == Some(&grant) => Ok(Accepted { incarnation: None, grant }),
        GrantKind::Seed | GrantKind::Join => Err(Refusal::Used(here.id)),
    }
}

/// Resuming changes settings and raises the mark; what the incarnation was born with stays.
fn resumed(old: Option<&Grant>, new: Grant) -> Grant {
    let Some(old) = old.filter(|old| old.incarnation == new.incarnation) else {
        return new;
    };
    Grant {
        cluster: old.cluster.or(new.cluster),
        member: old.member.or(new.member),
        mark: old.mark.max(new.mark),
        settings: new.settings,
        // What etcd lists counts; this follows it.
        peer_url: new.peer_url,
        ..old.clone()
    }
}

fn ours(options: &Options, grant: &Grant) -> Result<(), Refusal> {
    let pairs = [
        ("federation", grant.federation.to_string(), options.federation.to_string()),
        ("uid", grant.uid.to_string(), options.uid.to_string()),
        ("slot", grant.slot.to_string(), options.slot.to_string()),
        ("peer URL", grant.peer_url.to_string(), options.peer_url.to_string()),
    ];
    match pairs.into_iter().find(|(_, theirs, ours)| theirs != ours) {
        Some((what, theirs, ours)) => Err(Refusal::NotOurs { what, theirs, ours }),
        None => Ok(()),
    }
}

fn consistent(grant: &Grant) -> Result<(), Refusal> {
    let wrong = |what| Err(Refusal::Contradiction(what));
    let own = grant
        .initial_cluster
        .iter()
        .filter(|(name, url)| *name == grant.name && *url == grant.peer_url)
        .count();
    match grant.kind {
        GrantKind::Seed if grant.cluster.is_some() || grant.member.is_some() => {
            wrong("a seed has no cluster and no member id yet")
        }
        GrantKind::Seed if own != 1 || grant.initial_cluster.len() != 1 => {
            wrong("the initial cluster of a seed is the seed alone")
        }
        GrantKind::Join if grant.cluster.is_none() || grant.member.is_none() => {
            wrong("a joiner needs the ids of its cluster and of itself")
        }
        GrantKind::Join if own != 1 => wrong("the initial cluster does not hold the joiner itself, once"),
        GrantKind::Seed | GrantKind::Join | GrantKind::Resume => Ok(()),
    }
}

#[cfg(test)]
mod tests;
