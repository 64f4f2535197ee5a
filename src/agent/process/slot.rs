//! One slot: its certificates and `member.json`, its supervisor process, and the stream of its reports.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_api::document::{self, format};
use quorate_api::member::WatchRequest;
use quorate_api::member::member_client::MemberClient;
use quorate_core::federation::member::MemberReport;
use quorate_link::identity::Identity;
use quorate_link::pki::{Leaf, Pair, Root};
use quorate_link::transport::dial;
use quorate_link::{durable, host};
use tonic::transport::Channel;

use super::config::{self, Certificates, Member};
use super::{Address, Shared, child};
use crate::ports::{Fault, Supervised};

/// After the end of a supervisor: quickly at first, it may have been killed by mistake.
const RESTART: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];
/// A supervisor that ran so long did not fail at its start.
const SETTLED_MS: u64 = 30_000;
/// A supervisor that was just started does not listen yet.
const DIAL: Duration = Duration::from_millis(50);
const DIAL_MAX: Duration = Duration::from_secs(1);
/// How often leaves are looked at; they are renewed at two thirds of ninety days.
const RENEW: Duration = Duration::from_mins(30);

/// Makes the certificates and `member.json`.
pub(super) async fn prepared(shared: &Arc<Shared>, wanted: &Supervised) -> Result<(), Fault> {
    let (shared, wanted) = (Arc::clone(shared), wanted.clone());
    // Reads and writes files: not on a thread that others wait for.
    let made = tokio::task::spawn_blocking(move || prepare(&shared, &wanted)).await;
    made.map_err(|error| Fault::from_error(&error))?
}

fn prepare(shared: &Shared, wanted: &Supervised) -> Result<(), Fault> {
    let volume = shared.volume(&wanted.slot);
    durable::create_folder(&volume).map_err(|error| Fault::from_error(&error))?;
    let address = shared.address(&wanted.slot)?;
    let files = certificates(shared, wanted, &address, &volume)?;
    let Address { ordinal: _, bind, ports, peer_url, also: _ } = address;
    let site = &shared.site;
    let slot_name = wanted.slot.name(&shared.federation.name);
    let member = Member {
        format: config::FORMAT.to_owned(),
        federation: shared.federation.clone(),
        uid: wanted.uid,
        slot: wanted.slot.clone(),
        outside_mark: crate::store::mark_path(&shared.folder, &slot_name),
        etcd_dir: site.etcd_dir.clone().unwrap_or_else(on_path),
        bind,
        ports,
        peer_url,
        client_urls: vec![format!("https://{}", SocketAddr::new(bind, ports.client))],
        certificates: files,
        foreign_peers: shared.foreign.active(),
        trust_domain: site.trust_domain.clone(),
        log_level: site.log_level.clone(),
        volume: volume.clone(),
    };
    let mut text = serde_json::to_vec_pretty(&member).map_err(|error| Fault::from_error(&error))?;
    text.push(b'\n');
    let path = volume.join(config::FILE);
    durable::write_file(&path, &text, durable::PRIVATE).map_err(|error| Fault::from_error(&error))?;
    let process = shared.lock().get(&wanted.slot).and_then(|state| state.process);
    match process.filter(|process| process.lives()) {
        Some(process) => child::remember(&volume, process).map_err(|error| Fault::from_error(&error)),
        None => Ok(()),
    }
}

/// The first folder on PATH with an etcd.
fn on_path() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find(|folder| folder.join("etcd").is_file());
    found.unwrap_or_else(|| PathBuf::from("/usr/local/bin"))
}

/// Makes what is missing or due. etcd reads leaves again with each handshake; roots it reads once, at its start.
fn certificates(
    shared: &Shared,
    wanted: &Supervised,
    address: &Address,
    volume: &std::path::Path,
) -> Result<Certificates, Fault> {
    let pki = &shared.pki;
    let files = Certificates::in_folder(&volume.join("pki"));
    let uid = wanted.uid.to_string();
    let slot = wanted.slot.name(&shared.federation.name).to_string();
    let hosts = address.hosts();
    let names = hosts.iter().cloned().chain(["localhost".to_owned()]).collect();
    let pair = |cert: &PathBuf, key: &PathBuf| Pair { cert: cert.clone(), key: key.clone() };
    let leaves = [
        (Leaf::MemberApi { uid: uid.clone(), slot: slot.clone() }, pair(&files.api_cert, &files.api_key)),
        (Leaf::PeerServer { uid: uid.clone(), hosts }, pair(&files.peer_cert, &files.peer_key)),
        (Leaf::PeerClient { uid, slot }, pair(&files.peer_client_cert, &files.peer_client_key)),
        (
            Leaf::EtcdServer { hosts: names, addresses: vec![address.bind] },
            pair(&files.client_cert, &files.client_key),
        ),
    ];
    let fault = |error: quorate_link::pki::Error| Fault::from_error(&error);
    let foreign = shared.foreign.active();
    for (leaf, pair) in leaves {
        if foreign && leaf.root() == Root::Peer {
            // The foreign CA has certified it, and only that CA can again.
            if !pair.cert.exists() {
                return Err(Fault::new(format!(
                    "{} is not certified by the foreign CA yet",
                    pair.cert.display()
                )));
            }
            continue;
        }
        pki.ensure(&leaf, &pair).map_err(fault)?;
    }
    let trust = pki.trust();
    let sites = trust.sites().map_err(fault)?;
    let bundles = [
        (&files.agent_roots, trust.agent_bundle(&[pki.site()]).map_err(fault)?),
        (&files.client_roots, pki.client_bundle(&sites).map_err(fault)?),
        (&files.peer_roots, shared.foreign.peer_bundle(&sites).map_err(fault)?),
    ];
    for (path, text) in bundles {
        durable::write_file(path, text.as_bytes(), durable::PUBLIC)
            .map_err(|error| Fault::from_error(&error))?;
    }
    Ok(files)
}

