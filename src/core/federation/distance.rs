//! How far members and sites are from each other: what each agent measured, without the trembling, and the worst pair.

use std::collections::VecDeque;

use crate::federation::observed::SiteObservation;
use crate::id::{MemberId, SiteName};

/// Only what was measured within this time counts (networking.md 7).
const WINDOW_MS: u64 = 60_000;

/// So many samples are kept however old they are while new ones come: calm probes are fifteen seconds apart.
const KEPT: usize = 8;

/// From so few samples nothing is concluded: one pause of a busy machine would be taken for distance.
const ENOUGH: usize = 5;

/// How far something is, as measured over the last minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Distance {
    /// The 99th percentile, microseconds: what timers have to bear.
    pub rtt_us: u32,
    /// The shortest, microseconds: what no pause of a machine can have made longer.
    pub least_us: u32,
}

/// A round trip that takes more than twice the shortest one and this tells of a machine that pauses, not of a way: voters are
/// not restarted with other timers for it.
const PAUSES_US: u32 = 20_000;

/// The round-trip times of one link over the last minute, and what others are told of them.
#[derive(Debug, Clone, Default)]
pub struct Window {
    samples: VecDeque<(u64, u32)>,
    told: Option<Distance>,
}

impl Window {
    /// Takes note of a round trip that was complete at `now_ms`.
    pub fn add(&mut self, now_ms: u64, rtt_us: u32) {
        self.samples.push_back((now_ms, rtt_us.max(1)));
        let old = |sample: Option<&(u64, u32)>| {
            sample.is_some_and(|(at, _)| now_ms.saturating_sub(*at) > WINDOW_MS)
        };
        while self.samples.len() > KEPT && old(self.samples.front()) {
            self.samples.pop_front();
        }
        let samples = || self.samples.iter().map(|(_, us)| *us);
        let (Some(rtt_us), Some(least_us)) = (percentile(samples()), samples().min()) else { return };
        // A number that trembles would be a change with each sample, and news for every other site: only a clear one
        // counts.
        let clear = |now: u32, told: u32| now.abs_diff(told) > told / 8 + 500;
        if self.told.is_none_or(|told| clear(rtt_us, told.rtt_us) || clear(least_us, told.least_us)) {
            self.told = Some(Distance { rtt_us, least_us });
        }
    }

    /// The distance that is told; none before the first sample.
    pub const fn told(&self) -> Option<Distance> {
        self.told
    }

    /// The same, only if there are enough samples and the newest is not older than the window.
    pub fn proven(&self, now_ms: u64) -> Option<Distance> {
        let young = self.samples.back().is_some_and(|(at, _)| now_ms.saturating_sub(*at) <= WINDOW_MS);
        self.told.filter(|_| young && self.samples.len() >= ENOUGH)
    }

    /// Whether there are enough samples to conclude something.
    pub fn enough(&self) -> bool {
        self.samples.len() >= ENOUGH
    }
}

/// The 99th percentile. Of few samples that would be the largest one, which tells of a pause of some machine rather
/// than of distance: at least one is left out, of very few a quarter.
fn percentile(samples: impl Iterator<Item = u32>) -> Option<u32> {
    let mut sorted: Vec<u32> = samples.collect();
    sorted.sort_unstable();
    let n = sorted.len();
    let left_out = if n < 20 { n / 4 } else { (n / 100).max(1) };
    sorted.get(n.checked_sub(1 + left_out)?).copied()
}

/// What is said of the distance between sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worst {
    /// The largest round-trip time between two of the sites that is known, microseconds; zero for one site.
    pub rtt_us: u32,
    /// The same without what tells of machines that pause.
    pub likely_us: u32,
    /// A pair that nobody has measured.
    pub unknown: Option<(SiteName, SiteName)>,
}

/// The worst pair of some sites.
pub fn worst<'a>(
    sites: &[SiteName],
    observation: impl Fn(&SiteName) -> Option<&'a SiteObservation> + Copy,
) -> Worst {
    let mut worst = Worst { rtt_us: 0, likely_us: 0, unknown: None };
    for (i, a) in sites.iter().enumerate() {
        for b in sites.iter().skip(i + 1) {
            match between(a, b, observation) {
                Some(rtt_us) => {
                    let least_us = least_between(a, b, observation);
                    let most_us =
                        least_us.map_or(u32::MAX, |us| us.saturating_mul(2).saturating_add(PAUSES_US));
                    worst.rtt_us = worst.rtt_us.max(rtt_us);
                    worst.likely_us = worst.likely_us.max(rtt_us.min(most_us));
                }
                None => {
                    worst.unknown.get_or_insert_with(|| (a.clone(), b.clone()));
                }
            }
        }
    }
    worst
}

