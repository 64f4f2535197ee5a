use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::Stream;
use quorate_api::peer::peer_client::PeerClient;
use quorate_api::peer::peer_server::{Peer, PeerServer};
use quorate_api::peer::{Document, HelloReply, HelloRequest, ReachReply, ReachRequest, SyncMessage};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status, Streaming};

use super::serve::Counters;
use super::*;
use crate::clock::Clock;
use crate::drain::Drain;
use crate::identity::Identity;
use crate::pki::{Leaf, Pair};
use crate::testing::{DOMAIN, Site, UID};
use crate::tls::{Admit, Source, TlsStore, Trust, crypto, pem};

/// Answers with the identity that it sees; a name of "slow" takes a while.
struct Stub;

#[tonic::async_trait]
impl Peer for Stub {
    type SyncStream = Pin<Box<dyn Stream<Item = Result<SyncMessage, Status>> + Send>>;

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let peer = request.extensions().get::<PeerIdentity>().cloned();
        let peer = peer.ok_or_else(|| Status::internal("no identity"))?;
        if request.get_ref().version == "slow" {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Ok(Response::new(HelloReply { version: peer.identity.to_string(), ..Default::default() }))
    }

    async fn sync(
        &self,
        request: Request<Streaming<SyncMessage>>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        Ok(Response::new(Box::pin(request.into_inner())))
    }

    async fn vote(&self, _: Request<Document>) -> Result<Response<Document>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn record(&self, _: Request<Document>) -> Result<Response<Document>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn propose(&self, _: Request<Document>) -> Result<Response<Document>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn resolve(&self, _: Request<Document>) -> Result<Response<Document>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn drain(&self, _: Request<Document>) -> Result<Response<Document>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn reach(&self, _: Request<ReachRequest>) -> Result<Response<ReachReply>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn certify(&self, _: Request<Document>) -> Result<Response<Document>, Status> {
        Err(Status::unimplemented(""))
    }
}

struct Server {
    address: String,
    counters: Arc<Counters>,
    drain: Drain,
}

impl Server {
    async fn start(store: TlsStore, admit: Admit, limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let router = Routes::new(PeerServer::new(Stub)).into_axum_router();
        let (drain, counters) = (Drain::new(), Arc::new(Counters::default()));
        drain.spawn(serve(listener, store, admit, router, limits, counters.clone(), drain.clone()));
        Self { address, counters, drain }
    }

    async fn mesh(site: &Site) -> Self {
        Self::start(site.store(), Admit::AnyAgent, Limits::default()).await
    }

    async fn hello(&self, store: &TlsStore, expected: &str) -> Result<String, Status> {
        hello(&self.address, store, Identity::agent(expected)).await
    }

    fn refused(&self) -> u64 {
        self.counters.refused.load(Ordering::Relaxed)
    }
}

async fn hello(address: &str, store: &TlsStore, expected: Identity) -> Result<String, Status> {
    let channel = connect(address, store, expected).unwrap();
    let reply = PeerClient::new(channel).hello(HelloRequest::default()).await?;
    Ok(reply.into_inner().version)
}

fn text(status: &Status) -> String {
    let mut text = status.to_string();
    let mut next = std::error::Error::source(status);
    while let Some(cause) = next {
        write!(text, ": {cause}").unwrap();
        next = cause.source();
    }
    text
}

#[tokio::test]
async fn handlers_know_who_calls() {
    let [east, west] = Site::mesh(["east", "west"]);
    let server = Server::mesh(&east).await;
    assert_eq!(server.hello(&west.store(), "east").await.unwrap(), "agent of west");
    assert_eq!(server.hello(&east.store(), "east").await.unwrap(), "agent of east");
    assert_eq!(server.counters.accepted.load(Ordering::Relaxed), 2);
    assert_eq!(server.drain.finish(Duration::from_secs(10)).await, 0);
}

