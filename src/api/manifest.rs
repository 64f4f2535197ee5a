//! `FederatedEtcd` files, as the process runtime and `quorate validate` read them.

use std::sync::LazyLock;

use quorate_core::federation::layout::Layout;
use quorate_core::federation::spec::{Spec, SpecError};
use quorate_core::id::{Digest, FederationKey};

use crate::crd::{API_VERSION, FederatedEtcd, FederatedEtcdSpec, KIND, from_cr, schema};
use crate::problem::{Problem, below, joined, nearest};
use crate::schema::walk;
use crate::yaml::{self, Kind, Node};

/// Made once: a process may read thousands of files.
static SPEC: LazyLock<serde_json::Value> = LazyLock::new(|| schema("spec"));

/// One federation that a file describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Namespace and name.
    pub key: FederationKey,
    /// What is wanted; it has a layout.
    pub spec: Spec,
    /// The digest that all sites must agree on.
    pub digest: Digest,
    /// The slots that it asks for.
    pub layout: Layout,
}

/// Everything that is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", joined(problems))]
pub struct ManifestError {
    /// One entry per mistake, by line.
    pub problems: Vec<Problem>,
}

/// What one document of a file is: a federation, or its mistakes. One malformed object never stops the others.
pub type Document = Result<Manifest, ManifestError>;

/// Reads all documents of a file.
///
/// # Errors
/// All mistakes of all documents. Use [`parse_each`] to go on with the good ones.
pub fn parse(text: &str) -> Result<Vec<Manifest>, ManifestError> {
    let (mut manifests, mut problems) = (Vec::new(), Vec::new());
    for document in parse_each(text)? {
        match document {
            Ok(manifest) => manifests.push(manifest),
            Err(error) => problems.extend(error.problems),
        }
    }
    if problems.is_empty() { Ok(manifests) } else { Err(ManifestError { problems }) }
}

/// Reads all documents of a file, each for itself.
///
/// # Errors
/// Only if the file as a whole is not YAML.
pub fn parse_each(text: &str) -> Result<Vec<Document>, ManifestError> {
    let documents = yaml::documents(text).map_err(|problem| ManifestError { problems: vec![problem] })?;
    let mut found: Vec<Document> = Vec::new();
    for node in &documents {
        let mut document = read(node);
        if let Ok(manifest) = &document
            && found.iter().flatten().any(|other| other.key == manifest.key)
        {
            let message = format!("{} is described twice in this file", manifest.key);
            let problem = Problem::new(Some(node.line_of("metadata.name")), "metadata.name", message);
            document = Err(ManifestError { problems: vec![problem] });
        }
        found.push(document);
    }
    Ok(found)
}

fn read(node: &Node) -> Document {
    let mut problems = Vec::new();
    let cr = object(node, &mut problems);
    let mut manifest = None;
    // The arithmetic of half a spec would only confuse.
    if let (Some(cr), true) = (cr, problems.is_empty()) {
        let read = from_cr(&cr).and_then(|(key, spec)| spec.layout().map(|layout| (key, spec, layout)));
        match read {
            Ok((key, spec, layout)) => {
                manifest = Some(Manifest { digest: spec.digest(&key), key, spec, layout });
            }
            Err(errors) => {
                problems.extend(errors.into_iter().map(|SpecError { path, message }| {
                    Problem::new(Some(node.line_of(&path)), path, message)
                }));
            }
        }
    }
    problems.sort_by_key(|problem| problem.line);
    manifest.filter(|_| problems.is_empty()).ok_or(ManifestError { problems })
}

/// The object as the CRD has it.
fn object(node: &Node, problems: &mut Vec<Problem>) -> Option<FederatedEtcd> {
    const FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
    let Kind::Map(entries) = &node.kind else {
        problems.push(Problem::new(Some(node.line), "", "not a FederatedEtcd: must be a map of fields"));
        return None;
    };
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if node.text(field) != Some(expected) {
            let message = match node.text(field) {
                Some(found) => format!("{found:?} is not supported, only {expected:?}"),
                None => format!("must be {expected:?}"),
            };
            problems.push(Problem::new(Some(node.line_of(field)), field, message));
        }
    }
    for entry in entries.iter().filter(|entry| !FIELDS.contains(&entry.key.as_str())) {
        let hint = nearest(&entry.key, FIELDS.into_iter());
        problems.push(Problem::new(Some(entry.line), entry.key.as_str(), format!("unknown field{hint}")));
    }
    let (name, namespace) = metadata(node, problems);
    let Some(spec) = node.get("spec") else {
        problems.push(Problem::new(Some(node.line), "spec", "must be given"));
        return None;
    };
    let spec = walk(spec, &SPEC, "spec", problems);
    let spec: FederatedEtcdSpec = match serde_json::from_value(spec?) {
        Ok(spec) => spec,
        Err(error) => {
            problems.push(Problem::new(Some(node.line_of("spec")), "spec", error.to_string()));
            return None;
        }
    };
    let mut cr = FederatedEtcd::new(&name?, spec);
    cr.metadata.namespace = namespace;
    Some(cr)
}

/// Name and namespace. What else Kubernetes keeps there is of no meaning to us, but a misspelt name is caught.
fn metadata(node: &Node, problems: &mut Vec<Problem>) -> (Option<String>, Option<String>) {
    const FIELDS: [&str; 11] = [
        "name",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "generation",
        "resourceVersion",
        "uid",
        "creationTimestamp",
        "managedFields",
        "ownerReferences",
    ];
    let Some(metadata) = node.get("metadata") else {
        problems.push(Problem::new(Some(node.line), "metadata.name", "must be given"));
        return (None, None);
    };
    let Kind::Map(entries) = &metadata.kind else {
        problems.push(Problem::new(Some(metadata.line), "metadata", "must be a map of fields"));
        return (None, None);
    };
    for entry in entries.iter().filter(|entry| !FIELDS.contains(&entry.key.as_str())) {
        let hint = nearest(&entry.key, FIELDS.into_iter());
        problems.push(Problem::new(
            Some(entry.line),
            below("metadata", &entry.key),
            format!("unknown field{hint}"),
        ));
    }
    let mut text = |field: &str| {
        let value = metadata.get(field)?;
        if metadata.text(field).is_none() && !matches!(value.kind, Kind::Null) {
            problems.push(Problem::new(Some(value.line), below("metadata", field), "must be text"));
        }
        metadata.text(field).map(ToOwned::to_owned)
    };
    let (name, namespace) = (text("name"), text("namespace"));
    if metadata.get("name").is_none() {
        problems.push(Problem::new(Some(metadata.line), "metadata.name", "must be given"));
    }
    (name, namespace)
}

#[cfg(test)]
mod tests;
