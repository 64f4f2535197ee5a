//! A site with certificates, supervisors as processes, and an agent's eyes on them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use quorate_api::member::member_client::MemberClient;
use quorate_api::member::{FenceRequest, GrantRequest, HelloRequest, Report, StopRequest};
use quorate_core::federation::member::{
    EtcdOptions, Grant, GrantKind, IncarnationState, Mark, MemberReport, OutsideMark, Process,
};
use quorate_core::id::{
    ClusterId, Epoch, FederationKey, IncarnationId, MemberId, ObjectName, PeerUrl, SiteName, Slot, Uid,
    ZoneName,
};
use quorate_link::durable;
use quorate_link::etcd::EtcdClient;
use quorate_link::identity::Identity;
use quorate_link::pki::{Leaf, Pair, Root, SitePki};
use quorate_link::tls::{EtcdTls, Source, TlsStore, Trust};
use quorate_link::transport;
use quorate_member::options::{Certificates, FORMAT, Options, Ports};
use quorate_member::volume::{GRANT, OUTSIDE_MARK};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tonic::transport::Channel;

pub(crate) const DOMAIN: &str = "quorate.test";
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Generous: the machine may be busy with other tests.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Site {
    pub(crate) state: TempDir,
    pub(crate) pki: SitePki,
}

impl Site {
    pub(crate) fn new(name: &str) -> Self {
        let state = tempfile::tempdir().unwrap();
        let pki = SitePki::init(state.path(), name, DOMAIN).unwrap();
        Self { state, pki }
    }

    /// The agent of this site, believing the agent root of `other`.
    pub(crate) fn agent_store(&self, other: &Self) -> TlsStore {
        TlsStore::load(Source {
            trust_domain: DOMAIN.into(),
            leaf: self.pki.agent_pair(),
            trust: Trust::Site { site: other.pki.site().to_owned(), path: other.pki.root_path(Root::Agent) },
        })
        .unwrap()
    }
}

pub(crate) fn uid() -> Uid {
    Uid(0x6f0c_8d1e << 96 | 1)
}

