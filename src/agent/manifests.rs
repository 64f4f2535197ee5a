//! The folder of `FederatedEtcd` files: looked at every second, so that no file system has to tell us.
//!
//! One malformed file never stops the others, and a folder that is empty, missing or not mounted is never a deletion.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_api::manifest::{self, Manifest};
use quorate_core::id::{FederationKey, SiteName, ZoneName};

/// Larger files are not ours.
const LIMIT: u64 = 1024 * 1024;

/// What a look at the folder found new.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Federations that are new or changed.
    pub changed: Vec<Arc<Manifest>>,
    /// Federations that no file describes any more, while others are still there: drift, not a stop.
    pub gone: Vec<FederationKey>,
}

/// What the folder said last.
#[derive(Debug, Default)]
pub struct Folder {
    path: PathBuf,
    known: BTreeMap<FederationKey, Arc<Manifest>>,
    files: BTreeMap<FederationKey, PathBuf>,
    texts: BTreeMap<PathBuf, Vec<u8>>,
    problems: BTreeMap<PathBuf, String>,
    here: Option<(SiteName, Vec<ZoneName>)>,
}

impl Folder {
    /// The folder at `path`; it need not exist.
    pub fn new(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }

    /// The folder of a site with these zones: a file that asks for other zones here cannot be fulfilled.
    #[must_use]
    pub fn at(self, site: SiteName, zones: Vec<ZoneName>) -> Self {
        Self { here: Some((site, zones)), ..self }
    }

    /// Which zone of the own site there is not, and what there is.
    fn misfit(&self, manifest: &Manifest) -> Option<String> {
        let (site, zones) = self.here.as_ref()?;
        let (number, cluster) =
            manifest.spec.clusters.iter().enumerate().find(|(_, cluster)| cluster.name == *site)?;
        let absent = cluster.zones.iter().flatten().find(|zone| !zones.contains(zone))?;
        let there: Vec<&str> = zones.iter().map(ZoneName::as_str).collect();
        Some(format!(
            "spec.clusters[{number}].zones: site {site} has no zone {absent}, it has {}; use one of these, or add it to \
             `zones` in the configuration of its agent",
            there.join(", ")
        ))
    }

    /// What is wrong, by file.
    pub fn problems(&self) -> &BTreeMap<PathBuf, String> {
        &self.problems
    }

    /// The file that describes each federation.
    pub fn files(&self) -> &BTreeMap<FederationKey, PathBuf> {
        &self.files
    }

    /// Looks at the folder.
    pub fn look(&mut self) -> Changes {
        let files = match read(&self.path) {
            Ok(files) if !files.is_empty() => files,
            Ok(_) => {
                self.note(BTreeMap::from([(
                    self.path.clone(),
                    "no *.yaml file in it; nothing is changed".to_owned(),
                )]));
                return Changes::default();
            }
            Err(error) => {
                self.note(BTreeMap::from([(self.path.clone(), format!("{error}; nothing is changed"))]));
                return Changes::default();
            }
        };
        if files == self.texts {
            return Changes::default();
        }
        let mut problems = BTreeMap::new();
        let mut found: BTreeMap<FederationKey, (PathBuf, Arc<Manifest>)> = BTreeMap::new();
        for (path, text) in &files {
            let mut problem = |text: String| {
                problems
                    .entry(path.clone())
                    .and_modify(|all: &mut String| *all = format!("{all}; {text}"))
                    .or_insert(text);
            };
            let Ok(text) = std::str::from_utf8(text) else {
                problem("it is not UTF-8, or too large".to_owned());
                continue;
            };
            let documents = manifest::parse_each(text);
            match documents {
                Ok(documents) => {
                    for document in documents {
                        match document {
                            Ok(manifest) => match (found.get(&manifest.key), self.misfit(&manifest)) {
                                (Some((other, _)), _) => {
                                    problem(format!(
                                        "{} is described in {} already",
                                        manifest.key,
                                        other.display()
                                    ));
                                }
                                (None, Some(misfit)) => problem(format!("{}: {misfit}", manifest.key)),
                                (None, None) => {
                                    found.insert(manifest.key.clone(), (path.clone(), Arc::new(manifest)));
                                }
                            },
                            Err(error) => problem(error.to_string()),
                        }
                    }
                }
                Err(error) => problem(error.to_string()),
            }
        }
        // A file with a mistake may describe anything: what is not found is kept as it was.
        let doubtful = !problems.is_empty();
        let mut changes = Changes::default();
        for (key, (path, manifest)) in &found {
            self.files.insert(key.clone(), path.clone());
            if self.known.get(key) != Some(manifest) {
                changes.changed.push(Arc::clone(manifest));
                self.known.insert(key.clone(), Arc::clone(manifest));
            }
        }
        if !doubtful {
            changes.gone = self.known.keys().filter(|key| !found.contains_key(key)).cloned().collect();
            self.known.retain(|key, _| found.contains_key(key));
            self.files.retain(|key, _| found.contains_key(key));
        }
        self.texts = files;
        self.note(problems);
        changes
    }

