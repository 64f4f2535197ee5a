//! What we say: one stream to one peer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_api::document::format;
use quorate_api::peer::peer_client::PeerClient;
use quorate_api::peer::sync_message::Message;
use quorate_api::peer::{Contact, Fresh, HelloRequest, Ping, SyncMessage, ViewUpdate};
use quorate_core::id::{FederationKey, SiteName};
use quorate_link::clock::Clock;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::{Mesh, lock, parting};
use crate::ports::Sender;

/// Renews the age of all that did not change (decisions.md 3).
const PING: Duration = Duration::from_secs(2);
/// The same until the distance is known: a birth waits for it.
const PING_SOON: Duration = Duration::from_millis(200);
/// A ping that is not answered by then says nothing of the distance.
const PONG: Duration = Duration::from_secs(10);
/// Everything once more, in case something got lost.
const ALL: Duration = Duration::from_mins(1);
/// Between two messages about one federation; what changes meanwhile goes with the next one.
const SPACING_MS: u64 = 100;
/// Before the first message and after a broken stream; doubled with each failure.
const BACK_OFF: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(3);
/// A stream that lasted so long did not fail at its start.
const SETTLED_MS: u64 = 5_000;

/// Speaks to one peer until dropped.
pub(super) async fn speak(mesh: Arc<Mesh>, peer: SiteName, channel: Channel) {
    let mut wait = BACK_OFF;
    let mut told = String::new();
    loop {
        let began = mesh.clock.now_ms();
        let why = match session(&mesh, &peer, channel.clone()).await {
            Ok(()) => "the peer ended the stream".to_owned(),
            Err(status) => status.to_string(),
        };
        mesh.contacts.lost(&peer, &why);
        // Once per cause: a peer that is away for a day would fill the log.
        if why != told {
            tracing::info!(peer = %peer, why, "no stream to the peer");
            told = why;
        }
        if mesh.clock.now_ms().saturating_sub(began) > SETTLED_MS {
            wait = BACK_OFF;
            told.clear();
        }
        // Jitter, so that all peers of a site that comes back do not call at once.
        let spread = u64::from(rand::random::<u8>());
        let pause = wait.mul_f64(0.75) + wait * u32::try_from(spread).unwrap_or(0) / 512;
        let called = async {
            match mesh.called.get(&peer) {
                Some(called) => called.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => wait = (wait * 2).min(BACK_OFF_MAX),
            () = called => wait = BACK_OFF,
        }
    }
}

async fn session(mesh: &Arc<Mesh>, peer: &SiteName, channel: Channel) -> Result<(), tonic::Status> {
    let mut client = PeerClient::new(channel);
    let hello = HelloRequest {
        envelope: Some(mesh.envelope(None, Sender::default())),
        capabilities: Vec::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut request = tonic::Request::new(hello);
    request.set_timeout(super::CALL);
    let reply = client.hello(request).await?.into_inner();
    mesh.contacts.connected(peer, &reply.version);
    tracing::info!(peer = %peer, version = reply.version, "connected to the peer");
    let (outgoing, stream) = mpsc::channel(64);
    let mut incoming = client.sync(ReceiverStream::new(stream)).await?.into_inner();
    let mut sent = Sent::default();
    let mut wake = mesh.wake.subscribe();
    let mut ping = tokio::time::interval(PING_SOON);
    // The last ping that is not answered, with the time when it went out. One answer in flight is enough.
    let mut pinged: Option<(u64, Duration)> = None;
    let mut all = tokio::time::interval(ALL);
    all.reset();
    let mut again: Option<u64> = Some(0);
    loop {
        let pause = again.map(|at| Duration::from_millis(at.saturating_sub(mesh.clock.now_ms())));
        tokio::select! {
            message = incoming.message() => match message? {
                Some(SyncMessage { message: Some(Message::Pong(answer)) }) => {
                    let Some((_, at)) = pinged.take_if(|(seq, _)| *seq == answer.seq) else { continue };
                    if mesh.note_round_trip(peer, mesh.clock.elapsed().saturating_sub(at)) && ping.period() != PING {
                        ping = tokio::time::interval(PING);
                        ping.reset();
                    }
                }
                Some(SyncMessage { message: Some(Message::Retired(retired)) }) => {
                    if let Err(refusal) = parting::hear(mesh, peer, retired).await {
                        mesh.refuse(peer.as_str(), refusal.reason, &refusal.detail);
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            },
            _ = ping.tick() => {
                let age = seconds(mesh.age_ms(peer).unwrap_or(u64::MAX));
                let rtt = mesh.round_trip(peer).map(|d| Duration::from_micros(d.rtt_us.into()).as_secs_f64());
                mesh.metrics.peer(peer.as_str(), age, rtt);
                let now = mesh.clock.elapsed();
                let open = pinged.is_some_and(|(_, at)| now.saturating_sub(at) < PONG);
                let (seq, message) = fresh(mesh, peer);
                send(&outgoing, message).await?;
                if !open {
                    pinged = Some((seq, now));
                }
            }
            _ = all.tick() => {
                sent = Sent::default();
                again = Some(0);
            }
            changed = wake.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                again = Some(again.unwrap_or(0));
            }
            () = tokio::time::sleep(pause.unwrap_or(ALL)), if again.is_some() => {
                let (messages, next) = sent.changed(mesh, peer);
                for message in messages {
                    send(&outgoing, message).await?;
                }
                again = next;
            }
        }
    }
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms.min(u64::from(u32::MAX))).as_secs_f64()
}

async fn send(outgoing: &mpsc::Sender<SyncMessage>, message: Message) -> Result<(), tonic::Status> {
    let message = SyncMessage { message: Some(message) };
    outgoing.send(message).await.map_err(|_| tonic::Status::unavailable("the stream broke"))
}

/// What this stream has carried: versions, and when.
#[derive(Default)]
struct Sent {
    versions: BTreeMap<FederationKey, (u64, Sender, u64)>,
}

impl Sent {
    /// What is new for this peer, and when to look again because something was too early.
    fn changed(&mut self, mesh: &Mesh, peer: &SiteName) -> (Vec<Message>, Option<u64>) {
        let now = mesh.clock.now_ms();
        let mut messages = Vec::new();
        let mut next: Option<u64> = None;
        let said = lock(&mesh.said);
        for (key, said) in said.iter().filter(|(_, said)| said.sites.contains(peer)) {
            let before = self.versions.get(key).copied();
            if before.is_some_and(|(version, from, _)| version == said.version && from == said.envelope) {
                continue;
            }
            let due = before.map_or(0, |(.., at)| at + SPACING_MS);
            if due > now {
                next = Some(next.unwrap_or(due).min(due));
                continue;
            }
            self.versions.insert(key.clone(), (said.version, said.envelope, now));
            messages.push(Message::View(ViewUpdate {
                envelope: Some(mesh.envelope(Some(key), said.envelope)),
                format: format::OBSERVATION.to_owned(),
                body: said.body.to_vec(),
                version: said.version,
                sample_age_ms: now.saturating_sub(said.true_at),
            }));
        }
        (messages, next)
    }
}

/// A ping, with its number.
fn fresh(mesh: &Mesh, peer: &SiteName) -> (u64, Message) {
    let now = mesh.clock.now_ms();
    let fresh = lock(&mesh.said)
        .iter()
        .filter(|(_, said)| said.sites.contains(peer))
        .map(|(key, said)| Fresh {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            version: said.version,
            sample_age_ms: now.saturating_sub(said.true_at),
        })
        .collect();
    let contacts = mesh.peers().map(|site| Contact {
        site: site.to_string(),
        age_ms: mesh.age_ms(site),
        rtt_us: mesh.round_trip(site).map(|distance| distance.rtt_us.into()),
    });
    let (contacts, wall_ms) = (contacts.collect(), Clock::unix_millis());
    let envelope = mesh.envelope(None, Sender::default());
    (envelope.seq, Message::Ping(Ping { envelope: Some(envelope), fresh, wall_ms, contacts }))
}
