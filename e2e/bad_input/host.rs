//! Troubles of the host: what a member needs is taken, missing, wrong or full. The federation that it hits says so, with place
//! and remedy, and goes on by itself once the host is well again; the other one of the same agent never notices.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::mesh::NAMESPACE;
use quorate_cli::demo::process::{Kind, kill};
use quorate_e2e::field::{FEDERATION, etcd};
use quorate_e2e::net;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome};

use crate::data::{listing, start, stop};
use crate::house::{House, OTHER, at_home, client};

pub(crate) const CASES: &[Case] = &[
    Case { name: "host::port_in_use", minors: &[Minor::V3_6], short: Some(Minor::V3_6), run: port_in_use },
    Case { name: "host::etcd_that_will_not_do", minors: ALL, short: Some(Minor::V3_5), run: wrong_etcd },
    Case { name: "host::read_only_folder", minors: &[Minor::V3_6], short: None, run: read_only },
    Case { name: "host::full_disk", minors: ALL, short: None, run: full_disk },
];

const GONE: Duration = Duration::from_secs(20);
/// Room for etcd's log, which is made 64 MB at a time, and for little else.
const DISK: &str = "size=220m";

/// Kills main's supervisor, and its etcd with it.
fn kill_main(house: &House) -> Result<()> {
    let mesh = &house.field.mesh;
    let main = |args: &[String]| args.iter().any(|arg| arg.contains("main-east-0"));
    let members = mesh.run.of("east", Kind::Member).into_iter().filter(|p| main(&p.args));
    let pids: Vec<i32> = members.map(|process| process.pid).collect();
    ensure!(pids.len() == 1, "main has {} supervisors", pids.len());
    for pid in pids {
        kill(pid);
    }
    Ok(())
}

/// A foreign process of east listens here.
#[expect(clippy::disallowed_methods, reason = "a thread without a runtime, in another network")]
fn foreign(house: &House, address: SocketAddr) -> Result<TcpListener> {
    let namespace = house.field.net()?.path("east")?;
    let listen = move || -> Result<TcpListener> {
        net::enter(&namespace)?;
        let clock = quorate_link::clock::Clock::start();
        loop {
            // The one that listened there is about to end.
            match TcpListener::bind(address) {
                Ok(listener) => return Ok(listener),
                Err(error) if clock.elapsed() > GONE => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    };
    match std::thread::spawn(listen).join() {
        Ok(listener) => listener,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A port of etcd, then one of the supervisor, is somebody else's.
fn port_in_use(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let data = house.volume(FEDERATION)?.join("data");
        for port in [2380, 8444] {
            let address = SocketAddr::new(house.east()?.address.into(), port);
            stop(&house).await?;
            let holder = foreign(&house, address)?;
            let before = listing(&data, &data)?;
            start(&house).await?;
            let place = address.to_string();
            house.says(FEDERATION, &["PortInUse", &place, "east"]).await?;
            house.logged(&["PortInUse", &place, "stop that process"]).await?;
            house.goes_on(OTHER).await?;
            ensure!(listing(&data, &data)? == before, "the data directory was changed");
            drop(holder);
            house.goes_on(FEDERATION).await?;
        }
        Ok(())
    })
}

/// No etcd in the folder, one that is too old, one of another minor, one that does not run; then the right one.
fn wrong_etcd(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let folder = house.field.folder().join("programs");
        std::fs::create_dir_all(&folder)?;
        let config = std::fs::read_to_string(house.east()?.config())?;
        let others = config.lines().filter(|line| !line.starts_with("etcdDir:"));
        let line = format!("etcdDir: {}", folder.display());
        let config = others.chain([line.as_str()]).collect::<Vec<_>>();
        std::fs::write(house.east()?.config(), config.join("\n"))?;
        house.field.mesh.run.kill("east", Kind::Agent);
        house.field.mesh.gone(house.east()?, &[Kind::Agent], GONE).await?;
        start(&house).await?;
        let program = folder.join(format!("etcd-{minor}")).join("etcd");
        let place = program.display().to_string();
        kill_main(&house)?;
        house.says(FEDERATION, &["EtcdMissing", &minor.to_string(), &folder.display().to_string()]).await?;
        house.logged(&["EtcdMissing", "etcdDir"]).await?;

        let wrong = ALL.iter().copied().find(|other| *other != minor).context("no other minor")?;
        if minor != Minor::V3_7 {
            script(&program, &format!("echo etcd Version: {minor}.2"))?;
            house.says(FEDERATION, &["EtcdTooOld", &place, &format!("{minor}.2")]).await?;
        }
        std::fs::remove_dir_all(program.parent().context("no folder")?)?;
        std::os::unix::fs::symlink(etcd(wrong).await?, program.parent().context("no folder")?)?;
        house.says(FEDERATION, &["EtcdOtherVersion", &place, &format!("{wrong}.")]).await?;
        house.logged(&["EtcdOtherVersion", "spec.version"]).await?;
        std::fs::remove_file(program.parent().context("no folder")?)?;
        script(&program, "exit 1")?;
        house.says(FEDERATION, &["EtcdOtherVersion", &place]).await?;
        house.goes_on(OTHER).await?;

        std::fs::remove_dir_all(program.parent().context("no folder")?)?;
        std::os::unix::fs::symlink(etcd(minor).await?, program.parent().context("no folder")?)?;
        house.goes_on(FEDERATION).await
    })
}

