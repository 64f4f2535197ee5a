//! Whether somebody serves the client port of one member.
//!
//! etcd binds its client port early and opens it late: until then connections are made by the operating system and nobody
//! answers on them. Only a TLS session shows that somebody does.

use std::net::SocketAddr;
use std::time::Duration;

use http::Uri;
use rustls_pki_types::ServerName;

use crate::tls::EtcdTls;
use crate::transport::{DialError, dial};

/// The client port of one member.
#[derive(Debug, Clone)]
pub struct ClientPort {
    address: SocketAddr,
    name: ServerName<'static>,
    tls: EtcdTls,
}

impl ClientPort {
    /// The port at `address` of the member whose clients know it by `url`.
    pub fn new(url: &str, address: SocketAddr, tls: EtcdTls) -> Result<Self, DialError> {
        let host = url.parse::<Uri>().ok().and_then(|uri| dial::server_name(uri.host()?));
        let name = host.ok_or_else(|| DialError::Address { address: url.to_owned() })?;
        Ok(Self { address, name, tls })
    }

    /// Whether a TLS session comes about within `patience`. Nothing is asked.
    pub async fn open(&self, patience: Duration) -> bool {
        let address = self.address.to_string();
        let dialled = dial::dial(&address, self.name.clone(), self.tls.configs().http);
        tokio::time::timeout(patience, dialled).await.is_ok_and(|session| session.is_ok())
    }
}
