//! The guard before every start: gathers the evidence of rule I5 and asks `quorate-core` what it means.
//!
//! No decision is made here. What cannot be read for lack of rights, files or memory is no evidence: the start waits.

use std::fs;
use std::io;
use std::path::PathBuf;

use quorate_core::federation::member::{
    DirFacts, Grant, GrantKind, Incarnation, IncarnationState, Mark, OutsideMark,
};
use quorate_core::id::{ClusterId, Index, MemberId, Term};
use quorate_core::identity::{self, Evidence, Start};
use quorate_link::durable;
use quorate_snapshot::wal;

use crate::archive;
use crate::volume::Volume;

/// Why there is no evidence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A document beside the directory, or the mark outside.
    #[error(transparent)]
    Document(#[from] durable::Error),
    /// The directory cannot be looked at.
    #[error("cannot look into {}", path.display())]
    Look {
        /// Where.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The log cannot be read, for a reason outside of it.
    #[error("cannot read the write-ahead log")]
    Log(#[source] wal::Error),
    /// The directory of an interrupted first start could not be moved away.
    #[error(transparent)]
    Archive(#[from] archive::Error),
}

/// What stands beside and in a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// `incarnation.json`.
    pub incarnation: Option<Incarnation>,
    /// The mark from outside the volume.
    pub outside: Option<OutsideMark>,
    /// The directory.
    pub dir: DirFacts,
    /// `desired.json`, if the record that is written before it is there.
    pub grant: Option<Grant>,
    /// The incarnation is barred.
    pub fenced: bool,
}

impl Findings {
    /// Looks at everything. Reads the whole log: do not call it on a thread that others wait for.
    pub fn gather(volume: &Volume) -> Result<Self, Error> {
        let incarnation = volume.incarnation()?;
        // A grant without the record that was written before it: the volume is not the one that it was. Such a grant
        // binds nothing, or the removal of one small file would make a new cluster out of an old permission.
        let grant = volume.grant()?.filter(|_| incarnation.is_some());
        let dir = look(volume)?;
        // What was removed and archived is over; its grant is spent and the slot is free.
        let spent = incarnation.as_ref().is_some_and(|i| i.state == IncarnationState::Removed)
            && dir == DirFacts::Empty;
        let grant =
            grant.filter(|grant| !(spent && incarnation.as_ref().is_some_and(|i| i.id == grant.incarnation)));
        let fenced = volume.fenced()?;
        let barred = |id| fenced.iter().any(|fenced| fenced.incarnation == id);
        Ok(Self {
            fenced: !spent && incarnation.as_ref().is_some_and(|i| barred(i.id))
                || grant.as_ref().is_some_and(|grant| barred(grant.incarnation)),
            outside: volume.outside()?,
            dir,
            incarnation,
            grant,
        })
    }

    /// What core permits.
    pub fn decide(&self) -> Start {
        let Self { incarnation, outside, dir, grant, fenced } = self;
        identity::decide(Evidence {
            incarnation: incarnation.as_ref(),
            outside: outside.as_ref(),
            dir,
            grant: grant.as_ref(),
            // Agents tell what they saw in the grant's mark and in the mark outside the volume.
            seen: Mark::default(),
            fenced: *fenced,
        })
    }
}

/// What is in the data directory.
pub fn look(volume: &Volume) -> Result<DirFacts, Error> {
    match wal::read(&volume.wal()) {
        Ok(Some(facts)) => Ok(DirFacts::Present {
            cluster: ClusterId(facts.cluster_id),
            member: MemberId(facts.member_id),
            term: Term(facts.term),
            index: Index(facts.index),
        }),
        Ok(None) => {
            let data = volume.data();
            let mut entries = match fs::read_dir(&data) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DirFacts::Empty),
                Err(source) => return Err(Error::Look { path: data, source }),
            };
            // etcd would take over a database that lies there without a log.
            match entries.next() {
                None => Ok(DirFacts::Empty),
                Some(Ok(entry)) => Ok(DirFacts::Unreadable(format!(
                    "{} is there, but no write-ahead log",
                    entry.path().display()
                ))),
                Some(Err(source)) => Err(Error::Look { path: data, source }),
            }
        }
        Err(error @ wal::Error::Io { .. }) => Err(Error::Log(error)),
        Err(error) => Ok(DirFacts::Unreadable(error.to_string())),
    }
}

