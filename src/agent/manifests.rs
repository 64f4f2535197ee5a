//! The folder of `FederatedEtcd` files: looked at every second, so that no file system has to tell us.
//!
//! One malformed file never stops the others, and a folder that is empty, missing or not mounted is never a deletion:
//! [`quorate_core::deletion`] judges, also across a restart of the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_api::manifest::{self, Manifest};
use quorate_core::deletion::{self, Doubt, FolderId, Look};
use quorate_core::id::{FederationKey, SiteName, ZoneName};
use quorate_link::durable;
use serde::{Deserialize, Serialize};

/// Larger files are not ours.
const LIMIT: u64 = 1024 * 1024;
/// A file is gone if so many looks in a row did not find it: whoever writes it anew may remove it first.
const LOOKS: u32 = 3;
/// The ending that says of a file that it is there to delete what it describes.
const DELETED: &str = "deleted";
const FORMAT: &str = "quorate.manifests/1";

/// What a look at the folder found new.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Federations that are new or changed.
    pub changed: Vec<Arc<Manifest>>,
    /// Federations that were deleted here: drift, until they are deleted everywhere.
    pub deleted: Vec<FederationKey>,
}

/// `manifests.json`: which federations were described where, and which are deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    described: Vec<(FederationKey, Place)>,
    deleted: BTreeSet<FederationKey>,
}

/// Where a federation was described last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    file: PathBuf,
    folder: FolderId,
    /// It vanished together with all others. What one of them turned out to be says nothing of the rest.
    #[serde(default)]
    together: bool,
}

/// What the files say.
#[derive(Debug, Default)]
struct Found {
    federations: BTreeMap<FederationKey, (PathBuf, Arc<Manifest>)>,
    /// Described in a file that is there to delete it.
    deleted: BTreeSet<FederationKey>,
    problems: BTreeMap<PathBuf, String>,
}

/// What the folder said last.
#[derive(Debug, Default)]
pub struct Folder {
    path: PathBuf,
    known: BTreeMap<FederationKey, Arc<Manifest>>,
    places: BTreeMap<FederationKey, Place>,
    deleted: BTreeSet<FederationKey>,
    /// Deletions that were told since the start.
    told: BTreeSet<FederationKey>,
    /// How many looks in a row did not find it.
    absent: BTreeMap<FederationKey, u32>,
    texts: BTreeMap<PathBuf, Vec<u8>>,
    found: Found,
    problems: BTreeMap<PathBuf, String>,
    here: Option<(SiteName, Vec<ZoneName>)>,
    /// Where it is remembered what was seen, and what is written there.
    memory: Option<(PathBuf, Memory)>,
}

impl Folder {
    /// The folder at `path`; it need not exist.
    pub fn new(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }

    /// Remembers in a file what was seen, and begins with what is remembered there.
    #[must_use]
    pub fn remembering(self, file: PathBuf) -> Self {
        let memory: Memory = match durable::read(&file, FORMAT) {
            Ok(memory) => memory.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(error = crate::chain(&error), "what the manifests said is forgotten");
                Memory::default()
            }
        };
        let (places, deleted) = (memory.described.iter().cloned().collect(), memory.deleted.clone());
        Self { places, deleted, memory: Some((file, memory)), ..self }
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
    pub fn files(&self) -> BTreeMap<FederationKey, PathBuf> {
        self.places.iter().map(|(key, place)| (key.clone(), place.file.clone())).collect()
    }

    /// Looks at the folder.
    pub fn look(&mut self) -> Changes {
        let (folder, entries, files) = match read(&self.path) {
            Ok(read) => (Some(read.folder), read.entries, read.files),
            Err(error) => {
                self.note(BTreeMap::from([(self.path.clone(), format!("{error}; nothing is changed"))]));
                (None, 0, BTreeMap::new())
            }
        };
        if folder.is_some() && (files != self.texts || self.texts.is_empty()) {
            self.found = self.parse(&files);
            self.texts = files;
        }
        let mut problems = self.found.problems.clone();
        let described = self.found.federations.len();
        if folder.is_some() && self.texts.is_empty() {
            problems.insert(self.path.clone(), "no *.yaml file in it; nothing is changed".to_owned());
        }
        let unclear = !self.found.problems.is_empty();
        let look = Look { folder, entries, described, unclear };
        let mut changes = Changes { changed: self.changed(folder), deleted: Vec::new() };
        self.judge(look, &mut problems);
        changes.deleted.extend(self.deleted.difference(&self.told).cloned());
        self.told.clone_from(&self.deleted);
        if folder.is_some() {
            self.note(problems);
        }
        self.remember();
        changes
    }

