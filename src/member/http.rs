//! `/livez`, `/readyz` and `/metrics` of the supervisor.
//!
//! Alive is a supervisor that serves, whatever etcd does: a restart of the supervisor would take etcd down with it.
//! Ready is an etcd that says so itself.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use quorate_core::federation::member::{MemberReport, Process};
use quorate_link::drain::Drain;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::options::Options;
use crate::process::{command, probe};

#[derive(Clone)]
struct Http {
    options: Arc<Options>,
    report: watch::Receiver<MemberReport>,
}

/// Serves until the end.
pub(crate) async fn serve(
    listener: TcpListener,
    options: Arc<Options>,
    report: watch::Receiver<MemberReport>,
    drain: Drain,
) {
    let router = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Http { options, report });
    let served = axum::serve(listener, router).with_graceful_shutdown(async move { drain.signalled().await });
    if let Err(error) = served.await {
        tracing::error!(%error, "the health port ended");
    }
}

/// What is awaited, if anything is.
async fn ready(State(Http { options, report }): State<Http>) -> (StatusCode, String) {
    let (process, last_words) = {
        let report = report.borrow();
        (report.process.clone(), report.last_words.clone().unwrap_or_default())
    };
    let waits = match process {
        Process::Running => match probe::get(command::metrics(&options), "/readyz").await {
            Ok(_) => return (StatusCode::OK, "ok\n".to_owned()),
            Err(error) => format!("etcd runs and is not ready: {error}"),
        },
        Process::Unknown => "the data directory is being looked at".to_owned(),
        Process::AwaitingGrant => "waiting for a grant of the agent".to_owned(),
        Process::Starting => "etcd does not answer yet".to_owned(),
        Process::Exited => format!("etcd does not run: {last_words}"),
        Process::Stopped => "etcd was stopped on purpose".to_owned(),
        Process::Fenced => "this incarnation is barred for ever".to_owned(),
        Process::Quarantined(reason) => format!("{reason}; remedy: {}", reason.code.remedy()),
    };
    (StatusCode::SERVICE_UNAVAILABLE, format!("{waits}\n"))
}

async fn metrics(State(Http { options: _, report }): State<Http>) -> Response {
    let mut text = String::new();
    let registry = registry(&report.borrow());
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Made for each scrape: every value is in the report.
fn registry(report: &MemberReport) -> Registry {
    let mut registry = Registry::with_prefix("quorate_member");
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge = Gauge::<u64, AtomicU64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    gauge("etcd_starts", "Starts of etcd by this supervisor", report.starts);
    gauge("etcd_running", "Whether etcd runs and answers", (report.process == Process::Running).into());
    gauge(
        "quarantined",
        "Whether the guard refused the data directory",
        matches!(report.process, Process::Quarantined(_)).into(),
    );
    gauge("archived_directories", "Data directories in the archive", report.archived.len() as u64);
    if let Some(incarnation) = &report.incarnation {
        gauge("mark_term", "Raft term of the high-water mark", incarnation.mark.term.0);
        gauge("mark_index", "Raft index of the high-water mark", incarnation.mark.index.0);
    }
    registry
}
