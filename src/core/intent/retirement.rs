//! A site that is taken out of the spec (decisions.md 4): who has a part in a federation, who had one, and what such a
//! site is told. It serves until its member is removed; afterwards nothing of it runs, and its volume stays.

use serde::{Deserialize, Serialize};

use crate::federation::member::IncarnationState;
use crate::federation::observed::RecordSummary;
use crate::federation::spec::Spec;
use crate::id::{Epoch, Generation, MemberId, SiteName, Uid};
use crate::intent::record::{Activated, Record};

/// What a site that had a part once is told by those that have one now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retired {
    /// The federation.
    pub uid: Uid,
    /// Its epoch.
    pub epoch: Epoch,
    /// The effective generation: it does not name the site.
    pub generation: Generation,
    /// Ids that were removed (rule I6): what lies in the site's directories under one of them is over.
    pub removed: Vec<MemberId>,
}

impl Record {
    /// Makes a spec effective. The sites that it does not name any more are remembered: they have to be told.
    pub(super) fn activate(&mut self, activated: Activated) {
        let before = self.effective.iter().flat_map(|old| old.spec.sites().cloned());
        self.former.extend(before);
        self.former.retain(|site| !activated.spec.has_site(site));
        self.effective = Some(std::sync::Arc::new(activated));
    }

    /// The record with what the effective spec says of the own site, if it says something new. A retirement by a
    /// generation that is not known here holds until a later one is.
    pub fn standing(&self, me: &SiteName) -> Option<Self> {
        let effective = self.effective.as_ref()?;
        let retired = match self.retired {
            Some(generation) if generation > effective.generation => Some(generation),
            _ if effective.spec.has_site(me) || !self.had_a_part(me) => None,
            _ => Some(effective.generation),
        };
        (retired != self.retired).then(|| Self { retired, ..self.clone() })
    }

    /// A site that is about to come learns the effective spec before there is one that names it: nobody can be taken out
    /// before he was in.
    fn had_a_part(&self, me: &SiteName) -> bool {
        self.retired.is_some() || self.former.contains(me) || !self.incarnations.is_empty()
    }

    /// What a site is told, if it had a part once and the effective spec does not name it.
    pub fn retirement_of(&self, site: &SiteName) -> Option<Retired> {
        let effective = self.effective.as_ref().filter(|_| self.former.contains(site))?;
        let removed = self.removed.iter().copied().collect();
        Some(Retired { uid: self.uid?, epoch: self.epoch, generation: effective.generation, removed })
    }

    /// Takes note of being told so. A generation below the own effective one is an old message: it no longer holds.
    pub fn retire(&self, told: &Retired) -> Option<Self> {
        let same = self.uid == Some(told.uid) && self.epoch == told.epoch;
        let mine = self.effective.as_ref().map_or(Generation(0), |e| e.generation);
        let holds = told.generation > mine || (told.generation == mine && self.retired.is_some());
        if !same || !holds {
            return None;
        }
        let mut next = self.clone();
        next.retired = self.retired.max(Some(told.generation));
        next.removed.extend(&told.removed);
        (next != *self).then_some(next)
    }

    /// Takes over which sites had a part before this one did: a site that came later must be able to tell them.
    pub fn catch_up_former(&self, told: &RecordSummary) -> Option<Self> {
        let effective = self.effective.as_ref()?;
        let same = self.uid.is_some() && told.uid == self.uid && told.epoch == self.epoch && !told.missing;
        // Only of the same spec: another one may name a site that this one does not.
        let current = same && told.generation == effective.generation;
        let missed =
            |site: &&SiteName| current && !self.former.contains(*site) && !effective.spec.has_site(site);
        let missed: Vec<SiteName> = told.former.iter().filter(missed).cloned().collect();
        (!missed.is_empty()).then(|| {
            let mut next = self.clone();
            next.former.extend(missed);
            next
        })
    }

    /// The site was taken out, and nothing of it is left but what was archived.
    pub fn departed(&self) -> bool {
        let over = |state| matches!(state, IncarnationState::Removed | IncarnationState::Lost);
        self.retired.is_some()
            && self
                .incarnations
                .iter()
                .all(|i| i.state == IncarnationState::Planned || (over(i.state) && i.archived))
    }
}

/// What tells who has a part in a federation (networking.md 5): the record, the spec of the own CR, and the sites of
/// the listed members, if a list is known.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The own site.
    pub me: &'a SiteName,
    /// The own record.
    pub record: &'a Record,
    /// The spec of the own CR: the pending one, if it is not the effective one.
    pub own: Option<&'a Spec>,
    /// The sites that host a listed member; none if no list is known yet.
    pub hosts: Option<&'a [SiteName]>,
}

