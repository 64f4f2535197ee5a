//! etcd's command line, by minor version (etcd-facts.md section 7).
//!
//! What protects data is always on: checks for corruption, strict reconfiguration, pre-vote (the default of every
//! supported minor), client certificates, TLS 1.3. `--initial-cluster-state new` is written for a seed only, and
//! `--max-learners` never: it would have to be the same everywhere, and one learner is what the rules assume.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::pki::Pair;

/// How often the members compare their whole data; the cheaper comparison after compactions runs every minute.
const CORRUPT_CHECK: &str = "12h";
const COMPACT_HASH_CHECK: &str = "1m";

/// Why there is no command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a version that we run.
    #[error("etcd {0:?} is not supported; use 3.5, 3.6 or 3.7")]
    Version(String),
    /// An argument that is ours.
    #[error("the extra argument {0:?} is set by quorate or would break its rules; remove it")]
    Extra(String),
    /// Timers that etcd would not take.
    #[error(
        "election timeout {election} ms: at least five heartbeats of {heartbeat} ms and at most 50000 ms are needed"
    )]
    Timers {
        /// Heartbeat interval in ms.
        heartbeat: u64,
        /// Election timeout in ms.
        election: u64,
    },
    /// A URL without TLS.
    #[error("{0:?} is no https URL")]
    Url(String),
}

/// A minor version of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Minor {
    /// 3.5
    V3_5,
    /// 3.6
    V3_6,
    /// 3.7
    V3_7,
}

impl FromStr for Minor {
    type Err = Error;

    /// Reads `3.6` as well as `3.6.16`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parts = text.split('.');
        let minor = match (parts.next(), parts.next()) {
            (Some("3"), Some("5")) => Self::V3_5,
            (Some("3"), Some("6")) => Self::V3_6,
            (Some("3"), Some("7")) => Self::V3_7,
            _ => return Err(Error::Version(text.to_owned())),
        };
        let patch_is_number = parts.next().is_none_or(|patch| patch.parse::<u32>().is_ok());
        if patch_is_number && parts.next().is_none() {
            Ok(minor)
        } else {
            Err(Error::Version(text.to_owned()))
        }
    }
}

impl Minor {
    /// The oldest patch that has the fixes on which the rules rest (etcd-facts.md 8).
    pub const fn oldest_patch(self) -> u32 {
        match self {
            Self::V3_5 => 30,
            Self::V3_6 => 11,
            Self::V3_7 => 0,
        }
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V3_5 => "3.5",
            Self::V3_6 => "3.6",
            Self::V3_7 => "3.7",
        })
    }
}

/// What the grant allows this start to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// Begin a new cluster of one. Only with a seed grant of the ballot.
    Seed,
    /// Join, with the list that the answer to the addition of this member held: (name, peer URL).
    Join {
        /// All members, this one included.
        members: Vec<(String, String)>,
    },
    /// Go on with the data that is there. Were it gone, etcd would stop rather than begin anew.
    Resume,
}

/// How old revisions are compacted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Those older than this.
    Periodic(Duration),
    /// All but this many.
    Revisions(u64),
}

/// Everything that etcd is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// Which command line.
    pub minor: Minor,
    /// `--name`: slot name and incarnation.
    pub name: String,
    /// The data directory.
    pub data_dir: PathBuf,
    /// What this start may do.
    pub start: Start,
    /// `<uid>/<epoch>`.
    pub token: String,
    /// The peer URL of this member as all members know it.
    pub peer_url: String,
    /// Where the peer port binds (https URLs with an address).
    pub listen_peer: Vec<String>,
    /// What clients are told.
    pub client_urls: Vec<String>,
    /// Where the client port binds (https URLs with an address).
    pub listen_client: Vec<String>,
    /// Where metrics and health are served without TLS (http URL with an address inside the pod).
    pub listen_metrics: Option<String>,
    /// The certificates of the peer port.
    pub peer_tls: PeerTls,
    /// The certificates of the client port.
    pub client_tls: ClientTls,
    /// Heartbeat interval in ms.
    pub heartbeat_ms: u64,
    /// Election timeout in ms.
    pub election_ms: u64,
    /// The quota of the database.
    pub quota_bytes: Option<u64>,
    /// Compaction by etcd itself.
    pub auto_compaction: Option<AutoCompaction>,
    /// How many raft entries are kept for slow followers; 3.5 has no such flag and keeps 5000.
    pub snapshot_catchup_entries: Option<u64>,
    /// How often an idle watch hears the revision.
    pub watch_progress: Option<Duration>,
    /// Histograms for each gRPC method.
    pub extensive_metrics: bool,
    /// debug, info, warn, error.
    pub log_level: String,
    /// What the user adds; already checked against the list of what is allowed.
    pub extra: Vec<String>,
}

