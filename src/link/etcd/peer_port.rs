//! The peer port of one member, looked at from outside with the probe certificate (networking.md section 3).
//!
//! It answers where the client API does not: across sites, and for learners. Only reading requests are sent.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::client::Member;
use crate::clock::Clock;
use crate::tls::EtcdTls;
use crate::transport::{DialError, dial};

/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// Hashing reads the whole database.
const HASH_DEADLINE: Duration = Duration::from_mins(1);
/// Longer than any answer.
const LIMIT: usize = 1024 * 1024;
const CLUSTER_ID: &str = "x-etcd-cluster-id";

/// Why the peer port gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL is none that we use.
    #[error("{url:?} is not a peer URL of the form https://host:port")]
    Url {
        /// The URL as it was given.
        url: String,
    },
    /// No connection.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The connection broke; in TLS 1.3 also what a refusal of our certificate looks like.
    #[error("the connection broke, or the member refused our certificate")]
    Connection(#[source] hyper::Error),
    /// It took too long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// etcd refused.
    #[error("etcd answered {status}: {message}")]
    Answer {
        /// The status.
        status: StatusCode,
        /// What it said.
        message: String,
    },
    /// The member belongs to another cluster than the one that was asked for.
    #[error("the member belongs to another cluster")]
    OtherCluster,
    /// The revision was compacted.
    #[error("the revision was compacted")]
    Compacted,
    /// The revision is not there yet.
    #[error("the member does not have the revision yet")]
    FutureRevision,
    /// An answer that we do not understand.
    #[error("the answer is unreadable: {0}")]
    Unreadable(String),
}

/// What a look at the peer port showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerProbe {
    /// The cluster of the member.
    pub cluster_id: u64,
    /// The members as it has them, sorted by id; may be stale.
    pub members: Vec<Member>,
    /// Its version.
    pub server_version: String,
    /// The version of the cluster; `not_decided` at first.
    pub cluster_version: String,
    /// The time of one request and its answer on an open connection.
    pub rtt: Duration,
    /// Our own address on that connection.
    pub local: SocketAddr,
}

/// The hash of a member's keyspace, from its peer port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerHashKv {
    /// The cluster of the member.
    pub cluster_id: u64,
    /// The revision of its data when it answered.
    pub revision: i64,
    /// The hash.
    pub hash: u32,
    /// The compacted revision when it was made; hashes compare only if this is equal.
    pub compact_revision: i64,
    /// The revision that was hashed; zero below 3.6.
    pub hash_revision: i64,
}

/// The peer port of one member. One idle connection is kept; calls at the same time get connections of their own, so
/// that a long hash does not delay a probe.
pub struct PeerPort {
    authority: String,
    address: String,
    name: ServerName<'static>,
    tls: EtcdTls,
    clock: Clock,
    idle: Mutex<Option<Connection>>,
}

struct Answer<T> {
    cluster_id: Option<u64>,
    body: T,
    local: SocketAddr,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    local: SocketAddr,
    // Moves the bytes; dropped with the connection.
    _driver: JoinSet<()>,
}

impl PeerPort {
    /// The member with this peer URL. `tls` holds the peer root of its site and our probe certificate.
    pub fn new(url: &str, tls: EtcdTls) -> Result<Self, Error> {
        let bad = || Error::Url { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let authority = uri.authority().filter(|authority| authority.port().is_some()).ok_or_else(bad)?;
        if uri.scheme_str() != Some("https") || !matches!(uri.path(), "" | "/") {
            return Err(bad());
        }
        Ok(Self {
            name: dial::server_name(authority.host()).ok_or_else(bad)?,
            address: authority.to_string(),
            authority: authority.to_string(),
            tls,
            clock: Clock::start(),
            idle: Mutex::new(None),
        })
    }

    /// Dials `address` (host:port) instead of what the host resolves to.
    #[must_use]
    pub fn at(mut self, address: impl Into<String>) -> Self {
        self.address = address.into();
        self
    }

    /// Who it is, whom it knows, and how far away it is.
    pub async fn probe(&self) -> Result<PeerProbe, Error> {
        let Answer { cluster_id, body, .. } =
            self.get::<Vec<MemberBody>>("/members", None, "", DEADLINE).await?;
        let mut members: Vec<_> = body.into_iter().map(Member::from).collect();
        members.sort_by_key(|member| member.id);
        let start = self.clock.elapsed();
        // On the connection of the request before, unless it was lost in between.
        let version = self.get::<VersionBody>("/version", None, "", DEADLINE).await?;
        let rtt = self.clock.elapsed().saturating_sub(start);
        Ok(PeerProbe {
            cluster_id: cluster_id.ok_or_else(|| Error::Unreadable("it names no cluster".into()))?,
            members,
            server_version: version.body.etcdserver,
            cluster_version: version.body.etcdcluster,
            rtt,
            local: version.local,
        })
    }

    /// The hash of the keyspace up to `revision` (0: all of it). If `cluster_id` is given, a member of another cluster
    /// refuses.
    pub async fn hash_kv(&self, revision: i64, cluster_id: Option<u64>) -> Result<PeerHashKv, Error> {
        let body = serde_json::json!({ "revision": revision }).to_string();
        let answer = self.get::<HashBody>("/members/hashkv", cluster_id, &body, HASH_DEADLINE).await?;
        let HashBody { header, hash, compact_revision, hash_revision } = answer.body;
        Ok(PeerHashKv {
            cluster_id: answer.cluster_id.ok_or_else(|| Error::Unreadable("it names no cluster".into()))?,
            revision: header.revision,
            hash,
            compact_revision,
            hash_revision,
        })
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        cluster_id: Option<u64>,
        body: &str,
        deadline: Duration,
    ) -> Result<Answer<T>, Error> {
        let exchange = async {
            let mut connection = match self.take_idle() {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            let request = self.request(path, cluster_id, body);
            let answer = connection.sender.send_request(request).await.map_err(Error::Connection)?;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, LIMIT)
                .collect()
                .await
                .map_err(|error| Error::Unreadable(error.to_string()))?
                .to_bytes();
            Ok((parts, body, connection))
        };
        // A connection that broke or ran out of time is not kept.
        let (parts, body, connection) =
            tokio::time::timeout(deadline, exchange).await.unwrap_or(Err(Error::Timeout(deadline)))?;
        let local = connection.local;
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        if parts.status != StatusCode::OK {
            return Err(refusal(parts.status, &body));
        }
        let cluster_id = parts
            .headers
            .get(CLUSTER_ID)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| u64::from_str_radix(text, 16).ok());
        let body = serde_json::from_slice(&body).map_err(|error| Error::Unreadable(error.to_string()))?;
        Ok(Answer { cluster_id, body, local })
    }

