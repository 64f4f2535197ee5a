//! The side that accepts an invitation.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::wire::{Message, Proof, Prover, Session, SiteCard, receive, send};
use super::{Error, LocalSite, Token};
use crate::clock::Clock;
use crate::durable::sha256_hex;
use crate::identity::{Identity, parse};
use crate::tls::verify::{Side, require_usage, schemes, signature12, signature13};
use crate::tls::{crypto, pem};

const EXCHANGE: Duration = Duration::from_secs(10);

/// Accepts a token: checks who is there, proves the secret, and begins to trust the site that invited. Returns the card
/// of that site.
pub async fn accept(token: &Token, local: &LocalSite) -> Result<SiteCard, Error> {
    token.check_time(Clock::unix_seconds())?;
    if token.site == local.pki.site() {
        return Err(Error::OwnToken(token.site.clone()));
    }
    if token.mesh != local.mesh {
        return Err(Error::OtherMesh { own: local.mesh.clone(), found: token.mesh.clone() });
    }
    let verifier = PromisedRoot {
        sha256: token.root_sha256.clone(),
        site: token.site.clone(),
        trust_domain: local.pki.trust_domain().to_owned(),
    };
    let exchange = async {
        let stream = connect(token, Arc::new(verifier)).await?;
        exchange(stream, token, local).await
    };
    tokio::time::timeout(EXCHANGE, exchange).await.unwrap_or(Err(Error::Timeout))
}

pub(super) async fn connect(
    token: &Token,
    verifier: Arc<dyn ServerCertVerifier>,
) -> Result<TlsStream<TcpStream>, Error> {
    let unreachable = |source| Error::Unreachable { endpoint: token.endpoint.clone(), source };
    let stream = TcpStream::connect(&token.endpoint).await.map_err(unreachable)?;
    let mut config = crypto::client(verifier)?.with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    // Never looked at: the root and the URI name decide.
    let name = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(refusal)
}

/// Our own refusal of the certificate, out of its wrappings.
fn refusal(error: std::io::Error) -> Error {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return Error::Io(error);
    };
    if let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) = tls {
        match inner.downcast_ref() {
            Some(Error::OtherRoot) => return Error::OtherRoot,
            Some(Error::OtherSite { expected, found }) => {
                return Error::OtherSite { expected: expected.clone(), found: found.clone() };
            }
            _ => {}
        }
    }
    Error::Tls(tls.clone())
}

pub(super) async fn exchange<S>(
    mut stream: TlsStream<S>,
    token: &Token,
    local: &LocalSite,
) -> Result<SiteCard, Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let session = Session::of(stream.get_ref().1)?;
    send(&mut stream, Message::Ok(session.prove(&token.secret, Prover::Joiner))).await?;
    let proof: Proof = receive(&mut stream).await?;
    session.check(&token.secret, Prover::Inviter, &proof)?;

    send(&mut stream, Message::Ok(local.card()?)).await?;
    let card: SiteCard = receive(&mut stream).await?;
    let added = check(&card, token, local)
        .and_then(|()| local.trust().add(&card.site, &card.roots).map_err(Error::from));
    match added {
        Ok(_) => send(&mut stream, Message::Ok(())).await?,
        Err(error) => {
            send(&mut stream, Message::<()>::Refused(error.to_string())).await?;
            return Err(error);
        }
    }
    // Without this answer we trust them and they may not trust us; a new invitation puts that right.
    let () = receive(&mut stream).await?;
    Ok(card)
}

fn check(card: &SiteCard, token: &Token, local: &LocalSite) -> Result<(), Error> {
    local.check(card)?;
    if card.site != token.site {
        return Err(Error::OtherSite { expected: token.site.clone(), found: card.site.clone() });
    }
    let path = local.trust().agent_path(&card.site);
    let roots = pem::certificates(&path, card.roots.agent.as_bytes()).map_err(super::super::Error::from)?;
    if roots.iter().any(|root| sha256_hex(root) == token.root_sha256) {
        Ok(())
    } else {
        Err(Error::OtherRoot)
    }
}

/// Believes the agent of the site in the token, below the root in the token.
#[derive(Debug)]
struct PromisedRoot {
    sha256: String,
    site: String,
    trust_domain: String,
}

impl ServerCertVerifier for PromisedRoot {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let bad = |error: Error| {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
        };
        let root = intermediates
            .iter()
            .find(|certificate| sha256_hex(certificate) == self.sha256)
            .filter(|certificate| parse(certificate).is_ok_and(|parsed| parsed.is_ca()))
            .ok_or_else(|| bad(Error::OtherRoot))?;
        let mut roots = RootCertStore::empty();
        roots.add(root.clone().into_owned())?;
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &roots,
            &[],
            now,
            crypto::provider().signature_verification_algorithms.all,
        )?;
        let found =
            Identity::from_certificate(end_entity, &self.trust_domain).map_err(|error| bad(error.into()))?;
        if found != Identity::agent(&self.site) {
            return Err(bad(Error::OtherSite { expected: self.site.clone(), found: found.to_string() }));
        }
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
