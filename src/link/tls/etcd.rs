//! TLS towards the ports of an etcd: ordinary host names, one file of roots, one client leaf.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ClientConfig;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::sign::SingleCertAndKey;

use super::store::Error;
use super::{crypto, pem};
use crate::pki::Pair;

/// Roots and a client leaf that are read again for each new connection, as etcd itself does; cheap to clone.
#[derive(Debug, Clone)]
pub struct EtcdTls {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    roots: PathBuf,
    leaf: Pair,
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    text: [Vec<u8>; 3],
    configs: Configs,
}

/// The same for the two protocols: etcd's gRPC port insists on the name of its protocol in the handshake.
#[derive(Debug, Clone)]
pub(crate) struct Configs {
    pub(crate) grpc: Arc<ClientConfig>,
    pub(crate) http: Arc<ClientConfig>,
}

impl EtcdTls {
    /// Loads the roots that may vouch for the server, and our client leaf.
    pub fn load(roots: PathBuf, leaf: Pair) -> Result<Self, Error> {
        let text = read(&roots, &leaf)?;
        let configs = build(&roots, &leaf, &text)?;
        Ok(Self { shared: Arc::new(Shared { roots, leaf, last: Mutex::new(Last { text, configs }) }) })
    }

    /// The configurations for a new connection. Files that cannot be used leave the one before in use.
    pub(crate) fn configs(&self) -> Configs {
        let Shared { roots, leaf, last } = &*self.shared;
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = read(roots, leaf).and_then(|text| {
            if text == last.text {
                return Ok(None);
            }
            let configs = build(roots, leaf, &text)?;
            Ok(Some(Last { text, configs }))
        });
        match fresh {
            Ok(None) => {}
            Ok(Some(fresh)) => *last = fresh,
            Err(error) => {
                tracing::warn!(%error, "a certificate file for etcd cannot be used; the one before stays in use");
            }
        }
        last.configs.clone()
    }
}

fn read(roots: &Path, leaf: &Pair) -> Result<[Vec<u8>; 3], Error> {
    Ok([pem::read(roots)?, pem::read(&leaf.cert)?, pem::read(&leaf.key)?])
}

fn build(roots: &Path, leaf: &Pair, [ca, cert, key]: &[Vec<u8>; 3]) -> Result<Configs, Error> {
    let trusted = Arc::new(pem::roots(roots, ca)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(trusted, crypto::provider())
        .build()
        .map_err(|source| Error::Roots { path: roots.to_owned(), source })?;
    let certified = pem::certified_key((&leaf.cert, cert), (&leaf.key, key))?;
    let mut config =
        crypto::client(verifier)?.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.resumption = Resumption::disabled();
    let mut grpc = config.clone();
    grpc.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Configs { grpc: Arc::new(grpc), http: Arc::new(config) })
}
