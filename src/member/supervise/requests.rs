//! What the agent asks for. Whatever is promised is on disk before the answer.

use std::sync::Arc;

use quorate_core::federation::member::{DirFacts, Grant, IncarnationState, MemberReport, Process};
use quorate_core::id::IncarnationId;
use quorate_link::durable;
use tokio::sync::oneshot;

use super::{Phase, Supervisor};
use crate::grant::{self, Present};
use crate::options::{FILE, Options};
use crate::volume::Fenced;
use crate::{archive, guard};

/// The answer to a request.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, Refusal>>;

/// A request, with where its answer goes.
#[derive(Debug)]
pub(crate) enum Request {
    /// Permission for one incarnation to run.
    Grant(Box<Grant>, Answer<MemberReport>),
    /// Stop etcd; archive the directory if a name is given.
    Stop { incarnation: IncarnationId, archive: Option<String>, answer: Answer<MemberReport> },
    /// Bar an incarnation for ever.
    Fence { fenced: Fenced, answer: Answer<MemberReport> },
    /// Read the data directory.
    ReadDir(Answer<MemberReport>),
    /// The last lines that etcd wrote.
    Logs(usize, Answer<Vec<String>>),
}

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The cluster is born: its seed is not given up for another ballot.
    #[error("incarnation {0} is a seed that is recorded; it is not given up")]
    Seeded(IncarnationId),
    /// The grant is not taken.
    #[error(transparent)]
    Grant(#[from] grant::Refusal),
    /// Another incarnation is meant than the one that is here.
    #[error("incarnation {asked} is not here, {here} is; ask again for that one")]
    OtherIncarnation {
        /// The one that was named.
        asked: IncarnationId,
        /// The one in the record, or a word for none.
        here: String,
    },
    /// The grant is kept, and the start is tried again.
    #[error("the grant is stored, but etcd could not be started yet: {0}")]
    NotStarted(String),
    /// The directory is in use.
    #[error("etcd is running and writes its data directory; stop it first")]
    Running,
    /// The directory cannot be moved.
    #[error(transparent)]
    Archive(#[from] archive::Error),
    /// The volume cannot be read.
    #[error(transparent)]
    Look(#[from] guard::Error),
    /// The volume cannot be read or written.
    #[error(transparent)]
    Document(#[from] durable::Error),
}

impl Supervisor {
    pub(super) async fn request(&mut self, request: Request) {
        // Whoever asked may have gone; what was done stays done.
        match request {
            Request::Grant(grant, answer) => {
                let done = self.grant(*grant).await;
                let _ = answer.send(self.reported(done));
            }
            Request::Stop { incarnation, archive, answer } => {
                let done = self.stop(incarnation, archive.as_deref()).await;
                let _ = answer.send(self.reported(done));
            }
            Request::Fence { fenced, answer } => {
                let done = self.fence(fenced).await;
                let _ = answer.send(self.reported(done));
            }
            Request::ReadDir(answer) => {
                let done = self.read_dir().await;
                let _ = answer.send(self.reported(done));
            }
            Request::Logs(count, answer) => {
                self.logs.poll();
                let _ = answer.send(Ok(self.logs.last(count)));
            }
        }
    }

    fn reported(&self, done: Result<(), Refusal>) -> Result<MemberReport, Refusal> {
        self.publish();
        done.map(|()| self.report.borrow().clone())
    }

    async fn grant(&mut self, grant: Grant) -> Result<(), Refusal> {
        let id = grant.incarnation;
        self.follow_address();
        let record = self.volume.incarnation()?;
        let old = self.volume.grant()?;
        let fenced = self.volume.fenced()?.iter().any(|fenced| fenced.incarnation == id);
        let same = record.as_ref().is_some_and(|record| record.id == id);
        // For a new incarnation the directory is empty, or it is refused: only then it is looked at.
        let dir = if same { DirFacts::Empty } else { self.look().await? };
        let present = Present { incarnation: record.as_ref(), grant: old.as_ref(), dir: &dir, fenced };
        let accepted = grant::accept(&self.options, present, grant)?;
        if let Some(incarnation) = &accepted.incarnation {
            self.volume.write_incarnation(incarnation)?;
            self.incarnation = Some(incarnation.clone());
        }
        self.volume.write_grant(&accepted.grant)?;
        tracing::info!(incarnation = %id, kind = ?accepted.grant.kind, "grant taken");
        match &self.phase {
            Phase::Running(running) if running.options == accepted.grant.settings => {}
            // Planned by the agent (networking.md 9). The grant is on disk: whoever starts etcd from here on uses it.
            Phase::Running(_) => {
                tracing::info!(incarnation = %id, "etcd is started again with other settings");
                self.process = Process::Starting;
                self.publish();
                self.halt().await;
                self.start().await;
            }
            Phase::Idle { .. } | Phase::Waiting { .. } => {
                self.backoff.reset();
                self.start().await;
            }
        }
        // The agent tells the outside that it started, and the guard takes that for proof; so it has to be true.
        match &self.incarnation {
            Some(record) if record.state < IncarnationState::Started => {
                Err(Refusal::NotStarted(self.last_words.clone().unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }

    /// The agent may have written another peer URL since this supervisor was started. Everything else is as it was: other
    /// ports or certificates are for the next supervisor. A file that cannot be read changes nothing, and a grant for
    /// another URL is refused with both URLs in the answer.
    fn follow_address(&mut self) {
        let Ok(now) = Options::load(&self.volume.root().join(FILE)) else { return };
        if (&now.federation, now.uid, &now.slot)
            != (&self.options.federation, self.options.uid, &self.options.slot)
            || now.peer_url == self.options.peer_url
        {
            return;
        }
        tracing::info!(from = %self.options.peer_url, to = %now.peer_url, "the slot has another peer URL");
        let mut options = Options::clone(&self.options);
        options.peer_url = now.peer_url;
        options.ports.peer = now.ports.peer;
        self.options = Arc::new(options);
    }

    async fn stop(&mut self, id: IncarnationId, archived: Option<&str>) -> Result<(), Refusal> {
        let here = self.volume.incarnation()?;
        // A directory without any record may be archived under the name that the agent knows it by.
        let meant = match &here {
            Some(here) => here.id == id,
            None => archived.is_some(),
        };
        if !meant {
            let here = here.map_or_else(|| "none".to_owned(), |here| here.id.to_string());
            return Err(Refusal::OtherIncarnation { asked: id, here });
        }
        if let Some(reason) = archived {
            archive::check_reason(reason)?;
            // Once its ids are written down clients may have written into it: such a seed is never given up.
            if reason == "unseeded" && here.as_ref().is_some_and(|here| here.cluster.is_some()) {
                return Err(Refusal::Seeded(id));
            }
        }
        self.halt().await;
        self.hindered = None;
        self.process = Process::Stopped;
        let Some(reason) = archived else {
            self.dir = Some(self.look().await?);
            return Ok(());
        };
        let in_dir = match self.look().await? {
            DirFacts::Present { member, .. } => Some(member),
            DirFacts::Empty | DirFacts::Unreadable(_) => None,
        };
        let member = here.as_ref().and_then(|here| here.member).or(in_dir);
        // First the promise that it never runs again, then the move: a crash between them leaves a directory that is
        // refused, and the agent asks again.
        if let Some(mut record) = here {
            record.state = IncarnationState::Removed;
            self.volume.write_incarnation(&record)?;
            self.incarnation = Some(record);
        }
        let name = archive::archive(&self.volume, reason, member, id)?;
        tracing::info!(incarnation = %id, name, "data directory archived");
        self.process = Process::AwaitingGrant;
        self.dir = Some(DirFacts::Empty);
        Ok(())
    }

    async fn fence(&mut self, fenced: Fenced) -> Result<(), Refusal> {
        let id = fenced.incarnation;
        tracing::warn!(incarnation = %id, reason = fenced.reason, "fenced");
        self.volume.fence(fenced)?;
        if self.is_here(id) {
            if let Some(record) = &mut self.incarnation
                && record.state < IncarnationState::Removing
            {
                record.state = IncarnationState::Lost;
                self.volume.write_incarnation(record)?;
            }
            self.halt().await;
            self.process = Process::Fenced;
            self.dir = Some(self.look().await?);
        }
        Ok(())
    }

    async fn read_dir(&mut self) -> Result<(), Refusal> {
        if matches!(self.phase, Phase::Running(_)) {
            return Err(Refusal::Running);
        }
        self.dir = Some(self.look().await?);
        Ok(())
    }

    /// Looks at the data directory without holding up the thread that answers.
    async fn look(&self) -> Result<DirFacts, Refusal> {
        let volume = self.volume.clone();
        match tokio::task::spawn_blocking(move || guard::look(&volume)).await {
            Ok(facts) => Ok(facts?),
            Err(error) => Ok(DirFacts::Unreadable(error.to_string())),
        }
    }
}
