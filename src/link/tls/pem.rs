//! Certificates and keys as files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::crypto;

/// Why a file with certificates or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The content is not what it should be.
    #[error("{} holds no usable {what}: {reason}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

fn content(path: &Path, what: &'static str, reason: &dyn std::fmt::Display) -> Error {
    Error::Content { path: path.to_owned(), what, reason: reason.to_string() }
}

/// Reads a file as a whole.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// The certificates in `text`, at least one; `path` is for messages.
pub fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|error| content(path, "certificate", &error))?;
    for certificate in &found {
        crate::identity::parse(certificate).map_err(|error| content(path, "certificate", &error))?;
    }
    if found.is_empty() { Err(content(path, "certificate", &"there is none")) } else { Ok(found) }
}

/// The roots in `text`, at least one, each a CA.
pub fn roots(path: &Path, text: &[u8]) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path, text)? {
        let parsed = crate::identity::parse(&certificate).map_err(|error| content(path, "root", &error))?;
        if !parsed.is_ca() {
            return Err(content(path, "root", &format!("{} is not a CA", parsed.subject())));
        }
        store.add(certificate).map_err(|error| content(path, "root", &error))?;
    }
    Ok(store)
}

/// A certificate chain with its key; they must belong together.
pub fn certified_key(cert: (&Path, &[u8]), key: (&Path, &[u8])) -> Result<CertifiedKey, Error> {
    let chain = certificates(cert.0, cert.1)?;
    let private = PrivateKeyDer::from_pem_slice(key.1).map_err(|error| content(key.0, "key", &error))?;
    CertifiedKey::from_der(chain, private, &crypto::provider())
        .map_err(|error| content(key.0, "key for its certificate", &error))
}
