//! What goes wrong: generated from the seed before the history begins, so that the list can be shrunk.

use super::agent::Agent;
use super::rng::Rng;
use super::world::World;

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
        let Some((at, ms)) = armed.iter().enumerate().find_map(|(at, a)| Some((at, fits(a)?))) else {
            return 0;
        };
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
}
