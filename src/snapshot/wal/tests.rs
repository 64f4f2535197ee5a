//! Logs made by hand, byte for byte as etcd makes them, and what damage does to them.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;

/// Writes records as etcd's encoder does.
#[derive(Default, Clone)]
struct Log {
    bytes: Vec<u8>,
    crc: u32,
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn fields(numbers: &[(u64, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (field, value) in numbers {
        varint(field << 3, &mut out);
        varint(*value, &mut out);
    }
    out
}

impl Log {
    fn begin() -> Self {
        let mut log = Self::default();
        log.crc_record();
        log.metadata(7, 9);
        log
    }

    /// The next segment of the same log.
    fn cut(&self) -> Self {
        let mut next = Self { bytes: Vec::new(), crc: self.crc };
        next.crc_record();
        next.metadata(7, 9);
        next
    }

    fn frame(&mut self, message: &[u8]) {
        let padding = (8 - message.len() % 8) % 8;
        let mut length = message.len() as u64;
        if padding != 0 {
            length |= (0x80 | padding as u64) << 56;
        }
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(message);
        self.bytes.extend(std::iter::repeat_n(0, padding));
    }

    fn crc_record(&mut self) {
        let message = fields(&[(1, 4), (2, self.crc.into())]);
        self.frame(&message);
    }

    fn record(&mut self, kind: u64, data: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, data);
        let mut message = fields(&[(1, kind), (2, self.crc.into())]);
        message.push(0x1a);
        varint(data.len() as u64, &mut message);
        message.extend(data);
        self.frame(&message);
    }

    fn metadata(&mut self, member: u64, cluster: u64) {
        self.record(1, &fields(&[(1, member), (2, cluster)]));
    }

    fn entry(&mut self, term: u64, index: u64, size: usize) {
        let mut data = fields(&[(1, 0), (2, term), (3, index)]);
        data.push(0x22);
        varint(size as u64, &mut data);
        data.extend(std::iter::repeat_n(0xab, size));
        self.record(2, &data);
    }

    fn state(&mut self, term: u64, vote: u64, commit: u64) {
        self.record(3, &fields(&[(1, term), (2, vote), (3, commit)]));
    }

    fn snapshot(&mut self, term: u64, index: u64) {
        let mut data = fields(&[(1, index), (2, term)]);
        // The conf state since 3.5.
        data.extend([0x1a, 4, 0x08, 7, 0x28, 0]);
        self.record(5, &data);
    }

    fn preallocate(&mut self, to: usize) {
        self.bytes.resize(to, 0);
    }
}

fn name(seq: u64, index: u64) -> String {
    format!("{seq:016x}-{index:016x}.wal")
}

fn read_logs(logs: &[(&str, &[u8])]) -> Result<Option<WalFacts>, Error> {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in logs {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    read(folder.path())
}

fn read_one(log: &Log) -> Result<WalFacts, Error> {
    read_logs(&[(&name(0, 0), &log.bytes)]).map(Option::unwrap)
}

/// Offset of the record that begins after everything written so far.
fn here(log: &Log) -> u64 {
    log.bytes.len() as u64
}

#[test]
fn no_folder_and_no_segment_is_nothing() {
    assert_eq!(read(Path::new("/nonexistent/wal")).unwrap(), None);
    assert_eq!(read_logs(&[("0.tmp", b"x")]).unwrap(), None);
}

/// The vectors of real files: a restored log of 3.5 to 3.7.
#[test]
fn bytes_of_a_real_log_are_read() {
    let mut log = Log::default();
    log.crc_record();
    assert_eq!(log.bytes, [4, 0, 0, 0, 0, 0, 0, 0x84, 8, 4, 0x10, 0, 0, 0, 0, 0]);
    let metadata = [
        0x08, 0xde, 0xdb, 0xf1, 0xb3, 0xa5, 0xc4, 0xda, 0xed, 0xea, 0x01, 0x10, 0xe7, 0xb2, 0x8c, 0xd4, 0xdc,
        0x9a, 0xd5, 0x93, 0x7b,
    ];
    log.record(1, &metadata);
    assert_eq!(log.crc, 0xd63c_bfe5);
    log.record(5, &[8, 0, 0x10, 0]);
    assert_eq!(log.crc, 0x3960_dd6d);
    let facts = read_one(&log).unwrap();
    assert_eq!((facts.member_id, facts.cluster_id), (0xeadb_6a22_567c_6dde, 0x7b27_54d5_ca83_1967));
    assert_eq!((facts.term, facts.index, facts.torn), (0, 0, false));

    log.entry(1, 1, 90);
    log.state(1, facts.member_id, 1);
    log.snapshot(1, 1);
    log.preallocate(4096);
    let facts = read_one(&log).unwrap();
    let point = Some(Point { term: 1, index: 1 });
    assert_eq!((facts.entry, facts.snapshot, facts.commit, facts.torn), (point, point, 1, false));
}

#[test]
fn entries_may_be_overwritten_and_the_state_counts_for_the_term() {
    let mut log = Log::begin();
    for index in 1..=10 {
        log.entry(2, index, 10);
    }
    log.state(2, 7, 6);
    log.entry(3, 8, 10);
    let facts = read_one(&log).unwrap();
    assert_eq!((facts.term, facts.index, facts.commit, facts.entries), (3, 8, 6, 11));
    log.state(5, 0, 6);
    let facts = read_one(&log).unwrap();
    assert_eq!((facts.term, facts.index, facts.vote), (5, 8, 0));
}

#[test]
fn a_snapshot_counts_when_it_is_committed() {
    let mut log = Log::begin();
    log.entry(1, 1, 10);
    log.state(1, 7, 1);
    // Received from the leader: the record comes first, the state that commits it follows.
    log.snapshot(4, 500);
    let facts = read_one(&log).unwrap();
    assert_eq!((facts.term, facts.index, facts.snapshot), (1, 1, None));
    log.state(4, 0, 500);
    let facts = read_one(&log).unwrap();
    assert_eq!((facts.term, facts.index), (4, 500));
    log.entry(4, 501, 10);
    assert_eq!(read_one(&log).unwrap().index, 501);
    let offset = here(&log);
    log.entry(4, 503, 10);
    assert!(matches!(
        read_one(&log),
        Err(Error::Damaged { offset: at, damage: Damage::Gap { found: 503, last: 501 }, .. }) if at == offset
    ));
}

#[test]
fn many_snapshot_records_do_not_grow_memory() {
    let mut log = Log::begin();
    for index in 1..=5000 {
        log.snapshot(1, index);
    }
    log.state(1, 0, 5000);
    assert_eq!(read_one(&log).unwrap().index, 5000);
}

#[test]
fn segments_go_on_and_old_ones_may_be_released() {
    let mut one = Log::begin();
    for index in 1..=5 {
        one.entry(1, index, 700);
    }
    let mut two = one.cut();
    two.state(1, 7, 5);
    two.entry(1, 6, 700);
    let mut three = two.cut();
    three.entry(1, 7, 700);
    three.preallocate(8192);
    let (a, b, c) = (name(0, 0), name(1, 6), name(2, 7));
    let all = read_logs(&[(&a, &one.bytes), (&b, &two.bytes), (&c, &three.bytes)]).unwrap().unwrap();
    assert_eq!((all.segments, all.index, all.commit, all.entries), (3, 7, 5, 7));
    let released = read_logs(&[(&b, &two.bytes), (&c, &three.bytes)]).unwrap().unwrap();
    assert_eq!((released.segments, released.index, released.term), (2, 7, 1));
    assert!(matches!(
        read_logs(&[(&a, &one.bytes), (&c, &three.bytes)]),
        Err(Error::MissingSegment { missing: 1, .. })
    ));

    // A segment of another log does not fit.
    let mut other = Log::begin();
    other.entry(1, 6, 3);
    let error = read_logs(&[(&a, &one.bytes), (&b, &other.cut().bytes)]).unwrap_err();
    assert!(matches!(&error, Error::Damaged { offset: 0, damage: Damage::Checksum { .. }, .. }), "{error}");
    let mut foreign = Log { bytes: Vec::new(), crc: one.crc };
    foreign.crc_record();
    foreign.metadata(8, 9);
    let error = read_logs(&[(&a, &one.bytes), (&b, &foreign.bytes)]).unwrap_err();
    assert!(error.to_string().contains("belongs to member 8, the log began with member 7"), "{error}");

    // A torn end is only normal in the last segment.
    let torn = &one.bytes[..one.bytes.len() - 100];
    assert!(read_logs(&[(&a, torn)]).unwrap().unwrap().torn);
    let error = read_logs(&[(&a, torn), (&b, &two.bytes)]).unwrap_err();
    assert!(matches!(&error, Error::Damaged { damage: Damage::Length { .. }, .. }), "{error}");
}

#[test]
fn a_torn_last_record_does_not_count() {
    let mut log = Log::begin();
    log.entry(1, 1, 10);
    let whole = log.clone();
    log.entry(2, 2, 3000);
    for length in whole.bytes.len()..log.bytes.len() {
        let cut = Log { bytes: log.bytes[..length].to_vec(), crc: 0 };
        let facts = read_one(&cut).unwrap();
        assert_eq!((facts.term, facts.index), (1, 1), "{length}");
    }
    // Preallocated: a sector that was never written is zero.
    let mut cut = log.clone();
    let from = (whole.bytes.len() / 512 + 2) * 512;
    cut.bytes[from..from + 512].fill(0);
    cut.preallocate(64 * 1024);
    let facts = read_one(&cut).unwrap();
    assert_eq!((facts.index, facts.torn), (1, true));
    // As for etcd, what follows a torn record was never acknowledged.
    log.entry(2, 3, 100);
    let mut cut = log.clone();
    cut.bytes[from..from + 512].fill(0);
    assert_eq!(read_one(&cut).unwrap().index, 1);
    assert_eq!(read_one(&log).unwrap().index, 3);
}

#[test]
fn a_changed_byte_in_the_middle_is_named() {
    let mut log = Log::begin();
    log.entry(1, 1, 10);
    let offset = here(&log);
    log.entry(1, 2, 1000);
    log.entry(1, 3, 10);
    log.preallocate(16 * 1024);
    log.bytes[usize::try_from(offset).unwrap() + 400] ^= 1;
    let error = read_one(&log).unwrap_err();
    assert!(
        matches!(&error, Error::Damaged { offset: at, damage: Damage::Checksum { .. }, .. } if *at == offset)
    );
    assert!(error.to_string().contains(&format!("{} is damaged at offset {offset}", name(0, 0))), "{error}");
}

#[test]
fn an_interrupted_making_is_not_a_log() {
    for log in [Log::default(), Log { bytes: vec![0; 4096], crc: 0 }] {
        assert!(matches!(read_one(&log), Err(Error::NoMetadata { .. })));
    }
    let mut log = Log::default();
    log.crc_record();
    assert!(matches!(read_one(&log), Err(Error::NoMetadata { .. })));
}

#[test]
fn unknown_records_and_fields_are_damage() {
    let mut log = Log::begin();
    log.record(6, b"x");
    log.entry(1, 1, 1);
    assert!(matches!(read_one(&log), Err(Error::Damaged { damage: Damage::Malformed(_), .. })));
    let mut log = Log::begin();
    log.record(2, &fields(&[(2, 1)]));
    assert!(matches!(read_one(&log), Err(Error::Damaged { damage: Damage::Malformed(_), .. })));
    let mut log = Log::begin();
    // A length that no file has.
    log.bytes.extend([0xff; 7]);
    log.bytes.push(0x7f);
    log.bytes.extend([0xff; 64]);
    assert!(read_one(&log).unwrap().torn);
}

fn sample() -> Log {
    let mut log = Log::begin();
    log.snapshot(0, 0);
    for index in 1..=20 {
        log.entry(1 + index / 8, index, usize::try_from(index * 37 % 900).unwrap());
        log.state(1 + index / 8, 7, index - 1);
    }
    log.snapshot(3, 19);
    log
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Cut anywhere, the log is a shorter log: never damage, never more than was written.
    #[test]
    fn a_truncated_log_is_a_shorter_one(keep in 0usize..12_000, tail in 0usize..2) {
        let whole = sample();
        let facts = read_one(&whole).unwrap();
        let mut cut = whole.clone();
        cut.bytes.truncate(keep);
        if tail == 1 && keep < whole.bytes.len() {
            cut.preallocate(keep + 2048);
        }
        match read_one(&cut) {
            Ok(found) => {
                prop_assert!(found.index <= facts.index && found.term <= facts.term);
                prop_assert_eq!((found.member_id, found.cluster_id), (7, 9));
            }
            Err(Error::NoMetadata { .. }) => {}
            // A cut inside one sector leaves a record that is neither whole nor blank; etcd refuses it as well.
            Err(error) => prop_assert!(tail == 1, "{}", error),
        }
    }

    /// A flipped bit never makes the log longer, and never another member's.
    #[test]
    fn a_flipped_bit_is_never_believed(at in 0usize..12_000, bit in 0u8..8) {
        let whole = sample();
        let facts = read_one(&whole).unwrap();
        let mut log = whole.clone();
        let at = at % log.bytes.len();
        log.bytes[at] ^= 1 << bit;
        if let Ok(found) = read_one(&log) {
            prop_assert!(found.index <= facts.index && found.term <= facts.term);
            prop_assert_eq!((found.member_id, found.cluster_id), (7, 9));
        }
    }

    /// Anything at all: an answer or an error, never a panic.
    #[test]
    fn noise_does_not_panic(noise in proptest::collection::vec(any::<u8>(), 0..2048), small in any::<bool>()) {
        let mut log = if small { Log::default() } else { Log::begin() };
        // Lengths that fit are the interesting ones.
        for piece in noise.chunks(64) {
            if piece.len() > 2 && piece[0] & 1 == 0 {
                log.frame(&piece[1..]);
            } else {
                log.bytes.extend(piece);
            }
        }
        let _ = read_one(&log);
        let _ = read_logs(&[(&name(4, 1), &log.bytes), (&name(5, 2), &log.bytes)]);
    }

    /// Records whose checksum is right and whose content is anything.
    #[test]
    fn checked_noise_does_not_panic(
        records in proptest::collection::vec((0u64..7, proptest::collection::vec(any::<u8>(), 0..600)), 0..20),
    ) {
        let mut log = Log::begin();
        for (kind, data) in &records {
            log.record(*kind, data);
        }
        let _ = read_one(&log);
    }
}
