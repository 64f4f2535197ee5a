//! The server loop: one task per connection, so that a slow or hostile client costs nobody else anything.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::Router;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt as _;

use crate::clock::Clock;
use crate::drain::Drain;
use crate::identity::{self, Identity, Validity};
use crate::repeats::Repeats;
use crate::tls::store::Error as StoreError;
use crate::tls::verify::reason;
use crate::tls::{Admit, TlsStore};

/// How much a listener takes on.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections of one source address, handshakes included.
    pub per_source: usize,
    /// Connections in total, handshakes included.
    pub total: usize,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// Requests at once on one connection.
    pub streams: u32,
    /// How long requests in flight may go on once the end has begun.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_source: 64,
            total: 1024,
            handshake: Duration::from_secs(5),
            streams: 256,
            grace: Duration::from_secs(5),
        }
    }
}

/// Who sent a request: the certificate of its connection says so. In the extensions of each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Who the certificate names.
    pub identity: Identity,
    /// Where the connection comes from; with address translation not where the peer is.
    pub source: SocketAddr,
    /// When the certificate ends.
    pub not_after: SystemTime,
}

/// What became of the connections of a listener.
#[derive(Debug, Default)]
pub struct Counters {
    /// Handshakes that succeeded.
    pub accepted: AtomicU64,
    /// Handshakes that were refused, failed or took too long.
    pub refused: AtomicU64,
    /// Connections that were closed at once because of a limit.
    pub limited: AtomicU64,
}

/// Serves `router` over TLS to whom `admit` names, until the end; HTTP/2 only. Every request carries a
/// [`PeerIdentity`]. A connection ends when the certificate that opened it would no longer be admitted: expired, or no
/// longer below a root that is trusted.
pub async fn serve(
    listener: TcpListener,
    store: TlsStore,
    admit: Admit,
    router: Router,
    limits: Limits,
    counters: Arc<Counters>,
    drain: Drain,
) -> Result<(), StoreError> {
    let server = Arc::new(Server {
        tls: store.server(admit.clone())?,
        store,
        admit,
        router,
        limits,
        counters,
        sources: Arc::default(),
        told: Repeats::default(),
        drain: drain.clone(),
    });
    loop {
        let accepted = tokio::select! {
            () = drain.signalled() => return Ok(()),
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, source)) => {
                let Some(place) = Place::take(&server.sources, source.ip(), &limits) else {
                    server.counters.limited.fetch_add(1, Ordering::Relaxed);
                    if server.told.is_new(format!("{} has too many", source.ip())) {
                        let (of_one, in_all) = (limits.per_source, limits.total);
                        tracing::warn!(%source, of_one, in_all, "too many connections: closed at once");
                    }
                    continue;
                };
                let server = server.clone();
                drain.spawn(async move {
                    server.connection(stream, source).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Usually out of file descriptors: wait for some to be closed.
                tracing::warn!(%error, "cannot accept connections");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

struct Server {
    tls: Arc<ServerConfig>,
    store: TlsStore,
    admit: Admit,
    router: Router,
    limits: Limits,
    counters: Arc<Counters>,
    sources: Arc<Mutex<HashMap<IpAddr, usize>>>,
    told: Repeats,
    drain: Drain,
}

impl Server {
    async fn connection(&self, stream: TcpStream, source: SocketAddr) {
        let handshake = async {
            stream.set_nodelay(true)?;
            rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
            TlsAcceptor::from(self.tls.clone()).accept(stream).await
        };
        let refused = |reason: &dyn std::fmt::Display| {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            if self.told.is_new(format!("{} {reason}", source.ip())) {
                tracing::warn!(%source, %reason, "connection refused");
            } else {
                tracing::debug!(%source, %reason, "connection refused");
            }
        };
        let stream = tokio::select! {
            () = self.drain.signalled() => return,
            done = tokio::time::timeout(self.limits.handshake, handshake) => match done {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return refused(&reason(&error)),
                Err(_) => return refused(&"the handshake took too long"),
            },
        };
        let generation = self.store.generation();
        match peer(&stream, self.store.trust_domain()) {
            Ok((identity, chain)) => {
                self.counters.accepted.fetch_add(1, Ordering::Relaxed);
                let peer = PeerIdentity { identity, source, not_after: chain.not_after };
                self.requests(stream, peer, chain, generation).await;
            }
            Err(error) => refused(&error),
        }
    }

    async fn requests(
        &self,
        stream: TlsStream<TcpStream>,
        peer: PeerIdentity,
        chain: Chain,
        generation: u64,
    ) {
        let router = self.router.clone();
        let extension = peer.clone();
        let service = hyper::service::service_fn(move |mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(extension.clone());
            router.clone().oneshot(request.map(axum::body::Body::new))
        });
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(10))
            .max_concurrent_streams(self.limits.streams);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(peer = %peer.identity, %error, "connection lost");
                }
                return;
            }
            () = self.drain.signalled() => {}
            error = self.revoked(&chain, generation) => {
                tracing::info!(peer = %peer.identity, %error, "closing: its certificate is no longer good");
            }
        }
        connection.as_mut().graceful_shutdown();
        // What is not done by then is cut off.
        let _ = tokio::time::timeout(self.limits.grace, connection).await;
    }

    /// Waits until the certificate would be refused; looks closely only after a change of files or at its end.
    async fn revoked(&self, chain: &Chain, mut generation: u64) -> rustls::Error {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.store.generation();
            if now == generation && Clock::wall() <= chain.not_after {
                continue;
            }
            generation = now;
            if let Err(error) = self.store.still_admits(&self.admit, &chain.certificates) {
                return error;
            }
        }
    }
}

/// What a client showed.
struct Chain {
    certificates: Vec<CertificateDer<'static>>,
    not_after: SystemTime,
}

fn peer(stream: &TlsStream<TcpStream>, trust_domain: &str) -> Result<(Identity, Chain), identity::Error> {
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    let leaf = certificates.first().ok_or(identity::Error::Certificate)?;
    let identity = Identity::from_certificate(leaf, trust_domain)?;
    let not_after = Validity::of(leaf)?.not_after;
    Ok((identity, Chain { certificates, not_after }))
}

/// One of the places that a listener has; given back when dropped.
struct Place {
    sources: Arc<Mutex<HashMap<IpAddr, usize>>>,
    source: IpAddr,
}

impl Place {
    fn take(sources: &Arc<Mutex<HashMap<IpAddr, usize>>>, source: IpAddr, limits: &Limits) -> Option<Self> {
        let mut taken = sources.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = taken.get(&source).copied().unwrap_or(0);
        if mine >= limits.per_source || taken.values().sum::<usize>() >= limits.total {
            return None;
        }
        taken.insert(source, mine + 1);
        Some(Self { sources: sources.clone(), source })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.source);
            }
        }
    }
}
