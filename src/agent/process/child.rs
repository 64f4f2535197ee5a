//! Supervisor processes that outlive the agent: started in a group of their own, found again by pid and start time.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use quorate_link::durable;
use quorate_link::lock::Lock;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

const FORMAT: &str = "quorate.child/1";
/// How often a process that is not our child is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// `child.json`. The start time tells a process apart from a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) pid: u32,
    /// In clock ticks since boot, as `/proc/<pid>/stat` has it.
    pub(super) start_time: u64,
}

impl Identity {
    fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        start_time(&stat).map(|start_time| Self { pid, start_time })
    }

    pub(super) fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    fn signal(self, signal: Signal) {
        // The start time was compared a moment ago; a pid is not used again that soon.
        if self.lives()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
            && let Err(error) = rustix::process::kill_process(pid, signal)
        {
            tracing::warn!(pid = self.pid, %error, "the supervisor cannot be signalled");
        }
    }
}

/// The start time in a line of `/proc/<pid>/stat`; none for a process that has ended and was not waited for.
fn start_time(stat: &str) -> Option<u64> {
    // The name in parentheses may hold anything, so count from its end.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // State is field 3, the start time is field 22.
    fields.nth(18)?.parse().ok()
}

/// A running supervisor: our child, or one that an earlier agent started.
pub(super) enum Running {
    Child(Box<tokio::process::Child>, Identity),
    Adopted(Identity),
}

impl Running {
    /// Which process it is.
    pub(super) fn identity(&self) -> Identity {
        match self {
            Self::Child(_, identity) | Self::Adopted(identity) => *identity,
        }
    }

    /// Waits for its end.
    pub(super) async fn ended(&mut self) {
        match self {
            // An error means that there is nothing to wait for.
            Self::Child(child, _) => drop(child.wait().await),
            Self::Adopted(identity) => {
                while identity.lives() {
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
    }
}

fn file(volume: &Path) -> std::path::PathBuf {
    volume.join("child.json")
}

/// The supervisor that an earlier agent started for this volume, if it still runs.
pub(super) fn adopt(volume: &Path) -> Option<Running> {
    let identity: Identity = durable::read(&file(volume), FORMAT).ok().flatten()?;
    identity.lives().then_some(Running::Adopted(identity))
}

/// The supervisor that works on this volume, whoever started it: a person or the host's init may, without any agent. It
/// is known by the lock that it holds, and written down as if it were ours.
pub(super) fn working(volume: &Path) -> Option<Running> {
    let identity = Identity::of(Lock::holder(volume)?)?;
    remember(volume, identity).ok()?;
    Some(Running::Adopted(identity))
}

/// Starts a supervisor for a volume whose `member.json` is written.
pub(super) fn start(executable: &Path, volume: &Path) -> io::Result<Running> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(volume.join("supervisor.log"))?;
    let child = Command::new(executable)
        .arg("member")
        .arg("--config")
        .arg(volume.join(super::config::FILE))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // What ends the agent, a Ctrl-C say, must not end its members.
        .process_group(0)
        .kill_on_drop(false)
        .spawn()?;
    let identity = child.id().and_then(Identity::of).ok_or_else(|| io::Error::other("it ended at once"))?;
    remember(volume, identity).map_err(io::Error::other)?;
    Ok(Running::Child(Box::new(child), identity))
}

/// Writes which process works on a volume; also again after the volume was emptied under it.
pub(super) fn remember(volume: &Path, identity: Identity) -> Result<(), durable::Error> {
    durable::write(&file(volume), FORMAT, &identity).map(drop)
}

/// Ends the supervisor of a volume: SIGTERM, patience, SIGKILL.
pub(super) async fn stop(volume: &Path, known: Option<Identity>, patience: Duration) {
    // The file may be gone together with the volume.
    let known = known.filter(|known| known.lives());
    let found = known.or_else(|| durable::read::<Identity>(&file(volume), FORMAT).ok().flatten());
    let Some(identity) = found else { return };
    identity.signal(Signal::TERM);
    let gone = async {
        while identity.lives() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(patience, gone).await.is_err() {
        tracing::warn!(pid = identity.pid, "the supervisor does not end; it is killed");
        identity.signal(Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_time() {
        let own = Identity::of(std::process::id()).unwrap();
        assert!(own.lives());
        assert!(!Identity { start_time: own.start_time + 1, ..own }.lives());
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        assert_eq!(start_time(line), Some(4711));
        assert_eq!(start_time(&line.replace(" S ", " Z ")), None);
    }

    #[tokio::test]
    async fn a_supervisor_is_adopted_and_stopped() {
        let volume = tempfile::tempdir().unwrap();
        let script = volume.path().join("quorate");
        std::fs::write(&script, "#!/bin/sh\nexec sleep 60\n").unwrap();
        std::os::unix::fs::PermissionsExt::set_mode(
            &mut std::fs::metadata(&script).unwrap().permissions(),
            0o755,
        );
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(adopt(volume.path()).is_none());
        let mut running = start(&script, volume.path()).unwrap();
        assert!(matches!(adopt(volume.path()), Some(Running::Adopted(_))));
        let (ended, ()) = tokio::join!(
            tokio::time::timeout(Duration::from_secs(10), running.ended()),
            stop(volume.path(), None, Duration::from_secs(10))
        );
        ended.unwrap();
        assert!(adopt(volume.path()).is_none());
    }
}
