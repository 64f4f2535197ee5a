//! When a federation is deleted, and when a missing file is only a missing file (decisions.md 4). Pure.
//!
//! A `FederatedEtcd` that is gone in one site is drift: nothing stops. Gone in all of them, each of which says so, it stops
//! the members; data and records stay, and a `FederatedEtcd` of the same name resumes them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::federation::observed::Heard;
use crate::federation::view::HEARD_MS;
use crate::id::SiteName;
use crate::intent::record::Record;

/// What a look at the folder of manifests found, as far as it tells a deletion from an accident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The folder that was read; none if it is missing or cannot be read.
    pub folder: Option<FolderId>,
    /// Entries of any kind in it.
    pub entries: usize,
    /// Federations that its files describe.
    pub described: usize,
    /// Some file has a mistake, so nobody knows what it describes.
    pub unclear: bool,
}

/// Device and inode of a folder: another file system, mounted or unmounted, has other ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FolderId {
    /// The device.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

/// Why a manifest that is not found is not taken for a deleted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The folder is missing or cannot be read.
    NoFolder,
    /// The folder is another one than that in which the file was seen last.
    OtherFolder,
    /// Nothing at all is in the folder, as in a mount point without its file system.
    Empty,
    /// Several federations vanished and none is left.
    AllAtOnce,
    /// A file with a mistake may be the one that describes it.
    Unclear,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoFolder => "the folder is missing or cannot be read",
            Self::OtherFolder => "the folder is another one than before: mounted, unmounted or replaced",
            Self::Empty => "the folder is empty, as a mount point is without its file system",
            Self::AllAtOnce => "all files are gone at once",
            Self::Unclear => "another file has a mistake and may be the one",
        })
    }
}

/// Whether a federation whose file was last seen in `seen_in`, and is not found now, was deleted. `vanished` counts
/// the federations that are missing so, this one included.
pub fn vanished(seen_in: FolderId, vanished: usize, now: Look) -> Result<(), Doubt> {
    let Some(folder) = now.folder else { return Err(Doubt::NoFolder) };
    if folder != seen_in {
        return Err(Doubt::OtherFolder);
    }
    if now.entries == 0 {
        return Err(Doubt::Empty);
    }
    if now.described == 0 && vanished > 1 {
        return Err(Doubt::AllAtOnce);
    }
    if now.unclear { Err(Doubt::Unclear) } else { Ok(()) }
}

/// How far the deletion of a federation is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    /// It is not deleted here.
    No,
    /// It is deleted here; this site still has it, or does not say.
    Waits(SiteName),
    /// It is deleted in every site that has a part.
    Everywhere,
}

/// Judges from what the sites with a part say. `here`: the own `FederatedEtcd` was deleted.
pub fn judge(
    me: &SiteName,
    here: bool,
    record: &Record,
    parts: &[SiteName],
    heard: &[(SiteName, Heard)],
) -> Deletion {
    if !here {
        return Deletion::No;
    }
    let others = || parts.iter().filter(|site| *site != me);
    let said = |site: &SiteName| {
        let (_, heard) = heard.iter().find(|(name, heard)| name == site && heard.age_ms < HEARD_MS)?;
        heard.observation.deleted.then_some(&heard.observation)
    };
    // Whoever has concluded it has heard everybody, this site included; some of them may have been switched off since.
    let concluded = |site: &SiteName| {
        said(site)
            .is_some_and(|o| o.record.deleted && o.record.uid == record.uid && o.record.epoch == record.epoch)
    };
    if others().any(concluded) {
        return Deletion::Everywhere;
    }
    match others().find(|site| said(site).is_none()) {
        Some(site) => Deletion::Waits(site.clone()),
        None => Deletion::Everywhere,
    }
}

