//! What is known of the other agents beside what they say of federations: versions, round trips, clocks, certificates, and
//! whom they hear. For people only (`quorate doctor`); nothing is decided by it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::SystemTime;

use quorate_api::peer::Contact;
use quorate_core::id::SiteName;
use quorate_core::report::{Hears, PeerReport};
use quorate_link::clock;

use super::lock;

/// The clock of a peer seems late by the time that its message took. Of so many messages the fastest one counts.
const CLOCKS: usize = 5;
/// More sites than a mesh has.
const HEARS_MAX: usize = 256;

#[derive(Debug, Default)]
struct Known {
    version: Option<String>,
    /// The last differences of the wall clocks, ms.
    clocks: VecDeque<i64>,
    certificate_ends: Option<u64>,
    trouble: Option<String>,
    hears: Vec<Hears>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    peers: Mutex<BTreeMap<SiteName, Known>>,
}

impl Contacts {
    fn with<T>(&self, peer: &SiteName, change: impl FnOnce(&mut Known) -> T) -> T {
        change(lock(&self.peers).entry(peer.clone()).or_default())
    }

    /// A connection of ours stands.
    pub(super) fn connected(&self, peer: &SiteName, version: &str) {
        self.with(peer, |known| {
            known.version = Some(version.chars().take(64).collect());
            known.trouble = None;
        });
    }

    /// There is no connection of ours.
    pub(super) fn lost(&self, peer: &SiteName, why: &str) {
        self.with(peer, |known| known.trouble = Some(why.to_owned()));
    }

    /// The peer opened a connection with a certificate that ends then.
    pub(super) fn presented(&self, peer: &SiteName, not_after: SystemTime) {
        self.with(peer, |known| known.certificate_ends = Some(clock::seconds(not_after)));
    }

    /// The peer's wall clock stood there when ours stood here, and it hears these.
    pub(super) fn pinged(&self, peer: &SiteName, (theirs, ours): (u64, u64), contacts: Vec<Contact>) {
        let hears = contacts.into_iter().take(HEARS_MAX).filter_map(|contact| {
            let Contact { site, age_ms, rtt_us } = contact;
            let site = SiteName::new(&site).ok()?.to_string();
            Some(Hears { site, age_ms, rtt_us })
        });
        let hears = hears.collect();
        self.with(peer, |known| {
            known.hears = hears;
            // Absent in a message of an older version.
            if theirs > 0 {
                let difference = i64::try_from(theirs).unwrap_or(i64::MAX).saturating_sub_unsigned(ours);
                if known.clocks.len() == CLOCKS {
                    known.clocks.pop_front();
                }
                known.clocks.push_back(difference);
            }
        });
    }

    /// Everything about one peer that is known here.
    pub(super) fn report(&self, peer: &SiteName) -> PeerReport {
        self.with(peer, |known| PeerReport {
            name: peer.to_string(),
            version: known.version.clone(),
            // The fastest message makes the clock of the peer look latest.
            clock_skew_ms: known.clocks.iter().max().copied(),
            certificate_ends: known.certificate_ends,
            trouble: known.trouble.clone(),
            hears: known.hears.clone(),
            ..PeerReport::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_message_does_not_make_a_clock_wrong() {
        let contacts = Contacts::default();
        let west = SiteName::new("west").unwrap();
        let skew = || contacts.report(&west).clock_skew_ms;
        contacts.pinged(&west, (0, 1_000), Vec::new());
        assert_eq!(skew(), None, "an older agent tells no clock");
        for delay in [9_000, 20, 12_000] {
            contacts.pinged(&west, (1_000_000, 1_000_000 + delay), Vec::new());
        }
        assert_eq!(skew(), Some(-20));
        for _ in 0..CLOCKS {
            contacts.pinged(&west, (1_060_000, 1_000_000), Vec::new());
        }
        assert_eq!(skew(), Some(60_000), "a clock that jumped is believed after a few messages");
    }

    #[test]
    fn what_a_peer_hears_is_kept_within_bounds() {
        let contacts = Contacts::default();
        let west = SiteName::new("west").unwrap();
        let contact = |site: String| Contact { site, age_ms: Some(3), rtt_us: None };
        let many = (0..HEARS_MAX + 9).map(|n| contact(format!("s{n}")));
        contacts.pinged(&west, (1, 1), many.chain([contact("no name!".to_owned())]).collect());
        assert_eq!(contacts.report(&west).hears.len(), HEARS_MAX);
        contacts.pinged(&west, (1, 1), vec![contact("no name!".to_owned()), contact("east".to_owned())]);
        assert_eq!(contacts.report(&west).hears.len(), 1);
    }

    #[test]
    fn trouble_ends_with_a_connection() {
        let contacts = Contacts::default();
        let west = SiteName::new("west").unwrap();
        contacts.lost(&west, "connection refused");
        assert_eq!(contacts.report(&west).trouble.as_deref(), Some("connection refused"));
        contacts.connected(&west, "0.1.0");
        let report = contacts.report(&west);
        assert_eq!((report.trouble, report.version.as_deref()), (None, Some("0.1.0")));
    }
}
