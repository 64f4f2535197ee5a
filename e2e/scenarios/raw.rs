//! Plain etcds with nothing of ours around them: what quorate has to reckon with, asked through its own adapter.

use std::fmt::Debug;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use quorate_cli::demo::mesh::TRUST_DOMAIN;
use quorate_cli::demo::process::{Kind, Run, log_file};
use quorate_e2e::net::{Net, within};
use quorate_e2e::suite::Minor;
use quorate_link::clock::Clock;
use quorate_link::etcd::{Error, EtcdClient, Refused, Unknown};
use quorate_link::pki::{Leaf, Pair, Root, SitePki};
use quorate_link::tls::EtcdTls;
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_mins(2);
const MOST: u8 = 6;
/// etcd wants every link to be this old before it lets the membership change.
const HEALTH_INTERVAL: Duration = Duration::from_secs(5);

/// Up to six etcds, by number from one.
pub(crate) struct Raw {
    run: Run,
    folder: tempfile::TempDir,
    programs: PathBuf,
    pki: SitePki,
}

/// Runs a case on plain etcds in a network of their own.
pub(crate) fn on_raw<T: Send, F>(minor: Minor, case: impl FnOnce(Arc<Raw>) -> F + Send) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let net = Net::new(&[])?;
    within(&net, |_| async move {
        let raw = Arc::new(Raw::new(minor).await?);
        let result = case(Arc::clone(&raw)).await;
        result.with_context(|| format!("plain etcd {minor}; its logs:\n{}", raw.logs()))
    })
}

/// The folder with `etcd` and `etcdctl` of a minor.
pub(crate) async fn programs(minor: Minor) -> Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/stack/etcd.sh");
    let mut find = Command::new("bash");
    let output = find.args([script, "--tools", &minor.to_string()]).stderr(Stdio::inherit()).output().await?;
    ensure!(output.status.success(), "e2e/stack/etcd.sh --tools {minor} gave no etcd");
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

