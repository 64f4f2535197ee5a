//! Data directories that are not what the records say.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::process::Kind;
use quorate_e2e::field::FEDERATION;
use quorate_e2e::suite::{ALL, Case, Minor, Outcome};

use crate::house::{House, OTHER, at_home};

pub(crate) const CASES: &[Case] = &[
    Case { name: "data::old_copy", minors: ALL, short: Some(Minor::V3_6), run: old_copy },
    Case { name: "data::foreign", minors: ALL, short: None, run: foreign },
    Case { name: "data::emptied", minors: ALL, short: None, run: emptied },
];

const GONE: Duration = Duration::from_secs(20);

/// Ends agent, supervisors and etcds of east.
pub(crate) async fn stop(house: &House) -> Result<()> {
    house.field.mesh.run.kill_site("east")?;
    house.field.mesh.gone(house.east()?, &[Kind::Agent, Kind::Member, Kind::Etcd], GONE).await
}

pub(crate) async fn start(house: &House) -> Result<()> {
    house.field.mesh.start(house.east()?)?;
    house.field.mesh.up(house.east()?, GONE).await
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    ensure!(status.success(), "cp -a {} {} failed", from.display(), to.display());
    Ok(())
}

/// Whether the volume holds a directory with these files, as `data` or in the archive.
fn kept(volume: &Path, files: &[(PathBuf, u64)]) -> Result<bool> {
    let archive = volume.join("archive");
    let mut places = vec![volume.join("data")];
    if archive.exists() {
        for entry in std::fs::read_dir(&archive)? {
            places.push(entry?.path());
        }
    }
    for place in places.iter().filter(|place| place.exists()) {
        if listing(place, place)? == files {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The files below a folder by their paths below `base`, with their sizes.
pub(crate) fn listing(base: &Path, folder: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let found = std::fs::symlink_metadata(&path)?;
        if found.is_dir() {
            files.extend(listing(base, &path)?);
        } else {
            files.push((path.strip_prefix(base)?.to_owned(), found.len()));
        }
    }
    files.sort();
    Ok(files)
}

/// How many etcds run on this data directory.
fn etcds_on(house: &House, data: &Path) -> usize {
    let on = |flag: Option<&str>| flag.is_some_and(|dir| Path::new(dir) == data);
    house.field.mesh.run.of("east", Kind::Etcd).iter().filter(|etcd| on(etcd.flag("data-dir"))).count()
}

/// Puts a bad directory in the place of main's, shows that etcd is not started on it while `other` goes on.
/// What was refused is kept as it is, in its place or in the archive.
async fn with_bad_data(house: &House, make: impl FnOnce(&Path) -> Result<()>, words: &[&str]) -> Result<()> {
    house.lose_main();
    let data = house.volume(FEDERATION)?.join("data");
    let good = house.field.folder().join("good");
    std::fs::rename(&data, &good).context("putting the good directory aside")?;
    make(&data)?;
    let before = listing(&data, &data)?;
    start(house).await?;
    house.says(FEDERATION, words).await?;
    house.goes_on(OTHER).await?;
    ensure!(etcds_on(house, &data) == 0, "etcd runs on a directory that is not its own");
    ensure!(
        kept(&house.volume(FEDERATION)?, &before)?,
        "the refused directory is neither here nor in the archive"
    );
    Ok(())
}

/// A copy of the own directory from some time ago: what was acknowledged since is not in it.
fn old_copy(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let data = house.volume(FEDERATION)?.join("data");
        let old = house.field.folder().join("old");
        stop(&house).await?;
        copy(&data, &old)?;
        start(&house).await?;
        for _ in 0..50 {
            house.goes_on(FEDERATION).await?;
        }
        stop(&house).await?;
        with_bad_data(&house, |place| copy(&old, place), &["DataLost", "east"]).await
    })
}

/// The directory of another federation's member.
fn foreign(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        stop(&house).await?;
        let other = house.volume(OTHER)?.join("data");
        with_bad_data(&house, |place| copy(&other, place), &["DataLost", "east"]).await
    })
}

/// An empty directory.
fn emptied(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        stop(&house).await?;
        with_bad_data(&house, |place| Ok(std::fs::create_dir(place)?), &["DataLost", "east"]).await
    })
}
