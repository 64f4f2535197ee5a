//! Why quorate waits or refuses: one list of words that feeds condition, event, metric, log, CLI and docs.
//!
//! A reason is a small value: a rule, a code, the member and the site it is about, two numbers, and for the troubles of
//! a host the place. The sentence is made when somebody reads it.

mod help;

use std::fmt;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::id::{MemberId, SiteName};

/// An invariant of safety.md section 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the rule numbers; `title` says what they mean")]
pub enum Rule {
    I1,
    I2,
    I3,
    I4,
    I5,
    I6,
    I7,
    I8,
    I9,
    I10,
    I11,
    I12,
    I13,
    I14,
    I15,
    I16,
    I17,
    I18,
}

impl Rule {
    /// Every rule, in order.
    pub const ALL: [Self; 18] = [
        Self::I1,
        Self::I2,
        Self::I3,
        Self::I4,
        Self::I5,
        Self::I6,
        Self::I7,
        Self::I8,
        Self::I9,
        Self::I10,
        Self::I11,
        Self::I12,
        Self::I13,
        Self::I14,
        Self::I15,
        Self::I16,
        Self::I17,
        Self::I18,
    ];

    /// The rule in a few words.
    pub const fn title(self) -> &'static str {
        match self {
            Self::I1 => "one membership change at a time",
            Self::I2 => "the new quorum must be alive before the change",
            Self::I3 => "no healthy voter is removed while another one is missing",
            Self::I4 => "the loss of one site or zone must not stop writes",
            Self::I5 => "etcd starts only on the data directory that belongs to it",
            Self::I6 => "a member id is never used twice",
            Self::I7 => "one cluster per federation and epoch",
            Self::I8 => {
                "only the agent beside the raft leader changes membership, with the others' acknowledgement"
            }
            Self::I9 => "a learner is promoted only if it is alive, caught up and equal",
            Self::I10 => "the leader moves away before its member is touched",
            Self::I11 => "quorum lost: hands off",
            Self::I12 => "an even number of voters is a short passage",
            Self::I13 => "membership changes only on a calm cluster",
            Self::I14 => "a lost answer means unknown, and only the same step may follow",
            Self::I15 => "a step is done only when every alive voter has seen it",
            Self::I16 => "a peer URL changes only for a voter, one at a time, and probed",
            Self::I17 => "a fresh backup before a voter is removed",
            Self::I18 => "an agent never goes back to a lower number",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident, $rule:expr, $text:literal, $remedy:literal;)+) => {
        /// The words for reasons; each is a condition reason, an event reason and a metric label.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name as it appears in conditions and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// The rule behind it, if one is.
            pub const fn rule(self) -> Option<Rule> {
                match self { $(Self::$name => $rule,)+ }
            }

            /// The sentence; `{member}`, `{site}`, `{have}`, `{need}` and `{place}` stand for the details.
            pub const fn template(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What a person can do about it.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)+ }
            }

            /// What it means, for `quorate explain`.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc, "\n",)+),)+ }
            }

            /// Finds a code by its name, whatever the case.
            pub fn find(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.name().eq_ignore_ascii_case(name))
            }
        }
    };
}

