//! The how-to pages, run as they stand: every command of `docs/how-to`, at machines that are network namespaces with an
//! `/etc`, `/var/lib`, `/opt` and `/usr/local/bin` of their own.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use quorate_e2e::field::{binary, etcd};
use quorate_e2e::net::{self, Net};
use quorate_e2e::suite::{Case, Minor, Outcome};
use quorate_link::clock::Clock;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

const SITES: [&str; 5] = ["east", "west", "north", "south", "center"];
/// How long a command may take; `apply` waits for whole moves.
const PATIENCE: Duration = Duration::from_mins(8);
/// How long an agent may take to answer.
const UP: Duration = Duration::from_mins(1);

/// One minor is enough: the pages name it.
pub(crate) const CASES: &[Case] = &[Case {
    name: "how_to::every_command_does_what_the_page_says",
    minors: &[Minor::V3_6],
    short: None,
    run: every_command,
}];

/// What the tests understand of systemd: it starts the command of the unit, and a restart leaves its children alone.
const SYSTEMCTL: &str = r#"#!/bin/sh
set -e
unit=/etc/systemd/system/quorate-agent.service
grep -qx KillMode=process "$unit"
case "$1 $2" in
"enable --now") ;;
"restart quorate-agent")
  pid=$(cat /var/lib/agent.pid); kill "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done ;;
*) echo "systemctl: $*?" >&2; exit 1 ;;
esac
command=$(sed -n 's/^ExecStart=//p' "$unit")
setsid sh -c "echo \$\$ >/var/lib/agent.pid; exec $command" </dev/null >>/var/lib/agent.log 2>&1 &
"#;

/// Gives a command the folders of its machine, in the place of ours.
const ENTER: &str = r#"
for folder in etc var/lib opt usr/local/bin; do mount --bind "$1/$folder" "/$folder"; done
cd "$1/root"; shift; exec "$@"
"#;

struct Stage {
    net: Arc<Net>,
    folder: PathBuf,
    /// The last token of an invitation, and who waits for its use.
    invited: Mutex<Option<(String, Child)>>,
    mesh: Mutex<Option<String>>,
}

impl Drop for Stage {
    /// All processes of the machines end with the test: each has its folder in the environment.
    fn drop(&mut self) {
        let mark = format!("QUORATE_STAGE={}", self.folder.display());
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
                && let Some(pid) = rustix::process::Pid::from_raw(pid)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// A command of a page.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    /// `all`, or a site.
    place: String,
    refused: bool,
    command: String,
}

/// All commands of the `console` blocks, with the lines that belong to them.
fn commands(page: &str) -> Vec<Line> {
    let mut found: Vec<Line> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => {
                let more = line.strip_prefix("> ").or_else(|| (line == ">").then_some(""));
                if let (Some(more), Some(last)) = (more, found.last_mut()) {
                    last.command.push('\n');
                    last.command.push_str(more);
                } else if let Some((place, command)) = line.split_once("$ ").or_else(|| line.split_once("! "))
                {
                    let refused = line.starts_with(&format!("{place}! "));
                    found.push(Line { place: place.to_owned(), refused, command: command.to_owned() });
                }
            }
        }
    }
    found
}

