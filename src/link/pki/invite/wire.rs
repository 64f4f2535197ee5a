//! What the two sides say to each other: JSON messages with a length before them, and the proofs.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::Error;
use crate::pki::SiteRoots;

/// Longer than any message; a stranger must not make us buffer more.
const LIMIT: usize = 64 * 1024;
const EXPORTER: &[u8] = b"EXPORTER-quorate-invite-1";

/// Who a site is, as it tells another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteCard {
    /// Its name.
    pub site: String,
    /// Its mesh.
    pub mesh: String,
    /// Its trust domain.
    pub trust_domain: String,
    /// Where its agent listens (host:port).
    pub agent_endpoint: String,
    /// Its root certificates.
    pub roots: SiteRoots,
}

/// An answer, or why there is none.
#[derive(Serialize, Deserialize)]
pub(super) enum Message<T> {
    Ok(T),
    Refused(String),
}

#[derive(Serialize, Deserialize)]
pub(super) struct Proof {
    hmac: String,
}

/// Who proves. Different words for each, so that a proof cannot be sent back to its maker.
#[derive(Clone, Copy)]
pub(super) enum Prover {
    Joiner,
    Inviter,
}

impl Prover {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Joiner => b"quorate invite 1 joiner",
            Self::Inviter => b"quorate invite 1 inviter",
        }
    }
}

/// What both ends of one TLS session have in common, and nobody else.
pub(super) struct Session([u8; 32]);

impl Session {
    pub(super) fn of<Data>(connection: &rustls::ConnectionCommon<Data>) -> Result<Self, Error> {
        Ok(Self(connection.export_keying_material([0; 32], EXPORTER, None)?))
    }

    pub(super) fn prove(&self, secret: &[u8; 32], prover: Prover) -> Proof {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &self.message(prover));
        Proof { hmac: URL_SAFE_NO_PAD.encode(tag) }
    }

    pub(super) fn check(&self, secret: &[u8; 32], prover: Prover, proof: &Proof) -> Result<(), Error> {
        let tag = URL_SAFE_NO_PAD.decode(&proof.hmac).map_err(|_| Error::Proof)?;
        // Compares in constant time.
        hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), &self.message(prover), &tag)
            .map_err(|_| Error::Proof)
    }

    fn message(&self, prover: Prover) -> Vec<u8> {
        [prover.label(), &self.0].concat()
    }
}

pub(super) async fn send<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: Message<T>,
) -> Result<(), Error> {
    let text = serde_json::to_vec(&message).map_err(Error::Message)?;
    let length = u32::try_from(text.len()).map_err(|_| Error::TooLong(text.len()))?;
    stream.write_u32(length).await?;
    stream.write_all(&text).await?;
    stream.flush().await?;
    Ok(())
}

pub(super) async fn receive<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T, Error> {
    let length = usize::try_from(stream.read_u32().await?).unwrap_or(usize::MAX);
    if length > LIMIT {
        return Err(Error::TooLong(length));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text).await?;
    match serde_json::from_slice(&text).map_err(Error::Message)? {
        Message::Ok(value) => Ok(value),
        Message::Refused(reason) => Err(Error::RefusedByPeer(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_one_session_one_secret_and_one_direction() {
        let session = Session([1; 32]);
        let proof = session.prove(&[7; 32], Prover::Joiner);
        assert!(session.check(&[7; 32], Prover::Joiner, &proof).is_ok());
        assert!(session.check(&[7; 32], Prover::Inviter, &proof).is_err());
        assert!(session.check(&[8; 32], Prover::Joiner, &proof).is_err());
        assert!(Session([2; 32]).check(&[7; 32], Prover::Joiner, &proof).is_err());
        assert!(session.check(&[7; 32], Prover::Joiner, &Proof { hmac: String::new() }).is_err());
        assert!(session.check(&[7; 32], Prover::Joiner, &Proof { hmac: "?".into() }).is_err());
    }

    #[tokio::test]
    async fn messages_have_a_limit() {
        let (mut one, mut two) = tokio::io::duplex(1024);
        one.write_u32(1 << 30).await.unwrap();
        assert!(matches!(receive::<Proof>(&mut two).await, Err(Error::TooLong(_))));
        send(&mut one, Message::<Proof>::Refused("no".into())).await.unwrap();
        assert!(matches!(receive::<Proof>(&mut two).await, Err(Error::RefusedByPeer(why)) if why == "no"));
    }
}