/// The certificates of the peer port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerTls {
    /// What the port shows.
    pub server: Pair,
    /// What this member shows to others.
    pub client: Pair,
    /// The peer roots of all sites of the federation.
    pub trusted: PathBuf,
    /// The common name that all peer certificates of the federation carry; none while peers of a foreign etcd are let in,
    /// whose certificates carry other ones.
    pub common_name: Option<String>,
}

/// The certificates of the client port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// What the port shows.
    pub server: Pair,
    /// Who may come in.
    pub trusted: PathBuf,
}

/// Beginnings of flags that nobody may add: they are ours, or they switch a protection off.
const OURS: &[&str] = &[
    "name",
    "data-dir",
    "wal-dir",
    "config-file",
    "initial-",
    "advertise-",
    "listen-",
    "discovery",
    "force-new-cluster",
    "strict-reconfig-check",
    "pre-vote",
    "max-learners",
    "experimental-max-learners",
    "unsafe-",
    "feature-gates",
    "tls-",
    "cert-file",
    "key-file",
    "client-",
    "trusted-ca-file",
    "auto-tls",
    "peer-",
    "heartbeat-interval",
    "election-timeout",
    "logger",
    "log-outputs",
    "experimental-initial-corrupt-check",
    "experimental-corrupt-check-time",
    "experimental-compact-hash-check",
    "experimental-peer-skip-client-san-verification",
    "corrupt-check-time",
    "compact-hash-check-time",
];

impl Flags {
    /// The arguments behind the program name. Start etcd without the variables `ETCD_*` of its environment: it takes
    /// each flag that is not given from there.
    pub fn render(&self) -> Result<Vec<String>, Error> {
        self.check()?;
        // Without `..`: a new field that nobody renders does not compile.
        let Self {
            minor,
            name,
            data_dir,
            start,
            token,
            peer_url,
            listen_peer,
            client_urls,
            listen_client,
            listen_metrics,
            peer_tls,
            client_tls,
            heartbeat_ms,
            election_ms,
            quota_bytes,
            auto_compaction,
            snapshot_catchup_entries,
            watch_progress,
            extensive_metrics,
            log_level,
            extra,
        } = self;
        let mut args = Args::default();
        args.add("name", name);
        args.path("data-dir", data_dir);
        let own = || format!("{name}={peer_url}");
        let (state, members) = match start {
            Start::Seed => ("new", own()),
            Start::Resume => ("existing", own()),
            Start::Join { members } => {
                let entries: Vec<_> = members.iter().map(|(name, url)| format!("{name}={url}")).collect();
                ("existing", entries.join(","))
            }
        };
        args.add("initial-cluster-state", state);
        args.add("initial-cluster", members);
        args.add("initial-cluster-token", token);
        args.add("initial-advertise-peer-urls", peer_url);
        args.add("listen-peer-urls", listen_peer.join(","));
        args.add("advertise-client-urls", client_urls.join(","));
        args.add("listen-client-urls", listen_client.join(","));
        if let Some(url) = listen_metrics {
            args.add("listen-metrics-urls", url);
        }
        args.peer_tls(peer_tls);
        args.client_tls(client_tls);
        args.add("tls-min-version", "TLS1.3");
        args.add("strict-reconfig-check", "true");
        args.add("heartbeat-interval", heartbeat_ms);
        args.add("election-timeout", election_ms);
        if let Some(bytes) = quota_bytes {
            args.add("quota-backend-bytes", bytes);
        }
        match auto_compaction {
            None => {}
            Some(AutoCompaction::Periodic(age)) => {
                args.add("auto-compaction-mode", "periodic");
                args.add("auto-compaction-retention", format!("{}s", age.as_secs()));
            }
            Some(AutoCompaction::Revisions(count)) => {
                args.add("auto-compaction-mode", "revision");
                args.add("auto-compaction-retention", count);
            }
        }
        if let Some(entries) = snapshot_catchup_entries.filter(|_| *minor >= Minor::V3_6) {
            args.add("snapshot-catchup-entries", entries);
        }
        if let Some(interval) = watch_progress {
            let prefix = if *minor == Minor::V3_5 { "experimental-" } else { "" };
            args.add(
                &format!("{prefix}watch-progress-notify-interval"),
                format!("{}ms", interval.as_millis()),
            );
        }
        args.corruption_checks(*minor);
        args.add("metrics", if *extensive_metrics { "extensive" } else { "basic" });
        args.add("logger", "zap");
        args.add("log-outputs", "stderr");
        args.add("log-level", log_level);
        args.0.extend(extra.iter().cloned());
        Ok(args.0)
    }

