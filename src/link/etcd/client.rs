//! The client API of one member.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::{PbMember, PbResponseHeader};
use etcd_client::{
    AlarmAction, AlarmType, AuthClient, Client, ClusterClient, Compare, CompareOp, GetOptions, KvClient,
    MaintenanceClient, MemberAddOptions, ResponseHeader, Txn, TxnOp,
};
use tonic::transport::Channel;

use super::error::{Error, classify, from_client};
use super::wire;
use crate::tls::EtcdTls;
use crate::transport::dial;

/// How long a call may take if nobody says otherwise. Longer than etcd's own limit for a proposal (7 s with the default
/// election timeout), so that its answer is seen rather than ours.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Any key does: it is compared with something impossible, so nothing is ever written under it.
const CANARY: &str = "quorate-canary";

/// A client of one member; cheap to clone. It connects at the first call and again after a loss.
#[derive(Clone)]
pub struct EtcdClient {
    endpoint: Arc<str>,
    channel: Channel,
    kv: KvClient,
    cluster: ClusterClient,
    maintenance: MaintenanceClient,
    auth: AuthClient,
    deadline: Duration,
}

/// From where an answer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// The cluster of the member that answered.
    pub cluster_id: u64,
    /// The member that answered.
    pub member_id: u64,
    /// The revision of its data; zero in answers about members.
    pub revision: i64,
    /// Its raft term.
    pub raft_term: u64,
}

/// The state of one member, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// From where.
    pub header: Header,
    /// Its version, for example 3.6.16.
    pub version: String,
    /// The size of its database file in bytes.
    pub db_size: i64,
    /// How much of that is in use.
    pub db_in_use: i64,
    /// The quota in bytes; zero below 3.6.
    pub db_quota: i64,
    /// Whom it takes for the leader; zero is nobody.
    pub leader: u64,
    /// Its committed index.
    pub raft_index: u64,
    /// Its applied index.
    pub applied_index: u64,
    /// Alarms and troubles in words.
    pub errors: Vec<String>,
    /// Whether it is a learner.
    pub is_learner: bool,
    /// The version of its storage; empty below 3.6.
    pub storage_version: String,
    /// The version that a downgrade in progress goes to.
    pub downgrade_to: Option<String>,
}

/// One entry of a member list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: u64,
    /// Its name; empty until it was started for the first time.
    pub name: String,
    /// Its peer URLs.
    pub peer_urls: Vec<String>,
    /// Its client URLs; empty until it was started for the first time.
    pub client_urls: Vec<String>,
    /// Whether it is a learner.
    pub is_learner: bool,
}

/// A member list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberList {
    /// From where.
    pub header: Header,
    /// The members, sorted by id.
    pub members: Vec<Member>,
}

/// The hash of the keyspace up to a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashKv {
    /// From where.
    pub header: Header,
    /// The hash.
    pub hash: u32,
    /// The compacted revision when it was made; hashes compare only if this is equal.
    pub compact_revision: i64,
    /// The revision that was hashed; zero below 3.6.
    pub hash_revision: i64,
}

/// Why etcd refuses writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmKind {
    /// The database is full.
    NoSpace,
    /// The data is damaged.
    Corrupt,
}

/// An alarm that is raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alarm {
    /// The member that raised it.
    pub member_id: u64,
    /// Which one.
    pub kind: AlarmKind,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The value.
    pub value: Vec<u8>,
    /// The revision of its last change.
    pub mod_revision: i64,
}

impl EtcdClient {
    /// A client of the member at `endpoint` (`https://host:port`). Does not connect yet.
    pub async fn connect(endpoint: &str, tls: &EtcdTls) -> Result<Self, Error> {
        Self::connect_at(endpoint, None, tls).await
    }

    /// The same, but dials `address` (host:port) instead of what the host resolves to. The certificate still has to be
    /// that of the host.
    pub async fn connect_at(endpoint: &str, address: Option<&str>, tls: &EtcdTls) -> Result<Self, Error> {
        let bad = || Error::Endpoint { endpoint: endpoint.to_owned() };
        let name = endpoint.strip_prefix("https://").ok_or_else(bad)?.trim_end_matches('/');
        let tls = tls.clone();
        let channel = dial::channel(name, address.unwrap_or(name), Arc::new(move || tls.configs().grpc))
            .map_err(|_| bad())?;
        let client = Client::from_channel(etcd_client::Channel::Tonic(channel.clone()), None)
            .await
            .map_err(|error| from_client(&error))?;
        Ok(Self {
            endpoint: endpoint.into(),
            channel,
            kv: client.kv_client(),
            cluster: client.cluster_client(),
            maintenance: client.maintenance_client(),
            auth: client.auth_client(),
            deadline: DEADLINE,
        })
    }