impl Parts<'_> {
    /// The sites that are asked, heard and answered, sorted: those of the effective and the pending spec, and any that
    /// hosts a listed member or an open intent. Before a spec is effective: those that vote.
    pub fn sites(self) -> Vec<SiteName> {
        let Self { me, record, own, hosts } = self;
        let mut sites: Vec<SiteName> = Vec::new();
        // Whoever left speaks again when its own CR says that it is to come back; to those too whom it does not name, since
        // everything may be about to move.
        if record.departed() && !own.is_some_and(|spec| spec.has_site(me)) {
            return sites;
        }
        let held = record.intent.as_ref();
        let open = held.filter(|held| held.open());
        let effective = record.effective.as_ref().map(|e| &e.spec);
        if let Some(spec) = effective {
            sites.extend(spec.sites().cloned());
        } else {
            sites.extend(record.vote.iter().flat_map(|ballot| ballot.spec.sites().cloned()));
            sites.extend(record.seeds.iter().cloned());
        }
        sites.extend(own.iter().flat_map(|spec| spec.sites().cloned()));
        let pending = open.and_then(|held| held.intent.spec.as_ref());
        sites.extend(pending.iter().flat_map(|spec| spec.sites().cloned()));
        sites.extend(open.iter().flat_map(|held| held.intent.executors.iter().cloned()));
        if let Some(hosts) = hosts {
            sites.extend(hosts.iter().cloned());
        } else {
            // Whoever had a part may host the very member that leads and tells the list.
            sites.extend(record.former.iter().cloned());
            sites.extend(held.iter().flat_map(|held| held.intent.executors.iter().cloned()));
        }
        sites.sort();
        sites.dedup();
        sites
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::federation::layout::default_zone;
    use crate::federation::member::{Incarnation, Mark};
    use crate::federation::observed::Seeded;
    use crate::id::{ClusterId, FederationKey, IncarnationId, Slot};

    fn site(name: &str) -> SiteName {
        SiteName::new(name).unwrap()
    }

    fn sites(names: &[&str]) -> Vec<SiteName> {
        names.iter().map(|name| site(name)).collect()
    }

    fn spec(names: &[&str]) -> Spec {
        let clusters: Vec<_> = names.iter().map(|name| serde_json::json!({"name": name})).collect();
        serde_json::from_value(serde_json::json!({"clusters": clusters})).unwrap()
    }

    fn key() -> FederationKey {
        serde_json::from_str(r#"{"namespace": "etcd", "name": "main"}"#).unwrap()
    }

    fn activated(generation: u64, names: &[&str]) -> Activated {
        let spec = spec(names);
        let digest = spec.digest(&key());
        Activated { generation: Generation(generation), digest, spec: Arc::new(spec), timing: None }
    }

    fn record(generation: u64, names: &[&str]) -> Record {
        let mut record = Record::new(key());
        record.uid = Some(Uid(7));
        record.epoch = Epoch(1);
        record.seeded = Some(Seeded { epoch: Epoch(1), cluster: ClusterId(0xc), member: MemberId(1) });
        record.activate(activated(generation, names));
        record
    }

    fn life(state: IncarnationState, archived: bool) -> Incarnation {
        Incarnation {
            slot: Slot { site: site("west"), ordinal: 0, zone: default_zone() },
            id: IncarnationId(5),
            state,
            epoch: Epoch(1),
            cluster: Some(ClusterId(0xc)),
            member: Some(MemberId(2)),
            mark: Mark::default(),
            seed: false,
            granted: true,
            archived,
        }
    }

    #[test]
    fn the_activation_retires_and_a_later_one_brings_back() {
        let west = site("west");
        let mut there = record(1, &["east", "north", "west"]);
        assert_eq!(there.standing(&west), None);
        there.activate(activated(2, &["east", "north", "south"]));
        assert_eq!(there.former.iter().collect::<Vec<_>>(), [&west]);
        let mut there = there.standing(&west).unwrap();
        assert_eq!(there.retired, Some(Generation(2)));
        assert_eq!(there.standing(&west), None, "said once");
        assert_eq!(there.retirement_of(&west).unwrap().generation, Generation(2));
        assert_eq!(there.retirement_of(&site("south")), None);
        there.activate(activated(3, &["east", "north", "west"]));
        assert_eq!(there.standing(&west).unwrap().retired, None);
        assert_eq!(there.retirement_of(&west), None);
        assert!(there.retirement_of(&site("south")).is_some());
    }

    #[test]
    fn a_site_that_is_about_to_come_is_not_taken_out() {
        let south = record(1, &["east", "west"]);
        assert_eq!(south.standing(&site("south")), None, "it hears of a spec from before its time");
        let own = spec(&["middle", "south"]);
        let parts = Parts { me: &site("south"), record: &south, own: Some(&own), hosts: None }.sites();
        assert_eq!(
            parts,
            sites(&["east", "middle", "south", "west"]),
            "it speaks to those that have the members"
        );
    }

    #[test]
    fn who_was_away_is_told_and_an_old_word_does_not_hold() {
        let west = site("west");
        let away = record(1, &["east", "north", "west"]);
        let mut east = away.clone();
        east.activate(activated(2, &["east", "north", "south"]));
        east.removed.insert(MemberId(2));
        let told = east.retirement_of(&west).unwrap();
        let retired = away.retire(&told).unwrap();
        assert_eq!(retired.retired, Some(Generation(2)));
        assert!(retired.removed.contains(&MemberId(2)));
        assert_eq!(retired.standing(&west), None, "the own effective spec is older than the word");
        assert_eq!(retired.retire(&told), None, "told twice");
        let more = Retired { removed: vec![MemberId(2), MemberId(3)], ..told.clone() };
        assert!(retired.retire(&more).unwrap().removed.contains(&MemberId(3)));
        assert_eq!(away.retire(&Retired { uid: Uid(8), ..told.clone() }), None);
        assert_eq!(away.retire(&Retired { epoch: Epoch(2), ..told.clone() }), None);
        let mut back = retired.clone();
        back.activate(activated(3, &["east", "north", "west"]));
        let back = back.standing(&west).unwrap();
        assert_eq!(back.retired, None);
        assert_eq!(back.retire(&told), None, "a lower generation no longer holds");
    }

    #[test]
    fn it_serves_until_nothing_of_it_is_left() {
        let mut there = record(1, &["east", "north", "west"]);
        there.incarnations.push(life(IncarnationState::Voter, false));
        there.activate(activated(2, &["east", "north", "south"]));
        let mut there = there.standing(&site("west")).unwrap();
        assert!(!there.departed());
        there.incarnations[0].state = IncarnationState::Removed;
        assert!(!there.departed(), "not archived yet");
        there.incarnations[0].archived = true;
        assert!(there.departed());
    }

    #[test]
    fn a_site_that_came_later_learns_who_was_there_before() {
        let mut east = record(1, &["east", "west"]);
        east.activate(activated(2, &["north", "south"]));
        let north = record(2, &["north", "south"]);
        let north = north.catch_up_former(&east.summary()).unwrap();
        assert_eq!(north.former.iter().cloned().collect::<Vec<_>>(), sites(&["east", "west"]));
        assert_eq!(north.catch_up_former(&east.summary()), None);
        assert_eq!(record(3, &["north", "west"]).catch_up_former(&east.summary()), None, "of another spec");
    }

    #[test]
    fn parts_are_those_of_the_specs_and_of_the_listed_members() {
        let me = site("east");
        let mut record = record(1, &["east", "north", "west"]);
        let own = spec(&["east", "north", "south"]);
        let parts = |record: &Record, own: Option<&Spec>, hosts: Option<&[SiteName]>| {
            Parts { me: &me, record, own, hosts }.sites()
        };
        let listed = sites(&["east", "north", "west"]);
        assert_eq!(parts(&record, Some(&own), Some(&listed)), sites(&["east", "north", "south", "west"]));
        record.activate(activated(2, &["east", "north", "south"]));
        assert_eq!(
            parts(&record, Some(&own), Some(&listed)),
            sites(&["east", "north", "south", "west"]),
            "it hosts a listed member"
        );
        let listed = sites(&["east", "north", "south"]);
        assert_eq!(parts(&record, Some(&own), Some(&listed)), listed);
        assert_eq!(
            parts(&record, None, None),
            sites(&["east", "north", "south", "west"]),
            "no list is known"
        );
    }

    #[test]
    fn whoever_left_speaks_again_when_its_own_spec_names_it() {
        let me = site("west");
        let mut record = record(1, &["east", "north", "west"]);
        record.activate(activated(2, &["east", "north", "south"]));
        let record = record.standing(&me).unwrap();
        let parts = |own: Option<&Spec>| Parts { me: &me, record: &record, own, hosts: None }.sites();
        assert_eq!(parts(None), []);
        assert_eq!(parts(Some(&spec(&["east", "north", "south"]))), []);
        let all = sites(&["east", "north", "south", "west"]);
        assert_eq!(parts(Some(&spec(&["east", "north", "west"]))), all);
        assert_eq!(
            parts(Some(&spec(&["middle", "west"]))),
            sites(&["east", "middle", "north", "south", "west"])
        );
    }
}
