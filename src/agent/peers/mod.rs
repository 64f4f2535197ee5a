//! The mesh: the agents of the other sites. One stream of our own to each peer carries what we see; the streams of the
//! peers carry what they see; questions are single calls (networking.md 5).

mod client;
mod contact;
mod envelope;
mod parting;
mod reach;
mod server;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_api::config::Cidr;
use quorate_api::document::{self, format};
use quorate_api::peer::peer_client::PeerClient;
use quorate_api::peer::{Document, Envelope};
use quorate_core::adopt::CertificateRequest;
use quorate_core::ballot::Ballot;
use quorate_core::federation::distance::{Distance, Window};
use quorate_core::federation::observed::{RecordSummary, SiteObservation};
use quorate_core::federation::spec::Spec;
use quorate_core::id::{BootId, Digest, FederationKey, SiteName};
use quorate_core::intent::record::Record;
use quorate_core::intent::{Intent, Resolution};
use quorate_core::membership::disruption::{DrainGrant, DrainRequest};
use quorate_core::reason::{Code, Reason};
use quorate_core::report::PeerReport;
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use quorate_link::durable;
use quorate_link::identity::Identity;
use quorate_link::repeats::Repeats;
use quorate_link::tls::TlsStore;
use quorate_link::transport::dial;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tonic::transport::Channel;

use crate::federation::{Handle, Message};
use crate::metrics::Metrics;
use crate::ports::{Parting, Peers, Publication, Sender};
pub use server::router;

/// The versions of this protocol that we speak.
pub(crate) const PROTOCOL: (u32, u32) = (1, 1);
/// One call; the loop has shorter patience of its own.
const CALL: Duration = Duration::from_secs(6);
const HIGHEST: &str = "quorate.peers/1";

/// What a mesh needs to know.
#[derive(Debug)]
pub struct Setup {
    /// The own site.
    pub site: SiteName,
    /// The mesh.
    pub mesh: String,
    /// The other agents: site and `host:port`.
    pub peers: Vec<(SiteName, String)>,
    /// Where peers may come from; empty = anywhere.
    pub from: Vec<Cidr>,
    /// A fresh random value.
    pub boot: BootId,
    /// Our identity and their roots.
    pub tls: TlsStore,
    /// Where it is remembered which protocol a peer spoke.
    pub memory: PathBuf,
    /// The clock of the whole agent.
    pub clock: Clock,
}

/// See the module.
pub struct Mesh {
    site: SiteName,
    id: String,
    boot: BootId,
    from: Vec<Cidr>,
    seq: AtomicU64,
    clock: Clock,
    channels: BTreeMap<SiteName, Channel>,
    metrics: Arc<Metrics>,
    said: Mutex<BTreeMap<FederationKey, Said>>,
    wake: watch::Sender<u64>,
    federations: Mutex<BTreeMap<FederationKey, Handle>>,
    /// The last view of each peer, also for federations that are not known here yet.
    told: Mutex<BTreeMap<(SiteName, FederationKey), Told>>,
    arrivals: AtomicU64,
    heard: Mutex<BTreeMap<SiteName, u64>>,
    /// How far the peers' agents are, by the pings of our streams.
    distances: Mutex<BTreeMap<SiteName, Window>>,
    /// A peer that calls is back: our own call need not wait any longer.
    called: BTreeMap<SiteName, Notify>,
    highest: Mutex<BTreeMap<SiteName, u32>>,
    contacts: contact::Contacts,
    memory: PathBuf,
    refusals: Repeats,
}

/// The own observation of one federation, ready to be sent.
struct Said {
    envelope: Sender,
    body: Arc<[u8]>,
    version: u64,
    true_at: u64,
    sites: Vec<SiteName>,
    partings: Vec<Parting>,
}

/// The last view of one peer of one federation.
struct Told {
    observation: Arc<SiteObservation>,
    version: u64,
    true_at: u64,
    arrival: u64,
}

/// A peer may tell of so many federations that are not known here; a Gardener seed has about a thousand.
const TOLD_MAX: usize = 4_096;