    fn note(&mut self, problems: BTreeMap<PathBuf, String>) {
        for (path, problem) in &problems {
            if self.problems.get(path) != Some(problem) {
                tracing::warn!(file = %path.display(), problem, "a manifest cannot be used; all others are");
            }
        }
        self.problems = problems;
    }
}

fn read(folder: &Path) -> std::io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        // Editors leave hidden files behind.
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if !yaml || hidden {
            continue;
        }
        let size = fs::metadata(&path)?.len();
        let text = if size > LIMIT { vec![0xff] } else { fs::read(&path)? };
        files.insert(path, text);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: quorate.dev/v1alpha1\nkind: FederatedEtcd\nmetadata: {name: NAME, namespace: etcd}\n\
                        spec:\n  clusters: [{name: east}, {name: west}, {name: north}]\n";

    #[test]
    fn a_mistake_stops_one_file_and_emptiness_deletes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        let mut look = Folder::new(folder.path().to_owned());
        assert_eq!(look.look(), Changes::default());
        assert_eq!(look.problems().len(), 1, "an empty folder is told");
        write("a.yaml", &GOOD.replace("NAME", "a"));
        write("b.yaml", "kind: [");
        let changes = look.look();
        assert_eq!(changes.changed.len(), 1);
        assert!(look.problems().keys().next().unwrap().ends_with("b.yaml"));
        assert_eq!(look.look(), Changes::default());
        write("b.yaml", &GOOD.replace("NAME", "b"));
        assert_eq!(look.look().changed.len(), 1);
        assert!(look.problems().is_empty());
        // A file that becomes unreadable takes nothing away, a file that goes does.
        write("a.yaml", "kind: [");
        assert_eq!(look.look(), Changes::default());
        fs::remove_file(folder.path().join("a.yaml")).unwrap();
        let gone = look.look().gone;
        assert_eq!(gone.iter().map(ToString::to_string).collect::<Vec<_>>(), ["etcd/a"]);
        fs::remove_file(folder.path().join("b.yaml")).unwrap();
        assert_eq!(look.look(), Changes::default(), "an empty folder is never a deletion");
    }

    #[test]
    fn a_zone_that_the_own_site_has_not_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let zones = ["a", "b"].map(|zone| ZoneName::new(zone).unwrap()).to_vec();
        let mut look = Folder::new(folder.path().to_owned()).at(SiteName::new("west").unwrap(), zones);
        let file = folder.path().join("main.yaml");
        let text = GOOD.replace("NAME", "main");
        // Which zones another site has is its own business.
        let other = text.replace("{name: east}", "{name: east, zones: [z9]}");
        fs::write(&file, &other).unwrap();
        assert_eq!(look.look().changed.len(), 1, "{:?}", look.problems());
        fs::write(&file, text.replace("{name: west}", "{name: west, zones: [a, z9]}")).unwrap();
        assert_eq!(look.look(), Changes::default());
        let problem = &look.problems()[&file];
        assert!(
            problem.starts_with("etcd/main: spec.clusters[1].zones: site west has no zone z9, it has a, b"),
            "{problem}"
        );
    }
}
