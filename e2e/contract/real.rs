//! Real etcd processes on loopback, asked through their JSON gateway.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_core::sim::etcd::Refusal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::Outcome;

/// One member; its process is killed when this is dropped.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) url: String,
    client: u16,
    process: Option<Child>,
}

impl Member {
    pub(crate) fn runs(&self) -> bool {
        self.process.is_some()
    }
}

pub(crate) struct Etcd {
    binary: PathBuf,
    folder: tempfile::TempDir,
    pub(crate) members: Vec<Member>,
}

/// The folder with etcd 3.6: built if need be, so that this test is never skipped.
pub(crate) async fn binary() -> Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/stack/etcd.sh");
    let output = Command::new("bash").arg(script).arg("3.6").stderr(Stdio::inherit()).output().await?;
    let folder = String::from_utf8(output.stdout)?;
    let binary = PathBuf::from(folder.trim()).join("etcd");
    if !output.status.success() || !binary.exists() {
        bail!("e2e/stack/etcd.sh 3.6 gave no etcd; set QUORATE_ETCD_DIR to a folder with etcd 3.6");
    }
    Ok(binary)
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Etcd {
    pub(crate) fn three(binary: PathBuf) -> Result<Self> {
        let mut etcd = Self { binary, folder: tempfile::tempdir()?, members: Vec::new() };
        for _ in 0..3 {
            etcd.reserve()?;
        }
        let all: Vec<usize> = vec![0, 1, 2];
        for at in 0..3 {
            etcd.start(at, "new", &all)?;
        }
        Ok(etcd)
    }

    /// A member that does not run yet.
    pub(crate) fn reserve(&mut self) -> Result<usize> {
        let (peer, client) = (free_port()?, free_port()?);
        let (name, url) = (format!("m{}", self.members.len()), format!("http://127.0.0.1:{peer}"));
        self.members.push(Member { name, url, client, process: None });
        Ok(self.members.len() - 1)
    }

    pub(crate) fn start(&mut self, at: usize, state: &str, listed: &[usize]) -> Result<()> {
        let cluster: Vec<String> =
            listed.iter().map(|i| format!("{}={}", self.members[*i].name, self.members[*i].url)).collect();
        let member = &mut self.members[at];
        let client = format!("http://127.0.0.1:{}", member.client);
        let data = self.folder.path().join(&member.name);
        let process = Command::new(&self.binary)
            .args(["--name", &member.name, "--data-dir"])
            .arg(data)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &member.url, "--initial-advertise-peer-urls", &member.url])
            .args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", state])
            .args(["--initial-cluster-token", "contract", "--log-level", "error", "--unsafe-no-fsync"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("starting etcd")?;
        member.process = Some(process);
        Ok(())
    }

    pub(crate) async fn kill(&mut self, at: usize) -> Result<()> {
        if let Some(mut process) = self.members[at].process.take() {
            process.kill().await?;
        }
        Ok(())
    }

    pub(crate) async fn stop(&mut self) -> Result<()> {
        for at in 0..self.members.len() {
            self.kill(at).await?;
        }
        Ok(())
    }

    async fn post(&self, at: usize, path: &str, body: &Value, deadline: Duration) -> Result<Option<Value>> {
        match tokio::time::timeout(deadline, self.exchange(at, path, body)).await {
            Ok(answer) => answer.map(Some),
            Err(_) => Ok(None),
        }
    }

    async fn exchange(&self, at: usize, path: &str, body: &Value) -> Result<Value> {
        let port = self.members[at].client;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let body = body.to_string();
        // HTTP/1.0, so that the answer is not chunked.
        let head =
            format!("POST {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let text = String::from_utf8_lossy(&answer);
        let (_, json) = text.split_once("\r\n\r\n").context("no HTTP answer")?;
        serde_json::from_str(json).with_context(|| format!("reading {json:?}"))
    }

    pub(crate) async fn call(&self, at: usize, path: &str, body: Value) -> Result<Outcome> {
        let answer = match self.post(at, path, &body, crate::DEADLINE).await {
            Ok(answer) => answer,
            Err(error) => return Ok(Outcome::Other(format!("{error:#}"))),
        };
        let Some(answer) = answer else { return Ok(Outcome::Hangs) };
        let Some(message) = answer.get("message").and_then(Value::as_str) else { return Ok(Outcome::Done) };
        Ok(Refusal::of_message(message).map_or_else(|| Outcome::Other(message.to_owned()), Outcome::Refused))
    }

    /// Members by URL: id, learner. None without a quorum.
    pub(crate) async fn list(&self, at: usize) -> Result<Option<BTreeMap<String, (u64, bool)>>> {
        let body = json!({"linearizable": true});
        let answer = self.post(at, "/v3/cluster/member/list", &body, Duration::from_secs(2)).await;
        let Ok(Some(answer)) = answer else { return Ok(None) };
        let Some(members) = answer.get("members").and_then(Value::as_array) else { return Ok(None) };
        let read = |member: &Value| -> Option<(String, (u64, bool))> {
            let url = member.get("peerURLs")?.get(0)?.as_str()?.to_owned();
            let id = member.get("ID")?.as_str()?.parse().ok()?;
            Some((url, (id, member.get("isLearner").and_then(Value::as_bool).unwrap_or(false))))
        };
        Ok(Some(members.iter().filter_map(read).collect()))
    }

    /// (own id, leader's id) of one member.
    async fn status(&self, at: usize) -> Option<(u64, u64)> {
        let answer =
            self.post(at, "/v3/maintenance/status", &json!({}), Duration::from_secs(1)).await.ok()??;
        let number = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
        Some((number(answer.get("header")?.get("member_id")?)?, number(answer.get("leader")?)?))
    }

    /// The running member that leads, if all running members that know a leader agree.
    pub(crate) async fn leader(&self) -> Option<usize> {
        let mut leader = None;
        for (at, member) in self.members.iter().enumerate() {
            if member.runs()
                && let Some((own, lead)) = self.status(at).await
                && own == lead
            {
                leader = Some(at);
            }
        }
        leader
    }
}