impl Mesh {
    /// Makes no connection yet.
    pub fn new(setup: Setup, metrics: Arc<Metrics>) -> Result<Arc<Self>, dial::DialError> {
        let Setup { site, mesh, peers, from, boot, tls, memory, clock } = setup;
        let mut channels = BTreeMap::new();
        for (peer, endpoint) in peers {
            let channel = dial::connect(&endpoint, &tls, Identity::agent(peer.to_string()))?;
            channels.insert(peer, channel);
        }
        let highest = durable::read(&memory, HIGHEST).unwrap_or_else(|error| {
            tracing::warn!(error = crate::chain(&error), "which protocols the peers spoke is forgotten");
            None
        });
        Ok(Arc::new(Self {
            site,
            id: mesh,
            boot,
            from,
            seq: AtomicU64::new(1),
            clock,
            called: channels.keys().map(|peer| (peer.clone(), Notify::new())).collect(),
            channels,
            metrics,
            said: Mutex::default(),
            wake: watch::Sender::new(0),
            federations: Mutex::default(),
            told: Mutex::default(),
            arrivals: AtomicU64::new(1),
            heard: Mutex::default(),
            distances: Mutex::default(),
            highest: Mutex::new(highest.unwrap_or_default()),
            contacts: contact::Contacts::default(),
            memory,
            refusals: Repeats::default(),
        }))
    }

    /// Keeps a stream to each peer until the end.
    pub fn start(self: &Arc<Self>, drain: &Drain) {
        for (peer, channel) in &self.channels {
            drain.spawn_until(client::speak(Arc::clone(self), peer.clone(), channel.clone()));
        }
    }

    /// From now on messages about a federation go to its task; what was told before is delivered.
    pub async fn enter(&self, key: &FederationKey, handle: Handle) {
        lock(&self.federations).insert(key.clone(), handle.clone());
        let now = self.clock.now_ms();
        let told: Vec<Message> = {
            let told = lock(&self.told);
            let here = told.iter().filter(|((_, k), _)| k == key);
            here.map(|((site, _), told)| Message::View {
                site: site.clone(),
                observation: Arc::clone(&told.observation),
                age_ms: now.saturating_sub(told.true_at),
                arrival: told.arrival,
            })
            .collect()
        };
        for message in told {
            handle.tell(message).await;
        }
    }

    /// The federation has no task any more.
    pub fn leave(&self, key: &FederationKey) {
        lock(&self.federations).remove(key);
        lock(&self.said).remove(key);
    }

    /// The names of all peers.
    pub fn peers(&self) -> impl Iterator<Item = &SiteName> {
        self.channels.keys()
    }

    /// Milliseconds since a peer was heard.
    pub fn age_ms(&self, peer: &SiteName) -> Option<u64> {
        lock(&self.heard).get(peer).map(|at| self.clock.now_ms().saturating_sub(*at))
    }

