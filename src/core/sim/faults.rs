//! What goes wrong: generated from the seed before the history begins, so that the list can be shrunk.

use super::agent::Agent;
use super::rng::Rng;
use super::site::Cr;
use super::world::{Event, World};
use crate::federation::member::{IncarnationState, Process};
use crate::membership::quorum::quorum;

/// The kinds of IO steps at which an agent can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// Writing the record.
    Persist,
    /// A call of etcd.
    Etcd,
    /// A message to another agent or a supervisor.
    Peer,
}

/// Before or after it takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// It does not happen.
    Before,
    /// It happens, and nobody learns of it.
    After,
}

/// A fault that waits for the next IO step of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// The step fails; the agent may die of it.
    Step(Io, When, bool),
    /// The agent pauses between the fence and the call, ms.
    PauseBeforeSend(u64),
    /// The proposal is on its way for so long, ms.
    LateCall(u64),
    /// The storage of the next new member is bad.
    BadStorage,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The link is cut for so long, ms: from, to, both ways.
    Cut(usize, usize, bool, u64),
    /// A site is cut off for so long.
    CutOff(usize, u64),
    /// Messages get lost, doubled and late for so long: percent.
    BadNetwork(u64, u64),
    /// The agent ends and starts again.
    CrashAgent(usize),
    /// The agent process is stopped for so long.
    PauseAgent(usize, u64),
    /// A second agent of the site is alive for so long.
    SecondAgent(usize, u64),
    /// Something fails at the next IO step.
    Arm(usize, Armed),
    /// A member's process is killed; the machine stays off for so long.
    Kill(usize, u64),
    /// The leader's process is killed.
    KillLeader(u64),
    /// A member does not fsync for so long, and is then killed.
    NoFsync(usize, u64),
    /// A member takes few entries for so long.
    Slow(usize, u64),
    /// A data directory is emptied.
    Wipe(usize),
    /// A volume is lost with everything on it.
    LoseVolume(usize),
    /// An older copy of the directory comes back.
    OldCopy(usize, usize),
    /// The record is lost.
    LoseRecord(usize),
    /// An older copy of the record comes back.
    RollBackRecord(usize),
    /// The site holds another spec for so long.
    Drift(usize, u64),
    /// The user changes his mind.
    Edit(usize),
    /// The wall clock jumps, ms.
    ClockJump(usize, i64),
    /// Nobody has a young backup any more.
    OldBackups,
    /// The quota is reached for so long.
    NoSpace(u64),
    /// A defragmentation runs for so long.
    Maintenance(usize, u64),
    /// The etcd of the site is older for so long.
    OlderEtcd(usize, u64),
    /// The certificates of the site end soon, for so long.
    CertificatesEnd(usize, u64),
    /// The site is gone for good; a person then says so.
    Gone(usize),
    /// The site gets another address.
    Readdress(usize),
}

/// A fault and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// World time, ms.
    pub at: u64,
    /// What.
    pub fault: Fault,
}

/// Draws a history's faults: three to seven.
pub fn generate(rng: &mut Rng, sites: usize, from: u64, to: u64) -> Vec<Timed> {
    let count = rng.range(3, 8);
    let mut faults: Vec<Timed> =
        (0..count).map(|_| Timed { at: rng.range(from, to), fault: draw(rng, sites) }).collect();
    faults.sort_by_key(|timed| timed.at);
    faults
}

