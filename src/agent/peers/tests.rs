//! Two agents' meshes over real TLS on loopback, and what they refuse.

use std::sync::Arc;
use std::time::Duration;

use quorate_api::document::{self, format};
use quorate_api::peer::peer_client::PeerClient;
use quorate_api::peer::sync_message::Message as Said;
use quorate_api::peer::{Document, Envelope, HelloRequest, Ping, SyncMessage, ViewUpdate};
use quorate_core::federation::observed::SiteObservation;
use quorate_core::id::{BootId, FederationKey, ObjectName, SiteName};
use quorate_link::clock::Clock;
use quorate_link::drain::Drain;
use quorate_link::identity::Identity;
use quorate_link::pki::SitePki;
use quorate_link::tls::{Admit, Source, TlsStore, Trust};
use quorate_link::transport::{self, Limits, dial};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tonic::{Code, Status};

use super::{Mesh, Setup, router};
use crate::metrics::Metrics;
use crate::ports::{Peers as _, Publication, Sender};

const DOMAIN: &str = "quorate.test";

struct Agent {
    site: SiteName,
    mesh: Arc<Mesh>,
    metrics: Arc<Metrics>,
    tls: TlsStore,
    address: String,
    drain: Drain,
}

struct Pair {
    east: Agent,
    west: Agent,
    _state: TempDir,
}

fn key() -> FederationKey {
    FederationKey { namespace: ObjectName::new("etcd").unwrap(), name: ObjectName::new("main").unwrap() }
}

async fn pair() -> Pair {
    let state = tempfile::tempdir().unwrap();
    let pki = ["east", "west"].map(|site| SitePki::init(&state.path().join(site), site, DOMAIN).unwrap());
    for one in &pki {
        for two in &pki {
            one.trust().write(two.site(), &two.roots().unwrap()).unwrap();
        }
    }
    let listeners =
        [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    let addresses = [0, 1].map(|i: usize| listeners[i].local_addr().unwrap().to_string());
    let mut agents = Vec::new();
    for (i, listener) in listeners.into_iter().enumerate() {
        let site = SiteName::new(pki[i].site()).unwrap();
        let leaf = pki[i].agent_pair();
        let trust = Trust::Folder(pki[i].trust());
        let tls = TlsStore::load(Source { trust_domain: DOMAIN.into(), leaf, trust }).unwrap();
        let metrics = Metrics::shared();
        let setup = Setup {
            site: site.clone(),
            mesh: "m1".to_owned(),
            peers: vec![(SiteName::new(pki[1 - i].site()).unwrap(), addresses[1 - i].clone())],
            from: vec!["127.0.0.0/8".parse().unwrap()],
            boot: BootId(i as u128),
            tls: tls.clone(),
            memory: state.path().join(site.as_str()).join("peers.json"),
            clock: Clock::start(),
        };
        let mesh = Mesh::new(setup, Arc::clone(&metrics)).unwrap();
        let drain = Drain::new();
        let routes = router(Arc::clone(&mesh), drain.clone());
        let limits = Limits::default();
        let served = transport::serve(
            listener,
            tls.clone(),
            Admit::AnyAgent,
            routes,
            limits,
            Arc::default(),
            drain.clone(),
        );
        drain.spawn(served);
        let address = addresses[i].clone();
        agents.push(Agent { site, mesh, metrics, tls, address, drain });
    }
    let west = agents.pop().unwrap();
    let east = agents.pop().unwrap();
    Pair { east, west, _state: state }
}

impl Agent {
    /// What this agent's certificate can reach at another one, without the manners of our own client.
    fn call(&self, other: &Self) -> PeerClient<tonic::transport::Channel> {
        let expected = Identity::agent(other.site.to_string());
        PeerClient::new(dial::connect(&other.address, &self.tls, expected).unwrap())
    }

    fn envelope(&self) -> Envelope {
        self.mesh.envelope(None, Sender::default())
    }

    async fn hello(&self, other: &Self, envelope: Option<Envelope>) -> Result<(), Status> {
        let request = HelloRequest { envelope, ..HelloRequest::default() };
        self.call(other).hello(request).await.map(drop)
    }

    fn refused(&self, reason: &str) -> bool {
        self.metrics.render().contains(&format!("quorate_refusals_total{{reason=\"{reason}\"}} 1"))
    }

    fn say(&self, version: u64) {
        let observation = Arc::new(SiteObservation::empty(self.site.clone()));
        super::FederationPeers::new(Arc::clone(&self.mesh), key()).publish(Publication {
            federation: key(),
            from: Sender::default(),
            observation,
            true_at: self.mesh.clock.now_ms(),
            sites: ["east", "west"].map(|site| SiteName::new(site).unwrap()).to_vec(),
            version,
            partings: Vec::new(),
        });
    }
}

#[tokio::test]
async fn envelopes_must_say_what_the_certificate_says() {
    let Pair { east, west, _state } = pair().await;
    east.hello(&west, Some(east.envelope())).await.unwrap();
    let cases: [(&str, Option<Envelope>); 5] = [
        ("NoEnvelope", None),
        ("OtherMesh", Some(Envelope { mesh: "m2".into(), ..east.envelope() })),
        ("SenderMismatch", Some(Envelope { sender_site: "west".into(), ..east.envelope() })),
        ("Protocol", Some(Envelope { proto_min: 7, proto_max: 9, ..east.envelope() })),
        ("BadName", Some(Envelope { namespace: "A".into(), name: "b".into(), ..east.envelope() })),
    ];
    for (reason, envelope) in cases {
        let status = east.hello(&west, envelope).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::PermissionDenied, reason));
        assert!(west.refused(reason), "{reason}");
    }
    // It spoke a higher protocol once; a lower one later is a downgrade.
    east.hello(&west, Some(Envelope { proto_max: 4, ..east.envelope() })).await.unwrap();
    let status = east.hello(&west, Some(east.envelope())).await.unwrap_err();
    assert_eq!(status.message(), "PeerDowngraded");
    west.hello(&east, Some(west.envelope())).await.unwrap();
}

