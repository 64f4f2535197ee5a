//! Names and numbers as types, so that a site can never be passed where a member is meant.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

/// Why a text is not a name or an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct ParseError {
    text: String,
    expected: &'static str,
}

impl ParseError {
    fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.to_owned(), expected }
    }
}

fn is_dns_label(text: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(|b| edge(*b))
        && bytes.last().is_some_and(|b| edge(*b))
        && bytes.iter().all(|b| edge(*b) || *b == b'-')
}

macro_rules! label {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "SmolStr", into = "SmolStr")]
        pub struct $name(SmolStr);

        impl $name {
            /// Accepts a DNS label: lower case letters, digits and inner hyphens, at most 63 bytes.
            pub fn new(text: &str) -> Result<Self, ParseError> {
                if is_dns_label(text) {
                    Ok(Self(SmolStr::new(text)))
                } else {
                    Err(ParseError::new(text, "a DNS label (lower case letters, digits, inner hyphens, at most 63)"))
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl TryFrom<SmolStr> for $name {
            type Error = ParseError;
            fn try_from(text: SmolStr) -> Result<Self, ParseError> {
                Self::new(text.as_str())
            }
        }

        impl From<$name> for SmolStr {
            fn from(name: $name) -> SmolStr {
                name.0
            }
        }

        impl FromStr for $name {
            type Err = ParseError;
            fn from_str(text: &str) -> Result<Self, ParseError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.0.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.0.as_str())
            }
        }
    };
}

label!(
    /// One declared Kubernetes cluster, or one machine with the process runtime.
    SiteName
);
label!(
    /// A failure domain inside a site.
    ZoneName
);
label!(
    /// Namespace or name of a `FederatedEtcd`.
    ObjectName
);

/// Namespace and name of a `FederatedEtcd`: the same in every site.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FederationKey {
    /// The namespace.
    pub namespace: ObjectName,
    /// The name.
    pub name: ObjectName,
}

impl fmt::Display for FederationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

macro_rules! uuid {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub u128);

        impl $name {
            /// The first eight hexadecimal digits.
            pub fn short(&self) -> String {
                format!("{:08x}", self.0 >> 96)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let n = self.0;
                write!(
                    f,
                    "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                    n >> 96,
                    (n >> 80) & 0xffff,
                    (n >> 64) & 0xffff,
                    (n >> 48) & 0xffff,
                    n & 0xffff_ffff_ffff
                )
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseError;
            fn from_str(text: &str) -> Result<Self, ParseError> {
                let error = || ParseError::new(text, "a UUID");
                let shape = text.len() == 36
                    && text.bytes().enumerate().all(|(i, b)| match i {
                        8 | 13 | 18 | 23 => b == b'-',
                        _ => b.is_ascii_digit() || (b'a'..=b'f').contains(&b),
                    });
                if !shape {
                    return Err(error());
                }
                u128::from_str_radix(&text.replace('-', ""), 16).map(Self).map_err(|_| error())
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseError;
            fn try_from(text: String) -> Result<Self, ParseError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    };
}

uuid!(
    /// Names a federation for ever; minted by the bootstrap ballot (safety.md 7).
    Uid
);
uuid!(
    /// Names one operation across repeated proposals of the same intent (safety.md 4).
    OpId
);
uuid!(
    /// One life of one data directory in a slot (safety.md 2.1).
    IncarnationId
);
uuid!(
    /// One start of one agent process.
    BootId
);

macro_rules! hex64 {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "SmolStr", into = "SmolStr")]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseError;
            fn from_str(text: &str) -> Result<Self, ParseError> {
                let hex = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
                let error = || ParseError::new(text, "a hexadecimal id of at most 16 digits");
                if !hex {
                    return Err(error());
                }
                u64::from_str_radix(text, 16).map(Self).map_err(|_| error())
            }
        }

        impl TryFrom<SmolStr> for $name {
            type Error = ParseError;
            fn try_from(text: SmolStr) -> Result<Self, ParseError> {
                text.parse()
            }
        }

        impl From<$name> for SmolStr {
            fn from(id: $name) -> SmolStr {
                SmolStr::new(id.to_string())
            }
        }
    };
}

hex64!(
    /// An etcd member id, written as etcd does: hexadecimal.
    MemberId
);
hex64!(
    /// An etcd cluster id, written as etcd does: hexadecimal.
    ClusterId
);

