//! The etcd adapter against real etcds with TLS, made from our own certificates and our own command line.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test: the first surprise ends it")]

use std::fmt::Write as _;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use quorate_link::etcd::client::{AlarmKind, MemberList};
use quorate_link::etcd::flags::{ClientTls, PeerTls, Start};
use quorate_link::etcd::{Error, EtcdClient, Flags, Minor, PeerPort, Refused, Unknown, peer_port};
use quorate_link::pki::{Leaf, Pair, Root, SitePki, peer_common_name};
use quorate_link::tls::{EtcdTls, crypto};
use tokio::process::{Child, Command};

const UID: &str = "6f0c8d1e-0000-4000-8000-000000000001";

/// A folder with the `etcd` of this minor, from the same place that everything here uses.
fn etcd(minor: Minor) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/stack/etcd.sh");
    let output = std::process::Command::new("bash").arg(script).arg(minor.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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

/// One site with its certificates, on this machine.
struct Site {
    folder: tempfile::TempDir,
    pki: SitePki,
    minor: Minor,
    program: PathBuf,
}

/// A member; killed when dropped.
struct Member {
    name: String,
    peer_url: String,
    endpoint: String,
    process: Child,
    client: EtcdClient,
    log: PathBuf,
}

impl Site {
    fn new(minor: Minor) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pki = SitePki::init(folder.path(), "east", "quorate.test").unwrap();
        std::fs::write(folder.path().join("clients.crt"), pki.client_bundle(&["east"]).unwrap()).unwrap();
        Self { folder, pki, minor, program: etcd(minor) }
    }

    fn pair(&self, name: &str, leaf: &Leaf) -> Pair {
        let pair = Pair::at(&self.folder.path().join("leaves"), name);
        self.pki.ensure(leaf, &pair).unwrap();
        pair
    }

    /// What the agent uses on client ports.
    fn client_tls(&self) -> EtcdTls {
        EtcdTls::load(self.pki.root_path(Root::Client), self.pair("agent-client", &Leaf::AgentEtcdClient))
            .unwrap()
    }

    /// What the agent uses on peer ports.
    fn probe_tls(&self) -> EtcdTls {
        let leaf = Leaf::Probe { uid: UID.into() };
        EtcdTls::load(self.pki.trust().peer_path("east"), self.pair("probe", &leaf)).unwrap()
    }

    async fn start(&self, slot: &str, peer_url: &str, start: Start) -> Member {
        let name = format!("{slot}-0a1b2c3d");
        let peer_port = peer_url.rsplit(':').next().unwrap();
        let endpoint = format!("https://127.0.0.1:{}", free_port());
        let uid = || UID.to_owned();
        let flags = Flags {
            minor: self.minor,
            name: name.clone(),
            data_dir: self.folder.path().join(slot),
            start,
            token: format!("{UID}/1"),
            peer_url: peer_url.into(),
            listen_peer: vec![format!("https://127.0.0.1:{peer_port}")],
            client_urls: vec![endpoint.clone()],
            listen_client: vec![endpoint.clone()],
            listen_metrics: Some(format!("http://127.0.0.1:{}", free_port())),
            peer_tls: PeerTls {
                server: self.pair(
                    &format!("{slot}-peer-server"),
                    &Leaf::PeerServer { uid: uid(), hosts: vec!["localhost".into()] },
                ),
                client: self.pair(
                    &format!("{slot}-peer-client"),
                    &Leaf::PeerClient { uid: uid(), slot: slot.into() },
                ),
                trusted: self.pki.trust().peer_path("east"),
                common_name: Some(peer_common_name(UID)),
            },
            client_tls: ClientTls {
                server: self.pair(
                    &format!("{slot}-server"),
                    &Leaf::EtcdServer {
                        hosts: vec!["localhost".into()],
                        addresses: vec!["127.0.0.1".parse().unwrap()],
                    },
                ),
                trusted: self.folder.path().join("clients.crt"),
            },
            heartbeat_ms: 100,
            election_ms: 1000,
            quota_bytes: Some(400_000),
            auto_compaction: Some(quorate_link::etcd::flags::AutoCompaction::Periodic(Duration::from_mins(
                5,
            ))),
            snapshot_catchup_entries: Some(5_000),
            watch_progress: Some(Duration::from_secs(5)),
            extensive_metrics: true,
            log_level: "info".into(),
            extra: vec!["--max-request-bytes=2000000".into()],
        };
        let log = self.folder.path().join(format!("{slot}.log"));
        let process = Command::new(&self.program)
            .args(flags.render().unwrap())
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let client = EtcdClient::connect(&endpoint, &self.client_tls()).await.unwrap();
        let mut member = Member { name, peer_url: peer_url.into(), endpoint, process, client, log };
        member.wait_for("a leader", async |client| client.status().await.is_ok_and(|s| s.leader != 0)).await;
        member
    }
}