/// How etcd may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// With `--initial-cluster-state new`; only ever for a seed that was not yet recorded as such.
    New,
    /// With `existing` on an empty directory.
    Join,
    /// On its own directory.
    Resume,
}

/// A permitted start: what was decided, with the record as [`Permit::begin`] makes it durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// What is permitted.
    pub how: How,
    /// The record.
    pub incarnation: Incarnation,
    /// The grant.
    pub grant: Grant,
}

impl Permit {
    /// A seed whose ids are not written down yet: no client may reach it (safety.md 7.5).
    pub const fn private(&self) -> bool {
        self.incarnation.seed && self.incarnation.cluster.is_none()
    }

    /// Makes `Started` durable: the last thing before etcd is started. From then on an empty directory is a lost one.
    pub fn begin(&self, volume: &Volume) -> Result<(), Error> {
        volume.write_incarnation(&self.incarnation)?;
        Ok(())
    }
}

/// The outcome of the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// etcd may start.
    Start(Box<Permit>),
    /// Not now.
    Await(quorate_core::reason::Reason),
    /// Never.
    Refuse(quorate_core::reason::Reason),
}

/// Runs the guard, and makes durable that a start is refused for ever (`Lost`).
pub fn check(volume: &Volume) -> Result<(Findings, Verdict), Error> {
    let mut findings = Findings::gather(volume)?;
    let start = findings.decide();
    let how = match start {
        Start::Await(reason) => return Ok((findings, Verdict::Await(reason))),
        Start::Refuse(reason) => {
            lost(volume, &mut findings)?;
            return Ok((findings, Verdict::Refuse(reason)));
        }
        Start::New => How::New,
        Start::Join => How::Join,
        Start::Resume => How::Resume,
        Start::ClearAndStart => {
            if let Some(incarnation) = &findings.incarnation {
                archive::archive(volume, "unseeded", incarnation.member, incarnation.id)?;
                findings.dir = DirFacts::Empty;
            }
            How::New
        }
    };
    let Some(grant) = findings.grant.clone() else {
        return Ok((findings, Verdict::Await(quorate_core::reason::Code::AwaitingGrant.into())));
    };
    if how == How::New && grant.kind != GrantKind::Seed {
        // Core asks for `new` again after an interrupted seed; without the seed's own grant it is not rendered.
        return Ok((findings, Verdict::Await(quorate_core::reason::Code::AwaitingGrant.into())));
    }
    let known = findings.incarnation.clone().filter(|incarnation| incarnation.id == grant.incarnation);
    let mut incarnation = known.unwrap_or_else(|| planned(&grant));
    incarnation.state = incarnation.state.max(IncarnationState::Started);
    Ok((findings, Verdict::Start(Box::new(Permit { how, incarnation, grant }))))
}

/// The record of an incarnation that was granted and not started.
pub fn planned(grant: &Grant) -> Incarnation {
    Incarnation {
        slot: grant.slot.clone(),
        id: grant.incarnation,
        state: if grant.member.is_some() { IncarnationState::Added } else { IncarnationState::Planned },
        epoch: grant.epoch,
        cluster: grant.cluster,
        member: grant.member,
        mark: Mark::default(),
        seed: grant.kind == GrantKind::Seed,
        granted: true,
        archived: false,
    }
}

/// `Lost` is for ever, also when the right directory comes back later: the agents may have replaced the member since.
fn lost(volume: &Volume, findings: &mut Findings) -> Result<(), Error> {
    if let Some(incarnation) = &mut findings.incarnation
        && incarnation.state < IncarnationState::Removing
    {
        incarnation.state = IncarnationState::Lost;
        volume.write_incarnation(incarnation)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
