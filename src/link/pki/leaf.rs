//! The leaves of a site: which names and usages each kind has (networking.md section 3, decisions.md section 3).

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    PublicKeyData as _, SanType,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::authority::{Authority, BACKDATE, load_key};
use super::{Error, Pair, Root, SitePki};
use crate::durable::{PRIVATE, PUBLIC, write_file};
use crate::identity::{self, Identity, Validity};
use crate::tls::pem;

/// How long a leaf is valid; it is renewed at two thirds.
const LIFE: Duration = Duration::from_hours(90 * 24);

/// A certificate that a site needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaf {
    /// The agent in the mesh: server and client.
    Agent,
    /// The agent as a client of etcd. It has no URI name, so that it is good for nothing in the mesh.
    AgentEtcdClient,
    /// The member API of one slot.
    MemberApi {
        /// The federation.
        uid: String,
        /// The slot.
        slot: String,
    },
    /// The peer port of one member.
    PeerServer {
        /// The federation.
        uid: String,
        /// The hosts of its peer URLs: one, and a second one while the URL changes.
        hosts: Vec<String>,
    },
    /// What one member shows to the peer ports of others. Only a URI name: a DNS or IP name would make etcd compare
    /// it with the source address, which breaks behind any address translation.
    PeerClient {
        /// The federation.
        uid: String,
        /// The slot.
        slot: String,
    },
    /// What the agent shows to peer ports when it only looks.
    Probe {
        /// The federation.
        uid: String,
    },
    /// The client port of one member.
    EtcdServer {
        /// The DNS names; the first one is also the common name.
        hosts: Vec<String>,
        /// The addresses.
        addresses: Vec<IpAddr>,
    },
    /// A user of the client port. The common name is etcd's user name if authentication is on.
    User {
        /// The common name.
        name: String,
    },
}

struct Content {
    common_name: String,
    names: Vec<String>,
    sans: Vec<SanType>,
    server: bool,
    client: bool,
}

impl Leaf {
    /// The root that signs it.
    pub fn root(&self) -> Root {
        match self {
            Self::Agent | Self::AgentEtcdClient | Self::MemberApi { .. } => Root::Agent,
            Self::PeerServer { .. } | Self::PeerClient { .. } | Self::Probe { .. } => Root::Peer,
            Self::EtcdServer { .. } | Self::User { .. } => Root::Client,
        }
    }

    fn content(&self, pki: &SitePki) -> Result<Content, Error> {
        let site = pki.site();
        let (common_name, identity, server, client) = match self {
            Self::Agent => (format!("quorate-agent-of-{site}"), Some(Identity::agent(site)), true, true),
            Self::AgentEtcdClient => ("quorate-agent".to_owned(), None, false, true),
            Self::MemberApi { uid, slot } => {
                (format!("quorate-member-{slot}"), Some(Identity::member(uid, site, slot)), true, false)
            }
            Self::PeerServer { uid, .. } => (peer_common_name(uid), None, true, false),
            Self::PeerClient { uid, slot } => {
                (peer_common_name(uid), Some(Identity::member(uid, site, slot)), false, true)
            }
            Self::Probe { uid } => (peer_common_name(uid), Some(Identity::probe(site)), false, true),
            // Client as well: etcd's JSON gateway dials its own port with this certificate.
            Self::EtcdServer { hosts, .. } => (hosts.first().cloned().unwrap_or_default(), None, true, true),
            Self::User { name } => (name.clone(), None, false, true),
        };
        let mut names = Vec::new();
        let mut sans = Vec::new();
        if let Some(identity) = identity {
            let uri = identity.uri(pki.trust_domain());
            // What we could not read back we must not sign.
            Identity::parse(&uri, pki.trust_domain())?;
            sans.push(SanType::URI(ia5(&uri, pki)?));
            names.push(uri);
        }
        let hosts = match self {
            Self::PeerServer { hosts, .. } | Self::EtcdServer { hosts, .. } => hosts.as_slice(),
            _ => &[],
        };
        for host in hosts {
            sans.push(SanType::DnsName(ia5(host, pki)?));
            names.push(host.clone());
        }
        if let Self::EtcdServer { addresses, .. } = self {
            for address in addresses {
                sans.push(SanType::IpAddress(*address));
                names.push(address.to_string());
            }
        }
        names.sort();
        Ok(Content { common_name, names, sans, server, client })
    }
}

