//! What etcd says, in core's words.

use quorate_core::federation::observed::{ListedMember, MemberList, Status, Version};
use quorate_core::id::{ClusterId, Index, MemberId, PeerUrl, Revision, Term};
use quorate_link::etcd::client;

/// A member list.
pub fn members<'a>(members: impl IntoIterator<Item = &'a client::Member>) -> MemberList {
    MemberList::new(
        members
            .into_iter()
            .map(|m| ListedMember {
                id: MemberId(m.id),
                name: m.name.as_str().into(),
                peer_url: PeerUrl(m.peer_urls.join(",").into()),
                learner: m.is_learner,
            })
            .collect(),
    )
}

/// A status, with the list that the member itself has, if it was asked for, and whether it takes requests.
pub fn status(status: &client::Status, list: Option<&client::MemberList>, ready: bool) -> Status {
    let alarm = |text: &String| text.contains("alarm:");
    Status {
        cluster: ClusterId(status.header.cluster_id),
        member: MemberId(status.header.member_id),
        leader: (status.leader != 0).then_some(MemberId(status.leader)),
        term: Term(status.header.raft_term),
        index: Index(status.raft_index),
        applied: Index(status.applied_index),
        revision: Revision(status.header.revision),
        db_size: u64::try_from(status.db_size).unwrap_or(0),
        version: version(&status.version),
        learner: status.is_learner,
        alarm: status.errors.iter().any(alarm),
        faulty: !status.errors.iter().all(alarm),
        list: list.map(|list| members(&list.members).digest()),
        ready,
        downgrading: status.downgrade_to.is_some(),
    }
}

/// `3.6.16` in numbers.
pub fn version(text: &str) -> Version {
    let mut numbers = text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    Version { major: next(), minor: next(), patch: next() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_troubles_are_read() {
        assert_eq!(version("3.6.16"), Version { major: 3, minor: 6, patch: 16 });
        assert_eq!(version("3.7.0-rc.1").minor, 7);
        let mut status = client::Status {
            header: client::Header::default(),
            version: "3.6.16".to_owned(),
            db_size: 1,
            db_in_use: 1,
            db_quota: 0,
            leader: 0,
            raft_index: 0,
            applied_index: 0,
            errors: vec!["memberID:1 alarm:NOSPACE ".to_owned()],
            is_learner: false,
            storage_version: String::new(),
            downgrade_to: None,
        };
        let found = super::status(&status, None, true);
        assert!(found.alarm && !found.faulty && found.leader.is_none());
        status.errors = vec!["etcdserver: no leader".to_owned()];
        let found = super::status(&status, None, true);
        assert!(!found.alarm && found.faulty);
    }
}