    fn check(&self) -> Result<(), Error> {
        let (heartbeat, election) = (self.heartbeat_ms, self.election_ms);
        if heartbeat == 0 || election < heartbeat.saturating_mul(5) || election > 50_000 {
            return Err(Error::Timers { heartbeat, election });
        }
        let urls = [&self.peer_url]
            .into_iter()
            .chain(&self.listen_peer)
            .chain(&self.client_urls)
            .chain(&self.listen_client);
        if let Some(url) = urls.into_iter().find(|url| !url.starts_with("https://") || url.contains(',')) {
            return Err(Error::Url(url.clone()));
        }
        let ours = |argument: &&String| {
            argument.strip_prefix("--").is_none_or(|flag| OURS.iter().any(|ours| flag.starts_with(ours)))
        };
        match self.extra.iter().find(ours) {
            Some(argument) => Err(Error::Extra(argument.clone())),
            None => Ok(()),
        }
    }
}

#[derive(Default)]
struct Args(Vec<String>);

impl Args {
    fn add(&mut self, flag: &str, value: impl fmt::Display) {
        self.0.push(format!("--{flag}={value}"));
    }

    fn path(&mut self, flag: &str, path: &Path) {
        self.add(flag, path.display());
    }

    fn peer_tls(&mut self, tls: &PeerTls) {
        let PeerTls { server, client, trusted, common_name } = tls;
        self.path("peer-cert-file", &server.cert);
        self.path("peer-key-file", &server.key);
        self.path("peer-client-cert-file", &client.cert);
        self.path("peer-client-key-file", &client.key);
        self.path("peer-trusted-ca-file", trusted);
        self.add("peer-client-cert-auth", "true");
        if let Some(common_name) = common_name {
            self.add("peer-cert-allowed-cn", common_name);
        }
    }

    fn client_tls(&mut self, tls: &ClientTls) {
        let ClientTls { server, trusted } = tls;
        self.path("cert-file", &server.cert);
        self.path("key-file", &server.key);
        self.path("trusted-ca-file", trusted);
        self.add("client-cert-auth", "true");
    }

