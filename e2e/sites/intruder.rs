//! Bad input against running agents: it is refused with a reason, and everything else goes on.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_cli::demo::mesh::{CLIENT_PORT, MESH_PORT, NAMESPACE, Site, TRUST_DOMAIN, manifest};
use quorate_cli::demo::socket;
use quorate_e2e::field::{FEDERATION, Field};
use quorate_link::clock::Clock;
use quorate_link::pki::{Pair, SitePki};
use quorate_link::tls::{crypto, pem};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(20);

/// One site with one voter: the quickest federation there is.
async fn small() -> Result<Field> {
    let field = Field::new(&["east", "west"]).await?;
    let spec =
        format!("{}  members: 1\n  allowSingleVoter: true\n", manifest(FEDERATION, &["east".to_owned()]));
    field.site("east")?.apply(FEDERATION, &spec)?;
    field.start().await?;
    field
        .until("one settled voter", |now| quorate_cli::demo::watch::settled(now, &["east".to_owned()], 1))
        .await?;
    Ok(field)
}

async fn log_says(site: &Site, words: &[&str]) -> Result<()> {
    let clock = Clock::start();
    loop {
        let log = std::fs::read_to_string(site.log())?;
        if log.lines().any(|line| words.iter().all(|word| line.contains(word))) {
            return Ok(());
        }
        if clock.elapsed() > PATIENCE {
            bail!("no line with {words:?} in the log of {}:\n{log}", site.name);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A TLS handshake and one read; the error of whichever failed.
async fn handshake(
    address: String,
    version: &'static SupportedProtocolVersion,
    roots: &std::path::Path,
    leaf: &Pair,
) -> Result<Vec<u8>> {
    let trusted = pem::roots(roots, &pem::read(roots)?)?;
    let (cert, key) = (pem::read(&leaf.cert)?, pem::read(&leaf.key)?);
    let certified = pem::certified_key((&leaf.cert, &cert), (&leaf.key, &key))?;
    let mut config = ClientConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(&[version])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(
            rustls::client::WebPkiServerVerifier::builder_with_provider(
                Arc::new(trusted),
                crypto::provider(),
            )
            .build()?,
        )))
        .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(&address).await?;
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
    tokio::time::timeout(PATIENCE, exchange).await.context("no end of the handshake")?
}

/// Takes any server: what is looked at is whether the server takes us.
#[derive(Debug)]
struct AnyServer(Arc<rustls::client::WebPkiServerVerifier>);

impl rustls::client::danger::ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_with_an_unknown_field_stops_only_itself() -> Result<()> {
    let field = small().await?;
    let writer =
        quorate_cli::demo::writer::Writer::start(vec![field.site("east")?.client().await?], field.clock);
    field.writes(&writer).await?;
    let etcds = field.etcds();
    let east = field.site("east")?;

    east.apply("other", &manifest("other", &["east".to_owned()]).replace("clusters:", "clutsers:"))?;
    log_says(east, &["clutsers", "clusters"]).await?;
    // And the manifest of the federation that runs: what is effective stays so.
    let broken = manifest(FEDERATION, &["east".to_owned()]).replace("spec:\n", "spec:\n  membres: 1\n");
    east.apply(FEDERATION, &broken)?;
    log_says(east, &["membres", "members"]).await?;

    field.writes(&writer).await?;
    assert_eq!(field.etcds(), etcds);
    let (code, _) = socket::get(&east.socket(), &format!("/v1/federations/{NAMESPACE}/other")).await?;
    assert_ne!(code, 500);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_garbage_and_old_tls_are_refused() -> Result<()> {
    let field = small().await?;
    let east = field.site("east")?;
    let west = field.site("west")?;
    let mesh = format!("{}:{MESH_PORT}", east.address);
    let client = format!("{}:{CLIENT_PORT}", east.address);
    let (tls12, tls13) = (&rustls::version::TLS12, &rustls::version::TLS13);
    let agent_roots = |site: &Site| anyhow::Ok(site.pki()?.root_path(quorate_link::pki::Root::Agent));

    // The other site of the mesh is let in: this is what the others are compared with.
    let known = west.pki()?.agent_pair();
    handshake(mesh.clone(), tls13, &agent_roots(east)?, &known).await.context("a site of the mesh")?;

    // The same names, from another mesh.
    let foreign = tempfile::tempdir()?;
    let stranger = SitePki::init(foreign.path(), "west", TRUST_DOMAIN)?;
    let refused = handshake(mesh.clone(), tls13, &agent_roots(east)?, &stranger.agent_pair()).await;
    assert!(refused.is_err(), "an agent of another mesh was let in: {refused:?}");

    // TLS 1.2, with certificates that are good.
    let refused = handshake(mesh.clone(), tls12, &agent_roots(east)?, &known).await;
    assert!(refused.is_err(), "the mesh port speaks TLS 1.2: {refused:?}");
    let user = east.user_pair();
    let client_roots = east.pki()?.root_path(quorate_link::pki::Root::Client);
    handshake(client.clone(), tls13, &client_roots, &user).await.context("a user of etcd")?;
    let refused = handshake(client, tls12, &client_roots, &user).await;
    assert!(refused.is_err(), "etcd speaks TLS 1.2: {refused:?}");

    // Bytes that are no TLS at all.
    let mut stream = TcpStream::connect(&mesh).await?;
    stream.write_all(&[0xff; 4096]).await?;
    let mut rest = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
    assert!(end.is_ok(), "the connection with garbage stays open");

    // After all that the agent is as it was.
    handshake(mesh, tls13, &agent_roots(east)?, &known).await.context("a site of the mesh, afterwards")?;
    field
        .until("one settled voter", |now| quorate_cli::demo::watch::settled(now, &["east".to_owned()], 1))
        .await?;
    Ok(())
}