#[tokio::test]
async fn a_client_believes_only_whom_it_expects() {
    let [east, west, north] = Site::mesh(["east", "west", "north"]);
    let server = Server::mesh(&east).await;
    let error = server.hello(&west.store(), "north").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(
        text(&error).contains("expected the agent of north, found the agent of east"),
        "{}",
        text(&error)
    );

    // A site of the same name with other roots.
    let stranger = Site::new("east");
    let server = Server::mesh(&stranger).await;
    let error = server.hello(&north.store(), "east").await.unwrap_err();
    assert!(text(&error).contains("BadSignature"), "{}", text(&error));
    // A site that the client does not know.
    let error = server.hello(&Site::new("west").store(), "east").await.unwrap_err();
    assert!(text(&error).contains("site east is not trusted here"), "{}", text(&error));
}

/// A store that shows a leaf of `site` and believes the root of `trusted`.
fn store_with(site: &Site, leaf: &Leaf, age_days: u64, trusted: &Site) -> TlsStore {
    let pair = Pair::at(&site.folder().join(format!("{age_days}")), "leaf");
    site.pki.issue_at(leaf, &pair, Clock::wall() - Duration::from_hours(age_days * 24)).unwrap();
    let trust = Trust::Folder(trusted.pki.trust());
    TlsStore::load(Source { trust_domain: DOMAIN.into(), leaf: pair, trust }).unwrap()
}

#[tokio::test]
async fn a_server_refuses_whom_it_should() {
    let [east, west] = Site::mesh(["east", "west"]);
    let server = Server::mesh(&east).await;
    // Each of these trusts the server; the server must not trust them.
    let false_west = Site::new("west");
    let unknown = Site::new("south");
    let api = Leaf::MemberApi { uid: UID.into(), slot: "main-west-0".into() };
    let cases = [
        ("a root that is not the one of its site", store_with(&false_west, &Leaf::Agent, 0, &west)),
        ("a site that is not known", store_with(&unknown, &Leaf::Agent, 0, &west)),
        ("an expired certificate", store_with(&west, &Leaf::Agent, 91, &west)),
        ("a member instead of an agent", store_with(&west, &api, 0, &west)),
    ];
    for (number, (what, store)) in cases.iter().enumerate() {
        assert!(server.hello(store, "east").await.is_err(), "{what}");
        assert_eq!(server.refused(), number as u64 + 1, "{what}");
    }
    assert_eq!(server.hello(&west.store(), "east").await.unwrap(), "agent of west", "the others go on");
}

/// West's own root signs an identity of east.
#[tokio::test]
async fn a_root_vouches_for_its_own_site_only() {
    let [east, west, north] = Site::mesh(["east", "west", "north"]);
    let forger = {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("pki");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["agent-ca", "peer-ca", "client-ca"] {
            for end in ["crt", "key"] {
                let file = format!("{name}.{end}");
                std::fs::copy(west.pki.folder().join(&file), folder.join(&file)).unwrap();
            }
        }
        let pki = crate::pki::SitePki::init(state.path(), "east", DOMAIN).unwrap();
        let trust = Trust::Folder(north.pki.trust());
        let source = Source { trust_domain: DOMAIN.into(), leaf: pki.agent_pair(), trust };
        (TlsStore::load(source).unwrap(), state)
    };
    assert_eq!(forger.0.identity(), Identity::agent("east"));
    let server = Server::mesh(&north).await;
    assert!(server.hello(&forger.0, "north").await.is_err());
    assert_eq!(server.refused(), 1);
    let server = Server::start(forger.0, Admit::AnyAgent, Limits::default()).await;
    assert!(server.hello(&north.store(), "east").await.is_err());
    drop(east);
}

