//! A network of its own for one test: a namespace per site, all of them on one bridge, and faults between them.
//!
//! Everything lives in namespaces that are held by children of the test and vanish with it. Addresses are the same in
//! every test, so tests can run beside each other. It needs root.

use std::future::Future;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where the test itself is.
const HUB: &str = "10.77.0.254/16";
/// The range of all sites.
pub const RANGE: &str = "10.77.0.0/16";
/// The ports of etcd peers by ordinal, and of the second to fourth federation on a machine.
const PEER_PORTS: &str = "2380,2390,2400,2410,2420,2430,2440,2450,2480,2490,2500,2580";

/// What is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Everything.
    All,
    /// Only what agents say to each other.
    Mesh,
    /// Only what etcds say to each other, and the probes of their peer ports.
    Peer,
    /// Only what goes to this TCP port, and the answers.
    Port(u16),
}

impl Traffic {
    /// As words of iptables, each with a space before it.
    fn filter(self) -> String {
        // Of either direction: requests and answers.
        let of = |ports: &str| format!(" -p tcp -m multiport --ports {ports}");
        match self {
            Self::All => String::new(),
            Self::Mesh => of("8443"),
            Self::Peer => of(PEER_PORTS),
            Self::Port(port) => of(&port.to_string()),
        }
    }
}

/// A namespace, held by a child that ends with us.
#[derive(Debug)]
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo here; exec cat >/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start `unshare` (util-linux)")?;
        let mut word = [0; 5];
        let said = holder.stdout.take().context("no output")?;
        if std::io::Read::read_exact(&mut { said }, &mut word).is_err() {
            let _ = holder.wait();
            bail!("cannot make a network namespace: these tests need root");
        }
        Ok(Self { holder })
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holder.id()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// The network of a test.
#[derive(Debug)]
pub struct Net {
    hub: Namespace,
    sites: Vec<(String, Ipv4Addr, Namespace)>,
}

impl Net {
    /// A bridge, and a namespace for each of these sites: site n has the address 10.77.n.1.
    pub fn new(sites: &[&str]) -> Result<Arc<Self>> {
        let hub = Namespace::new()?;
        run(&hub.path(), "ip link set lo up")?;
        run(&hub.path(), "ip link add hub0 type bridge")?;
        run(&hub.path(), &format!("ip addr add {HUB} dev hub0"))?;
        run(&hub.path(), "ip link set hub0 up")?;
        let mut net = Self { hub, sites: Vec::new() };
        for (number, name) in (1..).zip(sites) {
            let (site, address) = (Namespace::new()?, Ipv4Addr::new(10, 77, number, 1));
            let pid = site.holder.id();
            let hub = net.hub.path();
            run(&hub, &format!("ip link add site{number} type veth peer name eth0 netns {pid}"))?;
            run(&hub, &format!("ip link set site{number} master hub0 up"))?;
            run(&site.path(), "ip link set lo up")?;
            run(&site.path(), &format!("ip addr add {address}/16 dev eth0"))?;
            run(&site.path(), "ip link set eth0 up")?;
            net.sites.push(((*name).to_owned(), address, site));
        }
        Ok(Arc::new(net))
    }

    fn site(&self, name: &str) -> Result<&(String, Ipv4Addr, Namespace)> {
        self.sites.iter().find(|(site, ..)| site == name).with_context(|| format!("no site {name}"))
    }

    /// The names of the sites.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.sites.iter().map(|(name, ..)| name.clone())
    }

    /// The address of a site.
    pub fn address(&self, site: &str) -> Result<Ipv4Addr> {
        Ok(self.site(site)?.1)
    }

    /// The namespace of a site, as a file.
    pub fn path(&self, site: &str) -> Result<PathBuf> {
        Ok(self.site(site)?.2.path())
    }

    /// Of this traffic, nothing that `from` sends arrives at `to` any more.
    pub fn cut_one_way(&self, from: &str, to: &str, traffic: Traffic) -> Result<()> {
        let rule = format!("iptables -w -A INPUT -s {}{} -j DROP", self.address(from)?, traffic.filter());
        run(&self.path(to)?, &rule)
    }

    /// The same in both directions.
    pub fn cut(&self, one: &str, other: &str, traffic: Traffic) -> Result<()> {
        self.cut_one_way(one, other, traffic)?;
        self.cut_one_way(other, one, traffic)
    }

    /// Cuts a site off from all others, in both directions.
    pub fn isolate(&self, site: &str, traffic: Traffic) -> Result<()> {
        let others = self.sites.iter().map(|(name, ..)| name).filter(|name| *name != site);
        others.into_iter().try_for_each(|other| self.cut(site, other, traffic))
    }

    /// Nothing that the other sites send arrives at `site`, while it can still send.
    pub fn deafen(&self, site: &str) -> Result<()> {
        let others = self.sites.iter().map(|(name, ..)| name).filter(|name| *name != site);
        others.into_iter().try_for_each(|other| self.cut_one_way(other, site, Traffic::All))
    }

    /// Ends all cuts.
    pub fn heal(&self) -> Result<()> {
        self.sites.iter().try_for_each(|(_, _, site)| run(&site.path(), "iptables -w -F INPUT"))
    }

    /// How many packets were dropped at a site since it was healed last.
    pub fn dropped(&self, site: &str) -> Result<u64> {
        let output = Command::new("nsenter")
            .arg(format!("--net={}", self.path(site)?.display()))
            .args(["iptables", "-w", "-nvx", "-L", "INPUT"])
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let drops = text.lines().filter(|line| line.contains("DROP"));
        Ok(drops.filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok()).sum())
    }
}

/// Runs a command in a namespace; what it complains about becomes the error.
fn run(namespace: &Path, line: &str) -> Result<()> {
    let output = Command::new("nsenter")
        .arg(format!("--net={}", namespace.display()))
        .args(line.split(' '))
        .output()
        .context("cannot start `nsenter` (util-linux)")?;
    if !output.status.success() {
        bail!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Moves the calling thread into a namespace; threads and processes that it starts later are there too.
pub fn enter(namespace: &Path) -> Result<()> {
    let file =
        std::fs::File::open(namespace).with_context(|| format!("cannot open {}", namespace.display()))?;
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter {}", namespace.display()))
}

/// Runs a test on the bridge of its own network: what it connects to are the sites of `net` and nothing else.
pub fn within<T: Send, F: Future<Output = Result<T>>>(
    net: &Arc<Net>,
    test: impl FnOnce(Arc<Net>) -> F + Send,
) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(&net.hub.path())?;
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let result = runtime.block_on(test(Arc::clone(net)));
            runtime.shutdown_timeout(std::time::Duration::from_secs(5));
            result
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
