//! Dialling: TCP and TLS with a deadline, under a tonic channel that connects when needed and again after a loss.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use crate::identity::Identity;
use crate::tls::TlsStore;
use crate::tls::verify::reason;

/// How long TCP and TLS may take together.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an HTTP/2 ping is sent on a channel.
const PING: Duration = Duration::from_secs(5);
/// How long its answer may take before the connection counts as lost.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Why no connection came about. Nothing was sent to the service behind it.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Not an address.
    #[error("{address:?} is not an address of the form host:port")]
    Address {
        /// The address as it was given.
        address: String,
    },
    /// No TCP connection.
    #[error("cannot connect to {address}")]
    Tcp {
        /// Where to.
        address: String,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// No TLS session.
    #[error("no TLS session with {address}: {reason}")]
    Tls {
        /// Where to.
        address: String,
        /// What TLS said.
        reason: String,
    },
    /// It took too long.
    #[error("{address} did not finish a connection within {CONNECT_TIMEOUT:?}")]
    Timeout {
        /// Where to.
        address: String,
    },
    /// The certificates cannot be used.
    #[error("cannot set up TLS for {address}")]
    Setup {
        /// Where to.
        address: String,
        /// What is wrong.
        #[source]
        source: crate::tls::store::Error,
    },
}

/// A channel to `address` (host:port) that believes only `expected`. It connects at the first call, connects again
/// after a loss, and notices a silent loss within ten seconds.
pub fn connect(address: &str, store: &TlsStore, expected: Identity) -> Result<Channel, DialError> {
    let config =
        store.client(expected).map_err(|source| DialError::Setup { address: address.to_owned(), source })?;
    channel(address, address, Arc::new(move || config.clone()))
}

/// Gives the TLS configuration for a new connection.
pub(crate) type Config = Arc<dyn Fn() -> Arc<ClientConfig> + Send + Sync>;

/// A channel for the authority `name` (host:port) that dials `address`.
pub(crate) fn channel(name: &str, address: &str, config: Config) -> Result<Channel, DialError> {
    let bad = || DialError::Address { address: name.to_owned() };
    // The scheme is http because tonic's own TLS would insist on https; ours is below it.
    let endpoint = Endpoint::from_shared(format!("http://{name}")).map_err(|_| bad())?;
    let host = endpoint.uri().host().ok_or_else(bad)?;
    let name = server_name(host).ok_or_else(bad)?;
    endpoint.uri().port().ok_or_else(bad)?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    Ok(endpoint.connect_with_connector_lazy(Connector { name, address: address.to_owned(), config }))
}

/// The name that a certificate has to carry for `host`.
pub(crate) fn server_name(host: &str) -> Option<ServerName<'static>> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host.to_owned()).ok()
}

/// TCP, then TLS, both within [`CONNECT_TIMEOUT`].
pub(crate) async fn dial(
    address: &str,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, DialError> {
    let attempt = async {
        let tcp = |source| DialError::Tcp { address: address.to_owned(), source };
        let stream = TcpStream::connect(address).await.map_err(tcp)?;
        stream.set_nodelay(true).map_err(tcp)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true).map_err(|errno| tcp(errno.into()))?;
        TlsConnector::from(config)
            .connect(name, stream)
            .await
            .map_err(|error| DialError::Tls { address: address.to_owned(), reason: reason(&error) })
    };
    tokio::time::timeout(CONNECT_TIMEOUT, attempt)
        .await
        .unwrap_or_else(|_| Err(DialError::Timeout { address: address.to_owned() }))
}

#[derive(Clone)]
struct Connector {
    name: ServerName<'static>,
    address: String,
    config: Config,
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { name, address, config } = self.clone();
        Box::pin(async move { dial(&address, name, config()).await.map(TokioIo::new) })
    }
}
