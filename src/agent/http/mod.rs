//! What people and programs may read: `/livez`, `/readyz` and `/metrics` on a port, the JSON API on a UNIX socket.

mod api;

use std::io;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use quorate_link::drain::Drain;
use tokio::net::{TcpListener, UnixListener};

use crate::registry::Registry;
pub use api::router as api;

/// The public part. `/livez` needs neither quorum nor peers: who answers is alive.
pub fn public(registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(registry)
}

async fn ready(State(registry): State<Arc<Registry>>, RawQuery(query): RawQuery) -> Response {
    let awaited = registry.awaited();
    let status = if awaited.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose =
        query.is_some_and(|query| query.split('&').any(|part| part == "verbose" || part == "verbose=true"));
    let mut text = String::new();
    if verbose {
        for what in &awaited {
            text.push_str("[-] ");
            text.push_str(what);
            text.push('\n');
        }
    }
    text.push_str(if awaited.is_empty() { "ok\n" } else { "not ready\n" });
    (status, text).into_response()
}

pub(crate) async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], registry.metrics().render()).into_response()
}

/// Serves a router on a TCP port until the end.
pub async fn serve(listener: TcpListener, router: Router, drain: Drain) {
    let end = drain.clone();
    let served =
        axum::serve(listener, router).with_graceful_shutdown(async move { end.signalled().await }).await;
    if let Err(error) = served {
        tracing::error!(%error, "the health port is not served any more");
    }
}

/// The socket at `path`, for its owner only. A socket that was left behind is replaced: the state folder is locked.
pub fn socket(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

/// Serves a router on a UNIX socket until the end.
pub async fn serve_socket(listener: UnixListener, router: Router, drain: Drain) {
    let end = drain.clone();
    let served =
        axum::serve(listener, router).with_graceful_shutdown(async move { end.signalled().await }).await;
    if let Err(error) = served {
        tracing::error!(%error, "the socket is not served any more");
    }
}
