//! Records: a length, a message of type, checksum and data, and zeros up to a multiple of eight.
//!
//! The checksum is CRC32C over the data of all records so far, across segments.

use std::io::{self, Read};
use std::path::Path;

use super::proto::{self, Malformed};
use super::{Damage, Error};

/// The size of the length field.
const FRAME: u64 = 8;
/// etcd's page writer fills sectors of this size; a sector of zeros in a broken record means that it was never written.
const SECTOR: u64 = 512;
/// Of the data of a record only the beginning is kept: the numbers that matter come first and take at most 33 bytes.
const HEAD: usize = 256;

/// The record types of etcd's `walpb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Metadata,
    Entry,
    State,
    Crc,
    Snapshot,
}

/// One record that passed its checksum.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) kind: Kind,
    /// The beginning of its data.
    pub(super) head: Vec<u8>,
    /// The head is all of it.
    pub(super) complete: bool,
}

/// What comes next in a segment.
#[derive(Debug)]
pub(super) enum Next {
    Record(Record),
    /// The rest is preallocated, or there is no rest.
    End,
    /// The last record was not written to its end.
    Torn,
}

/// Why a record could not be read.
#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    Damage(Damage),
}

impl Fault {
    pub(super) fn at(self, path: &Path, offset: u64) -> Error {
        let path = path.to_owned();
        match self {
            Self::Io(source) => Error::Io { action: "read", path, source },
            Self::Damage(damage) => Error::Damaged { path, offset, damage },
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The records of one segment.
pub(super) struct Records<R> {
    reader: R,
    offset: u64,
    left: u64,
    /// Only the last segment may be torn.
    last: bool,
    crc: u32,
}

impl<R: Read> Records<R> {
    /// `length` is the size of the segment, `crc` the checksum at the end of the one before (0 for none).
    pub(super) fn new(reader: R, length: u64, last: bool, crc: u32) -> Self {
        Self { reader, offset: 0, left: length, last, crc }
    }

    /// Where the next record begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The checksum so far.
    pub(super) fn crc(&self) -> u32 {
        self.crc
    }

    /// The next record.
    pub(super) fn next(&mut self) -> Result<Next, Fault> {
        if self.left < FRAME {
            // Less than a length field: nothing, or the torn beginning of one.
            return if self.left == 0 || self.last {
                Ok(Next::End)
            } else {
                Err(Fault::Damage(Damage::Length { length: FRAME, left: self.left }))
            };
        }
        let mut frame = [0; 8];
        self.reader.read_exact(&mut frame)?;
        let frame = u64::from_le_bytes(frame);
        if frame == 0 {
            return Ok(Next::End);
        }
        let length = frame & 0x00ff_ffff_ffff_ffff;
        // The top bit says that there is padding, the lowest three bits of the top byte how much.
        let padding = if frame >> 63 == 1 { (frame >> 56) & 7 } else { 0 };
        let room = self.left - FRAME;
        if length + padding > room {
            return if self.last {
                Ok(Next::Torn)
            } else {
                Err(Fault::Damage(Damage::Length { length: length + padding, left: room }))
            };
        }
        let mut body = Body {
            reader: &mut self.reader,
            left: length,
            place: self.offset + FRAME,
            blank: true,
            fresh: true,
            torn: false,
        };
        let parsed = body.message(self.crc);
        body.left += padding;
        body.skip()?;
        let torn = body.finish();
        let checked = match parsed {
            Ok(message) => message.check(self.crc),
            Err(Stop::Io(error)) => return Err(Fault::Io(error)),
            Err(Stop::Malformed(what)) => Err(Damage::Malformed(what)),
        };
        match checked {
            Ok((record, crc)) => {
                self.crc = crc;
                let size = FRAME + length + padding;
                self.offset += size;
                self.left -= size;
                Ok(Next::Record(record))
            }
            Err(_) if self.last && torn => Ok(Next::Torn),
            Err(damage) => Err(Fault::Damage(damage)),
        }
    }
}

struct Message {
    kind: u64,
    stored: u32,
    computed: u32,
    head: Vec<u8>,
    complete: bool,
}

impl Message {
    /// The record and the checksum after it.
    fn check(self, before: u32) -> Result<(Record, u32), Damage> {
        let Self { kind, stored, computed, head, complete } = self;
        let kind = match kind {
            1 => Kind::Metadata,
            2 => Kind::Entry,
            3 => Kind::State,
            4 => Kind::Crc,
            5 => Kind::Snapshot,
            _ => return Err(Damage::Malformed("unknown record type")),
        };
        let crc = if kind == Kind::Crc {
            // It hands the checksum from one segment to the next. The segments before the first one that is left were
            // released, so the first one is believed.
            if before != 0 && before != stored {
                return Err(Damage::Checksum { stored, computed: before });
            }
            stored
        } else if stored == computed {
            computed
        } else {
            return Err(Damage::Checksum { stored, computed });
        };
        Ok((Record { kind, head, complete }, crc))
    }
}

enum Stop {
    Io(io::Error),
    Malformed(Malformed),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Malformed> for Stop {
    fn from(what: Malformed) -> Self {
        Self::Malformed(what)
    }
}

/// The bytes of one record; watches for sectors that were never written.
struct Body<'a, R> {
    reader: &'a mut R,
    left: u64,
    place: u64,
    /// Since the last sector boundary there were only zeros.
    blank: bool,
    /// Since the last sector boundary there was nothing.
    fresh: bool,
    torn: bool,
}

impl<R: Read> Body<'_, R> {
    /// `Record {1 type, 2 crc, 3 data}`.
    fn message(&mut self, crc: u32) -> Result<Message, Stop> {
        let mut message = Message { kind: 0, stored: 0, computed: crc, head: Vec::new(), complete: true };
        let mut data = false;
        while self.left > 0 {
            match self.varint()? {
                0x08 => message.kind = self.varint()?,
                0x10 => {
                    let stored = self.varint()?;
                    message.stored = u32::try_from(stored).map_err(|_| "checksum of more than 32 bits")?;
                }
                0x1a if !data => {
                    data = true;
                    let length = self.varint()?;
                    if length > self.left {
                        return Err(Stop::Malformed("data longer than the record"));
                    }
                    self.data(length, &mut message)?;
                }
                _ => return Err(Stop::Malformed("unknown field")),
            }
        }
        Ok(message)
    }

    fn varint(&mut self) -> Result<u64, Stop> {
        let mut value = 0;
        for position in 0..proto::VARINT_MAX {
            let mut byte = [0];
            if self.left == 0 {
                return Err(Stop::Malformed("it ends inside a number"));
            }
            self.read(&mut byte)?;
            let [byte] = byte;
            if proto::varint_step(&mut value, position, byte)? {
                return Ok(value);
            }
        }
        Err(Stop::Malformed("a number does not end"))
    }

    fn data(&mut self, length: u64, message: &mut Message) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let mut left = length;
        while left > 0 {
            let size = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let Some(piece) = buffer.get_mut(..size) else {
                break;
            };
            self.read(piece)?;
            message.computed = crc32c::crc32c_append(message.computed, piece);
            let room = HEAD - message.head.len();
            message.head.extend(piece.iter().take(room));
            message.complete &= piece.len() <= room;
            left -= size as u64;
        }
        Ok(())
    }

    /// Reads what is left, to see whether it was written.
    fn skip(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        while self.left > 0 {
            let size = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
            let Some(piece) = buffer.get_mut(..size) else {
                break;
            };
            self.read(piece)?;
        }
        Ok(())
    }

    fn read(&mut self, piece: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact(piece)?;
        self.left = self.left.saturating_sub(piece.len() as u64);
        let mut rest = &*piece;
        while !rest.is_empty() {
            let to_boundary = usize::try_from(SECTOR - self.place % SECTOR).unwrap_or(1);
            let (now, later) = rest.split_at(to_boundary.min(rest.len()));
            self.blank &= now.iter().all(|byte| *byte == 0);
            self.fresh = false;
            self.place += now.len() as u64;
            if self.place.is_multiple_of(SECTOR) {
                self.boundary();
            }
            rest = later;
        }
        Ok(())
    }

    fn boundary(&mut self) {
        self.torn |= self.blank && !self.fresh;
        self.blank = true;
        self.fresh = true;
    }

    /// Whether a sector of the record was never written.
    fn finish(mut self) -> bool {
        self.boundary();
        self.torn
    }
}
