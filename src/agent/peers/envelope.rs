//! Who speaks, and for what: claims are compared with the certificate that carried them.

use quorate_api::peer::Envelope;
use quorate_core::id::{FederationKey, ObjectName, SiteName};
use quorate_link::identity::Identity;
use quorate_link::transport::serve::PeerIdentity;

use super::{Mesh, PROTOCOL};

/// Why a message is refused; one word for the metric, the detail for the log only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) detail: String,
}

fn refuse<T>(reason: &'static str, detail: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { reason, detail: detail.into() })
}

/// A message whose sender is who it says.
pub(super) struct Checked {
    pub(super) site: SiteName,
    /// None in messages about the connection as a whole.
    pub(super) federation: Option<FederationKey>,
    pub(super) boot: Vec<u8>,
    pub(super) seq: u64,
}

/// The certificate's site.
pub(super) fn certified(mesh: &Mesh, peer: Option<&PeerIdentity>) -> Result<SiteName, Refusal> {
    let Some(PeerIdentity { identity: Identity::Agent { site }, source, not_after: _ }) = peer else {
        return refuse("NotAnAgent", "the certificate names no agent");
    };
    let allowed = mesh.from.is_empty() || mesh.from.iter().any(|cidr| cidr.contains(source.ip()));
    if !allowed {
        return refuse("OutsidePeerCidrs", source.to_string());
    }
    SiteName::new(site).or_else(|error| refuse("NotAnAgent", error.to_string()))
}

/// Checks an envelope against the certificate's site.
pub(super) fn check(mesh: &Mesh, site: &SiteName, envelope: Option<&Envelope>) -> Result<Checked, Refusal> {
    let Some(envelope) = envelope else { return refuse("NoEnvelope", "") };
    let Envelope {
        mesh: id,
        namespace,
        name,
        federation_uid: _,
        epoch: _,
        sender_site,
        boot_id,
        seq,
        proto_min,
        proto_max,
    } = envelope;
    if *id != mesh.id {
        return refuse("OtherMesh", short(id));
    }
    if sender_site != site.as_str() {
        return refuse("SenderMismatch", format!("{} says it is {}", site, short(sender_site)));
    }
    if *proto_max < PROTOCOL.0 || *proto_min > PROTOCOL.1 {
        return refuse(
            "Protocol",
            format!("{proto_min} to {proto_max}, we speak {} to {}", PROTOCOL.0, PROTOCOL.1),
        );
    }
    if !mesh.remember(site, *proto_max) {
        return refuse("PeerDowngraded", format!("protocol {proto_max}, it spoke a higher one before"));
    }
    let federation = match (namespace.as_str(), name.as_str()) {
        ("", "") => None,
        (namespace, name) => match (ObjectName::new(namespace), ObjectName::new(name)) {
            (Ok(namespace), Ok(name)) => Some(FederationKey { namespace, name }),
            _ => return refuse("BadName", short(namespace)),
        },
    };
    Ok(Checked { site: site.clone(), federation, boot: boot_id.clone(), seq: *seq })
}

/// What a stranger wrote, at a length that a log can bear.
fn short(text: &str) -> String {
    text.chars().take(64).collect()
}
