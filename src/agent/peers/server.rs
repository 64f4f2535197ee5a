//! What we are told and asked.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use quorate_api::document::{self, format};
use quorate_api::peer::peer_server::{Peer, PeerServer};
use quorate_api::peer::sync_message::Message as Said;
use quorate_api::peer::{
    Document, HelloReply, HelloRequest, Ping, Pong, ReachReply, ReachRequest, SyncMessage, ViewUpdate,
};
use quorate_core::federation::observed::SiteObservation;
use quorate_core::id::{FederationKey, ObjectName, SiteName};
use quorate_core::reason::Reason;
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use quorate_link::transport::serve::PeerIdentity;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::envelope::{self, Refusal};
use super::{Mesh, TOLD_MAX, Told, lock, parting};
use crate::federation::{Message, Question, Reply};
use crate::ports::Sender;

/// Larger messages are refused before they are read (networking.md 5).
const LIMIT: usize = document::LIMIT + 64 * 1024;

struct Service {
    mesh: Arc<Mesh>,
    drain: Drain,
}

/// The service, ready for the transport.
pub fn router(mesh: Arc<Mesh>, drain: Drain) -> Router {
    let service = PeerServer::new(Service { mesh, drain }).max_decoding_message_size(LIMIT);
    tonic::service::Routes::new(service).prepare().into_axum_router()
}

impl Service {
    fn certified<T>(&self, request: &Request<T>) -> Result<SiteName, Status> {
        let peer = request.extensions().get::<PeerIdentity>();
        let site = envelope::certified(&self.mesh, peer).map_err(|refusal| {
            let source = peer.map(|peer| peer.source.to_string()).unwrap_or_default();
            self.refused(&source, &refusal)
        })?;
        if let Some(peer) = peer {
            self.mesh.contacts.presented(&site, peer.not_after);
        }
        Ok(site)
    }

    /// The sender learns one word.
    fn refused(&self, peer: &str, refusal: &Refusal) -> Status {
        self.mesh.refuse(peer, refusal.reason, &refusal.detail);
        Status::permission_denied(refusal.reason)
    }

    /// Asks the task of the federation that a document is about.
    async fn ask(
        &self,
        request: Request<Document>,
        question: impl FnOnce(&str, &[u8]) -> Result<Question, document::DocumentError>,
    ) -> Result<(FederationKey, Reply), Status> {
        let site = self.certified(&request)?;
        let Document { envelope, format, body } = request.into_inner();
        let checked = envelope::check(&self.mesh, &site, envelope.as_ref())
            .map_err(|refusal| self.refused(site.as_str(), &refusal))?;
        let not_a_member =
            || self.refused(site.as_str(), &Refusal { reason: "NotAMember", detail: String::new() });
        let key = checked.federation.ok_or_else(not_a_member)?;
        let question = question(&format, &body).map_err(|error| {
            self.mesh.refuse(site.as_str(), "BadDocument", &crate::chain(&error));
            Status::invalid_argument("BadDocument")
        })?;
        let handle = self.mesh.handle(&key).ok_or_else(not_a_member)?;
        match handle.ask(&checked.site, question).await {
            None => Err(Status::unavailable("the agent is stopping")),
            Some(Reply::NotAMember) => Err(Status::permission_denied("NotAMember")),
            Some(reply) => Ok((key, reply)),
        }
    }

    fn document<T: serde::Serialize>(
        &self,
        key: &FederationKey,
        format: &str,
        body: &T,
    ) -> Result<Response<Document>, Status> {
        let body = document::encode(body).map_err(|error| Status::internal(error.to_string()))?;
        let envelope = Some(self.mesh.envelope(Some(key), Sender::default()));
        Ok(Response::new(Document { envelope, format: format.to_owned(), body }))
    }
}

fn unexpected() -> Status {
    Status::internal("the federation answered something else")
}