/// The round-trip time between two sites, microseconds: by their probes of each other's members, and before there are
/// any by the link of their agents. The slower direction counts.
pub fn between<'a>(
    a: &SiteName,
    b: &SiteName,
    observation: impl Fn(&SiteName) -> Option<&'a SiteObservation>,
) -> Option<u32> {
    if a == b {
        return Some(0);
    }
    let (here, there) = (observation(a), observation(b));
    let probed = |from: Option<&SiteObservation>, to: Option<&SiteObservation>| {
        let (from, to) = (from?, to?);
        to.members.iter().filter_map(|m| row(from, m.member?)).max()
    };
    let by_members = probed(here, there).max(probed(there, here));
    let linked = |from: Option<&SiteObservation>, to: &SiteName| {
        from?.peers.iter().find(|peer| peer.site == *to).map(|peer| peer.rtt_us)
    };
    by_members.or_else(|| linked(here, b).max(linked(there, a)))
}

/// The shortest round trip between two sites in the last minute, microseconds, by whatever measured it: a machine that
/// is slow to answer makes a way longer and never shorter.
pub fn least_between<'a>(
    a: &SiteName,
    b: &SiteName,
    observation: impl Fn(&SiteName) -> Option<&'a SiteObservation>,
) -> Option<u32> {
    if a == b {
        return Some(0);
    }
    let one_way = |from: &SiteName, to: &SiteName| {
        let (from, there) = (observation(from)?, observation(to));
        let probed = there.into_iter().flat_map(|o| &o.members).filter_map(|m| from.link(m.member?));
        let linked = from.peers.iter().filter(|peer| peer.site == *to);
        let each = probed.filter(|link| link.up()).map(|link| link.least_us);
        each.chain(linked.map(|peer| peer.least_us)).filter(|us| *us > 0).min()
    };
    one_way(a, b).into_iter().chain(one_way(b, a)).min()
}

/// What a site's own probes say of a member, microseconds.
pub fn row(from: &SiteObservation, member: MemberId) -> Option<u32> {
    from.link(member).filter(|link| link.up() && link.rtt_us > 0).map(|link| link.rtt_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::federation::observed::PeerLink;

    fn site(name: &str) -> SiteName {
        SiteName::new(name).unwrap()
    }

    #[test]
    fn one_pause_is_no_distance_and_trembling_is_no_news() {
        let mut window = Window::default();
        assert_eq!((window.told().map(|d| d.rtt_us), window.enough()), (None, false));
        for (i, us) in [900, 70_000, 1_000, 1_100].into_iter().enumerate() {
            window.add(i as u64 * 200, us);
        }
        assert_eq!(window.proven(800), None, "four samples are too few");
        window.add(800, 1_050);
        assert_eq!(window.proven(800), Some(Distance { rtt_us: 1_100, least_us: 900 }));
        for at in 5..60 {
            window.add(at * 200, 1_050 + u32::try_from(at % 7).unwrap() * 40);
            assert_eq!(window.told().map(|d| d.rtt_us), Some(1_100), "at {at}");
        }
        assert_eq!(window.proven(80_000), None, "nothing is proven by old samples");
        // The way is longer now: after a while the window holds nothing else.
        for at in 60..400 {
            window.add(at * 200, 120_000);
        }
        assert_eq!(window.told().map(|d| d.rtt_us), Some(120_000));
    }

    #[test]
    fn the_largest_hundredth_is_left_out() {
        assert_eq!(percentile((1..=1_000).rev()), Some(990));
        assert_eq!(percentile(1..=30), Some(29));
        assert_eq!(percentile(1..=8), Some(6));
        assert_eq!(percentile(1..=3), Some(3));
        assert_eq!(percentile(std::iter::empty()), None);
    }

    #[test]
    fn the_worst_pair_counts_and_an_unknown_one_is_named() {
        let row = |to: &str, ms: u32| PeerLink { site: site(to), rtt_us: ms * 1_000, least_us: ms * 500 };
        let said = |name: &str, peers: Vec<PeerLink>| SiteObservation {
            peers,
            ..SiteObservation::empty(site(name))
        };
        let all = [
            said("a", vec![row("b", 10), row("c", 80)]),
            said("b", vec![row("a", 12)]),
            said("c", vec![row("a", 75)]),
        ];
        let find = |name: &SiteName| all.iter().find(|o| o.site == *name);
        assert_eq!(between(&site("a"), &site("b"), find), Some(12_000));
        assert_eq!(between(&site("b"), &site("c"), find), None);
        assert_eq!(
            least_between(&site("b"), &site("a"), find),
            Some(5_000),
            "the shortest of both directions"
        );
        assert_eq!(least_between(&site("b"), &site("c"), find), None);
        let sites = [site("a"), site("b"), site("c")];
        let found = worst(&sites, find);
        assert_eq!(found, Worst { rtt_us: 80_000, likely_us: 80_000, unknown: Some((site("b"), site("c"))) });
        assert_eq!(worst(&sites[..1], find), Worst { rtt_us: 0, likely_us: 0, unknown: None });
        let pausing = PeerLink { site: site("b"), rtt_us: 600_000, least_us: 1_500 };
        let paused = said("a", vec![pausing]);
        let two = [paused, said("b", vec![])];
        let find = |name: &SiteName| two.iter().find(|o| o.site == *name);
        assert_eq!(worst(&sites[..2], find).likely_us, 23_000, "a busy machine is not a far one");
    }
}