    /// What is there: new or changed federations, and where all of them are described.
    fn changed(&mut self, folder: Option<FolderId>) -> Vec<Arc<Manifest>> {
        let mut changed = Vec::new();
        let Some(folder) = folder else { return changed };
        for (key, (file, manifest)) in &self.found.federations {
            self.deleted.remove(key);
            self.absent.remove(key);
            self.places.insert(key.clone(), Place { file: file.clone(), folder, together: false });
            if self.known.get(key) != Some(manifest) {
                changed.push(Arc::clone(manifest));
                self.known.insert(key.clone(), Arc::clone(manifest));
            }
        }
        changed
    }

    /// What is not there any more: deleted, or in doubt and then as it was.
    fn judge(&mut self, look: Look, problems: &mut BTreeMap<PathBuf, String>) {
        let there = |key: &FederationKey| look.folder.is_some() && self.found.federations.contains_key(key);
        let absent: Vec<(FederationKey, Place)> = self
            .places
            .iter()
            .filter(|(key, _)| !there(key))
            .map(|(key, place)| (key.clone(), place.clone()))
            .collect();
        for (key, place) in &absent {
            let said = look.folder.is_some() && self.found.deleted.contains(key);
            let verdict = if place.together {
                Err(Doubt::AllAtOnce)
            } else {
                deletion::vanished(place.folder, absent.len(), look)
            };
            if let (Err(doubt), false) = (verdict, said) {
                if let Some(place) = self.places.get_mut(key) {
                    place.together |= doubt == Doubt::AllAtOnce;
                }
                self.absent.remove(key);
                // Where its own file has a mistake, that says enough.
                problems.entry(place.file.clone()).or_insert_with(|| {
                    format!(
                        "{key} is not described any more, and nothing is changed, for {doubt}; to delete it, put its text \
                         into {}.{DELETED}",
                        place.file.display()
                    )
                });
                continue;
            }
            let looks = self.absent.entry(key.clone()).or_default();
            *looks += 1;
            if said || *looks >= LOOKS {
                self.absent.remove(key);
                self.places.remove(key);
                self.known.remove(key);
                self.deleted.insert(key.clone());
            }
        }
    }

    fn parse(&self, files: &BTreeMap<PathBuf, Vec<u8>>) -> Found {
        let mut found = Found::default();
        for (path, text) in files {
            let mut problem = |text: String| {
                found
                    .problems
                    .entry(path.clone())
                    .and_modify(|all: &mut String| *all = format!("{all}; {text}"))
                    .or_insert(text);
            };
            let Ok(text) = std::str::from_utf8(text) else {
                problem("it is not UTF-8, or too large".to_owned());
                continue;
            };
            let documents = match manifest::parse_each(text) {
                Ok(documents) => documents,
                Err(error) => {
                    problem(error.to_string());
                    continue;
                }
            };
            for document in documents {
                let manifest = match document {
                    Ok(manifest) => manifest,
                    Err(error) => {
                        problem(error.to_string());
                        continue;
                    }
                };
                if path.extension() == Some(OsStr::new(DELETED)) {
                    found.deleted.insert(manifest.key);
                    continue;
                }
                match (found.federations.get(&manifest.key), self.misfit(&manifest)) {
                    (Some((other, _)), _) => {
                        problem(format!("{} is described in {} already", manifest.key, other.display()));
                    }
                    (None, Some(misfit)) => problem(format!("{}: {misfit}", manifest.key)),
                    (None, None) => {
                        found.federations.insert(manifest.key.clone(), (path.clone(), Arc::new(manifest)));
                    }
                }
            }
        }
        found
    }

    fn note(&mut self, problems: BTreeMap<PathBuf, String>) {
        for (path, problem) in &problems {
            if self.problems.get(path) != Some(problem) {
                tracing::warn!(file = %path.display(), problem, "a manifest cannot be used; all others are");
            }
        }
        self.problems = problems;
    }

    /// Writes down what has to be known after a restart, if it changed.
    fn remember(&mut self) {
        let Some((file, written)) = &mut self.memory else { return };
        let described = self.places.iter().map(|(key, place)| (key.clone(), place.clone())).collect();
        let memory = Memory { described, deleted: self.deleted.clone() };
        if memory == *written {
            return;
        }
        match durable::write(file, FORMAT, &memory) {
            Ok(_) => *written = memory,
            // Tried again with the next look. What is not remembered is never a deletion later.
            Err(error) => {
                tracing::warn!(error = crate::chain(&error), "what the manifests say is not remembered");
            }
        }
    }
}

