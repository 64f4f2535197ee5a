//! Writes what the agents need: credentials into the adopt folder of this site, the FederatedEtcd into its manifests. The
//! manifest comes last: from then on the agent acts.

use std::path::{Path, PathBuf};

use quorate_agent::process::credentials;
use quorate_api::config::SiteConfig;
use quorate_core::id::FederationKey;
use quorate_link::durable::{PRIVATE, PUBLIC, write_file};

use super::Args;
use super::look::text;
use crate::failure::{Exit, Failure};

pub(super) fn write(
    args: &Args,
    key: &FederationKey,
    site: &SiteConfig,
    manifest: &str,
) -> Result<Vec<PathBuf>, Failure> {
    let file = site.manifests.join(format!("{}.{}.yaml", key.namespace, key.name));
    refuse_other(&site.manifests, &file, key, manifest)?;
    let folder = credentials(&site.state_dir, key);
    let mut files = vec![
        (folder.join("ca.crt"), text(&args.cacert)?, PUBLIC),
        (folder.join("client.crt"), text(&args.cert)?, PUBLIC),
        (folder.join("client.key"), text(&args.key)?, PRIVATE),
        (folder.join("peer-ca.crt"), text(&args.peer_ca)?, PUBLIC),
    ];
    if let Some(ca_key) = &args.peer_ca_key {
        files.push((folder.join("peer-ca.key"), text(ca_key)?, PRIVATE));
    }
    files.push((file, manifest.to_owned(), PUBLIC));
    for (path, content, mode) in &files {
        write_file(path, content.as_bytes(), *mode).map_err(|error| Failure::new(Exit::Usage, error))?;
    }
    Ok(files.into_iter().map(|(path, ..)| path).collect())
}

/// A federation of that name that says something else is not overwritten.
fn refuse_other(folder: &Path, file: &Path, key: &FederationKey, manifest: &str) -> Result<(), Failure> {
    let entries = std::fs::read_dir(folder).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("cannot read {}", folder.display()));
        Failure::new(Exit::Usage, error)
    })?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let Ok(found) = std::fs::read_to_string(&path) else { continue };
        let same = path == file && found == manifest;
        let documents = quorate_api::manifest::parse_each(&found).unwrap_or_default();
        if !same && documents.iter().flatten().any(|document| document.key == *key) {
            let message = format!("{key} is described in {} already", path.display());
            return Err(Failure::message(Exit::Unsafe, message)
                .hint("choose another name, or move that file away if nothing of it runs"));
        }
    }
    Ok(())
}
