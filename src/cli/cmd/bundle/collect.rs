//! What goes into a bundle, and what does not.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use quorate_api::config::SiteConfig;
use quorate_core::doctor::examine;
use quorate_core::report::FederationReport;
use serde::Serialize;

use super::redact::{Counts, etcd_log, scrub};
use crate::client::Client;
use crate::cmd::{doctor, version};
use crate::failure::Failure;
use crate::output::json;
use crate::output::table::bytes;

/// The end of a log is where the trouble is.
const TAIL: u64 = 512 * 1024;

/// See the module.
pub(super) struct Bundle {
    /// The site, for the name.
    pub(super) site: String,
    /// Contents by path.
    pub(super) files: BTreeMap<String, Vec<u8>>,
}

/// What is being collected.
#[derive(Default)]
struct Basket {
    files: BTreeMap<String, Vec<u8>>,
    counts: Counts,
    failed: Vec<String>,
}

impl Basket {
    fn text(&mut self, path: impl Into<String>, text: &str) {
        let text = scrub(text, &mut self.counts);
        self.files.insert(path.into(), text.into_bytes());
    }

    fn json<T: Serialize>(&mut self, path: impl Into<String>, value: &T) -> Result<(), Failure> {
        let text = json::json(value)?;
        self.text(path, &text);
        Ok(())
    }

    /// What could not be had is a finding too.
    fn asked<T>(&mut self, what: &str, answer: Result<T, Failure>) -> Option<T> {
        answer.map_err(|failure| self.failed.push(format!("{what}: {failure}"))).ok()
    }

    fn file(&mut self, path: impl Into<String>, from: &Path) {
        match tail(from) {
            Ok(text) => self.text(path, &text),
            Err(error) => self.failed.push(format!("{}: {error}", from.display())),
        }
    }

    fn etcd_log(&mut self, path: impl Into<String>, from: &Path) {
        match tail(from) {
            Ok(text) => {
                let text = etcd_log(&text, &mut self.counts);
                self.files.insert(path.into(), text.into_bytes());
            }
            Err(error) => self.failed.push(format!("{}: {error}", from.display())),
        }
    }
}

/// The end of a file, from the start of a line on.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    let skipped = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(skipped))?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    match text.split_once('\n') {
        Some((_, rest)) if skipped > 0 => Ok(format!("({} before this left out)\n{rest}", bytes(skipped))),
        _ => Ok(text),
    }
}

pub(super) async fn collect(
    client: &Client,
    config: Option<&SiteConfig>,
    state_dir: &Path,
    logs: &[PathBuf],
) -> Result<Bundle, Failure> {
    let mut basket = Basket::default();
    basket.json("version.json", &version::plain())?;
    let facts = doctor::gather(client, config, state_dir).await?;
    let findings = examine(&facts);
    basket.json("doctor.json", &doctor::plain(&facts, &findings))?;
    basket.text("doctor.txt", &doctor::text(&facts, &findings));
    if let Ok(agent) = &facts.agent {
        basket.json("site.json", agent)?;
    }
    let metrics = client.metrics().await;
    if let Some(metrics) = basket.asked("metrics", metrics) {
        basket.text("metrics.txt", &metrics);
    }
    let log = client.log().await;
    if let Some(lines) = basket.asked("the agent's log", log) {
        basket.text("agent.log", &(lines.join("\n") + "\n"));
    }
    for log in logs {
        let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
        basket.file(format!("logs/{name}"), log);
    }
    if let Some(config) = config {
        basket.text("config.yaml", &config.to_yaml());
    }
    for report in &facts.federations {
        federation(&mut basket, client, report).await?;
    }
    let left_out = state_folder(&mut basket, state_dir);
    let site = facts.agent.as_ref().map_or_else(|_| "unknown".to_owned(), |agent| agent.site.clone());
    let readme = readme(&site, &basket, &left_out);
    basket.text("README.md", &readme);
    Ok(Bundle { site, files: basket.files })
}

async fn federation(basket: &mut Basket, client: &Client, report: &FederationReport) -> Result<(), Failure> {
    let (namespace, name) = (report.status.namespace.as_str(), report.status.name.as_str());
    let folder = format!("federations/{namespace}.{name}");
    basket.json(format!("{folder}/status.json"), &report.status)?;
    basket.json(format!("{folder}/view.json"), report)?;
    let events = client.events(namespace, name).await;
    if let Some(Some(events)) = basket.asked("events", events) {
        basket.json(format!("{folder}/events.json"), &events)?;
    }
    if let Some(file) = &report.file {
        basket.file(format!("{folder}/manifest.yaml"), file);
    }
    Ok(())
}

/// Records, marks and logs of the state folder, and a list of all its files. Gives what was left out.
fn state_folder(basket: &mut Basket, state_dir: &Path) -> Vec<String> {
    let mut list = String::new();
    let mut left_out = Vec::new();
    walk(state_dir, &mut |path, meta| {
        let inside = path.strip_prefix(state_dir).unwrap_or(path);
        let _ = writeln!(
            list,
            "{:o} {:>10} {}",
            meta.permissions().mode() & 0o7777,
            meta.len(),
            inside.display()
        );
    });
    let mut files = Vec::new();
    walk(state_dir, &mut |path, _| files.push(path.to_owned()));
    for path in files {
        let inside = path.strip_prefix(state_dir).unwrap_or(&path).to_owned();
        let part = |name: &str| inside.components().any(|part| part.as_os_str() == name);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let end = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        let to = format!("state/{}", inside.display());
        if part("data") || part("archive") {
            // Listed as a whole below.
        } else if end == "key" {
            left_out.push(format!("{}: a private key", inside.display()));
        } else if name.starts_with("etcd.log") {
            basket.etcd_log(to, &path);
        } else if end == "json" || end == "log" || end == "crt" {
            basket.file(to, &path);
        }
    }
    basket.text("state-folder.txt", &list);
    left_out
}

fn walk(folder: &Path, see: &mut dyn FnMut(&Path, &fs::Metadata)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        // Links are not followed: they may lead anywhere.
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            walk(&path, see);
        } else if meta.is_file() {
            see(&path, &meta);
        }
    }
}

fn readme(site: &str, basket: &Basket, left_out: &[String]) -> String {
    let Counts { keys, tokens, values, lines } = basket.counts;
    let mut text = format!("# Support bundle of site {site}\n\n## In it\n\n");
    for (path, content) in &basket.files {
        let _ = writeln!(text, "- {path} ({})", bytes(content.len() as u64));
    }
    text.push_str(
        "\n## Left out, and why\n\n\
         - etcd's data directories (`data/`) and old ones (`archive/`): they hold the data of users; `state-folder.txt` lists \
         their files.\n\
         - All but the last 512 KiB of each log: what is older is rarely the cause.\n",
    );
    for what in left_out {
        let _ = writeln!(text, "- {what}.");
    }
    let _ = writeln!(
        text,
        "- {keys} private keys and {tokens} join tokens inside of texts, wherever they stood: they give power."
    );
    let _ = writeln!(
        text,
        "- {values} values and {lines} lines of etcd's log: requests, responses and traces, which may hold keys of users."
    );
    if !basket.failed.is_empty() {
        text.push_str("\n## Could not be had\n\n");
        for failed in &basket.failed {
            let _ = writeln!(text, "- {}", failed.replace('\n', "; "));
        }
    }
    text
}
