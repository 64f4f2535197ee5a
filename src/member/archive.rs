//! Moves a data directory out of the way. Nothing is ever deleted: the archive is emptied by people.

use std::fs;
use std::io;
use std::path::PathBuf;

use quorate_core::id::{IncarnationId, MemberId};
use quorate_link::durable;

use crate::volume::Volume;

/// Why a directory could not be moved.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The reason becomes part of a file name.
    #[error("{0:?} cannot be the name of an archive: use lower-case letters, digits and hyphens, at most 32")]
    Reason(String),
    /// A folder cannot be made or synced.
    #[error(transparent)]
    Durable(#[from] durable::Error),
    /// The operating system refused.
    #[error("cannot move {} to {}; the directory stays where it is", from.display(), to.display())]
    Move {
        /// The data directory.
        from: PathBuf,
        /// Where it should go.
        to: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
}

/// Moves `data/` to `archive/<reason>-<member id>-<incarnation>/`; the name, or none if there was no directory.
pub fn archive(
    volume: &Volume,
    reason: &str,
    member: Option<MemberId>,
    incarnation: IncarnationId,
) -> Result<Option<String>, Error> {
    check_reason(reason)?;
    let from = volume.data();
    // Not `exists`: that one answers "no" to an error, too.
    let fail = |to: PathBuf| {
        let from = from.clone();
        move |source| Error::Move { from, to, source }
    };
    match fs::symlink_metadata(&from) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(fail(volume.archive())(source)),
    }
    durable::create_folder(&volume.archive())?;
    let member = member.map_or_else(|| "unknown".to_owned(), |id| id.to_string());
    let base = format!("{reason}-{member}-{incarnation}");
    let mut name = base.clone();
    let mut number = 2;
    // Only this process writes here, so the look before the move is enough.
    while fs::symlink_metadata(volume.archive().join(&name)).is_ok() {
        name = format!("{base}-{number}");
        number += 1;
    }
    let to = volume.archive().join(&name);
    fs::rename(&from, &to).map_err(fail(to))?;
    durable::sync_folder(&volume.archive())?;
    durable::sync_folder(volume.root())?;
    Ok(Some(name))
}

/// Whether a reason may become part of a file name.
pub fn check_reason(reason: &str) -> Result<(), Error> {
    let good = !reason.is_empty()
        && reason.len() <= 32
        && reason.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if good { Ok(()) } else { Err(Error::Reason(reason.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_moved_and_none_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::new(folder.path().join("volume"), folder.path().join("outside.json"));
        let id = IncarnationId(0x1234_5678 << 96);
        assert_eq!(archive(&volume, "removed", None, id).unwrap(), None);
        for content in ["one", "two"] {
            fs::create_dir_all(volume.data()).unwrap();
            fs::write(volume.data().join("file"), content).unwrap();
            archive(&volume, "removed", Some(MemberId(0xab)), id).unwrap();
            assert!(!volume.data().exists());
        }
        let name = format!("removed-ab-{id}");
        assert_eq!(volume.archived().unwrap(), [name.clone(), format!("{name}-2")]);
        assert_eq!(fs::read_to_string(volume.archive().join(&name).join("file")).unwrap(), "one");
        for bad in ["", "../x", "Removed", "a b", &"a".repeat(33)] {
            assert!(matches!(archive(&volume, bad, None, id), Err(Error::Reason(_))), "{bad}");
        }
    }
}
