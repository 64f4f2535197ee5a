//! What an agent tells the command line beyond the status: for people and for questions such as "what if", never for
//! decisions of another agent.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::condition::Status;
use crate::federation::spec::Spec;
use crate::federation::view::{View, Wish};
use crate::id::Digest;

/// What an agent says of itself and of the mesh: `/v1/site`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SiteReport {
    /// Its site.
    pub site: String,
    /// The mesh.
    pub mesh: String,
    /// Its version.
    pub version: String,
    /// The highest protocol between agents that it speaks.
    pub protocol: u32,
    /// Its state folder.
    pub state_dir: PathBuf,
    /// The folder with its `FederatedEtcd` files.
    pub manifests: PathBuf,
    /// The other agents that it is configured with.
    pub peers: Vec<PeerReport>,
    /// Its own certificate and the roots that it trusts.
    pub certificates: Vec<CertificateReport>,
    /// What is wrong with manifests and certificates.
    pub problems: Vec<String>,
}

/// One other agent, as the own one knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerReport {
    /// Its site.
    pub name: String,
    /// Where it is dialled.
    pub endpoint: String,
    /// A root of its site is trusted here.
    pub trusted: bool,
    /// Milliseconds since it was heard last; none if never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Round-trip time of the greeting of the present connection, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The highest protocol that it ever spoke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
    /// Its wall clock minus ours, milliseconds. Information only: nothing is decided by it (safety.md 2.4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_skew_ms: Option<i64>,
    /// When the certificate that it presented last ends, seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_ends: Option<u64>,
    /// Why our connection to it failed last; none while it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Whom it hears, by its own word.
    pub hears: Vec<Hears>,
}

/// One link between two agents, by the word of the one that hears.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hears {
    /// The site that is heard.
    pub site: String,
    /// Milliseconds since it was heard last; none if never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Round-trip time, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
}

/// When a certificate ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateReport {
    /// Whose it is.
    pub what: String,
    /// Seconds since 1970.
    pub ends: u64,
}

/// Everything behind the status of one federation: `/v1/federations/<namespace>/<name>/view`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FederationReport {
    /// The status.
    pub status: Status,
    /// The view that the last decision was made from, with ages; none before birth.
    pub view: Option<View>,
    /// What is wished; none before birth.
    pub wish: Option<Wish>,
    /// The effective spec.
    pub effective: Option<Arc<Spec>>,
    /// The digest of the own file.
    pub own_digest: Option<Digest>,
    /// The spec of the own file.
    pub own: Option<Arc<Spec>>,
    /// The own file.
    pub file: Option<PathBuf>,
}
