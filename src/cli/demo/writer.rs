//! One writer that notes what was acknowledged and when.
//!
//! It writes each key until that key is acknowledged, with the same value, and only then the next key. What is not
//! acknowledged may be there or not; what is acknowledged must be there for ever.
//!
//! A put has a deadline of one second. It is repeated at another endpoint as soon as it fails, and also when there is no
//! answer after a fifth of that: etcd drops what a follower forwards while leadership changes hands, without a word, and
//! whoever only waits for the deadline sees the deadline instead of the gap.
//!
//! It stays with the endpoint that acknowledged last. When it is told of other endpoints it goes to the first of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use quorate_link::etcd::EtcdClient;
use tokio::time::MissedTickBehavior;

/// How long a put may take.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// After this long without an answer it is tried at another endpoint too.
const IMPATIENCE: Duration = Duration::from_millis(200);
/// The pace: fast enough to see short gaps, slow enough to leave the machine to etcd.
const PACE: Duration = Duration::from_millis(7);
/// The wait after each endpoint has failed once.
const PAUSE: Duration = Duration::from_millis(20);
/// What all keys begin with.
pub const PREFIX: &str = "quorate-demo/";

/// The key with this number.
pub fn key(number: usize) -> String {
    format!("{PREFIX}{number:09}")
}

/// Its value.
pub fn value(number: usize) -> String {
    format!("value of key {number}")
}

/// A stretch without an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gap {
    /// When the last acknowledgement before it came.
    pub from: Duration,
    /// When the next one came.
    pub to: Duration,
}

impl Gap {
    /// How long it took.
    pub fn length(self) -> Duration {
        self.to.saturating_sub(self.from)
    }

    /// The same in whole milliseconds.
    pub fn ms(self) -> u64 {
        ms(self.length())
    }
}

/// Whole milliseconds.
pub fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Debug, Default)]
struct Log {
    /// When key i was acknowledged.
    acknowledged: Vec<Duration>,
    /// Attempts beyond the first one of a key.
    retries: usize,
    last_error: Option<String>,
}

/// A writer at work.
#[derive(Clone)]
pub struct Writer {
    clock: Clock,
    clients: Arc<Mutex<Arc<[EtcdClient]>>>,
    log: Arc<Mutex<Log>>,
    drain: Drain,
}

impl Writer {
    /// Starts to write at `clients`, with times on `clock`.
    pub fn start(clients: Vec<EtcdClient>, clock: Clock) -> Self {
        Self::paced(clients, clock, PACE)
    }

    /// The same with at least so much time between two puts.
    pub fn paced(clients: Vec<EtcdClient>, clock: Clock, pace: Duration) -> Self {
        let clients = Arc::new(Mutex::new(hasty(clients)));
        let writer = Self { clock, clients, log: Arc::default(), drain: Drain::new() };
        writer.drain.spawn(write(writer.clone(), pace));
        writer
    }

    /// Goes to other endpoints with the next key, the first one first.
    pub fn go_to(&self, clients: Vec<EtcdClient>) {
        *self.clients.lock().unwrap_or_else(PoisonError::into_inner) = hasty(clients);
    }

    fn clients(&self) -> Arc<[EtcdClient]> {
        Arc::clone(&self.clients.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: String) {
        self.log().last_error = Some(error);
    }

    /// Stops it after the put in flight, and returns how many keys were acknowledged: the first ones, without a hole.
    pub async fn stop(&self) -> usize {
        self.drain.finish(2 * DEADLINE).await;
        self.acknowledged()
    }

    /// How many keys are acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.log().acknowledged.len()
    }

    /// How many attempts there were beyond the first one of a key.
    pub fn retries(&self) -> usize {
        self.log().retries
    }

    /// Why the last failed attempt failed.
    pub fn last_error(&self) -> Option<String> {
        self.log().last_error.clone()
    }

    /// When the first key was acknowledged.
    pub fn first(&self) -> Option<Duration> {
        self.log().acknowledged.first().copied()
    }