fn draw(rng: &mut Rng, sites: usize) -> Fault {
    let pick = |rng: &mut Rng| usize::try_from(rng.below(sites as u64)).unwrap_or(0);
    let s = pick(rng);
    let ms = rng.range(2_000, 14_000);
    let io = [Io::Persist, Io::Etcd, Io::Peer];
    let step = |rng: &mut Rng| {
        let when = if rng.chance(50) { When::Before } else { When::After };
        let kind = rng.pick(&io).copied().unwrap_or(Io::Persist);
        Armed::Step(kind, when, rng.chance(50))
    };
    match rng.below(100) {
        0..=9 => Fault::Cut(s, pick(rng), rng.chance(50), ms),
        10..=14 => Fault::CutOff(s, ms),
        15..=20 => Fault::BadNetwork(rng.range(5, 30), ms),
        21..=26 => Fault::CrashAgent(s),
        27..=30 => Fault::PauseAgent(s, ms),
        31..=34 => Fault::SecondAgent(s, ms),
        35..=52 => Fault::Arm(s, step(rng)),
        53..=55 => Fault::Arm(s, Armed::PauseBeforeSend(rng.range(200, 6_000))),
        56..=58 => Fault::Arm(s, Armed::LateCall(rng.range(500, 20_000))),
        59..=60 => Fault::Arm(s, Armed::BadStorage),
        61..=66 => Fault::Kill(s, ms),
        67..=70 => Fault::KillLeader(ms),
        71..=72 => Fault::NoFsync(s, ms),
        73..=74 => Fault::Slow(s, ms),
        75..=77 => Fault::Wipe(s),
        78..=79 => Fault::LoseVolume(s),
        80..=81 => Fault::OldCopy(s, usize::try_from(rng.range(2, 24)).unwrap_or(1)),
        82..=83 => Fault::LoseRecord(s),
        84..=85 => Fault::RollBackRecord(s),
        86..=88 => Fault::Drift(s, ms),
        89..=90 => Fault::Edit(s),
        91 => Fault::ClockJump(s, i64::try_from(rng.below(4_000_000)).unwrap_or(0) - 2_000_000),
        92 => Fault::OldBackups,
        93 => Fault::NoSpace(ms),
        94 => Fault::Maintenance(s, ms),
        95 => Fault::OlderEtcd(s, ms),
        96 => Fault::CertificatesEnd(s, ms),
        97..=98 => Fault::Gone(s),
        _ => Fault::Readdress(s),
    }
}

impl World {
    /// Whether an armed fault strikes at this IO step. True: the step fails.
    pub fn io(&mut self, s: usize, agent: &mut Agent, kind: Io, when: When) -> bool {
        let armed = &mut self.sites[s].armed;
        if armed.is_empty() {
            return false;
        }
        let strikes = |a: &Armed| matches!(a, Armed::Step(k, w, _) if *k == kind && *w == when);
        let Some(at) = armed.iter().position(strikes) else { return false };
        if let Armed::Step(_, _, deadly) = armed.remove(at) {
            agent.dies |= deadly;
            self.note(|| format!("fault strikes {when:?} {kind:?}, deadly {deadly}"), Some(s));
        }
        true
    }

    fn take_armed(&mut self, s: usize, fits: impl Fn(&Armed) -> Option<u64>) -> u64 {
        let armed = &mut self.sites[s].armed;
        let Some((at, ms)) = armed.iter().enumerate().find_map(|(at, a)| Some((at, fits(a)?))) else { return 0 };
        armed.remove(at);
        ms
    }

    /// A pause of the agent between fence and call.
    pub fn pause_before_send(&mut self, s: usize) -> u64 {
        self.take_armed(s, |a| if let Armed::PauseBeforeSend(ms) = a { Some(*ms) } else { None })
    }

    /// How long a proposal is on its way.
    pub fn late_call(&mut self, s: usize) -> u64 {
        self.take_armed(s, |a| if let Armed::LateCall(ms) = a { Some(*ms) } else { None })
    }

    /// Whether the storage of a new member is bad.
    pub fn fresh_storage_fault(&mut self, s: usize) -> bool {
        self.take_armed(s, |a| matches!(a, Armed::BadStorage).then_some(1)) > 0
    }

    /// Members of a site may only be destroyed if a majority of intact ones remains: beyond that no software can help.
    fn may_destroy(&self, s: usize, volume: Option<usize>) -> bool {
        let Some(cluster) = self.clusters.last() else { return false };
        let Some(leader) = cluster.true_leader() else { return false };
        let conf = cluster.nodes[leader].conf();
        let one = volume.and_then(|v| self.sites[s].volumes[v].node).map(|(_, at)| at);
        let goes = |at: usize| one.map_or(cluster.nodes[at].site == s, |one| one == at);
        let intact = conf.voters().filter(|at| !goes(*at) && !self.doomed(&cluster.nodes[*at]));
        // Also after a promotion that may be under way.
        let learners = conf.members.len() - conf.voter_count();
        let promoted = |at: usize| self.being_promoted(cluster.nodes[at].id);
        let here = conf.members.iter().any(|(at, learner)| goes(*at) && (!learner || promoted(*at)));
        // Also after a removal that may be on its way.
        let going = |at: &usize| self.being_removed(cluster.nodes[*at].id);
        let rest = intact.clone().filter(|at| !going(at)).count();
        let removal = !conf.voters().any(|at| going(&at)) || rest >= quorum(conf.voter_count() - 1);
        !here || (removal && intact.count() >= quorum(conf.voter_count() + learners))
    }

    fn without_record(&self, s: usize) -> bool {
        let site = &self.sites[s];
        let record = site.store.record.as_ref();
        record.is_none_or(|r| (r.epoch, r.seq()) < self.truth.highest_at(s))
            || site.agents.iter().any(|agent| agent.missing.is_some())
    }

