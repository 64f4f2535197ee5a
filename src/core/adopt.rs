//! An etcd that quorate did not create becomes a federation: what must hold before it does, and what sites ask of the
//! CA of its peers. Nothing is born: the ballot agrees on uid, epoch and spec, and the record takes the cluster as it is.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::federation::observed::{MemberList, Seeded, Status};
use crate::federation::spec::AdoptSpec;
use crate::id::{Epoch, ObjectName, PeerUrl, SiteName, Slot};
use crate::reason::{Code, Reason};

/// What was seen of a foreign etcd through its declared endpoints.
#[derive(Debug, Clone, Copy)]
pub struct Foreign<'a> {
    /// The statuses, one for each member that answered.
    pub statuses: &'a [Status],
    /// The linearizable list, from the member that leads; none if no endpoint leads to the leader.
    pub list: Option<&'a MemberList>,
}

/// Everything that stands against adopting it, worst first.
pub fn obstacles(adopt: &AdoptSpec, federation: &ObjectName, seen: Foreign<'_>) -> Vec<Reason> {
    let about = |code: Code| Reason::new(code).site(&adopt.cluster);
    let Some(first) = seen.statuses.first() else {
        return vec![about(Code::AdoptUnreachable)];
    };
    if let Some(other) = seen.statuses.iter().find(|s| s.cluster != adopt.cluster_id) {
        return vec![about(Code::AdoptOtherCluster).member(other.member)];
    }
    let Some(list) = seen.list else {
        let reason = about(Code::AdoptNoLeader);
        return vec![match first.leader {
            Some(leader) => reason.member(leader),
            None => reason,
        }];
    };
    let mut found = Vec::new();
    for member in list.iter() {
        let mut add = |code: Code| found.push(about(code).member(member.id));
        // Then its site would seem to host it, and that site's agent knows nothing of it.
        if member.peer_url.slot(federation).is_some() {
            add(Code::AdoptNameClash);
        }
        if !single_https(&member.peer_url) {
            add(Code::AdoptPeerUrl);
        }
        if member.learner {
            add(Code::AdoptLearner);
        }
        if !seen.statuses.iter().any(|s| s.member == member.id) {
            add(Code::AdoptEndpointMissing);
        }
    }
    found
}

fn single_https(url: &PeerUrl) -> bool {
    url.0.starts_with("https://") && !url.0.contains(',')
}

/// The cluster as the record takes it, once nothing stands against that.
///
/// # Errors
/// The worst obstacle.
pub fn taken(
    adopt: &AdoptSpec,
    epoch: Epoch,
    federation: &ObjectName,
    seen: Foreign<'_>,
) -> Result<Seeded, Reason> {
    if let Some(reason) = obstacles(adopt, federation, seen).into_iter().next() {
        return Err(reason);
    }
    let leader = seen.statuses.iter().find(|s| s.leader == Some(s.member)).map(|s| s.member);
    let member = leader.ok_or_else(|| Reason::new(Code::AdoptNoLeader).site(&adopt.cluster))?;
    Ok(Seeded { epoch, cluster: adopt.cluster_id, member })
}

/// Which certificate of the peer side is asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CertificateKind {
    /// What the peer port of a slot shows.
    PeerServer {
        /// The slot.
        slot: Slot,
        /// The host of its peer URL.
        host: SmolStr,
    },
    /// What the member of a slot shows to others.
    PeerClient {
        /// The slot.
        slot: Slot,
    },
    /// What the agent shows to peer ports that it looks at.
    Probe,
}

/// What a site asks the CA of the foreign peers for. The key stays at the site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateRequest {
    /// For what. It alone decides the names in the certificate, not what the request says.
    pub kind: CertificateKind,
    /// The request as PEM; only its public key counts.
    pub request: String,
}

impl CertificateKind {
    /// Whether a site may ask for it: only for its own slots, under their own names.
    pub fn belongs_to(&self, site: &SiteName, federation: &ObjectName) -> bool {
        match self {
            Self::PeerServer { slot, host } => {
                let named = host.split('.').next().and_then(|label| Slot::parse_name(federation, label));
                slot.site == *site && named == Some((slot.site.clone(), slot.ordinal))
            }
            Self::PeerClient { slot } => slot.site == *site,
            Self::Probe => true,
        }
    }

