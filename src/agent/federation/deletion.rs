//! A federation whose `FederatedEtcd` was deleted everywhere stops here; one that is declared again goes on.

use quorate_core::ballot;
use quorate_core::deletion;
use quorate_core::federation::view::HEARD_MS;
use quorate_core::reason::{Code, Reason};

use super::Federation;
use crate::ports::World;

impl<W: World> Federation<W> {
    /// True if the record changed.
    pub(super) async fn heed_deletion(&mut self) -> bool {
        if !self.deleted && !self.record.deleted {
            return false;
        }
        let (me, heard, parts) = (&self.names.site, self.tracker.heard(self.now()), self.sites());
        let deletion = deletion::judge(me, self.deleted, &self.record, &parts, &heard);
        let Some(next) = self.record.deleted_by(self.own.is_some(), &deletion) else { return false };
        let stops = next.deleted;
        let persisted = self.persist(next).await;
        if persisted && stops {
            self.event(
                "Deleted",
                "deleted in every cluster: members are stopped, data and record stay".to_owned(),
            );
        } else if persisted {
            self.event("Resumed", "declared again: members start on their data".to_owned());
        }
        persisted
    }

    /// Nothing of it is to run here.
    pub(super) fn at_rest(&self) -> bool {
        self.record.departed() || self.record.deleted
    }

    /// What it means that there is no readable record.
    pub(super) fn why_missing(&self) -> Reason {
        let heard = self.tracker.heard(self.now());
        let me = &self.names.site;
        let speaks = |site| heard.iter().any(|(name, said)| name == site && said.age_ms < HEARD_MS);
        let asked =
            self.own.as_ref().is_some_and(|own| own.spec.sites().all(|site| site == me || speaks(site)));
        let code = if asked { ballot::missing(&heard, false) } else { Code::NoRecord };
        Reason::new(code).site(me)
    }
}