/// A connection to the member API of a slot; made at the first call and again after a loss.
pub(super) fn channel(shared: &Shared, wanted: &Supervised) -> Result<Channel, Fault> {
    let Address { bind, ports, .. } = shared.address(&wanted.slot)?;
    let address = SocketAddr::new(bind, ports.member).to_string();
    let slot = wanted.slot.name(&shared.federation.name).to_string();
    let member = Identity::member(wanted.uid.to_string(), wanted.slot.site.to_string(), slot);
    dial::connect(&address, &shared.tls, member).map_err(|error| Fault::from_error(&error))
}

/// Whether the supervisor of a slot can listen; whatever does there is not ours.
fn free(shared: &Shared, wanted: &Supervised) -> Result<(), Fault> {
    let Address { bind, ports, .. } = shared.address(&wanted.slot)?;
    for port in [ports.member, ports.http] {
        host::listens(SocketAddr::new(bind, port)).map_err(Fault::host)?;
    }
    Ok(())
}

/// Keeps the supervisor of a slot running and its reports coming, until dropped.
pub(super) async fn keep(shared: Arc<Shared>, wanted: Supervised) {
    let volume = shared.volume(&wanted.slot);
    let mut failures = 0_usize;
    loop {
        let began = shared.clock.now_ms();
        let running = match child::adopt(&volume) {
            Some(running) => {
                tracing::info!(slot = %wanted.slot, "supervisor adopted");
                Ok(running)
            }
            // What stands on the volume may be gone together with the supervisor.
            None => match prepared(&shared, &wanted).await.and_then(|()| free(&shared, &wanted)) {
                Ok(()) => child::start(&shared.executable, &volume).map_err(|error| {
                    let what = format!("cannot start a supervisor in {}", volume.display());
                    Fault::host(host::refused(what, &error))
                }),
                // Its ports may be taken by the one that somebody else started on this volume.
                Err(fault) => child::working(&volume).ok_or(fault),
            },
        };
        match running {
            Ok(mut running) => {
                shared.started(&wanted.slot, running.identity());
                tokio::select! {
                    () = running.ended() => {}
                    () = follow(&shared, &wanted) => {}
                }
                shared.report(&wanted.slot, None);
                tracing::warn!(slot = %wanted.slot, "the supervisor ended; it is started again");
            }
            Err(fault) => shared.hindered(&wanted.slot, fault),
        }
        shared.metrics.restarted();
        if shared.clock.now_ms().saturating_sub(began) > SETTLED_MS {
            failures = 0;
        }
        let wait = RESTART.get(failures.min(RESTART.len() - 1)).copied().unwrap_or(DIAL_MAX);
        failures += 1;
        tokio::time::sleep(wait).await;
    }
}

/// Follows the reports and renews certificates; never ends by itself.
async fn follow(shared: &Arc<Shared>, wanted: &Supervised) {
    let mut wait = DIAL;
    let renewals = async {
        let mut asked = shared.renewals.subscribe();
        loop {
            // The sender lives as long as this slot; at the latest after a while it is looked at anyway.
            let _ = tokio::time::timeout(RENEW, asked.changed()).await;
            if let Err(error) = prepared(shared, wanted).await {
                tracing::warn!(%error, "certificates of a member cannot be renewed");
            }
        }
    };
    let reports = async {
        loop {
            let Ok(channel) = channel(shared, wanted) else { return };
            match stream(shared, wanted, channel).await {
                Ok(()) => wait = DIAL,
                Err(status) => {
                    tracing::debug!(slot = %wanted.slot, %status, "the supervisor does not answer");
                    wait = (wait * 2).min(DIAL_MAX);
                }
            }
            tokio::time::sleep(wait).await;
        }
    };
    futures::future::join(renewals, reports).await;
}

async fn stream(shared: &Shared, wanted: &Supervised, channel: Channel) -> Result<(), tonic::Status> {
    let mut reports = MemberClient::new(channel).watch(WatchRequest {}).await?.into_inner();
    let result = loop {
        match reports.message().await {
            Ok(Some(report)) => {
                match document::decode::<MemberReport>(format::REPORT, &report.format, &report.body) {
                    // A supervisor speaks for its own slot only.
                    Ok(report) if report.slot == wanted.slot => shared.report(&wanted.slot, Some(report)),
                    Ok(report) => {
                        tracing::warn!(slot = %wanted.slot, other = %report.slot, "a supervisor speaks for another slot");
                    }
                    Err(error) => tracing::warn!(slot = %wanted.slot, %error, "an unreadable report"),
                }
            }
            Ok(None) => break Ok(()),
            Err(status) => break Err(status),
        }
    };
    shared.report(&wanted.slot, None);
    result
}
