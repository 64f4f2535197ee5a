//! Every outcome of the guard, with real files: documents on disk, and logs as etcd writes them.

use std::path::Path;

use quorate_core::federation::member::EtcdOptions;
use quorate_core::id::{
    Epoch, FederationKey, IncarnationId, ObjectName, PeerUrl, SiteName, Slot, Uid, ZoneName,
};
use quorate_core::reason::Code;
use tempfile::TempDir;

use super::*;
use crate::volume::{Fenced, OUTSIDE_MARK};

const ID: IncarnationId = IncarnationId(0xaaaa_aaaa << 96);
const CLUSTER: ClusterId = ClusterId(0xc0);
const MEMBER: MemberId = MemberId(0xe0);

struct Site {
    folder: TempDir,
    volume: Volume,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let volume = Volume::new(folder.path().join("volume"), folder.path().join("outside.json"));
        Self { folder, volume }
    }

    /// A seed or joiner that was granted, with the record that is written beside the grant.
    fn granted(kind: GrantKind) -> Self {
        let site = Self::new();
        let grant = grant(kind);
        site.volume.write_incarnation(&planned(&grant)).unwrap();
        site.volume.write_grant(&grant).unwrap();
        site
    }

    /// One that ran: state `Started` and ids known.
    fn started(kind: GrantKind) -> Self {
        let site = Self::granted(kind);
        site.record(|record| {
            record.state = IncarnationState::Started;
            record.cluster = Some(CLUSTER);
            record.member = Some(MEMBER);
        });
        site
    }

    fn record(&self, change: impl FnOnce(&mut Incarnation)) {
        let mut record = self.volume.incarnation().unwrap().unwrap();
        change(&mut record);
        self.volume.write_incarnation(&record).unwrap();
    }

    fn outside(&self, state: IncarnationState, term: u64, index: u64) {
        let mark = OutsideMark { incarnation: ID, state, mark: mark(term, index) };
        durable::write(&self.folder.path().join("outside.json"), OUTSIDE_MARK, &mark).unwrap();
    }

    fn log(&self, cluster: ClusterId, member: MemberId, term: u64, index: u64) {
        write_log(&self.volume.wal(), cluster.0, member.0, term, index);
    }

    fn check(&self) -> Verdict {
        check(&self.volume).unwrap().1
    }

    /// Permitted, and begun.
    fn start(&self) -> Permit {
        let Verdict::Start(permit) = self.check() else { panic!("not permitted") };
        permit.begin(&self.volume).unwrap();
        *permit
    }

    fn state(&self) -> IncarnationState {
        self.volume.incarnation().unwrap().unwrap().state
    }

    /// Refused, for ever: whatever comes later.
    fn assert_lost(&self) {
        let Verdict::Refuse(reason) = self.check() else { panic!("not refused") };
        assert_eq!(reason.code, Code::DataLost);
        assert_eq!(reason.site.as_ref().map(SiteName::as_str), Some("east"));
        assert_eq!(self.state(), IncarnationState::Lost);
        let _ = fs::remove_dir_all(self.volume.data());
        self.log(CLUSTER, MEMBER, 99, 9999);
        assert!(matches!(self.check(), Verdict::Refuse(_)), "the right directory came back too late");
    }
}

fn mark(term: u64, index: u64) -> Mark {
    Mark { term: Term(term), index: Index(index) }
}

fn slot() -> Slot {
    Slot { site: SiteName::new("east").unwrap(), ordinal: 0, zone: ZoneName::new("a").unwrap() }
}

fn grant(kind: GrantKind) -> Grant {
    let url = PeerUrl("https://main-east-0.east.quorate.test:2380".into());
    let joins = kind != GrantKind::Seed;
    Grant {
        federation: FederationKey {
            namespace: ObjectName::new("etcd").unwrap(),
            name: ObjectName::new("main").unwrap(),
        },
        uid: Uid(7),
        epoch: Epoch(1),
        slot: slot(),
        incarnation: ID,
        kind,
        cluster: joins.then_some(CLUSTER),
        member: joins.then_some(MEMBER),
        name: "main-east-0-aaaaaaaa".into(),
        peer_url: url.clone(),
        initial_cluster: vec![("main-east-0-aaaaaaaa".into(), url)],
        mark: Mark::default(),
        settings: EtcdOptions {
            version: "3.6".into(),
            heartbeat_ms: 100,
            election_ms: 1000,
            quota_bytes: 1 << 30,
            peer_ports: Vec::new(),
        },
    }
}

