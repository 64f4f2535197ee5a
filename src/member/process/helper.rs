//! `quorate __etcd -- <pid of the supervisor> <etcd> <arguments>`: becomes etcd, and dies with its supervisor.
//!
//! An etcd without its supervisor has no guard, and the next supervisor would find its ports and its directory in use.
//! The death signal is set in the child itself, between fork and exec, without any unsafe code: that is why there is a
//! program of its own in between. The signal follows the *thread* that forked, so the supervisor spawns from its main
//! thread (a current-thread runtime), which lives as long as the process.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal};

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "__etcd";

/// Becomes etcd; `args` are those behind `__etcd`. Returns only if that failed.
pub fn exec_etcd(args: impl IntoIterator<Item = OsString>) -> io::Error {
    match prepare(args) {
        Ok(mut command) => command.exec(),
        Err(error) => error,
    }
}

fn prepare(args: impl IntoIterator<Item = OsString>) -> io::Result<Command> {
    let usage = || io::Error::new(io::ErrorKind::InvalidInput, "only `quorate member` calls this");
    let mut args = args.into_iter().skip_while(|arg| arg == "--");
    let supervisor = args.next().and_then(|pid| pid.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let supervisor = supervisor.ok_or_else(usage)?;
    let etcd = args.next().ok_or_else(usage)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The supervisor may have died before the line above; then nobody would ever send the signal.
    if rustix::process::getppid() != Some(supervisor) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the supervisor is gone"));
    }
    let mut command = Command::new(etcd);
    command.args(args);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_started_without_the_supervisor() {
        let call = |args: &[&str]| exec_etcd(args.iter().map(OsString::from)).kind();
        assert_eq!(call(&[]), io::ErrorKind::InvalidInput);
        assert_eq!(call(&["--", "x", "/bin/true"]), io::ErrorKind::InvalidInput);
        assert_eq!(call(&["--", "12"]), io::ErrorKind::InvalidInput);
        // Our own pid is not that of our parent.
        let own = std::process::id().to_string();
        assert_eq!(call(&["--", &own, "/bin/true"]), io::ErrorKind::NotFound);
        // Not for the rest of the tests.
        rustix::process::set_parent_process_death_signal(None).unwrap();
    }
}