codes! {
    /// Another membership intent is open; it is resolved before anything else is planned.
    IntentUnresolved, Some(Rule::I1), "intent {have} is still open at site {site}",
        "wait; if the named site is gone for good, list its members' ids in spec.clusters[].lostMembers";
    /// A learner is already being added; etcd and quorate allow one at a time.
    LearnerPresent, Some(Rule::I1), "learner {member} at site {site} is not a voter yet",
        "wait until it is promoted or removed";
    /// After the change fewer members would be alive than the new quorum needs.
    NewQuorumNotAlive, Some(Rule::I2), "after the change {need} alive voters are needed, {have} are alive",
        "bring the missing members back first";
    /// A healthy voter is not removed while another voter is missing.
    RemovalWhileDegraded, Some(Rule::I3), "voter {member} at site {site} is missing; after the removal only {have} of {need} voters would be alive",
        "repair or replace the missing voter first";
    /// The member is silent, and silence is no proof of death.
    LostMemberUnconfirmed, Some(Rule::I3), "member {member} at site {site} is silent; only its own agent or a person can declare it lost",
        "bring the site back, or list the member id in spec.clusters[].lostMembers of every cluster";
    /// Going down to one voter gives up every tolerance and needs a flag.
    SingleVoterNotAllowed, Some(Rule::I3), "going from {have} voters to one is not allowed by the spec",
        "set spec.allowSingleVoter: true if that is really wanted";
    /// Too many voters would sit in one site or zone.
    DomainBound, Some(Rule::I4), "site {site} would hold {have} voters, at most {need} keep the loss of it harmless",
        "spread the voters over more sites or zones";
    /// The data directory is empty, behind or foreign, although this incarnation had started before.
    DataLost, Some(Rule::I5), "the data directory of member {member} at site {site} is not the one that belongs to it",
        "nothing: the member is replaced; the old directory is kept in the archive folder";
    /// The data directory has no outside witness of how far it was; the agent is asked first.
    HighWaterMissing, Some(Rule::I5), "member at site {site} waits: no high-water mark from outside its volume",
        "start the agent of that site";
    /// A member waits for a grant of its agent.
    AwaitingGrant, Some(Rule::I5), "member at site {site} has an empty data directory and waits for a grant",
        "nothing, or start the agents of the other sites";
    /// A peer URL was freed less than 1.1 seconds ago; etcd derives ids from whole seconds.
    UrlTooFresh, Some(Rule::I6), "the peer URL was freed {have} ms ago, {need} ms are needed before it is used again",
        "wait";
    /// The member id was removed once and stays dead.
    IdRemoved, Some(Rule::I6), "member id {member} was removed and can never come back",
        "nothing: the slot gets a new incarnation";
    /// A declared site that must vote has not answered.
    WaitingForClusters, Some(Rule::I7), "waiting for site {site}: every declared site must agree before an etcd is born",
        "start its agent, apply the same FederatedEtcd there, or name it in spec.bootstrap.skipClusters";
    /// Two sites hold different specs.
    SpecMismatch, Some(Rule::I7), "site {site} holds another spec",
        "apply the same file in every cluster";
    /// etcd's timers follow from round-trip times, and those between some sites are not known yet.
    MeasuringDistance, None, "the round-trip time between site {site} and another site is not measured yet",
        "wait: after ten seconds it is not waited for any longer";
    /// A site is bound to another federation uid or voted for something else.
    BallotConflict, Some(Rule::I7), "site {site} is bound to another federation or voted for another ballot",
        "see runbooks/ballot-conflict; nothing was started";
    /// The site has data or records of an earlier life and cannot vote for a new cluster.
    VoteRefused, Some(Rule::I7), "site {site} holds data or a record of an earlier etcd and does not vote for a new one",
        "resume the old federation, or move the old state folder away";
    /// A site that this one's FederatedEtcd does not name has a federation of this name, running or stopped. A new one is
    /// not begun beside it: this site waits until it is brought in.
    NameTaken, Some(Rule::I7), "site {site} has a federation of this name already, and none is begun beside it",
        "apply the same file at that site too, and this one is brought in; if another federation is meant, choose another name";
    /// Member volumes of an earlier etcd are there, and no site has a record of it: whether they may be thrown away is not
    /// for an agent to say.
    VolumesWithoutRecord, Some(Rule::I7), "site {site} has member volumes of an earlier etcd of this name and no record of it; none is begun over them",
        "to resume it, put record.json back into the federation's state folder and restart the agent; to restore or to begin anew, first move the member volumes away and keep them";
    /// This agent's member is not the raft leader, so another agent executes.
    NotExecutor, Some(Rule::I8), "site {site} executes: member {member} is raft leader",
        "nothing";
    /// Nobody leads, or the leader's agent does not answer.
    ExecutorUnavailable, Some(Rule::I8), "the agent beside raft leader {member} at site {site} does not answer",
        "restart that agent; leadership moves away by itself after a while";
    /// Too few agents acknowledged the intent.
    NotAcknowledged, Some(Rule::I8), "{have} voters' agents acknowledged, {need} are needed; missing: {site}",
        "restore the connection between the agents";
    /// Term or member list changed between decision and call.
    FenceFailed, Some(Rule::I8), "term or member list changed before the call (term {have}, expected {need})",
        "nothing: it is planned again";
    /// The durable record of a site is missing or unreadable.
    NoRecord, Some(Rule::I8), "site {site} has no readable record",
        "nothing while the other agents answer; else see runbooks/no-record";
    /// The learner is not alive by its own agent or not reachable.
    LearnerNotAlive, Some(Rule::I9), "learner {member} at site {site} is not alive",
        "look at the member's logs";
    /// The learner lags behind the leader, or was not yet seen good often enough.
    LearnerLagging, Some(Rule::I9), "learner {member} at site {site}: lag {have} entries, at most {need} on three samples over 3 s",
        "wait; look at bandwidth and disk if it does not shrink";
    /// Leader and learner do not reach each other in both directions.
    LearnerUnreachable, Some(Rule::I9), "learner {member} at site {site} and the leader do not reach each other both ways",
        "check firewalls and addresses of the peer ports";
    /// The learner's data differ from the leader's or were not compared yet.
    LearnerDataUnproven, Some(Rule::I9), "learner {member} at site {site}: data not yet proven equal to the leader's",
        "wait; if it stays, the learner is replaced";
    /// The learner's etcd is older than the cluster version.
    LearnerTooOld, Some(Rule::I9), "learner {member} at site {site} runs an etcd older than the cluster",
        "install the newer etcd at that site";
    /// The learner's certificates end too soon.
    CertificateExpiring, Some(Rule::I9), "certificates of member {member} at site {site} end too soon",
        "renew them; the agent does so by itself if its CA is there";
    /// No election ends in reasonable time between voters that are so far apart.
    TooFar, None, "site {site} is {have} ms away from another voter; beyond {need} ms it can hold a learner only",
        "use a nearer site for the voter, or take the site out of spec.clusters";
    /// Leadership must move off a member before it is touched.
    LeaderInTheWay, Some(Rule::I10), "member {member} at site {site} is raft leader",
        "nothing: leadership is moved first";
    /// No alive voter is close enough to take over leadership.
    NoTransferee, Some(Rule::I10), "no other alive voter is within {need} entries of the leader",
        "wait for the followers to catch up";
    /// There is no linearizable read: nothing is changed.
    QuorumLost, Some(Rule::I11), "{have} voters are alive, {need} are needed",
        "bring members back; if they are gone for good, see runbooks/quorum-lost";
    /// The cluster would become even without the step that leaves it being ready.
    EvenStateUnprepared, Some(Rule::I12), "the step after this one is not prepared at site {site}",
        "start the agent of that site";
    /// A NOSPACE or CORRUPT alarm is active.
    AlarmActive, Some(Rule::I13), "member {member} at site {site} has an alarm",
        "see runbooks/alarm";
    /// Alive members run different minors, or a downgrade is enabled.
    MixedVersions, Some(Rule::I13), "members run different minors; {member} at site {site} differs",
        "finish the upgrade";
    /// Leadership changed by itself twice or more in five minutes.
    LeaderUnstable, Some(Rule::I13), "{have} unplanned leader changes in five minutes",
        "look at disks, CPU and round-trip times";
    /// Another operation that forbids membership changes is running.
    MaintenanceRunning, Some(Rule::I13), "a restore or defragmentation runs at site {site}",
        "wait";
    /// Agents that are heard hold different specs.
    SpecDrift, Some(Rule::I13), "site {site} holds a spec that differs from the others",
        "apply the same file in every cluster";
    /// A site of the effective spec has no FederatedEtcd of this name.
    SpecAbsent, Some(Rule::I13), "site {site} holds no FederatedEtcd of this name",
        "apply the same file there; an empty, missing or unmounted manifest folder is never a deletion";
    /// The FederatedEtcd was deleted in some clusters and not in all: that is drift, and nothing stops.
    SpecDeleted, Some(Rule::I13), "the FederatedEtcd is deleted at site {site}, and not everywhere: nothing stops",
        "apply it there again; or delete it in every cluster; or take that site out of the spec of the others";
    /// The FederatedEtcd was deleted here. Its members are stopped when every site that has a part has said the same.
    DeletionWaits, Some(Rule::I13), "the deletion waits for site {site}, which still has the FederatedEtcd or is not heard: nothing stops",
        "delete it there too, or apply it here again; a site that is gone for good is first taken out of the spec";
    /// Somebody's view of the links is too old.
    MatrixStale, Some(Rule::I13), "the connectivity row of site {site} is {have} ms old, at most {need} are allowed",
        "wait, or restart the agent of that site";
    /// The last change is too young; etcd wants five seconds between changes.
    TooSoon, Some(Rule::I13), "the last change is {have} ms old, {need} are needed",
        "wait";
    /// The outcome of the last call is unknown; only the same step may follow.
    OutcomeUnknown, Some(Rule::I14), "the outcome of the last step is unknown; the member list is read again after {need} ms",
        "wait";
    /// Another step was asked for while the outcome of one is unknown.
    OtherStepPending, Some(Rule::I14), "another step than the open one was asked for",
        "nothing: the open one is finished first";
    /// An alive voter has not applied the last change yet.
    NotSettled, Some(Rule::I15), "voter {member} at site {site} has not seen the last change yet",
        "wait";
    /// The data of a voter were not compared with the leader's since this leader leads.
    DataUnproven, Some(Rule::I15), "voter {member} at site {site}: data not yet compared with the leader's",
        "wait; it takes a second or two once a change is wished";
    /// A promoted member still calls itself a learner.
    PromotionNotSettled, Some(Rule::I15), "member {member} at site {site} still calls itself a learner",
        "look at its logs; see runbooks/promotion";
    /// A learner's URL is never updated.
    UpdateOfLearner, Some(Rule::I16), "member {member} at site {site} is a learner; it is removed and added again instead",
        "nothing";
    /// The new URL is not reachable from every voter, or another voter is missing.
    UpdateUnproven, Some(Rule::I16), "the new peer URL of member {member} at site {site} is not proven good from every voter",
        "check the address, port and certificate";
    /// No verified backup is young enough.
    BackupTooOld, Some(Rule::I17), "the newest verified backup is {have} s old, at most {need} are allowed",
        "wait for the backup, or override I17 once";
    /// A backup target is not configured; rule I17 is off.
    NoBackup, Some(Rule::I17), "no backup runs",
        "configure backups";
    /// A lower number than one already seen.
    Stale, Some(Rule::I18), "site {site} has already seen number {have}, {need} was offered",
        "nothing: the proposer reads again";
    /// The proposal is for another federation uid or epoch.
    WrongEpoch, Some(Rule::I18), "site {site} is in epoch {have}, the message in {need}",
        "nothing: the older side learns of the newer one";
    /// The same number was used for another step.
    IntentConflict, Some(Rule::I18), "site {site} holds another step under number {have}",
        "nothing: the proposer resolves it";
    /// A wanted slot has no offer: its agent is silent or its volume or address is not ready.
    SlotNotReady, None, "site {site} does not offer its slot yet",
        "start the agent of that site and look at its status";
    /// HashKV differs between voters at one revision.
    DivergentData, None, "data of member {member} at site {site} differ from the others at one revision",
        "see runbooks/divergent-data; the newly promoted member is removed";
    /// Some agents cannot reach each other although both reach a third one.
    NonTransitivePartition, None, "site {site} reaches some sites but not others",
        "check the links of that site";
    /// The loss of one site or zone would stop writes.
    QuorumAtRisk, None, "the loss of site {site} would stop writes ({have} of {need} voters would remain)",
        "bring missing members back, or add a third site";
    /// A member is being restarted as planned; nothing else is begun meanwhile.
    RestartRunning, None, "member {member} at site {site} is being restarted as planned",
        "wait: one at a time";
    /// A new executor does not know yet whether the one before it has permitted a restart.
    TokenUnsure, None, "the executor has led for {have} ms; after {need} ms no restart that another one permitted is under way",
        "wait";
    /// With this voter stopped one more loss would stop writes.
    NoSlack, None, "{have} voters are alive, a planned restart of member {member} at site {site} needs {need}",
        "bring missing members back; of two voters none can be restarted";
    /// A membership step runs or comes next; restarts wait for it.
    StepsFirst, None, "a membership step comes before a restart",
        "wait";
    /// A voter still runs with older settings than the effective ones.
    RestartPending, None, "member {member} at site {site} does not run with the effective settings yet",
        "nothing: members are restarted one at a time, the leader last";
    /// The sites are so far apart that the loss of the leader stops writes for longer than Kubernetes' controllers wait.
    SlowFailover, None, "without its leader etcd may not write for {have} ms; leases of Kubernetes' controllers end after {need} ms",
        "use nearer sites, or give the controllers on this etcd longer leases";
    /// The site is no longer part of the federation.
    Retired, None, "site {site} was removed from the federation",
        "delete the FederatedEtcd there, or name the site in the one of every cluster again; its volumes stay until you remove them";
    /// The FederatedEtcd was deleted in every cluster: its members are stopped, data and records are kept.
    Deleted, None, "the FederatedEtcd is deleted in every cluster; the members at site {site} are stopped, their data are kept",
        "apply the same FederatedEtcd again to resume it; the volumes stay until you remove them";
    /// A changed spec waits until enough sites hold it.
    ActivationPending, None, "the new spec is held by {have} of {need} sites that must hold it; missing: {site}",
        "apply the same file in every cluster";
    /// No declared endpoint of the foreign etcd answers the agent that speaks for it.
    AdoptUnreachable, None, "no endpoint in spec.adopt answers the agent of site {site}",
        "check the endpoints, and the client certificate in the adopt folder of that site";
    /// An endpoint leads to another etcd cluster than the one that is meant, or this federation is another one already.
    AdoptOtherCluster, None, "spec.adopt leads to another etcd cluster than the one that it names, at site {site}",
        "correct spec.adopt.endpoints or spec.adopt.clusterId; nothing was changed";
    /// No declared endpoint leads to the leader of the foreign etcd, or it has none.
    AdoptNoLeader, None, "the foreign etcd has no leader among the endpoints in spec.adopt, as seen from site {site}",
        "bring it to health first, and declare a client URL of each of its members";
    /// The peer URL of a foreign member reads like one of a slot of this federation.
    AdoptNameClash, None, "the peer URL of foreign member {member} reads like that of a slot of this federation",
        "give the FederatedEtcd another name; nothing was changed";
    /// A foreign member has several peer URLs, or one without TLS.
    AdoptPeerUrl, None, "foreign member {member} needs exactly one peer URL, and that with https",
        "change its peer URL with `etcdctl member update` first";
    /// The foreign etcd has a learner that quorate did not add.
    AdoptLearner, None, "foreign member {member} is a learner",
        "promote or remove it first, and stop what added it";
    /// A foreign member that no declared endpoint leads to: nobody could tell whether it is alive.
    AdoptEndpointMissing, None, "no endpoint in spec.adopt leads to foreign member {member}",
        "add its client URL to spec.adopt.endpoints";
    /// A site has no peer certificates from the CA of the foreign peers yet, so its member could not speak with them.
    AdoptCertificateMissing, None, "site {site} waits for {have} peer certificates of the foreign CA",
        "see docs/how-to/adopt: give the CA's key to `quorate adopt`, or sign the requests in the adopt folder";
    /// A site does not reach the peer port of a foreign member, or is refused there; its slots are not offered until then.
    AdoptPeerUnreachable, None, "site {site} does not reach the peer port of foreign member {member}, or is refused there",
        "open the port between them; the foreign member must trust the CA that is given as spec.adopt.peerCA";
    /// A foreign member is listed still, and without spec.adopt nobody could speak for it.
    AdoptUnfinished, None, "foreign member {member} is listed still; spec.adopt can only go after it",
        "put spec.adopt back, and wait until quorate has removed the foreign members";
    /// A peer's agent is silent.
    PeerUnreachable, None, "the agent of site {site} was last heard {have} ms ago",
        "check that agent and the network between the sites";
    /// Another process listens where a member has to; a living member is never moved to other ports by itself.
    PortInUse, None, "another process listens on {place} at site {site}",
        "stop that process; `ss -ltnp` on that host names it";
    /// The folder of etcd's programs holds none of the minor that the spec asks for.
    EtcdMissing, None, "there is no etcd {place} at site {site}",
        "install it there, or name another folder in etcdDir of the site's configuration";
    /// The etcd that is installed lacks fixes that quorate relies on.
    EtcdTooOld, None, "etcd is too old at site {site}: {place}",
        "install the newest patch of that minor there";
    /// The etcd that is installed is another version than the spec asks for.
    EtcdOtherVersion, None, "etcd is another version than spec.version at site {site}: {place}",
        "install the version that is asked for in etcd-<minor> beside it, or change spec.version";
    /// A joiner cannot find another member by its name; etcd would look for it for half a minute and end (scenarios.md S10).
    PeerDNSUnresolved, None, "the name of a member is not known at site {site}: {place}",
        "let that name be resolved there; the join goes on by itself";
    /// A folder that must hold what may not be forgotten cannot be written; nothing is promised until it can.
    StateNotWritable, None, "the state cannot be written at site {site}: {place}",
        "make it writable again: look at its mount, its owner and its mode";
    /// No room is left on the disk; etcd stops, and what it has acknowledged is on the disk.
    DiskFull, None, "the disk is full at site {site}: {place}",
        "free some space there; everything goes on by itself";
    /// The host refuses something else that a member needs.
    HostFault, None, "the member at site {site} cannot run: {place}",
        "repair what the message names; it is tried again all the time";
    /// All is as wished.
    AsWished, None, "the members are as wished",
        "nothing";
    /// The spec names a site that the agent's configuration does not.
    NoPeer, None, "site {site} is in the spec, but it is no peer of this agent",
        "add it to `peers` in the agent's configuration and exchange trust (quorate mesh invite, accept), or correct the spec";
    /// A member is starting.
    Starting, None, "member {member} at site {site} is starting",
        "wait";
    /// A plan did not pass the independent check: a bug in quorate; nothing was done.
    PlanRejected, None, "the independent check refused the planned step for member {member} at site {site}",
        "please report it with the output of `quorate plan -o json`";
}