#[tokio::test]
async fn a_federation_that_is_not_known_is_told_nothing() {
    let Pair { east, west, _state } = pair().await;
    let envelope = Some(east.mesh.envelope(Some(&key()), Sender::default()));
    let body = document::encode(&()).unwrap();
    let request = Document { envelope, format: format::RECORD_SUMMARY.to_owned(), body };
    let status = east.call(&west).record(request.clone()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "NotAMember"));
    let status = east.call(&west).vote(request).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "BadDocument"));
}

#[tokio::test]
async fn a_stream_is_cut_at_the_first_lie() {
    let Pair { east, west, _state } = pair().await;
    let view = |envelope: Envelope, observation: &SiteObservation| {
        Said::View(ViewUpdate {
            envelope: Some(envelope),
            format: format::OBSERVATION.to_owned(),
            body: document::encode(observation).unwrap(),
            version: 1,
            sample_age_ms: 0,
        })
    };
    let envelope = |seq| Envelope { seq, ..east.mesh.envelope(Some(&key()), Sender::default()) };
    let (own, other) = (SiteObservation::empty(east.site.clone()), SiteObservation::empty(west.site.clone()));
    let ping = |seq| Said::Ping(Ping { envelope: Some(envelope(seq)), ..Ping::default() });
    let cases = [
        ("SpeaksForOthers", vec![view(envelope(1), &own), view(envelope(2), &other)]),
        ("Replayed", vec![ping(5), ping(5)]),
    ];
    for (reason, messages) in cases {
        let messages = messages.into_iter().map(|message| SyncMessage { message: Some(message) });
        let stream = futures::StreamExt::chain(futures::stream::iter(messages), futures::stream::pending());
        let mut answers = east.call(&west).sync(stream).await.unwrap().into_inner();
        let ended = async {
            loop {
                // Only what was no lie is answered.
                match answers.message().await {
                    Ok(Some(SyncMessage { message: Some(Said::Pong(answer)) })) => assert_eq!(answer.seq, 5),
                    other => return other,
                }
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(10), ended).await.unwrap();
        assert_eq!(ended.unwrap_err().message(), reason);
        assert!(west.refused(reason));
    }
}

#[tokio::test]
async fn views_arrive_and_are_renewed() {
    let Pair { east, west, _state } = pair().await;
    east.say(1);
    east.mesh.start(&east.drain);
    let told = |version: u64| {
        let told = super::lock(&west.mesh.told);
        told.get(&(east.site.clone(), key())).filter(|told| told.version == version).map(|told| told.true_at)
    };
    let wait = async |version: u64| {
        while told(version).is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait(1)).await.unwrap();
    east.say(2);
    tokio::time::timeout(Duration::from_secs(10), wait(2)).await.unwrap();
    let before = told(2).unwrap();
    let renewed = async {
        loop {
            // The same view once more is not sent again; a ping says that it is still true.
            east.say(2);
            tokio::time::sleep(Duration::from_millis(100)).await;
            if told(2).unwrap() > before + 500 {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), renewed).await.unwrap();
    let measured = async {
        while east.mesh.round_trip(&west.site).is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), measured).await.unwrap();
    assert!(west.mesh.age_ms(&east.site).unwrap() < 5_000);
}
