//! etcd's timers from the measured round-trip time (networking.md 7): one value for the whole federation, written down
//! with the ballot or with an activation, so that every site renders the same.

use serde::{Deserialize, Serialize};

use crate::federation::distance::Worst;
use crate::federation::spec::Spec;

/// With more than this between two voters no election ends in reasonable time: such a site may only have learners.
pub const MAX_VOTER_RTT_MS: u32 = 400;

/// Kubernetes' controllers give up their leases after ten seconds without a renewal.
pub const LEASE_RENEWAL_MS: u32 = 10_000;

/// What a federation agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// The round-trip time between the two sites that are farthest from each other, ms.
    pub rtt_ms: u32,
    /// etcd's heartbeat interval, ms.
    pub heartbeat_ms: u32,
    /// etcd's election timeout, ms.
    pub election_ms: u32,
}

impl Default for Timing {
    /// etcd's own defaults, which are those of near sites.
    fn default() -> Self {
        Self::from_rtt_us(0)
    }
}

impl Timing {
    /// For a worst round-trip time in microseconds: H = 1.2 R in steps of 50 ms from 100 to 500, E = 20 R in steps of
    /// 500 ms from 1 000 to 10 000. etcd asks for E of at least 10 R; the rest is room for jitter.
    pub const fn from_rtt_us(rtt_us: u32) -> Self {
        let whole = rtt_us / 1_000;
        // So large a time is far beyond both upper bounds.
        let bounded = if whole > 60_000 { 60_000 } else { whole };
        let heartbeat_ms = clamp((12 * bounded).div_ceil(10 * 50) * 50, 100, 500);
        let election_ms = clamp((20 * bounded).div_ceil(500) * 500, 1_000, 10_000);
        Self { rtt_ms: whole, heartbeat_ms, election_ms }
    }

    /// Whether both give the same timers, however the measurement trembled.
    pub const fn same_class(&self, other: &Self) -> bool {
        self.heartbeat_ms == other.heartbeat_ms && self.election_ms == other.election_ms
    }

    /// The one with the longer timers; it suits both.
    #[must_use]
    pub const fn longer(self, other: Self) -> Self {
        let (mine, theirs) = (self.election_ms, other.election_ms);
        if theirs > mine || (theirs == mine && other.heartbeat_ms > self.heartbeat_ms) { other } else { self }
    }
}

impl std::fmt::Display for Timing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rtt_ms, heartbeat_ms, election_ms } = self;
        write!(f, "heartbeat {heartbeat_ms} ms, election {election_ms} ms for {rtt_ms} ms")
    }
}

const fn clamp(value: u32, low: u32, high: u32) -> u32 {
    if value < low {
        low
    } else if value > high {
        high
    } else {
        value
    }
}

/// Heartbeat and election timeout in ms: what a person wrote wins over what was measured; without either etcd's defaults.
pub fn timers(spec: &Spec, measured: Option<Timing>) -> (u32, u32) {
    let auto = measured.unwrap_or_default();
    let etcd = spec.etcd.as_ref();
    let written = (etcd.and_then(|e| e.heartbeat_ms), etcd.and_then(|e| e.election_ms));
    match written {
        (Some(heartbeat), Some(election)) => (heartbeat, election),
        // etcd wants five heartbeats in an election timeout.
        (Some(heartbeat), None) => {
            (heartbeat, auto.election_ms.max(heartbeat.saturating_mul(5).div_ceil(500).saturating_mul(500)))
        }
        (None, Some(election)) => (auto.heartbeat_ms.min(election / 5), election),
        (None, None) => (auto.heartbeat_ms, auto.election_ms),
    }
}

/// Whether a measured value has any effect.
pub fn is_auto(spec: &Spec) -> bool {
    spec.etcd.as_ref().is_none_or(|etcd| etcd.heartbeat_ms.is_none() || etcd.election_ms.is_none())
}

/// The timing for a measured distance beside the effective one. Longer timers have to be due without the pauses of busy
/// machines too: for those nobody is restarted.
pub fn measured(effective: Option<Timing>, worst: &Worst) -> Timing {
    let (seen, likely) = (Timing::from_rtt_us(worst.rtt_us), Timing::from_rtt_us(worst.likely_us));
    match effective {
        Some(effective) if effective.longer(likely).same_class(&effective) => {
            if effective.longer(seen).same_class(&effective) { seen } else { effective }
        }
        Some(_) => seen,
        None => likely,
    }
}

/// The timing that a newly activated spec gets. Longer timers are taken at once, so that a far site that joins is born
/// with them; shorter ones wait until they have proven steady.
pub fn at_activation(effective: Option<Timing>, measured: Option<Timing>) -> Option<Timing> {
    match (effective, measured) {
        (Some(effective), Some(measured)) => Some(effective.longer(measured)),
        (effective, measured) => effective.or(measured),
    }
}

/// Deadline of one call of etcd and of the rules' "one request timeout" (rule I14), ms.
pub const fn deadline_ms(election_ms: u32, rtt_ms: u64) -> u64 {
    5_000 + 2 * election_ms as u64 + 4 * rtt_ms
}

/// A leader that is lost is replaced within three election timeouts; longer than Kubernetes' controllers wait.
pub const fn slow_failover(election_ms: u32) -> bool {
    election_ms.saturating_mul(3) > LEASE_RENEWAL_MS
}

/// Watches whether the measured class differs from the effective one for long enough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steady {
    since: Option<Since>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Since {
    at_ms: u64,
    rises: bool,
    /// The longest that was measured meanwhile: it suits all of them.
    longest: Timing,
}

