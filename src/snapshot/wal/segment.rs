//! The files of a log: `<seq>-<index>.wal`, 16 hexadecimal digits each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Error;

/// One file of the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Its place in the log; the numbers have no holes.
    pub(super) seq: u64,
    pub(super) path: PathBuf,
}

/// The segments in order. Older ones may have been released; those that are left have no hole.
pub(super) fn list(folder: &Path) -> Result<Vec<Segment>, Error> {
    let fail = |source| Error::Io { action: "list", path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(fail(source)),
    };
    let mut segments = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        // Beside the segments etcd keeps `0.tmp`, the next one, and after a repair `….wal.broken`.
        if let Some(seq) = entry.file_name().to_str().and_then(parse_name) {
            segments.push(Segment { seq, path: entry.path() });
        }
    }
    segments.sort_by_key(|segment| segment.seq);
    for pair in segments.windows(2) {
        if let [one, two] = pair
            && two.seq != one.seq.wrapping_add(1)
        {
            return Err(Error::MissingSegment {
                folder: folder.to_owned(),
                missing: one.seq.wrapping_add(1),
            });
        }
    }
    Ok(segments)
}

fn parse_name(name: &str) -> Option<u64> {
    let (seq, index) = name.strip_suffix(".wal")?.split_once('-')?;
    let number = |text: &str| {
        let hex = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        hex.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    number(index)?;
    number(seq)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_segments_are_listed_and_holes_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        assert!(list(&folder.path().join("none")).unwrap().is_empty());
        let name = |seq: u64| format!("{seq:016x}-{:016x}.wal", seq * 10);
        for file in ["0.tmp", "x.wal", "0000000000000003-000000000000001e.wal.broken", "1-2.wal"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        assert!(list(folder.path()).unwrap().is_empty());
        for seq in [11, 9, 10] {
            fs::write(folder.path().join(name(seq)), "").unwrap();
        }
        let seqs: Vec<u64> = list(folder.path()).unwrap().iter().map(|s| s.seq).collect();
        assert_eq!(seqs, [9, 10, 11]);
        fs::remove_file(folder.path().join(name(10))).unwrap();
        assert!(matches!(list(folder.path()), Err(Error::MissingSegment { missing: 10, .. })));
    }
}
