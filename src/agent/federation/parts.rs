//! Who has a part in this federation, and what becomes of a site that has none any more (decisions.md 4).

use quorate_core::federation::view::View;
use quorate_core::id::SiteName;
use quorate_core::intent::retirement::{Parts, Retired};

use super::answer::Stranger;
use super::{Answers, Federation};
use crate::ports::{Parting, World};

impl<W: World> Federation<W> {
    /// All sites that matter here.
    pub(super) fn sites(&self) -> Vec<SiteName> {
        let list = self.last.view.as_ref().filter(|view| view.list.is_some());
        let site_of = |view: &View| view.members.iter().filter_map(|m| m.site().cloned()).collect();
        let hosts: Option<Vec<SiteName>> = list.map(site_of);
        Parts {
            me: &self.names.site,
            record: &self.record,
            own: self.own.as_ref().map(|own| own.spec.as_ref()),
            hosts: hosts.as_deref(),
        }
        .sites()
    }

    pub(super) fn others(&self) -> Vec<SiteName> {
        self.sites().into_iter().filter(|site| *site != self.names.site).collect()
    }

    /// Who hears what is seen here: whoever has a part. A site that has none of its own yet answers those that speak to
    /// it: a federation that is to come here cannot be in its spec before it came.
    pub(super) fn audience(&self) -> Vec<SiteName> {
        let mut sites = self.others();
        if self.record.uid.is_none() && self.own.is_some() {
            sites.extend(self.strangers.keys().cloned());
            sites.sort();
            sites.dedup();
        }
        sites
    }

    /// Only sites of the effective, the pending or the own spec, or that host a listed member or an open intent.
    pub(super) fn may_speak(&self, site: &SiteName) -> bool {
        self.sites().contains(site)
    }

    /// Hears the sites that got a part since they spoke, and keeps aside what those said that have none any more:
    /// nobody says the same thing twice.
    pub(super) fn sort_out_strangers(&mut self) {
        let (now, sites) = (self.now(), self.sites());
        let me = &self.names.site;
        let gone: Vec<SiteName> =
            self.tracker.known().filter(|site| *site != me && !sites.contains(site)).cloned().collect();
        for site in gone {
            let Some((observation, true_at)) = self.tracker.forget(&site) else { continue };
            let arrival = self.arrivals.remove(&site).unwrap_or(0);
            self.strangers.insert(site, Stranger { observation, true_at, arrival });
        }
        if self.strangers.is_empty() {
            return;
        }
        let (admitted, rest) =
            std::mem::take(&mut self.strangers).into_iter().partition(|(site, _)| sites.contains(site));
        self.strangers = rest;
        for (site, Stranger { observation, true_at, arrival }) in Answers::from(admitted) {
            self.hear(&site, observation, now.saturating_sub(true_at), arrival);
        }
    }

    /// Takes note of what the effective spec says of this site; true if the record changed.
    pub(super) async fn stand(&mut self) -> bool {
        let Some(next) = self.record.standing(&self.names.site) else { return false };
        let retired = next.retired;
        let persisted = self.persist(next).await;
        if persisted {
            match retired {
                Some(generation) => self.event(
                    "Retired",
                    format!("generation {generation} does not name this site; it serves until its member is removed"),
                ),
                None => self.event("PartAgain", "the effective spec names this site again".to_owned()),
            }
        }
        persisted
    }

    /// A site that has a part says that this one has none. Only sites that had one when this one knew of it last, or
    /// that its own CR names, are believed.
    pub(super) async fn retire(&mut self, site: &SiteName, told: &Retired) {
        let effective = self.record.effective.as_ref().is_some_and(|e| e.spec.has_site(site));
        let believed = effective || self.record.former.contains(site) || self.may_speak(site);
        if !believed || self.missing.is_some() {
            self.metrics.refused("NotAMember");
            tracing::warn!(federation = %self.names.federation, peer = %site, "a site without a part says that this one was taken out");
            return;
        }
        let before = self.record.retired;
        let Some(next) = self.record.retire(told) else { return };
        if self.persist(next).await && before != self.record.retired {
            let text = format!("site {site} says that generation {} does not name this one", told.generation);
            self.event("Retired", text);
        }
    }

    /// What sites are told that had a part once and have none now.
    pub(super) fn partings(&self) -> Vec<Parting> {
        let told = |site: &SiteName| {
            let retired = self.record.retirement_of(site)?;
            Some(Parting { site: site.clone(), retired })
        };
        if self.missing.is_some() {
            return Vec::new();
        }
        self.record.former.iter().filter_map(told).collect()
    }
}