    fn take_idle(&self) -> Option<Connection> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        idle.filter(|connection| !connection.sender.is_closed())
    }

    fn request(&self, path: &str, cluster_id: Option<u64>, body: &str) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(Bytes::copy_from_slice(body.as_bytes())));
        *request.uri_mut() = path.parse().unwrap_or_default();
        let headers = request.headers_mut();
        if let Ok(host) = self.authority.parse() {
            headers.insert(header::HOST, host);
        }
        if let Some(id) = cluster_id.and_then(|id| format!("{id:x}").parse().ok()) {
            headers.insert(CLUSTER_ID, id);
        }
        request
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let stream = dial::dial(&self.address, self.name.clone(), self.tls.configs().http).await?;
        let local = stream
            .get_ref()
            .0
            .local_addr()
            .map_err(|source| DialError::Tcp { address: self.address.clone(), source })?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(Error::Connection)?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The request that fails reports it.
            let _ = connection.await;
        });
        Ok(Connection { sender, local, _driver: driver })
    }
}

impl fmt::Debug for PeerPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerPort")
            .field("authority", &self.authority)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> Error {
    let message = String::from_utf8_lossy(body).trim().to_owned();
    if status == StatusCode::PRECONDITION_FAILED && message.contains("cluster ID mismatch") {
        Error::OtherCluster
    } else if message.contains("required revision has been compacted") {
        Error::Compacted
    } else if message.contains("required revision is a future revision") {
        Error::FutureRevision
    } else {
        Error::Answer { status, message }
    }
}

// What etcd sends; it leaves out what is empty, and later versions may add fields.

#[derive(Deserialize)]
struct MemberBody {
    id: u64,
    #[serde(default)]
    name: String,
    #[serde(default, rename = "peerURLs")]
    peer_urls: Vec<String>,
    #[serde(default, rename = "clientURLs")]
    client_urls: Vec<String>,
    #[serde(default, rename = "isLearner")]
    is_learner: bool,
}

impl From<MemberBody> for Member {
    fn from(body: MemberBody) -> Self {
        let MemberBody { id, name, peer_urls, client_urls, is_learner } = body;
        Self { id, name, peer_urls, client_urls, is_learner }
    }
}

#[derive(Deserialize)]
struct VersionBody {
    etcdserver: String,
    etcdcluster: String,
}

#[derive(Deserialize)]
struct HashBody {
    #[serde(default)]
    header: HashHeader,
    #[serde(default)]
    hash: u32,
    #[serde(default)]
    compact_revision: i64,
    #[serde(default)]
    hash_revision: i64,
}

#[derive(Default, Deserialize)]
struct HashHeader {
    #[serde(default)]
    revision: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart() {
        let kind = |status, body: &str| refusal(StatusCode::from_u16(status).unwrap(), body.as_bytes());
        assert!(matches!(kind(412, "cluster ID mismatch\n"), Error::OtherCluster));
        assert!(matches!(kind(400, "mvcc: required revision has been compacted\n"), Error::Compacted));
        assert!(matches!(kind(400, "mvcc: required revision is a future revision\n"), Error::FutureRevision));
        assert!(
            matches!(kind(404, "404 page not found\n"), Error::Answer { message, .. } if message == "404 page not found")
        );
    }
}
