//! Looks at a running etcd from the side: does it answer, does its log move on?

use std::net::SocketAddr;
use std::time::Duration;

use quorate_core::federation::member::Mark;
use quorate_core::id::{Index, Term};
use quorate_core::joiner;
use quorate_link::etcd::ClientPort;
use quorate_snapshot::wal::{self, WalFacts};
use tokio::sync::mpsc;

use crate::process::probe;
use crate::volume::Volume;

/// Until it answers for the first time, and when it does not answer.
const SOON: Duration = Duration::from_millis(100);
/// While it answers.
const LATER: Duration = Duration::from_secs(2);
/// How long a client port that is open may take for a handshake.
const HANDSHAKE: Duration = Duration::from_millis(400);
/// One look in so many is at the progress: every ten seconds.
const PROGRESS: u32 = 5;

/// What was seen.
#[derive(Debug)]
pub(super) enum Seen {
    /// etcd answers, or does not.
    Answers(bool),
    /// How far a joiner is that has not opened its client port before.
    Joining(joiner::Look),
    /// Its log went on since the last look.
    Moved,
    /// What its log says.
    Log(WalFacts),
}

/// What was seen, with the number of the start that it is about.
pub(super) type Numbered = (u64, Seen);

/// Follows one process until it is told to stop.
pub(super) async fn follow(address: SocketAddr, start: u64, to: mpsc::Sender<Numbered>) {
    let mut answered = false;
    let mut before = None;
    let mut round = 0_u32;
    loop {
        let answers = probe::get(address, "/livez").await.is_ok();
        if answers != answered {
            answered = answers;
            round = 0;
            if to.send((start, Seen::Answers(answers))).await.is_err() {
                return;
            }
        }
        // The second look comes soon: it proves what the first one saw of a new term.
        if answers && (round == 1 || round.is_multiple_of(PROGRESS)) {
            let progress = probe::get(address, "/metrics").await.ok().and_then(|text| probe::progress(&text));
            if progress != before {
                before = progress;
                if to.send((start, Seen::Moved)).await.is_err() {
                    return;
                }
            }
        }
        round = round.wrapping_add(1);
        tokio::time::sleep(if answers { LATER } else { SOON }).await;
    }
}

/// Follows a joiner until its client port is open.
pub(super) async fn follow_joiner(
    port: ClientPort,
    metrics: SocketAddr,
    start: u64,
    to: mpsc::Sender<Numbered>,
) {
    loop {
        let open = port.open(HANDSHAKE).await;
        let look = if open {
            Some(joiner::Look { open, ..joiner::Look::default() })
        } else {
            probe::get(metrics, "/metrics").await.ok().and_then(|text| probe::joining(&text))
        };
        if let Some(look) = look
            && (to.send((start, Seen::Joining(look))).await.is_err() || open)
        {
            return;
        }
        tokio::time::sleep(SOON).await;
    }
}

/// Reads the log of the running etcd; a torn end is normal then.
pub(super) async fn read_log(volume: Volume, start: u64, to: mpsc::Sender<Numbered>) {
    let read = tokio::task::spawn_blocking(move || wal::read(&volume.wal())).await;
    match read {
        Ok(Ok(Some(facts))) => {
            // A closed channel is the end of the supervisor.
            let _ = to.send((start, Seen::Log(facts))).await;
        }
        Ok(Ok(None)) => {}
        // For example a segment that etcd released while we read; the next look is soon.
        Ok(Err(error)) => tracing::debug!(%error, "cannot read the log of the running etcd"),
        Err(error) => tracing::debug!(%error, "the look at the log did not end"),
    }
}

/// How far a log proves its member to be: as Status has it, the committed index.
pub(super) fn mark(facts: &WalFacts) -> Mark {
    Mark { term: Term(facts.term), index: Index(facts.commit) }
}
