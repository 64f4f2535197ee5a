//! What an agent says about itself, asked on the UNIX socket in its state folder.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use quorate_core::condition::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

const DEADLINE: Duration = Duration::from_secs(2);

/// GETs `path`; returns the status code and the body. Any answer at all means that the agent is up.
pub async fn get(socket: &Path, path: &str) -> Result<(u16, Bytes)> {
    let exchange = async {
        let stream = UnixStream::connect(socket).await.context("the agent's socket does not answer")?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = hyper::Request::get(path).header("host", "agent").body(Empty::<Bytes>::new())?;
        let answer = async {
            let answer = sender.send_request(request).await?;
            let code = answer.status().as_u16();
            anyhow::Ok((code, answer.into_body().collect().await?.to_bytes()))
        };
        // The connection does its work only while somebody waits for it.
        tokio::select! {
            answer = answer => answer,
            end = connection => {
                end?;
                bail!("the agent hung up")
            }
        }
    };
    match tokio::time::timeout(DEADLINE, exchange).await {
        Ok(answer) => answer,
        Err(_) => bail!("{} gave no answer within {DEADLINE:?}", socket.display()),
    }
}

/// A transition that an agent reports.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Event {
    /// Counts from one in each run of the agent.
    pub number: u64,
    /// One word.
    pub kind: String,
    /// The sentence.
    pub text: String,
}

/// The status of a federation as the agent sees it.
pub async fn status(socket: &Path, namespace: &str, name: &str) -> Result<Status> {
    read(socket, &format!("/v1/federations/{namespace}/{name}")).await
}

/// The last transitions of a federation at this agent, oldest first.
pub async fn events(socket: &Path, namespace: &str, name: &str) -> Result<Vec<Event>> {
    read(socket, &format!("/v1/federations/{namespace}/{name}/events")).await
}

async fn read<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T> {
    let (code, body) = get(socket, path).await?;
    if code != 200 {
        bail!("{code} for {path}: {}", String::from_utf8_lossy(&body).trim());
    }
    serde_json::from_slice(&body).with_context(|| format!("cannot read the answer to {path}"))
}
