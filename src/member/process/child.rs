//! One running etcd.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::process::Command;

use super::helper::SUBCOMMAND;

/// How long etcd may take to end after SIGTERM: enough to hand leadership over and close the database.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that ends at the latest when this is dropped.
#[derive(Debug)]
pub struct Child {
    child: tokio::process::Child,
    pid: u32,
}

impl Child {
    /// Starts etcd through the helper. Call it on the main thread: the death signal follows the calling thread.
    pub fn spawn(etcd: &Path, args: &[String], log: File) -> io::Result<Self> {
        let errors = log.try_clone()?;
        let child = Command::new(std::env::current_exe()?)
            .args([SUBCOMMAND, "--", &std::process::id().to_string()])
            .arg(etcd)
            .args(args)
            // What is set for us is not meant for etcd, which would take ETCD_* as flags.
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("ETCD_")))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // A Ctrl-C in a terminal is for the supervisor, which stops etcd in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().ok_or_else(|| io::Error::other("etcd ended at once"))?;
        Ok(Self { child, pid })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for its end; may be dropped and called again.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends it: SIGTERM, patience, SIGKILL.
    pub async fn stop(mut self) -> io::Result<ExitStatus> {
        // Not waited for yet, so the pid is still its own.
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            rustix::process::kill_process(pid, Signal::TERM)?;
        }
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => self.kill().await,
        }
    }

    /// Ends it at once.
    pub async fn kill(mut self) -> io::Result<ExitStatus> {
        self.child.start_kill()?;
        self.child.wait().await
    }
}