fn etcd_dir(minor: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/stack/etcd.sh");
    let output = Command::new("bash").arg(script).arg(minor).output().unwrap();
    assert!(output.status.success(), "no etcd {minor}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

fn free_port() -> u16 {
    // Below the range that outgoing connections take theirs from: a port from there can be gone before etcd binds it.
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    let base = u16::try_from(std::process::id() % 700).unwrap() * 16;
    let tries = std::iter::repeat_with(|| NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let mut ports = tries.map(|n| 20_000 + (base + n) % 12_000);
    ports.find(|port| TcpListener::bind((HOST, *port)).is_ok()).unwrap()
}

/// One slot: its volume, its supervisor process, and what an agent does with it.
pub(crate) struct Member {
    pub(crate) options: Options,
    minor: &'static str,
    config: PathBuf,
    process: Option<Child>,
    agent: TlsStore,
    etcd_tls: EtcdTls,
}

impl Member {
    pub(crate) fn new(site: &Site, ordinal: u32) -> Self {
        Self::of(site, ordinal, "3.6")
    }

    /// With a minor of etcd.
    pub(crate) fn of(site: &Site, ordinal: u32, minor: &'static str) -> Self {
        let name = ObjectName::new("main").unwrap();
        let slot = Slot {
            site: SiteName::new(site.pki.site()).unwrap(),
            ordinal,
            zone: ZoneName::new("a").unwrap(),
        };
        let slot_name = slot.name(&name).to_string();
        let folder = site.state.path().join("federations/etcd.main");
        let volume = folder.join("members").join(&slot_name);
        let certificates = Certificates::in_folder(&volume.join("pki"));
        let ports = Ports {
            member: free_port(),
            http: free_port(),
            client: free_port(),
            peer: free_port(),
            metrics: free_port(),
        };
        let uid_text = uid().to_string();
        for (leaf, pair) in [
            (Leaf::MemberApi { uid: uid_text.clone(), slot: slot_name.clone() }, certificates.api()),
            (
                Leaf::PeerServer { uid: uid_text.clone(), hosts: vec!["localhost".into()] },
                certificates.peer(),
            ),
            (Leaf::PeerClient { uid: uid_text, slot: slot_name.clone() }, certificates.peer_client()),
            (
                Leaf::EtcdServer { hosts: vec!["localhost".into()], addresses: vec![HOST] },
                certificates.client(),
            ),
        ] {
            site.pki.ensure(&leaf, &pair).unwrap();
        }
        let own = [site.pki.site()];
        fs::write(&certificates.agent_roots, site.pki.roots().unwrap().agent).unwrap();
        fs::write(&certificates.peer_roots, site.pki.trust().peer_bundle(&own).unwrap()).unwrap();
        fs::write(&certificates.client_roots, site.pki.client_bundle(&own).unwrap()).unwrap();
        let agent_leaf = Pair::at(&volume.join("pki"), "agent-etcd");
        site.pki.ensure(&Leaf::AgentEtcdClient, &agent_leaf).unwrap();
        let etcd_tls = EtcdTls::load(site.pki.root_path(Root::Client), agent_leaf).unwrap();

        let options = Options {
            format: FORMAT.into(),
            federation: FederationKey { namespace: ObjectName::new("etcd").unwrap(), name },
            uid: uid(),
            slot,
            etcd_dir: etcd_dir(minor),
            bind: HOST,
            ports,
            peer_url: PeerUrl(format!("https://localhost:{}", ports.peer).into()),
            client_urls: vec![format!("https://localhost:{}", ports.client).into()],
            certificates,
            foreign_peers: false,
            trust_domain: DOMAIN.into(),
            outside_mark: folder.join("highwater").join(format!("{slot_name}.json")),
            log_level: "info".into(),
            volume: volume.clone(),
        };
        let config = volume.join("member.json");
        fs::write(&config, serde_json::to_vec_pretty(&options).unwrap()).unwrap();
        Self { options, minor, config, process: None, agent: site.agent_store(site), etcd_tls }
    }

    /// Starts the supervisor.
    pub(crate) fn start(&mut self) {
        assert!(self.process.is_none());
        let process = Command::new(std::env::current_exe().unwrap())
            .arg("member")
            .arg(&self.config)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(process);
    }

    /// Ends the supervisor and waits for it.
    pub(crate) fn end(&mut self, signal: Signal) -> std::process::ExitStatus {
        let mut process = self.process.take().unwrap();
        let pid = Pid::from_raw(process.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        process.wait().unwrap()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.options.volume.join("data")
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity::member(
            uid().to_string(),
            self.options.slot.site.to_string(),
            self.options.slot_name().to_string(),
        )
    }

    pub(crate) fn channel(&self, store: &TlsStore) -> Channel {
        let address = self.options.address(self.options.ports.member).to_string();
        transport::connect(&address, store, self.identity()).unwrap()
    }

    pub(crate) fn api(&self) -> MemberClient<Channel> {
        MemberClient::new(self.channel(&self.agent))
    }

    pub(crate) async fn hello(&self) -> Option<MemberReport> {
        self.api().hello(HelloRequest {}).await.ok().map(|report| read(&report.into_inner()))
    }

    pub(crate) async fn grant(&self, grant: &Grant) -> Result<MemberReport, tonic::Status> {
        let body = serde_json::to_vec(grant).unwrap();
        let request = GrantRequest { format: GRANT.into(), body };
        self.api().grant(request).await.map(|report| read(&report.into_inner()))
    }

    pub(crate) async fn stop(&self, id: IncarnationId, archive: &str) -> Result<MemberReport, tonic::Status> {
        let request = StopRequest { incarnation: id.to_string(), archive: archive.into() };
        self.api().stop(request).await.map(|report| read(&report.into_inner()))
    }

    pub(crate) async fn fence(&self, id: IncarnationId) -> Result<MemberReport, tonic::Status> {
        let request = FenceRequest { incarnation: id.to_string(), reason: "a test".into() };
        self.api().fence(request).await.map(|report| read(&report.into_inner()))
    }

    /// Waits for a report.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&MemberReport) -> bool) -> MemberReport {
        let mut last = None;
        for _ in 0..PATIENCE.as_millis() / 50 {
            last = self.hello().await;
            if let Some(report) = last.as_ref().filter(|report| wanted(report)) {
                return report.clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let log = fs::read_to_string(self.options.volume.join("etcd.log")).unwrap_or_default();
        let from = log.len().saturating_sub(4000);
        panic!("not {what} in time: {last:?}\n{}", log.get(from..).unwrap_or_default());
    }

    pub(crate) async fn until_running(&self) -> MemberReport {
        self.until("running", |report| {
            report.process == Process::Running
                && report.incarnation.as_ref().is_some_and(|i| i.cluster.is_some())
        })
        .await
    }

    pub(crate) async fn etcd(&self) -> EtcdClient {
        EtcdClient::connect(&self.options.client_urls[0], &self.etcd_tls).await.unwrap()
    }

    /// What the agent writes outside the volume.
    pub(crate) fn outside(&self, incarnation: IncarnationId, state: IncarnationState, mark: Mark) {
        let mark = OutsideMark { incarnation, state, mark };
        durable::write(&self.options.outside_mark, OUTSIDE_MARK, &mark).unwrap();
    }

    fn grant_of(&self, kind: GrantKind, id: IncarnationId) -> Grant {
        let name: smol_str::SmolStr = format!("{}-{}", self.options.slot_name(), id.short()).into();
        let url = self.options.peer_url.clone();
        Grant {
            federation: self.options.federation.clone(),
            uid: uid(),
            epoch: Epoch(1),
            slot: self.options.slot.clone(),
            incarnation: id,
            kind,
            cluster: None,
            member: None,
            name: name.clone(),
            peer_url: url.clone(),
            initial_cluster: vec![(name, url)],
            mark: Mark::default(),
            settings: EtcdOptions {
                version: self.minor.into(),
                heartbeat_ms: 100,
                election_ms: 1000,
                quota_bytes: 64 << 20,
                peer_ports: Vec::new(),
            },
        }
    }

    pub(crate) fn seed(&self, id: IncarnationId) -> Grant {
        self.grant_of(GrantKind::Seed, id)
    }

    pub(crate) fn resume(&self, id: IncarnationId) -> Grant {
        self.grant_of(GrantKind::Resume, id)
    }

    pub(crate) fn join(
        &self,
        id: IncarnationId,
        cluster: ClusterId,
        member: MemberId,
        seed: &Grant,
    ) -> Grant {
        let mut grant = self.grant_of(GrantKind::Join, id);
        grant.initial_cluster.extend(seed.initial_cluster.iter().cloned());
        grant.cluster = Some(cluster);
        grant.member = Some(member);
        grant
    }

    /// A running seed with its mark outside, as an agent makes it.
    pub(crate) async fn start_seed(&mut self, id: IncarnationId) -> MemberReport {
        self.outside(id, IncarnationState::Planned, Mark::default());
        self.start();
        self.until("awaiting a grant", |report| report.process == Process::AwaitingGrant).await;
        self.grant(&self.seed(id)).await.unwrap();
        self.until_running().await
    }

    /// The answer of the supervisor's own HTTP port.
    pub(crate) async fn http(&self, path: &str) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let address = self.options.address(self.options.ports.http);
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

pub(crate) fn read(report: &Report) -> MemberReport {
    assert_eq!(report.format, quorate_member::api::REPORT);
    serde_json::from_slice(&report.body).unwrap()
}

pub(crate) fn kill(pid: u32) {
    rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

/// Whether a process runs (a zombie does not).
pub(crate) fn runs(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub(crate) fn arguments(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().replace('\0', " ")
}

pub(crate) async fn gone(pid: u32) {
    for _ in 0..200 {
        if !runs(pid) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("process {pid} still runs");
}

pub(crate) fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}
