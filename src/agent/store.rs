//! The state folder: who this site is for ever, the records, and the marks outside the member volumes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_core::federation::member::OutsideMark;
use quorate_core::id::{FederationKey, ObjectName, SiteName, Slot};
use quorate_core::intent::record::Record;
use quorate_link::lock::Lock;
use quorate_link::{durable, lock};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::ports::{Fault, Loaded, Records};

const SITE: &str = "quorate.site/1";
const RECORD: &str = quorate_api::document::format::RECORD;
/// Also read by the supervisors.
const MARK: &str = "quorate.highwater/1";

/// Why the state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A document cannot be read or written.
    #[error(transparent)]
    Document(#[from] durable::Error),
    /// Another agent uses it, or it cannot be locked.
    #[error(transparent)]
    Lock(#[from] lock::Error),
    /// The folder belongs to another site or mesh.
    #[error("{} says {field} {theirs:?}, the configuration says {ours:?}; it is fixed: undo the change, or use another state folder", path.display())]
    OtherSite {
        /// The file that holds it.
        path: PathBuf,
        /// Which field.
        field: &'static str,
        /// What the folder says.
        theirs: String,
        /// What the configuration says.
        ours: String,
    },
}

/// Who a site is; fixed with the first start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fixed {
    /// The site's name.
    pub site: SiteName,
    /// The mesh.
    pub mesh: String,
    /// The trust domain.
    pub trust_domain: String,
}

/// The locked state folder of the running agent.
#[derive(Debug)]
pub struct StateFolder {
    root: PathBuf,
    _lock: Lock,
}

impl StateFolder {
    /// Locks the folder and checks that it belongs to this site; the first time, it is made so.
    pub fn open(root: &Path, fixed: &Fixed) -> Result<Self, Error> {
        durable::create_folder(root)?;
        let lock = Lock::acquire(root)?;
        let path = root.join("site.json");
        match durable::read::<Fixed>(&path, SITE)? {
            None => {
                durable::write(&path, SITE, fixed)?;
            }
            Some(found) => {
                let pairs = [
                    ("site", found.site.to_string(), fixed.site.to_string()),
                    ("mesh", found.mesh, fixed.mesh.clone()),
                    ("trustDomain", found.trust_domain, fixed.trust_domain.clone()),
                ];
                if let Some((field, theirs, ours)) =
                    pairs.into_iter().find(|(_, theirs, ours)| theirs != ours)
                {
                    return Err(Error::OtherSite { path, field, theirs, ours });
                }
            }
        }
        Ok(Self { root: root.to_owned(), _lock: lock })
    }

    /// The federations that have a folder here.
    pub fn federations(&self) -> Vec<FederationKey> {
        let Ok(entries) = fs::read_dir(self.root.join("federations")) else { return Vec::new() };
        let key = |name: &str| {
            let (namespace, name) = name.split_once('.')?;
            Some(FederationKey {
                namespace: ObjectName::new(namespace).ok()?,
                name: ObjectName::new(name).ok()?,
            })
        };
        entries.flatten().filter_map(|entry| key(&entry.file_name().to_string_lossy())).collect()
    }

    /// The folder of one federation.
    pub fn federation(&self, key: &FederationKey) -> PathBuf {
        folder(&self.root, key)
    }
}

/// `<state>/federations/<ns>.<name>`; neither part can hold a dot.
pub fn folder(state: &Path, key: &FederationKey) -> PathBuf {
    state.join("federations").join(format!("{}.{}", key.namespace, key.name))
}

/// `<federation>/highwater/<slot>.json`.
pub fn mark_path(federation: &Path, slot_name: &str) -> PathBuf {
    federation.join("highwater").join(format!("{slot_name}.json"))
}

/// The record file of one federation. The lock on the state folder keeps other processes away, the version other
/// tasks.
#[derive(Debug)]
pub struct FileRecords {
    folder: PathBuf,
    name: ObjectName,
    version: Arc<Mutex<u64>>,
}

impl FileRecords {
    /// The record in `folder`, that of one federation.
    pub fn new(folder: PathBuf, key: &FederationKey) -> Self {
        Self { folder, name: key.name.clone(), version: Arc::default() }
    }

    fn record(&self) -> PathBuf {
        self.folder.join("record.json")
    }

