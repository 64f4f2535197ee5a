//! A `FederatedEtcd` in core's words: what a user wants, byte-identical in every site.

use serde::{Deserialize, Serialize};

use crate::federation::layout::{self, Layout};
use crate::id::{ClusterId, Digest, FederationKey, MemberId, SiteName, ZoneName};
use crate::reason::Rule;

/// The spec without the parts that only concern one site. Defaults are applied by [`Spec::layout`], never stored:
/// the digest is taken before defaulting (decisions.md 1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Total number of voters; absent = by number of clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<u32>,
    /// The sites by name.
    pub clusters: Vec<ClusterSpec>,
    /// What the layout must survive; absent = the best that can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survive: Option<Survive>,
    /// Minor (`3.6`) or exact version (`3.6.16`) of etcd; absent = 3.6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Settings of etcd itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdSettings>,
    /// Permits a layout of one voter and the way down to it (safety.md 5).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_single_voter: Option<bool>,
    /// The first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapSpec>,
    /// An etcd that quorate did not create and that becomes this federation; absent = one is born.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopt: Option<AdoptSpec>,
    /// One exception for one operation; acts from the CR without activation.
    #[serde(default, rename = "override", skip_serializing_if = "Option::is_none")]
    pub exception: Option<Override>,
}

/// One site of a federation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterSpec {
    /// The site's name in the mesh.
    pub name: SiteName,
    /// Voters at this site; absent = an even share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<u32>,
    /// Zones to spread over; absent = one zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<Vec<ZoneName>>,
    /// Gets the odd voter, and the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<bool>,
    /// Ids of members that a person declares lost for ever (safety.md 2.2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_members: Option<Vec<MemberId>>,
}

/// What must not stop writes when it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Survive {
    /// Any one member.
    Member,
    /// Any one zone.
    Zone,
    /// Any one cluster (site).
    Cluster,
}

/// Settings of etcd itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdSettings {
    /// Backend quota in bytes; absent = 2 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Heartbeat interval in milliseconds; absent = from the measured round-trip time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<u32>,
    /// Election timeout in milliseconds; absent = from the measured round-trip time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub election_ms: Option<u32>,
}

/// The first start of a federation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BootstrapSpec {
    /// Sites that need not vote, and cannot (safety.md 7.4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_clusters: Option<Vec<SiteName>>,
}

/// An etcd that quorate did not create (safety.md 4, a member without an agent of ours).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdoptSpec {
    /// The site that declares the endpoints: its agent speaks for the foreign members.
    pub cluster: SiteName,
    /// The one etcd cluster that is meant, so that an endpoint that leads elsewhere changes nothing.
    pub cluster_id: ClusterId,
    /// Client URLs, one for each foreign member; reached from the declaring site only.
    pub endpoints: Vec<String>,
    /// PEM of the roots that vouch for the foreign members' peer ports; all sites believe them as long as this stands.
    #[serde(rename = "peerCA")]
    pub peer_ca: String,
}

/// A human exception: only I3, I13 and I17 can be overridden, for one operation (safety.md 3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Override {
    /// The rule.
    pub rule: Rule,
    /// The operation as `quorate plan` prints it, for example `ReplaceDead/8e9e05c52164694d`.
    pub operation: String,
    /// Who decided it.
    pub by: String,
}

/// What is wrong with a spec, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct SpecError {
    /// Path of the field, for example `spec.clusters[1].name`.
    pub path: String,
    /// What is wrong and what would be right; the CRD's CEL rules say the same words.
    pub message: String,
}

impl Spec {
    /// Checks everything that can be checked without other sites, and gives the layout that the spec asks for.
    ///
    /// # Errors
    /// All mistakes at once, each with the path of its field.
    pub fn layout(&self) -> Result<Layout, Vec<SpecError>> {
        layout::of(self)
    }

    /// SHA-256 over RFC 8785 JSON of everything that must be identical in every site (decisions.md 1).
    pub fn digest(&self, key: &FederationKey) -> Digest {
        let document = serde_json::json!({
            "apiVersion": "quorate.dev/v1alpha1",
            "kind": "FederatedEtcd",
            "namespace": key.namespace.as_str(),
            "name": key.name.as_str(),
            "spec": self.sorted(),
        });
        // A value made of maps, strings and integers always has a canonical form.
        Digest::of(&serde_json_canonicalizer::to_vec(&document).unwrap_or_default())
    }

    /// Set-like lists in one order, so that their order in the file does not matter.
    fn sorted(&self) -> Self {
        let mut spec = self.clone();
        spec.clusters.sort_by(|a, b| a.name.cmp(&b.name));
        for cluster in &mut spec.clusters {
            if let Some(lost) = &mut cluster.lost_members {
                lost.sort_unstable();
            }
        }
        if let Some(skip) = spec.bootstrap.as_mut().and_then(|b| b.skip_clusters.as_mut()) {
            skip.sort();
        }
        if let Some(adopt) = &mut spec.adopt {
            adopt.endpoints.sort();
        }
        spec
    }

    /// The sites that the spec names, in its order.
    pub fn sites(&self) -> impl Iterator<Item = &SiteName> {
        self.clusters.iter().map(|cluster| &cluster.name)
    }

    /// Whether the spec names a site.
    pub fn has_site(&self, site: &SiteName) -> bool {
        self.clusters.iter().any(|cluster| cluster.name == *site)
    }

    /// Sites that the spec excuses from the bootstrap vote.
    pub fn skipped(&self) -> &[SiteName] {
        self.bootstrap.as_ref().and_then(|b| b.skip_clusters.as_deref()).unwrap_or_default()
    }

    /// The site that speaks for members which quorate did not create.
    pub fn adopts(&self) -> Option<&SiteName> {
        self.adopt.as_ref().map(|adopt| &adopt.cluster)
    }

    /// Member ids that a person declared lost.
    pub fn lost_members(&self) -> impl Iterator<Item = MemberId> {
        self.clusters.iter().flat_map(|cluster| cluster.lost_members.iter().flatten().copied())
    }

    /// Heartbeat and election timeout in milliseconds as they are written; what is absent counts as etcd's default, for
    /// the check that both fit. What etcd gets is [`crate::timing::timers`].
    pub fn timers(&self) -> (u32, u32) {
        let etcd = self.etcd.as_ref();
        (etcd.and_then(|e| e.heartbeat_ms).unwrap_or(100), etcd.and_then(|e| e.election_ms).unwrap_or(1000))
    }
}
