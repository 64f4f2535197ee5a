//! The bundle as a folder, or as a compressed archive.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use quorate_link::clock::Clock;

use super::collect::Bundle;

/// Good for text, and quick.
const LEVEL: i32 = 6;

pub(super) fn write(bundle: &Bundle, output: &Path) -> io::Result<()> {
    if output.to_string_lossy().ends_with(".tar.zst") {
        archive(bundle, output)
    } else {
        folder(bundle, output)
    }
}

fn archive(bundle: &Bundle, output: &Path) -> io::Result<()> {
    // It may hold more than everybody should read.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(output)?;
    let mut tar = tar::Builder::new(zstd::Encoder::new(file, LEVEL)?);
    let top =
        output.file_name().unwrap_or_default().to_string_lossy().trim_end_matches(".tar.zst").to_owned();
    for (path, content) in &bundle.files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(Clock::unix_seconds());
        tar.append_data(&mut header, format!("{top}/{path}"), content.as_slice())?;
    }
    tar.into_inner()?.finish()?.sync_all()
}

fn folder(bundle: &Bundle, output: &Path) -> io::Result<()> {
    fs::create_dir(output)?;
    for (path, content) in &bundle.files {
        let path = output.join(path);
        if let Some(above) = path.parent() {
            fs::create_dir_all(above)?;
        }
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(content)?;
    }
    Ok(())
}
