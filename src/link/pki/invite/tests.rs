use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::join::{connect, exchange};
use super::*;
use crate::tls::verify::{schemes, signature13};

const MESH: &str = "6f0c8d1e-0000-4000-8000-00000000000a";

struct Site {
    _state: tempfile::TempDir,
    local: LocalSite,
}

fn site(name: &str) -> Site {
    let state = tempfile::tempdir().unwrap();
    let pki = SitePki::init(state.path(), name, "quorate.test").unwrap();
    let local = LocalSite { pki, mesh: MESH.into(), agent_endpoint: format!("{name}.quorate.test:8443") };
    Site { _state: state, local }
}

type Waiting = JoinHandle<Result<SiteCard, Error>>;

#[expect(clippy::disallowed_methods, reason = "a test needs no tracker")]
async fn inviting(site: &Site) -> (Token, Waiting) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let invitation = Invitation::new(site.local.clone(), &endpoint, MAX_LIFE * 2).unwrap();
    let token = invitation.token().clone();
    assert!(token.expires <= crate::clock::Clock::unix_seconds() + 15 * 60, "never longer");
    (token.to_string().parse().unwrap(), tokio::spawn(invite(listener, invitation)))
}

fn trusted(site: &Site) -> Vec<String> {
    site.local.pki.trust().sites().unwrap()
}

#[tokio::test]
async fn two_sites_trust_each_other_afterwards_and_the_token_is_used_up() {
    let [east, west, north] = ["east", "west", "north"].map(site);
    let (token, waiting) = inviting(&east).await;
    let card = accept(&token, &west.local).await.unwrap();
    assert_eq!(card, east.local.card().unwrap());
    assert_eq!(waiting.await.unwrap().unwrap(), west.local.card().unwrap());
    assert_eq!(east.local.pki.trust().read("west").unwrap(), Some(west.local.pki.roots().unwrap()));
    assert_eq!(west.local.pki.trust().read("east").unwrap(), Some(east.local.pki.roots().unwrap()));

    let error = accept(&token, &north.local).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("was used"), "{error}");
    assert_eq!(trusted(&north), ["north"]);
}

#[tokio::test]
async fn a_second_joiner_is_refused_while_the_first_is_still_talking() {
    let [east, west, north] = ["east", "west", "north"].map(site);
    let (token, waiting) = inviting(&east).await;
    let mut slow = connect(&token, Arc::new(Gullible)).await.unwrap();
    let session = wire::Session::of(slow.get_ref().1).unwrap();
    let proof = session.prove(&token.secret, wire::Prover::Joiner);
    wire::send(&mut slow, wire::Message::Ok(proof)).await.unwrap();
    let _: wire::Proof = wire::receive(&mut slow).await.unwrap();

    let error = accept(&token, &north.local).await.unwrap_err();
    assert!(matches!(&error, Error::RefusedByPeer(why) if why.contains("used already")), "{error}");
    assert_eq!(trusted(&north), ["north"]);

    // The first one is not disturbed by that.
    wire::send(&mut slow, wire::Message::Ok(west.local.card().unwrap())).await.unwrap();
    let _: SiteCard = wire::receive(&mut slow).await.unwrap();
    wire::send(&mut slow, wire::Message::Ok(())).await.unwrap();
    let () = wire::receive(&mut slow).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().site, "west");
}