/// The common name that all peer certificates of a federation carry, and that `--peer-cert-allowed-cn` pins.
pub fn peer_common_name(uid: &str) -> String {
    format!("etcd-peer.{}", uid.get(..8).unwrap_or(uid))
}

fn ia5(text: &str, pki: &SitePki) -> Result<rcgen::string::Ia5String, Error> {
    text.try_into().map_err(|source| Error::Make { path: pki.folder().to_owned(), source })
}

/// What a certificate for a leaf says, whoever signs it.
pub(super) fn params(leaf: &Leaf, pki: &SitePki, now: SystemTime) -> Result<CertificateParams, Error> {
    let content = leaf.content(pki)?;
    let mut params = CertificateParams::default();
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + LIFE).into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, content.common_name);
    params.subject_alt_names = content.sans;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    if content.server {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    if content.client {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    }
    Ok(params)
}

/// Signs and writes a leaf. The key goes first; a crash between the two files leaves a pair that `is_current` refuses.
pub(super) fn issue(
    leaf: &Leaf,
    pair: &Pair,
    authority: &Authority,
    pki: &SitePki,
    now: SystemTime,
) -> Result<(), Error> {
    let make = |source| Error::Make { path: pair.cert.clone(), source };
    let mut params = params(leaf, pki, now)?;
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(make)?;
    let certificate = params.signed_by(&key, &authority.issuer).map_err(make)?;
    write_file(&pair.key, key.serialize_pem().as_bytes(), PRIVATE)?;
    write_file(&pair.cert, certificate.pem().as_bytes(), PUBLIC)?;
    Ok(())
}

/// Whether the pair on disk is the leaf that is asked for, signed by the present root, and not due.
pub(super) fn is_current(
    leaf: &Leaf,
    pair: &Pair,
    authority: &Authority,
    pki: &SitePki,
    now: SystemTime,
) -> bool {
    let read = || -> Result<bool, Error> {
        let chain = pem::certificates(&pair.cert, &pem::read(&pair.cert)?)?;
        let der = chain.first().ok_or(identity::Error::Certificate)?;
        let found = identity::parse(der)?;
        let root = identity::parse(&authority.certificate)?;
        let validity = Validity::of(der)?;
        Ok(found.public_key().raw == load_key(pair)?.subject_public_key_info()
            && found.verify_signature(Some(root.public_key())).is_ok()
            && validity.not_before <= now
            && now < validity.renewal()
            && same_content(&found, &leaf.content(pki)?))
    };
    // Whatever cannot be read is made anew.
    read().unwrap_or(false)
}

fn same_content(found: &X509Certificate<'_>, wanted: &Content) -> bool {
    let common_name = found.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let mut names: Vec<String> = match found.subject_alternative_name() {
        Ok(names) => names.iter().flat_map(|names| &names.value.general_names).map(name_text).collect(),
        Err(_) => return false,
    };
    names.sort();
    let usages = match found.extended_key_usage() {
        Ok(Some(usages)) => (usages.value.server_auth, usages.value.client_auth),
        _ => return false,
    };
    common_name == Some(wanted.common_name.as_str())
        && names == wanted.names
        && usages == (wanted.server, wanted.client)
}

fn name_text(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(text) | GeneralName::URI(text) => (*text).to_owned(),
        GeneralName::IPAddress(bytes) => <[u8; 4]>::try_from(*bytes)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from))
            .map_or_else(|_| "?".to_owned(), |address| address.to_string()),
        other => other.to_string(),
    }
}