/// A wait or a refusal: which rule, which member, which site, which numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// The word.
    pub code: Code,
    /// The member it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
    /// The site it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteName>,
    /// What there is.
    #[serde(default)]
    pub have: u64,
    /// What would be needed.
    #[serde(default)]
    pub need: u64,
    /// The place on that site's host: an address, a path, with what is wrong there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<SmolStr>,
}

impl Reason {
    /// A reason without details.
    pub const fn new(code: Code) -> Self {
        Self { code, member: None, site: None, have: 0, need: 0, place: None }
    }

    /// Names the member.
    #[must_use]
    pub fn member(mut self, member: MemberId) -> Self {
        self.member = Some(member);
        self
    }

    /// Names the site.
    #[must_use]
    pub fn site(mut self, site: &SiteName) -> Self {
        self.site = Some(site.clone());
        self
    }

    /// Names the site, if it is known.
    #[must_use]
    pub fn maybe_site(mut self, site: Option<&SiteName>) -> Self {
        self.site = site.cloned();
        self
    }

    /// Gives the numbers.
    #[must_use]
    pub fn numbers(mut self, have: u64, need: u64) -> Self {
        self.have = have;
        self.need = need;
        self
    }

    /// Names the place.
    #[must_use]
    pub fn place(mut self, place: impl Into<SmolStr>) -> Self {
        self.place = Some(place.into());
        self
    }

