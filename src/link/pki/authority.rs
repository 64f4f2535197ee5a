//! The roots of a site.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _,
};
use rustls_pki_types::CertificateDer;

use super::{Error, Pair};
use crate::durable::{PRIVATE, PUBLIC, write_file};
use crate::identity;
use crate::tls::pem;

/// How long a root is valid. Long, because its exchange needs every site; leaves are short instead.
const LIFE: Duration = Duration::from_hours(10 * 365 * 24);
/// Clocks of other machines may be behind ours by this much.
pub(super) const BACKDATE: Duration = Duration::from_hours(1);

/// The three roots of a site. They are separate because each is trusted by other parties: agents by agents, etcd peers
/// by etcd peers, users by the client port of their own site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// Vouches for the agent and the member API of this site.
    Agent,
    /// Vouches for the peer ports of this site's members.
    Peer,
    /// Vouches for client ports and users at this site.
    Client,
}

impl Root {
    pub(super) const ALL: [Self; 3] = [Self::Agent, Self::Peer, Self::Client];

    pub(super) fn file_name(self) -> &'static str {
        match self {
            Self::Agent => "agent-ca",
            Self::Peer => "peer-ca",
            Self::Client => "client-ca",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Peer => "peer",
            Self::Client => "client",
        }
    }
}

/// A root with its key, ready to sign.
pub(super) struct Authority {
    pub(super) issuer: Issuer<'static, KeyPair>,
    pub(super) certificate: CertificateDer<'static>,
}

impl Authority {
    pub(super) fn load(pair: &Pair) -> Result<Self, Error> {
        let text = pem::read(&pair.cert)?;
        let certificate = pem::certificates(&pair.cert, &text)?.swap_remove(0);
        if !pair.key.exists() {
            return Err(Error::RootWithoutKey { path: pair.cert.clone() });
        }
        let key = load_key(pair)?;
        let parsed = identity::parse(&certificate)?;
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(Error::RootWithOtherKey { path: pair.cert.clone() });
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|source| Error::Make { path: pair.cert.clone(), source })?;
        Ok(Self { issuer, certificate })
    }
}

pub(super) fn load_key(pair: &Pair) -> Result<KeyPair, Error> {
    let text = pem::read(&pair.key)?;
    KeyPair::from_pem(&String::from_utf8_lossy(&text))
        .map_err(|source| Error::Make { path: pair.key.clone(), source })
}

/// Makes a root unless there is one. The key is written first: after a crash between the two files the same key gets
/// its certificate.
pub(super) fn create_if_missing(pair: &Pair, root: Root, site: &str, now: SystemTime) -> Result<(), Error> {
    if pair.cert.exists() {
        Authority::load(pair)?;
        return Ok(());
    }
    let make = |source| Error::Make { path: pair.cert.clone(), source };
    let key = if pair.key.exists() {
        load_key(pair)?
    } else {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(make)?;
        write_file(&pair.key, key.serialize_pem().as_bytes(), PRIVATE)?;
        key
    };
    let mut params = CertificateParams::default();
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + LIFE).into();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("quorate {} root of {site}", root.word()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).map_err(make)?;
    write_file(&pair.cert, certificate.pem().as_bytes(), PUBLIC)?;
    Ok(())
}