struct Read {
    folder: FolderId,
    /// Everything that a file system does not bring along by itself.
    entries: usize,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

fn read(folder: &Path) -> std::io::Result<Read> {
    let found = fs::metadata(folder)?;
    let folder_id = FolderId { device: found.dev(), inode: found.ino() };
    let mut read = Read { folder: folder_id, entries: 0, files: BTreeMap::new() };
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Editors leave hidden files behind.
        if name.starts_with('.') || name == "lost+found" {
            continue;
        }
        read.entries += 1;
        let named = name.strip_suffix(&format!(".{DELETED}")).unwrap_or(&name);
        let end = Path::new(named).extension();
        if !end.is_some_and(|end| end == "yaml" || end == "yml") {
            continue;
        }
        let size = fs::metadata(&path)?.len();
        let text = if size > LIMIT { vec![0xff] } else { fs::read(&path)? };
        read.files.insert(path, text);
    }
    Ok(read)
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
        assert_eq!(settled(&mut look), Changes::default());
        fs::remove_file(folder.path().join("a.yaml")).unwrap();
        assert_eq!(look.look(), Changes::default(), "one look may be between a removal and a writing");
        assert_eq!(deleted(&mut look), ["etcd/a"]);
        fs::remove_file(folder.path().join("b.yaml")).unwrap();
        assert_eq!(settled(&mut look), Changes::default(), "an empty folder is never a deletion");
        let problem = &look.problems()[&folder.path().join("b.yaml")];
        assert!(problem.contains("etcd/b") && problem.contains("empty"), "{problem}");
        // It is one as soon as something else is there: the folder is no bare mount point.
        write("readme.txt", "hello");
        assert_eq!(deleted(&mut look), ["etcd/b"]);
        write("b.yaml", &GOOD.replace("NAME", "b"));
        assert_eq!(look.look().changed.len(), 1, "declared again, with the same text");
    }

    /// More looks than it takes to believe something; all that they found.
    fn settled(look: &mut Folder) -> Changes {
        let mut all = Changes::default();
        for _ in 0..=LOOKS {
            let Changes { changed, deleted } = look.look();
            all.changed.extend(changed);
            all.deleted.extend(deleted);
        }
        all
    }

    fn deleted(look: &mut Folder) -> Vec<String> {
        settled(look).deleted.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn another_folder_or_a_common_loss_is_no_deletion_but_a_word_is() {
        let root = tempfile::tempdir().unwrap();
        let (folder, memory) = (root.path().join("federations"), root.path().join("manifests.json"));
        fs::create_dir(&folder).unwrap();
        let write = |file: &str, text: &str| fs::write(folder.join(file), text).unwrap();
        let open = || Folder::new(folder.clone()).remembering(memory.clone());
        for name in ["a", "b"] {
            write(&format!("{name}.yaml"), &GOOD.replace("NAME", name));
        }
        write("readme.txt", "hello");
        let mut look = open();
        assert_eq!(look.look().changed.len(), 2);
        // The folder is moved away, and another one stands in its place: as with a file system that is not mounted.
        let aside = root.path().join("aside");
        fs::rename(&folder, &aside).unwrap();
        assert_eq!(deleted(&mut look), Vec::<String>::new());
        fs::create_dir(&folder).unwrap();
        write("readme.txt", "hello");
        assert_eq!(deleted(&mut look), Vec::<String>::new());
        let says = |look: &Folder, words: &str| {
            ["a.yaml", "b.yaml"].iter().all(|file| look.problems()[&folder.join(file)].contains(words))
        };
        assert!(says(&look, "another one than before"), "{:?}", look.problems());
        assert_eq!(deleted(&mut open()), Vec::<String>::new(), "nor for an agent that starts now");
        fs::remove_dir_all(&folder).unwrap();
        fs::rename(&aside, &folder).unwrap();
        assert_eq!(settled(&mut look), Changes::default());
        // Both vanish at once.
        for name in ["a", "b"] {
            fs::rename(folder.join(format!("{name}.yaml")), root.path().join(name)).unwrap();
        }
        assert_eq!(deleted(&mut look), Vec::<String>::new());
        assert!(says(&look, "at once"), "{:?}", look.problems());
        // One of them is said to be deleted.
        fs::rename(root.path().join("a"), folder.join("a.yaml.deleted")).unwrap();
        assert_eq!(deleted(&mut look), ["etcd/a"]);
        assert_eq!(deleted(&mut look), Vec::<String>::new(), "told once");
        assert_eq!(deleted(&mut open()), ["etcd/a"], "and again by an agent that starts");
    }

    #[test]
    fn what_is_removed_while_the_agent_is_away_is_a_deletion() {
        let root = tempfile::tempdir().unwrap();
        let (folder, memory) = (root.path().join("federations"), root.path().join("manifests.json"));
        fs::create_dir(&folder).unwrap();
        for name in ["a", "b"] {
            fs::write(folder.join(format!("{name}.yaml")), GOOD.replace("NAME", name)).unwrap();
        }
        let open = || Folder::new(folder.clone()).remembering(memory.clone());
        assert_eq!(open().look().changed.len(), 2);
        fs::remove_file(folder.join("a.yaml")).unwrap();
        let mut look = open();
        let found = settled(&mut look);
        assert_eq!((found.changed.len(), found.deleted.len()), (1, 1));
        assert_eq!(deleted(&mut open()), ["etcd/a"]);
        fs::write(folder.join("a.yaml"), GOOD.replace("NAME", "a")).unwrap();
        let found = settled(&mut open());
        assert_eq!((found.changed.len(), found.deleted.len()), (2, 0));
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
