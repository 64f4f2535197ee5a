//! Where the own members listen and under which peer URL the others reach them. Decided once for each slot, written
//! down before anybody is told, and kept: an address that moved by itself would cut a living member off.
//!
//! Each federation has `addresses.json` in its folder. The first one has the ports base + 10 × ordinal; each further
//! one takes the next block of ports that is free as a whole (decisions.md 4).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate_api::config::{MemberPorts, SiteConfig};
use quorate_core::id::{FederationKey, PeerUrl, Slot};
use quorate_link::durable;
use serde::{Deserialize, Serialize};

use super::config;
use crate::store;

const FORMAT: &str = "quorate.addresses/1";
const FILE: &str = "addresses.json";

/// Why a slot has no address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file of a federation cannot be read; nobody knows which ports its members have.
    #[error("{why}; without {} no ports can be given away", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] durable::Error),
    /// There are too few ports.
    #[error("no block of ports is free for {0}; set lower numbers in ports of the site's configuration")]
    NoBlock(FederationKey),
    /// Another federation has one of the ports.
    #[error(
        "port {port} of {slot} belongs to a member of {other} already; set other ports in the site's configuration"
    )]
    Taken {
        /// The slot that needs it.
        slot: Slot,
        /// The port.
        port: u16,
        /// Who has it.
        other: FederationKey,
    },
}

/// The address of one own slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Address {
    /// The slot's ordinal.
    pub ordinal: u32,
    /// Where everything binds.
    pub bind: IpAddr,
    /// On which ports.
    pub ports: MemberPorts,
    /// The peer URL that the member is listed with.
    pub peer_url: PeerUrl,
    /// Further URLs that are served: those that the member was to have since the list last showed another one. A change
    /// that was given up may still come through, so its URL stays served until the next one is settled (safety.md 4).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<PeerUrl>,
}

impl Address {
    /// The ports on which etcd has to listen for peers; none if it is only the one in `ports`.
    pub fn peer_ports(&self) -> Vec<u16> {
        let mut all = vec![self.ports.peer];
        for port in self.also.iter().filter_map(PeerUrl::port) {
            if !all.contains(&port) {
                all.push(port);
            }
        }
        if all.len() == 1 { Vec::new() } else { all }
    }

    /// The hosts that its certificates need.
    pub fn hosts(&self) -> Vec<String> {
        let mut all = vec![self.peer_url.host().to_owned()];
        for host in self.also.iter().map(|url| url.host().to_owned()) {
            if !all.contains(&host) {
                all.push(host);
            }
        }
        all
    }

    /// The address as it has to be for a voter that is listed with this URL, when the configuration wants another one:
    /// what is wanted is served as well, and when it is listed the old one goes. None if it is so already.
    pub fn follow(&self, wanted: Option<&PeerUrl>, listed: &PeerUrl) -> Option<Self> {
        let mut next = self.clone();
        if *listed != next.peer_url && next.also.contains(listed) {
            next.ports.peer = listed.port()?;
            next.peer_url = listed.clone();
            next.also.clear();
        }
        if let Some(wanted) = wanted.filter(|wanted| **wanted != next.peer_url && !next.also.contains(wanted))
        {
            next.also.push(wanted.clone());
        }
        (next != *self).then_some(next)
    }
}

/// `addresses.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Plan {
    /// The block of ports from which new slots get theirs; none until the first slot needs one.
    block: Option<u16>,
    /// By ordinal.
    members: Vec<Address>,
}

impl Plan {
    fn of(&self, ordinal: u32) -> Option<&Address> {
        self.members.iter().find(|address| address.ordinal == ordinal)
    }
}

/// The addresses of all federations of a site.
pub struct Addresses {
    site: Arc<SiteConfig>,
    plans: Mutex<BTreeMap<FederationKey, Result<Plan, String>>>,
}

impl std::fmt::Debug for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Addresses").field("site", &self.site.site).finish_non_exhaustive()
    }
}

fn path(site: &SiteConfig, key: &FederationKey) -> PathBuf {
    store::folder(&site.state_dir, key).join(FILE)
}