    /// Its removal is acknowledged somewhere and may be on its way.
    fn being_removed(&self, id: crate::id::MemberId) -> bool {
        let held = self.sites.iter().filter_map(|site| site.store.record.as_ref()?.intent.as_ref());
        held.filter(|held| held.open()).any(|held| {
            matches!(held.intent.kind, crate::intent::IntentKind::Remove { member, .. } if member == id)
        })
    }

    /// Its promotion is acknowledged somewhere and may be on its way.
    fn being_promoted(&self, id: crate::id::MemberId) -> bool {
        let held = self.sites.iter().filter_map(|site| site.store.record.as_ref()?.intent.as_ref());
        held.filter(|held| held.open()).any(|held| {
            matches!(held.intent.kind, crate::intent::IntentKind::Promote { member } if member == id)
        })
    }

    /// A member that is lost, or whose agent has lost the record that proves it.
    fn doomed(&self, node: &super::etcd::Node) -> bool {
        let site = &self.sites[node.site];
        let record = site.store.record.is_none() || site.agents.iter().any(|agent| agent.missing.is_some());
        !node.started || self.truth.lost(node) || self.attested_lost(node.id) || (record && !node.running)
    }

    fn filled(&self, s: usize) -> Option<usize> {
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

    fn apply_fault(&mut self, fault: Fault) -> bool {
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
                let Some(v) = self.sites[s].volumes.iter().position(|v| v.node == Some(node)) else { return false };
                self.kill(s, v, ms)
            }
            Fault::NoFsync(..) | Fault::Slow(..) | Fault::Wipe(_) | Fault::LoseVolume(_) | Fault::OldCopy(..) => {
                self.storage_fault(fault)
            }
            Fault::LoseRecord(s) => self.lose_record(s, false),
            Fault::RollBackRecord(s) => self.lose_record(s, true),
            Fault::Drift(s, ms) => {
                let Some(cr) = self.sites[s].cr.as_ref() else { return false };
                let mut spec = cr.spec.as_ref().clone();
                spec.etcd.get_or_insert_default().quota_bytes = Some(1 << 32);
                self.sites[s].cr = Cr::new(spec, &self.key);
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
                let Some(volume) = self.sites[s].volumes.iter_mut().find(|v| v.node.is_some()) else { return false };
                volume.url = crate::id::PeerUrl(volume.url.0.replace(":2380", ":2381").into());
                true
            }
        }
    }

    fn storage_fault(&mut self, fault: Fault) -> bool {
        let (Fault::NoFsync(s, _) | Fault::Slow(s, _) | Fault::Wipe(s) | Fault::LoseVolume(s) | Fault::OldCopy(s, _)) =
            fault
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
                let marked = self.sites[s].volumes[v].outside.as_ref().is_some_and(|o| o.mark.index.0 > behind);
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

    fn kill(&mut self, s: usize, v: usize, ms: u64) -> bool {
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
    fn lose_record(&mut self, s: usize, back: bool) -> bool {
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
        let others = conf.voters().map(|at| cluster.nodes[at].site).filter(|site| *site != s && !self.sites[*site].gone);
        if others.count() <= n - quorum(n) || !self.may_destroy(s, None) {
            return false;
        }
        let store = &mut self.sites[s].store;
        let copy = store.copy.clone();
        if back && (copy.is_none() || copy.as_ref().map(|r| r.seq()) == store.record.as_ref().map(|r| r.seq())) {
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
    fn lose_site(&mut self, s: usize) -> bool {
        let filled: Vec<usize> = (0..self.sites[s].volumes.len()).filter(|v| self.sites[s].volumes[*v].node.is_some()).collect();
        let spare = (0..self.sites.len()).any(|o| o != s && self.filled(o).is_none() && !self.sites[o].gone);
        let enough = self.sites.iter().filter(|o| !o.gone).count() > 3;
        let one = enough && matches!(filled.as_slice(), [_] if self.may_destroy(s, None));
        if !one || !spare || self.sites.iter().any(|site| site.gone) || self.sites.iter().any(|o| o.store.record.is_none()) {
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

    /// Whether any record of a site attests that a life is lost.
    pub fn attested_lost(&self, id: crate::id::MemberId) -> bool {
        self.sites.iter().filter_map(|site| site.store.record.as_ref()).any(|record| {
            record.incarnations.iter().any(|i| i.member == Some(id) && i.state == IncarnationState::Lost)
        })
    }
}
