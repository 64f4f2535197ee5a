//! The plain HTTP port inside the cluster: is the process alive, what does it wait for, what does it count.
//!
//! `/livez` depends on nothing but the process: an outage of peers or of quorum must not restart anybody.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use ::http::{StatusCode, header};
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::drain::Drain;
use crate::metrics::{CONTENT_TYPE, Metrics};

/// What has to be there before the process counts as ready; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    tasks: Arc<Mutex<BTreeMap<String, bool>>>,
}

impl Readiness {
    /// Nothing is awaited yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Something more to wait for. It is awaited until its guard says that it is ready.
    pub fn register(&self, name: impl Into<String>) -> Task {
        let task = Task { name: name.into(), readiness: self.clone() };
        task.set(false);
        task
    }

    /// What is still awaited, sorted.
    pub fn awaited(&self) -> Vec<String> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().filter(|(_, ready)| !**ready).map(|(name, _)| name.clone()).collect()
    }

    fn report(&self) -> (bool, String) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for (name, ready) in tasks.iter() {
            // Writing into a string does not fail.
            let _ = if *ready { writeln!(text, "[+]{name} ok") } else { writeln!(text, "[-]{name} awaited") };
        }
        (tasks.values().all(|ready| *ready), text)
    }
}

/// One thing that is waited for. Dropping it changes nothing: a task that died stays what it was.
#[derive(Debug)]
pub struct Task {
    name: String,
    readiness: Readiness,
}

impl Task {
    /// It is there.
    pub fn ready(&self) {
        if !self.set(true) {
            let awaited = self.readiness.awaited();
            if awaited.is_empty() {
                tracing::info!(task = self.name, "ready");
            } else {
                tracing::info!(task = self.name, ?awaited, "one more part is ready");
            }
        }
    }

    /// It is no longer there.
    pub fn not_ready(&self) {
        if self.set(false) {
            tracing::warn!(task = self.name, "no longer ready");
        }
    }

    /// Returns what it was before.
    fn set(&self, ready: bool) -> bool {
        let mut tasks = self.readiness.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.insert(self.name.clone(), ready).unwrap_or(false)
    }
}

#[derive(Clone)]
struct Parts {
    readiness: Readiness,
    metrics: Metrics,
}

/// `/livez`, `/readyz` and `/metrics`, with `extra` beside them.
pub fn router(readiness: Readiness, metrics: Metrics, extra: Router) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
        .with_state(Parts { readiness, metrics })
        .merge(extra)
}

async fn readyz(State(parts): State<Parts>, RawQuery(query): RawQuery) -> impl IntoResponse {
    let (ready, report) = parts.readiness.report();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose = query
        .is_some_and(|query| query.split('&').any(|part| part == "verbose" || part.starts_with("verbose=")));
    let verdict = if ready { "ok\n" } else { "not ready\n" };
    // What is missing is told without being asked.
    let text = if verbose || !ready { format!("{report}{verdict}") } else { verdict.to_owned() };
    (status, text)
}

async fn render(State(parts): State<Parts>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], parts.metrics.render())
}

/// Serves `router` without TLS until the end.
pub async fn serve(listener: TcpListener, router: Router, drain: Drain) -> std::io::Result<()> {
    axum::serve(listener, router).with_graceful_shutdown(async move { drain.signalled().await }).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    async fn ask(address: std::net::SocketAddr, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    #[tokio::test]
    async fn says_what_it_waits_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (readiness, drain) = (Readiness::new(), Drain::new());
        let extra = Router::new().route("/v1/hello", get(async || "hello"));
        let router = router(readiness.clone(), Metrics::new(), extra);
        drain.spawn(serve(listener, router, drain.clone()));

        assert_eq!(ask(address, "/readyz").await, (200, "ok\n".into()));
        let (records, mesh) = (readiness.register("records"), readiness.register("mesh"));
        let waiting = "[-]mesh awaited\n[-]records awaited\nnot ready\n";
        assert_eq!(ask(address, "/readyz").await, (503, waiting.into()));
        records.ready();
        assert_eq!(readiness.awaited(), ["mesh"]);
        assert_eq!(ask(address, "/livez").await, (200, "ok\n".into()));
        mesh.ready();
        assert_eq!(ask(address, "/readyz").await, (200, "ok\n".into()));
        let all = "[+]mesh ok\n[+]records ok\nok\n";
        assert_eq!(ask(address, "/readyz?verbose").await, (200, all.into()));
        mesh.not_ready();
        drop(mesh);
        assert_eq!(ask(address, "/readyz").await.0, 503);
        assert_eq!(ask(address, "/v1/hello").await, (200, "hello".into()));
        assert_eq!(ask(address, "/metrics").await, (200, "# EOF\n".into()));
        assert_eq!(ask(address, "/other").await.0, 404);
        assert_eq!(drain.finish(Duration::from_secs(5)).await, 0);
    }
}