#[tokio::test]
async fn wrong_usage_is_refused_on_both_sides() {
    let [east, west] = Site::mesh(["east", "west"]);
    // A member leaf is for servers only; the member API of east admits it by name, but not as a client.
    let slot = "main-west-0";
    let member = Identity::member(UID, "west", slot);
    let api = store_with(&west, &Leaf::MemberApi { uid: UID.into(), slot: slot.into() }, 0, &west);
    let server = Server::start(east.store(), Admit::Only(member.clone()), Limits::default()).await;
    assert!(server.hello(&api, "east").await.is_err());
    assert_eq!(server.refused(), 1);

    // A certificate with an agent's name, from the right root, without any usage.
    let plain = {
        let key = rcgen::KeyPair::generate().unwrap();
        let root = std::fs::read_to_string(west.pki.folder().join("agent-ca.crt")).unwrap();
        let root_key = std::fs::read_to_string(west.pki.folder().join("agent-ca.key")).unwrap();
        let root_key = rcgen::KeyPair::from_pem(&root_key).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(&root, root_key).unwrap();
        let mut params = rcgen::CertificateParams::default();
        let uri = Identity::agent("west").uri(DOMAIN);
        params.subject_alt_names = vec![rcgen::SanType::URI(uri.as_str().try_into().unwrap())];
        let pair = Pair::at(west.folder(), "plain");
        std::fs::write(&pair.cert, params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
        std::fs::write(&pair.key, key.serialize_pem()).unwrap();
        let trust = Trust::Folder(west.pki.trust());
        TlsStore::load(Source { trust_domain: DOMAIN.into(), leaf: pair, trust }).unwrap()
    };
    let server = Server::mesh(&east).await;
    assert!(server.hello(&plain, "east").await.is_err());
    assert_eq!(server.refused(), 1);
    let server = Server::start(plain, Admit::AnyAgent, Limits::default()).await;
    let error = server.hello(&east.store(), "west").await.unwrap_err();
    assert!(text(&error).contains("not made for a TLS server"), "{}", text(&error));
}

#[tokio::test]
async fn the_member_api_admits_its_own_agent_only() {
    let [east, west] = Site::mesh(["east", "west"]);
    let admit = Admit::Only(Identity::agent("east"));
    let server = Server::start(east.member_store("main-east-0"), admit, Limits::default()).await;
    let member = || Identity::member(UID, "east", "main-east-0");
    assert_eq!(hello(&server.address, &east.store(), member()).await.unwrap(), "agent of east");
    assert!(hello(&server.address, &west.store(), member()).await.is_err());
    assert_eq!(server.refused(), 1);
    let other = Identity::member(UID, "east", "main-east-1");
    assert!(hello(&server.address, &east.store(), other).await.is_err());
}

#[tokio::test]
async fn plaintext_tls12_and_no_certificate_are_refused() {
    let [east, west] = Site::mesh(["east", "west"]);
    let server = Server::mesh(&east).await;
    let mut plain = TcpStream::connect(&server.address).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // A reset is as good as a closed connection.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(answer.len() < 16 && answer.first() != Some(&0), "an alert at most: {answer:?}");

    let roots = {
        let path = west.pki.trust().agent_path("east");
        pem::roots(&path, &pem::read(&path).unwrap()).unwrap()
    };
    let config = rustls::ClientConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = dial::server_name("localhost").unwrap();
    let error = dial::dial(&server.address, name.clone(), Arc::new(config)).await.unwrap_err();
    assert!(error.to_string().contains("ProtocolVersion"), "{error}");

    let mut config = west.store().client(Identity::agent("east")).unwrap();
    Arc::make_mut(&mut config).client_auth_cert_resolver = Arc::new(NoCertificate);
    // In TLS 1.3 the client learns of it with its first read.
    let mut stream = dial::dial(&server.address, name, config).await.unwrap();
    assert!(stream.read_u8().await.is_err());
    assert_eq!(server.refused(), 3);
}

#[derive(Debug)]
struct NoCertificate;

impl rustls::client::ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn slow_clients_block_nobody_and_are_cut_off() {
    let [east, west] = Site::mesh(["east", "west"]);
    let limits = Limits { handshake: Duration::from_millis(300), per_source: 5, ..Limits::default() };
    let server = Server::start(east.store(), Admit::AnyAgent, limits).await;
    let mut slow = Vec::new();
    for _ in 0..4 {
        slow.push(TcpStream::connect(&server.address).await.unwrap());
    }
    assert_eq!(server.hello(&west.store(), "east").await.unwrap(), "agent of west");
    for mut stream in slow {
        let _ = stream.read_u8().await.unwrap_err();
    }
    assert_eq!(server.refused(), 4);
}

#[tokio::test]
async fn one_source_gets_a_limited_number_of_connections() {
    let [east, west] = Site::mesh(["east", "west"]);
    let limits = Limits { per_source: 2, ..Limits::default() };
    let server = Server::start(east.store(), Admit::AnyAgent, limits).await;
    let channel = connect(&server.address, &west.store(), Identity::agent("east")).unwrap();
    PeerClient::new(channel.clone()).hello(HelloRequest::default()).await.unwrap();
    let held = TcpStream::connect(&server.address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(server.hello(&west.store(), "east").await.is_err());
    assert_eq!(server.counters.limited.load(Ordering::Relaxed), 1);
    drop(held);
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.hello(&west.store(), "east").await.unwrap();
    PeerClient::new(channel).hello(HelloRequest::default()).await.unwrap();
}

#[tokio::test]
async fn a_new_leaf_and_new_trust_are_used_without_a_restart() {
    let [east, west] = ["east", "west"].map(Site::new);
    west.trust(&east);
    let (east_store, west_store) = (east.store(), west.store());
    let server = Server::start(east_store.clone(), Admit::AnyAgent, Limits::default()).await;
    let channel = connect(&server.address, &west_store, Identity::agent("east")).unwrap();
    let mut client = PeerClient::new(channel);
    assert!(client.hello(HelloRequest::default()).await.is_err(), "not trusted yet");
    east.trust(&west);
    assert!(east_store.reload());
    client.hello(HelloRequest::default()).await.unwrap();

    let shown = async || {
        let config = west_store.client(Identity::agent("east")).unwrap();
        let stream =
            dial::dial(&server.address, dial::server_name("localhost").unwrap(), config).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let before = shown().await;
    east.pki.issue_at(&Leaf::Agent, &east.pki.agent_pair(), Clock::wall()).unwrap();
    assert!(east_store.reload());
    assert_ne!(shown().await, before);
    client.hello(HelloRequest::default()).await.unwrap();

    // The site was made anew, with another root: the connection of the old one ends.
    east.trust(&Site::new("west"));
    assert!(east_store.reload());
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(client.hello(HelloRequest::default()).await.is_err());
    east.trust(&west);
    assert!(east_store.reload());
    client.hello(HelloRequest::default()).await.unwrap();

    // The trust ends: the open connection too.
    std::fs::remove_dir_all(east.pki.trust().path().join("west")).unwrap();
    assert!(east_store.reload());
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(client.hello(HelloRequest::default()).await.is_err());
}

#[tokio::test]
async fn a_channel_connects_again() {
    let [east, west] = Site::mesh(["east", "west"]);
    let server = Server::mesh(&east).await;
    let mut client =
        PeerClient::new(connect(&server.address, &west.store(), Identity::agent("east")).unwrap());
    client.hello(HelloRequest::default()).await.unwrap();
    assert_eq!(server.drain.finish(Duration::from_secs(10)).await, 0);
    let error = client.hello(HelloRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);

    let listener = TcpListener::bind(&server.address).await.unwrap();
    let router = Routes::new(PeerServer::new(Stub)).into_axum_router();
    let drain = Drain::new();
    let limits = Limits::default();
    drain.spawn(serve(
        listener,
        east.store(),
        Admit::AnyAgent,
        router,
        limits,
        Arc::default(),
        drain.clone(),
    ));
    assert_eq!(client.hello(HelloRequest::default()).await.unwrap().into_inner().version, "agent of west");
}

#[tokio::test]
async fn the_end_lets_requests_finish() {
    let [east, west] = Site::mesh(["east", "west"]);
    let server = Server::mesh(&east).await;
    let mut client =
        PeerClient::new(connect(&server.address, &west.store(), Identity::agent("east")).unwrap());
    client.hello(HelloRequest::default()).await.unwrap();
    let slow = HelloRequest { version: "slow".into(), ..Default::default() };
    let (answer, left) = tokio::join!(client.hello(slow), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.drain.finish(Duration::from_secs(10)).await
    });
    answer.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn addresses_are_checked() {
    let east = Site::new("east");
    for address in ["", "east", "east:", "http://east:1", "east:99999", "a b:1"] {
        let result = connect(address, &east.store(), Identity::agent("west"));
        assert!(matches!(result, Err(DialError::Address { .. })), "{address}");
    }
    let channel = connect("127.0.0.1:1", &east.store(), Identity::agent("west")).unwrap();
    let error = PeerClient::new(channel).hello(HelloRequest::default()).await.unwrap_err();
    assert!(text(&error).contains("cannot connect to 127.0.0.1:1"), "{}", text(&error));
}
