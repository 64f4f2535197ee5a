//! Who speaks: SPIFFE ids in the URI SAN of a certificate.
//!
//! An identity is read strictly: exactly one URI SAN, the trust domain that was asked for, no extra path parts, and never
//! the common name instead. Whether the certificate may be believed is decided in `tls::verify`.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

/// Why no identity could be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a certificate.
    #[error("not a readable certificate")]
    Certificate,
    /// No URI SAN, or several.
    #[error("the certificate has {0} URI names, exactly one is needed")]
    UriNames(usize),
    /// Not one of our ids.
    #[error("{uri:?} is not a quorate identity: {reason}")]
    Uri {
        /// The URI as it was found.
        uri: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An id of somebody else.
    #[error("{uri:?} belongs to another trust domain than {expected:?}")]
    TrustDomain {
        /// The URI as it was found.
        uri: String,
        /// Our trust domain.
        expected: String,
    },
    /// A name that may not stand in an id.
    #[error(
        "{name:?} is not a valid {what}: lower-case letters, digits and hyphens, at most 63, beginning and ending with a letter or digit"
    )]
    Name {
        /// The name as it was given.
        name: String,
        /// What it should name.
        what: &'static str,
    },
}

/// Who a certificate speaks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// The agent of a site.
    Agent {
        /// Its site.
        site: String,
    },
    /// One member of a federation.
    Member {
        /// The federation.
        uid: String,
        /// The site that runs it.
        site: String,
        /// The slot that it fills.
        slot: String,
    },
    /// The agent of a site, looking at peer ports; good for nothing else.
    Probe {
        /// Its site.
        site: String,
    },
}

impl Identity {
    /// The agent of `site`.
    pub fn agent(site: impl Into<String>) -> Self {
        Self::Agent { site: site.into() }
    }

    /// The member in `slot` of the federation `uid` at `site`.
    pub fn member(uid: impl Into<String>, site: impl Into<String>, slot: impl Into<String>) -> Self {
        Self::Member { uid: uid.into(), site: site.into(), slot: slot.into() }
    }

    /// The prober of `site`.
    pub fn probe(site: impl Into<String>) -> Self {
        Self::Probe { site: site.into() }
    }

    /// The site whose root has to vouch for it.
    pub fn site(&self) -> &str {
        match self {
            Self::Agent { site } | Self::Probe { site } | Self::Member { site, .. } => site,
        }
    }

    /// The URI of this identity in a trust domain, as it stands in a certificate.
    pub fn uri(&self, trust_domain: &str) -> String {
        match self {
            Self::Agent { site } => format!("spiffe://{trust_domain}/quorate/agent/{site}"),
            Self::Member { uid, site, slot } => {
                format!("spiffe://{trust_domain}/quorate/member/{uid}/{site}/{slot}")
            }
            Self::Probe { site } => format!("spiffe://{trust_domain}/quorate/probe/{site}"),
        }
    }

    /// Reads a URI of the given trust domain.
    pub fn parse(uri: &str, trust_domain: &str) -> Result<Self, Error> {
        let bad = |reason| Error::Uri { uri: uri.to_owned(), reason };
        let rest = uri.strip_prefix("spiffe://").ok_or_else(|| bad("it does not begin with spiffe://"))?;
        let (domain, path) = rest.split_once('/').ok_or_else(|| bad("it has no path"))?;
        if domain != trust_domain {
            return Err(Error::TrustDomain { uri: uri.to_owned(), expected: trust_domain.to_owned() });
        }
        let parts: Vec<&str> = path.split('/').collect();
        if parts.iter().any(|part| !is_label(part)) {
            return Err(bad("a path part is not a lower-case DNS label"));
        }
        match parts.as_slice() {
            ["quorate", "agent", site] => Ok(Self::agent(*site)),
            ["quorate", "member", uid, site, slot] => Ok(Self::member(*uid, *site, *slot)),
            ["quorate", "probe", site] => Ok(Self::probe(*site)),
            _ => Err(bad("its path is none of agent/<site>, member/<uid>/<site>/<slot> and probe/<site>")),
        }
    }

    /// Reads the identity of a certificate in DER.
    pub fn from_certificate(der: &[u8], trust_domain: &str) -> Result<Self, Error> {
        let certificate = parse(der)?;
        let names = certificate.subject_alternative_name().map_err(|_| Error::Certificate)?;
        let uris: Vec<&str> = names
            .iter()
            .flat_map(|names| &names.value.general_names)
            .filter_map(|name| match name {
                GeneralName::URI(uri) => Some(*uri),
                _ => None,
            })
            .collect();
        match uris.as_slice() {
            [uri] => Self::parse(uri, trust_domain),
            _ => Err(Error::UriNames(uris.len())),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent { site } => write!(f, "agent of {site}"),
            Self::Member { uid, site, slot } => write!(f, "member {slot} of {site} in {uid}"),
            Self::Probe { site } => write!(f, "prober of {site}"),
        }
    }
}

/// From when and until when a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub not_before: SystemTime,
    /// The last moment.
    pub not_after: SystemTime,
}

