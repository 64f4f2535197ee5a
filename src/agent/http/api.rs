//! The read-only JSON API: the status of each federation, its plan and its events.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use quorate_core::id::{FederationKey, ObjectName};
use quorate_core::report::FederationReport;
use serde::Serialize;

use crate::federation::Snapshot;
use crate::registry::Registry;

/// See the module.
pub fn router(registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/v1/site", get(site))
        .route("/v1/log", get(log))
        .route("/metrics", get(super::metrics))
        .route("/v1/reach/{address}", get(reach))
        .route("/v1/federations", get(list))
        .route("/v1/federations/{namespace}/{name}", get(one))
        .route("/v1/federations/{namespace}/{name}/view", get(view))
        .route("/v1/federations/{namespace}/{name}/plan", get(plan))
        .route("/v1/federations/{namespace}/{name}/events", get(events))
        .with_state(registry)
}

#[derive(Serialize)]
struct Problem {
    error: String,
}

fn problem(status: StatusCode, error: impl Into<String>) -> Response {
    (status, axum::Json(Problem { error: error.into() })).into_response()
}

fn key(namespace: &str, name: &str) -> Result<FederationKey, Box<Response>> {
    match (ObjectName::new(namespace), ObjectName::new(name)) {
        (Ok(namespace), Ok(name)) => Ok(FederationKey { namespace, name }),
        _ => Err(Box::new(problem(StatusCode::BAD_REQUEST, "namespace and name must be DNS labels"))),
    }
}

fn find(registry: &Registry, key: &FederationKey) -> Result<Arc<Snapshot>, Box<Response>> {
    let missing = || Box::new(problem(StatusCode::NOT_FOUND, format!("no federation {key} at this site")));
    registry.snapshot(key).ok_or_else(missing)
}

/// The answer about one federation, or why there is none.
fn about(
    registry: &Registry,
    (namespace, name): &(String, String),
    answer: impl FnOnce(&FederationKey, &Snapshot) -> Response,
) -> Response {
    let found = key(namespace, name).and_then(|key| Ok((find(registry, &key)?, key)));
    match found {
        Ok((snapshot, key)) => answer(&key, &snapshot),
        Err(response) => *response,
    }
}

async fn site(State(registry): State<Arc<Registry>>) -> Response {
    axum::Json(registry.report()).into_response()
}

async fn log(State(registry): State<Arc<Registry>>) -> Response {
    axum::Json(registry.log()).into_response()
}

/// Who reaches `host:port`; the answer of each site is what is in the way.
async fn reach(State(registry): State<Arc<Registry>>, Path(address): Path<String>) -> Response {
    let found = registry.mesh().reach(&address).await;
    let found: std::collections::BTreeMap<String, Option<String>> =
        found.into_iter().map(|(site, error)| (site.to_string(), error)).collect();
    axum::Json(found).into_response()
}

async fn list(State(registry): State<Arc<Registry>>) -> Response {
    let all: Vec<_> = registry.snapshots().into_iter().map(|snapshot| snapshot.status.clone()).collect();
    axum::Json(all).into_response()
}

async fn one(State(registry): State<Arc<Registry>>, Path(path): Path<(String, String)>) -> Response {
    about(&registry, &path, |_, snapshot| axum::Json(&snapshot.status).into_response())
}

async fn view(State(registry): State<Arc<Registry>>, Path(path): Path<(String, String)>) -> Response {
    about(&registry, &path, |key, snapshot| {
        let Snapshot { status, view, wish, effective, own, events: _, missing: _ } = snapshot.clone();
        let (own_digest, own) = own.unzip();
        let file = registry.file(key);
        axum::Json(FederationReport { status, view, wish, effective, own_digest, own, file }).into_response()
    })
}

async fn plan(State(registry): State<Arc<Registry>>, Path(path): Path<(String, String)>) -> Response {
    #[derive(Serialize)]
    struct Plan<'a> {
        decision: &'a str,
        reason: Option<&'a quorate_core::reason::Reason>,
        #[serde(rename = "plan")]
        steps: &'a [quorate_core::condition::PlanLine],
    }
    about(&registry, &path, |_, snapshot| {
        let status = &snapshot.status;
        let plan = Plan { decision: &status.decision, reason: status.reason.as_ref(), steps: &status.plan };
        axum::Json(plan).into_response()
    })
}

async fn events(State(registry): State<Arc<Registry>>, Path(path): Path<(String, String)>) -> Response {
    about(&registry, &path, |_, snapshot| axum::Json(snapshot.events.list()).into_response())
}
