//! The files of a member volume: `{incarnation.json, desired.json, fence.json, data/, archive/, etcd.log}`.
//!
//! Only reading and writing; what they mean is decided in the guard. A file that cannot be read is an error and never a
//! default: what was promised must not be forgotten silently.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use quorate_core::federation::member::{Grant, Incarnation, OutsideMark};
use quorate_core::id::IncarnationId;
use quorate_link::durable;
use serde::{Deserialize, Serialize};

/// Format of `incarnation.json`.
pub const INCARNATION: &str = "quorate.incarnation/1";
/// Format of `desired.json`, and of a grant on the wire.
pub const GRANT: &str = "quorate.grant/1";
/// Format of `fence.json`.
pub const FENCE: &str = "quorate.fence/1";
/// Format of the mark from outside the volume.
pub const OUTSIDE_MARK: &str = "quorate.highwater/1";

/// One incarnation that is barred for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fenced {
    /// Which one.
    pub incarnation: IncarnationId,
    /// Why, for people.
    pub reason: String,
}

/// The folder that a supervisor owns, and the one file outside it that it reads.
#[derive(Debug, Clone)]
pub struct Volume {
    root: PathBuf,
    outside: PathBuf,
}

impl Volume {
    /// Uses `root`, with the outside mark in `outside`.
    pub fn new(root: PathBuf, outside: PathBuf) -> Self {
        Self { root, outside }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// etcd's data directory.
    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// The log inside the data directory.
    pub fn wal(&self) -> PathBuf {
        self.data().join("member").join("wal")
    }

    /// Where data directories go that are no longer used.
    pub fn archive(&self) -> PathBuf {
        self.root.join("archive")
    }

    /// What etcd prints.
    pub fn etcd_log(&self) -> PathBuf {
        self.root.join("etcd.log")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// `incarnation.json`.
    pub fn incarnation(&self) -> Result<Option<Incarnation>, durable::Error> {
        durable::read(&self.file("incarnation.json"), INCARNATION)
    }

    /// Writes `incarnation.json`.
    pub fn write_incarnation(&self, incarnation: &Incarnation) -> Result<bool, durable::Error> {
        durable::write(&self.file("incarnation.json"), INCARNATION, incarnation)
    }

    /// `desired.json`.
    pub fn grant(&self) -> Result<Option<Grant>, durable::Error> {
        durable::read(&self.file("desired.json"), GRANT)
    }

    /// Writes `desired.json`.
    pub fn write_grant(&self, grant: &Grant) -> Result<bool, durable::Error> {
        durable::write(&self.file("desired.json"), GRANT, grant)
    }

    /// The mark from outside the volume.
    pub fn outside(&self) -> Result<Option<OutsideMark>, durable::Error> {
        durable::read(&self.outside, OUTSIDE_MARK)
    }

    /// The incarnations that are barred.
    pub fn fenced(&self) -> Result<Vec<Fenced>, durable::Error> {
        Ok(durable::read(&self.file("fence.json"), FENCE)?.unwrap_or_default())
    }

    /// Bars an incarnation for ever.
    pub fn fence(&self, fenced: Fenced) -> Result<(), durable::Error> {
        let mut all = self.fenced()?;
        if all.iter().any(|old| old.incarnation == fenced.incarnation) {
            return Ok(());
        }
        all.push(fenced);
        durable::write(&self.file("fence.json"), FENCE, &all).map(drop)
    }

    /// The directories in the archive, sorted.
    pub fn archived(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.archive()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}
