//! What the loops need from the world, in the words of `quorate-core`. Each port has a real adapter and a fake one.
//!
//! Nothing here says how: no protobuf, no path, no certificate. A failed look is a missing value, never an old one.

use std::future::Future;
use std::sync::Arc;

use quorate_core::adopt::{CertificateKind, CertificateRequest};
use quorate_core::ballot::Ballot;
use quorate_core::executor::{Call, CallResult};
use quorate_core::federation::distance::Distance;
use quorate_core::federation::member::{Grant, MemberReport, OutsideMark};
use quorate_core::federation::observed::{MemberList, RecordSummary, SiteObservation, Status};
use quorate_core::federation::spec::Spec;
use quorate_core::id::{
    ClusterId, Digest, Epoch, FederationKey, IncarnationId, MemberId, PeerUrl, Revision, SiteName, Slot,
    Term, Uid,
};
use quorate_core::intent::record::Record;
use quorate_core::intent::retirement::Retired;
use quorate_core::intent::{Intent, Resolution};
use quorate_core::membership::disruption::{DrainGrant, DrainRequest};
use quorate_core::reason::Reason;

/// A member whose peer port is looked at from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The federation; the probe certificate carries its name.
    pub uid: Uid,
    /// The site that hosts it: its root has to vouch for the port.
    pub site: SiteName,
    /// The member.
    pub member: MemberId,
    /// Where.
    pub peer_url: PeerUrl,
    /// The cluster that must answer.
    pub cluster: ClusterId,
}

/// A hash of all data at one revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataHash {
    /// The hash.
    pub hash: u32,
    /// The compacted revision when it was made; only hashes with an equal one compare.
    pub compacted: Revision,
}

/// The etcds of one federation: the own ones through their client port, all of them through their peer port.
pub trait Etcd: Send + Sync + 'static {
    /// Status, local member list and readiness of an own member.
    fn status(&self, slot: &Slot) -> impl Future<Output = Option<Status>> + Send;
    /// The linearizable member list, with the term of the answer.
    fn list(&self, slot: &Slot) -> impl Future<Output = Option<(MemberList, Term)>> + Send;
    /// One membership call to an own member, with a deadline in milliseconds.
    fn call(&self, slot: &Slot, call: &Call, deadline_ms: u64) -> impl Future<Output = CallResult> + Send;
    /// The hash of an own member's data at a revision.
    fn hash(&self, slot: &Slot, revision: Revision) -> impl Future<Output = Option<DataHash>> + Send;
    /// Looks at a member's peer port; the round-trip time in microseconds if all is as expected.
    fn probe(&self, target: &Target) -> impl Future<Output = Option<u32>> + Send;
    /// The hash of any member's data at a revision, from its peer port.
    fn peer_hash(&self, target: &Target, revision: Revision)
    -> impl Future<Output = Option<DataHash>> + Send;
    /// The statuses of the foreign members behind these client URLs; from then on the other calls take their slots too.
    fn foreign(
        &self,
        site: &SiteName,
        endpoints: &[String],
    ) -> impl Future<Output = Vec<(Slot, Status)>> + Send;
    /// The client URLs of all members, as an own member listed them last.
    fn endpoints(&self) -> Vec<(MemberId, String)>;
}

/// What a supervisor is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supervised {
    /// The federation.
    pub uid: Uid,
    /// The slot.
    pub slot: Slot,
}

/// A certificate that the CA of a foreign etcd's peers has to give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What to ask for.
    pub request: CertificateRequest,
    /// There is none that could be used meanwhile.
    pub missing: bool,
}