fn script(path: &Path, line: &str) -> Result<()> {
    std::fs::create_dir_all(path.parent().context("no folder")?)?;
    std::fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// A small disk below main's folder alone.
struct Disk(PathBuf);

impl Disk {
    /// Moves main onto it. East must not run: processes see the mounts from before their start.
    fn under_main(house: &House) -> Result<Self> {
        let name = format!("{NAMESPACE}.{FEDERATION}");
        let (folders, aside) =
            (house.east()?.state().join("federations"), house.field.folder().join("aside"));
        let folder = folders.join(&name);
        std::fs::rename(&folder, &aside)?;
        std::fs::create_dir(&folder)?;
        let options = format!("{DISK},mode=700");
        let disk = Self(folder);
        mount(&["-t", "tmpfs", "-o", &options, "quorate-test"], &disk.0)?;
        let content = format!("{}/.", aside.display());
        run(Command::new("cp").args(["-a", &content]).arg(&disk.0))?;
        Ok(disk)
    }
}

impl Disk {
    /// For everybody: a mount in the namespace of the agent has flags of its own.
    fn writable_again(&self, house: &House) -> Result<()> {
        mount(&["-o", "remount,rw"], &self.0)?;
        let agents = house.field.mesh.run.of("east", Kind::Agent);
        let agent = agents.first().context("no agent runs")?.pid.to_string();
        let inside = ["--mount", "--target", &agent, "mount", "-o", "remount,rw"];
        run(Command::new("nsenter").args(inside).arg(&self.0))
    }
}

/// The last lines of main's etcd and supervisor.
fn last_words(house: &House) -> String {
    let tail = |name: &str| {
        let text =
            house.volume(FEDERATION).and_then(|folder| Ok(std::fs::read_to_string(folder.join(name))?));
        let text = text.unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = text.lines().collect();
        format!("{name}:\n{}", lines.get(lines.len().saturating_sub(12)..).unwrap_or_default().join("\n"))
    };
    [tail("supervisor.log"), tail("etcd.log")].join("\n")
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Processes may still be there; the disk goes with the last of them.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn mount(words: &[&str], folder: &Path) -> Result<()> {
    run(Command::new("mount").args(words).arg(folder))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Main's folder cannot be written; it can be read, and what is in it stays.
fn read_only(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        stop(&house).await?;
        let disk = Disk::under_main(&house)?;
        mount(&["-o", "remount,ro"], &disk.0)?;
        let before = listing(&disk.0, &disk.0)?;
        start(&house).await?;
        house.says(FEDERATION, &["StateNotWritable", &disk.0.display().to_string(), "east"]).await?;
        house.logged(&["StateNotWritable", "make it writable"]).await?;
        house.goes_on(OTHER).await?;
        ensure!(listing(&disk.0, &disk.0)? == before, "something was written");
        disk.writable_again(&house)?;
        house.goes_on(FEDERATION).await.with_context(|| last_words(&house))
    })
}

/// No room is left on main's disk: etcd stops, says why, and goes on where it was once there is room.
fn full_disk(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        stop(&house).await?;
        let disk = Disk::under_main(&house)?;
        start(&house).await?;
        house.goes_on(FEDERATION).await?;
        let filler = disk.0.join("filler");
        let mut file = std::fs::File::create(&filler)?;
        while std::io::Write::write_all(&mut file, &[7; 8_192]).is_ok() {}
        // etcd has some room of its own left: it makes its files larger in large steps.
        let client = client(house.east()?, FEDERATION).await?.with_deadline(Duration::from_secs(2));
        let mut puts = 0;
        while client.put(&format!("large/{puts}"), vec![7; 1_000_000]).await.is_ok() {
            puts += 1;
            ensure!(puts < 200, "{puts} MB fit on a full disk");
        }
        house.says(FEDERATION, &["DiskFull", &disk.0.display().to_string(), "east"]).await?;
        house.logged(&["DiskFull", "free some space"]).await?;
        house.goes_on(OTHER).await?;
        // An open file would keep its place.
        drop(file);
        std::fs::remove_file(&filler)?;
        house.goes_on(FEDERATION).await.with_context(|| last_words(&house))
    })
}