    /// A name for files, unique within a site.
    pub fn file_name(&self, federation: &ObjectName) -> String {
        match self {
            Self::PeerServer { slot, .. } => format!("{}-server", slot.name(federation)),
            Self::PeerClient { slot } => format!("{}-client", slot.name(federation)),
            Self::Probe => "probe".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::federation::layout::default_zone;
    use crate::federation::observed::{ListedMember, Version};
    use crate::id::{ClusterId, Index, MemberId, Revision, Term};

    fn site(name: &str) -> SiteName {
        SiteName::new(name).unwrap()
    }

    fn adopt() -> AdoptSpec {
        let endpoints = vec!["https://old:2379".to_owned()];
        AdoptSpec { cluster: site("east"), cluster_id: ClusterId(0xc), endpoints, peer_ca: String::new() }
    }

    fn status(cluster: u64, member: u64, leader: u64) -> Status {
        Status {
            cluster: ClusterId(cluster),
            member: MemberId(member),
            leader: Some(MemberId(leader)),
            term: Term(4),
            index: Index(9),
            applied: Index(9),
            revision: Revision(7),
            db_size: 0,
            version: Version { major: 3, minor: 6, patch: 16 },
            learner: false,
            alarm: false,
            faulty: false,
            list: None,
            ready: true,
            downgrading: false,
        }
    }

    fn list(members: &[(u64, &str, bool)]) -> MemberList {
        let member = |(id, url, learner): &(u64, &str, bool)| ListedMember {
            id: MemberId(*id),
            name: "old".into(),
            peer_url: PeerUrl((*url).into()),
            learner: *learner,
        };
        MemberList::new(members.iter().map(member).collect())
    }

    fn codes(statuses: &[Status], list: Option<&MemberList>) -> Vec<Code> {
        let name = ObjectName::new("main").unwrap();
        let found = obstacles(&adopt(), &name, Foreign { statuses, list });
        found.into_iter().map(|reason| reason.code).collect()
    }

    #[test]
    fn a_foreign_etcd_is_taken_only_as_declared() {
        let good = list(&[(1, "https://10.0.0.1:2380", false)]);
        assert_eq!(codes(&[], None), [Code::AdoptUnreachable]);
        assert_eq!(codes(&[status(0xd, 1, 1)], Some(&good)), [Code::AdoptOtherCluster]);
        assert_eq!(codes(&[status(0xc, 1, 2)], None), [Code::AdoptNoLeader]);
        assert_eq!(codes(&[status(0xc, 1, 1)], Some(&good)), []);
        let bad = list(&[
            (1, "https://main-etcd-0.main-etcd.old.svc:2380", false),
            (2, "http://10.0.0.2:2380", false),
            (3, "https://10.0.0.3:2380,https://10.1.0.3:2380", true),
        ]);
        let found = codes(&[status(0xc, 1, 1), status(0xc, 3, 1)], Some(&bad));
        let expected = [
            Code::AdoptNameClash,
            Code::AdoptPeerUrl,
            Code::AdoptEndpointMissing,
            Code::AdoptPeerUrl,
            Code::AdoptLearner,
        ];
        assert_eq!(found, expected);
        let name = ObjectName::new("main").unwrap();
        let statuses = [status(0xc, 1, 1)];
        let seen = Foreign { statuses: &statuses, list: Some(&good) };
        let seeded = taken(&adopt(), Epoch(1), &name, seen).unwrap();
        assert_eq!((seeded.cluster, seeded.member), (ClusterId(0xc), MemberId(1)));
    }

    #[test]
    fn a_site_asks_for_its_own_names_only() {
        let name = ObjectName::new("main").unwrap();
        let slot = Slot { site: site("west"), ordinal: 0, zone: default_zone() };
        let server = |host: &str| CertificateKind::PeerServer { slot: slot.clone(), host: host.into() };
        assert!(server("main-west-0.west.test").belongs_to(&site("west"), &name));
        assert!(!server("main-west-0.west.test").belongs_to(&site("north"), &name));
        assert!(!server("main-north-0.north.test").belongs_to(&site("west"), &name));
        assert!(!server("etcd-a.old.example.com").belongs_to(&site("west"), &name));
        assert!(!CertificateKind::PeerClient { slot }.belongs_to(&site("east"), &name));
        assert!(CertificateKind::Probe.belongs_to(&site("east"), &name));
    }
}