/// The CA of a foreign etcd's peers at this site (ADR 4).
pub trait Adoption: Send + Sync + 'static {
    /// From now on believe peers that these roots (PEM) vouch for, or none any more; whether that is a change.
    fn trust(&self, roots: Option<&str>) -> Result<bool, Fault>;
    /// What has to be certified for the own slots and the agent; keys are made here and stay here.
    fn requests(
        &self,
        uid: Uid,
        slots: &[(Slot, PeerUrl)],
    ) -> impl Future<Output = Result<Vec<Wanted>, Fault>> + Send;
    /// Certifies for a site, where the key of the CA is; else what a person has signed meanwhile, if anything.
    fn certify(
        &self,
        site: &SiteName,
        uid: Uid,
        request: &CertificateRequest,
    ) -> impl Future<Output = Result<Option<String>, Fault>> + Send;
    /// Takes the certificate chain for an own request.
    fn install(
        &self,
        uid: Uid,
        kind: &CertificateKind,
        chain: &str,
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Runs the supervisors of the own slots.
pub trait Runtime: Send + Sync + 'static {
    /// Gives each of these slots its address, if it has none; durable when it returns, and never changed for a living
    /// member.
    fn place(&self, slots: &[Slot]) -> impl Future<Output = Result<(), Fault>> + Send;
    /// The one peer URL of an own slot that has its address.
    fn peer_url(&self, slot: &Slot) -> Option<PeerUrl>;
    /// Makes certificates and starts a supervisor, or adopts the one that runs. Idempotent.
    fn supervise(&self, wanted: &Supervised) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Where the member of a slot is served, once it has an address.
    fn serving(&self, slot: &Slot) -> Option<Serving>;
    /// Whether a voter that is listed with this URL has to be served elsewhere, or need no longer be.
    fn strays(&self, slot: &Slot, listed: &PeerUrl) -> bool;
    /// Does what [`Runtime::strays`] asks: address and certificates, not the listening of a running etcd.
    fn follow(&self, slot: &Slot, listed: &PeerUrl) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Supervises again what was supervised before, without knowing the record: the guard makes that safe.
    fn resume(&self) -> impl Future<Output = ()> + Send;
    /// Gives a grant. One to resume with other settings restarts an etcd that runs.
    fn grant(&self, grant: &Grant) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Stops an incarnation; if a reason is given its directory goes to the archive.
    fn stop(
        &self,
        slot: &Slot,
        incarnation: IncarnationId,
        archive: Option<&str>,
    ) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Ends the supervisor of a slot.
    fn retire(&self, slot: &Slot) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Ends all supervisors and their etcds; nothing is forgotten.
    fn stop_all(&self) -> impl Future<Output = ()> + Send;
    /// What the supervisors said last; a slot whose supervisor does not answer is there with an unknown process.
    fn reports(&self) -> Vec<MemberReport>;
    /// Counts the changes of [`Runtime::reports`].
    fn version(&self) -> u64;
    /// Waits until [`Runtime::version`] is another one than `seen`. May be dropped.
    fn changed(&self, seen: u64) -> impl Future<Output = ()> + Send;
    /// Certificates and bundles are made again where they changed, without waiting for the next look.
    fn renew(&self);
    /// The certificates of a slot are good for more than a day, or a quarter of their life (rule I9).
    fn certificates_good(&self, slot: &Slot) -> bool;
}

/// The agents of the other sites, for one federation.
pub trait Peers: Send + Sync + 'static {
    /// Whether the configuration names the agent of this site.
    fn has(&self, site: &SiteName) -> bool;
    /// Asks for the summary of a record.
    fn record(&self, site: &SiteName, from: Sender) -> impl Future<Output = Option<RecordSummary>> + Send;
    /// Asks for a whole record, to rebuild a lost one.
    fn whole_record(&self, site: &SiteName, from: Sender) -> impl Future<Output = Option<Record>> + Send;
    /// Asks for the spec with this digest, which the site's CR or its effective spec has.
    fn spec(
        &self,
        site: &SiteName,
        from: Sender,
        digest: Digest,
    ) -> impl Future<Output = Option<Spec>> + Send;
    /// Asks for a vote; the summary of the record that now holds it.
    fn vote(
        &self,
        site: &SiteName,
        from: Sender,
        ballot: &Arc<Ballot>,
    ) -> impl Future<Output = Result<RecordSummary, Reason>> + Send;
    /// Asks for an acknowledgement; it carries the agent's `sent_by_me`.
    fn propose(
        &self,
        site: &SiteName,
        from: Sender,
        intent: &Arc<Intent>,
    ) -> impl Future<Output = Result<bool, Reason>> + Send;
    /// Tells how an intent ended; whether it was taken note of.
    fn resolve(
        &self,
        site: &SiteName,
        from: Sender,
        resolution: &Arc<Resolution>,
    ) -> impl Future<Output = bool> + Send;
    /// Asks an agent of the mesh whether a federation of this name has a record there; none if it does not answer.
    fn name_taken(&self, site: &SiteName, from: Sender) -> impl Future<Output = Option<bool>> + Send;
    /// All agents of the mesh but the own one, whether they have a part in this federation or not.
    fn mesh(&self) -> Vec<SiteName>;
    /// Asks the executor's agent for the token to restart an own voter.
    fn drain(
        &self,
        site: &SiteName,
        from: Sender,
        request: DrainRequest,
    ) -> impl Future<Output = Result<DrainGrant, Reason>> + Send;
    /// Asks the site that declares a foreign etcd for a certificate of its CA; none = not yet.
    fn certify(
        &self,
        site: &SiteName,
        from: Sender,
        request: &CertificateRequest,
    ) -> impl Future<Output = Result<Option<String>, Reason>> + Send;
    /// Makes the own observation known to the agents of some sites. Never waits.
    fn publish(&self, publication: Publication);
    /// The distance to the agent of a site over the last minute; none while it is not proven.
    fn round_trip(&self, site: &SiteName) -> Option<Distance>;
}

