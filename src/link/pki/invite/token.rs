//! The text that a person carries from one site to the other.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::{Error, MAX_LIFE};
use crate::identity;

const PREFIX: &str = "quorate1.";

/// A join token. Its text is shown once and stored nowhere.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// The mesh.
    pub mesh: String,
    /// The site that invites.
    pub site: String,
    /// Where it waits (host:port).
    pub endpoint: String,
    /// SHA-256 of its agent root (DER), hex.
    pub root_sha256: String,
    #[serde(with = "secret")]
    pub(super) secret: [u8; 32],
    /// When it ends, in seconds since 1970.
    pub expires: u64,
}

impl Token {
    pub(super) fn check_time(&self, now: u64) -> Result<Duration, Error> {
        match self.expires.checked_sub(now) {
            // A life beyond what anybody may give is a forgery or a clock that is wrong.
            Some(left) if left > MAX_LIFE.as_secs() => {
                Err(Error::Token("it claims to be valid for too long"))
            }
            Some(left) if left > 0 => Ok(Duration::from_secs(left)),
            _ => Err(Error::Expired(now.saturating_sub(self.expires))),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("mesh", &self.mesh)
            .field("site", &self.site)
            .field("endpoint", &self.endpoint)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Token {
    /// The secret text itself: for the person who asked for it, and for nothing else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_vec(self).map_err(|_| fmt::Error)?;
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let body =
            text.trim().strip_prefix(PREFIX).ok_or(Error::Token("it does not begin with quorate1."))?;
        let json = URL_SAFE_NO_PAD.decode(body).map_err(|_| Error::Token("it is not base64url"))?;
        let token: Self =
            serde_json::from_slice(&json).map_err(|_| Error::Token("its content is unknown"))?;
        identity::check_site(&token.site)?;
        Ok(token)
    }
}

mod secret {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(secret: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&URL_SAFE_NO_PAD.encode(secret))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(deserializer)?;
        URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| D::Error::custom("the secret is not 32 bytes of base64url"))
    }
}