    fn corruption_checks(&mut self, minor: Minor) {
        match minor {
            Minor::V3_5 => {
                self.add("experimental-initial-corrupt-check", "true");
                self.add("experimental-corrupt-check-time", CORRUPT_CHECK);
                self.add("experimental-compact-hash-check-enabled", "true");
                self.add("experimental-compact-hash-check-time", COMPACT_HASH_CHECK);
            }
            // 3.6 still takes the old names, but not together with gates.
            Minor::V3_6 | Minor::V3_7 => {
                self.add("feature-gates", "InitialCorruptCheck=true,CompactHashCheck=true");
                self.add("corrupt-check-time", CORRUPT_CHECK);
                self.add("compact-hash-check-time", COMPACT_HASH_CHECK);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(minor: Minor, start: Start) -> Flags {
        let pki = Path::new("/volume/pki");
        let url = |port: u16| format!("https://127.0.1.1:{port}");
        Flags {
            minor,
            name: "main-east-0-0a1b2c3d".into(),
            data_dir: "/volume/data".into(),
            start,
            token: "6f0c8d1e-0000-4000-8000-000000000001/1".into(),
            peer_url: "https://main-east-0.east.quorate.test:2380".into(),
            listen_peer: vec![url(2380)],
            client_urls: vec!["https://main-east-0.east.quorate.test:2379".into()],
            listen_client: vec![url(2379)],
            listen_metrics: Some("http://127.0.1.1:2381".into()),
            peer_tls: PeerTls {
                server: Pair::at(pki, "peer-server"),
                client: Pair::at(pki, "peer-client"),
                trusted: pki.join("peer-ca.crt"),
                common_name: Some("etcd-peer.6f0c8d1e".into()),
            },
            client_tls: ClientTls { server: Pair::at(pki, "server"), trusted: pki.join("clients.crt") },
            heartbeat_ms: 100,
            election_ms: 1000,
            quota_bytes: Some(2 << 30),
            auto_compaction: Some(AutoCompaction::Periodic(Duration::from_mins(5))),
            snapshot_catchup_entries: Some(10_000),
            watch_progress: Some(Duration::from_secs(5)),
            extensive_metrics: false,
            log_level: "info".into(),
            extra: vec!["--max-request-bytes=2000000".into()],
        }
    }

    fn text(flags: &Flags) -> String {
        flags.render().unwrap().join("\n")
    }

    #[test]
    fn golden_3_5() {
        insta::assert_snapshot!(text(&flags(Minor::V3_5, Start::Seed)));
    }

    #[test]
    fn golden_3_6() {
        let members = ["east", "west"].map(|site| {
            (format!("main-{site}-0-0a1b2c3d"), format!("https://main-{site}-0.{site}.quorate.test:2380"))
        });
        insta::assert_snapshot!(text(&flags(Minor::V3_6, Start::Join { members: members.to_vec() })));
    }

    #[test]
    fn golden_3_7() {
        let mut flags = flags(Minor::V3_7, Start::Resume);
        flags.auto_compaction = Some(AutoCompaction::Revisions(1000));
        flags.extensive_metrics = true;
        flags.quota_bytes = None;
        flags.listen_metrics = None;
        insta::assert_snapshot!(text(&flags));
    }

    #[test]
    fn only_a_seed_may_begin_a_cluster() {
        for minor in [Minor::V3_5, Minor::V3_6, Minor::V3_7] {
            let join = Start::Join { members: vec![("a".into(), "https://a:1".into())] };
            for (start, expected) in [(Start::Seed, "new"), (join, "existing"), (Start::Resume, "existing")] {
                let args = flags(minor, start).render().unwrap();
                let states: Vec<_> =
                    args.iter().filter(|a| a.starts_with("--initial-cluster-state=")).collect();
                assert_eq!(states, [&format!("--initial-cluster-state={expected}")]);
                assert!(!args.iter().any(|a| a.contains("max-learners") || a.contains("force-new-cluster")));
            }
        }
    }

    #[test]
    fn what_would_break_the_rules_is_refused() {
        for extra in [
            "--force-new-cluster",
            "--initial-cluster-state=new",
            "--max-learners=2",
            "--unsafe-no-fsync=true",
            "--strict-reconfig-check=false",
            "--pre-vote=false",
            "-name=x",
            "name",
            "--config-file=x",
            "--peer-auto-tls",
            "--feature-gates=InitialCorruptCheck=false",
            "--experimental-peer-skip-client-san-verification=true",
        ] {
            let mut flags = flags(Minor::V3_6, Start::Resume);
            flags.extra = vec![extra.into()];
            assert_eq!(flags.render(), Err(Error::Extra(extra.into())));
        }
        for (heartbeat_ms, election_ms) in [(0, 1000), (100, 499), (1000, 50_001), (u64::MAX, 1000)] {
            let flags = Flags { heartbeat_ms, election_ms, ..flags(Minor::V3_6, Start::Resume) };
            assert!(matches!(flags.render(), Err(Error::Timers { .. })));
        }
        let plain =
            Flags { listen_client: vec!["http://127.0.0.1:1".into()], ..flags(Minor::V3_6, Start::Resume) };
        assert!(matches!(plain.render(), Err(Error::Url(_))));
        let plain = Flags { peer_url: "http://a:1".into(), ..flags(Minor::V3_6, Start::Seed) };
        assert!(matches!(plain.render(), Err(Error::Url(_))));
    }

    #[test]
    fn versions() {
        assert_eq!("3.6".parse(), Ok(Minor::V3_6));
        assert_eq!("3.7.3".parse(), Ok(Minor::V3_7));
        assert_eq!(Minor::V3_5.to_string(), "3.5");
        for text in ["", "3", "3.4", "3.8", "v3.6", "3.6.x", "3.6.1.2"] {
            assert!(text.parse::<Minor>().is_err(), "{text}");
        }
    }
}