    /// A ping of ours was answered; whether the distance is known well enough now.
    fn note_round_trip(&self, peer: &SiteName, rtt: Duration) -> bool {
        let rtt_us = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX);
        let mut distances = lock(&self.distances);
        let window = distances.entry(peer.clone()).or_default();
        window.add(self.clock.now_ms(), rtt_us);
        window.enough()
    }

    /// How far a peer's agent is; none while that is not proven.
    pub fn round_trip(&self, peer: &SiteName) -> Option<Distance> {
        lock(&self.distances).get(peer)?.proven(self.clock.now_ms())
    }

    /// What is known of a peer's agent, for people.
    pub fn contact(&self, peer: &SiteName) -> PeerReport {
        let protocol = lock(&self.highest).get(peer).copied();
        let rtt_us = self.round_trip(peer).map(|distance| u64::from(distance.rtt_us));
        PeerReport { age_ms: self.age_ms(peer), protocol, rtt_us, ..self.contacts.report(peer) }
    }

    fn handle(&self, key: &FederationKey) -> Option<Handle> {
        lock(&self.federations).get(key).cloned()
    }

    fn envelope(&self, key: Option<&FederationKey>, from: Sender) -> Envelope {
        Envelope {
            mesh: self.id.clone(),
            namespace: key.map(|k| k.namespace.to_string()).unwrap_or_default(),
            name: key.map(|k| k.name.to_string()).unwrap_or_default(),
            federation_uid: from.uid.map(|uid| uid.to_string()).unwrap_or_default(),
            epoch: from.epoch.0,
            sender_site: self.site.to_string(),
            boot_id: self.boot.0.to_be_bytes().to_vec(),
            seq: self.seq.fetch_add(1, Ordering::Relaxed),
            proto_min: PROTOCOL.0,
            proto_max: PROTOCOL.1,
        }
    }

    /// Remembers the highest protocol of a peer; false if it spoke a higher one before.
    fn remember(&self, peer: &SiteName, protocol: u32) -> bool {
        let all = {
            let mut highest = lock(&self.highest);
            let known = highest.entry(peer.clone()).or_default();
            if protocol <= *known {
                return protocol == *known;
            }
            *known = protocol;
            highest.clone()
        };
        if let Err(error) = durable::write(&self.memory, HIGHEST, &all) {
            tracing::warn!(error = crate::chain(&error), "the protocol of a peer cannot be remembered");
        }
        true
    }

    fn refuse(&self, peer: &str, reason: &'static str, detail: &str) {
        self.metrics.refused(reason);
        if self.refusals.is_new(format!("{peer} {reason} {detail}")) {
            tracing::warn!(peer, reason, detail, "message refused");
        } else {
            tracing::debug!(peer, reason, detail, "message refused");
        }
    }
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mesh").field("site", &self.site).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mesh as one federation sees it.
#[derive(Debug, Clone)]
pub struct FederationPeers {
    mesh: Arc<Mesh>,
    key: FederationKey,
}

/// Which call carries a question.
enum Rpc {
    Record,
    Vote,
    Propose,
    Resolve,
    Drain,
    Certify,
}

impl FederationPeers {
    /// For one federation.
    pub fn new(mesh: Arc<Mesh>, key: FederationKey) -> Self {
        Self { mesh, key }
    }

    async fn ask<Q: Serialize, R: DeserializeOwned>(
        &self,
        (site, from): (&SiteName, Sender),
        rpc: Rpc,
        (given, question): (&str, &Q),
        expected: &str,
    ) -> Result<R, String> {
        let channel =
            self.mesh.channels.get(site).ok_or_else(|| format!("{site} is not a configured peer"))?;
        let body = document::encode(question).map_err(|error| crate::chain(&error))?;
        let envelope = Some(self.mesh.envelope(Some(&self.key), from));
        let mut request = tonic::Request::new(Document { envelope, format: given.to_owned(), body });
        request.set_timeout(CALL);
        let mut client = PeerClient::new(channel.clone());
        let answer = match rpc {
            Rpc::Record => client.record(request).await,
            Rpc::Vote => client.vote(request).await,
            Rpc::Propose => client.propose(request).await,
            Rpc::Resolve => client.resolve(request).await,
            Rpc::Drain => client.drain(request).await,
            Rpc::Certify => client.certify(request).await,
        };
        let Document { envelope: _, format: given, body } =
            answer.map_err(|status| status.to_string())?.into_inner();
        document::decode(expected, &given, &body).map_err(|error| crate::chain(&error))
    }

    fn lost(&self, site: &SiteName, error: &str) -> Reason {
        tracing::debug!(federation = %self.key, peer = %site, error, "no answer");
        Reason::new(Code::PeerUnreachable).site(site).numbers(self.mesh.age_ms(site).unwrap_or(u64::MAX), 0)
    }
}

impl Peers for FederationPeers {
    fn has(&self, site: &SiteName) -> bool {
        self.mesh.channels.contains_key(site)
    }

    async fn record(&self, site: &SiteName, from: Sender) -> Option<RecordSummary> {
        let question = (format::RECORD_SUMMARY, &());
        let answer = self.ask((site, from), Rpc::Record, question, format::RECORD_SUMMARY).await;
        answer.map_err(|error| self.lost(site, &error)).ok()
    }