#[tonic::async_trait]
impl Peer for Service {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let site = self.certified(&request)?;
        envelope::check(&self.mesh, &site, request.get_ref().envelope.as_ref())
            .map_err(|refusal| self.refused(site.as_str(), &refusal))?;
        if let Some(called) = self.mesh.called.get(&site) {
            // Not stored: a stream that is up already must not be followed by a call too soon after its end.
            called.notify_waiters();
        }
        Ok(Response::new(HelloReply {
            envelope: Some(self.mesh.envelope(None, Sender::default())),
            capabilities: Vec::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }

    type SyncStream = ReceiverStream<Result<SyncMessage, Status>>;

    async fn sync(
        &self,
        request: Request<tonic::Streaming<SyncMessage>>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        let site = self.certified(&request)?;
        let mesh = Arc::clone(&self.mesh);
        let mut incoming = request.into_inner();
        let (answers, stream) = mpsc::channel(4);
        self.drain.spawn_until(parting::tell(Arc::clone(&mesh), site.clone(), answers.clone()));
        self.drain.spawn_until(async move {
            let mut last = (Vec::new(), 0);
            loop {
                match incoming.message().await {
                    Ok(Some(SyncMessage { message: Some(message) })) => {
                        if let Err(refusal) = listen(&mesh, &site, message, &mut last, &answers).await {
                            mesh.refuse(site.as_str(), refusal.reason, &refusal.detail);
                            // What follows in this stream is not worth more.
                            if refusal.reason != "NotAMember" {
                                // The peer may be gone already.
                                let _ = answers.send(Err(Status::permission_denied(refusal.reason))).await;
                                return;
                            }
                        }
                    }
                    Ok(Some(SyncMessage { message: None })) => {}
                    Ok(None) | Err(_) => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn vote(&self, request: Request<Document>) -> Result<Response<Document>, Status> {
        let read = |given: &str, body: &[u8]| {
            document::decode(format::BALLOT, given, body).map(|ballot| Question::Vote(Arc::new(ballot)))
        };
        match self.ask(request, read).await? {
            (key, Reply::Vote(vote)) => self.document(&key, format::VOTE_REPLY, vote.as_ref()),
            _ => Err(unexpected()),
        }
    }

    async fn record(&self, request: Request<Document>) -> Result<Response<Document>, Status> {
        let read = |given: &str, body: &[u8]| match given {
            format::RECORD => Ok(Question::WholeRecord),
            format::NAME => Ok(Question::NameTaken),
            format::SPEC => document::decode(format::SPEC, given, body).map(Question::Spec),
            _ => Ok(Question::Record),
        };
        match self.ask(request, read).await? {
            (key, Reply::NameTaken(taken)) => self.document(&key, format::NAME, &taken),
            (key, Reply::Spec(spec)) => self.document(&key, format::SPEC, &spec),
            (key, Reply::Record(summary)) => self.document(&key, format::RECORD_SUMMARY, summary.as_ref()),
            (key, Reply::WholeRecord(record)) => self.document(&key, format::RECORD, &record),
            _ => Err(unexpected()),
        }
    }

    async fn propose(&self, request: Request<Document>) -> Result<Response<Document>, Status> {
        let read = |given: &str, body: &[u8]| {
            document::decode(format::INTENT, given, body).map(|intent| Question::Propose(Arc::new(intent)))
        };
        match self.ask(request, read).await? {
            (key, Reply::Ack(ack)) => self.document(&key, format::ACK, &ack),
            _ => Err(unexpected()),
        }
    }

    async fn resolve(&self, request: Request<Document>) -> Result<Response<Document>, Status> {
        let read = |given: &str, body: &[u8]| {
            document::decode(format::RESOLUTION, given, body)
                .map(|ending| Question::Resolve(Arc::new(ending)))
        };
        match self.ask(request, read).await? {
            (key, Reply::Resolved(taken)) => self.document(&key, format::ACK, &Ok::<bool, Reason>(taken)),
            _ => Err(unexpected()),
        }
    }

    async fn certify(&self, request: Request<Document>) -> Result<Response<Document>, Status> {
        let read = |given: &str, body: &[u8]| {
            document::decode(format::CERTIFICATE_REQUEST, given, body)
                .map(|request| Question::Certify(Box::new(request)))
        };
        match self.ask(request, read).await? {
            (key, Reply::Certified(chain)) => self.document(&key, format::CERTIFICATE, &chain),
            _ => Err(unexpected()),
        }
    }

    async fn reach(&self, request: Request<ReachRequest>) -> Result<Response<ReachReply>, Status> {
        let site = self.certified(&request)?;
        let ReachRequest { envelope, address } = request.into_inner();
        envelope::check(&self.mesh, &site, envelope.as_ref())
            .map_err(|refusal| self.refused(site.as_str(), &refusal))?;
        let error = super::reach::dial(&self.mesh.from, &address).await.err().unwrap_or_default();
        Ok(Response::new(ReachReply { error }))
    }

    async fn drain(&self, request: Request<Document>) -> Result<Response<Document>, Status> {
        let read =
            |given: &str, body: &[u8]| document::decode(format::DRAIN, given, body).map(Question::Drain);
        match self.ask(request, read).await? {
            (key, Reply::Drain(answer)) => self.document(&key, format::DRAIN_REPLY, &answer),
            _ => Err(unexpected()),
        }
    }
}

fn pong(mesh: &Mesh, seq: u64) -> SyncMessage {
    let envelope = Some(mesh.envelope(None, Sender::default()));
    SyncMessage { message: Some(Said::Pong(Pong { envelope, seq })) }
}

/// Takes one message of a stream.
async fn listen(
    mesh: &Mesh,
    site: &SiteName,
    message: Said,
    last: &mut (Vec<u8>, u64),
    answers: &mpsc::Sender<Result<SyncMessage, Status>>,
) -> Result<(), Refusal> {
    let envelope = match &message {
        Said::View(view) => view.envelope.as_ref(),
        Said::Ping(ping) => ping.envelope.as_ref(),
        Said::Retired(retired) => retired.envelope.as_ref(),
        Said::Pong(pong) => pong.envelope.as_ref(),
    };
    let checked = envelope::check(mesh, site, envelope)?;
    if last.0 == checked.boot && checked.seq <= last.1 {
        let detail = format!("{} after {}", checked.seq, last.1);
        return Err(Refusal { reason: "Replayed", detail });
    }
    *last = (checked.boot.clone(), checked.seq);
    lock(&mesh.heard).insert(site.clone(), mesh.clock.now_ms());
    match message {
        Said::View(view) => viewed(mesh, site, checked.federation, view).await,
        Said::Ping(ping) => {
            // At once, for the round trip; a full channel holds answers enough.
            let _ = answers.try_send(Ok(pong(mesh, checked.seq)));
            pinged(mesh, site, ping).await;
            Ok(())
        }
        // Answers to nothing that was asked on this stream.
        Said::Retired(_) | Said::Pong(_) => Ok(()),
    }
}

async fn viewed(
    mesh: &Mesh,
    site: &SiteName,
    key: Option<FederationKey>,
    view: ViewUpdate,
) -> Result<(), Refusal> {
    let key = key.ok_or_else(|| Refusal { reason: "BadName", detail: String::new() })?;
    let observation: SiteObservation = document::decode(format::OBSERVATION, &view.format, &view.body)
        .map_err(|error| Refusal { reason: "BadDocument", detail: crate::chain(&error) })?;
    own_only(site, &observation)?;
    let observation = Arc::new(observation);
    let age_ms = view.sample_age_ms;
    let true_at = mesh.clock.now_ms().saturating_sub(age_ms);
    let arrival = {
        let mut told = lock(&mesh.told);
        let known = told.contains_key(&(site.clone(), key.clone()));
        if !known && told.keys().filter(|(s, _)| s == site).count() >= TOLD_MAX {
            return Err(Refusal {
                reason: "NotAMember",
                detail: format!("too many federations, {key} is one more"),
            });
        }
        // Under the lock, so that the number and the view that is kept belong together.
        let arrival = mesh.arrivals.fetch_add(1, Ordering::Relaxed);
        let version = view.version;
        let kept = Told { observation: Arc::clone(&observation), version, true_at, arrival };
        told.insert((site.clone(), key.clone()), kept);
        arrival
    };
    // Only now: a task that comes in between finds the view where it was kept.
    if let Some(handle) = mesh.handle(&key) {
        handle.tell(Message::View { site: site.clone(), observation, age_ms, arrival }).await;
    }
    Ok(())
}

/// An agent speaks only for its own site and members.
fn own_only(site: &SiteName, observation: &SiteObservation) -> Result<(), Refusal> {
    let foreign =
        observation.members.iter().map(|m| &m.slot).chain(observation.offers.iter().map(|o| &o.slot));
    let foreign = foreign.map(|slot| &slot.site).chain([&observation.site]).find(|other| *other != site);
    match foreign {
        Some(other) => {
            Err(Refusal { reason: "SpeaksForOthers", detail: format!("{site} speaks for {other}") })
        }
        None => Ok(()),
    }
}

async fn pinged(mesh: &Mesh, site: &SiteName, ping: Ping) {
    let now = mesh.clock.now_ms();
    mesh.contacts.pinged(site, (ping.wall_ms, Clock::unix_millis()), ping.contacts);
    for fresh in ping.fresh {
        let (Ok(namespace), Ok(name)) = (ObjectName::new(&fresh.namespace), ObjectName::new(&fresh.name))
        else {
            continue;
        };
        let key = FederationKey { namespace, name };
        let current = {
            let mut told = lock(&mesh.told);
            match told.get_mut(&(site.clone(), key.clone())) {
                // Of another version nothing is renewed: its view is on the way.
                Some(told) if told.version == fresh.version => {
                    told.true_at = now.saturating_sub(fresh.sample_age_ms);
                    Some(told.arrival)
                }
                _ => None,
            }
        };
        if let (Some(arrival), Some(handle)) = (current, mesh.handle(&key)) {
            let age_ms = fresh.sample_age_ms;
            handle.tell(Message::Fresh { site: site.clone(), arrival, age_ms }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::federation::layout::default_zone;
    use quorate_core::federation::observed::SlotOffer;
    use quorate_core::id::{IncarnationId, PeerUrl, Slot};

    use super::*;

    #[test]
    fn an_agent_speaks_for_its_own_site_only() {
        let (east, west) = (SiteName::new("east").unwrap(), SiteName::new("west").unwrap());
        let mut observation = SiteObservation::empty(east.clone());
        own_only(&east, &observation).unwrap();
        assert_eq!(own_only(&west, &observation).unwrap_err().reason, "SpeaksForOthers");
        observation.offers.push(SlotOffer {
            slot: Slot { site: west, ordinal: 0, zone: default_zone() },
            peer_url: PeerUrl("https://main-west-0.west.test:2380".into()),
            incarnation: IncarnationId(1),
        });
        assert_eq!(own_only(&east, &observation).unwrap_err().reason, "SpeaksForOthers");
    }
}
