//! The processes of one run: how they are told from all others, looked at, killed, and swept away at the end.
//!
//! Members outlive their agent on purpose, and an agent adopts members that it did not start. So nobody can find them
//! by parentage: each process of a run carries a token in its environment instead, which its children inherit.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use rustix::process::{Pid, Signal, WaitOptions};

/// The variable that carries `<run>.<site>`. Its prefix is not `QUORATE_`: those are settings of the agent.
const TOKEN: &str = "DEMO_OF_QUORATE";

/// Waits until whoever started it is gone, however that happened, then kills what carries the token and removes the
/// folder. `kill` takes single process ids that were found by the token; nothing is matched by name.
const SWEEP: &str = r#"
trap '' INT TERM HUP
cat >/dev/null
tries=0
while [ "$tries" -lt 100 ]; do
  found=$(grep -lsz "^$1=$2\." /proc/[0-9]*/environ | cut -d / -f 3)
  [ -n "$found" ] || break
  for pid in $found; do kill -9 "$pid" 2>/dev/null; done
  tries=$((tries + 1))
  sleep 0.05
done
[ -z "$3" ] || rm -rf -- "$3"
"#;

/// What a process of a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `quorate agent`.
    Agent,
    /// `quorate member`, the supervisor of one etcd.
    Member,
    /// etcd.
    Etcd,
    /// Something short-lived, such as a shell on its way to becoming one of the others.
    Other,
}

/// A process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// What it does.
    pub kind: Kind,
    /// The site it belongs to.
    pub site: String,
    /// Its command line.
    pub args: Vec<String>,
}

impl Process {
    /// The value of `--name=value` or `--name value` on its command line.
    pub fn flag(&self, name: &str) -> Option<&str> {
        let mut args = self.args.iter();
        while let Some(arg) = args.next() {
            match arg.trim_start_matches('-').strip_prefix(name) {
                Some("") => return args.next().map(String::as_str),
                Some(rest) if rest.starts_with('=') => return rest.get(1..),
                _ => {}
            }
        }
        None
    }
}

/// One run: a folder, and all processes that were started for it. When it is dropped, or its owner dies in any way at
/// all, the processes are killed and the folder is removed unless it is to be kept.
#[derive(Debug)]
pub struct Run {
    token: String,
    folder: PathBuf,
    sweeper: Child,
    alive: Option<ChildStdin>,
}

impl Run {
    /// Begins a run in `folder`, which must exist.
    pub fn begin(folder: &Path, keep: bool) -> Result<Self> {
        let token = random_id().simple().to_string();
        let mut sweeper = Command::new("sh")
            .args(["-c", SWEEP, "sh", TOKEN, &token])
            .arg(if keep { Path::new("") } else { folder })
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start a shell (`sh`), which clears up at the end")?;
        let alive = sweeper.stdin.take();
        // Orphans become our children, so that a dead one does not stay a zombie that looks alive to its agent.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        Ok(Self { token, folder: folder.to_owned(), sweeper, alive })
    }

