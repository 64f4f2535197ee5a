//! Proof at the end: every acknowledged key through every voter, equal hashes, the members as wished.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_link::etcd::EtcdClient;

use super::writer::{PREFIX, key, value};

/// After the last key: `/` is the last character of the prefix, and `0` follows it.
const END: &str = "quorate-demo0";
const PAGE: i64 = 2_000;
const DEADLINE: Duration = Duration::from_secs(10);

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// Acknowledged keys that are missing or hold something else, at the voter where it is worst.
    pub lost: usize,
    /// The revision whose hashes were compared.
    pub revision: i64,
    /// The hash that all voters have.
    pub hash: u32,
}

/// Reads all of the first `acknowledged` keys through each voter and compares the hashes of all voters.
pub async fn verify(voters: &[EtcdClient], acknowledged: usize) -> Result<Proof> {
    let mut lost = 0;
    for voter in voters {
        let voter = voter.with_deadline(DEADLINE);
        lost = lost.max(
            missing(&voter, acknowledged)
                .await
                .with_context(|| format!("reading through {}", voter.endpoint()))?,
        );
    }
    let (revision, hash) = hashes(voters).await?;
    Ok(Proof { lost, revision, hash })
}

/// How many of the acknowledged keys this voter does not answer with their values.
async fn missing(voter: &EtcdClient, acknowledged: usize) -> Result<usize> {
    let mut from = PREFIX.to_owned();
    let mut number = 0;
    let mut found = 0;
    loop {
        let page = voter.page(&from, END, PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        from = format!("{last}\0");
        for (name, text) in &page {
            // Both run upwards; a key that is missing here is passed by.
            while number < acknowledged && key(number) < *name {
                number += 1;
            }
            if number < acknowledged && key(number) == *name {
                found += usize::from(value(number).as_bytes() == text);
                number += 1;
            }
        }
    }
    Ok(acknowledged - found)
}

/// The hash at one revision, which has to be the same everywhere.
async fn hashes(voters: &[EtcdClient]) -> Result<(i64, u32)> {
    let first = voters.first().context("no voters")?;
    // The reads before were linearizable, so every voter has applied at least this revision.
    let revision = first.hash_kv(0).await?.header.revision;
    let mut all = Vec::new();
    for voter in voters {
        let hash = voter.with_deadline(DEADLINE).hash_kv(revision).await?;
        all.push((voter.endpoint().to_owned(), hash.hash, hash.compact_revision));
    }
    let (_, hash, compacted) = all.first().context("no voters")?.clone();
    if all.iter().any(|(_, other, at)| (*other, *at) != (hash, compacted)) {
        bail!("the data of the voters differs at revision {revision}: {all:?}");
    }
    Ok((revision, hash))
}
