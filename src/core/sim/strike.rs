//! How each fault is done to the world.

use super::faults::Fault;
use super::site::Cr;
use super::world::{Event, World};
use crate::federation::member::Process;
use crate::membership::quorum::quorum;

impl World {
    pub(super) fn filled(&self, s: usize) -> Option<usize> {
        self.sites[s].volumes.iter().position(|v| v.node.is_some())
    }

    /// A fault strikes. Not every fault fits every moment; only those that did something count.
    pub fn strike(&mut self, fault: Fault) {
        self.advance_etcd();
        let struck = self.apply_fault(fault);
        self.note(|| format!("FAULT {fault:?}{}", if struck { "" } else { " (nothing to do)" }), None);
        // A moment to which the drawn fault does not fit gets one that always does.
        let instead = Fault::BadNetwork(10, 4_000);
        let struck = struck || {
            self.note(|| format!("FAULT {instead:?}"), None);
            self.apply_fault(instead)
        };
        self.faults += u64::from(struck);
    }

    #[expect(clippy::too_many_lines, reason = "one arm per kind of fault")]
    pub(super) fn apply_fault(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::Cut(a, b, both, ms) => {
                let b = if a == b { (a + 1) % self.sites.len() } else { b };
                if a == b {
                    return false;
                }
                self.set_link(a, b, false);
                if both {
                    self.set_link(b, a, false);
                }
                self.schedule(ms, Event::Mend(a, b));
                true
            }
            Fault::CutOff(a, ms) => {
                for b in (0..self.sites.len()).filter(|b| *b != a) {
                    self.set_link(a, b, false);
                    self.set_link(b, a, false);
                    self.schedule(ms, Event::Mend(a, b));
                }
                self.sites.len() > 1
            }
            Fault::BadNetwork(percent, ms) => {
                self.links.loss = percent;
                self.links.double = percent;
                self.links.late = percent;
                self.schedule(ms, Event::GoodNetwork);
                true
            }
            Fault::CrashAgent(s) => {
                let running = !self.sites[s].agents.is_empty();
                self.sites[s].agents.clear();
                self.schedule(2_000, Event::StartAgent(s));
                running
            }
            Fault::PauseAgent(s, ms) => {
                let until = self.now + ms;
                self.sites[s].agents.iter_mut().for_each(|agent| agent.paused_until = until);
                true
            }
            Fault::SecondAgent(s, ms) => {
                if self.sites[s].agents.len() != 1 {
                    return false;
                }
                self.start_agent(s);
                self.schedule(ms, Event::EndSecondAgent(s));
                true
            }
            Fault::Arm(s, armed) => {
                self.sites[s].armed.push(armed);
                true
            }
            Fault::Kill(s, ms) => self.filled(s).is_some_and(|v| self.kill(s, v, ms)),
            Fault::KillLeader(ms) => {
                let leading = (0..self.sites.len()).find_map(|s| Some((s, self.leading(s)?)));
                let Some((s, node)) = leading else { return false };
                let Some(v) = self.sites[s].volumes.iter().position(|v| v.node == Some(node)) else {
                    return false;
                };
                self.kill(s, v, ms)
            }
            Fault::NoFsync(..)
            | Fault::Slow(..)
            | Fault::Wipe(_)
            | Fault::LoseVolume(_)
            | Fault::OldCopy(..) => self.storage_fault(fault),
            Fault::LoseRecord(s) => self.lose_record(s, false),
            Fault::RollBackRecord(s) => self.lose_record(s, true),
            Fault::Drift(s, ms) => {
                let Some(cr) = self.sites[s].cr.as_ref() else { return false };
                let mut spec = cr.spec.as_ref().clone();
                spec.etcd.get_or_insert_default().quota_bytes = Some(1 << 32);
                // Another spec, or none at all.
                self.sites[s].cr = Cr::new(spec, &self.key).filter(|_| !ms.is_multiple_of(3));
                self.schedule(ms, Event::SameSpec(s));
                true
            }
            Fault::Edit(s) => self.edit_again(s),
            Fault::ClockJump(s, ms) => {
                self.sites[s].skew += ms;
                true
            }
            Fault::OldBackups => {
                self.truth.backups_lost_at = self.now;
                self.truth.backup_at = None;
                self.sites.iter_mut().for_each(|site| site.backup_at = None);
                self.options.backups
            }
            Fault::NoSpace(ms) => {
                self.truth.alarm_since = self.now;
                self.clusters.iter_mut().for_each(|cluster| cluster.no_space = true);
                self.schedule(ms, Event::Space);
                !self.clusters.is_empty()
            }
            Fault::Maintenance(s, ms) => {
                self.sites[s].maintenance = true;
                self.schedule(ms, Event::Ease(s));
                true
            }
            Fault::OlderEtcd(s, ms) => {
                self.sites[s].older_etcd = true;
                self.schedule(ms, Event::Ease(s));
                true
            }
            Fault::CertificatesEnd(s, ms) => {
                self.sites[s].certificates_end = true;
                self.schedule(ms, Event::Ease(s));
                true
            }
            Fault::Gone(s) => self.lose_site(s),
            Fault::Readdress(s) => {
                let Some(volume) = self.sites[s].volumes.iter_mut().find(|v| v.node.is_some()) else {
                    return false;
                };
                volume.url = crate::id::PeerUrl(volume.url.0.replace(":2380", ":2381").into());
                true
            }
        }
    }

    pub(super) fn storage_fault(&mut self, fault: Fault) -> bool {
        let (Fault::NoFsync(s, _)
        | Fault::Slow(s, _)
        | Fault::Wipe(s)
        | Fault::LoseVolume(s)
        | Fault::OldCopy(s, _)) = fault
        else {
            return false;
        };
        let Some(v) = self.filled(s).filter(|_| !self.sites[s].gone) else { return false };
        let Some((c, at)) = self.sites[s].volumes[v].node else { return false };
        match fault {
            Fault::NoFsync(_, ms) => {
                if self.without_record(s) {
                    return false;
                }
                self.clusters[c].nodes[at].slow_disk = true;
                self.schedule(ms, Event::KillNow(s, v));
                return true;
            }
            Fault::Slow(_, ms) => {
                self.clusters[c].nodes[at].intake = 1;
                self.schedule(ms, Event::Ease(s));
                return true;
            }
            _ => {}
        }
        if !self.may_destroy(s, Some(v)) {
            return false;
        }
        match fault {
            Fault::Wipe(_) => self.clusters[c].wipe(at),
            Fault::LoseVolume(_) => {
                self.clusters[c].wipe(at);
                let volume = &mut self.sites[s].volumes[v];
                volume.incarnation = None;
                volume.grant = None;
                volume.node = None;
                volume.process = Process::AwaitingGrant; // another supervisor on an empty volume
            }
            Fault::OldCopy(_, entries) => {
                // A copy that is younger than every mark cannot be told from the real thing: beyond what I5 promises.
                let node = &self.clusters[c].nodes[at];
                let behind = node.durable().saturating_sub(entries) as u64;
                let marked =
                    self.sites[s].volumes[v].outside.as_ref().is_some_and(|o| o.mark.index.0 > behind);
                if !marked {
                    return false;
                }
                self.clusters[c].old_copy(at, entries);
            }
            _ => {}
        }
        self.etcd_ended(s, v);
        true
    }

    pub(super) fn kill(&mut self, s: usize, v: usize, ms: u64) -> bool {
        let Some((c, at)) = self.sites[s].volumes[v].node else { return false };
        let running = self.clusters[c].nodes[at].running;
        if self.without_record(s) && !self.may_destroy(s, Some(v)) {
            return false; // a member that does not run while its record is rebuilt counts as lost
        }
        self.clusters[c].crash(at);
        self.sites[s].volumes[v].held_until = self.now + ms;
        self.etcd_ended(s, v);
        running
    }

    /// A member that did not fsync loses its power.
    pub fn kill_now(&mut self, s: usize, v: usize) {
        if let Some((c, at)) = self.sites[s].volumes[v].node {
            self.clusters[c].crash(at);
            self.clusters[c].nodes[at].slow_disk = false;
            self.etcd_ended(s, v);
        }
    }

    /// Only what the others can make whole again: records of more than n − q(n) voters' agents must be left.
    pub(super) fn lose_record(&mut self, s: usize, back: bool) -> bool {
        let whole = |o: usize| {
            let site = &self.sites[o];
            let record = site.store.record.as_ref().filter(|r| r.seeded.is_some());
            let newest = record.is_some_and(|r| (r.epoch, r.seq()) >= self.truth.highest_at(o));
            newest && site.agents.iter().all(|a| a.missing.is_none())
        };
        let fine = |o: usize| self.sites[o].gone || !self.sites[o].store.written || whole(o);
        if !(0..self.sites.len()).all(fine) || !whole(s) {
            return false;
        }
        let Some(cluster) = self.clusters.last() else { return false };
        let Some(leader) = cluster.true_leader() else { return false };
        let conf = cluster.nodes[leader].conf();
        let n = conf.voter_count();
        let others = conf
            .voters()
            .map(|at| cluster.nodes[at].site)
            .filter(|site| *site != s && !self.sites[*site].gone);
        if others.count() <= n - quorum(n) || !self.may_destroy(s, None) {
            return false;
        }
        let store = &mut self.sites[s].store;
        let copy = store.copy.clone();
        if back
            && (copy.is_none() || copy.as_ref().map(|r| r.seq()) == store.record.as_ref().map(|r| r.seq()))
        {
            return false;
        }
        store.record = if back { copy } else { None };
        store.version += 1;
        self.truth.forgive(s);
        // The store is read at the start of an agent.
        self.sites[s].agents.clear();
        self.schedule(2_000, Event::StartAgent(s));
        true
    }

    /// A site burns down; after a while a person takes it out of the spec and declares its members lost.
    pub(super) fn lose_site(&mut self, s: usize) -> bool {
        let filled: Vec<usize> =
            (0..self.sites[s].volumes.len()).filter(|v| self.sites[s].volumes[*v].node.is_some()).collect();
        let spare = (0..self.sites.len()).any(|o| o != s && self.filled(o).is_none() && !self.sites[o].gone);
        let enough = self.sites.iter().filter(|o| !o.gone).count() > 3;
        let one = enough && matches!(filled.as_slice(), [_] if self.may_destroy(s, None));
        if !one
            || !spare
            || self.sites.iter().any(|site| site.gone)
            || self.sites.iter().any(|o| o.store.record.is_none())
        {
            return false;
        }
        self.sites[s].gone = true;
        self.sites[s].agents.clear();
        for v in filled {
            if let Some((c, at)) = self.sites[s].volumes[v].node {
                self.clusters[c].wipe(at);
            }
            self.sites[s].volumes[v].supervised = false;
        }
        self.truth.forgive(s);
        self.schedule(12_000, Event::DeclareLost(s));
        true
    }
}
