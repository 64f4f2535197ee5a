//! The log of a real etcd, killed while it writes, against what that etcd said of itself.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use quorate_snapshot::wal;

/// Kills its process when it goes.
struct Etcd {
    child: Child,
    port: u16,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn binary(minor: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/stack/etcd.sh");
    let output = Command::new("bash").arg(script).arg(minor).output().unwrap();
    assert!(output.status.success(), "no etcd {minor}: {}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()).join("etcd")
}

fn free_port() -> u16 {
    // Below the range that outgoing connections take theirs from: a port from there can be gone before etcd binds it.
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    let base = u16::try_from(std::process::id() % 700).unwrap() * 16;
    let tries = std::iter::repeat_with(|| NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let mut ports = tries.map(|n| 20_000 + (base + n) % 12_000);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

impl Etcd {
    fn start(minor: &str, data: &Path) -> Self {
        let (port, peer) = (free_port(), free_port());
        let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
        let log = fs::File::create(data.with_extension("log")).unwrap();
        let child = Command::new(binary(minor))
            .args(["--name=one", "--data-dir"])
            .arg(data)
            .args([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")])
            .args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")])
            .arg(format!("--initial-cluster=one={peer}"))
            .arg("--snapshot-count=50")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let etcd = Self { child, port };
        for _ in 0..200 {
            if etcd
                .call("/v3/maintenance/status", "{}")
                .is_some_and(|status| number(&status, "leader").is_some())
            {
                return etcd;
            }
            #[expect(clippy::disallowed_methods, reason = "a test without a runtime")]
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("etcd {minor} did not start: {}", fs::read_to_string(data.with_extension("log")).unwrap());
    }

    /// A call of etcd's JSON gateway.
    fn call(&self, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    }

    fn put(&self, value: &str) {
        // "a2V5" is "key"; any text of that alphabet is a value.
        let answer = self.call("/v3/kv/put", &format!(r#"{{"key":"a2V5","value":"{value}"}}"#));
        assert!(answer.is_some(), "the put failed");
    }
}

fn number(json: &str, field: &str) -> Option<u64> {
    let (_, rest) = json.split_once(&format!("\"{field}\":\""))?;
    rest.split_once('"')?.0.parse().ok()
}

fn facts_are_those_of_etcd(minor: &str) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let log = data.join("member/wal");
    assert_eq!(wal::read(&log).unwrap(), None);

    let mut etcd = Etcd::start(minor, &data);
    for _ in 0..120 {
        etcd.put("dmFsdWU=");
    }
    // The log of a running etcd can be read as well.
    let running = wal::read(&log).unwrap().unwrap();
    // More than the 64 MB of a segment.
    let large = "QUJD".repeat(350_000);
    for _ in 0..70 {
        etcd.put(&large);
    }
    etcd.put("dmFsdWU=");
    let status = etcd.call("/v3/maintenance/status", "{}").unwrap();
    etcd.child.kill().unwrap();
    etcd.child.wait().unwrap();

    let facts = wal::read(&log).unwrap().unwrap();
    assert_eq!(Some(facts.cluster_id), number(&status, "cluster_id"), "{status}");
    assert_eq!(Some(facts.member_id), number(&status, "member_id"));
    assert_eq!(Some(facts.term), number(&status, "raftTerm"));
    assert_eq!(Some(facts.index), number(&status, "raftIndex"));
    assert!(facts.segments >= 2, "{facts:?}");
    assert!(facts.snapshot.is_some_and(|snapshot| snapshot.index > 50), "{facts:?}");
    assert!(running.index >= 120 && running.index < facts.index, "{running:?}");
    assert_eq!(running.member_id, facts.member_id);

    // The next life raises the term and goes on.
    let etcd = Etcd::start(minor, &data);
    etcd.put("dmFsdWU=");
    let status = etcd.call("/v3/maintenance/status", "{}").unwrap();
    drop(etcd);
    let next = wal::read(&log).unwrap().unwrap();
    assert!(next.term > facts.term && next.index > facts.index, "{next:?} after {facts:?}");
    assert_eq!(Some(next.term), number(&status, "raftTerm"));
    assert_eq!(Some(next.index), number(&status, "raftIndex"));
}

#[test]
fn etcd_3_5_log() {
    facts_are_those_of_etcd("3.5");
}

#[test]
fn etcd_3_6_log() {
    facts_are_those_of_etcd("3.6");
}

#[test]
fn etcd_3_7_log() {
    facts_are_those_of_etcd("3.7");
}