impl Addresses {
    /// Reads what was decided for these federations. One that cannot be read does not stop the others.
    pub fn load(site: Arc<SiteConfig>, keys: &[FederationKey]) -> Self {
        let mut plans = BTreeMap::new();
        for key in keys {
            let plan = match durable::read::<Plan>(&path(&site, key), FORMAT) {
                Ok(Some(plan)) => Ok(plan),
                Ok(None) => Ok(found(&store::folder(&site.state_dir, key).join("members"))),
                Err(error) => Err(crate::chain(&error)),
            };
            plans.insert(key.clone(), plan);
        }
        // Written before there was a plan: the first federation with members has the first block.
        let block_0 = |plan: &Result<Plan, String>| plan.as_ref().is_ok_and(|plan| plan.block == Some(0));
        if !plans.values().any(block_0)
            && let Some(plan) =
                plans.values_mut().flatten().find(|plan| plan.block.is_none() && !plan.members.is_empty())
        {
            plan.block = Some(0);
        }
        Self { site, plans: Mutex::new(plans) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FederationKey, Result<Plan, String>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of a slot that has one.
    pub fn get(&self, key: &FederationKey, slot: &Slot) -> Option<Address> {
        self.lock().get(key)?.as_ref().ok()?.of(slot.ordinal).cloned()
    }

    /// The peer URL that the configuration gives a slot now, whatever it has.
    pub fn wanted(&self, key: &FederationKey, slot: &Slot) -> Option<PeerUrl> {
        let block = self.lock().get(key)?.as_ref().ok()?.block?;
        let ports = self.site.ports.of_member(block, slot.ordinal)?;
        Some(self.site.peer_url(&slot.name(&key.name), ports.peer))
    }

    /// What [`Address::follow`] asks for a voter that is listed with this URL; none if there is nothing to change.
    pub fn following(&self, key: &FederationKey, slot: &Slot, listed: &PeerUrl) -> Option<Address> {
        self.get(key, slot)?.follow(self.wanted(key, slot).as_ref(), listed)
    }

    /// Does what [`Addresses::following`] says; durable when it returns. Writes to the disk.
    pub fn follow(&self, key: &FederationKey, slot: &Slot, listed: &PeerUrl) -> Result<(), Error> {
        let Some(next) = self.following(key, slot, listed) else { return Ok(()) };
        let mut plans = self.lock();
        for port in next.peer_ports() {
            if let Some(other) = holder(key, &plans, slot.ordinal, port) {
                return Err(Error::Taken { slot: slot.clone(), port, other });
            }
        }
        let Some(Ok(plan)) = plans.get_mut(key) else { return Ok(()) };
        let mut changed = plan.clone();
        changed.members.retain(|address| address.ordinal != slot.ordinal);
        changed.members.push(next);
        changed.members.sort_by_key(|address| address.ordinal);
        durable::write(&path(&self.site, key), FORMAT, &changed)?;
        *plan = changed;
        Ok(())
    }

    /// Gives a federation its block of ports, if it has none; in which order federations ask decides who has which.
    /// Writes to the disk.
    pub fn reserve(&self, key: &FederationKey) -> Result<(), Error> {
        self.place(key, &[])
    }

    /// Gives each of these slots an address, if it has none; durable when it returns. Writes to the disk.
    pub fn place(&self, key: &FederationKey, slots: &[Slot]) -> Result<(), Error> {
        let mut plans = self.lock();
        let mut plan = match plans.get(key) {
            Some(Ok(plan)) => plan.clone(),
            Some(Err(why)) => return Err(self.unreadable(key, why)),
            None => Plan::default(),
        };
        let block = match plan.block {
            Some(block) => block,
            None => self.free_block(key, &plans)?,
        };
        plan.block = Some(block);
        for slot in slots {
            if plan.of(slot.ordinal).is_some() {
                continue;
            }
            let none = || Error::NoBlock(key.clone());
            let ports = self.site.ports.of_member(block, slot.ordinal).ok_or_else(none)?;
            if let Some((other, port)) = taken(key, &plans, &ports) {
                return Err(Error::Taken { slot: slot.clone(), port, other });
            }
            plan.members.push(Address {
                ordinal: slot.ordinal,
                bind: self.site.address,
                ports,
                peer_url: self.site.peer_url(&slot.name(&key.name), ports.peer),
                also: Vec::new(),
            });
            tracing::info!(federation = %key, %slot, ?ports, "the slot has its ports");
        }
        plan.members.sort_by_key(|address| address.ordinal);
        durable::write(&path(&self.site, key), FORMAT, &plan)?;
        plans.insert(key.clone(), Ok(plan));
        Ok(())
    }

    /// Nothing lives in the slot any more: the next member there gets what the configuration says then.
    pub fn forget(&self, key: &FederationKey, slot: &Slot) -> Result<(), Error> {
        let mut plans = self.lock();
        let Some(Ok(plan)) = plans.get_mut(key) else { return Ok(()) };
        let mut next = plan.clone();
        next.members.retain(|address| address.ordinal != slot.ordinal);
        durable::write(&path(&self.site, key), FORMAT, &next)?;
        *plan = next;
        Ok(())
    }

    fn unreadable(&self, key: &FederationKey, why: &str) -> Error {
        Error::Unreadable { path: path(&self.site, key), why: why.to_owned() }
    }

    fn free_block(
        &self,
        key: &FederationKey,
        plans: &BTreeMap<FederationKey, Result<Plan, String>>,
    ) -> Result<u16, Error> {
        let mut used = BTreeSet::new();
        for (other, plan) in plans {
            // What one federation has must be known before another one gets something.
            let plan = plan.as_ref().map_err(|why| self.unreadable(other, why))?;
            used.extend(plan.members.iter().flat_map(held));
            let reserved =
                plan.block.filter(|_| other != key).and_then(|block| self.site.ports.of_block(block));
            used.extend(reserved.unwrap_or_default());
        }
        self.site.ports.free_block(&used).ok_or_else(|| Error::NoBlock(key.clone()))
    }
}

/// All ports of a member.
fn held(address: &Address) -> Vec<u16> {
    address.ports.named().map(|(_, port)| port).into_iter().chain(address.peer_ports()).collect()
}

/// Which federation has a port already, for another member, or for something else than peers of this very member.
fn holder(
    key: &FederationKey,
    plans: &BTreeMap<FederationKey, Result<Plan, String>>,
    ordinal: u32,
    port: u16,
) -> Option<FederationKey> {
    let has = |federation: &FederationKey, address: &Address| {
        if federation == key && address.ordinal == ordinal {
            let others = address.ports.named().into_iter().filter(|(name, _)| *name != "peer");
            return others.map(|(_, port)| port).any(|held| held == port);
        }
        held(address).contains(&port)
    };
    let mut all = plans.iter().filter_map(|(federation, plan)| Some((federation, plan.as_ref().ok()?)));
    all.find(|(federation, plan)| plan.members.iter().any(|address| has(federation, address)))
        .map(|(federation, _)| federation.clone())
}

/// A port that a member of another federation has.
fn taken(
    key: &FederationKey,
    plans: &BTreeMap<FederationKey, Result<Plan, String>>,
    ports: &MemberPorts,
) -> Option<(FederationKey, u16)> {
    let wanted = ports.named().map(|(_, port)| port);
    let others = plans.iter().filter(|(other, _)| *other != key);
    let mut members =
        others.flat_map(|(other, plan)| plan.iter().flat_map(|p| &p.members).map(move |a| (other, a)));
    members.find_map(|(other, address)| {
        held(address).into_iter().find(|port| wanted.contains(port)).map(|port| (other.clone(), port))
    })
}

/// The addresses of members that were started before addresses were written down: what their supervisors were told.
fn found(members: &Path) -> Plan {
    let Ok(entries) = fs::read_dir(members) else { return Plan::default() };
    let mut plan = Plan::default();
    for volume in entries.flatten().map(|entry| entry.path()) {
        // A supervisor that never had a grant is no member: its slot gets what is free now.
        if volume.join("incarnation.json").exists()
            && let Some(member) = config::read(&volume.join(config::FILE))
        {
            let config::Member { slot, bind, ports, peer_url, .. } = member;
            plan.members.push(Address { ordinal: slot.ordinal, bind, ports, peer_url, also: Vec::new() });
        }
    }
    plan.members.sort_by_key(|address| address.ordinal);
    plan
}

#[cfg(test)]
mod tests {
    use quorate_core::federation::layout::default_zone;
    use quorate_core::id::{ObjectName, SiteName, Uid};

    use super::config::Certificates;
    use super::*;

    fn key(name: &str) -> FederationKey {
        FederationKey { namespace: ObjectName::new("etcd").unwrap(), name: ObjectName::new(name).unwrap() }
    }

    fn slot(ordinal: u32) -> Slot {
        Slot { site: SiteName::new("east").unwrap(), ordinal, zone: default_zone() }
    }

    fn site(state: &Path, more: &str) -> Arc<SiteConfig> {
        let text = format!(
            "site: east\ntrustDomain: quorate.test\nmesh: 6f0c8d1e-0000-4000-8000-000000000001\n\
             stateDir: {}\naddress: 127.0.1.1\n{more}",
            state.display()
        );
        Arc::new(quorate_api::config::parse(&text).unwrap())
    }

    fn peer_port(addresses: &Addresses, name: &str, ordinal: u32) -> Option<u16> {
        addresses.get(&key(name), &slot(ordinal)).map(|address| address.ports.peer)
    }

    #[test]
    fn federations_have_blocks_of_their_own_for_ever() {
        let state = tempfile::tempdir().unwrap();
        let addresses = Addresses::load(site(state.path(), ""), &[]);
        assert_eq!(peer_port(&addresses, "main", 0), None);
        addresses.place(&key("main"), &[slot(0), slot(1)]).unwrap();
        addresses.place(&key("other"), &[slot(0)]).unwrap();
        addresses.place(&key("main"), &[slot(2)]).unwrap();
        addresses.place(&key("third"), &[slot(1)]).unwrap();
        let all = |addresses: &Addresses| {
            ["main", "other", "third"].map(|name| [0, 1, 2].map(|n| peer_port(addresses, name, n)))
        };
        let expected =
            [[Some(2380), Some(2390), Some(2400)], [Some(2480), None, None], [None, Some(2590), None]];
        assert_eq!(all(&addresses), expected);
        let url = addresses.get(&key("third"), &slot(1)).unwrap().peer_url;
        assert_eq!(url.0, "https://third-east-1.east.quorate.test:2590");
        // Another order, other bases, another domain: what was given away stays.
        let keys = [key("third"), key("main"), key("other")];
        let other = site(state.path(), "ports: {peer: 12380}\npeerDomain: new.test\n");
        let again = Addresses::load(other, &keys);
        again.place(&key("third"), &[slot(1)]).unwrap();
        assert_eq!(all(&again), expected);
        assert_eq!(again.get(&key("third"), &slot(1)).unwrap().peer_url, url);
        // A slot that is free again follows the configuration, in the block of its federation.
        again.forget(&key("other"), &slot(0)).unwrap();
        again.place(&key("other"), &[slot(0)]).unwrap();
        assert_eq!(peer_port(&again, "other", 0), Some(12480));
    }

    #[test]
    fn another_peer_url_is_served_beside_the_listed_one_until_it_is_listed() {
        let state = tempfile::tempdir().unwrap();
        let before = Addresses::load(site(state.path(), ""), &[]);
        before.place(&key("main"), &[slot(0), slot(1)]).unwrap();
        before.place(&key("other"), &[slot(0)]).unwrap();
        let old = before.get(&key("main"), &slot(0)).unwrap().peer_url;
        assert_eq!(before.following(&key("main"), &slot(0), &old), None);

        let moved = site(state.path(), "ports: {peer: 12380}\npeerDomain: new.test\n");
        let addresses = Addresses::load(moved, &[key("main"), key("other")]);
        let new = PeerUrl("https://main-east-0.new.test:12380".into());
        addresses.follow(&key("main"), &slot(0), &old).unwrap();
        let both = addresses.get(&key("main"), &slot(0)).unwrap();
        assert_eq!((&both.peer_url, &both.also), (&old, &vec![new.clone()]));
        assert_eq!(both.peer_ports(), [2380, 12380]);
        assert_eq!(both.hosts(), ["main-east-0.east.quorate.test", "main-east-0.new.test"]);
        assert_eq!(peer_port(&addresses, "main", 1), Some(2390), "the other slot was not asked about");
        // Back again before it was listed: both stay served, since the change may still come through.
        let back = Addresses::load(site(state.path(), ""), &[key("main"), key("other")]);
        back.follow(&key("main"), &slot(0), &old).unwrap();
        assert_eq!(back.get(&key("main"), &slot(0)).unwrap(), both);
        // It came through.
        addresses.follow(&key("main"), &slot(0), &new).unwrap();
        let after = addresses.get(&key("main"), &slot(0)).unwrap();
        assert_eq!((&after.peer_url, after.ports.peer, after.peer_ports()), (&new, 12380, Vec::new()));
        // What another member has is not given away twice.
        let taken = site(state.path(), "ports: {peer: 2480}\n");
        let addresses = Addresses::load(taken, &[key("main"), key("other")]);
        let error = addresses.follow(&key("main"), &slot(0), &new).unwrap_err().to_string();
        assert!(error.contains("port 2480") && error.contains("etcd/other"), "{error}");
    }

    #[test]
    fn an_unreadable_file_stops_its_federation_and_new_ones_only() {
        let state = tempfile::tempdir().unwrap();
        let addresses = Addresses::load(site(state.path(), ""), &[]);
        addresses.place(&key("main"), &[slot(0)]).unwrap();
        addresses.place(&key("other"), &[slot(0)]).unwrap();
        let damaged = path(&site(state.path(), ""), &key("main"));
        fs::write(&damaged, "{").unwrap();
        let again = Addresses::load(site(state.path(), ""), &[key("main"), key("other")]);
        again.place(&key("other"), &[slot(0), slot(1)]).unwrap();
        assert_eq!(peer_port(&again, "other", 1), Some(2490));
        assert_eq!(peer_port(&again, "main", 0), None);
        for name in ["main", "third"] {
            let error = again.place(&key(name), &[slot(0)]).unwrap_err().to_string();
            assert!(error.contains(&damaged.display().to_string()), "{error}");
        }
        assert_eq!(fs::read(&damaged).unwrap(), b"{");
    }

    #[test]
    fn members_from_before_the_file_keep_their_ports() {
        let state = tempfile::tempdir().unwrap();
        let site = site(state.path(), "");
        let member = |name: &str, ordinal: u32, started: bool| {
            let ports = site.ports.of_member(0, ordinal).unwrap();
            let slot_name = slot(ordinal).name(&key(name).name);
            let volume = store::folder(state.path(), &key(name)).join("members").join(slot_name.as_str());
            fs::create_dir_all(&volume).unwrap();
            let member = config::Member {
                format: config::FORMAT.to_owned(),
                federation: key(name),
                uid: Uid(7),
                slot: slot(ordinal),
                etcd_dir: PathBuf::from("/opt/etcd"),
                bind: site.address,
                ports,
                peer_url: site.peer_url(&slot_name, ports.peer),
                client_urls: Vec::new(),
                certificates: Certificates::in_folder(&volume),
                foreign_peers: false,
                trust_domain: "t.test".to_owned(),
                outside_mark: volume.join("mark"),
                log_level: "info".to_owned(),
                volume: volume.clone(),
            };
            fs::write(volume.join(config::FILE), serde_json::to_vec(&member).unwrap()).unwrap();
            if started {
                fs::write(volume.join("incarnation.json"), "{}").unwrap();
            }
        };
        member("main", 0, true);
        member("main", 1, true);
        // This one never came up: the first federation has its ports.
        member("other", 0, false);
        let addresses = Addresses::load(Arc::clone(&site), &[key("main"), key("other")]);
        assert_eq!(peer_port(&addresses, "main", 1), Some(2390));
        addresses.place(&key("other"), &[slot(0)]).unwrap();
        addresses.place(&key("main"), &[slot(0), slot(1), slot(2)]).unwrap();
        assert_eq!(peer_port(&addresses, "other", 0), Some(2480));
        assert_eq!(peer_port(&addresses, "main", 2), Some(2400));
    }
}
