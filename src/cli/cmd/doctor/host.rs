//! What can be found out on this machine without the agent: disk, certificates, etcds, and the peer ports from here.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_api::config::SiteConfig;
use quorate_core::doctor::{Binary, Disk, File, Host, PeerPort};
use quorate_core::report::FederationReport;
use quorate_link::causes::chain;
use quorate_link::clock::{Clock, seconds};
use quorate_link::etcd::peer_port;
use quorate_link::pki::{self, Pair};
use quorate_link::tls::EtcdTls;

/// Where etcd is looked for if the configuration names no folder; the agent looks there too.
const ETCD_DIR: &str = "/usr/local/bin";
/// So many synced writes; the median tells.
const WRITES: usize = 9;
const PROBE: Duration = Duration::from_secs(3);

pub(super) async fn look(
    config: Option<&SiteConfig>,
    state_dir: &Path,
    federations: &[FederationReport],
) -> Host {
    let etcd_dir = config.and_then(|config| config.etcd_dir.clone()).or_else(|| known_etcd_dir(state_dir));
    let etcd_dir = etcd_dir.unwrap_or_else(|| ETCD_DIR.into());
    let (fsync_us, unwritable) = match fsync(state_dir) {
        Ok(times) => (times, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let mut peer_ports = Vec::new();
    for report in federations {
        peer_ports.extend(probe(state_dir, report).await);
    }
    Host {
        state_dir: state_dir.to_owned(),
        disk: disk(state_dir),
        fsync_us,
        unwritable,
        etcds: etcds(&etcd_dir).await,
        etcd_dir: Some(etcd_dir),
        certificates: certificates(state_dir),
        peer_ports,
    }
}

/// The folder that the supervisors here use; the configuration may not be at hand.
fn known_etcd_dir(state_dir: &Path) -> Option<PathBuf> {
    let members = find(&state_dir.join("federations"), &|path| path.ends_with("member.json"));
    let text = std::fs::read_to_string(members.first()?).ok()?;
    let member: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(PathBuf::from(member.get("etcdDir").or_else(|| member.get("etcd_dir"))?.as_str()?))
}

fn disk(folder: &Path) -> Option<Disk> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(Disk { total: stat.f_blocks * stat.f_frsize, free: stat.f_bavail * stat.f_frsize })
}

/// Times of small synced writes, sorted, microseconds.
fn fsync(folder: &Path) -> io::Result<Vec<u64>> {
    let path = folder.join(format!(".doctor.{}.tmp", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    // It has a name only for a moment; what is written needs none.
    std::fs::remove_file(&path)?;
    let mut times = Vec::new();
    for _ in 0..WRITES {
        let clock = Clock::start();
        file.write_all(&[0; 2048])?;
        file.sync_data()?;
        times.push(u64::try_from(clock.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    times.sort_unstable();
    Ok(times)
}

/// `<folder>/etcd` and `<folder>/etcd-<minor>/etcd`, as the supervisors look for them.
async fn etcds(folder: &Path) -> Vec<Binary> {
    let mut paths = vec![folder.join("etcd")];
    if let Ok(entries) = std::fs::read_dir(folder) {
        let minors =
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("etcd-"));
        paths.extend(minors.map(|entry| entry.path().join("etcd")));
    }
    paths.retain(|path| path.is_file());
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let run =
            tokio::process::Command::new(&path).arg("--version").env_clear().kill_on_drop(true).output();
        let output = tokio::time::timeout(PROBE, run).await;
        let text = output
            .ok()
            .and_then(Result::ok)
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let version =
            text.as_deref().unwrap_or_default().lines().find_map(|line| line.strip_prefix("etcd Version:"));
        found.push(Binary { path, version: version.map(|version| version.trim().to_owned()) });
    }
    found
}

/// All certificates below the state folder; keys are not even opened.
fn certificates(state_dir: &Path) -> Vec<File> {
    let is_certificate = |path: &Path| path.extension().is_some_and(|end| end == "crt");
    let mut paths = find(&state_dir.join("pki"), &is_certificate);
    paths.extend(find(&state_dir.join("federations"), &is_certificate));
    paths.retain(|path| !path.components().any(|part| part.as_os_str() == "archive"));
    let file = |path: PathBuf| {
        let root = path.file_stem().is_some_and(|name| {
            let name = name.to_string_lossy();
            name.ends_with("-ca") || name.ends_with("-roots")
        }) || path.components().any(|part| part.as_os_str() == "trust");
        match pki::validity(&path) {
            Ok(validity) => {
                let (begins, ends) = (seconds(validity.not_before), seconds(validity.not_after));
                File { path, root, begins, ends, problem: None }
            }
            Err(error) => File { root, problem: Some(error.to_string()), path, ..File::default() },
        }
    };
    paths.into_iter().map(file).collect()
}

/// All files below `folder` that are wanted; data directories are not entered.
pub(in crate::cmd) fn find(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return found };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && entry.file_name() != "data" => found.extend(find(&path, wanted)),
            Ok(kind) if kind.is_file() && wanted(&path) => found.push(path),
            Ok(_) | Err(_) => {}
        }
    }
    found
}

/// Dials every peer port as the agent does, with the probe certificate that it made.
async fn probe(state_dir: &Path, report: &FederationReport) -> Vec<PeerPort> {
    let FederationReport { status, view, .. } = report;
    let folder = state_dir.join("federations").join(format!("{}.{}", status.namespace, status.name));
    let pair = Pair::at(&folder.join("pki"), "probe");
    let Some(view) = view.as_ref().filter(|_| pair.cert.exists()) else { return Vec::new() };
    let members = view.members.iter().filter_map(|m| Some((m.site()?.to_string(), m.peer_url.to_string())));
    let looks = members.map(|(site, url)| {
        let roots = state_dir.join("pki/trust").join(&site).join("peer.crt");
        let pair = pair.clone();
        async move {
            let result = async {
                let tls = EtcdTls::load(roots, pair).map_err(|error| chain(&error))?;
                let port = peer_port::PeerPort::new(&url, tls).map_err(|error| chain(&error))?;
                let look = tokio::time::timeout(PROBE, port.probe()).await;
                look.map_err(|_| format!("no answer within {PROBE:?}"))?.map_err(|error| chain(&error))
            };
            let (rtt_us, problem) = match result.await {
                Ok(found) => (Some(u64::try_from(found.rtt.as_micros()).unwrap_or(u64::MAX)), None),
                Err(problem) => (None, Some(problem)),
            };
            PeerPort { site, url, rtt_us, problem }
        }
    });
    futures::future::join_all(looks).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_machine_is_looked_at_without_leaving_a_trace() {
        let folder = tempfile::tempdir().unwrap();
        let site = pki::SitePki::init(folder.path(), "east", "quorate.test").unwrap();
        let broken = site.folder().join("broken.crt");
        std::fs::write(&broken, "no certificate").unwrap();
        let host = look(None, folder.path(), &[]).await;
        assert_eq!((host.fsync_us.len(), host.unwritable), (WRITES, None));
        assert!(host.disk.is_some_and(|disk| disk.total >= disk.free && disk.free > 0));
        let roots = host.certificates.iter().filter(|file| file.root).count();
        // agent, peer and client root, and the trust in ourselves.
        assert_eq!(roots, 5, "{:?}", host.certificates);
        let bad: Vec<_> = host.certificates.iter().filter(|file| file.problem.is_some()).collect();
        assert_eq!(bad.len(), 1);
        assert_eq!(bad[0].path, broken);
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["pki"]);
        let missing = look(None, &folder.path().join("none"), &[]).await;
        assert!(missing.unwritable.is_some() && missing.disk.is_none());
    }
}
