//! etcd's write-ahead log, read only: whose it is, and how far it goes.
//!
//! The answer is what raft would see after a replay. As for etcd itself, a torn record at the end of the last segment
//! is the normal trace of a crash and does not count; any other damage is an error. The data of entries pass through
//! the checksum and are not kept. A log that a running etcd writes can be read as well: its end may then be torn.

mod proto;
mod record;
mod replay;
mod segment;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use record::{Next, Records};
use replay::Replay;

/// Read in pieces of this size, so that neither a large entry nor a hostile length costs more memory.
const BUFFER: usize = 64 * 1024;

/// Why a log cannot be read.
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
    /// A segment between two others is gone.
    #[error("{} lacks segment {missing:016x}; keep the folder and let the member be replaced", folder.display())]
    MissingSegment {
        /// The folder of the log.
        folder: PathBuf,
        /// The sequence number that should be there.
        missing: u64,
    },
    /// The content is damaged.
    #[error("{} is damaged at offset {offset}: {damage}; keep the file and let the member be replaced", path.display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where the damaged record begins.
        offset: u64,
        /// What is wrong with it.
        damage: Damage,
    },
    /// The log ends before it says whose it is: etcd was interrupted while it made it.
    #[error("{} does not say whose log it is: its making was interrupted", folder.display())]
    NoMetadata {
        /// The folder of the log.
        folder: PathBuf,
    },
}

/// What is wrong with a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The checksum of all records so far is another one.
    #[error("its checksum is {stored:08x}, {computed:08x} was computed")]
    Checksum {
        /// What the record says.
        stored: u32,
        /// What its data give.
        computed: u32,
    },
    /// The segment ends inside the record, and it is not the last segment.
    #[error("it should be {length} bytes long, the segment has {left} more")]
    Length {
        /// What the record says.
        length: u64,
        /// What is left of the segment.
        left: u64,
    },
    /// The bytes are no record.
    #[error("it is no record of a write-ahead log: {0}")]
    Malformed(&'static str),
    /// Two segments belong to different members.
    #[error("it belongs to member {found:x}, the log began with member {expected:x}")]
    OtherMember {
        /// Member id in this record.
        found: u64,
        /// Member id in the first segment.
        expected: u64,
    },
    /// Entries are missing.
    #[error("entry {found} follows entry {last}")]
    Gap {
        /// The index of this entry.
        found: u64,
        /// The index before it.
        last: u64,
    },
}

/// A point of the raft log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// The term of the entry.
    pub term: u64,
    /// Its index.
    pub index: u64,
}

/// What a log says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalFacts {
    /// The cluster that the member belongs to.
    pub cluster_id: u64,
    /// The member.
    pub member_id: u64,
    /// The highest term that the member knew: of its state, its last entry and its newest snapshot.
    pub term: u64,
    /// The last index that raft would have after a replay.
    pub index: u64,
    /// The member that it voted for in its term, 0 for none.
    pub vote: u64,
    /// The highest index that the member knew to be committed.
    pub commit: u64,
    /// The last entry, if the retained segments hold one.
    pub entry: Option<Point>,
    /// The newest snapshot that a replay would begin from.
    pub snapshot: Option<Point>,
    /// How many segments were read.
    pub segments: usize,
    /// How many entries were read, overwritten ones included.
    pub entries: u64,
    /// The last segment ends in a torn record, which does not count.
    pub torn: bool,
}

/// Reads the log in `folder` (`<data dir>/member/wal`); `None` if there is no segment.
pub fn read(folder: &Path) -> Result<Option<WalFacts>, Error> {
    let segments = segment::list(folder)?;
    let Some(last) = segments.last().map(|segment| segment.seq) else {
        return Ok(None);
    };
    let mut replay = Replay::default();
    let mut crc = 0;
    let mut torn = false;
    for segment in &segments {
        let path = &segment.path;
        let io = |source| Error::Io { action: "read", path: path.clone(), source };
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut records =
            Records::new(BufReader::with_capacity(BUFFER, file), length, segment.seq == last, crc);
        loop {
            let offset = records.offset();
            let damaged = |damage| Error::Damaged { path: path.clone(), offset, damage };
            match records.next().map_err(|fault| fault.at(path, offset))? {
                Next::Record(record) => replay.apply(&record).map_err(damaged)?,
                Next::Torn => {
                    torn = true;
                    break;
                }
                Next::End => break,
            }
        }
        crc = records.crc();
    }
    replay
        .facts(segments.len(), torn)
        .map(Some)
        .ok_or_else(|| Error::NoMetadata { folder: folder.to_owned() })
}

#[cfg(test)]
mod tests;
