//! Who reaches whom, and since when a server counts a peer as connected.

use super::{At, BLACKHOLE_MS, Cluster, HEALTH_MS, INACTIVE};

impl Cluster {
    /// Cuts or mends the way from one site to another.
    pub fn set_link(&mut self, from: usize, to: usize, up: bool) {
        if let Some(bits) = self.cut.get_mut(from) {
            if up {
                *bits &= !(1 << to);
            } else {
                *bits |= 1 << to;
            }
        }
        self.refresh_links();
    }

    /// Whether what member a sends arrives at member b.
    pub fn reaches(&self, a: At, b: At) -> bool {
        let (Some(from), Some(to)) = (self.nodes.get(a), self.nodes.get(b)) else {
            return false;
        };
        from.running
            && to.running
            && (from.site == to.site || self.cut.get(from.site).is_none_or(|bits| bits & (1 << to.site) == 0))
            && !to.conf.gone.contains(&from.id)
    }

    pub(super) fn both_ways(&self, a: At, b: At) -> bool {
        a == b || (self.reaches(a, b) && self.reaches(b, a))
    }

    /// Brings the transports up to date after processes, links or lists changed.
    pub(super) fn refresh_links(&mut self) {
        let (count, now) = (self.nodes.len(), self.now);
        for a in 0..count {
            for b in 0..count {
                let up = a != b && self.both_ways(a, b);
                let peer_runs = self.nodes.get(b).is_some_and(|n| n.running);
                let Some(node) = self.nodes.get_mut(a) else {
                    continue;
                };
                node.active.resize(count, INACTIVE);
                let runs = node.running;
                let Some(stream) = node.active.get_mut(b) else {
                    continue;
                };
                let active = stream.ends > now;
                if up {
                    if !active {
                        stream.since = now;
                    }
                    stream.ends = u64::MAX;
                } else if !peer_runs || !runs {
                    *stream = INACTIVE;
                } else if stream.ends == u64::MAX {
                    stream.ends = now + BLACKHOLE_MS;
                }
            }
        }
    }

    /// Since when the server of one member has had an active stream to another.
    pub(super) fn active_since(&self, at: At, peer: At) -> Option<u64> {
        if at == peer {
            return Some(0);
        }
        let stream = self.nodes.get(at)?.active.get(peer)?;
        (stream.ends > self.now).then_some(stream.since)
    }

    /// Voters that the server of one member counts as connected for at least `HealthInterval`.
    pub(super) fn connected(&self, at: At) -> usize {
        let Some(node) = self.nodes.get(at) else { return 0 };
        let healthy = |peer: &At| {
            *peer == at || self.active_since(at, *peer).is_some_and(|since| since + HEALTH_MS <= self.now)
        };
        node.conf.voters().filter(healthy).count()
    }
}
