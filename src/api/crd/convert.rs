//! From the words of the CRD to those of `core`: the only place where strings of users are parsed.

use std::str::FromStr;

use quorate_core::federation::spec::{
    AdoptSpec, BootstrapSpec, ClusterSpec, EtcdSettings, Override, Spec, SpecError, Survive,
};
use quorate_core::id::{FederationKey, MemberId, ObjectName};
use quorate_core::reason::Rule;

use super::{
    AdoptSection, BootstrapSection, Cluster, EtcdSection, FederatedEtcd, FederatedEtcdSpec, OverrideSection,
    SurviveChoice,
};

#[derive(Default)]
struct Errors(Vec<SpecError>);

impl Errors {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(SpecError { path: path.into(), message: message.into() });
    }

    fn parse<T>(&mut self, path: impl Into<String>, text: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        text.parse().map_err(|error: T::Err| self.add(path, error.to_string())).ok()
    }

    fn list<T>(&mut self, path: &str, texts: Option<&Vec<String>>) -> Option<Vec<T>>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        let texts = texts?;
        Some(
            texts
                .iter()
                .enumerate()
                .filter_map(|(i, text)| self.parse(format!("{path}[{i}]"), text))
                .collect(),
        )
    }
}

/// Key and spec of an object, checked as far as one object can be.
///
/// # Errors
/// All mistakes at once, those of [`Spec::layout`] included.
pub fn from_cr(cr: &FederatedEtcd) -> Result<(FederationKey, Spec), Vec<SpecError>> {
    let mut errors = Errors::default();
    let namespace = cr.metadata.namespace.as_deref().unwrap_or("default");
    let namespace: Option<ObjectName> = errors.parse("metadata.namespace", namespace);
    let name: Option<ObjectName> =
        errors.parse("metadata.name", cr.metadata.name.as_deref().unwrap_or_default());
    let spec = spec_from_cr(&cr.spec);
    let (namespace, name, spec) = match (namespace, name, spec) {
        (Some(namespace), Some(name), Ok(spec)) => (namespace, name, spec),
        (_, _, spec) => {
            errors.0.extend(spec.err().unwrap_or_default());
            return Err(errors.0);
        }
    };
    let layout = spec.layout()?;
    for slot in &layout.slots {
        let slot = slot.name(&name);
        // It becomes a host name and the name of a Service.
        if slot.len() > 63 {
            errors.add(
                "metadata.name",
                format!("the member name {slot} would have {} letters, at most 63", slot.len()),
            );
            return Err(errors.0);
        }
    }
    Ok((FederationKey { namespace, name }, spec))
}

/// The spec alone, parsed but without its arithmetic; see [`Spec::layout`].
///
/// # Errors
/// All mistakes at once.
pub fn spec_from_cr(spec: &FederatedEtcdSpec) -> Result<Spec, Vec<SpecError>> {
    let mut errors = Errors::default();
    // Without `..`: a new field must be thought of here.
    let FederatedEtcdSpec {
        members,
        clusters,
        survive,
        version,
        etcd,
        allow_single_voter,
        bootstrap,
        adopt,
        exception,
    } = spec;
    let spec = Spec {
        members: *members,
        clusters: clusters.iter().enumerate().filter_map(|(i, c)| cluster(i, c, &mut errors)).collect(),
        survive: survive.map(|survive| match survive {
            SurviveChoice::Member => Survive::Member,
            SurviveChoice::Zone => Survive::Zone,
            SurviveChoice::Cluster => Survive::Cluster,
        }),
        version: version.clone(),
        etcd: etcd.as_ref().map(|section| {
            let EtcdSection { quota_bytes, heartbeat_ms, election_ms } = section;
            EtcdSettings { quota_bytes: *quota_bytes, heartbeat_ms: *heartbeat_ms, election_ms: *election_ms }
        }),
        allow_single_voter: *allow_single_voter,
        bootstrap: bootstrap.as_ref().map(|section| {
            let BootstrapSection { skip_clusters } = section;
            BootstrapSpec {
                skip_clusters: errors.list("spec.bootstrap.skipClusters", skip_clusters.as_ref()),
            }
        }),
        adopt: adopt.as_ref().and_then(|section| adopt_of(section, &mut errors)),
        exception: exception.as_ref().and_then(|section| exception_of(section, &mut errors)),
    };
    if errors.0.is_empty() { Ok(spec) } else { Err(errors.0) }
}

fn cluster(i: usize, cluster: &Cluster, errors: &mut Errors) -> Option<ClusterSpec> {
    let Cluster { name, members, zones, preferred, lost_members } = cluster;
    let path = format!("spec.clusters[{i}]");
    let zones = errors.list(&format!("{path}.zones"), zones.as_ref());
    let lost_members = errors.list::<MemberId>(&format!("{path}.lostMembers"), lost_members.as_ref());
    let name = errors.parse(format!("{path}.name"), name)?;
    Some(ClusterSpec { name, members: *members, zones, preferred: *preferred, lost_members })
}

fn adopt_of(section: &AdoptSection, errors: &mut Errors) -> Option<AdoptSpec> {
    let AdoptSection { cluster, cluster_id, endpoints, peer_ca } = section;
    let cluster = errors.parse("spec.adopt.cluster", cluster);
    let cluster_id = errors.parse("spec.adopt.clusterId", cluster_id);
    let (endpoints, peer_ca) = (endpoints.clone(), peer_ca.clone());
    Some(AdoptSpec { cluster: cluster?, cluster_id: cluster_id?, endpoints, peer_ca })
}

fn exception_of(section: &OverrideSection, errors: &mut Errors) -> Option<Override> {
    let OverrideSection { rule, operation, by } = section;
    let Some(rule) = Rule::ALL.into_iter().find(|known| known.to_string() == *rule) else {
        errors.add("spec.override.rule", format!("{rule} cannot be overridden, only I3, I13 and I17"));
        return None;
    };
    Some(Override { rule, operation: operation.clone(), by: by.clone() })
}
