//! The yardstick: three plain etcd processes with the same binary, timers and TLS, and nothing of ours around them.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_link::clock::Clock;
use quorate_link::etcd::EtcdClient;
use quorate_link::pki::{Leaf, Pair, Root, SitePki};
use quorate_link::tls::EtcdTls;

use super::mesh::{CLIENT_PORT, TRUST_DOMAIN, free};
use super::process::{Kind, Process, Run, log_file};

const PEER_PORT: u16 = 2380;
const MEMBERS: u8 = 3;

/// The timers of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timers {
    /// `--heartbeat-interval`.
    pub heartbeat: String,
    /// `--election-timeout`.
    pub election: String,
}

impl Timers {
    /// Those of an etcd that runs; what is not on its command line is etcd's default.
    pub fn of(etcd: &Process) -> Self {
        let value = |name, default: &str| etcd.flag(name).unwrap_or(default).to_owned();
        Self { heartbeat: value("heartbeat-interval", "100"), election: value("election-timeout", "1000") }
    }
}

/// A cluster of three.
pub struct Bare {
    folder: PathBuf,
    etcd: PathBuf,
    network: u8,
    pki: SitePki,
    timers: Timers,
}

fn name(number: u8) -> String {
    format!("bare-{number}")
}

impl Bare {
    /// Starts it in `run`, at `127.<network>.11.1` and the two after it.
    pub fn start(run: &Run, etcd: PathBuf, network: u8, timers: Timers) -> Result<Self> {
        let folder = run.folder().join("bare");
        std::fs::create_dir_all(&folder)?;
        let pki = SitePki::init(&folder, "bare", TRUST_DOMAIN)?;
        let bare = Self { folder, etcd, network, pki, timers };
        for number in 1..=MEMBERS {
            free(bare.address(number), &[CLIENT_PORT, PEER_PORT])?;
            // 127.0.0.1 is where connections over loopback come from, and etcd compares that with the certificate.
            let addresses = vec![bare.address(number).into(), Ipv4Addr::LOCALHOST.into()];
            let leaf = Leaf::EtcdServer { hosts: vec![name(number)], addresses };
            bare.pki.ensure(&leaf, &bare.pair(number))?;
        }
        for number in 1..=MEMBERS {
            bare.spawn(run, number)?;
        }
        Ok(bare)
    }

    fn address(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.network, 10 + number, 1)
    }

    fn pair(&self, number: u8) -> Pair {
        Pair::at(&self.folder, &name(number))
    }

    /// Starts one member, for the first time or again.
    pub fn spawn(&self, run: &Run, number: u8) -> Result<()> {
        let own = name(number);
        let url = |number, port| format!("https://{}:{port}", self.address(number));
        let cluster: Vec<String> =
            (1..=MEMBERS).map(|other| format!("{}={}", name(other), url(other, PEER_PORT))).collect();
        let Pair { cert, key } = self.pair(number);
        let (client, peer) = (url(number, CLIENT_PORT), url(number, PEER_PORT));
        let (cert, key) = (cert.display().to_string(), key.display().to_string());
        let root = self.pki.root_path(Root::Client).display().to_string();
        let data = self.folder.join(&own).display().to_string();
        let flags = [
            ("name", own.as_str()),
            ("data-dir", &data),
            ("initial-cluster", &cluster.join(",")),
            ("initial-cluster-state", "new"),
            ("initial-cluster-token", "bare"),
            ("listen-client-urls", &client),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("cert-file", &cert),
            ("key-file", &key),
            ("trusted-ca-file", &root),
            ("client-cert-auth", "true"),
            ("peer-cert-file", &cert),
            ("peer-key-file", &key),
            ("peer-trusted-ca-file", &root),
            ("peer-client-cert-auth", "true"),
            ("tls-min-version", "TLS1.3"),
            ("heartbeat-interval", &self.timers.heartbeat),
            ("election-timeout", &self.timers.election),
            ("log-level", "warn"),
        ];
        let log = log_file(&self.folder.join(format!("{own}.log")))?;
        let mut command = run.command(&self.etcd.join("etcd"), &own);
        command.args(flags.map(|(flag, value)| format!("--{flag}={value}")));
        command.stdout(log.try_clone()?).stderr(log);
        command.spawn().context("cannot start etcd")?;
        Ok(())
    }

    /// A client of each member.
    pub async fn clients(&self) -> Result<Vec<EtcdClient>> {
        let pair = Pair::at(&self.folder, "user");
        self.pki.ensure(&Leaf::User { name: "demo".to_owned() }, &pair)?;
        let tls = EtcdTls::load(self.pki.root_path(Root::Client), pair)?;
        let mut clients = Vec::new();
        for number in 1..=MEMBERS {
            let endpoint = format!("https://{}:{CLIENT_PORT}", self.address(number));
            clients.push(EtcdClient::connect(&endpoint, &tls).await?);
        }
        Ok(clients)
    }

    /// Waits until all three answer and agree on a leader; returns its number.
    pub async fn healthy(&self, patience: Duration) -> Result<u8> {
        let clients = self.clients().await?;
        let clock = Clock::start();
        loop {
            let mut leaders = Vec::new();
            let mut own = None;
            for (number, client) in (1..).zip(&clients) {
                if let Ok(status) = client.with_deadline(Duration::from_secs(1)).status().await {
                    leaders.push(status.leader);
                    if status.leader == status.header.member_id {
                        own = Some(number);
                    }
                }
            }
            let agreed = leaders.iter().all(|leader| Some(leader) == leaders.first());
            if let Some(leader) = own.filter(|_| agreed && leaders.len() == usize::from(MEMBERS)) {
                return Ok(leader);
            }
            if clock.elapsed() > patience {
                bail!("the bare etcd cluster is not healthy after {patience:?}: leaders {leaders:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills one member (SIGKILL).
    pub fn kill(&self, run: &Run, number: u8) {
        run.kill(&name(number), Kind::Etcd);
    }

    /// Waits until a killed member is gone.
    pub async fn gone(&self, run: &Run, number: u8, patience: Duration) -> Result<()> {
        run.gone(&name(number), &[Kind::Etcd], patience).await
    }

    /// Kills all of it.
    pub fn stop(&self, run: &Run) {
        (1..=MEMBERS).for_each(|number| self.kill(run, number));
    }
}
