//! The simulator is only as honest as its etcd: the same random sequences of operations are carried out by the model and
//! by real etcd processes, and the answers are compared by message class, the member lists member by member.
//!
//! `QUORATE_CONTRACT_SEQUENCES=40` runs more; a mismatch prints the whole sequence and its seed.
#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test harness; a panic is its way to fail"
)]

mod pair;
mod real;
mod sequence;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quorate_core::sim::etcd::Refusal;
use quorate_core::sim::rng::Rng;

use pair::Pair;
use sequence::Op;

/// Deadline of every call; etcd has none of its own for membership changes.
const DEADLINE: Duration = Duration::from_millis(2_500);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Refused(Refusal),
    /// No answer within the deadline.
    Hangs,
    Other(String),
}

/// Returns the story, and how many calls were compared by their answer.
async fn run(binary: PathBuf, seed: u64, length: usize) -> Result<String> {
    let mut pair = Pair::new(binary, seed).await?;
    let mut rng = Rng::new(seed, 1);
    let mut result = pair.carry_out(Op::Write).await;
    let mut done = 0;
    while done < length && result.is_ok() {
        let op = sequence::next(&mut rng, pair.situation());
        done += usize::from(op != Op::Calm);
        result = pair.carry_out(op).await;
        if result.is_ok() {
            result = pair.compare_lists().await;
        }
    }
    pair.real.stop().await?;
    result.with_context(|| format!("the model is not like etcd; the sequence was:\n{}", pair.story))?;
    Ok(pair.story)
}

/// Sequences run side by side: most of their time is waiting for etcd's five seconds.
async fn run_all(seeds: std::ops::Range<u64>) -> Result<()> {
    let binary = real::binary().await?;
    let mut set = tokio::task::JoinSet::new();
    for seed in seeds {
        while set.len() >= 4 {
            report(set.join_next().await)?;
        }
        set.spawn(run(binary.clone(), seed, 13));
    }
    while !set.is_empty() {
        report(set.join_next().await)?;
    }
    Ok(())
}

fn report(done: Option<Result<Result<String>, tokio::task::JoinError>>) -> Result<()> {
    if let Some(done) = done {
        println!("{}", done??);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_answers_as_the_model_does_first_half() -> Result<()> {
    run_all(1..5).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_answers_as_the_model_does_second_half() -> Result<()> {
    run_all(5..9).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_answers_as_the_model_does_in_more_sequences() -> Result<()> {
    let more =
        std::env::var("QUORATE_CONTRACT_SEQUENCES").ok().and_then(|n| n.parse::<u64>().ok()).unwrap_or(8);
    run_all(9..(more + 1).max(9)).await
}