#[tokio::test]
async fn a_wrong_secret_is_refused_and_the_right_one_still_works() {
    let [east, west] = ["east", "west"].map(site);
    let (token, waiting) = inviting(&east).await;
    let mut wrong = token.clone();
    wrong.secret[0] ^= 1;
    let error = accept(&wrong, &west.local).await.unwrap_err();
    assert!(matches!(&error, Error::RefusedByPeer(why) if why.contains("could not prove")), "{error}");
    assert_eq!(trusted(&west), ["west"]);
    assert_eq!(trusted(&east), ["east"]);
    accept(&token, &west.local).await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn guessing_ends_the_invitation() {
    let [east, west] = ["east", "west"].map(site);
    let (token, waiting) = inviting(&east).await;
    let mut wrong = token.clone();
    wrong.secret = [0; 32];
    for _ in 0..16 {
        accept(&wrong, &west.local).await.unwrap_err();
    }
    assert!(matches!(waiting.await.unwrap(), Err(Error::TooManyAttempts(16))));
}

#[tokio::test]
async fn another_root_than_the_promised_one_is_refused() {
    let [east, false_east, west] = ["east", "east", "west"].map(site);
    let (token, waiting) = inviting(&false_east).await;
    let promised = Invitation::new(east.local.clone(), &token.endpoint, MAX_LIFE).unwrap();
    let token = Token { root_sha256: promised.token().root_sha256.clone(), ..token };
    let error = accept(&token, &west.local).await.unwrap_err();
    assert!(matches!(error, Error::OtherRoot), "{error}");
    assert_eq!(trusted(&west), ["west"]);
    waiting.abort();
}

#[tokio::test]
async fn an_expired_token_is_refused_by_both_sides() {
    let [east, west] = ["east", "west"].map(site);
    let (token, waiting) = inviting(&east).await;
    let old = Token { expires: crate::clock::Clock::unix_seconds() - 5, ..token.clone() };
    assert!(matches!(accept(&old, &west.local).await, Err(Error::Expired(_))));
    let forged = Token { expires: token.expires + 10_000, ..token };
    assert!(matches!(accept(&forged, &west.local).await, Err(Error::Token(_))));
    waiting.abort();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let invitation = Invitation::new(east.local.clone(), "127.0.0.1:1", Duration::from_secs(1)).unwrap();
    assert!(matches!(invite(listener, invitation).await, Err(Error::NotAccepted | Error::Expired(_))));
}

#[tokio::test]
async fn our_own_name_another_mesh_and_another_trust_domain_are_refused() {
    let [east, east2, west] = ["east", "east", "west"].map(site);
    let (token, waiting) = inviting(&east).await;
    assert!(matches!(accept(&token, &east2.local).await, Err(Error::OwnToken(_))));
    let other = LocalSite { mesh: "another".into(), ..west.local.clone() };
    assert!(matches!(accept(&token, &other).await, Err(Error::OtherMesh { .. })));
    waiting.abort();

    // A joiner that does not look: the inviter does.
    for (wrong, part) in [
        (SiteCard { site: "east".into(), ..west.local.card().unwrap() }, "name of this site"),
        (SiteCard { site: "../x".into(), ..west.local.card().unwrap() }, "valid site name"),
        (SiteCard { mesh: "another".into(), ..west.local.card().unwrap() }, "mesh another"),
        (SiteCard { trust_domain: "x.test".into(), ..west.local.card().unwrap() }, "trust domain x.test"),
    ] {
        let (token, waiting) = inviting(&east).await;
        let mut stream = connect(&token, Arc::new(Gullible)).await.unwrap();
        let session = wire::Session::of(stream.get_ref().1).unwrap();
        let proof = session.prove(&token.secret, wire::Prover::Joiner);
        wire::send(&mut stream, wire::Message::Ok(proof)).await.unwrap();
        let _: wire::Proof = wire::receive(&mut stream).await.unwrap();
        wire::send(&mut stream, wire::Message::Ok(wrong)).await.unwrap();
        let error = wire::receive::<SiteCard>(&mut stream).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        waiting.await.unwrap().unwrap_err();
    }
    assert_eq!(trusted(&east), ["east"]);
}

#[tokio::test]
async fn a_site_that_was_made_anew_is_not_trusted_silently() {
    let [east, west, west2] = ["east", "west", "west"].map(site);
    let (token, waiting) = inviting(&east).await;
    accept(&token, &west.local).await.unwrap();
    waiting.await.unwrap().unwrap();
    let (token, waiting) = inviting(&east).await;
    let error = accept(&token, &west2.local).await.unwrap_err();
    assert!(error.to_string().contains("already trusted with another"), "{error}");
    waiting.await.unwrap().unwrap_err();
    assert_eq!(trusted(&west2), ["west"]);
}

fn server_of(site: &Site) -> Arc<rustls::ServerConfig> {
    let pair = site.local.pki.agent_pair();
    let read = |path| crate::tls::pem::read(path).unwrap();
    let (cert, key) = (read(&pair.cert), read(&pair.key));
    let key = crate::tls::pem::certified_key((&pair.cert, &cert), (&pair.key, &key)).unwrap();
    let config = crate::tls::crypto::server(Arc::new(rustls::server::NoClientAuth)).unwrap();
    Arc::new(config.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key))))
}

#[expect(clippy::disallowed_methods, reason = "a test needs no tracker")]
async fn relaying(mallory: &Site, token: &Token) -> (Token, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relayed = Token { endpoint: listener.local_addr().unwrap().to_string(), ..token.clone() };
    let (tls, token) = (server_of(mallory), token.clone());
    let relay = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut inner) = TlsAcceptor::from(tls.clone()).accept(stream).await else {
                continue;
            };
            let mut outer = connect(&token, Arc::new(Gullible)).await.unwrap();
            // How it ends does not matter.
            let _ = tokio::io::copy_bidirectional(&mut inner, &mut outer).await;
        }
    });
    (relayed, relay)
}

/// The relay ends TLS on both sides and passes on what it reads.
#[tokio::test]
async fn a_relay_is_noticed_by_the_proofs_alone() {
    let [east, west, mallory] = ["east", "west", "mallory"].map(site);
    let (token, waiting) = inviting(&east).await;
    let (relayed, relay) = relaying(&mallory, &token).await;
    // The real joiner does not even begin.
    let error = accept(&relayed, &west.local).await.unwrap_err();
    assert!(matches!(error, Error::OtherRoot), "{error}");
    // This one does not look at certificates.
    let stream = connect(&relayed, Arc::new(Gullible)).await.unwrap();
    let error = exchange(stream, &relayed, &west.local).await.unwrap_err();
    assert!(matches!(&error, Error::RefusedByPeer(why) if why.contains("could not prove")), "{error}");
    assert_eq!((trusted(&east), trusted(&west)), (vec!["east".into()], vec!["west".into()]));
    relay.abort();
    waiting.abort();
}

#[test]
fn junk_is_not_a_token() {
    for text in ["", "quorate1.", "quorate2.abc", "quorate1.!!!", "quorate1.e30"] {
        assert!(matches!(text.parse::<Token>(), Err(Error::Token(_))), "{text}");
    }
    let token = Invitation::new(site("east").local, "127.0.0.1:1", MAX_LIFE).unwrap().token().clone();
    assert_eq!(format!(" {token}\n").parse::<Token>().unwrap(), token);
    assert!(!format!("{token:?}").contains("secret"));
}

/// Believes any certificate.
#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crate::tls::verify::signature12(message, cert, dss)
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
