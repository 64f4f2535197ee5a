//! `member.json`: what a supervisor has to know. The member crate reads the same words; a test there and here holds
//! both together.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use quorate_api::config::MemberPorts;
use quorate_core::id::{FederationKey, PeerUrl, Slot, Uid};
use serde::{Deserialize, Serialize};

use crate::ports::Supervised;

pub(super) const FORMAT: &str = "quorate.member/1";
pub(super) const FILE: &str = "member.json";

/// The files of one member below `<volume>/pki`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Certificates {
    pub(super) api_cert: PathBuf,
    pub(super) api_key: PathBuf,
    pub(super) agent_roots: PathBuf,
    pub(super) client_cert: PathBuf,
    pub(super) client_key: PathBuf,
    pub(super) client_roots: PathBuf,
    pub(super) peer_cert: PathBuf,
    pub(super) peer_key: PathBuf,
    pub(super) peer_client_cert: PathBuf,
    pub(super) peer_client_key: PathBuf,
    pub(super) peer_roots: PathBuf,
}

impl Certificates {
    pub(super) fn in_folder(folder: &Path) -> Self {
        let file = |name: &str| folder.join(name);
        Self {
            api_cert: file("api.crt"),
            api_key: file("api.key"),
            agent_roots: file("agent-roots.crt"),
            client_cert: file("client.crt"),
            client_key: file("client.key"),
            client_roots: file("client-roots.crt"),
            peer_cert: file("peer.crt"),
            peer_key: file("peer.key"),
            peer_client_cert: file("peer-client.crt"),
            peer_client_key: file("peer-client.key"),
            peer_roots: file("peer-roots.crt"),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) format: String,
    pub(super) federation: FederationKey,
    pub(super) uid: Uid,
    pub(super) slot: Slot,
    pub(super) volume: PathBuf,
    pub(super) etcd_dir: PathBuf,
    pub(super) bind: IpAddr,
    pub(super) ports: MemberPorts,
    pub(super) peer_url: PeerUrl,
    pub(super) client_urls: Vec<String>,
    pub(super) certificates: Certificates,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) foreign_peers: bool,
    pub(super) trust_domain: String,
    pub(super) outside_mark: PathBuf,
    pub(super) log_level: String,
}

/// What the supervisor of a volume was told, if that can be read.
pub(super) fn read(path: &Path) -> Option<Member> {
    let member: Member = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (member.format == FORMAT).then_some(member)
}

/// The slots that were supervised before, from their volumes.
pub(super) fn found(members: &Path) -> Vec<Supervised> {
    let Ok(entries) = fs::read_dir(members) else { return Vec::new() };
    let read = |path: PathBuf| read(&path).map(|member| Supervised { uid: member.uid, slot: member.slot });
    entries.flatten().filter_map(|entry| read(entry.path().join(FILE))).collect()
}

#[cfg(test)]
mod tests {
    use quorate_core::federation::layout::default_zone;
    use quorate_core::id::{ObjectName, SiteName};

    use super::*;

    #[test]
    fn the_supervisor_reads_what_the_agent_writes() {
        let folder = tempfile::tempdir().unwrap();
        let name = |text| ObjectName::new(text).unwrap();
        let slot = Slot { site: SiteName::new("east").unwrap(), ordinal: 1, zone: default_zone() };
        let volume = folder.path().join("members/main-east-1");
        let member = Member {
            format: FORMAT.to_owned(),
            federation: FederationKey { namespace: name("etcd"), name: name("main") },
            uid: Uid(7),
            slot: slot.clone(),
            etcd_dir: PathBuf::from("/opt/etcd"),
            bind: "127.0.1.1".parse().unwrap(),
            ports: MemberPorts { member: 1, http: 2, client: 3, peer: 4, metrics: 5 },
            peer_url: PeerUrl("https://main-east-1.east.test:2390".into()),
            client_urls: vec!["https://127.0.1.1:2389".to_owned()],
            certificates: Certificates::in_folder(&volume.join("pki")),
            foreign_peers: true,
            trust_domain: "t.test".to_owned(),
            outside_mark: folder.path().join("highwater/main-east-1.json"),
            log_level: "info".to_owned(),
            volume: volume.clone(),
        };
        fs::create_dir_all(&volume).unwrap();
        let path = volume.join(FILE);
        fs::write(&path, serde_json::to_vec(&member).unwrap()).unwrap();
        let options = quorate_member::Options::load(&path).unwrap();
        assert_eq!((options.slot_name().as_str(), options.ports.peer), ("main-east-1", 4));
        assert_eq!(
            options.certificates,
            quorate_member::options::Certificates::in_folder(&volume.join("pki"))
        );
        assert_eq!(serde_json::to_value(&options).unwrap(), serde_json::to_value(&member).unwrap());
        let wanted = Supervised { uid: Uid(7), slot };
        assert_eq!(found(&folder.path().join("members")), [wanted]);
    }
}
