//! `FederatedEtcd`, version v1alpha1, as Kubernetes and the manifest files have it. Doc comments are the descriptions that
//! `kubectl explain` shows.
//!
//! The schema has no defaults: the digest of a spec is taken before defaulting, and defaults live in `quorate-core`
//! (decisions.md 1). CEL says what it can say, in the words of `core`; `core` says it again for the process runtime.

mod convert;
mod rules;
mod status;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::{CustomResource, CustomResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use convert::{from_cr, spec_from_cr};
pub use status::{ConditionEntry, FederatedEtcdStatus, Summary};

/// The API group.
pub const GROUP: &str = "quorate.dev";
/// The version of the API.
pub const API_VERSION: &str = "quorate.dev/v1alpha1";
/// The kind.
pub const KIND: &str = "FederatedEtcd";

/// One etcd, kept quorate across Kubernetes clusters and zones. The same object, byte for byte, is applied in every
/// cluster that it names.
#[derive(CustomResource, Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "quorate.dev",
    version = "v1alpha1",
    kind = "FederatedEtcd",
    plural = "federatedetcds",
    namespaced,
    shortname = "fetcd",
    category = "all",
    category = "quorate",
    status = "FederatedEtcdStatus",
    derive = "PartialEq",
    doc = "One etcd, kept quorate across Kubernetes clusters and zones. The same object is applied in every cluster \
           that it names.",
    scale(spec_replicas_path = ".spec.members", status_replicas_path = ".status.arithmetic.voters"),
    printcolumn = r#"{"name": "Clusters", "type": "string", "jsonPath": ".status.summary.clusters"}"#,
    printcolumn = r#"{"name": "Voters", "type": "string", "jsonPath": ".status.summary.voters"}"#,
    printcolumn = r#"{"name": "Quorate", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Quorate\")].status"}"#,
    printcolumn = r#"{"name": "Leader", "type": "string", "jsonPath": ".status.summary.leader"}"#,
    printcolumn = r#"{"name": "Epoch", "type": "integer", "jsonPath": ".status.epoch"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason", "priority": 1}"#
)]
#[schemars(extend("x-kubernetes-validations" = rules::spec()))]
pub struct FederatedEtcdSpec {
    /// Total number of voters: odd, at most 7. Absent: 3 for up to four clusters, 5 for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32"))]
    pub members: Option<u32>,
    /// The clusters (sites) that share this etcd, by their names in the mesh.
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub clusters: Vec<Cluster>,
    /// What must not stop writes when it is lost. Checked against the arithmetic. Absent: the best that the number of
    /// clusters and zones can reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survive: Option<SurviveChoice>,
    /// Version of etcd: a minor (`"3.6"`) or an exact version (`"3.6.16"`), in quotes. Absent: 3.6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), extend("x-kubernetes-validations" = rules::version()))]
    pub version: Option<String>,
    /// Settings of etcd itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdSection>,
    /// Permits a layout of one voter, which survives nothing, and the way down to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_single_voter: Option<bool>,
    /// The first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<BootstrapSection>,
    /// An etcd that quorate did not create: it becomes this federation, and its members leave one by one. Absent: an
    /// etcd is born. Once no foreign member is left it can be removed. `quorate adopt` writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopt: Option<AdoptSection>,
    /// One exception from one rule for one operation, decided by a person; it acts without activation and is used once.
    /// `quorate plan` prints the lines to paste.
    #[serde(default, rename = "override", skip_serializing_if = "Option::is_none")]
    pub exception: Option<OverrideSection>,
}

/// One cluster (site) of a federation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Its name in the mesh.
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = rules::label()))]
    pub name: String,
    /// Voters at this cluster. Absent: an even share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32"))]
    pub members: Option<u32>,
    /// Zones over which its voters are spread, in this order. Absent: one zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "set", "x-kubernetes-validations" = rules::zones())
    )]
    pub zones: Option<Vec<String>>,
    /// Gets the odd voter, and the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<bool>,
    /// Ids of members (hexadecimal, in quotes) that a person declares lost for ever. Write it only for members whose
    /// disks are gone: such a member can never come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "set", "x-kubernetes-validations" = rules::member_ids())
    )]
    pub lost_members: Option<Vec<String>>,
}