impl Steady {
    /// Takes note of a measurement; the timing to activate once every one of the last `after_ms` was longer than the
    /// effective one, or every one was shorter. No measurement proves nothing and begins anew.
    pub fn note(
        &mut self,
        now_ms: u64,
        after_ms: u64,
        effective: Timing,
        measured: Option<Timing>,
    ) -> Option<Timing> {
        let Some(measured) = measured.filter(|measured| !measured.same_class(&effective)) else {
            self.since = None;
            return None;
        };
        let rises = effective.longer(measured).same_class(&measured);
        let since = match self.since.filter(|since| since.rises == rises) {
            Some(since) => Since { longest: since.longest.longer(measured), ..since },
            None => Since { at_ms: now_ms, rises, longest: measured },
        };
        self.since = Some(since);
        (now_ms.saturating_sub(since.at_ms) >= after_ms).then_some(since.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(rtt_ms: u32) -> Timing {
        Timing::from_rtt_us(rtt_ms * 1_000)
    }

    fn spec(etcd: &str) -> Spec {
        serde_json::from_str(&format!(r#"{{"clusters": [{{"name": "a"}}], "etcd": {etcd}}}"#)).unwrap()
    }

    /// The table of networking.md 7.
    #[test]
    fn the_table() {
        let rows = [
            (0, 100, 1_000),
            (10, 100, 1_000),
            (50, 100, 1_000),
            (51, 100, 1_500),
            (100, 150, 2_000),
            (250, 300, 5_000),
            (400, 500, 8_000),
            (600, 500, 10_000),
            (4_000_000, 500, 10_000),
        ];
        for (rtt, heartbeat, election) in rows {
            let t = timing(rtt);
            assert_eq!((t.heartbeat_ms, t.election_ms), (heartbeat, election), "{rtt} ms");
            assert!(t.election_ms >= 5 * t.heartbeat_ms && t.election_ms <= 50_000);
        }
        assert_eq!(Timing::from_rtt_us(50_999), Timing { rtt_ms: 50, heartbeat_ms: 100, election_ms: 1_000 });
        let deadlines = [(10, 7_040), (50, 7_200), (100, 9_400), (250, 16_000), (400, 22_600)];
        for (rtt, deadline) in deadlines {
            assert_eq!(deadline_ms(timing(rtt).election_ms, u64::from(rtt)), deadline, "{rtt} ms");
        }
        assert!(!slow_failover(timing(150).election_ms) && slow_failover(timing(200).election_ms));
    }

    #[test]
    fn what_a_person_wrote_wins() {
        let far = Some(timing(250));
        assert_eq!(timers(&spec("{}"), far), (300, 5_000));
        assert_eq!(timers(&spec("{}"), None), (100, 1_000));
        assert_eq!(timers(&spec(r#"{"heartbeatMs": 200, "electionMs": 3000}"#), far), (200, 3_000));
        assert_eq!(timers(&spec(r#"{"heartbeatMs": 150}"#), far), (150, 5_000));
        assert_eq!(timers(&spec(r#"{"heartbeatMs": 150}"#), None), (150, 1_000));
        assert_eq!(timers(&spec(r#"{"electionMs": 1200}"#), far), (240, 1_200));
        assert!(is_auto(&spec("{}")) && is_auto(&spec(r#"{"electionMs": 1200}"#)));
        assert!(!is_auto(&spec(r#"{"heartbeatMs": 200, "electionMs": 3000}"#)));
    }

    #[test]
    fn a_new_spec_takes_longer_timers_at_once_and_shorter_ones_never() {
        let (near, far) = (Some(timing(10)), Some(timing(250)));
        assert_eq!(at_activation(near, far), far);
        assert_eq!(at_activation(far, near), far);
        assert_eq!(at_activation(None, near), near);
        assert_eq!(at_activation(far, None), far);
    }

    #[test]
    fn pauses_of_machines_make_no_longer_timers() {
        let worst = |rtt_ms: u32, likely_ms: u32| Worst {
            rtt_us: rtt_ms * 1_000,
            likely_us: likely_ms * 1_000,
            unknown: None,
        };
        let (near, far) = (timing(10), timing(110));
        assert_eq!(measured(None, &worst(600, 20)), timing(20));
        assert_eq!(measured(Some(near), &worst(600, 20)), near);
        assert_eq!(measured(Some(near), &worst(250, 60)), timing(250), "the way got longer a moment ago");
        assert_eq!(measured(Some(far), &worst(110, 100)), far, "it got shorter a moment ago");
        assert_eq!(measured(Some(far), &worst(40, 40)), timing(40));
    }

    #[test]
    fn only_a_steady_difference_counts() {
        let (near, far, farther) = (timing(10), timing(110), timing(140));
        let mut steady = Steady::default();
        assert_eq!(steady.note(0, 600, near, Some(far)), None);
        assert_eq!(steady.note(500, 600, near, Some(farther)), None);
        // One look that agrees with what is effective, or none at all, and it begins anew.
        assert_eq!(steady.note(550, 600, near, Some(timing(20))), None);
        assert_eq!(steady.note(600, 600, near, Some(far)), None);
        assert_eq!(steady.note(700, 600, near, None), None);
        assert_eq!(steady.note(1_000, 600, near, Some(far)), None);
        assert_eq!(steady.note(1_300, 600, near, Some(farther)), None);
        // The longest of all suits each.
        assert_eq!(steady.note(1_600, 600, near, Some(far)), Some(farther));
        // Above and below are not one steady difference.
        let mut steady = Steady::default();
        assert_eq!(steady.note(0, 600, far, Some(near)), None);
        assert_eq!(steady.note(300, 600, far, Some(farther)), None);
        assert_eq!(steady.note(800, 600, far, Some(near)), None);
        assert_eq!(steady.note(1_300, 600, far, Some(near)), None);
        assert_eq!(steady.note(1_400, 600, far, Some(near)), Some(near));
    }
}