impl Validity {
    /// Reads the validity of a certificate in DER.
    pub fn of(der: &[u8]) -> Result<Self, Error> {
        let certificate = parse(der)?;
        let moment = |seconds: i64| {
            u64::try_from(seconds)
                .map(|s| UNIX_EPOCH + Duration::from_secs(s))
                .map_err(|_| Error::Certificate)
        };
        Ok(Self {
            not_before: moment(certificate.validity().not_before.timestamp())?,
            not_after: moment(certificate.validity().not_after.timestamp())?,
        })
    }

    /// When two thirds of the life are over: the time to renew.
    pub fn renewal(&self) -> SystemTime {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_before + life * 2 / 3
    }
}

/// Checks the name of a site.
pub fn check_site(site: &str) -> Result<(), Error> {
    check_label(site, "site name")
}

/// Checks any name that becomes one part of an id or of a file name.
pub fn check_label(name: &str, what: &'static str) -> Result<(), Error> {
    if is_label(name) { Ok(()) } else { Err(Error::Name { name: name.to_owned(), what }) }
}

/// Checks a trust domain: DNS labels with dots between.
pub fn check_trust_domain(domain: &str) -> Result<(), Error> {
    if domain.len() <= 253 && domain.split('.').all(is_label) {
        Ok(())
    } else {
        Err(Error::Name { name: domain.to_owned(), what: "trust domain (parts with dots between)" })
    }
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, Error> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(Error::Certificate),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    const UID: &str = "6f0c8d1e-0000-4000-8000-000000000001";

    #[test]
    fn every_identity_is_read_back() {
        for identity in
            [Identity::agent("east"), Identity::member(UID, "east", "main-east-0"), Identity::probe("a1")]
        {
            let uri = identity.uri("quorate.test");
            assert_eq!(Identity::parse(&uri, "quorate.test"), Ok(identity.clone()), "{uri}");
            assert!(matches!(Identity::parse(&uri, "other.test"), Err(Error::TrustDomain { .. })));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let long = format!("spiffe://quorate.test/quorate/agent/{}", "a".repeat(64));
        for uri in [
            "",
            "https://quorate.test/quorate/agent/east",
            "SPIFFE://quorate.test/quorate/agent/east",
            "spiffe://quorate.test",
            "spiffe://quorate.test/",
            "spiffe://quorate.test/quorate/agent",
            "spiffe://quorate.test/quorate/agent/",
            "spiffe://quorate.test/quorate/agent/East",
            "spiffe://quorate.test/quorate/agent/-east",
            "spiffe://quorate.test/quorate/agent/east-",
            "spiffe://quorate.test/quorate/agent/ea.st",
            "spiffe://quorate.test/quorate/agent/east/",
            "spiffe://quorate.test/quorate/agent/east/more",
            "spiffe://quorate.test//quorate/agent/east",
            "spiffe://quorate.test/quorate/agent/east?x=1",
            "spiffe://quorate.test/quorate/agent/east#x",
            "spiffe://quorate.test/quorate/agent/e%61st",
            "spiffe://quorate.test/quorate/agent/ea st",
            "spiffe://quorate.test/quorate/member/uid/east",
            "spiffe://quorate.test/quorate/member/uid/east/slot/more",
            "spiffe://quorate.test/quorate/king/east",
            "spiffe://quorate.test/agent/east",
            "spiffe://user@quorate.test/quorate/agent/east",
            "spiffe://quorate.test:1/quorate/agent/east",
            long.as_str(),
        ] {
            assert!(Identity::parse(uri, "quorate.test").is_err(), "{uri}");
        }
    }

    fn certificate(names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.distinguished_name.push(rcgen::DnType::CommonName, "spiffe://quorate.test/quorate/agent/east");
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    #[test]
    fn a_certificate_needs_exactly_one_uri() {
        let east = "spiffe://quorate.test/quorate/agent/east";
        let dns = SanType::DnsName("east.quorate.test".try_into().unwrap());
        let read = |names| Identity::from_certificate(&certificate(names), "quorate.test");
        assert_eq!(read(vec![uri(east)]), Ok(Identity::agent("east")));
        assert_eq!(read(vec![dns.clone(), uri(east)]), Ok(Identity::agent("east")));
        assert_eq!(read(vec![]), Err(Error::UriNames(0)), "the common name does not count");
        assert_eq!(read(vec![dns]), Err(Error::UriNames(0)));
        assert_eq!(read(vec![uri(east), uri(east)]), Err(Error::UriNames(2)));
        assert_eq!(Identity::from_certificate(b"junk", "quorate.test"), Err(Error::Certificate));
    }

    #[test]
    fn names_are_checked() {
        assert!(check_site("east-1").is_ok());
        assert!(check_site("../east").is_err());
        assert!(check_site("").is_err());
        assert!(check_trust_domain("quorate.test").is_ok());
        assert!(check_trust_domain("quorate..test").is_err());
        assert!(check_trust_domain("").is_err());
    }

    #[test]
    fn renewal_is_due_after_two_thirds() {
        let start = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let validity = Validity { not_before: start, not_after: start + Duration::from_secs(90) };
        assert_eq!(validity.renewal(), start + Duration::from_mins(1));
        assert!(Validity::of(&certificate(vec![])).unwrap().not_after > start);
    }
}
