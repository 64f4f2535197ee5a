//! The side that invites: waits on one address until one joiner has proved itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::NoClientAuth;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::wire::{Message, Proof, Prover, Session, SiteCard, receive, send};
use super::{Error, LocalSite, MAX_LIFE, Token};
use crate::clock::Clock;
use crate::durable::sha256_hex;
use crate::pki::Root;
use crate::tls::{crypto, pem};

/// One exchange may take this long; more is a stranger who only holds the connection.
const EXCHANGE: Duration = Duration::from_secs(10);
/// Connections at once, and bad attempts before the invitation is withdrawn.
const ATTEMPTS: usize = 16;

/// An invitation that was not accepted yet. It can be waited for once.
#[derive(Debug)]
pub struct Invitation {
    local: LocalSite,
    token: Token,
}

impl Invitation {
    /// Makes a token that points to `endpoint` (host:port) and lives for `life`, at most 15 minutes.
    pub fn new(local: LocalSite, endpoint: &str, life: Duration) -> Result<Self, Error> {
        let path = local.pki.root_path(Root::Agent);
        let text = pem::read(&path).map_err(super::super::Error::from)?;
        let roots = pem::certificates(&path, &text).map_err(super::super::Error::from)?;
        let root = roots.first().ok_or(Error::OtherRoot)?;
        let mut secret = [0; 32];
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| Error::Random)?;
        let token = Token {
            mesh: local.mesh.clone(),
            site: local.pki.site().to_owned(),
            endpoint: endpoint.to_owned(),
            root_sha256: sha256_hex(root),
            secret,
            expires: Clock::unix_seconds() + life.min(MAX_LIFE).as_secs(),
        };
        Ok(Self { local, token })
    }

    /// The token; show its text once.
    pub fn token(&self) -> &Token {
        &self.token
    }
}

/// Waits until one joiner is accepted, and begins to trust it. Afterwards, or when the token expires, nobody listens
/// any more. Returns the card of the other site.
pub async fn invite(listener: TcpListener, invitation: Invitation) -> Result<SiteCard, Error> {
    let left = invitation.token.check_time(Clock::unix_seconds())?;
    let host =
        Arc::new(Host { tls: server_config(&invitation.local)?, invitation, used: AtomicBool::new(false) });
    let wait = async {
        let mut exchanges = JoinSet::new();
        let mut failures = 0;
        loop {
            tokio::select! {
                accepted = listener.accept(), if exchanges.len() < ATTEMPTS => {
                    let (stream, source) = accepted?;
                    let host = host.clone();
                    exchanges.spawn(async move {
                        let mut admitted = false;
                        let result = tokio::time::timeout(EXCHANGE, host.exchange(stream, &mut admitted)).await;
                        (source, admitted, result.unwrap_or(Err(Error::Timeout)))
                    });
                }
                Some(Ok((source, admitted, result))) = exchanges.join_next() => match result {
                    Ok(card) => return Ok(card),
                    // The joiner was the right one; what is wrong has to be put right by a person.
                    Err(error) if admitted => return Err(error),
                    Err(error) => {
                        tracing::warn!(%source, %error, "somebody tried to accept the invitation");
                        failures += usize::from(matches!(error, Error::Proof));
                        if failures >= ATTEMPTS {
                            return Err(Error::TooManyAttempts(failures));
                        }
                    }
                },
            }
        }
    };
    tokio::time::timeout(left, wait).await.unwrap_or(Err(Error::NotAccepted))
}

struct Host {
    invitation: Invitation,
    tls: Arc<ServerConfig>,
    used: AtomicBool,
}

impl Host {
    async fn exchange(&self, stream: TcpStream, admitted: &mut bool) -> Result<SiteCard, Error> {
        let Invitation { local, token } = &self.invitation;
        let mut stream = TlsAcceptor::from(self.tls.clone()).accept(stream).await?;
        let session = Session::of(stream.get_ref().1)?;

        let proof: Proof = receive(&mut stream).await?;
        let proven = session
            .check(&token.secret, Prover::Joiner, &proof)
            .and_then(|()| token.check_time(Clock::unix_seconds()).map(drop))
            .and_then(|()| {
                // From here on nobody else can use it.
                let first = !self.used.swap(true, Ordering::SeqCst);
                if first { Ok(()) } else { Err(Error::Token("it was used already")) }
            });
        if let Err(error) = proven {
            send(&mut stream, Message::<Proof>::Refused(error.to_string())).await?;
            return Err(error);
        }
        *admitted = true;
        send(&mut stream, Message::Ok(session.prove(&token.secret, Prover::Inviter))).await?;

        let card: SiteCard = receive(&mut stream).await?;
        if let Err(error) = local.check(&card) {
            send(&mut stream, Message::<SiteCard>::Refused(error.to_string())).await?;
            return Err(error);
        }
        send(&mut stream, Message::Ok(local.card()?)).await?;
        // The joiner trusts us now, or has told us why not.
        let () = receive(&mut stream).await?;
        local.trust().add(&card.site, &card.roots)?;
        send(&mut stream, Message::Ok(())).await?;
        Ok(card)
    }
}

/// The leaf of the agent with its root behind it, which the joiner compares with the token.
fn server_config(local: &LocalSite) -> Result<Arc<ServerConfig>, Error> {
    let pair = local.pki.agent_pair();
    let root = local.pki.root_path(Root::Agent);
    let load = || -> Result<_, pem::Error> {
        let mut chain = pem::read(&pair.cert)?;
        chain.extend(pem::read(&root)?);
        pem::certified_key((&pair.cert, &chain), (&pair.key, &pem::read(&pair.key)?))
    };
    let key = load().map_err(super::super::Error::from)?;
    let mut config = crypto::server(Arc::new(NoClientAuth))?
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)));
    crypto::without_resumption(&mut config);
    Ok(Arc::new(config))
}