/// What must not stop writes when it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SurviveChoice {
    /// Any one member.
    Member,
    /// Any one zone.
    Zone,
    /// Any one cluster.
    Cluster,
}

/// Settings of etcd itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::timers()))]
pub struct EtcdSection {
    /// Largest size of the database in bytes. Absent: 2 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int64"))]
    pub quota_bytes: Option<u64>,
    /// Heartbeat interval in milliseconds. Absent: from the round-trip times that the agents measure, 100 to 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32"))]
    pub heartbeat_ms: Option<u32>,
    /// Election timeout in milliseconds: at least five heartbeats, at most 50000. Absent: from the round-trip times that
    /// the agents measure, 1000 to 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32"))]
    pub election_ms: Option<u32>,
}

/// The first start of a federation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapSection {
    /// Clusters that need not agree before the etcd is born. They cannot vote afterwards either; name one only if it is
    /// not there yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "set"))]
    pub skip_clusters: Option<Vec<String>>,
}

/// An etcd that quorate did not create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdoptSection {
    /// The cluster (site) whose agent reaches the foreign members and speaks for them.
    #[schemars(length(max = 63))]
    pub cluster: String,
    /// The id of the foreign etcd cluster (hexadecimal, in quotes): an endpoint that leads to another one changes nothing.
    #[schemars(length(max = 16), extend("x-kubernetes-validations" = rules::cluster_id()))]
    pub cluster_id: String,
    /// Client URLs of the foreign members, one for each: `https://host:port`.
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "set", "x-kubernetes-validations" = rules::endpoints())
    )]
    pub endpoints: Vec<String>,
    /// PEM of the roots that vouch for the peer ports of the foreign members. Certificates only, never a key.
    #[serde(rename = "peerCA")]
    #[schemars(length(max = 65536), extend("x-kubernetes-validations" = rules::peer_ca()))]
    pub peer_ca: String,
}

/// A human exception: only I3, I13 and I17 can be overridden, for one operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::exception()))]
pub struct OverrideSection {
    /// The rule: I3, I13 or I17.
    #[schemars(length(max = 8))]
    pub rule: String,
    /// The operation as `quorate plan` prints it, for example `ReplaceDead/8e9e05c52164694d`.
    #[schemars(length(max = 256))]
    pub operation: String,
    /// Who decided it, for the record.
    #[schemars(length(max = 256))]
    pub by: String,
}

/// The CRD as it is installed.
pub fn definition() -> CustomResourceDefinition {
    let mut crd = FederatedEtcd::crd();
    // Helm and kubectl must not delete every etcd with the definition.
    crd.metadata.annotations.get_or_insert_default().insert("helm.sh/resource-policy".into(), "keep".into());
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            without_defaults(schema);
        }
    }
    crd
}

/// Serde's defaults become the schema's; an API server would write them into the object.
fn without_defaults(schema: &mut JSONSchemaProps) {
    schema.default = None;
    schema.properties.iter_mut().flat_map(|fields| fields.values_mut()).for_each(without_defaults);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        without_defaults(items);
    }
}

/// The CRD as YAML.
pub fn definition_yaml() -> String {
    let header = "# Generated by `make gen` from src/api/crd; do not edit.\n";
    header.to_owned() + &serde_saphyr::to_string(&definition()).unwrap_or_default()
}

/// The JSON schema of one part of the resource (`spec` or `status`), as it is in the CRD.
pub fn schema(part: &str) -> serde_json::Value {
    let json = serde_json::to_value(definition()).unwrap_or_default();
    let pointer = format!("/spec/versions/0/schema/openAPIV3Schema/properties/{part}");
    json.pointer(&pointer).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests;