    /// The rule behind it, if one is.
    pub const fn rule(&self) -> Option<Rule> {
        self.code.rule()
    }
}

impl From<Code> for Reason {
    fn from(code: Code) -> Self {
        Self::new(code)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rule) = self.rule() {
            write!(f, "{rule} ")?;
        }
        write!(f, "{}: ", self.code.name())?;
        let member = self.member.map_or_else(|| "(not known)".to_owned(), |m| m.to_string());
        let site = self.site.as_ref().map_or_else(|| "(not known)".to_owned(), ToString::to_string);
        let text = self.code.template();
        let text = text.replace("{member}", &member).replace("{site}", &site);
        let text = text.replace("{have}", &self.have.to_string()).replace("{need}", &self.need.to_string());
        // Last: what stands there may hold anything.
        f.write_str(&text.replace("{place}", self.place.as_deref().unwrap_or("(not known)")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_says_rule_member_and_site() {
        let site = SiteName::new("west").unwrap();
        let reason = Reason::new(Code::LostMemberUnconfirmed).member(MemberId(0xab)).site(&site);
        let text = reason.to_string();
        assert!(text.starts_with("I3 LostMemberUnconfirmed: member ab at site west is silent"), "{text}");
        let reason = Reason::new(Code::PortInUse).site(&site).place("10.0.0.1:2380");
        assert_eq!(reason.to_string(), "PortInUse: another process listens on 10.0.0.1:2380 at site west");
    }

    #[test]
    fn every_rule_has_a_code_and_every_code_a_remedy() {
        for rule in Rule::ALL {
            assert!(Code::ALL.iter().any(|code| code.rule() == Some(rule)), "{rule} has no code");
        }
        for code in Code::ALL {
            assert!(!code.remedy().is_empty());
            assert_eq!(Code::find(&code.name().to_lowercase()), Some(*code));
        }
    }
}