impl Record {
    /// The record with what follows from the own `FederatedEtcd`: one that is there resumes what was stopped, whatever
    /// the others do; one that is gone everywhere stops it.
    pub fn deleted_by(&self, here: bool, deletion: &Deletion) -> Option<Self> {
        let deleted = if here {
            false
        } else {
            self.deleted || (*deletion == Deletion::Everywhere && self.uid.is_some())
        };
        (deleted != self.deleted).then(|| Self { deleted, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::federation::observed::SiteObservation;
    use crate::id::{Digest, Epoch, FederationKey, Uid};

    const FOLDER: FolderId = FolderId { device: 1, inode: 2 };

    #[test]
    fn a_file_that_is_gone_is_a_deletion_only_if_nothing_else_explains_it() {
        let look = Look { folder: Some(FOLDER), entries: 2, described: 1, unclear: false };
        assert_eq!(vanished(FOLDER, 1, look), Ok(()));
        assert_eq!(vanished(FOLDER, 2, look), Ok(()), "others are still there");
        assert_eq!(
            vanished(FOLDER, 1, Look { described: 0, ..look }),
            Ok(()),
            "the only one, not the only file"
        );
        assert_eq!(vanished(FOLDER, 2, Look { described: 0, ..look }), Err(Doubt::AllAtOnce));
        assert_eq!(vanished(FOLDER, 1, Look { entries: 0, described: 0, ..look }), Err(Doubt::Empty));
        assert_eq!(vanished(FOLDER, 1, Look { folder: None, ..look }), Err(Doubt::NoFolder));
        assert_eq!(vanished(FOLDER, 1, Look { unclear: true, ..look }), Err(Doubt::Unclear));
        for other in [FolderId { device: 9, ..FOLDER }, FolderId { inode: 9, ..FOLDER }] {
            assert_eq!(vanished(other, 1, look), Err(Doubt::OtherFolder));
        }
    }

    fn site(name: &str) -> SiteName {
        SiteName::new(name).unwrap()
    }

    fn record() -> Record {
        let key: FederationKey = serde_json::from_str(r#"{"namespace": "etcd", "name": "main"}"#).unwrap();
        Record { uid: Some(Uid(7)), epoch: Epoch(1), ..Record::new(key) }
    }

    /// What sites say: `here`, `deleted`, `silent` and deleted, or `stopped`.
    fn heard(said: &[(&str, &str)]) -> Vec<(SiteName, Heard)> {
        let one = |(name, word): &(&str, &str)| {
            let record = Record { deleted: *word == "stopped", ..record() };
            let observation = SiteObservation {
                spec: (*word == "here").then_some(Digest([1; 32])),
                deleted: *word != "here",
                record: Arc::new(record.summary()),
                ..SiteObservation::empty(site(name))
            };
            let age_ms = if *word == "silent" { 60_000 } else { 0 };
            (site(name), Heard { observation: Arc::new(observation), age_ms })
        };
        said.iter().map(one).collect()
    }

    fn judged(here: bool, said: &[(&str, &str)]) -> Deletion {
        let parts: Vec<SiteName> = ["east", "north", "west"].map(site).to_vec();
        judge(&site("east"), here, &record(), &parts, &heard(said))
    }

    #[test]
    fn every_site_must_say_so() {
        let all = [("north", "deleted"), ("west", "deleted")];
        assert_eq!(judged(true, &all), Deletion::Everywhere);
        assert_eq!(judged(false, &all), Deletion::No);
        for word in ["here", "silent"] {
            let said = [("north", "deleted"), ("west", word)];
            assert_eq!(judged(true, &said), Deletion::Waits(site("west")));
        }
        assert_eq!(judged(true, &[("north", "deleted")]), Deletion::Waits(site("west")), "never heard");
        let said = [("north", "stopped"), ("west", "silent")];
        assert_eq!(judged(true, &said), Deletion::Everywhere, "north has heard west");
        assert_eq!(judged(true, &[("north", "here"), ("west", "deleted")]), Deletion::Waits(site("north")));
    }

    #[test]
    fn it_is_remembered_until_it_is_declared_again() {
        let stopped = record().deleted_by(false, &Deletion::Everywhere).unwrap();
        assert!(stopped.deleted);
        assert_eq!(stopped.deleted_by(false, &Deletion::No), None, "an agent that starts has not looked yet");
        assert_eq!(stopped.deleted_by(false, &Deletion::Waits(site("west"))), None);
        assert!(!stopped.deleted_by(true, &Deletion::No).unwrap().deleted);
        assert_eq!(record().deleted_by(false, &Deletion::Waits(site("west"))), None);
    }
}
