//! What a fault may not do: more than any software could mend. A majority of intact directories always remains, and
//! whatever a rule leaves to a person has a person.

use super::etcd::Node;
use super::world::World;
use crate::federation::member::IncarnationState;
use crate::membership::quorum::quorum;

impl World {
    /// Members of a site may only be destroyed if a majority of intact ones remains: beyond that no software can help.
    pub(super) fn may_destroy(&self, s: usize, volume: Option<usize>) -> bool {
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

    pub(super) fn without_record(&self, s: usize) -> bool {
        let site = &self.sites[s];
        let record = site.store.record.as_ref();
        record.is_none_or(|r| (r.epoch, r.seq()) < self.truth.highest_at(s))
            || site.agents.iter().any(|agent| agent.missing.is_some())
    }

    /// Its removal is acknowledged somewhere and may be on its way.
    pub(super) fn being_removed(&self, id: crate::id::MemberId) -> bool {
        let held = self.sites.iter().filter_map(|site| site.store.record.as_ref()?.intent.as_ref());
        held.filter(|held| held.open()).any(|held| {
            matches!(held.intent.kind, crate::intent::IntentKind::Remove { member, .. } if member == id)
        })
    }

    /// Its promotion is acknowledged somewhere and may be on its way.
    pub(super) fn being_promoted(&self, id: crate::id::MemberId) -> bool {
        let held = self.sites.iter().filter_map(|site| site.store.record.as_ref()?.intent.as_ref());
        held.filter(|held| held.open()).any(
            |held| matches!(held.intent.kind, crate::intent::IntentKind::Promote { member } if member == id),
        )
    }

    /// A member that is lost, or whose agent has lost the record that proves it.
    pub(super) fn doomed(&self, node: &Node) -> bool {
        let site = &self.sites[node.site];
        let record = site.store.record.is_none() || site.agents.iter().any(|agent| agent.missing.is_some());
        !node.started || self.truth.lost(node) || self.attested_lost(node.id) || (record && !node.running)
    }

    /// Whether any record of a site attests that a life is lost.
    pub fn attested_lost(&self, id: crate::id::MemberId) -> bool {
        self.sites.iter().filter_map(|site| site.store.record.as_ref()).any(|record| {
            record.incarnations.iter().any(|i| i.member == Some(id) && i.state == IncarnationState::Lost)
        })
    }
}