impl Member {
    async fn wait_for(&mut self, what: &str, good: impl AsyncFn(&EtcdClient) -> bool) {
        for _ in 0..150 {
            if good(&self.client).await {
                return;
            }
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "etcd ended: {}", self.tail());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("waited in vain for {what}: {}", self.tail());
    }

    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].iter().fold(String::new(), |mut tail, line| {
            writeln!(tail, "{line}").unwrap();
            tail
        })
    }

    fn port(&self, tls: EtcdTls) -> PeerPort {
        PeerPort::new(&self.peer_url, tls).unwrap()
    }
}

fn peer_url() -> String {
    format!("https://localhost:{}", free_port())
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, expected: Refused) {
    match result {
        Err(error) => assert_eq!(error.refused(), Some(expected), "{error}"),
        Ok(value) => panic!("expected {expected:?}, got {value:?}"),
    }
}

fn ids(list: &MemberList) -> Vec<(u64, bool)> {
    list.members.iter().map(|member| (member.id, member.is_learner)).collect()
}

/// Waits until etcd has done what it does by itself after a start, such as settling the cluster version.
async fn settle(member: &mut Member, port: &PeerPort) {
    for _ in 0..100 {
        let decided = port.probe().await.is_ok_and(|probe| probe.cluster_version != "not_decided");
        let before = member.client.status().await.unwrap().raft_index;
        tokio::time::sleep(Duration::from_millis(300)).await;
        if decided && member.client.status().await.unwrap().raft_index == before {
            return;
        }
    }
    panic!("etcd does not settle: {}", member.tail());
}