    /// The folder of this run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A command that belongs to this run, quiet and in a process group of its own (Ctrl-C is meant for us alone).
    pub fn command(&self, program: &Path, site: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env(TOKEN, format!("{}.{site}", self.token))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            // The settings of whoever calls us are not those of the sites, whose files name their etcd too.
            if text.starts_with("QUORATE_") {
                command.env_remove(&name);
            }
        }
        command
    }

    /// All processes of this run that are alive, by site.
    pub fn processes(&self) -> Vec<Process> {
        let mut found: Vec<Process> = find(&self.token).collect();
        found.sort_by(|a, b| (&a.site, a.kind, a.pid).cmp(&(&b.site, b.kind, b.pid)));
        found
    }

    /// Those of one site and kind.
    pub fn of(&self, site: &str, kind: Kind) -> Vec<Process> {
        self.processes().into_iter().filter(|p| p.site == site && p.kind == kind).collect()
    }

    /// Kills (SIGKILL) one kind of processes at a site; returns their ids.
    pub fn kill(&self, site: &str, kind: Kind) -> Vec<i32> {
        let found = self.of(site, kind);
        for process in &found {
            kill(process.pid);
        }
        found.into_iter().map(|process| process.pid).collect()
    }

    /// Kills a site: its supervisors and its agent. Each etcd dies with its supervisor.
    pub fn kill_site(&self, site: &str) -> Result<()> {
        let members = self.kill(site, Kind::Member);
        let agents = self.kill(site, Kind::Agent);
        if agents.is_empty() || members.is_empty() {
            bail!("site {site} does not run: {} agents, {} members", agents.len(), members.len());
        }
        Ok(())
    }

    /// Waits until none of these processes is left.
    pub async fn gone(&self, site: &str, kinds: &[Kind], patience: Duration) -> Result<()> {
        let clock = Clock::start();
        loop {
            let left: Vec<Process> =
                self.processes().into_iter().filter(|p| p.site == site && kinds.contains(&p.kind)).collect();
            if left.is_empty() {
                return Ok(());
            }
            if clock.elapsed() > patience {
                bail!("after {patience:?} there are still processes of {site}: {left:?}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Collects dead processes of this run until `drain` says stop: nobody else waits for orphans.
    pub fn collect_dead(&self, drain: &Drain) {
        let token = self.token.clone();
        drain.spawn_until(async move {
            let mut known = BTreeSet::new();
            loop {
                known.extend(find(&token).map(|process| process.pid));
                known.retain(|pid| {
                    collect(*pid);
                    Path::new("/proc").join(pid.to_string()).exists()
                });
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The sweeper hears that the pipe is closed, and does the same as if we had been killed.
        drop(self.alive.take());
        // Nothing can be done about a failure here, and nobody is left to hear of it.
        let _ = self.sweeper.wait();
    }
}

fn find(token: &str) -> impl Iterator<Item = Process> + use<> {
    let prefix = format!("{TOKEN}={token}.");
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(move |pid| look_at(pid, &prefix))
}

fn look_at(pid: i32, prefix: &str) -> Option<Process> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0).filter_map(|v| std::str::from_utf8(v).ok());
    let site = variables.find_map(|variable| variable.strip_prefix(prefix))?.to_owned();
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let args: Vec<String> = line
        .split(|byte| *byte == 0)
        .filter(|arg| !arg.is_empty())
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .collect();
    let program = Path::new(args.first()?).file_name()?.to_str()?;
    let kind = match (program, args.get(1).map(String::as_str)) {
        ("etcd", _) => Kind::Etcd,
        (_, Some("agent")) => Kind::Agent,
        (_, Some("member")) => Kind::Member,
        _ => Kind::Other,
    };
    Some(Process { pid, kind, site, args })
}

/// Kills one process by its id; one that is gone already is what was wished.
pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

fn collect(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// A new random id.
pub fn random_id() -> uuid::Uuid {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid()
}

/// Opens a log file for what a process says.
pub fn log_file(path: &Path) -> io::Result<std::fs::File> {
    std::fs::File::options().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_survives_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("run");
        std::fs::create_dir(&inner).unwrap();
        let run = Run::begin(&inner, false).unwrap();
        // A grandchild in a session of its own, as members are.
        let script = "setsid sleep 600 & exec sleep 600";
        let mut child = run.command(Path::new("sh"), "east").args(["-c", script]).spawn().unwrap();
        let clock = Clock::start();
        while run.processes().iter().filter(|p| p.args.first().is_some_and(|a| a == "sleep")).count() < 2 {
            assert!(clock.elapsed() < Duration::from_secs(20), "{:?}", run.processes());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let pids: Vec<i32> = run.processes().iter().map(|process| process.pid).collect();
        assert_eq!(pids.len(), 2);
        assert!(run.processes().iter().all(|p| p.site == "east" && p.kind == Kind::Other));
        drop(run);
        child.wait().unwrap();
        for pid in &pids {
            collect(*pid);
        }
        assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
        assert!(!inner.exists());
    }

    #[test]
    fn flags_in_both_forms() {
        let args = ["etcd", "--name=a", "--election-timeout", "1000"].map(str::to_owned).to_vec();
        let process = Process { pid: 1, kind: Kind::Etcd, site: "east".to_owned(), args };
        assert_eq!(process.flag("name"), Some("a"));
        assert_eq!(process.flag("election-timeout"), Some("1000"));
        assert_eq!(process.flag("election"), None);
    }
}