/// For which federation an agent speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sender {
    /// The uid, once bound.
    pub uid: Option<Uid>,
    /// The epoch.
    pub epoch: Epoch,
}

/// Where the member of a slot is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serving {
    /// The peer URL that it is listed with.
    pub peer_url: PeerUrl,
    /// Further peer URLs.
    pub also: Vec<PeerUrl>,
    /// The one of them that the configuration wants it to have.
    pub moves_to: Option<PeerUrl>,
    /// On which ports its etcd has to listen for peers; none = only on the one of the slot.
    pub ports: Vec<u16>,
}

/// The own observation, for others.
#[derive(Debug, Clone)]
pub struct Publication {
    /// The federation.
    pub federation: FederationKey,
    /// For which federation it is said.
    pub from: Sender,
    /// What was seen.
    pub observation: Arc<SiteObservation>,
    /// Own clock at which that was true, ms.
    pub true_at: u64,
    /// Who may hear it.
    pub sites: Vec<SiteName>,
    /// The order of what this agent said, for the receiver.
    pub version: u64,
    /// Sites that had a part once and are told that they have none now.
    pub partings: Vec<Parting>,
}

/// A site that was taken out of the spec, and what it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parting {
    /// The site.
    pub site: SiteName,
    /// What it is told.
    pub retired: Retired,
}

/// What a load of the record found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loaded {
    /// A record.
    Found(Box<Record>, u64),
    /// None, and nothing of this federation is here.
    Fresh,
    /// None, although member volumes are here.
    Missing,
    /// One that cannot be read; the text says why.
    Unreadable(String),
}

/// The durable record of one federation, and the marks outside the member volumes.
pub trait Records: Send + Sync + 'static {
    /// Reads the record with its version.
    fn load(&self) -> impl Future<Output = Loaded> + Send;
    /// Replaces the record if it still has the version; the new one. Returns after it is durable.
    fn store(&self, record: &Record, version: u64) -> impl Future<Output = Result<u64, Fault>> + Send;
    /// Writes the high-water mark of a slot.
    fn mark(&self, slot: &Slot, mark: &OutsideMark) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Reads it.
    fn marked(&self, slot: &Slot) -> impl Future<Output = Option<OutsideMark>> + Send;
}

/// The own monotonic clock.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since some start.
    fn now_ms(&self) -> u64;
}

/// Randomness.
pub trait Rng: Send + Sync + 'static {
    /// A random UUID.
    fn uuid(&self) -> u128;
}

/// Why an adapter could not do what it was asked for; the loop tries again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    text: String,
    /// The trouble of the host behind it, if there is one; the site is not in it.
    pub trouble: Option<Reason>,
}

impl Fault {
    /// From words.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), trouble: None }
    }

    /// From an error, with its causes.
    pub fn from_error(error: &(dyn std::error::Error + 'static)) -> Self {
        Self { text: crate::chain(error), trouble: quorate_link::host::trouble(error) }
    }

    /// From a trouble of the host.
    pub fn host(trouble: Reason) -> Self {
        Self { text: trouble.to_string(), trouble: Some(trouble) }
    }
}

/// One set of adapters.
pub trait World: Send + Sync + 'static {
    /// See [`Etcd`].
    type Etcd: Etcd;
    /// See [`Runtime`].
    type Runtime: Runtime;
    /// See [`Adoption`].
    type Adoption: Adoption;
    /// See [`Peers`].
    type Peers: Peers;
    /// See [`Records`].
    type Records: Records;
    /// See [`Clock`].
    type Clock: Clock;
    /// See [`Rng`].
    type Rng: Rng;
}

/// The adapters of one federation.
#[derive(Debug)]
pub struct Ports<W: World> {
    /// Its etcds.
    pub etcd: Arc<W::Etcd>,
    /// Its supervisors.
    pub runtime: Arc<W::Runtime>,
    /// The CA of a foreign etcd.
    pub adoption: Arc<W::Adoption>,
    /// The other agents.
    pub peers: Arc<W::Peers>,
    /// Its record.
    pub records: Arc<W::Records>,
    /// Time.
    pub clock: Arc<W::Clock>,
    /// Randomness.
    pub rng: Arc<W::Rng>,
}

impl<W: World> Clone for Ports<W> {
    fn clone(&self) -> Self {
        Self {
            etcd: Arc::clone(&self.etcd),
            runtime: Arc::clone(&self.runtime),
            adoption: Arc::clone(&self.adoption),
            peers: Arc::clone(&self.peers),
            records: Arc::clone(&self.records),
            clock: Arc::clone(&self.clock),
            rng: Arc::clone(&self.rng),
        }
    }
}
