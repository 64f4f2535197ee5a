//! The process runtime: one `quorate member` process per own slot, in a session of its own, so that it outlives the
//! agent; after a restart of the agent it is adopted.

mod addresses;
mod adoption;
mod child;
mod config;
mod slot;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate_api::config::SiteConfig;
use quorate_api::document::format;
use quorate_api::member::member_client::MemberClient;
use quorate_api::member::{GrantRequest, StopRequest};
use quorate_core::federation::member::{DirFacts, Grant, IncarnationState, MemberReport};
use quorate_core::id::{FederationKey, IncarnationId, PeerUrl, Slot, Uid};
use quorate_core::reason::{Code, Reason};
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use quorate_link::pki::{self, ForeignPeers, SitePki};
use quorate_link::tls::TlsStore;
use tokio::sync::watch;
use tonic::transport::Channel;

use crate::metrics::Metrics;
use crate::ports::{Fault, Runtime, Serving, Supervised};
use crate::store;
pub use addresses::{Address, Addresses};
pub use adoption::{ProcessAdoption, credentials};
use config::Certificates;

/// Certificates are looked at this often; the files of all slots of a large site would be many otherwise.
const CERTIFICATES_MS: u64 = 60_000;
/// Rule I9: good for more than a day, or a quarter of their life if that is less.
const DAY: Duration = Duration::from_hours(24);
/// etcd gets ten seconds to hand leadership over, its supervisor a few more.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// What all slots of one federation share.
struct Shared {
    site: Arc<SiteConfig>,
    addresses: Arc<Addresses>,
    federation: FederationKey,
    pki: SitePki,
    tls: TlsStore,
    folder: PathBuf,
    executable: PathBuf,
    metrics: Arc<Metrics>,
    slots: Mutex<BTreeMap<Slot, State>>,
    version: watch::Sender<u64>,
    /// Counts the reasons to look at all certificates at once.
    renewals: watch::Sender<u64>,
    foreign: ForeignPeers,
    clock: Clock,
}

/// One supervised slot.
struct State {
    uid: Uid,
    report: MemberReport,
    channel: Channel,
    certificates: Option<(u64, bool)>,
    /// The process, once it was started or adopted.
    process: Option<child::Identity>,
    /// Ends the task that keeps the supervisor.
    drain: Drain,
}

/// See the module.
pub struct ProcessRuntime {
    shared: Arc<Shared>,
    drain: Drain,
}

/// What a [`ProcessRuntime`] needs of its site.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The site's configuration.
    pub site: Arc<SiteConfig>,
    /// The addresses of its members.
    pub addresses: Arc<Addresses>,
    /// Its certificates.
    pub pki: SitePki,
    /// The agent's identity, for the member API.
    pub tls: TlsStore,
    /// The program whose subcommand `member` is started.
    pub executable: PathBuf,
    /// Where restarts are counted.
    pub metrics: Arc<Metrics>,
}

impl ProcessRuntime {
    /// Supervises nothing yet. `drain` ends the watching, not the members.
    pub fn new(setup: Setup, federation: FederationKey, drain: Drain) -> Self {
        let Setup { site, addresses, pki, tls, executable, metrics } = setup;
        let folder = store::folder(&site.state_dir, &federation);
        let foreign = foreign_peers(&pki, &folder);
        let shared = Shared {
            site,
            addresses,
            federation,
            pki,
            tls,
            folder,
            executable,
            metrics,
            slots: Mutex::default(),
            version: watch::Sender::new(1),
            renewals: watch::Sender::new(0),
            foreign,
            clock: Clock::start(),
        };
        Self { shared: Arc::new(shared), drain }
    }

    fn client(&self, slot: &Slot) -> Result<MemberClient<Channel>, Fault> {
        let slots = self.shared.lock();
        let state = slots.get(slot).ok_or_else(|| Fault::new(format!("{slot} has no supervisor")))?;
        Ok(MemberClient::new(state.channel.clone()))
    }
}

