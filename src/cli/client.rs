//! Questions to the agent on its UNIX socket.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use quorate_core::condition::Status;
use quorate_core::report::{FederationReport, SiteReport};
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::failure::{Exit, Failure};

/// An agent that is alive answers from memory.
const DEADLINE: Duration = Duration::from_secs(5);
/// Other agents are asked, and they dial.
const REACH: Duration = Duration::from_secs(10);
/// A thousand federations with all their members.
const LIMIT: usize = 64 * 1024 * 1024;

/// The agent behind a socket.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    deadline: Duration,
}

impl Client {
    /// Uses this socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), deadline: DEADLINE }
    }

    /// The status of every federation that the agent knows.
    pub async fn all(&self) -> Result<Vec<Status>, Failure> {
        match self.get("/v1/federations").await? {
            Some(all) => Ok(all),
            None => Err(self.other_version()),
        }
    }

    /// The status of one federation; none if the agent does not know it.
    pub async fn one(&self, namespace: &str, name: &str) -> Result<Option<Status>, Failure> {
        self.get(&format!("/v1/federations/{namespace}/{name}")).await
    }

    /// What the agent says of itself and of the mesh.
    pub async fn site(&self) -> Result<SiteReport, Failure> {
        match self.get("/v1/site").await? {
            Some(site) => Ok(site),
            None => Err(self.other_version()),
        }
    }

    /// Everything behind the status of one federation; none if the agent does not know it.
    pub async fn view(&self, namespace: &str, name: &str) -> Result<Option<FederationReport>, Failure> {
        self.get(&format!("/v1/federations/{namespace}/{name}/view")).await
    }

    /// The last transitions of one federation, as JSON.
    pub async fn events(&self, namespace: &str, name: &str) -> Result<Option<serde_json::Value>, Failure> {
        self.get(&format!("/v1/federations/{namespace}/{name}/events")).await
    }

    /// The last lines of the agent's log.
    pub async fn log(&self) -> Result<Vec<String>, Failure> {
        Ok(self.get("/v1/log").await?.unwrap_or_default())
    }

    /// The agent's metrics, as text.
    pub async fn metrics(&self) -> Result<String, Failure> {
        let body = self.fetch("/metrics").await?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// What is in the way from each site to an address (host:port); none = nothing is.
    pub async fn reach(&self, address: &str) -> Result<BTreeMap<String, Option<String>>, Failure> {
        let client = Self { deadline: REACH, ..self.clone() };
        match client.get(&format!("/v1/reach/{address}")).await? {
            Some(found) => Ok(found),
            None => Err(self.other_version()),
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Failure> {
        let Some(body) = self.fetch(path).await? else { return Ok(None) };
        serde_json::from_slice(&body).map(Some).map_err(|error| {
            let error =
                anyhow::Error::new(error).context(format!("cannot read the agent's answer to {path}"));
            Failure::new(Exit::Bug, error).hint("use the `quorate` that the agent runs")
        })
    }

    async fn fetch(&self, path: &str) -> Result<Option<Bytes>, Failure> {
        let Ok(answer) = tokio::time::timeout(self.deadline, self.exchange(path)).await else {
            let message =
                format!("the agent at {} gave no answer within {:?}", self.socket.display(), self.deadline);
            let hint = "look at the agent's log; it may be stuck on a disk";
            return Err(Failure::message(Exit::Timeout, message).hint(hint));
        };
        let (code, body) = answer?;
        match code {
            200 => Ok(Some(body)),
            // 400: no federation can have such a name.
            400 | 404 => Ok(None),
            code => {
                let text = String::from_utf8_lossy(&body).trim().to_owned();
                Err(Failure::message(Exit::Bug, format!("the agent answered {code} to {path}: {text}")))
            }
        }
    }

    async fn exchange(&self, path: &str) -> Result<(u16, Bytes), Failure> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(error))?;
        let broken = |error: anyhow::Error| {
            Failure::new(
                Exit::Unreachable,
                error.context(format!("the agent at {} hung up", self.socket.display())),
            )
            .hint("it may be restarting: try again")
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| broken(e.into()))?;
        let request = hyper::Request::get(path).header("host", "agent").body(Empty::<Bytes>::new());
        let request = request.map_err(|error| Failure::new(Exit::Usage, error))?;
        let answer = async {
            let answer = sender.send_request(request).await?;
            let code = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), LIMIT).collect().await;
            anyhow::Ok((code, body.map_err(anyhow::Error::from_boxed)?.to_bytes()))
        };
        // The connection does its work only while somebody waits for it.
        tokio::select! {
            answer = answer => answer.map_err(broken),
            end = connection => Err(broken(match end {
                Ok(()) => anyhow::anyhow!("the connection ended"),
                Err(error) => error.into(),
            })),
        }
    }

    fn other_version(&self) -> Failure {
        Failure::message(
            Exit::Bug,
            format!("{} is not the socket of an agent of this version", self.socket.display()),
        )
    }

    fn unreachable(&self, error: io::Error) -> Failure {
        let (what, hint) = match error.kind() {
            io::ErrorKind::NotFound => (
                format!("no agent has its socket at {}", self.socket.display()),
                "start `quorate agent --config quorate.yaml`, or name the agent's folder with --state-dir",
            ),
            io::ErrorKind::ConnectionRefused => (
                format!("no agent listens on {} any more", self.socket.display()),
                "start the agent again; etcd goes on without it",
            ),
            io::ErrorKind::PermissionDenied => (
                format!("{} may not be used by this user", self.socket.display()),
                "run this command as the user of the agent",
            ),
            _ => (format!("cannot reach the agent at {}", self.socket.display()), "look at the agent's log"),
        };
        Failure::new(Exit::Unreachable, anyhow::Error::new(error).context(what)).hint(hint)
    }
}

/// The socket in a state folder.
pub fn socket_in(state_dir: &Path) -> PathBuf {
    state_dir.join("agent.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_is_not_there_is_unreachable() {
        let folder = tempfile::tempdir().unwrap();
        let socket = socket_in(folder.path());
        let missing = Client::new(&socket).all().await.unwrap_err();
        assert_eq!(missing.exit, Exit::Unreachable);
        assert!(missing.to_string().contains("hint: start `quorate agent"), "{missing}");
        // A socket that an agent left behind when it was killed.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let left = Client::new(&socket).all().await.unwrap_err();
        assert_eq!(left.exit, Exit::Unreachable);
        assert!(left.to_string().contains("no agent listens"), "{left}");
    }

    #[tokio::test]
    async fn one_that_hangs_up_is_unreachable_and_one_that_is_silent_takes_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let socket = socket_in(folder.path());
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let client = Client::new(&socket);
        let hang_up = async { drop(listener.accept().await.unwrap()) };
        let (answer, ()) = tokio::join!(client.all(), hang_up);
        assert_eq!(answer.unwrap_err().exit, Exit::Unreachable);
        let client = Client { deadline: Duration::from_millis(50), ..client };
        let (answer, _held) = tokio::join!(client.all(), listener.accept());
        assert_eq!(answer.unwrap_err().exit, Exit::Timeout);
    }
}