    /// When the last key was acknowledged.
    pub fn last(&self) -> Option<Duration> {
        self.log().acknowledged.last().copied()
    }

    /// The longest gap of those that touch the time from `from` to `to`; one that is still open counts until now.
    pub fn longest_gap(&self, from: Duration, to: Duration) -> Gap {
        longest(&self.log().acknowledged, self.clock.elapsed(), from, to)
    }

    /// The longest gap of those that begin between `from` and `to`.
    pub fn longest_gap_beginning(&self, from: Duration, to: Duration) -> Gap {
        let log = self.log();
        let gaps = gaps(&log.acknowledged, self.clock.elapsed());
        gaps.filter(|gap| gap.from >= from && gap.from <= to)
            .max_by_key(|gap| gap.length())
            .unwrap_or_default()
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("log", &self.log).finish_non_exhaustive()
    }
}

fn gaps(acknowledged: &[Duration], now: Duration) -> impl Iterator<Item = Gap> {
    let ends = acknowledged.iter().skip(1).copied().chain([now]);
    acknowledged.iter().zip(ends).map(|(from, to)| Gap { from: *from, to })
}

fn longest(acknowledged: &[Duration], now: Duration, from: Duration, to: Duration) -> Gap {
    gaps(acknowledged, now)
        .filter(|gap| gap.to >= from && gap.from <= to)
        .max_by_key(|gap| gap.length())
        .unwrap_or_default()
}

fn hasty(clients: Vec<EtcdClient>) -> Arc<[EtcdClient]> {
    clients.into_iter().map(|client| client.with_deadline(DEADLINE)).collect()
}

async fn write(writer: Writer, pace: Duration) {
    let mut pace = tokio::time::interval(pace);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut clients = writer.clients();
    let mut at = 0;
    for number in 0.. {
        let now = writer.clients();
        if !Arc::ptr_eq(&now, &clients) {
            (clients, at) = (now, 0);
        }
        let Some(acknowledged_by) = put(&clients, at, number, &writer).await else { return };
        at = acknowledged_by;
        writer.log().acknowledged.push(writer.clock.elapsed());
        pace.tick().await;
        if writer.drain.started() {
            return;
        }
    }
}

/// Writes one key, at the endpoint `first` to begin with; returns the endpoint that acknowledged it, none if the writer
/// is to end.
async fn put(clients: &[EtcdClient], first: usize, number: usize, writer: &Writer) -> Option<usize> {
    let mut attempts = FuturesUnordered::new();
    let (mut started, mut failed) = (0, 0);
    let mut wait = Duration::ZERO;
    loop {
        tokio::select! {
            biased;
            Some((at, result)) = attempts.next() => match result {
                Ok(_) => return Some(at),
                Err(error) => {
                    writer.failed(format!("{error}"));
                    failed += 1;
                    // When each endpoint has failed, asking again at once would only keep the machine busy.
                    wait = if failed % clients.len() == 0 { PAUSE } else { Duration::ZERO };
                }
            },
            () = tokio::time::sleep(wait) => {
                if writer.drain.started() {
                    return None;
                }
                let at = (first + started) % clients.len();
                let client = clients.get(at)?;
                attempts.push(async move { (at, client.put(&key(number), value(number)).await) });
                writer.log().retries += usize::from(started > 0);
                started += 1;
                wait = IMPATIENCE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_of_a_window() {
        let at: Vec<Duration> = [0, 10, 20, 500, 510, 2_000].map(Duration::from_millis).to_vec();
        let gap = |from, to| {
            longest(&at, Duration::from_millis(2_100), Duration::from_millis(from), Duration::from_millis(to))
                .ms()
        };
        assert_eq!(gap(0, 15), 10);
        assert_eq!(gap(0, 25), 480);
        assert_eq!(gap(505, 508), 10);
        assert_eq!(gap(0, 3_000), 1_490);
        assert_eq!(gap(2_050, 3_000), 100); // still open
        assert_eq!(
            longest(&[], Duration::from_secs(1), Duration::ZERO, Duration::from_secs(1)),
            Gap::default()
        );
    }
}
