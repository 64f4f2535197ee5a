//! The way to spawn, and the way to stop: one signal that every task hears, and one tracker that waits for all of them.

use std::future::Future;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The shutdown signal together with the tasks that have to hear it; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    token: CancellationToken,
    tasks: TaskTracker,
}

impl Drain {
    /// A signal that has not been given yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns a task that shutdown waits for. It has to end when the signal is given.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tasks.spawn(task)
    }

    /// Spawns a task that is dropped, wherever it waits, when the signal is given.
    pub fn spawn_until<F>(&self, task: F) -> JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let token = self.token.clone();
        self.tasks.spawn(async move { token.run_until_cancelled_owned(task).await })
    }

    /// A part that can be stopped alone, and stops with the whole. Shutdown of the whole waits for its tasks too.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { token: self.token.child_token(), tasks: self.tasks.clone() }
    }

    /// Gives the signal.
    pub fn start(&self) {
        self.token.cancel();
    }

    /// Whether the signal was given.
    pub fn started(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits for the signal.
    pub async fn signalled(&self) {
        self.token.cancelled().await;
    }

    /// Gives the signal and waits for all tasks, but not longer than `patience`; returns how many are left.
    pub async fn finish(&self, patience: Duration) -> usize {
        self.token.cancel();
        self.tasks.close();
        // Running out of patience is told by the number.
        let _ = tokio::time::timeout(patience, self.tasks.wait()).await;
        self.tasks.len()
    }

    /// Gives the signal when the process gets SIGTERM or SIGINT.
    pub fn on_signals(&self) -> std::io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let drain = self.clone();
        self.spawn(async move {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                () = drain.signalled() => return,
            };
            tracing::info!(signal = name, "stopping");
            drain.start();
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_tasks_and_counts_the_rest() {
        let drain = Drain::new();
        let part = drain.child();
        let heard = part.clone();
        let polite = drain.spawn(async move { heard.signalled().await });
        let dropped = drain.spawn_until(std::future::pending::<()>());
        drain.spawn(std::future::pending::<()>());
        assert!(!part.started());
        assert_eq!(drain.finish(Duration::from_secs(5)).await, 1);
        assert!(part.started());
        polite.await.unwrap();
        assert_eq!(dropped.await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_part_stops_alone() {
        let drain = Drain::new();
        let part = drain.child();
        part.start();
        part.signalled().await;
        assert!(!drain.started());
        assert_eq!(drain.finish(Duration::from_secs(1)).await, 0);
    }
}
