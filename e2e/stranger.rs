//! Somebody at the mesh port of an agent: with any certificate, or as the agent of a site that is trusted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_api::peer::peer_client::PeerClient;
use quorate_api::peer::sync_message::Message;
use quorate_api::peer::{Document, Envelope, HelloReply, HelloRequest, Ping, SyncMessage, ViewUpdate};
use quorate_cli::demo::mesh::{NAMESPACE, Site, TRUST_DOMAIN};
use quorate_link::identity::Identity;
use quorate_link::pki::Pair;
use quorate_link::tls::store::{Source, Trust};
use quorate_link::tls::{TlsStore, crypto, pem};
use quorate_link::transport;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

const PATIENCE: Duration = Duration::from_secs(20);

/// A TLS handshake and one answer; the error of whichever failed.
pub async fn handshake(
    address: &str,
    version: &'static SupportedProtocolVersion,
    roots: &Path,
    leaf: &Pair,
) -> Result<Vec<u8>> {
    let trusted = pem::roots(roots, &pem::read(roots)?)?;
    let (cert, key) = (pem::read(&leaf.cert)?, pem::read(&leaf.key)?);
    let certified = pem::certified_key((&leaf.cert, &cert), (&leaf.key, &key))?;
    let verifier =
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(trusted), crypto::provider());
    let mut config = ClientConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(&[version])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(verifier.build()?)))
        .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(address).await?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let exchange = async {
        let mut stream = connector.connect(ServerName::try_from("quorate.test")?, stream).await?;
        // With TLS 1.3 a server refuses the client's certificate after the handshake, as the client sees it.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
        let mut answer = vec![0; 64];
        let count = stream.read(&mut answer).await?;
        answer.truncate(count);
        if answer.is_empty() {
            bail!("closed");
        }
        Ok(answer)
    };
    tokio::time::timeout(PATIENCE, exchange).await.context("no answer")?
}

/// Believes any server: the server's judgement of the client is what is looked at.
#[derive(Debug)]
struct AnyServer(Arc<rustls::client::WebPkiServerVerifier>);

impl rustls::client::danger::ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Speaks to the agent of another site with the good certificate of its own: whatever it says, its word is its own.
#[derive(Debug)]
pub struct Impostor {
    client: PeerClient<Channel>,
    /// What it writes into envelopes; every field may be changed.
    pub envelope: Envelope,
    seq: AtomicU64,
}

impl Impostor {
    /// As the agent of `site`, which must not run, at the mesh port of `at`.
    pub fn of(site: &Site, at: &Site, mesh: &str) -> Result<Self> {
        let pki = site.pki()?;
        let source = Source {
            trust_domain: TRUST_DOMAIN.to_owned(),
            leaf: pki.agent_pair(),
            trust: Trust::Folder(pki.trust()),
        };
        let store = TlsStore::load(source)?;
        let channel = transport::connect(&at.mesh(), &store, Identity::agent(&at.name))?;
        let envelope = Envelope {
            mesh: mesh.to_owned(),
            namespace: NAMESPACE.to_owned(),
            name: "main".to_owned(),
            sender_site: site.name.clone(),
            boot_id: vec![7; 16],
            proto_min: 1,
            proto_max: 1,
            ..Envelope::default()
        };
        Ok(Self { client: PeerClient::new(channel), envelope, seq: AtomicU64::new(0) })
    }

    /// The envelope with the next number.
    pub fn next(&self) -> Envelope {
        Envelope { seq: self.seq.fetch_add(1, Ordering::Relaxed) + 1, ..self.envelope.clone() }
    }

    /// Says hello.
    pub async fn hello(&self) -> Result<HelloReply, tonic::Status> {
        let hello = HelloRequest {
            envelope: Some(Envelope { namespace: String::new(), name: String::new(), ..self.next() }),
            capabilities: Vec::new(),
            version: "0".to_owned(),
        };
        Ok(self.client.clone().hello(hello).await?.into_inner())
    }

    /// Proposes whatever these bytes are.
    pub async fn propose(&self, format: &str, body: &[u8]) -> Result<Document, tonic::Status> {
        let document =
            Document { envelope: Some(self.next()), format: format.to_owned(), body: body.to_vec() };
        Ok(self.client.clone().propose(document).await?.into_inner())
    }

    /// Asks for a vote for whatever these bytes are.
    pub async fn vote(&self, format: &str, body: &[u8]) -> Result<Document, tonic::Status> {
        let document =
            Document { envelope: Some(self.next()), format: format.to_owned(), body: body.to_vec() };
        Ok(self.client.clone().vote(document).await?.into_inner())
    }

    /// Sends these messages on one stream, and returns what ended it: none if it is still open after all were taken and
    /// `patience` has passed.
    pub async fn stream(&self, messages: Vec<Message>, patience: Duration) -> Option<tonic::Status> {
        let (queue, stream) = mpsc::channel(16);
        let mut answers = match self.client.clone().sync(ReceiverStream::new(stream)).await {
            Ok(answers) => answers.into_inner(),
            Err(status) => return Some(status),
        };
        let say = async {
            for message in messages {
                if queue.send(SyncMessage { message: Some(message) }).await.is_err() {
                    break;
                }
            }
            tokio::time::sleep(patience).await;
        };
        let hear = async {
            loop {
                match answers.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return tonic::Status::ok("the stream ended"),
                    Err(status) => return status,
                }
            }
        };
        tokio::select! {
            status = hear => Some(status),
            () = say => None,
        }
    }

    /// A view with this envelope.
    pub fn view(envelope: Envelope, format: &str, body: &[u8], version: u64) -> Message {
        let (format, body) = (format.to_owned(), body.to_vec());
        Message::View(ViewUpdate { envelope: Some(envelope), format, body, version, sample_age_ms: 0 })
    }

    /// A ping with this envelope.
    pub fn ping(envelope: Envelope) -> Message {
        let envelope = Envelope { namespace: String::new(), name: String::new(), ..envelope };
        Message::Ping(Ping { envelope: Some(envelope), ..Ping::default() })
    }
}
