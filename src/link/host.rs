//! What the refusals of an operating system mean for a person: a reason that names the place.

use std::error::Error;
use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use quorate_core::reason::{Code, Reason};

use crate::causes::chain;

/// The trouble of the host behind an error; none if the operating system has no part in it.
pub fn trouble(error: &(dyn Error + 'static)) -> Option<Reason> {
    let mut cause = Some(error);
    while let Some(this) = cause {
        if let Some(refusal) = this.downcast_ref::<io::Error>() {
            return Some(Reason::new(code(refusal)).place(chain(error)));
        }
        cause = this.source();
    }
    None
}

/// The trouble of the host behind a refusal of the operating system; `what` says what was tried, and on which path.
pub fn refused(what: impl Display, error: &io::Error) -> Reason {
    Reason::new(code(error)).place(format!("{what}: {error}"))
}

fn code(error: &io::Error) -> Code {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => Code::DiskFull,
        Kind::ReadOnlyFilesystem | Kind::PermissionDenied => Code::StateNotWritable,
        _ => Code::HostFault,
    }
}

/// Whether a process of ours could listen here now, or why not.
pub fn listens(address: SocketAddr) -> Result<(), Reason> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(Reason::new(Code::PortInUse).place(address.to_string()))
        }
        Err(error) => Err(Reason::new(Code::HostFault).place(format!("cannot listen on {address}: {error}"))),
    }
}

/// Whether the disk below a path has no room left.
pub fn full(path: &Path) -> Option<Reason> {
    /// Less than this is nothing: one page of etcd's database, some lines of its log.
    const ROOM: u64 = 64 * 1024;
    let disk = rustix::fs::statvfs(path).ok()?;
    let room = disk.f_bavail.saturating_mul(disk.f_frsize);
    // Some file systems count no inodes.
    let full = room < ROOM || (disk.f_files > 0 && disk.f_ffree == 0);
    full.then(|| Reason::new(Code::DiskFull).place(path.display().to_string()))
}

/// The trouble that the last words of a process tell of, if they do; `place` is where it writes.
pub fn last_words(words: &str, place: &str) -> Option<Reason> {
    let code = match words.to_lowercase() {
        words if words.contains("no space left on device") => Code::DiskFull,
        words if words.contains("disk quota exceeded") => Code::DiskFull,
        words if words.contains("read-only file system") => Code::StateNotWritable,
        _ => return None,
    };
    Some(Reason::new(code).place(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable;

    #[test]
    fn a_full_or_read_only_disk_is_told_with_its_place() {
        let refused = |kind: io::ErrorKind| {
            let path = std::path::PathBuf::from("/state/record.json");
            trouble(&durable::Error::Io { action: "write", path, source: kind.into() })
        };
        let full = refused(io::ErrorKind::StorageFull).unwrap();
        assert_eq!(full.code, Code::DiskFull);
        assert!(full.place.as_ref().unwrap().starts_with("cannot write /state/record.json: "), "{full:?}");
        assert_eq!(refused(io::ErrorKind::ReadOnlyFilesystem).unwrap().code, Code::StateNotWritable);
        assert_eq!(refused(io::ErrorKind::Other).unwrap().code, Code::HostFault);
        let reason = super::refused("cannot open /x", &io::ErrorKind::PermissionDenied.into());
        assert!(reason.to_string().contains("cannot open /x: "), "{reason}");
        assert_eq!(trouble(&durable::Error::Checksum { path: "/x".into() }), None);
        let words = r#"{"level":"fatal","error":"write /v/0.wal: no space left on device"}"#;
        assert_eq!(last_words(words, "/v").unwrap().code, Code::DiskFull);
        assert_eq!(last_words("shutting down", "/v"), None);
        assert_eq!(super::full(tempfile::tempdir().unwrap().path()), None);
    }

    #[test]
    fn a_port_in_use_is_told_with_its_address() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = holder.local_addr().unwrap();
        let reason = listens(address).unwrap_err();
        assert_eq!((reason.code, reason.place), (Code::PortInUse, Some(address.to_string().into())));
        drop(holder);
        listens(address).unwrap();
        // An address that is not of this host.
        assert_eq!(listens("192.0.2.1:1".parse().unwrap()).unwrap_err().code, Code::HostFault);
    }
}
