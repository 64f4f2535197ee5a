//! The read-only JSON API: the status of each federation, its plan and its events.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use quorate_core::id::{FederationKey, ObjectName};
use serde::Serialize;

use crate::federation::Snapshot;
use crate::registry::Registry;

/// See the module.
pub fn router(registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/v1/site", get(site))
        .route("/v1/federations", get(list))
        .route("/v1/federations/{namespace}/{name}", get(one))
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

fn find(registry: &Registry, namespace: &str, name: &str) -> Result<Arc<Snapshot>, Box<Response>> {
    let key = match (ObjectName::new(namespace), ObjectName::new(name)) {
        (Ok(namespace), Ok(name)) => FederationKey { namespace, name },
        _ => return Err(Box::new(problem(StatusCode::BAD_REQUEST, "namespace and name must be DNS labels"))),
    };
    let missing = || Box::new(problem(StatusCode::NOT_FOUND, format!("no federation {key} at this site")));
    registry.snapshot(&key).ok_or_else(missing)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SiteInfo {
    site: String,
    mesh: String,
    version: &'static str,
    peers: Vec<PeerInfo>,
    problems: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerInfo {
    name: String,
    age_ms: Option<u64>,
}

async fn site(State(registry): State<Arc<Registry>>) -> Response {
    let mesh = registry.mesh();
    let peers =
        mesh.peers().map(|peer| PeerInfo { name: peer.to_string(), age_ms: mesh.age_ms(peer) }).collect();
    let (site, mesh) = registry.site();
    axum::Json(SiteInfo {
        site,
        mesh,
        version: env!("CARGO_PKG_VERSION"),
        peers,
        problems: registry.problems(),
    })
    .into_response()
}

async fn list(State(registry): State<Arc<Registry>>) -> Response {
    let all: Vec<_> = registry.snapshots().into_iter().map(|snapshot| snapshot.status.clone()).collect();
    axum::Json(all).into_response()
}

async fn one(
    State(registry): State<Arc<Registry>>,
    Path((namespace, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    let snapshot = match find(&registry, &namespace, &name) {
        Ok(snapshot) => snapshot,
        Err(response) => return *response,
    };
    let ages = query.is_some_and(|query| query.split('&').any(|part| part == "ages=true" || part == "ages"));
    if ages {
        #[derive(Serialize)]
        struct Full<'a> {
            status: &'a quorate_core::condition::Status,
            view: Option<&'a quorate_core::federation::view::View>,
        }
        return axum::Json(Full { status: &snapshot.status, view: snapshot.view.as_ref() }).into_response();
    }
    axum::Json(&snapshot.status).into_response()
}

async fn plan(
    State(registry): State<Arc<Registry>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    #[derive(Serialize)]
    struct Plan<'a> {
        decision: &'a str,
        reason: Option<&'a quorate_core::reason::Reason>,
        #[serde(rename = "plan")]
        steps: &'a [quorate_core::condition::PlanLine],
    }
    match find(&registry, &namespace, &name) {
        Ok(snapshot) => {
            let status = &snapshot.status;
            let plan =
                Plan { decision: &status.decision, reason: status.reason.as_ref(), steps: &status.plan };
            axum::Json(plan).into_response()
        }
        Err(response) => *response,
    }
}

async fn events(
    State(registry): State<Arc<Registry>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    match find(&registry, &namespace, &name) {
        Ok(snapshot) => axum::Json(snapshot.events.list()).into_response(),
        Err(response) => *response,
    }
}
