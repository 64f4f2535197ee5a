//! Documents that survive a crash.
//!
//! A document is JSON `{format, checksum, body}`. It is written as a temporary file, synced, renamed over the old one,
//! and the folder is synced: after a crash there is either the old document or the new one. A document that cannot be
//! read is an error, never a default: what an agent promised must not be forgotten silently.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why a document could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The file is not a document of ours.
    #[error("{} is not a document of quorate; restore the file or move it away after checking what it held", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// The checksum does not fit the body.
    #[error("{} is damaged: its checksum does not match its body; restore the file from a copy", path.display())]
    Checksum {
        /// Which file.
        path: PathBuf,
    },
    /// Another format, usually of a newer version.
    #[error("{} has format {found:?}, this version reads {expected:?}; use the version that wrote it", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// What the file says.
        found: String,
        /// What the reader asked for.
        expected: String,
    },
    /// The value cannot be expressed as JSON.
    #[error("cannot express the document for {} as JSON", path.display())]
    Encode {
        /// Which file.
        path: PathBuf,
        /// What the encoder said.
        #[source]
        source: serde_json::Error,
    },
}

impl Error {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    format: String,
    checksum: String,
    body: Value,
}

/// Writes `body` as a document of `format`; false if the file already holds exactly that.
pub fn write<T: Serialize>(path: &Path, format: &str, body: &T) -> Result<bool, Error> {
    let encode = |source| Error::Encode { path: path.to_owned(), source };
    let body = serde_json::to_value(body).map_err(encode)?;
    let document = Envelope { format: format.to_owned(), checksum: checksum(&body), body };
    let mut text = serde_json::to_vec_pretty(&document).map_err(encode)?;
    text.push(b'\n');
    write_file(path, &text, PRIVATE)
}

/// Reads a document of `format`; `None` if there is no such file.
pub fn read<T: DeserializeOwned>(path: &Path, format: &str) -> Result<Option<T>, Error> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::io("read", path)(source)),
    };
    let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
    let document: Envelope = serde_json::from_slice(&text).map_err(unreadable)?;
    if document.checksum != checksum(&document.body) {
        return Err(Error::Checksum { path: path.to_owned() });
    }
    if document.format != format {
        return Err(Error::Format {
            path: path.to_owned(),
            found: document.format,
            expected: format.to_owned(),
        });
    }
    serde_json::from_value(document.body).map(Some).map_err(unreadable)
}

/// The mode of files that only their owner may read.
pub const PRIVATE: u32 = 0o600;
/// The mode of files that hold nothing secret, such as certificates.
pub const PUBLIC: u32 = 0o644;

/// Replaces a file as a whole and durably; false if it already has this content and mode.
pub fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<bool, Error> {
    if fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o777 == mode)
        && fs::read(path).is_ok_and(|old| old == content)
    {
        return Ok(false);
    }
    let folder = parent(path);
    create_folder(folder)?;
    let temporary = temporary(path);
    let result = write_new(&temporary, content, mode)
        .and_then(|()| fs::rename(&temporary, path).map_err(Error::io("rename into place", path)));
    if let Err(error) = result {
        // Best effort: the error that matters is the one above.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_folder(folder)?;
    Ok(true)
}

/// Creates a folder and its parents (mode 0700) and syncs the folder above each new one.
pub fn create_folder(folder: &Path) -> Result<(), Error> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        create_folder(above)?;
    }
    match fs::create_dir(folder) {
        Ok(()) => {}
        Err(source) if source.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => return Ok(()),
        Err(source) => return Err(Error::io("create folder", folder)(source)),
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(Error::io("protect", folder))?;
    sync_folder(parent(folder))
}

/// Makes renames and removals in a folder durable.
pub fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|open| open.sync_all()).map_err(Error::io("sync folder", folder))
}

/// SHA-256 of `bytes` as lower-case hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().iter().fold(String::with_capacity(64), |mut text, byte| {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('?'));
        }
        text
    })
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(Error::io("create", path))?;
    // The umask may have taken bits from the mode above.
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(Error::io("protect", path))?;
    file.write_all(content).map_err(Error::io("write", path))?;
    file.sync_all().map_err(Error::io("sync", path))
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn temporary(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    parent(path).join(format!(".{name}.{}-{number}.tmp", std::process::id()))
}

/// The checksum is over the body with sorted keys and without spaces. Not RFC 8785: that one turns numbers into
/// doubles, and member ids are 64 bits wide.
fn checksum(body: &Value) -> String {
    let mut text = String::new();
    canonical(body, &mut text);
    sha256_hex(text.as_bytes())
}

fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Array(items) => {
            text.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    text.push(',');
                }
                canonical(item, text);
            }
            text.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| key.as_str());
            text.push('{');
            for (position, (key, item)) in fields.into_iter().enumerate() {
                if position > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                canonical(item, text);
            }
            text.push('}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        id: u64,
        name: String,
    }

    fn record() -> Record {
        Record { id: u64::MAX - 1, name: "a \"quoted\" name".into() }
    }

    #[test]
    fn reads_what_it_wrote_and_writes_only_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/record.json");
        assert_eq!(read::<Record>(&path, "quorate.test/1").unwrap(), None);
        assert!(write(&path, "quorate.test/1", &record()).unwrap());
        assert_eq!(read(&path, "quorate.test/1").unwrap(), Some(record()));
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(!write(&path, "quorate.test/1", &record()).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(write(&path, "quorate.test/1", &Record { id: 1, ..record() }).unwrap());
        let names: Vec<_> =
            fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["record.json"], "no temporary file stays");
    }

    #[test]
    fn damage_is_an_error_and_never_a_default() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        write(&path, "quorate.test/1", &record()).unwrap();
        let text = fs::read_to_string(&path).unwrap();

        fs::write(&path, text.replace("18446744073709551614", "18446744073709551613")).unwrap();
        assert!(matches!(read::<Record>(&path, "quorate.test/1"), Err(Error::Checksum { .. })));
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(matches!(read::<Record>(&path, "quorate.test/1"), Err(Error::Unreadable { .. })));
        fs::write(&path, "").unwrap();
        assert!(matches!(read::<Record>(&path, "quorate.test/1"), Err(Error::Unreadable { .. })));
        fs::write(&path, &text).unwrap();
        let error = read::<Record>(&path, "quorate.test/2").unwrap_err();
        assert!(matches!(&error, Error::Format { .. }));
        assert!(error.to_string().contains("quorate.test/1"), "{error}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(read::<Record>(&path, "quorate.test/1"), Err(Error::Io { .. })));
    }

    #[test]
    fn a_failed_write_leaves_the_old_document() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "not a folder").unwrap();
        assert!(write(&path.join("record.json"), "quorate.test/1", &record()).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "not a folder");
    }

    #[test]
    fn checksum_does_not_depend_on_field_order() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":{"c":[1,{"y":0,"x":null}],"d":"é"}}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"b":{"d":"é","c":[1,{"x":null,"y":0}]},"a":1}"#).unwrap();
        assert_eq!(checksum(&one), checksum(&two));
        assert_eq!(sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
