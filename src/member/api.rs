//! The member API: what the agent of the own site may ask for, over mTLS.
//!
//! Who may come in is settled by the transport; here the words on the wire are read and the answers are told.

use axum::Router;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use quorate_api::member::member_server::{Member, MemberServer};
use quorate_api::member::{
    FenceRequest, GrantRequest, HelloRequest, LogsReply, LogsRequest, ReadDirRequest, Report, StopRequest,
    WatchRequest,
};
use quorate_core::federation::member::{Grant, MemberReport};
use quorate_core::id::IncarnationId;
use quorate_link::drain::Drain;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request as Call, Response, Status};

use crate::process::logs;
use crate::supervise::{Answer, Refusal, Request};
use crate::volume::{Fenced, GRANT};

/// Format of a report on the wire.
pub const REPORT: &str = "quorate.report/1";

struct Api {
    requests: mpsc::Sender<Request>,
    report: watch::Receiver<MemberReport>,
    drain: Drain,
}

/// The service, ready for the transport.
pub(crate) fn router(
    requests: mpsc::Sender<Request>,
    report: watch::Receiver<MemberReport>,
    drain: Drain,
) -> Router {
    tonic::service::Routes::new(MemberServer::new(Api { requests, report, drain }))
        .prepare()
        .into_axum_router()
}

impl Api {
    async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, Status> {
        let ending = || Status::unavailable("the supervisor is stopping; ask again when it is back");
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| ending())?;
        answered.await.map_err(|_| ending())?.map_err(|refusal| status(&refusal))
    }
}

fn status(refusal: &Refusal) -> Status {
    let mut text = refusal.to_string();
    let mut cause = std::error::Error::source(refusal);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    match refusal {
        Refusal::Grant(_) | Refusal::OtherIncarnation { .. } | Refusal::Running | Refusal::Seeded(_) => {
            Status::failed_precondition(text)
        }
        Refusal::NotStarted(_) => Status::unavailable(text),
        Refusal::Archive(crate::archive::Error::Reason(_)) => Status::invalid_argument(text),
        Refusal::Archive(_) | Refusal::Look(_) | Refusal::Document(_) => Status::internal(text),
    }
}

fn encode(report: &MemberReport) -> Result<Report, Status> {
    let body = serde_json::to_vec(report).map_err(|error| Status::internal(error.to_string()))?;
    Ok(Report { format: REPORT.to_owned(), body })
}

fn incarnation(text: &str) -> Result<IncarnationId, Status> {
    text.parse().map_err(|error| Status::invalid_argument(format!("incarnation: {error}")))
}

#[tonic::async_trait]
impl Member for Api {
    async fn hello(&self, _: Call<HelloRequest>) -> Result<Response<Report>, Status> {
        let report = self.report.borrow().clone();
        encode(&report).map(Response::new)
    }

    async fn grant(&self, call: Call<GrantRequest>) -> Result<Response<Report>, Status> {
        let GrantRequest { format, body } = call.into_inner();
        if format != GRANT {
            return Err(Status::invalid_argument(format!(
                "the grant has format {format:?}, this member reads {GRANT:?}; use agent and member of one version"
            )));
        }
        let grant: Grant = serde_json::from_slice(&body)
            .map_err(|error| Status::invalid_argument(format!("the grant is unreadable: {error}")))?;
        let report = self.ask(|answer| Request::Grant(Box::new(grant), answer)).await?;
        encode(&report).map(Response::new)
    }

    type WatchStream = BoxStream<'static, Result<Report, Status>>;

    async fn watch(&self, _: Call<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let drain = self.drain.clone();
        let reports = WatchStream::new(self.report.clone())
            .map(|report| encode(&report))
            .take_until(async move { drain.signalled().await });
        Ok(Response::new(reports.boxed()))
    }

    async fn stop(&self, call: Call<StopRequest>) -> Result<Response<Report>, Status> {
        let StopRequest { incarnation: id, archive } = call.into_inner();
        let incarnation = incarnation(&id)?;
        let archive = (!archive.is_empty()).then_some(archive);
        let report = self.ask(|answer| Request::Stop { incarnation, archive, answer }).await?;
        encode(&report).map(Response::new)
    }

    async fn fence(&self, call: Call<FenceRequest>) -> Result<Response<Report>, Status> {
        let FenceRequest { incarnation: id, reason } = call.into_inner();
        let fenced = Fenced { incarnation: incarnation(&id)?, reason };
        let report = self.ask(|answer| Request::Fence { fenced, answer }).await?;
        encode(&report).map(Response::new)
    }

    async fn read_dir(&self, _: Call<ReadDirRequest>) -> Result<Response<Report>, Status> {
        let report = self.ask(Request::ReadDir).await?;
        encode(&report).map(Response::new)
    }

    async fn logs(&self, call: Call<LogsRequest>) -> Result<Response<LogsReply>, Status> {
        let lines = usize::try_from(call.into_inner().lines).unwrap_or(logs::LINES).min(logs::LINES);
        let lines = self.ask(|answer| Request::Logs(lines, answer)).await?;
        Ok(Response::new(LogsReply { lines }))
    }
}