    /// A record that cannot be read is kept beside the one that will be rebuilt: a person may still want to look at it.
    fn keep_unreadable(&self) {
        let aside = (0..1_000)
            .map(|n| self.folder.join(format!("record.json.unreadable-{n}")))
            .find(|path| !path.exists());
        let Some(aside) = aside else { return };
        if let Err(error) = fs::copy(self.record(), &aside) {
            tracing::warn!(path = %aside.display(), %error, "the unreadable record cannot be kept aside");
        }
    }

    fn mark_file(&self, slot: &Slot) -> PathBuf {
        mark_path(&self.folder, &slot.name(&self.name))
    }
}

/// fsync takes milliseconds: not on a thread that others wait for.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, durable::Error> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| Fault::from_error(&error)),
        Err(error) => Err(Fault::from_error(&error)),
    }
}

impl Records for FileRecords {
    async fn load(&self) -> Loaded {
        let path = self.record();
        let volumes = self.folder.join("members");
        let version = *self.version.lock().await;
        match blocking(move || durable::read::<Record>(&path, RECORD)).await {
            Ok(Some(record)) => Loaded::Found(Box::new(record), version),
            Err(fault) => {
                self.keep_unreadable();
                Loaded::Unreadable(fault.to_string())
            }
            Ok(None) => {
                let any = fs::read_dir(volumes).is_ok_and(|mut entries| entries.next().is_some());
                if any { Loaded::Missing } else { Loaded::Fresh }
            }
        }
    }

    async fn store(&self, record: &Record, version: u64) -> Result<u64, Fault> {
        let mut current = self.version.lock().await;
        if *current != version {
            return Err(Fault::new("the record was changed by somebody else; it is read again"));
        }
        let (path, record) = (self.record(), record.clone());
        // A write that failed half-way left either the old record or one that nobody was told of: both are safe.
        blocking(move || durable::write(&path, RECORD, &record)).await?;
        *current += 1;
        Ok(*current)
    }

    async fn mark(&self, slot: &Slot, mark: &OutsideMark) -> Result<(), Fault> {
        let (path, mark) = (self.mark_file(slot), mark.clone());
        blocking(move || durable::write(&path, MARK, &mark)).await.map(drop)
    }

    async fn marked(&self, slot: &Slot) -> Option<OutsideMark> {
        let path = self.mark_file(slot);
        blocking(move || durable::read(&path, MARK)).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(site: &str) -> Fixed {
        Fixed { site: SiteName::new(site).unwrap(), mesh: "m".to_owned(), trust_domain: "t.test".to_owned() }
    }

    fn key() -> FederationKey {
        FederationKey { namespace: ObjectName::new("etcd").unwrap(), name: ObjectName::new("main").unwrap() }
    }

    #[test]
    fn a_state_folder_is_of_one_site_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let open = StateFolder::open(folder.path(), &fixed("east")).unwrap();
        assert!(matches!(StateFolder::open(folder.path(), &fixed("east")), Err(Error::Lock(_))));
        drop(open);
        let error = StateFolder::open(folder.path(), &fixed("west")).unwrap_err().to_string();
        assert!(error.contains("site \"east\"") && error.contains("\"west\""), "{error}");
        StateFolder::open(folder.path(), &fixed("east")).unwrap();
    }

    #[tokio::test]
    async fn a_record_is_found_again_or_missed_and_never_invented() {
        let folder = tempfile::tempdir().unwrap();
        let records = FileRecords::new(folder.path().to_owned(), &key());
        assert_eq!(records.load().await, Loaded::Fresh);
        let mut record = Record::new(key());
        let version = records.store(&record, 0).await.unwrap();
        assert_eq!(records.load().await, Loaded::Found(Box::new(record.clone()), version));
        record.epoch = record.epoch.next();
        assert!(records.store(&record, 0).await.is_err(), "an old version");
        records.store(&record, version).await.unwrap();
        let path = folder.path().join("record.json");
        fs::write(&path, "{").unwrap();
        assert!(matches!(records.load().await, Loaded::Unreadable(why) if why.contains("record.json")));
        assert_eq!(fs::read(folder.path().join("record.json.unreadable-0")).unwrap(), b"{");
        fs::remove_file(path).unwrap();
        assert_eq!(records.load().await, Loaded::Fresh);
        fs::create_dir_all(folder.path().join("members/main-east-0")).unwrap();
        assert_eq!(records.load().await, Loaded::Missing);
    }
}
