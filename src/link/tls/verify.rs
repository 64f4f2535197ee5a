//! Who may connect, and whom we believe to have reached.
//!
//! The site is taken from the URI name of the certificate, the chain is checked against the root of *that* site alone,
//! the usage has to be there, and the identity has to be one that is expected here.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, ServerConfig,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::crypto;
use super::store::{Error as StoreError, TlsStore};
use crate::clock::Clock;
use crate::identity::{self, Identity};

/// Why a certificate is refused; the text stands in the log of the side that refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The certificate names nobody.
    #[error(transparent)]
    Identity(#[from] identity::Error),
    /// We have no root of that site.
    #[error("site {0} is not trusted here; run `quorate mesh invite` or add its roots to the trust folder")]
    UnknownSite(String),
    /// Not signed by the site's root, expired, or not good for another reason.
    #[error(
        "the certificate of the {found} is not good below the root that is trusted here for site {site}: {why}; if the \
         site was made anew, accept its new roots (`quorate mesh accept`)"
    )]
    NotGood {
        /// Who the certificate names.
        found: String,
        /// Whose root was asked.
        site: String,
        /// What TLS said.
        why: String,
    },
    /// Somebody else was expected.
    #[error("expected the {expected}, found the {found}")]
    Other {
        /// Who may speak here.
        expected: String,
        /// Who the certificate names.
        found: String,
    },
    /// The certificate was made for something else.
    #[error("the certificate of the {found} is not made for a TLS {side}")]
    Usage {
        /// Who the certificate names.
        found: String,
        /// client or server.
        side: &'static str,
    },
}

impl Refusal {
    fn not_good(found: &Identity, error: &rustls::Error) -> Self {
        Self::NotGood { found: found.to_string(), site: found.site().to_owned(), why: error.to_string() }
    }
}

impl From<Refusal> for rustls::Error {
    fn from(refusal: Refusal) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
    }
}

/// What TLS said, in words: our own refusals come wrapped in several layers.
pub(crate) fn reason(error: &std::io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(refusal)))) => {
            refusal.to_string()
        }
        Some(error) => error.to_string(),
        None => error.to_string(),
    }
}

/// Which clients a server admits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admit {
    /// The agent of any site that is trusted: the mesh.
    AnyAgent,
    /// One identity: the member API admits the agent of its own site.
    Only(Identity),
}

impl Admit {
    fn check(&self, found: &Identity) -> Result<(), Refusal> {
        let expected = match self {
            Self::AnyAgent if matches!(found, Identity::Agent { .. }) => return Ok(()),
            Self::AnyAgent => "agent of a site".to_owned(),
            Self::Only(expected) if expected == found => return Ok(()),
            Self::Only(expected) => expected.to_string(),
        };
        Err(Refusal::Other { expected, found: found.to_string() })
    }
}

impl TlsStore {
    /// A server that shows our leaf and admits only `admit`. It follows the files; it need not be made again.
    pub fn server(&self, admit: Admit) -> Result<Arc<ServerConfig>, StoreError> {
        let verifier = ClientVerifier { store: self.clone(), admit };
        let mut config = crypto::server(Arc::new(verifier))?.with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"h2".to_vec()];
        crypto::without_resumption(&mut config);
        Ok(Arc::new(config))
    }

    /// Whether a client that showed `chain` would be admitted now. A connection outlives the look at its certificate.
    pub(crate) fn still_admits(
        &self,
        admit: &Admit,
        chain: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        let (leaf, rest) = chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
        let verifier = ClientVerifier { store: self.clone(), admit: admit.clone() };
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(Clock::unix_seconds()));
        verifier.verify_client_cert(leaf, rest, now).map(drop)
    }

    /// A client that shows our leaf and believes only `expected`. It follows the files; it need not be made again.
    pub fn client(&self, expected: Identity) -> Result<Arc<ClientConfig>, StoreError> {
        let verifier = ServerVerifier { store: self.clone(), expected };
        let mut config =
            crypto::client(Arc::new(verifier))?.with_client_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = Resumption::disabled();
        // The name would only tell an observer whom we call: it decides nothing.
        config.enable_sni = false;
        Ok(Arc::new(config))
    }
}

struct ClientVerifier {
    store: TlsStore,
    admit: Admit,
}

struct ServerVerifier {
    store: TlsStore,
    expected: Identity,
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientVerifier").field("admit", &self.admit).finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerVerifier").field("expected", &self.expected).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // None: which root counts depends on the site in the certificate.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let found =
            Identity::from_certificate(end_entity, self.store.trust_domain()).map_err(Refusal::from)?;
        self.admit.check(&found)?;
        let site = self.store.site(found.site()).ok_or_else(|| Refusal::UnknownSite(found.site().into()))?;
        let verified = site
            .clients
            .verify_client_cert(end_entity, intermediates, now)
            .map_err(|error| Refusal::not_good(&found, &error))?;
        require_usage(end_entity, &found, Side::Client)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        signature12(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        signature13(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found =
            Identity::from_certificate(end_entity, self.store.trust_domain()).map_err(Refusal::from)?;
        Admit::Only(self.expected.clone()).check(&found)?;
        let site = self.store.site(found.site()).ok_or_else(|| Refusal::UnknownSite(found.site().into()))?;
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &site.roots,
            intermediates,
            now,
            crypto::provider().signature_verification_algorithms.all,
        )
        .map_err(|error| Refusal::not_good(&found, &error))?;
        require_usage(end_entity, &found, Side::Server)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        signature12(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        signature13(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Side {
    Client,
    Server,
}

/// webpki takes a certificate without any usage for one that may be used for everything; we do not.
pub(crate) fn require_usage(der: &[u8], found: &Identity, side: Side) -> Result<(), Refusal> {
    let certificate = identity::parse(der)?;
    let usage = certificate.extended_key_usage().ok().flatten();
    let (allowed, side) = match side {
        Side::Client => (usage.is_some_and(|usage| usage.value.client_auth), "client"),
        Side::Server => (usage.is_some_and(|usage| usage.value.server_auth), "server"),
    };
    if allowed { Ok(()) } else { Err(Refusal::Usage { found: found.to_string(), side }) }
}

pub(crate) fn signature12(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    verify_tls12_signature(message, cert, dss, &crypto::provider().signature_verification_algorithms)
}

pub(crate) fn signature13(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    verify_tls13_signature(message, cert, dss, &crypto::provider().signature_verification_algorithms)
}

pub(crate) fn schemes() -> Vec<SignatureScheme> {
    crypto::provider().signature_verification_algorithms.supported_schemes()
}
