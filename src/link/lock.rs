//! One process per folder: an advisory lock that lasts as long as its guard, and no longer than the process.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Why the folder could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else holds it.
    #[error("{} is locked by {holder}; stop that process first, or use another folder", path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// What the holder wrote into the lock file.
        holder: String,
    },
    /// The operating system refused.
    #[error("cannot lock {}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
}

/// The lock on a folder; dropping it unlocks.
#[derive(Debug)]
pub struct Lock {
    // Closed on exec, so that children which outlive us do not keep the lock.
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Locks `folder` through the file `lock` inside it, without waiting.
    pub fn acquire(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("lock");
        let fail = |source| Error::Io { path: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(fail)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // The content is only a hint for people.
                let _ = file.take(200).read_to_string(&mut holder);
                let holder = match holder.trim() {
                    "" => "another process".to_owned(),
                    text => text.to_owned(),
                };
                return Err(Error::Held { path, holder });
            }
            Err(errno) => return Err(fail(errno.into())),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "process {}", std::process::id()))
            .map_err(fail)?;
        Ok(Self { file, path })
    }

    /// The process that holds the lock on `folder`, as it says itself; none if nobody holds it.
    pub fn holder(folder: &Path) -> Option<u32> {
        match Self::acquire(folder) {
            Err(Error::Held { holder, .. }) => holder.strip_prefix("process ")?.parse().ok(),
            Ok(_) | Err(Error::Io { .. }) => None,
        }
    }

    /// The lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file unlocks anyway; only the hint for people has to go.
        let _ = self.file.set_len(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_holder_is_refused_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::acquire(folder.path()).unwrap();
        let error = Lock::acquire(folder.path()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Held { .. }));
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        assert!(text.contains(first.path().to_str().unwrap()), "{text}");
        assert_eq!(Lock::holder(folder.path()), Some(std::process::id()));
        drop(first);
        assert_eq!(Lock::holder(folder.path()), None);
        Lock::acquire(folder.path()).unwrap();
    }

    #[test]
    fn missing_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Lock::acquire(&folder.path().join("absent")), Err(Error::Io { .. })));
    }
}
