//! What exists at one site: the user's spec, the durable record, the volumes of its members, and its agents.

use std::sync::Arc;

use super::agent::Agent;
use super::etcd::At;
use super::faults::Armed;
use super::rng::Rng;
use crate::federation::layout::Layout;
use crate::federation::member::{
    DirFacts, EtcdOptions, Grant, Incarnation, MemberReport, OutsideMark, Process,
};
use crate::federation::spec::Spec;
use crate::id::{Digest, FederationKey, PeerUrl, SiteName, Slot};
use crate::intent::record::Record;

/// The `FederatedEtcd` that lies at a site, with what follows from it.
#[derive(Debug)]
pub struct Cr {
    /// The spec.
    pub spec: Arc<Spec>,
    /// Its digest.
    pub digest: Digest,
    /// Its layout.
    pub layout: Layout,
}

impl Cr {
    /// None if the spec is not valid.
    pub fn new(spec: Spec, key: &FederationKey) -> Option<Arc<Self>> {
        let (digest, layout) = (spec.digest(key), spec.layout().ok()?);
        Some(Arc::new(Self { spec: Arc::new(spec), digest, layout }))
    }
}

/// The durable record store: every write carries the version that it replaces.
#[derive(Debug, Clone, Default)]
pub struct Store {
    /// Rises with every write.
    pub version: u64,
    /// The record; none if it was never written, or lost.
    pub record: Option<Arc<Record>>,
    /// A copy from earlier, for the fault that brings it back.
    pub copy: Option<Arc<Record>>,
    /// A record was written once: none means lost.
    pub written: bool,
}

/// The volume of one slot, with its supervisor.
#[derive(Debug, Clone)]
pub struct Volume {
    /// The slot.
    pub slot: Slot,
    /// Its peer URL, from the site's configuration.
    pub url: PeerUrl,
    /// The URL under which its member is listed.
    pub listed: PeerUrl,
    /// A supervisor runs.
    pub supervised: bool,
    /// `incarnation.json`.
    pub incarnation: Option<Incarnation>,
    /// `desired.json`.
    pub grant: Option<Grant>,
    /// The etcd that wrote the data directory: cluster and member.
    pub node: Option<(usize, At)>,
    /// What the supervisor says.
    pub process: Process,
    /// The mark that is kept outside of the volume.
    pub outside: Option<OutsideMark>,
    /// How many directories were archived.
    pub archived: usize,
    /// Starts of etcd.
    pub starts: u64,
    /// What the running etcd was started with.
    pub running: Option<EtcdOptions>,
    /// The machine is off: nothing starts before.
    pub held_until: u64,
}

impl Volume {
    /// An empty volume.
    pub fn new(slot: Slot, url: PeerUrl) -> Self {
        Self {
            slot,
            listed: url.clone(),
            url,
            supervised: false,
            incarnation: None,
            grant: None,
            node: None,
            process: Process::AwaitingGrant,
            outside: None,
            archived: 0,
            starts: 0,
            running: None,
            held_until: 0,
        }
    }

    /// What the supervisor reports.
    pub fn report(&self, dir: DirFacts) -> MemberReport {
        MemberReport {
            slot: self.slot.clone(),
            incarnation: self.incarnation.clone(),
            dir: Some(dir),
            process: self.process.clone(),
            pid: None,
            starts: self.starts,
            options: self.running.clone(),
            last_words: None,
            archived: Vec::new(),
            hindered: None,
        }
    }
}

/// One site.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent trouble of a site")]
pub struct Site {
    /// Its name.
    pub name: SiteName,
    /// The user's resource.
    pub cr: Option<Arc<Cr>>,
    /// The record store.
    pub store: Store,
    /// Volumes by ordinal.
    pub volumes: Vec<Volume>,
    /// Usually one; two when a lease failed.
    pub agents: Vec<Box<Agent>>,
    /// Faults that wait for the next IO step.
    pub armed: Vec<Armed>,
    /// Wall clock error, ms.
    pub skew: i64,
    /// When the newest backup was taken, by this site's wall clock; none = never.
    pub backup_at: Option<i64>,
    /// A defragmentation runs.
    pub maintenance: bool,
    /// Its etcd binaries are one minor older.
    pub older_etcd: bool,
    /// Its certificates end soon.
    pub certificates_end: bool,
    /// Agents are not started again: the site is gone.
    pub gone: bool,
    /// Draws of this site's agents.
    pub rng: Rng,
}

impl Site {
    /// The reports of all supervised members.
    pub fn urls(&self) -> Vec<(Slot, PeerUrl)> {
        self.volumes.iter().map(|v| (v.slot.clone(), v.url.clone())).collect()
    }
}