/// One member of each minor: the command line is taken, and what reads and writes works.
async fn one_member(minor: Minor) {
    let site = Site::new(minor);
    let mut member = site.start("main-east-0", &peer_url(), Start::Seed).await;
    let port = member.port(site.probe_tls());
    settle(&mut member, &port).await;
    let client = member.client.clone();

    let status = client.status().await.unwrap();
    assert!(status.version.starts_with(&minor.to_string()), "{}", status.version);
    assert_eq!((status.leader, status.is_learner), (status.header.member_id, false));
    assert!(status.errors.is_empty() && status.applied_index <= status.raft_index);
    for linearizable in [false, true] {
        let list = client.member_list(linearizable).await.unwrap();
        assert_eq!(list.header.cluster_id, status.header.cluster_id);
        assert_eq!(ids(&list), [(status.header.member_id, false)]);
        assert_eq!(list.members[0].peer_urls, [member.peer_url.as_str()]);
        assert_eq!(list.members[0].client_urls, [member.endpoint.as_str()]);
        assert_eq!(list.members[0].name, member.name);
    }

    // The canary goes through raft and changes nothing.
    let before = client.status().await.unwrap();
    let header = client.canary().await.unwrap();
    let after = client.status().await.unwrap();
    assert_eq!(after.raft_index, before.raft_index + 1);
    assert_eq!((after.header.revision, header.revision), (before.header.revision, before.header.revision));

    let first = client.put("a", "1").await.unwrap();
    let second = client.put("b", "2").await.unwrap();
    assert_eq!(second, first + 1);
    assert_eq!((client.count_at(first).await.unwrap(), client.count_at(0).await.unwrap()), (1, 2));
    for linearizable in [false, true] {
        let found = client.get("b", linearizable).await.unwrap().unwrap();
        assert_eq!((found.value.as_slice(), found.mod_revision), (b"2".as_slice(), second));
        assert_eq!(client.get("c", linearizable).await.unwrap(), None);
    }
    refused(client.count_at(second + 10).await, Refused::FutureRevision);
    refused(client.hash_kv(second + 10).await, Refused::FutureRevision);

    // The peer port says the same as the client port.
    let probe = port.probe().await.unwrap();
    assert_eq!(probe.cluster_id, status.header.cluster_id);
    assert_eq!(probe.members, client.member_list(true).await.unwrap().members);
    assert_eq!(probe.server_version, status.version);
    assert!(
        probe.rtt > Duration::ZERO && probe.rtt < Duration::from_secs(1) && probe.local.ip().is_loopback()
    );
    let hash = client.hash_kv(second).await.unwrap();
    let peer = port.hash_kv(second, Some(probe.cluster_id)).await.unwrap();
    assert_eq!(
        (peer.hash, peer.compact_revision, peer.hash_revision),
        (hash.hash, hash.compact_revision, hash.hash_revision)
    );
    assert_eq!((peer.cluster_id, peer.revision), (probe.cluster_id, second));
    assert_eq!(hash.hash_revision, if minor == Minor::V3_5 { 0 } else { second });
    assert_ne!(client.hash_kv(first).await.unwrap().hash, hash.hash);
    let error = port.hash_kv(second, Some(1)).await.unwrap_err();
    assert!(matches!(error, peer_port::Error::OtherCluster), "{error}");
    let error = port.hash_kv(second + 10, None).await.unwrap_err();
    assert!(matches!(error, peer_port::Error::FutureRevision), "{error}");

    // A full database: writes are refused, membership is not.
    assert_eq!(client.alarms().await.unwrap(), []);
    let mut full = Ok(0);
    for _ in 0..20 {
        full = client.put("x", vec![7; 300_000]).await;
        if full.is_err() {
            break;
        }
        // The size is that of the last commit to the file, ten times a second.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    refused(full, Refused::NoSpace);
    let alarms = client.alarms().await.unwrap();
    assert_eq!(
        (alarms.len(), alarms[0].member_id, alarms[0].kind),
        (1, status.header.member_id, AlarmKind::NoSpace)
    );
    assert!(!client.status().await.unwrap().errors.is_empty());
    client.member_add_learner(&peer_url()).await.unwrap();
}

#[tokio::test]
async fn etcd_3_5_with_one_member() {
    Box::pin(one_member(Minor::V3_5)).await;
}

#[tokio::test]
async fn etcd_3_6_with_one_member() {
    Box::pin(one_member(Minor::V3_6)).await;
}

#[tokio::test]
async fn etcd_3_7_with_one_member() {
    Box::pin(one_member(Minor::V3_7)).await;
}

#[tokio::test]
async fn etcd_members_come_and_go() {
    let site = Site::new(Minor::V3_6);
    let a = site.start("main-east-0", &peer_url(), Start::Seed).await;
    let b_url = peer_url();
    let (b_id, list) = a.client.member_add_learner(&b_url).await.unwrap();
    let added = list.members.iter().find(|member| member.id == b_id).unwrap();
    assert_eq!((added.name.as_str(), added.is_learner), ("", true));
    refusals(&a, b_id, &b_url).await;

    // The list of the answer is what the joiner needs; it names itself.
    let members =
        vec![(a.name.clone(), a.peer_url.clone()), ("main-east-1-0a1b2c3d".to_owned(), b_url.clone())];
    let revision = a.client.put("a", "1").await.unwrap();
    let mut b = site.start("main-east-1", &b_url, Start::Join { members }).await;
    b.wait_for("the data", async |client| client.get("a", false).await.is_ok_and(|found| found.is_some()))
        .await;
    Box::pin(learner(&site, &a, &b, b_id, revision)).await;

    let list = loop {
        match a.client.member_promote(b_id).await {
            Ok(list) => break list,
            Err(error) => assert_eq!(error.refused(), Some(Refused::LearnerNotReady), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(ids(&list).contains(&(b_id, false)));
    // Only just connected: the normal refusal for five seconds after each change. A slow machine may be past them.
    match a.client.member_add_learner(&peer_url()).await {
        Ok((id, _)) => assert_eq!(a.client.member_remove(id).await.unwrap().members.len(), 2),
        Err(error) => assert_eq!(error.refused(), Some(Refused::UnhealthyCluster), "{error}"),
    }
    assert_eq!(a.client.member_update(b_id, &b_url).await.unwrap().members.len(), 2);

    let a_id = a.client.status().await.unwrap().header.member_id;
    a.client.move_leader(b_id).await.unwrap();
    assert_eq!(a.client.status().await.unwrap().leader, b_id);
    refused(a.client.move_leader(a_id).await, Refused::NotLeader);
    a.client.put("a", "3").await.unwrap();
    b.process.kill().await.unwrap();
    Box::pin(without_quorum(&site, &a, &b, b_id)).await;
}

async fn refusals(a: &Member, b_id: u64, b_url: &str) {
    let a_id = a.client.status().await.unwrap().header.member_id;
    // The id is made from the URLs and the second: at once it is the id that exists, later the URL.
    let again = a.client.member_add_learner(b_url).await.unwrap_err().refused();
    assert!(matches!(again, Some(Refused::MemberIdExists | Refused::PeerUrlExists)), "{again:?}");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    refused(a.client.member_add_learner(b_url).await, Refused::PeerUrlExists);
    refused(a.client.member_add_learner(&peer_url()).await, Refused::TooManyLearners);
    refused(a.client.member_add_learner("ftp://localhost:1").await, Refused::InvalidUrls);
    refused(a.client.member_promote(4711).await, Refused::MemberNotFound);
    refused(a.client.member_remove(4711).await, Refused::MemberNotFound);
    refused(a.client.member_update(4711, &peer_url()).await, Refused::MemberNotFound);
    refused(a.client.member_promote(a_id).await, Refused::NotALearner);
    refused(a.client.member_promote(b_id).await, Refused::LearnerNotReady);
    refused(a.client.move_leader(4711).await, Refused::BadTransferee);
    refused(a.client.move_leader(b_id).await, Refused::BadTransferee);
}

async fn learner(site: &Site, a: &Member, b: &Member, b_id: u64, revision: i64) {
    assert!(b.client.status().await.unwrap().is_learner);
    refused(b.client.get("a", true).await, Refused::LearnerRpc);
    refused(b.client.put("a", "2").await, Refused::LearnerRpc);
    refused(b.client.canary().await, Refused::LearnerRpc);
    refused(b.client.hash_kv(revision).await, Refused::LearnerRpc);
    refused(b.client.member_list(true).await, Refused::LearnerRpc);
    assert_eq!(b.client.count_at(revision).await.unwrap(), 1);
    let hash = b.port(site.probe_tls()).hash_kv(revision, None).await.unwrap();
    assert_eq!(
        hash.hash,
        a.client.hash_kv(revision).await.unwrap().hash,
        "the peer port answers for a learner"
    );
    let probe = b.port(site.probe_tls()).probe().await.unwrap();
    let learners: Vec<_> = probe.members.iter().filter(|member| member.is_learner).map(|m| m.id).collect();
    assert_eq!(learners, [b_id]);
}

/// Local answers go on, everything else is unknown, never "refused".
async fn without_quorum(site: &Site, a: &Member, b: &Member, b_id: u64) {
    let hasty = a.client.with_deadline(Duration::from_secs(2));
    let list = hasty.member_list(false).await.unwrap();
    assert_eq!(list.members.len(), 2, "answered locally");
    assert_eq!(hasty.get("a", false).await.unwrap().unwrap().value, b"3");
    for error in [
        hasty.member_list(true).await.unwrap_err(),
        hasty.put("a", "4").await.unwrap_err(),
        hasty.canary().await.unwrap_err(),
        hasty.get("a", true).await.unwrap_err(),
        hasty.member_remove(b_id).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unknown { cause: Unknown::Deadline, .. }), "{error}");
    }
    let error = a.client.put("a", "5").await.unwrap_err();
    assert!(
        matches!(error, Error::Unknown { cause: Unknown::ServerTimeout | Unknown::Leader, .. }),
        "{error}"
    );
    let error = b.client.status().await.unwrap_err();
    assert!(!matches!(error, Error::Refused { .. }), "{error}");
    let error = b.client.status().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    let error = b.port(site.probe_tls()).probe().await.unwrap_err();
    assert!(matches!(error, peer_port::Error::Dial(_)), "{error}");
}

#[tokio::test]
async fn etcd_refuses_strangers() {
    let site = Site::new(Minor::V3_6);
    let member = site.start("main-east-0", &peer_url(), Start::Seed).await;
    let stranger = Site::new(Minor::V3_6);

    // Their client certificate on our ports, with our roots to trust.
    let leaf = stranger.pair("agent-client", &Leaf::AgentEtcdClient);
    let tls = EtcdTls::load(site.pki.root_path(Root::Client), leaf).unwrap();
    let client = EtcdClient::connect(&member.endpoint, &tls).await.unwrap();
    let error = client.put("a", "1").await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. } | Error::Unreachable { .. }), "{error}");
    let leaf = stranger.pair("probe", &Leaf::Probe { uid: UID.into() });
    let tls = EtcdTls::load(site.pki.trust().peer_path("east"), leaf).unwrap();
    let error = member.port(tls).probe().await.unwrap_err();
    assert!(matches!(error, peer_port::Error::Connection(_)), "{error}");
    // The probe of another federation: the same root, another common name.
    let leaf = site.pair("other-probe", &Leaf::Probe { uid: "ffffffff-0000-4000-8000-000000000001".into() });
    let tls = EtcdTls::load(site.pki.trust().peer_path("east"), leaf).unwrap();
    let error = member.port(tls).probe().await.unwrap_err();
    assert!(matches!(error, peer_port::Error::Connection(_)), "{error}");

    // Their roots: we do not believe the member.
    let leaf = site.pair("agent-client", &Leaf::AgentEtcdClient);
    let tls = EtcdTls::load(stranger.pki.root_path(Root::Client), leaf).unwrap();
    let client = EtcdClient::connect(&member.endpoint, &tls).await.unwrap();
    let error = client.status().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    // Another name than the one in the certificate.
    let port = member.peer_url.rsplit(':').next().unwrap();
    let elsewhere = PeerPort::new(&format!("https://other.test:{port}"), site.probe_tls()).unwrap();
    let error = elsewhere.at(format!("127.0.0.1:{port}")).probe().await.unwrap_err();
    assert!(matches!(error, peer_port::Error::Dial(_)), "{error}");

    // A user of the site's client CA comes in; TLS 1.2 does not, nor does anything without TLS.
    let user = site.pair("user", &Leaf::User { name: "alice".into() });
    let tls = EtcdTls::load(site.pki.root_path(Root::Client), user).unwrap();
    let client = EtcdClient::connect(&member.endpoint, &tls).await.unwrap();
    client.put("a", "1").await.unwrap();
    let address = member.endpoint.strip_prefix("https://").unwrap();
    let error = tls12(address, &site.pki.root_path(Root::Client)).await;
    assert!(error.contains("ProtocolVersion"), "{error}");
    let error = tls12(&format!("127.0.0.1:{port}"), &site.pki.trust().peer_path("east")).await;
    assert!(error.contains("ProtocolVersion"), "{error}");
    for endpoint in
        [format!("http://{address}"), address.to_owned(), "https://".into(), "https://host".into()]
    {
        let error = EtcdClient::connect(&endpoint, &tls).await.unwrap_err();
        assert!(matches!(error, Error::Endpoint { .. }), "{error}");
    }
    for url in
        [format!("http://{address}"), address.to_owned(), "https://host".into(), "https://h:1/x".into()]
    {
        assert!(matches!(PeerPort::new(&url, site.probe_tls()), Err(peer_port::Error::Url { .. })), "{url}");
    }
}

/// What a client hears that offers nothing but TLS 1.2.
async fn tls12(address: &str, roots: &Path) -> String {
    let roots = quorate_link::tls::pem::roots(roots, &std::fs::read(roots).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap_err().to_string()
}
