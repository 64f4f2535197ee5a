//! What etcd prints: it writes into a file by itself, and the last lines are kept in memory.
//!
//! No pipe: an etcd whose supervisor hangs must not hang with it. The lines in memory survive a wiped volume.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// Lines in memory.
pub const LINES: usize = 500;
/// Longer lines are cut.
const LINE: usize = 4096;
/// A larger file becomes `etcd.log.1` at the next start, and is emptied if it grows on.
const FILE: u64 = 16 * 1024 * 1024;
/// Read at most this much at once; what lies before it is skipped.
const CHUNK: u64 = 256 * 1024;

/// The log file with its last lines.
#[derive(Debug)]
pub struct Logs {
    path: PathBuf,
    file: Option<File>,
    offset: u64,
    partial: Vec<u8>,
    lines: VecDeque<String>,
    /// How many of them the process wrote that the file was opened for last.
    fresh: usize,
}

impl Logs {
    /// Follows `path`; it need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, file: None, offset: 0, partial: Vec::new(), lines: VecDeque::new(), fresh: 0 }
    }

    /// Opens the file for the next process; only what comes from now on is followed.
    pub fn open(&mut self) -> io::Result<File> {
        self.poll();
        if fs::metadata(&self.path).is_ok_and(|meta| meta.len() > FILE) {
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
        }
        let open = || OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&self.path);
        let (file, child) = (open()?, open()?);
        self.offset = file.metadata()?.len();
        self.file = Some(file);
        self.partial.clear();
        self.fresh = 0;
        Ok(child)
    }

    /// Takes over what was written since the last look. A file that cannot be read changes nothing.
    pub fn poll(&mut self) {
        // Best effort: these lines are for people.
        let _ = self.read();
    }

    fn read(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let length = file.metadata()?.len();
        if length < self.offset {
            self.offset = 0;
        }
        if length - self.offset > CHUNK {
            self.offset = length - CHUNK;
            self.partial.clear();
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut text = Vec::new();
        let count = file.take(CHUNK).read_to_end(&mut text)?;
        self.offset += count as u64;
        if length > FILE {
            // etcd appends, so that it goes on at the new end.
            file.set_len(0)?;
            self.offset = 0;
        }
        self.take(&text);
        Ok(())
    }

    fn take(&mut self, text: &[u8]) {
        for piece in text.split_inclusive(|byte| *byte == b'\n') {
            let room = LINE.saturating_sub(self.partial.len());
            self.partial.extend(piece.iter().take(room));
            if piece.ends_with(b"\n") {
                let line = String::from_utf8_lossy(&self.partial).trim_end().to_owned();
                self.partial.clear();
                if self.lines.len() == LINES {
                    self.lines.pop_front();
                }
                self.lines.push_back(line);
                self.fresh = (self.fresh + 1).min(LINES);
            }
        }
    }

    /// The last lines, oldest first.
    pub fn last(&self, count: usize) -> Vec<String> {
        self.lines.iter().skip(self.lines.len().saturating_sub(count)).cloned().collect()
    }

    /// The last lines of the process that the file was opened for last.
    pub fn of_this_process(&self) -> Vec<String> {
        self.last(self.fresh)
    }

    /// The very last line.
    pub fn last_words(&self) -> Option<String> {
        self.lines.back().cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_memory_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd.log");
        fs::write(&path, "of an earlier life\n").unwrap();
        let mut logs = Logs::new(path.clone());
        assert_eq!(logs.last(10), Vec::<String>::new());
        let mut file = logs.open().unwrap();
        file.write_all(b"one\ntwo\nhal").unwrap();
        logs.poll();
        assert_eq!(logs.last(10), ["one", "two"]);
        file.write_all(b"f\n").unwrap();
        file.write_all(&vec![b'x'; 10_000]).unwrap();
        file.write_all(b"\n").unwrap();
        logs.poll();
        assert_eq!(logs.last(2)[0], "half");
        assert_eq!(logs.last_words().unwrap().len(), LINE);
        for number in 0..2000 {
            writeln!(file, "{number}").unwrap();
        }
        logs.poll();
        assert_eq!(logs.last(usize::MAX).len(), LINES);
        // A wiped volume: what was read stays.
        fs::remove_file(&path).unwrap();
        logs.poll();
        assert_eq!(logs.last_words().unwrap(), "1999");
    }

    #[test]
    fn the_file_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd.log");
        let mut logs = Logs::new(path.clone());
        let mut file = logs.open().unwrap();
        file.set_len(FILE + 1).unwrap();
        logs.poll();
        file.write_all(b"\nafter\n").unwrap();
        logs.poll();
        assert!(fs::metadata(&path).unwrap().len() < 100);
        assert_eq!(logs.last_words().unwrap(), "after");
        file.set_len(FILE + 1).unwrap();
        drop(logs);
        let mut logs = Logs::new(path.clone());
        logs.open().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert!(folder.path().join("etcd.log.1").exists());
    }
}
