//! Names of the members for one site only: a hosts file that is mounted over `/etc/hosts` in a mount namespace of the
//! site's processes. Nothing outside sees it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use super::process::Run;

/// Mounts the file `$1` over `/etc/hosts` and becomes the rest of the arguments.
const ENTER: &str = r#"mount --bind "$1" /etc/hosts && shift && exec "$@""#;

/// How a process gets a mount namespace here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// As root.
    Plain,
    /// As anybody, with a user namespace around it.
    User,
}

impl Namespace {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["--mount"],
            Self::User => &["--map-root-user", "--mount"],
        }
    }

    /// Finds out what this machine permits, by trying it with `hosts`.
    pub fn probe(hosts: &Path) -> Result<Self> {
        let mut complaints = String::new();
        for way in [Self::Plain, Self::User] {
            let mut unshare = Command::new("unshare");
            unshare.args(way.flags()).args(["sh", "-c", ENTER, "sh"]).arg(hosts).arg("true");
            match unshare.stdin(Stdio::null()).output() {
                Ok(output) if output.status.success() => return Ok(way),
                Ok(output) => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    let _ = write!(complaints, "; with {}: {}", way.flags().join(" "), said.trim());
                }
                Err(error) => {
                    let _ = write!(complaints, "; unshare: {error}");
                }
            }
        }
        bail!(
            "the sites cannot get an /etc/hosts of their own: `unshare` and `mount --bind` (util-linux) are needed, as \
             root or with user namespaces permitted (sysctl user.max_user_namespaces, \
             kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns){complaints}"
        )
    }

    /// A command of the run that starts `program` with `hosts` as its `/etc/hosts`, under the process id of the command,
    /// in a network namespace if one is given.
    pub fn command(
        self,
        run: &Run,
        site: &str,
        network: Option<&Path>,
        hosts: &Path,
        program: &Path,
    ) -> Command {
        let mut command = match network {
            None => run.command(Path::new("unshare"), site),
            Some(network) => {
                let mut command = run.command(Path::new("nsenter"), site);
                command.arg(format!("--net={}", network.display())).arg("unshare");
                command
            }
        };
        command.args(self.flags()).args(["sh", "-c", ENTER, "sh"]).arg(hosts).arg(program);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_seen_inside_only() {
        let folder = tempfile::tempdir().unwrap();
        let hosts = folder.path().join("hosts");
        std::fs::write(&hosts, "127.0.0.1 localhost\n127.7.7.7 inside.quorate.test\n").unwrap();
        let before = std::fs::read("/etc/hosts").unwrap();
        let way = Namespace::probe(&hosts).unwrap();
        let run = Run::begin(folder.path(), true).unwrap();
        let mut cat = way.command(&run, "east", None, &hosts, Path::new("cat"));
        let output = cat.arg("/etc/hosts").stdout(Stdio::piped()).output().unwrap();
        assert_eq!(output.stdout, std::fs::read(&hosts).unwrap());
        assert_eq!(std::fs::read("/etc/hosts").unwrap(), before);
    }
}
