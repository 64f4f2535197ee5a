//! First contact of two sites: one shows a token once, the other accepts it.
//!
//! The token names the root of the inviting agent, so the joiner knows whom it reached. Both then prove that they hold
//! the secret of the token by an HMAC over the TLS exporter: an answer is good for that one TLS session only, so a
//! relay that ends TLS itself cannot pass it on. After that each side sends its root certificates; keys stay at home.

mod join;
mod server;
mod token;
mod wire;

use std::io;
use std::time::Duration;

pub use join::accept;
pub use server::{Invitation, invite};
pub use token::Token;
pub use wire::SiteCard;

use super::{SitePki, TrustFolder};
use crate::identity;

/// The longest life of a token.
pub const MAX_LIFE: Duration = Duration::from_mins(15);

/// Why an invitation came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a token.
    #[error("this is not a join token ({0}); copy the whole line that `quorate mesh invite` printed")]
    Token(&'static str),
    /// Too old.
    #[error("the token expired {0} s ago; ask for a new one")]
    Expired(u64),
    /// A token for us from ourselves.
    #[error(
        "the token was made by site {0}, which is this site; run `quorate mesh accept` at the other site"
    )]
    OwnToken(String),
    /// The other site has our name.
    #[error(
        "the other side claims to be site {0}, which is the name of this site; every site needs a name of its own"
    )]
    OwnName(String),
    /// The other site is not the one in the token.
    #[error("the token is from site {expected}, but {found} answered")]
    OtherSite {
        /// The site in the token.
        expected: String,
        /// The site that answered.
        found: String,
    },
    /// Two meshes.
    #[error(
        "the other side belongs to mesh {found}, this site to {own}; both sides must be configured with one mesh id"
    )]
    OtherMesh {
        /// Our mesh.
        own: String,
        /// Theirs.
        found: String,
    },
    /// Two trust domains.
    #[error(
        "the other side uses trust domain {found}, this site {own}; both sides must be configured with the same"
    )]
    OtherTrustDomain {
        /// Our trust domain.
        own: String,
        /// Theirs.
        found: String,
    },
    /// Another root than the token names.
    #[error(
        "the agent that answered does not have the root that the token names; somebody may be in between, or the token is of an older installation"
    )]
    OtherRoot,
    /// The other side does not hold the secret of this session.
    #[error(
        "the other side could not prove that it holds the secret of the token; the token is wrong, or somebody is in between"
    )]
    Proof,
    /// The other side refused us.
    #[error("the other side refused: {0}")]
    RefusedByPeer(String),
    /// Nobody accepted in time.
    #[error("nobody accepted the invitation before it expired")]
    NotAccepted,
    /// Too many bad attempts.
    #[error("{0} attempts with a wrong token; the invitation is withdrawn, make a new one")]
    TooManyAttempts(usize),
    /// Nobody there.
    #[error("cannot reach {endpoint}: the invitation is over or was used, or the address is wrong")]
    Unreachable {
        /// The endpoint in the token.
        endpoint: String,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error("the other side did not answer in time")]
    Timeout,
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// Something that is no message of ours.
    #[error("the other side sent something unreadable")]
    Message(#[source] serde_json::Error),
    /// A longer message than any of ours.
    #[error("the other side sent a message of {0} bytes")]
    TooLong(usize),
    /// A name that is none.
    #[error(transparent)]
    Name(#[from] identity::Error),
    /// The trust folder or our own certificates.
    #[error(transparent)]
    Pki(#[from] super::Error),
    /// TLS could not be set up.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    /// No randomness.
    #[error("the system gives no random numbers")]
    Random,
}

/// What this site brings along.
#[derive(Debug, Clone)]
pub struct LocalSite {
    /// Our certificates.
    pub pki: SitePki,
    /// Our mesh.
    pub mesh: String,
    /// Where our agent listens (host:port), for the other side's configuration.
    pub agent_endpoint: String,
}

impl LocalSite {
    fn card(&self) -> Result<SiteCard, Error> {
        Ok(SiteCard {
            site: self.pki.site().to_owned(),
            mesh: self.mesh.clone(),
            trust_domain: self.pki.trust_domain().to_owned(),
            agent_endpoint: self.agent_endpoint.clone(),
            roots: self.pki.roots()?,
        })
    }

    fn trust(&self) -> TrustFolder {
        self.pki.trust()
    }

    /// Whether the other side may be trusted at all; nothing is written.
    fn check(&self, card: &SiteCard) -> Result<(), Error> {
        identity::check_site(&card.site)?;
        if card.site == self.pki.site() {
            return Err(Error::OwnName(card.site.clone()));
        }
        if card.mesh != self.mesh {
            return Err(Error::OtherMesh { own: self.mesh.clone(), found: card.mesh.clone() });
        }
        if card.trust_domain != self.pki.trust_domain() {
            return Err(Error::OtherTrustDomain {
                own: self.pki.trust_domain().to_owned(),
                found: card.trust_domain.clone(),
            });
        }
        Ok(self.trust().check_new(&card.site, &card.roots)?)
    }
}

#[cfg(test)]
mod tests;
