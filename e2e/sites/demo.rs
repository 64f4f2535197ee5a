//! The demo leaves nothing behind.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_e2e::field::{binary, etcd};
use quorate_e2e::suite::Minor;
use quorate_link::clock::Clock;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

const UP: Duration = Duration::from_mins(2);
const END: Duration = Duration::from_secs(20);

/// The demo, up and with its members running; its folder for temporary files; ids of all its processes.
async fn demo(folder: &Path) -> Result<(Child, Vec<i32>)> {
    let mut demo = Command::new(binary().await?)
        .args(["demo", "--network", "78"])
        .env("QUORATE_ETCD_DIR", etcd(Minor::V3_6).await?)
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(demo.stdout.take().context("no stdout")?).lines();
    let up = async {
        let mut said = String::new();
        while let Some(line) = lines.next_line().await? {
            said.push_str(&line);
            said.push('\n');
            if line.contains("Ctrl-C ends it") {
                return anyhow::Ok(());
            }
        }
        bail!("the demo ended:\n{said}")
    };
    tokio::time::timeout(UP, up).await.context("the demo is not up")??;
    // Whoever reads must go on doing so.
    let rest = async move { while let Ok(Some(_)) = lines.next_line().await {} };
    let drain = quorate_link::drain::Drain::new();
    drain.spawn(rest);
    let pids = of_folder(folder);
    assert!(pids.len() >= 10, "four agents, three members and three etcds run: {pids:?}");
    Ok((demo, pids))
}

/// Processes that name the folder on their command line.
fn of_folder(folder: &Path) -> Vec<i32> {
    let folder = folder.to_string_lossy().into_owned();
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    let names = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&folder)
    };
    pids.filter(names).collect()
}

async fn nothing_left(folder: &Path) -> Result<()> {
    let clock = Clock::start();
    loop {
        let pids = of_folder(folder);
        let files: Vec<_> = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
        if pids.is_empty() && files.is_empty() {
            return Ok(());
        }
        if clock.elapsed() > END {
            bail!("left behind: processes {pids:?}, files {files:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn ends_after(signal: Signal) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let hosts = std::fs::read("/etc/hosts")?;
    let (mut demo, _) = demo(folder.path()).await?;
    let pid = demo.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).context("no process")?;
    kill_process(pid, signal)?;
    let end = tokio::time::timeout(END, demo.wait()).await.context("the demo goes on")??;
    assert_eq!(end.success(), signal == Signal::INT, "{end}");
    nothing_left(folder.path()).await?;
    assert_eq!(std::fs::read("/etc/hosts")?, hosts);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_leaves_no_process_and_no_file() -> Result<()> {
    ends_after(Signal::INT).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_demo_leaves_no_process_and_no_file() -> Result<()> {
    ends_after(Signal::KILL).await
}