macro_rules! number {
    ($(#[$meta:meta])* $name:ident($int:ty)) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// The next higher number.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number!(
    /// Rises only by a ballot or a recovery; a new epoch has a new cluster token (safety.md 2.1).
    Epoch(u64)
);
number!(
    /// The number of an intent within an epoch.
    Seq(u64)
);
number!(
    /// The number of an activated spec: previous + 1, not Kubernetes' generation (decisions.md 1).
    Generation(u64)
);
number!(
    /// A raft term.
    Term(u64)
);
number!(
    /// A raft log index.
    Index(u64)
);
number!(
    /// An etcd revision.
    Revision(i64)
);

/// A SHA-256 value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// SHA-256 of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// The first twelve hexadecimal digits, for people.
    pub fn short(&self) -> String {
        self.to_string().chars().take(12).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = ParseError;
    fn try_from(text: String) -> Result<Self, ParseError> {
        let error = || ParseError::new(&text, "a SHA-256 in hexadecimal");
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(error());
        }
        let mut bytes = [0_u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| error())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        Ok(Self(bytes))
    }
}

/// A place for a member; it outlives the data directories that fill it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// The site that hosts it.
    pub site: SiteName,
    /// Unique within the site.
    pub ordinal: u32,
    /// The zone within the site.
    pub zone: ZoneName,
}

/// Ordinals from here on belong to members that quorate did not create.
const EXTERNAL: u32 = 1 << 31;

/// The zone of such members: nobody knows theirs, so the loss of one is taken for the loss of all.
const EXTERNAL_ZONE: &str = "external";

impl Slot {
    /// The place of a member without an agent of ours: it belongs to the site that declares its endpoint (safety.md 4).
    /// No layout ever asks for such a slot. Two ids that share their low 31 bits share it, and none is then seen alive.
    pub fn external(site: &SiteName, member: MemberId) -> Self {
        let low = u32::try_from(member.0 & u64::from(EXTERNAL - 1)).unwrap_or(0);
        let zone = ZoneName(SmolStr::new_static(EXTERNAL_ZONE));
        Self { site: site.clone(), ordinal: EXTERNAL | low, zone }
    }

    /// Whether it is the place of a member without an agent of ours.
    pub const fn is_external(&self) -> bool {
        self.ordinal >= EXTERNAL
    }

    /// `<cr>-<site>-<ordinal>`: Service, peer URL host and certificate SAN (decisions.md 1).
    pub fn name(&self, federation: &ObjectName) -> SmolStr {
        smol_str::format_smolstr!("{federation}-{}-{}", self.site, self.ordinal)
    }

    /// Reads (site, ordinal) back from a slot name of this federation.
    pub fn parse_name(federation: &ObjectName, name: &str) -> Option<(SiteName, u32)> {
        let rest = name.strip_prefix(federation.as_str())?.strip_prefix('-')?;
        let (site, ordinal) = rest.rsplit_once('-')?;
        Some((SiteName::new(site).ok()?, ordinal.parse().ok()?))
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}-{}", self.site, self.zone, self.ordinal)
    }
}

/// The one peer URL of a member, byte for byte as etcd lists it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeerUrl(pub SmolStr);

impl PeerUrl {
    /// Host part of the URL, without the port.
    pub fn host(&self) -> &str {
        let rest = self.0.split_once("://").map_or(self.0.as_str(), |(_, rest)| rest);
        let authority = rest.split('/').next().unwrap_or(rest);
        authority.rsplit_once(':').map_or(authority, |(host, _)| host)
    }

    /// The port of the URL, if it has one.
    pub fn port(&self) -> Option<u16> {
        let (_, rest) = self.0.split_once("://")?;
        rest.split('/').next()?.rsplit_once(':')?.1.parse().ok()
    }

    /// The slot that this URL serves, if it follows `https://<slot name>.<domain>:<port>`.
    pub fn slot(&self, federation: &ObjectName) -> Option<(SiteName, u32)> {
        Slot::parse_name(federation, self.host().split('.').next()?)
    }
}

impl fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        for good in ["a", "east", "eu-1", "0a"] {
            assert!(SiteName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "East", "a.b", "a_b", &"a".repeat(64)] {
            assert!(SiteName::new(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<SiteName>("\"East\"").is_err());
    }

    #[test]
    fn ids_read_what_they_print() {
        let uid = Uid(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(uid.to_string(), "01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!(uid.to_string().parse::<Uid>().unwrap(), uid);
        assert_eq!(uid.short(), "01234567");
        assert_eq!("8e9e05c52164694d".parse::<MemberId>().unwrap().to_string(), "8e9e05c52164694d");
        assert!("0x1".parse::<MemberId>().is_err());
        let digest = Digest::of(b"abc");
        assert_eq!(Digest::try_from(digest.to_string()).unwrap(), digest);
    }

    #[test]
    fn a_slot_is_read_back_from_its_url() {
        let name = ObjectName::new("main").unwrap();
        let url = PeerUrl("https://main-eu-west-1.eu-west.quorate.test:2390".into());
        assert_eq!(url.slot(&name), Some((SiteName::new("eu-west").unwrap(), 1)));
        assert_eq!(PeerUrl("https://10.0.0.1:2380".into()).slot(&name), None);
        let east = SiteName::new("east").unwrap();
        let external = Slot::external(&east, MemberId(0x8e9e_05c5_2164_694d));
        assert!(external.is_external() && external.site == east);
        assert_ne!(external, Slot::external(&east, MemberId(0x8e9e_05c5_2164_694e)));
        assert!(!Slot { site: east, ordinal: 6, zone: external.zone }.is_external());
    }
}
