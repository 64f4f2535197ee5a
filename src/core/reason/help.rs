//! What a person who meets a reason wants to know next: what quorate does by itself, what to look at, which runbook.
//!
//! `quorate explain` and the pages in `docs/reference/reasons` are made from this and from the list in
//! [`super::Code`]; nothing is written twice. The matches name every code, so that a new one cannot be without help.

use super::Code;

/// What a reason is about: which commands show more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topic {
    /// A member and its data.
    Member,
    /// Agents and the links between sites.
    Mesh,
    /// The file and who holds it.
    Spec,
    /// What is planned and what it waits for.
    Plan,
    /// How much may be lost.
    Quorum,
}

impl Code {
    /// What quorate does by itself while this holds.
    #[expect(clippy::too_many_lines, reason = "one arm for each reason")]
    pub const fn meanwhile(self) -> &'static str {
        match self {
            Self::IntentUnresolved => {
                "the executor asks every agent for its record, reads the member list again, and resolves the open intent; \
                 nothing else is planned before that"
            }
            Self::LearnerPresent => {
                "it looks at the learner all the time: promotes it when it has proven itself, removes it after five \
                 minutes without progress"
            }
            Self::NewQuorumNotAlive | Self::RemovalWhileDegraded => {
                "the members stay as they are, and writes go on while a majority is alive; the step is taken when enough \
                 members are back"
            }
            Self::LostMemberUnconfirmed => {
                "the member stays listed, and is started again wherever its agent runs; no silence, however long, removes it"
            }
            Self::SingleVoterNotAllowed => "the voters stay as they are",
            Self::DomainBound => "the members stay where they are",
            Self::DataLost => {
                "etcd is not started on that directory; it is moved to the archive folder, the loss is attested, the \
                 member is removed, and a new one with a new id joins the same slot"
            }
            Self::HighWaterMissing => {
                "the supervisor asks its agent for the mark, and starts etcd when it has it and the directory is as far"
            }
            Self::AwaitingGrant => {
                "the agent grants it: to one seed after the ballot, to all others when they are listed as learners"
            }
            Self::UrlTooFresh | Self::TooSoon => "it waits for the rest of the time, then takes the step",
            Self::IdRemoved => {
                "that id is neither started nor promoted; its directory is archived, and the slot gets a new incarnation"
            }
            Self::WaitingForClusters => {
                "it asks again and again; no etcd is started before every declared site has voted, because a cut-off site \
                 may hold an older one"
            }
            Self::SpecMismatch => "nothing is started; the files are read again every second",
            Self::BallotConflict => "nothing is started and nothing is changed",
            Self::VoteRefused => "the vote is refused, nothing is started, and what is there stays untouched",
            Self::NotExecutor => {
                "the other site's agent takes the step; the status here shows what it decides"
            }
            Self::ExecutorUnavailable => {
                "writes go on; after three operation deadlines leadership is moved to a member whose agent answers, at \
                 most once in ten minutes"
            }
            Self::NotAcknowledged => {
                "nothing is sent; the same intent is proposed again under a higher number"
            }
            Self::FenceFailed => {
                "nothing is sent; term and member list are read again, and the step is planned anew"
            }
            Self::NoRecord => {
                "this agent answers no proposals, and rebuilds its record when enough of the other agents have answered; \
                 its members go on"
            }
            Self::LearnerNotAlive | Self::LearnerLagging | Self::LearnerUnreachable => {
                "the learner stays a learner, which no quorum counts; it is promoted when it has proven itself, and removed \
                 after five minutes without progress"
            }
            Self::LearnerDataUnproven => {
                "HashKV of learner and leader is compared at one revision until it is equal; a learner that differs is \
                 removed"
            }
            Self::LearnerTooOld => "the learner stays a learner",
            Self::CertificateExpiring => {
                "certificates are renewed when two thirds of their life are over; the learner is promoted when that is done"
            }
            Self::LeaderInTheWay => {
                "leadership is moved to the alive voter that is closest, then the step is taken"
            }
            Self::NoTransferee => "leadership stays where it is until a follower has caught up",
            Self::QuorumLost => {
                "members are started again on their own directories; membership, directories and the number of members are \
                 not touched (hands off)"
            }
            Self::EvenStateUnprepared => {
                "the number of voters stays odd until the way out of the even state is open"
            }
            Self::AlarmActive | Self::MixedVersions | Self::MaintenanceRunning => {
                "membership is frozen until it is over; writes are not quorate's to stop, and members are started again"
            }
            Self::LeaderUnstable => "membership is frozen until five minutes have passed with fewer changes",
            Self::SpecDrift => "only membership waits; etcd and all sites that agree go on",
            Self::MatrixStale => {
                "every agent probes every member once a second; the step is taken when all rows are fresh"
            }
            Self::OutcomeUnknown => {
                "it waits for one request timeout, reads the member list, and takes the same step again if it did not happen"
            }
            Self::OtherStepPending => "the open step is finished first",
            Self::NotSettled => "the next step waits until every alive voter answers the new list itself",
            Self::DataUnproven => {
                "HashKV of every alive voter is compared with the leader's; the next step waits for that"
            }
            Self::PromotionNotSettled => {
                "nothing else is changed until the new voter calls itself one and is ready"
            }
            Self::UpdateOfLearner => "the learner is removed, and added again under the new URL",
            Self::UpdateUnproven => "the old URL stays; the new one is probed again and again",
            Self::BackupTooOld => "a backup is taken first",
            Self::NoBackup => "nothing: rule I17 is off, and every status says so",
            Self::Stale | Self::IntentConflict => {
                "the message is refused; the executor reads all records and numbers again"
            }
            Self::WrongEpoch => "the message is refused; the older side learns of the newer epoch",
            Self::SlotNotReady => "it takes the offer as soon as that agent makes one",
            Self::DivergentData => {
                "a member that was just promoted is removed again; otherwise membership is frozen and nothing is deleted"
            }
            Self::NonTransitivePartition => {
                "it goes on with what both ends of each link see; nothing is removed"
            }
            Self::QuorumAtRisk => "nothing: the layout is the file's, and quorate never changes it",
            Self::Retired => "its member is stopped once it is removed; the volume and the record stay",
            Self::ActivationPending => {
                "everything stays as the old spec says until enough sites hold the new one"
            }
            Self::PeerUnreachable => {
                "it dials again and again; writes go on, only steps that need that site wait"
            }
            Self::NoPeer => "nothing is sent there and nothing is born without it; the other sites go on",
            Self::MeasuringDistance => {
                "every agent measures the way to every other one; after ten seconds the birth goes on with etcd's own timers"
            }
            Self::TooFar => "its learner stays a learner, which no quorum counts",
            Self::RestartRunning => {
                "nothing else is begun for up to half a minute, and no other voter is restarted before this one is back"
            }
            Self::TokenUnsure => "the restart waits; a membership step does not",
            Self::NoSlack => "the member runs on with its old settings, which are valid beside the new ones",
            Self::StepsFirst => "the restart is asked for again every few seconds",
            Self::RestartPending => {
                "members are restarted one at a time, each when the one before it is back for some seconds: a longer election \
                 timeout first everywhere, then the heartbeat, shorter ones the other way round; leadership is moved away \
                 before the leader is restarted"
            }
            Self::SlowFailover => "nothing: the timers follow from the distance of the sites",
            Self::NameTaken => "nothing is begun, and the federation that is there goes on",
            Self::VolumesWithoutRecord => {
                "no etcd is started on these volumes or beside them, and nothing is moved or deleted"
            }
            Self::SpecAbsent | Self::SpecDeleted => {
                "members go on serving; membership steps wait until the sites agree again"
            }
            Self::DeletionWaits => {
                "the members go on serving, and the agent asks the other sites again and again"
            }
            Self::Deleted => {
                "etcd is stopped, record and data stay; it starts where it was once the file is back"
            }
            Self::PeerDNSUnresolved => {
                "the joiner is held back for a minute and looks again every few seconds; then it is started all the same, \
                 since the member that is not found may be gone for good"
            }
            Self::PortInUse | Self::EtcdMissing | Self::EtcdTooOld | Self::EtcdOtherVersion => {
                "the member is tried again every few seconds and starts by itself when the cause is gone; data and record \
                 stay as they are, and other federations of this agent go on"
            }
            Self::StateNotWritable | Self::DiskFull | Self::HostFault => {
                "nothing is acknowledged or started that could not be written down first; it is tried again every few \
                 seconds, and other federations of this agent go on where they can"
            }
            Self::AdoptUnreachable
            | Self::AdoptOtherCluster
            | Self::AdoptNoLeader
            | Self::AdoptNameClash
            | Self::AdoptPeerUrl
            | Self::AdoptLearner
            | Self::AdoptEndpointMissing => {
                "the foreign etcd is looked at again every second and is not touched; the site that speaks for it takes it \
                 over once it is as declared"
            }
            Self::AdoptCertificateMissing => {
                "the site asks for the certificates again every second; no learner is added at it before it has them"
            }
            Self::AdoptPeerUnreachable => {
                "the foreign peer ports are probed again and again; no learner is added at that site before all of them answer"
            }
            Self::AdoptUnfinished => {
                "the spec with spec.adopt stays the effective one, and the foreign members go on leaving as it says"
            }
            Self::AsWished => "it goes on looking",
            Self::Starting => {
                "it waits until etcd answers and follows the leader; a process that ends is started again"
            }
            Self::PlanRejected => "the step is not taken; a metric counts it, and the planner is asked again",
        }
    }

    /// The page in `docs/runbooks` without its ending, if there is one.
    pub const fn runbook(self) -> Option<&'static str> {
        match self {
            Self::BallotConflict | Self::VoteRefused => Some("ballot-conflict"),
            Self::NoRecord => Some("no-record"),
            Self::AlarmActive => Some("alarm"),
            Self::PromotionNotSettled => Some("promotion"),
            Self::QuorumLost => Some("quorum-lost"),
            Self::DivergentData | Self::LearnerDataUnproven => Some("divergent-data"),
            _ => None,
        }
    }

    const fn topic(self) -> Topic {
        match self {
            Self::DataLost
            | Self::HighWaterMissing
            | Self::AwaitingGrant
            | Self::IdRemoved
            | Self::LearnerPresent
            | Self::LearnerNotAlive
            | Self::LearnerLagging
            | Self::LearnerDataUnproven
            | Self::LearnerTooOld
            | Self::AlarmActive
            | Self::MixedVersions
            | Self::MaintenanceRunning
            | Self::NotSettled
            | Self::DataUnproven
            | Self::PromotionNotSettled
            | Self::DivergentData
            | Self::BackupTooOld
            | Self::NoBackup
            | Self::Starting
            | Self::PortInUse
            | Self::EtcdMissing
            | Self::EtcdTooOld
            | Self::EtcdOtherVersion
            | Self::StateNotWritable
            | Self::DiskFull
            | Self::HostFault
            | Self::NoTransferee
            | Self::LeaderInTheWay
            | Self::RestartRunning
            | Self::RestartPending => Topic::Member,
            Self::WaitingForClusters
            | Self::BallotConflict
            | Self::VoteRefused
            | Self::NotExecutor
            | Self::ExecutorUnavailable
            | Self::NotAcknowledged
            | Self::NoRecord
            | Self::LearnerUnreachable
            | Self::PeerDNSUnresolved
            | Self::CertificateExpiring
            | Self::LeaderUnstable
            | Self::MatrixStale
            | Self::UpdateUnproven
            | Self::Stale
            | Self::WrongEpoch
            | Self::IntentConflict
            | Self::SlotNotReady
            | Self::NonTransitivePartition
            | Self::PeerUnreachable
            | Self::NoPeer
            | Self::MeasuringDistance
            | Self::TooFar
            | Self::AdoptCertificateMissing
            | Self::AdoptPeerUnreachable
            | Self::SlowFailover => Topic::Mesh,
            Self::SpecMismatch
            | Self::SpecDrift
            | Self::SpecAbsent
            | Self::SpecDeleted
            | Self::DeletionWaits
            | Self::Deleted
            | Self::NameTaken
            | Self::VolumesWithoutRecord
            | Self::ActivationPending
            | Self::AdoptUnreachable
            | Self::AdoptOtherCluster
            | Self::AdoptNoLeader
            | Self::AdoptNameClash
            | Self::AdoptPeerUrl
            | Self::AdoptLearner
            | Self::AdoptEndpointMissing
            | Self::AdoptUnfinished
            | Self::Retired => Topic::Spec,
            Self::IntentUnresolved
            | Self::UrlTooFresh
            | Self::TooSoon
            | Self::FenceFailed
            | Self::OutcomeUnknown
            | Self::OtherStepPending
            | Self::UpdateOfLearner
            | Self::TokenUnsure
            | Self::StepsFirst
            | Self::EvenStateUnprepared
            | Self::SingleVoterNotAllowed
            | Self::AsWished
            | Self::PlanRejected => Topic::Plan,
            Self::NewQuorumNotAlive
            | Self::RemovalWhileDegraded
            | Self::LostMemberUnconfirmed
            | Self::DomainBound
            | Self::NoSlack
            | Self::QuorumLost
            | Self::QuorumAtRisk => Topic::Quorum,
        }
    }

    /// Commands that show more, each with what it shows.
    pub const fn look(self) -> &'static [(&'static str, &'static str)] {
        match self.topic() {
            Topic::Member => &[
                ("quorate members -o wide", "which member it is, its state and id"),
                ("quorate status", "conditions, and what happens next"),
                ("quorate doctor", "links, certificates, versions and disks"),
            ],
            Topic::Mesh => &[
                ("quorate doctor", "who hears whom, and what stands between them"),
                ("quorate status", "which sites are heard"),
                ("quorate plan", "which step waits for it"),
            ],
            Topic::Spec => &[
                ("quorate status", "which site holds which digest"),
                ("quorate apply -f FILE --dry-run", "what the file would change, and which sites need it"),
                ("quorate validate FILE", "the digest of a file"),
            ],
            Topic::Plan => &[
                ("quorate plan", "the steps, and what each waits for"),
                ("quorate status", "the open intent and the executor"),
            ],
            Topic::Quorum => &[
                ("quorate status", "the arithmetic, and who is missing"),
                ("quorate plan", "what is refused, and the lines with which a person can decide"),
                ("quorate simulate --lose site=NAME", "what a further loss would do"),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_help_and_every_runbook_is_linked() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runbooks");
        let mut pages: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".md").map(str::to_owned))
            .collect();
        pages.sort();
        let mut linked: Vec<&str> = Code::ALL.iter().filter_map(|code| code.runbook()).collect();
        linked.sort_unstable();
        linked.dedup();
        assert_eq!(pages, linked);
        for code in Code::ALL {
            assert!(!code.meanwhile().ends_with('.') && code.meanwhile().len() > 10, "{code:?}");
            assert!(!code.look().is_empty());
        }
    }
}