impl Raw {
    async fn new(minor: Minor) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("quorate-raw-").tempdir()?;
        let run = Run::begin(folder.path(), true)?;
        let pki = SitePki::init(folder.path(), "raw", TRUST_DOMAIN)?;
        let mut addresses: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
        addresses.extend((1..=MOST).map(|number| IpAddr::from(address(number))));
        let leaf = Leaf::EtcdServer { hosts: vec!["raw".to_owned()], addresses };
        pki.ensure(&leaf, &Pair::at(folder.path(), "member"))?;
        pki.ensure(&Leaf::User { name: "user".to_owned() }, &Pair::at(folder.path(), "user"))?;
        Ok(Self { run, folder, programs: programs(minor).await?, pki })
    }

    /// The peer URL of a member.
    pub(crate) fn url(number: u8) -> String {
        format!("https://{}:2380", address(number))
    }

    fn data(&self, number: u8) -> PathBuf {
        self.folder.path().join(format!("m{number}"))
    }

    fn root(&self) -> String {
        self.pki.root_path(Root::Client).display().to_string()
    }

    /// Starts a member: `state` is new or existing, `listed` are those of its initial cluster.
    pub(crate) fn start(&self, number: u8, state: &str, token: &str, listed: &[u8]) -> Result<()> {
        self.start_with(number, state, token, listed, &[])
    }

    /// The same with more flags.
    pub(crate) fn start_with(
        &self,
        number: u8,
        state: &str,
        token: &str,
        listed: &[u8],
        more: &[&str],
    ) -> Result<()> {
        let name = format!("m{number}");
        let cluster: Vec<String> =
            listed.iter().map(|other| format!("m{other}={}", Self::url(*other))).collect();
        let Pair { cert, key } = Pair::at(self.folder.path(), "member");
        let (cert, key, root) = (cert.display().to_string(), key.display().to_string(), self.root());
        let (client, peer) = (format!("https://{}:2379", address(number)), Self::url(number));
        let data = self.data(number).display().to_string();
        let flags = [
            ("name", name.as_str()),
            ("data-dir", &data),
            ("initial-cluster", &cluster.join(",")),
            ("initial-cluster-state", state),
            ("initial-cluster-token", token),
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
            ("log-level", "warn"),
        ];
        let log = log_file(&self.folder.path().join(format!("{name}.log")))?;
        let mut command = self.run.command(&self.programs.join("etcd"), &name);
        command.args(flags.map(|(flag, value)| format!("--{flag}={value}"))).args(more);
        command.stdout(log.try_clone()?).stderr(log);
        // Whoever began the run collects its dead.
        drop(command.spawn().context("cannot start etcd")?);
        Ok(())
    }

    /// A new cluster of the members 1 to `voters`, connected for long enough that their number may change.
    pub(crate) async fn cluster(&self, voters: u8) -> Result<()> {
        let all: Vec<u8> = (1..=voters).collect();
        for number in &all {
            self.start(*number, "new", "raw", &all)?;
        }
        self.healthy(&all).await?;
        tokio::time::sleep(HEALTH_INTERVAL + Duration::from_secs(1)).await;
        Ok(())
    }

    /// A client of a member.
    pub(crate) async fn client(&self, number: u8) -> Result<EtcdClient> {
        let tls = EtcdTls::load(self.pki.root_path(Root::Client), Pair::at(self.folder.path(), "user"))?;
        Ok(EtcdClient::connect(&format!("https://{}:2379", address(number)), &tls).await?)
    }

    /// Waits until these members know one leader; its number.
    pub(crate) async fn healthy(&self, numbers: &[u8]) -> Result<u8> {
        let clock = Clock::start();
        loop {
            let (mut leaders, mut own) = (Vec::new(), None);
            for number in numbers {
                let client = self.client(*number).await?.with_deadline(Duration::from_secs(1));
                let Ok(status) = client.status().await else { continue };
                leaders.push(status.leader);
                if status.leader == status.header.member_id {
                    own = Some(*number);
                }
            }
            let agreed =
                leaders.len() == numbers.len() && leaders.iter().all(|id| Some(id) == leaders.first());
            if let Some(leader) = own.filter(|_| agreed) {
                return Ok(leader);
            }
            ensure!(clock.elapsed() < PATIENCE, "{numbers:?} are not healthy: {leaders:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The id of a member.
    pub(crate) async fn id(&self, number: u8) -> Result<u64> {
        Ok(self.client(number).await?.status().await?.header.member_id)
    }

    /// Kills a member (SIGKILL) and waits for its end.
    pub(crate) async fn kill(&self, number: u8) -> Result<()> {
        let name = format!("m{number}");
        for pid in self.run.kill(&name, Kind::Etcd) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
            }
        }
        self.run.gone(&name, &[Kind::Etcd], PATIENCE).await
    }

    /// Waits until a member has ended by itself; true if it ended well.
    pub(crate) async fn ended(&self, number: u8) -> Result<()> {
        let name = format!("m{number}");
        let clock = Clock::start();
        loop {
            for process in self.run.of(&name, Kind::Etcd) {
                if let Some(pid) = rustix::process::Pid::from_raw(process.pid) {
                    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG)?;
                }
            }
            if self.run.of(&name, Kind::Etcd).is_empty() {
                return Ok(());
            }
            ensure!(clock.elapsed() < PATIENCE, "m{number} goes on");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Removes the data directory of a member that does not run.
    pub(crate) fn wipe(&self, number: u8) -> Result<()> {
        Ok(std::fs::remove_dir_all(self.data(number))?)
    }

    /// What a member wrote into its log.
    pub(crate) fn log(&self, number: u8) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("m{number}.log"))).unwrap_or_default()
    }

    /// Runs etcdctl: for what quorate's own client cannot do, and must not.
    pub(crate) async fn ctl(&self, number: u8, arguments: &[&str]) -> Result<String> {
        let Pair { cert, key } = Pair::at(self.folder.path(), "user");
        let mut ctl = Command::new(self.programs.join("etcdctl"));
        ctl.arg(format!("--endpoints=https://{}:2379", address(number)));
        ctl.arg(format!("--cacert={}", self.root()));
        ctl.arg(format!("--cert={}", cert.display())).arg(format!("--key={}", key.display()));
        let output = ctl.args(arguments).stdin(Stdio::null()).output().await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "etcdctl {arguments:?}: {said}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Adds a member as a voter, which quorate never does.
    pub(crate) async fn add_voter(&self, at: u8, number: u8) -> Result<()> {
        let url = format!("--peer-urls={}", Self::url(number));
        self.ctl(at, &["member", "add", &format!("m{number}"), &url]).await.map(drop)
    }

    fn logs(&self) -> String {
        let tail = |number: u8| {
            let log = self.log(number);
            let lines: Vec<&str> = log.lines().collect();
            lines
                .iter()
                .skip(lines.len().saturating_sub(4))
                .fold(String::new(), |text, line| text + &format!("m{number}: {line}\n"))
        };
        (1..=MOST).map(tail).collect()
    }
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, number)
}

/// etcd said no by this rule, and quorate takes it for a definite no.
pub(crate) fn refused<T: Debug>(result: std::result::Result<T, Error>, expected: Refused) -> Result<()> {
    match result {
        Err(error) if error.refused() == Some(expected) => {
            ensure!(error.is_definite(), "{error} is not taken for definite");
            Ok(())
        }
        other => bail!("expected a refusal by {expected:?}, got {other:?}"),
    }
}

/// Nobody knows what came of it, and quorate knows that.
pub(crate) fn unknown<T: Debug>(result: std::result::Result<T, Error>, causes: &[Unknown]) -> Result<()> {
    match result {
        Err(Error::Unknown { cause, .. }) if causes.contains(&cause) => Ok(()),
        other => bail!("expected an unknown outcome by one of {causes:?}, got {other:?}"),
    }
}