/// A log with one entry, as etcd frames it.
fn write_log(folder: &Path, cluster: u64, member: u64, term: u64, index: u64) {
    fn varint(mut value: u64, out: &mut Vec<u8>) {
        while value >= 0x80 {
            out.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        out.push(value.to_le_bytes()[0]);
    }
    fn fields(numbers: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        for (field, value) in (1..).zip(numbers) {
            out.push(field << 3);
            varint(*value, &mut out);
        }
        out
    }
    let mut bytes = vec![4, 0, 0, 0, 0, 0, 0, 0x84, 8, 4, 0x10, 0, 0, 0, 0, 0];
    let mut crc = 0;
    for (kind, data) in
        [(1, fields(&[member, cluster])), (2, fields(&[0, term, index])), (3, fields(&[term, member, index]))]
    {
        crc = crc32c::crc32c_append(crc, &data);
        let mut message = fields(&[kind, crc.into()]);
        message.push(0x1a);
        varint(data.len() as u64, &mut message);
        message.extend(data);
        let padding = (8 - message.len() % 8) % 8;
        let top = if padding == 0 { 0 } else { 0x80 | padding as u64 };
        bytes.extend((message.len() as u64 | top << 56).to_le_bytes());
        bytes.extend(message);
        bytes.resize(bytes.len() + padding, 0);
    }
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("0000000000000000-0000000000000000.wal"), bytes).unwrap();
}

fn awaits(verdict: &Verdict, code: Code) -> bool {
    matches!(verdict, Verdict::Await(reason) if reason.code == code)
}

#[test]
fn an_empty_volume_waits_for_a_grant() {
    let site = Site::new();
    assert!(awaits(&site.check(), Code::AwaitingGrant));
    fs::create_dir_all(site.volume.data()).unwrap();
    assert!(awaits(&site.check(), Code::AwaitingGrant));
}

#[test]
fn a_seed_is_new_once_and_started_is_durable_first() {
    let site = Site::granted(GrantKind::Seed);
    assert_eq!(site.state(), IncarnationState::Planned);
    assert_eq!(site.start().how, How::New);
    assert_eq!(site.state(), IncarnationState::Started);
    // Interrupted before the first write: nothing was served, so again.
    assert_eq!(site.start().how, How::New);
    // Interrupted after it: its log is continued.
    site.log(CLUSTER, MEMBER, 2, 4);
    assert!(awaits(&site.check(), Code::HighWaterMissing));
    site.outside(IncarnationState::Started, 0, 0);
    assert_eq!(site.start().how, How::Resume);
    // Seeded: never new again.
    site.record(|record| {
        record.cluster = Some(CLUSTER);
        record.member = Some(MEMBER);
    });
    assert_eq!(site.start().how, How::Resume);
    fs::remove_dir_all(site.volume.data()).unwrap();
    site.assert_lost();
}

#[test]
fn a_seed_that_the_outside_knows_as_a_voter_is_not_new_again() {
    let site = Site::granted(GrantKind::Seed);
    site.record(|record| record.state = IncarnationState::Started);
    site.outside(IncarnationState::Voter, 3, 30);
    site.assert_lost();
}

#[test]
fn the_rest_of_an_interrupted_seed_is_archived_and_not_deleted() {
    let site = Site::granted(GrantKind::Seed);
    assert_eq!(site.start().how, How::New);
    fs::create_dir_all(site.volume.wal()).unwrap();
    fs::write(site.volume.wal().join("0000000000000000-0000000000000000.wal"), [0; 4096]).unwrap();
    assert_eq!(site.start().how, How::New);
    assert!(!site.volume.data().exists());
    assert_eq!(site.volume.archived().unwrap(), [format!("unseeded-unknown-{ID}")]);
}

#[test]
fn a_joiner_starts_once_on_an_empty_directory() {
    let site = Site::granted(GrantKind::Join);
    assert_eq!(site.state(), IncarnationState::Added);
    let permit = site.start();
    assert_eq!((permit.how, permit.incarnation.member), (How::Join, Some(MEMBER)));
    // Its id may have voted: an empty directory is a lost one from now on.
    site.assert_lost();
}

#[test]
fn a_directory_that_matches_resumes_without_anybody() {
    let site = Site::started(GrantKind::Join);
    site.outside(IncarnationState::Started, 3, 100);
    site.record(|record| record.mark = mark(2, 120));
    site.log(CLUSTER, MEMBER, 3, 120);
    assert_eq!(site.start().how, How::Resume);
}