    /// The same client with another deadline for its calls.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// The endpoint as it was given.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, etcd_client::Error>>) -> Result<T, Error> {
        match tokio::time::timeout(self.deadline, call).await {
            Ok(result) => result.map_err(|error| from_client(&error)),
            Err(_) => Err(Error::deadline(self.deadline)),
        }
    }

    /// The state of this member; also answered by a learner and without quorum.
    pub async fn status(&self) -> Result<Status, Error> {
        let answer = self.call(self.maintenance.clone().status()).await?;
        Ok(Status {
            header: header(answer.header()),
            version: answer.version().to_owned(),
            db_size: answer.db_size(),
            db_in_use: answer.raft_used_db_size(),
            db_quota: answer.db_size_quota(),
            leader: answer.leader(),
            raft_index: answer.raft_index(),
            applied_index: answer.raft_applied_index(),
            errors: answer.errors().to_vec(),
            is_learner: answer.is_learner(),
            storage_version: answer.storage_version().to_owned(),
            downgrade_to: answer
                .downgrade_info()
                .filter(|downgrade| downgrade.enabled())
                .map(|downgrade| downgrade.target_version().to_owned()),
        })
    }

    /// The member list: linearizable (needs quorum, and is current) or as this member has it (may be stale).
    pub async fn member_list(&self, linearizable: bool) -> Result<MemberList, Error> {
        let call = wire::member_list(self.channel.clone(), linearizable);
        match tokio::time::timeout(self.deadline, call).await {
            Ok(Ok(answer)) => Ok(list(answer.header.as_ref(), answer.members)),
            Ok(Err(status)) => Err(classify(&status)),
            Err(_) => Err(Error::deadline(self.deadline)),
        }
    }

    /// Whether users have to authenticate.
    pub async fn auth_enabled(&self) -> Result<bool, Error> {
        match tokio::time::timeout(self.deadline, wire::auth_enabled(self.channel.clone())).await {
            Ok(answer) => answer.map_err(|status| classify(&status)),
            Err(_) => Err(Error::deadline(self.deadline)),
        }
    }

    /// The roles of a user; none if there is no such user.
    pub async fn roles_of(&self, user: &str) -> Result<Vec<String>, Error> {
        match self.call(self.auth.clone().user_get(user)).await {
            Ok(answer) => Ok(answer.roles().to_vec()),
            Err(Error::Refused { message, .. } | Error::Auth { message })
                if message.contains("not found") =>
            {
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Adds a learner; returns its id and the list after the change.
    pub async fn member_add_learner(&self, peer_url: &str) -> Result<(u64, MemberList), Error> {
        let options = MemberAddOptions::new().with_is_learner();
        let answer =
            self.call(self.cluster.clone().member_add([peer_url.to_owned()], Some(options))).await?.0;
        let id = answer.member.map_or(0, |member| member.id);
        Ok((id, list(answer.header.as_ref(), answer.members)))
    }

    /// Makes a learner a voter; returns the list after the change.
    pub async fn member_promote(&self, id: u64) -> Result<MemberList, Error> {
        let answer = self.call(self.cluster.clone().member_promote(id)).await?.0;
        Ok(list(answer.header.as_ref(), answer.members))
    }

    /// Removes a member for ever; returns the list after the change.
    pub async fn member_remove(&self, id: u64) -> Result<MemberList, Error> {
        let answer = self.call(self.cluster.clone().member_remove(id)).await?.0;
        Ok(list(answer.header.as_ref(), answer.members))
    }

    /// Gives a member another peer URL; returns the list after the change.
    pub async fn member_update(&self, id: u64, peer_url: &str) -> Result<MemberList, Error> {
        let answer = self.call(self.cluster.clone().member_update(id, [peer_url.to_owned()])).await?.0;
        Ok(list(answer.header.as_ref(), answer.members))
    }

    /// Hands leadership over; only the leader takes this call.
    pub async fn move_leader(&self, target: u64) -> Result<(), Error> {
        self.call(self.maintenance.clone().move_leader(target)).await.map(drop)
    }

    /// The hash of the keyspace up to `revision` (0: all of it). Not answered by a learner: see
    /// [`PeerPort`](super::PeerPort).
    pub async fn hash_kv(&self, revision: i64) -> Result<HashKv, Error> {
        let answer = self.call(self.maintenance.clone().hash_kv(revision)).await?;
        Ok(HashKv {
            header: header(answer.header()),
            hash: answer.hash(),
            compact_revision: answer.compact_version(),
            hash_revision: answer.hash_revision(),
        })
    }

    /// The alarms that are raised anywhere in the cluster.
    pub async fn alarms(&self) -> Result<Vec<Alarm>, Error> {
        let mut client = self.maintenance.clone();
        let answer = self.call(client.alarm(AlarmAction::Get, AlarmType::None, None)).await?;
        let alarm = |alarm: &etcd_client::AlarmMember| {
            let kind = match alarm.alarm() {
                AlarmType::Nospace => AlarmKind::NoSpace,
                AlarmType::Corrupt => AlarmKind::Corrupt,
                AlarmType::None => return None,
            };
            Some(Alarm { member_id: alarm.member_id(), kind })
        };
        Ok(answer.alarms().iter().filter_map(alarm).collect())
    }

    /// Proves that writes can be acknowledged, and changes nothing: a transaction whose comparison can never hold, with
    /// a deletion behind it, goes through raft like any write.
    pub async fn canary(&self) -> Result<Header, Error> {
        // A version is never negative.
        let txn = Txn::new()
            .when([Compare::version(CANARY, CompareOp::Less, 0)])
            .and_then([TxnOp::delete(CANARY, None)]);
        let answer = self.call(self.kv.clone().txn(txn)).await?;
        Ok(header(answer.header()))
    }

    /// How many keys there were at `revision` (0: now), as this member has it; also answered by a learner.
    pub async fn count_at(&self, revision: i64) -> Result<i64, Error> {
        let options =
            GetOptions::new().with_all_keys().with_serializable().with_count_only().with_revision(revision);
        Ok(self.call(self.kv.clone().get("", Some(options))).await?.count())
    }

    /// Writes a key; returns the revision of the write.
    pub async fn put(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<i64, Error> {
        let answer = self.call(self.kv.clone().put(key, value, None)).await?;
        Ok(header(answer.header()).revision)
    }

    /// Reads up to `limit` keys with their values, linearizable, from the key `from` to before `end`, in order.
    pub async fn page(&self, from: &str, end: &str, limit: i64) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let options = GetOptions::new().with_range(end).with_limit(limit);
        let answer = self.call(self.kv.clone().get(from, Some(options))).await?;
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        Ok(answer.kvs().iter().map(|kv| (text(kv.key()), kv.value().to_vec())).collect())
    }

    /// Reads a key: linearizable, or as this member has it.
    pub async fn get(&self, key: &str, linearizable: bool) -> Result<Option<KeyValue>, Error> {
        let options = if linearizable { GetOptions::new() } else { GetOptions::new().with_serializable() };
        let answer = self.call(self.kv.clone().get(key, Some(options))).await?;
        let found = answer.kvs().first();
        Ok(found.map(|kv| KeyValue { value: kv.value().to_vec(), mod_revision: kv.mod_revision() }))
    }
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdClient").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

fn header(found: Option<&ResponseHeader>) -> Header {
    found.map_or_else(Header::default, |header| Header {
        cluster_id: header.cluster_id(),
        member_id: header.member_id(),
        revision: header.revision(),
        raft_term: header.raft_term(),
    })
}

fn list(found: Option<&PbResponseHeader>, members: Vec<PbMember>) -> MemberList {
    let header = found.map_or_else(Header::default, |header| Header {
        cluster_id: header.cluster_id,
        member_id: header.member_id,
        revision: header.revision,
        raft_term: header.raft_term,
    });
    let mut members: Vec<_> = members
        .into_iter()
        .map(|member| Member {
            id: member.id,
            name: member.name,
            peer_urls: member.peer_ur_ls,
            client_urls: member.client_ur_ls,
            is_learner: member.is_learner,
        })
        .collect();
    members.sort_by_key(|member| member.id);
    MemberList { header, members }
}