impl Stage {
    async fn new(net: Arc<Net>, folder: PathBuf) -> Result<Self> {
        let stage = Self { net, folder, invited: Mutex::default(), mesh: Mutex::default() };
        for site in SITES {
            let root = stage.machine(site);
            for folder in ["etc", "var/lib/quorate", "opt/etcd", "usr/local/bin", "root"] {
                std::fs::create_dir_all(root.join(folder))?;
            }
            std::fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
            std::os::unix::fs::symlink(etcd(Minor::V3_6).await?.join("etcd"), root.join("opt/etcd/etcd"))?;
            std::os::unix::fs::symlink(binary().await?.canonicalize()?, root.join("usr/local/bin/quorate"))?;
            let systemctl = root.join("usr/local/bin/systemctl");
            std::fs::write(&systemctl, SYSTEMCTL)?;
            std::fs::set_permissions(&systemctl, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        }
        Ok(stage)
    }

    fn machine(&self, site: &str) -> PathBuf {
        self.folder.join(site)
    }

    fn command(&self, site: &str, line: &str) -> Result<Command> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.net.path(site)?.display()));
        command.args(["unshare", "--mount", "sh", "-c", ENTER, "sh"]).arg(self.machine(site));
        command.args(["sh", "-c", line]);
        command
            .env("QUORATE_STAGE", &self.folder)
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// Runs a line at a site; its code and all that it said.
    async fn run(&self, site: &str, line: &str) -> Result<(i32, String)> {
        let run = self.command(site, line)?.kill_on_drop(true).output();
        let output = tokio::time::timeout(PATIENCE, run).await;
        let output = output.with_context(|| format!("{site}$ {line} did not end"))??;
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Ok((output.status.code().unwrap_or(-1), text))
    }

    async fn good(&self, site: &str, line: &str) -> Result<String> {
        let (code, text) = self.run(site, line).await?;
        if code != 0 {
            bail!("{site}$ {line}\nended with {code}:\n{text}\n{}", self.log(site));
        }
        Ok(text)
    }

    fn log(&self, site: &str) -> String {
        let text = std::fs::read_to_string(self.machine(site).join("var/lib/agent.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines.get(lines.len().saturating_sub(12)..).unwrap_or_default().join("\n")
    }

    /// Runs one line of a page as a person would: with the id and the token that were printed, and a little patience.
    async fn line(&self, site: &str, line: &Line) -> Result<()> {
        let mesh = self.mesh.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
        let command = line.command.replace("<id>", &mesh);
        if command.contains("mesh invite") {
            return self.invite(site, &command).await;
        }
        if command.contains("mesh accept") {
            return self.accept(site, &command).await;
        }
        if line.refused {
            let (code, text) = self.run(site, &command).await?;
            if !(2..=3).contains(&code) {
                bail!("{site}! {command}\nended with {code}:\n{text}");
            }
            return Ok(());
        }
        if command.starts_with("quorate doctor") {
            return self.doctor(site, &command).await;
        }
        let text = self.good(site, &command).await?;
        if let Some((_, rest)) = text.split_once(", mesh ").filter(|_| command.contains("mesh init")) {
            let id = rest.split_whitespace().next().map(str::to_owned);
            *self.mesh.lock().unwrap_or_else(PoisonError::into_inner) = id;
        }
        if command.starts_with("systemctl") {
            self.answers(site).await?;
        }
        Ok(())
    }

    async fn answers(&self, site: &str) -> Result<()> {
        let clock = Clock::start();
        loop {
            let (code, text) = self.run(site, "quorate status").await?;
            if code == 0 {
                return Ok(());
            }
            if clock.elapsed() > UP {
                bail!("the agent of {site} does not answer: {text}\n{}", self.log(site));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// What it finds depends on how busy this machine is; that everybody is heard does not.
    async fn doctor(&self, site: &str, line: &str) -> Result<()> {
        let clock = Clock::start();
        loop {
            let (_, text) = self.run(site, line).await?;
            if text.contains("AGENT HEARS") && !text.contains("mesh: ") {
                return Ok(());
            }
            if clock.elapsed() > UP {
                bail!("{site}$ {line}\n{text}\n{}", self.log(site));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn invite(&self, site: &str, line: &str) -> Result<()> {
        let mut child = self.command(site, line)?.kill_on_drop(true).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let token = tokio::time::timeout(UP, lines.next_line()).await??.context("no token")?;
        *self.invited.lock().unwrap_or_else(PoisonError::into_inner) = Some((token, child));
        Ok(())
    }

    async fn accept(&self, site: &str, line: &str) -> Result<()> {
        let invited = self.invited.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (token, mut child) = invited.context("nobody was invited")?;
        self.good(site, &line.replace("<token>", &token)).await?;
        let ended = tokio::time::timeout(UP, child.wait()).await??;
        if !ended.success() {
            bail!("the invitation ended with {ended}");
        }
        Ok(())
    }

    /// Runs all commands of a page. `all` are these sites.
    async fn page(&self, page: &str, all: &[&str]) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to").join(page);
        let lines = commands(&std::fs::read_to_string(&path)?);
        assert!(lines.len() > 5, "{page} has {} commands", lines.len());
        for line in lines {
            let own = [line.place.as_str()];
            let sites = if line.place == "all" { all } else { &own };
            for site in sites {
                self.line(site, &line).await.with_context(|| format!("{page}: {site}$ {}", line.command))?;
            }
        }
        Ok(())
    }

    /// Two more machines, made as the first page says.
    async fn enlarge(&self) -> Result<()> {
        let address = |site: &str| self.net.address(site);
        let mut hosts = String::new();
        for site in SITES {
            writeln!(hosts, "{} main-{site}-0.{site}.example.net", address(site)?)?;
        }
        for site in SITES {
            let new = ["south", "center"].contains(&site);
            std::fs::write(self.machine(site).join("etc/hosts"), format!("127.0.0.1 localhost\n{hosts}"))?;
            if new {
                let mesh =
                    self.mesh.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
                let line = format!(
                    "quorate mesh init --site {site} --trust-domain example.net --address {} --mesh {mesh}",
                    address(site)?
                );
                self.good(site, &line).await?;
                self.good(site, "sed -i -e 's|^#etcdDir:.*|etcdDir: /opt/etcd|' /etc/quorate/quorate.yaml")
                    .await?;
                let east = self.machine("east");
                let unit = "etc/systemd/system/quorate-agent.service";
                std::fs::create_dir_all(self.machine(site).join("etc/systemd/system"))?;
                std::fs::copy(east.join(unit), self.machine(site).join(unit))?;
                std::fs::copy(east.join("root/main.yaml"), self.machine(site).join("root/main.yaml"))?;
            }
            let config = self.machine(site).join("etc/quorate/quorate.yaml");
            let text = std::fs::read_to_string(&config)?;
            let mut text = text.split("\npeers:").next().unwrap_or_default().to_owned();
            text.push_str("\npeers:\n");
            for peer in SITES.iter().filter(|peer| **peer != site) {
                writeln!(text, "  - {{site: {peer}, endpoint: \"{}:8443\"}}", address(peer)?)?;
            }
            std::fs::write(&config, text)?;
        }
        for (old, new) in [
            ("east", "south"),
            ("west", "south"),
            ("north", "south"),
            ("east", "center"),
            ("west", "center"),
            ("north", "center"),
            ("south", "center"),
        ] {
            self.invite(old, "quorate mesh invite --config /etc/quorate/quorate.yaml").await?;
            self.accept(new, "quorate mesh accept --config /etc/quorate/quorate.yaml <token>").await?;
        }
        for site in ["east", "west", "north"] {
            self.good(site, "systemctl restart quorate-agent").await?;
        }
        for site in ["south", "center"] {
            self.good(site, "systemctl enable --now quorate-agent").await?;
        }
        for site in SITES {
            self.doctor(site, "quorate doctor").await?;
        }
        Ok(())
    }

    /// The sites of the voters as `east` tells them.
    async fn voters(&self) -> Result<Vec<String>> {
        let text = self.good("east", "quorate status etcd/main -o json 2>/dev/null").await?;
        let status: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        assert_eq!(status["decision"], "Done", "{text}");
        let members = status["members"].as_array().context("no members")?;
        let mut sites: Vec<String> = members
            .iter()
            .filter(|m| m["role"] == "voter" && m["state"] == "alive")
            .filter_map(|m| Some(m["site"].as_str()?.to_owned()))
            .collect();
        sites.sort();
        Ok(sites)
    }
}

fn every_command(_: Minor) -> Result<Outcome> {
    let net = Net::new(&SITES)?;
    net::within(&net, |net| async move {
        let folder = tempfile::Builder::new().prefix("quorate-how-to-").tempdir()?;
        let stage = Stage::new(net, folder.path().to_owned()).await?;
        understood()?;
        stage.page("vm-bare-metal.md", &["east", "west", "north"]).await?;
        stage.vote(&["east", "north", "west"]).await?;
        stage.enlarge().await?;
        stage.page("move.md", &SITES).await?;
        stage.vote(&["center", "east", "south"]).await?;
        stage.page("shrink.md", &SITES).await?;
        stage.vote(&["east", "north", "west"]).await?;
        Ok(Outcome { voters: 3, ..Outcome::default() })
    })
}

impl Stage {
    async fn vote(&self, sites: &[&str]) -> Result<()> {
        let voters = self.voters().await?;
        ensure!(voters == sites, "the voters are at {voters:?}, not at {sites:?}");
        Ok(())
    }
}

/// Commands are found in a page as they are meant.
fn understood() -> Result<()> {
    let page = "text\n```console\nall$ cat > x <<'E'\n> a\n>\n> b\n> E\nnoise\neast! quorate no\n```\neast$ not this\n";
    let found = commands(page);
    let line = |place: &str, refused, command: &str| Line {
        place: place.to_owned(),
        refused,
        command: command.to_owned(),
    };
    let meant = [line("all", false, "cat > x <<'E'\na\n\nb\nE"), line("east", true, "quorate no")];
    ensure!(found == meant, "{found:?}");
    Ok(())
}