#[test]
fn a_directory_behind_any_mark_is_refused() {
    for (inside, outside, granted) in [
        (mark(3, 121), mark(0, 0), mark(0, 0)),
        (mark(4, 0), mark(0, 0), mark(0, 0)),
        (mark(0, 0), mark(3, 121), mark(0, 0)),
        (mark(0, 0), mark(0, 0), mark(4, 1)),
    ] {
        let site = Site::started(GrantKind::Join);
        site.record(|record| record.mark = inside);
        site.outside(IncarnationState::Voter, outside.term.0, outside.index.0);
        site.volume.write_grant(&Grant { mark: granted, ..grant(GrantKind::Join) }).unwrap();
        site.log(CLUSTER, MEMBER, 3, 120);
        site.assert_lost();
    }
}

#[test]
fn a_foreign_directory_is_refused() {
    for (cluster, member) in [(ClusterId(1), MEMBER), (CLUSTER, MemberId(1))] {
        let site = Site::started(GrantKind::Join);
        site.outside(IncarnationState::Started, 0, 0);
        site.log(cluster, member, 9, 900);
        site.assert_lost();
    }
    // A log although no start was ever permitted.
    let site = Site::granted(GrantKind::Join);
    site.log(CLUSTER, MEMBER, 9, 900);
    site.assert_lost();
}

#[test]
fn a_damaged_directory_is_refused_and_an_unreadable_one_waits() {
    let site = Site::started(GrantKind::Join);
    site.outside(IncarnationState::Started, 0, 0);
    site.log(CLUSTER, MEMBER, 9, 900);
    let segment = site.volume.wal().join("0000000000000000-0000000000000000.wal");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[30] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let (findings, verdict) = check(&site.volume).unwrap();
    assert!(
        matches!(&findings.dir, DirFacts::Unreadable(text) if text.contains("offset 16")),
        "{findings:?}"
    );
    assert!(matches!(verdict, Verdict::Refuse(_)));

    // A folder in the place of a file cannot be read: no evidence, so no verdict.
    let site = Site::started(GrantKind::Join);
    let segment = site.volume.wal().join("0000000000000000-0000000000000000.wal");
    fs::create_dir_all(&segment).unwrap();
    assert!(matches!(check(&site.volume), Err(Error::Log(_))));
    assert_eq!(site.state(), IncarnationState::Started);
}

#[test]
fn a_database_without_a_log_is_not_taken_over() {
    let site = Site::granted(GrantKind::Join);
    fs::create_dir_all(site.volume.data().join("member/snap")).unwrap();
    fs::write(site.volume.data().join("member/snap/db"), "x").unwrap();
    site.assert_lost();
}

#[test]
fn documents_that_are_gone_or_damaged_start_nothing() {
    // The record is gone, the grant is there: it binds nothing any more.
    let site = Site::started(GrantKind::Seed);
    fs::remove_file(site.volume.root().join("incarnation.json")).unwrap();
    assert!(awaits(&site.check(), Code::AwaitingGrant));
    site.log(CLUSTER, MEMBER, 9, 900);
    assert!(awaits(&site.check(), Code::DataLost));

    // The grant is gone.
    let site = Site::started(GrantKind::Join);
    site.log(CLUSTER, MEMBER, 9, 900);
    fs::remove_file(site.volume.root().join("desired.json")).unwrap();
    assert!(matches!(site.check(), Verdict::Refuse(_)));

    for file in ["incarnation.json", "desired.json", "../outside.json"] {
        let site = Site::started(GrantKind::Join);
        site.outside(IncarnationState::Started, 0, 0);
        site.log(CLUSTER, MEMBER, 9, 900);
        fs::write(site.volume.root().join(file), "{}").unwrap();
        assert!(matches!(check(&site.volume), Err(Error::Document(_))), "{file}");
    }
}

#[test]
fn a_fenced_incarnation_never_starts() {
    let site = Site::started(GrantKind::Join);
    site.outside(IncarnationState::Started, 0, 0);
    site.log(CLUSTER, MEMBER, 9, 900);
    site.volume.fence(Fenced { incarnation: ID, reason: "a test".into() }).unwrap();
    let (findings, verdict) = check(&site.volume).unwrap();
    assert!(findings.fenced);
    assert!(matches!(verdict, Verdict::Refuse(_)));
}

#[test]
fn a_removed_incarnation_leaves_a_free_slot() {
    let site = Site::started(GrantKind::Join);
    site.log(CLUSTER, MEMBER, 9, 900);
    site.record(|record| record.state = IncarnationState::Removed);
    assert!(matches!(site.check(), Verdict::Refuse(_)), "not archived yet");
    archive::archive(&site.volume, "removed", Some(MEMBER), ID).unwrap();
    assert!(awaits(&site.check(), Code::AwaitingGrant));
    let next = Grant { incarnation: IncarnationId(2), ..grant(GrantKind::Join) };
    site.volume.write_grant(&next).unwrap();
    let permit = site.start();
    assert_eq!((permit.how, permit.incarnation.id), (How::Join, IncarnationId(2)));
}