impl std::fmt::Debug for ProcessRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessRuntime").field("federation", &self.shared.federation).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Slot, State>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn volume(&self, slot: &Slot) -> PathBuf {
        self.folder.join("members").join(slot.name(&self.federation.name))
    }

    /// The address of a slot.
    fn address(&self, slot: &Slot) -> Result<Address, Fault> {
        let found = self.addresses.get(&self.federation, slot);
        found.ok_or_else(|| Fault::new(format!("{slot} has no address yet")))
    }

    /// Writes to the disk, so not on a thread that others wait for.
    async fn on_disk(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<(), addresses::Error> + Send + 'static,
    ) -> Result<(), Fault> {
        let shared = Arc::clone(self);
        match tokio::task::spawn_blocking(move || work(&shared)).await {
            Ok(result) => result.map_err(|error| Fault::from_error(&error)),
            Err(error) => Err(Fault::from_error(&error)),
        }
    }

    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// Takes note of what a supervisor says; none = it does not answer.
    fn report(&self, slot: &Slot, report: Option<MemberReport>) {
        {
            let mut slots = self.lock();
            let Some(state) = slots.get_mut(slot) else { return };
            let next = report.unwrap_or_else(|| MemberReport::unknown(slot.clone()));
            if state.report == next {
                return;
            }
            if let Some(reason) =
                next.hindered.as_ref().filter(|new| state.report.hindered.as_ref() != Some(*new))
            {
                tracing::error!(
                    federation = %self.federation, %slot, reason = reason.code.name(), remedy = reason.code.remedy(),
                    "{reason}"
                );
            }
            state.report = next;
        }
        self.changed();
    }

    /// Takes note of what keeps a supervisor from being started.
    fn hindered(&self, slot: &Slot, fault: Fault) {
        let text = fault.to_string();
        let reason = fault.trouble.unwrap_or_else(|| Reason::new(Code::HostFault).place(text));
        let reason = reason.site(&slot.site);
        self.report(
            slot,
            Some(MemberReport { hindered: Some(reason), ..MemberReport::unknown(slot.clone()) }),
        );
    }

    /// Takes note of the process that works on a slot.
    fn started(&self, slot: &Slot, process: child::Identity) {
        if let Some(state) = self.lock().get_mut(slot) {
            state.process = Some(process);
        }
    }

    fn certificates_good(&self, slot: &Slot) -> bool {
        let now = self.clock.now_ms();
        let mut slots = self.lock();
        let Some(state) = slots.get_mut(slot) else { return false };
        match state.certificates {
            Some((at, good)) if now.saturating_sub(at) < CERTIFICATES_MS => good,
            _ => {
                let files = Certificates::in_folder(&self.volume(slot).join("pki"));
                let good = [&files.client_cert, &files.peer_cert, &files.peer_client_cert]
                    .into_iter()
                    .all(|f| lasts(f));
                state.certificates = Some((now, good));
                good
            }
        }
    }
}

/// The trust in a foreign etcd's peers, kept with the federation.
pub fn foreign_peers(pki: &SitePki, federation: &Path) -> ForeignPeers {
    ForeignPeers::new(pki.clone(), federation.join("foreign"))
}

fn lasts(path: &Path) -> bool {
    let Ok(validity) = pki::validity(path) else { return false };
    let life = validity.not_after.duration_since(validity.not_before).unwrap_or_default();
    let left = validity.not_after.duration_since(Clock::wall()).unwrap_or_default();
    left > DAY.min(life / 4)
}

/// A removed incarnation whose directory is in the archive is not here any more.
fn settled(mut report: MemberReport) -> MemberReport {
    let over = report.incarnation.as_ref().is_some_and(|i| i.state == IncarnationState::Removed);
    if over && report.dir == Some(DirFacts::Empty) {
        report.incarnation = None;
    }
    report
}

fn refused(status: &tonic::Status) -> Fault {
    Fault::new(format!("the supervisor says {:?}: {}", status.code(), status.message()))
}

impl Runtime for ProcessRuntime {
    async fn place(&self, slots: &[Slot]) -> Result<(), Fault> {
        let slots = slots.to_vec();
        self.shared.on_disk(move |shared| shared.addresses.place(&shared.federation, &slots)).await
    }

    fn peer_url(&self, slot: &Slot) -> Option<PeerUrl> {
        self.shared.addresses.get(&self.shared.federation, slot).map(|address| address.peer_url)
    }

    fn serving(&self, slot: &Slot) -> Option<Serving> {
        let (addresses, federation) = (&self.shared.addresses, &self.shared.federation);
        let address = addresses.get(federation, slot)?;
        let moves_to = addresses.wanted(federation, slot).filter(|wanted| address.also.contains(wanted));
        let ports = address.peer_ports();
        Some(Serving { peer_url: address.peer_url, also: address.also, moves_to, ports })
    }