    async fn whole_record(&self, site: &SiteName, from: Sender) -> Option<Record> {
        let answer = self.ask((site, from), Rpc::Record, (format::RECORD, &()), format::RECORD).await;
        answer.map_err(|error| self.lost(site, &error)).ok().flatten()
    }

    async fn spec(&self, site: &SiteName, from: Sender, digest: Digest) -> Option<Spec> {
        let answer = self.ask((site, from), Rpc::Record, (format::SPEC, &digest), format::SPEC).await;
        answer.map_err(|error| self.lost(site, &error)).ok().flatten()
    }

    async fn vote(
        &self,
        site: &SiteName,
        from: Sender,
        ballot: &Arc<Ballot>,
    ) -> Result<RecordSummary, Reason> {
        let question = (format::BALLOT, ballot.as_ref());
        let answer = self.ask((site, from), Rpc::Vote, question, format::VOTE_REPLY).await;
        answer.unwrap_or_else(|error: String| Err(self.lost(site, &error)))
    }

    async fn propose(&self, site: &SiteName, from: Sender, intent: &Arc<Intent>) -> Result<bool, Reason> {
        let question = (format::INTENT, intent.as_ref());
        let answer = self.ask((site, from), Rpc::Propose, question, format::ACK).await;
        answer.unwrap_or_else(|error: String| Err(self.lost(site, &error)))
    }

    async fn resolve(&self, site: &SiteName, from: Sender, resolution: &Arc<Resolution>) -> bool {
        let question = (format::RESOLUTION, resolution.as_ref());
        let answer = self.ask((site, from), Rpc::Resolve, question, format::ACK).await;
        let taken: Result<bool, Reason> = answer.unwrap_or_else(|error: String| Err(self.lost(site, &error)));
        taken.unwrap_or(false)
    }

    async fn name_taken(&self, site: &SiteName, from: Sender) -> Option<bool> {
        let answer = self.ask((site, from), Rpc::Record, (format::NAME, &()), format::NAME).await;
        answer.map_err(|error| self.lost(site, &error)).ok()
    }

    fn mesh(&self) -> Vec<SiteName> {
        self.mesh.peers().cloned().collect()
    }

    async fn drain(
        &self,
        site: &SiteName,
        from: Sender,
        request: DrainRequest,
    ) -> Result<DrainGrant, Reason> {
        let answer = self.ask((site, from), Rpc::Drain, (format::DRAIN, &request), format::DRAIN_REPLY).await;
        answer.unwrap_or_else(|error: String| Err(self.lost(site, &error)))
    }

    async fn certify(
        &self,
        site: &SiteName,
        from: Sender,
        request: &CertificateRequest,
    ) -> Result<Option<String>, Reason> {
        let question = (format::CERTIFICATE_REQUEST, request);
        let answer = self.ask((site, from), Rpc::Certify, question, format::CERTIFICATE).await;
        answer.unwrap_or_else(|error: String| Err(self.lost(site, &error)))
    }

    fn publish(&self, publication: Publication) {
        let Publication { federation, from, observation, true_at, sites, version, partings } = publication;
        let mut said = lock(&self.mesh.said);
        let old = said.get_mut(&federation);
        let sites_changed = match old {
            Some(old)
                if old.version == version
                    && old.sites == sites
                    && old.envelope == from
                    && old.partings == partings =>
            {
                old.true_at = true_at;
                return;
            }
            Some(old) => old.sites != sites,
            None => true,
        };
        match document::encode(observation.as_ref()) {
            Ok(body) => {
                let entry = Said { envelope: from, body: body.into(), version, true_at, sites, partings };
                said.insert(federation, entry);
            }
            Err(error) => {
                self.mesh.refuse(self.mesh.site.as_str(), "ObservationTooLarge", &crate::chain(&error));
                return;
            }
        }
        drop(said);
        self.mesh.wake.send_modify(|count| *count += 1 + u64::from(sites_changed));
    }

    fn round_trip(&self, site: &SiteName) -> Option<Distance> {
        self.mesh.round_trip(site)
    }
}
