//! An etcd that quorate did not create: plain members with a CA of their own, and what `quorate adopt` makes of it.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_cli::demo::mesh::{NAMESPACE, Site};
use quorate_cli::demo::process::log_file;
use quorate_cli::demo::writer::Writer;
use quorate_link::clock::Clock;
use quorate_link::etcd::EtcdClient;
use quorate_link::pki::{Leaf, Pair, Root, SitePki};
use quorate_link::tls::EtcdTls;
use tokio::process::Command;

use crate::field::{FEDERATION, Field, PACE, UP, binary, etcd};

/// The name of its processes, and of its place in a network.
pub const NAME: &str = "old";

/// Its members, all on one machine.
pub struct Foreign {
    /// Where it is.
    pub address: Ipv4Addr,
    /// How many members it has.
    pub members: u16,
    network: PathBuf,
    folder: PathBuf,
    pki: SitePki,
}

impl Foreign {
    /// Starts it at its place in the network of a field, without a part in the mesh.
    pub async fn start(field: &Field, members: u16) -> Result<Self> {
        let (address, network) = (field.net()?.address(NAME)?, field.net()?.path(NAME)?);
        let folder = field.folder().join("foreign");
        std::fs::create_dir_all(&folder)?;
        // One CA for everything, as people have it.
        let pki = SitePki::init(&folder, NAME, "old.example.com")?;
        let foreign = Self { address, members, network, folder, pki };
        // etcd compares the addresses in a client certificate of a peer with the one that it comes from.
        let addresses = vec![address.into()];
        let leaf = Leaf::EtcdServer { hosts: vec!["old.example.com".to_owned()], addresses };
        foreign.pki.ensure(&leaf, &foreign.pair("member"))?;
        foreign.pki.ensure(&Leaf::User { name: "root".to_owned() }, &foreign.pair("user"))?;
        let program = program(&etcd(field.minor).await?, &field.minor.to_string());
        for number in 0..members {
            foreign.spawn(field, &program, number)?;
        }
        foreign.healthy().await?;
        Ok(foreign)
    }

    fn pair(&self, name: &str) -> Pair {
        Pair::at(&self.folder, name)
    }

    /// Its CA and the key of that.
    pub fn ca(&self) -> Pair {
        Pair::at(self.pki.folder(), "client-ca")
    }

    fn url(&self, base: u16, number: u16) -> String {
        format!("https://{}:{}", self.address, base + 10 * number)
    }

    /// The client URL of a member.
    pub fn endpoint(&self, number: u16) -> String {
        self.url(2379, number)
    }

    fn spawn(&self, field: &Field, program: &std::path::Path, number: u16) -> Result<()> {
        let name = |number: u16| format!("{NAME}-{number}");
        let cluster: Vec<String> =
            (0..self.members).map(|other| format!("{}={}", name(other), self.url(2380, other))).collect();
        let Pair { cert, key } = self.pair("member");
        let (client, peer) = (self.endpoint(number), self.url(2380, number));
        let file = |path: &std::path::Path| path.display().to_string();
        let root = file(&self.pki.root_path(Root::Client));
        let own = name(number);
        let flags = [
            ("name", own.clone()),
            ("data-dir", file(&self.folder.join(&own))),
            ("initial-cluster", cluster.join(",")),
            ("initial-cluster-state", "new".to_owned()),
            ("initial-cluster-token", NAME.to_owned()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer),
            ("cert-file", file(&cert)),
            ("key-file", file(&key)),
            ("trusted-ca-file", root.clone()),
            ("client-cert-auth", "true".to_owned()),
            ("peer-cert-file", file(&cert)),
            ("peer-key-file", file(&key)),
            ("peer-trusted-ca-file", root),
            ("peer-client-cert-auth", "true".to_owned()),
        ];
        let log = log_file(&self.folder.join(format!("{own}.log")))?;
        let site = field.mesh.sites.first().context("no sites")?;
        let mut command = field.mesh.stranger(NAME, site, Some(&self.network), program);
        command.args(flags.map(|(flag, value)| format!("--{flag}={value}")));
        command.stdout(log.try_clone()?).stderr(log).spawn().context("cannot start etcd")?;
        Ok(())
    }

    /// A client of each member.
    pub async fn clients(&self) -> Result<Vec<EtcdClient>> {
        let tls = EtcdTls::load(self.pki.root_path(Root::Client), self.pair("user"))?;
        let mut clients = Vec::new();
        for number in 0..self.members {
            clients.push(EtcdClient::connect(&self.endpoint(number), &tls).await?);
        }
        Ok(clients)
    }

    /// The id of its cluster.
    pub async fn cluster_id(&self) -> Result<String> {
        let clients = self.clients().await?;
        let status = clients.first().context("no member")?.status().await?;
        Ok(format!("{:x}", status.header.cluster_id))
    }

    async fn healthy(&self) -> Result<()> {
        let (clients, clock) = (self.clients().await?, Clock::start());
        loop {
            let mut good = 0;
            for client in &clients {
                let status = client.with_deadline(Duration::from_secs(1)).status().await;
                good += u16::from(status.is_ok_and(|status| status.leader != 0));
            }
            if good == self.members {
                return Ok(());
            }
            if clock.elapsed() > UP {
                bail!("{good} of {} members of the old etcd are well after {UP:?}", self.members);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// `quorate adopt`, as the site that will speak for it.
    pub async fn adopt(&self, site: &Site, peer_ca: &std::path::Path, more: &[&str]) -> Result<Output> {
        let Pair { cert, key } = self.pair("user");
        let mut command = Command::new(binary().await?);
        command
            .args(["adopt", &format!("{NAMESPACE}/{FEDERATION}"), "-o", "json"])
            .args(["--endpoints", &self.endpoint(0)])
            .arg("--cacert")
            .arg(self.pki.root_path(Root::Client))
            .arg("--cert")
            .arg(cert)
            .arg("--key")
            .arg(key)
            .arg("--peer-ca")
            .arg(peer_ca)
            .arg("--config")
            .arg(site.config())
            .args(more);
        Ok(command.output().await?)
    }

    /// A writer that knows its members and the future ones of all sites.
    pub async fn writer(&self, field: &Field) -> Result<Writer> {
        let mut clients = self.clients().await?;
        clients.extend(field.clients().await?);
        let writer = Writer::paced(clients, field.clock, PACE);
        field.writes(&writer).await?;
        Ok(writer)
    }

    /// `quorate adopt --yes` at a site, with the key of its CA. Gives the manifest, which is applied there and nowhere else yet.
    pub async fn hand_over(&self, site: &Site) -> Result<String> {
        let ca = self.ca();
        let key = ca.key.display().to_string();
        let output = self.adopt(site, &ca.cert, &["--peer-ca-key", &key, "--yes"]).await?;
        let told = report(&output)?;
        if !output.status.success() {
            bail!("quorate adopt: {}", serde_json::to_string_pretty(&told)?);
        }
        let manifest = told.pointer("/manifest").and_then(serde_json::Value::as_str);
        Ok(manifest.context("quorate adopt gave no manifest")?.to_owned())
    }
}

/// The name of the manifest that `quorate adopt` writes.
pub fn file() -> String {
    format!("{NAMESPACE}.{FEDERATION}")
}

/// What `quorate adopt -o json` said.
pub fn report(output: &Output) -> Result<serde_json::Value> {
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).with_context(said)
}

fn program(folder: &std::path::Path, minor: &str) -> PathBuf {
    let named = folder.join(format!("etcd-{minor}")).join("etcd");
    if named.is_file() { named } else { folder.join("etcd") }
}