    fn strays(&self, slot: &Slot, listed: &PeerUrl) -> bool {
        self.shared.addresses.following(&self.shared.federation, slot, listed).is_some()
    }

    async fn follow(&self, slot: &Slot, listed: &PeerUrl) -> Result<(), Fault> {
        let (of, url) = (slot.clone(), listed.clone());
        self.shared.on_disk(move |shared| shared.addresses.follow(&shared.federation, &of, &url)).await?;
        let uid = self.shared.lock().get(slot).map(|state| state.uid);
        let Some(uid) = uid else { return Ok(()) };
        // etcd reads its certificates with each handshake: they need the new host before anybody asks for it.
        slot::prepared(&self.shared, &Supervised { uid, slot: slot.clone() }).await
    }

    async fn supervise(&self, wanted: &Supervised) -> Result<(), Fault> {
        if self.shared.lock().contains_key(&wanted.slot) {
            return Ok(());
        }
        slot::prepared(&self.shared, wanted).await?;
        let channel = slot::channel(&self.shared, wanted)?;
        let drain = self.drain.child();
        let state = State {
            uid: wanted.uid,
            report: MemberReport::unknown(wanted.slot.clone()),
            channel,
            certificates: None,
            process: None,
            drain: drain.clone(),
        };
        self.shared.lock().insert(wanted.slot.clone(), state);
        drain.spawn_until(slot::keep(Arc::clone(&self.shared), wanted.clone()));
        self.shared.changed();
        Ok(())
    }

    async fn resume(&self) {
        for wanted in config::found(&self.shared.folder.join("members")) {
            if let Err(error) = self.supervise(&wanted).await {
                tracing::warn!(slot = %wanted.slot, %error, "a member cannot be supervised");
            }
        }
    }

    async fn grant(&self, grant: &Grant) -> Result<(), Fault> {
        let wanted = Supervised { uid: grant.uid, slot: grant.slot.clone() };
        // The volume may have been emptied since its supervisor was started.
        slot::prepared(&self.shared, &wanted).await?;
        let body = serde_json::to_vec(grant).map_err(|error| Fault::from_error(&error))?;
        let request = GrantRequest { format: format::GRANT.to_owned(), body };
        self.client(&grant.slot)?.grant(request).await.map(drop).map_err(|status| refused(&status))
    }

    async fn stop(
        &self,
        slot: &Slot,
        incarnation: IncarnationId,
        archive: Option<&str>,
    ) -> Result<(), Fault> {
        let archive = archive.unwrap_or_default().to_owned();
        let request = StopRequest { incarnation: incarnation.to_string(), archive };
        self.client(slot)?.stop(request).await.map(drop).map_err(|status| refused(&status))
    }

    async fn retire(&self, slot: &Slot) -> Result<(), Fault> {
        let state = self.shared.lock().remove(slot);
        let process = state.as_ref().and_then(|state| state.process);
        if let Some(state) = state {
            state.drain.start();
            tracing::info!(%slot, uid = %state.uid, "the supervisor is no longer needed");
        }
        child::stop(&self.shared.volume(slot), process, STOP_PATIENCE).await;
        self.shared.changed();
        let slot = slot.clone();
        self.shared.on_disk(move |shared| shared.addresses.forget(&shared.federation, &slot)).await
    }

    async fn stop_all(&self) {
        let states = std::mem::take(&mut *self.shared.lock());
        for state in states.values() {
            state.drain.start();
        }
        let stops = states.iter().map(|(slot, state)| {
            let volume = self.shared.volume(slot);
            async move { child::stop(&volume, state.process, STOP_PATIENCE).await }
        });
        futures::future::join_all(stops).await;
    }

    fn reports(&self) -> Vec<MemberReport> {
        self.shared.lock().values().map(|state| state.report.clone()).map(settled).collect()
    }

    fn version(&self) -> u64 {
        *self.shared.version.borrow()
    }

    async fn changed(&self, seen: u64) {
        let mut version = self.shared.version.subscribe();
        // The sender lives as long as this runtime.
        let _ = version.wait_for(|now| *now != seen).await;
    }

    fn renew(&self) {
        self.shared.renewals.send_modify(|count| *count += 1);
    }

    fn certificates_good(&self, slot: &Slot) -> bool {
        self.shared.certificates_good(slot)
    }
}
