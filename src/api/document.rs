//! JSON documents inside messages: every one names its format, and none is read that is larger than it may be.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest document; gRPC refuses larger messages anyway (networking.md 5).
pub const LIMIT: usize = 4 * 1024 * 1024;

/// The formats that this version speaks. Fields may be added under the same number; a change of meaning takes the next.
pub mod format {
    /// What one agent saw of its own members and links.
    pub const OBSERVATION: &str = "quorate.observation/1";
    /// The durable record of an agent.
    pub const RECORD: &str = "quorate.record/1";
    /// What an agent tells others of its record.
    pub const RECORD_SUMMARY: &str = "quorate.recordsummary/1";
    /// The spec of a digest.
    pub const SPEC: &str = "quorate.spec/1";
    /// Whether a name has a record at a site.
    pub const NAME: &str = "quorate.name/1";
    /// A ballot.
    pub const BALLOT: &str = "quorate.ballot/1";
    /// The answer to a ballot.
    pub const VOTE_REPLY: &str = "quorate.vote-reply/1";
    /// A proposed intent.
    pub const INTENT: &str = "quorate.intent/1";
    /// The answer to an intent.
    pub const ACK: &str = "quorate.ack/1";
    /// The outcome of an intent.
    pub const RESOLUTION: &str = "quorate.resolution/1";
    /// A request for the token to restart a voter.
    pub const DRAIN: &str = "quorate.drain/1";
    /// The answer to it.
    pub const DRAIN_REPLY: &str = "quorate.drain-reply/1";
    /// What a site asks the CA of a foreign etcd's peers for.
    pub const CERTIFICATE_REQUEST: &str = "quorate.certificate-request/1";
    /// The certificate chain, once it is there.
    pub const CERTIFICATE: &str = "quorate.certificate/1";
    /// What a member may start.
    pub const GRANT: &str = "quorate.grant/1";
    /// What a member reports.
    pub const REPORT: &str = "quorate.report/1";
}

/// Why a document was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Another format, usually of a newer version.
    #[error("the document has format {given:?}, this version reads {expected:?} here; update the older side")]
    Format {
        /// What was asked for.
        expected: String,
        /// What came.
        given: String,
    },
    /// Too large.
    #[error("the {format} document has {size} bytes, at most {LIMIT} are accepted")]
    TooLarge {
        /// Its format, if known.
        format: String,
        /// Its size.
        size: usize,
    },
    /// Not what the format says.
    #[error("the {format} document cannot be read; the sender has a bug or another version")]
    Unreadable {
        /// Its format.
        format: String,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// It cannot be expressed as JSON.
    #[error("a document cannot be expressed as JSON")]
    Encode(#[source] serde_json::Error),
}

/// As JSON.
pub fn encode<T: Serialize>(document: &T) -> Result<Vec<u8>, DocumentError> {
    let bytes = serde_json::to_vec(document).map_err(DocumentError::Encode)?;
    if bytes.len() > LIMIT {
        return Err(DocumentError::TooLarge { format: "new".to_owned(), size: bytes.len() });
    }
    Ok(bytes)
}

/// Reads a document that came as format `given`, if that is the expected one.
pub fn decode<T: DeserializeOwned>(expected: &str, given: &str, bytes: &[u8]) -> Result<T, DocumentError> {
    if given != expected {
        // A stranger chooses this text: keep only what a format name can be.
        let given = given.chars().take(64).collect();
        return Err(DocumentError::Format { expected: expected.to_owned(), given });
    }
    if bytes.len() > LIMIT {
        return Err(DocumentError::TooLarge { format: expected.to_owned(), size: bytes.len() });
    }
    serde_json::from_slice(bytes)
        .map_err(|source| DocumentError::Unreadable { format: expected.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_expected_format_of_bounded_size_is_read() {
        let bytes = encode(&vec![1, 2]).unwrap();
        assert_eq!(decode::<Vec<u8>>(format::ACK, format::ACK, &bytes).unwrap(), [1, 2]);
        let other = decode::<Vec<u8>>(format::ACK, "quorate.ack/2", &bytes).unwrap_err();
        assert!(other.to_string().contains("\"quorate.ack/2\""), "{other}");
        let large = decode::<Vec<u8>>(format::ACK, format::ACK, &vec![b' '; LIMIT + 1]).unwrap_err();
        assert!(matches!(large, DocumentError::TooLarge { .. }));
        assert!(matches!(encode(&"x".repeat(LIMIT)), Err(DocumentError::TooLarge { .. })));
        assert!(matches!(
            decode::<u8>(format::ACK, format::ACK, b"{"),
            Err(DocumentError::Unreadable { .. })
        ));
        let long = decode::<u8>(format::ACK, &"y".repeat(1000), b"1").unwrap_err();
        assert!(long.to_string().len() < 300);
    }
}
