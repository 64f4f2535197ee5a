//! Where a federation's file is, and how one document of it is replaced while the others stay byte for byte.

use std::path::{Path, PathBuf};

use quorate_api::manifest::parse_each;
use quorate_core::id::FederationKey;
use quorate_core::report::{FederationReport, SiteReport};

use crate::failure::{Exit, Failure};

/// The file that holds, or will hold, a federation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A file of its own that is not there yet.
    New(PathBuf),
    /// A file that describes it already.
    Known(PathBuf),
}

impl Place {
    /// The file that describes the federation at this site, else a new one in the manifest folder.
    pub(super) fn find(
        site: &SiteReport,
        report: Option<&FederationReport>,
        key: &FederationKey,
    ) -> Result<Self, Failure> {
        if let Some(file) = report.and_then(|report| report.file.clone()) {
            return Ok(Self::Known(file));
        }
        let path = site.manifests.join(format!("{}.{}.yaml", key.namespace, key.name));
        // Written a moment ago: the agent looks at its folder once a second.
        if std::fs::read_to_string(&path).is_ok_and(|text| document(&text, key).is_some()) {
            return Ok(Self::Known(path));
        }
        if path.exists() {
            let message = format!("{} is there already, and does not describe {key}", path.display());
            return Err(Failure::message(Exit::Usage, message).hint("correct that file, or move it away"));
        }
        Ok(Self::New(path))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::New(path) | Self::Known(path) => path,
        }
    }

    /// What the file will hold: `document` in the place of the one that describes the federation now.
    pub(super) fn content(&self, key: &FederationKey, document: &str) -> Result<String, Failure> {
        let Self::Known(path) = self else { return Ok(document.to_owned()) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::new(
                Exit::Usage,
                anyhow::Error::new(error).context(format!("cannot read {}", path.display())),
            )
        })?;
        Ok(replaced(&text, key, document))
    }
}

/// The documents of a YAML file, with what stands between them. A line that begins with `---` always separates.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.split_inclusive('\n') {
        let separates = line.trim_end() == "---" || line.starts_with("--- ");
        if separates {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push_str(line);
        }
    }
    parts
}

fn describes(part: &str, key: &FederationKey) -> bool {
    parse_each(part).is_ok_and(|documents| documents.iter().flatten().any(|manifest| manifest.key == *key))
}

/// The text of the document that describes a federation.
pub(super) fn document(text: &str, key: &FederationKey) -> Option<String> {
    split(text).into_iter().find(|part| describes(part, key))
}

fn replaced(text: &str, key: &FederationKey, document: &str) -> String {
    let mut parts = split(text);
    match parts.iter_mut().find(|part| describes(part, key)) {
        Some(part) => document.clone_into(part),
        // It was described a moment ago; a document with a mistake says nothing of whom it is about.
        None => parts.push(document.to_owned()),
    }
    let ended = parts
        .into_iter()
        .map(|part| if part.is_empty() || part.ends_with('\n') { part } else { part + "\n" });
    ended.collect::<Vec<_>>().join("---\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> FederationKey {
        serde_json::from_value(serde_json::json!({"namespace": "etcd", "name": name})).unwrap()
    }

    fn yaml(name: &str, sites: &str) -> String {
        format!(
            "# of {name}\napiVersion: quorate.dev/v1alpha1\nkind: FederatedEtcd\nmetadata: {{name: {name}, namespace: etcd}}\n\
             spec:\n  clusters: {sites}\n"
        )
    }

    #[test]
    fn one_document_is_replaced_and_the_others_stay() {
        let (a, b, new) = (yaml("a", "[{name: x}]"), yaml("b", "[{name: y}]"), yaml("a", "[{name: z}]"));
        let both = format!("{a}---\n{b}");
        assert_eq!(replaced(&both, &key("a"), &new), format!("{new}---\n{b}"));
        assert_eq!(replaced(&format!("---\n{a}"), &key("a"), &new), format!("---\n{new}"));
        assert_eq!(replaced(&a, &key("a"), new.trim_end()), new);
        assert_eq!(document(&both, &key("b")).unwrap(), b);
        assert_eq!(document(&both, &key("c")), None);
    }

    #[test]
    fn a_new_file_is_named_after_the_federation_and_never_hides_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let site = SiteReport { manifests: folder.path().to_owned(), ..SiteReport::default() };
        let path = folder.path().join("etcd.main.yaml");
        assert_eq!(Place::find(&site, None, &key("main")).unwrap(), Place::New(path.clone()));
        std::fs::write(&path, "kind: [").unwrap();
        let refused = Place::find(&site, None, &key("main")).unwrap_err();
        assert!(refused.to_string().contains("does not describe etcd/main"), "{refused}");
    }
}
