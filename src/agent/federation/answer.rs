//! Answers peers: persist first, then reply (safety.md 4, rule I18).

use std::sync::Arc;

use quorate_core::federation::observed::SiteObservation;
use quorate_core::id::SiteName;
use quorate_core::intent::record::Witness;

use super::{Federation, Question, Reply};
use crate::ports::World;

/// What a site said that has no part in this federation yet.
pub(super) struct Stranger {
    pub(super) observation: Arc<SiteObservation>,
    pub(super) true_at: u64,
    pub(super) arrival: u64,
}

impl<W: World> Federation<W> {
    /// Takes note of what a peer saw.
    pub(super) fn hear(
        &mut self,
        site: &SiteName,
        observation: Arc<SiteObservation>,
        age_ms: u64,
        arrival: u64,
    ) {
        let now = self.now();
        if !self.may_speak(site) {
            self.metrics.refused("NotAMember");
            let stranger = Stranger { observation, true_at: now.saturating_sub(age_ms), arrival };
            self.strangers.insert(site.clone(), stranger);
            return;
        }
        // What was kept for this task and what comes directly can overtake each other.
        if self.arrivals.get(site).is_some_and(|known| *known >= arrival) {
            return;
        }
        self.arrivals.insert(site.clone(), arrival);
        self.tracker.hear(observation, age_ms, now);
    }

    /// A view is still true.
    pub(super) fn fresh_view(&mut self, site: &SiteName, arrival: u64, age_ms: u64) {
        let now = self.now();
        if self.arrivals.get(site) == Some(&arrival) {
            self.tracker.renew(site, age_ms, now);
        }
        if let Some(stranger) = self.strangers.get_mut(site).filter(|stranger| stranger.arrival == arrival) {
            stranger.true_at = now.saturating_sub(age_ms);
        }
    }

    pub(super) async fn answer(&mut self, site: &SiteName, question: Question) -> Reply {
        if matches!(question, Question::NameTaken) {
            return Reply::NameTaken(self.record.uid.is_some() || self.missing.is_some());
        }
        if !self.may_speak(site) {
            // A site that the own CR does not name may still bring this one in: the activation names both.
            let brings = match &question {
                Question::Propose(intent) => intent.spec.as_ref(),
                Question::Resolve(resolution) => resolution.intent.spec.as_ref(),
                Question::Record
                | Question::WholeRecord
                | Question::NameTaken
                | Question::Spec(_)
                | Question::Certify(_)
                | Question::Vote(_)
                | Question::Drain(_) => None,
            };
            if !brings.is_some_and(|spec| spec.has_site(&self.names.site)) {
                self.metrics.refused("NotAMember");
                tracing::warn!(federation = %self.names.federation, peer = %site, "a site without a part in this federation asks");
                return Reply::NotAMember;
            }
        }
        match question {
            Question::Record => {
                let mut summary = self.record.summary();
                summary.missing = self.missing.is_some();
                Reply::Record(Box::new(summary))
            }
            Question::WholeRecord => {
                Reply::WholeRecord(self.missing.is_none().then(|| Box::new(self.record.clone())))
            }
            Question::NameTaken => Reply::NameTaken(self.record.uid.is_some()),
            Question::Spec(digest) => Reply::Spec(self.spec_of(digest)),
            Question::Certify(request) => Reply::Certified(self.certify(site, &request).await),
            Question::Vote(ballot) => {
                if ballot.epoch > self.record.epoch {
                    self.give_up_seed();
                }
                let vote = match self.vote(&ballot) {
                    Ok(next) => {
                        let new = next != self.record;
                        if self.persist(next).await {
                            if new {
                                self.event(
                                    "Voted",
                                    format!("for seed {} in epoch {}", ballot.seed, ballot.epoch),
                                );
                            }
                            Ok(self.record.summary())
                        } else {
                            Err(self.no_record())
                        }
                    }
                    Err(reason) => Err(reason),
                };
                if let Err(reason) = &vote {
                    self.metrics.refused(reason.code.name());
                    tracing::warn!(federation = %self.names.federation, peer = %site, %reason, "vote refused");
                }
                Reply::Vote(Box::new(vote))
            }
            Question::Propose(intent) => {
                let ack = match self.record.propose(&intent, self.witness()) {
                    Ok(next) => {
                        let sent = next.intent.as_ref().is_some_and(|held| held.sent_by_me);
                        if self.persist(next).await { Ok(sent) } else { Err(self.no_record()) }
                    }
                    Err(reason) => Err(reason),
                };
                match &ack {
                    Ok(_) => {
                        self.event("IntentAcknowledged", format!("{} (number {})", intent.kind, intent.seq));
                    }
                    Err(reason) => {
                        self.metrics.refused(reason.code.name());
                        tracing::warn!(federation = %self.names.federation, peer = %site, %reason, "intent refused");
                    }
                }
                Reply::Ack(ack)
            }
            Question::Drain(request) => Reply::Drain(self.token_for(site, request)),
            Question::Resolve(resolution) => {
                if self.missing.is_some() {
                    return Reply::Resolved(false);
                }
                let next = self.record.resolve(&resolution);
                self.look.soon();
                Reply::Resolved(self.persist(next).await)
            }
        }
    }

    pub(super) fn witness(&self) -> Witness<'_> {
        let own = self.own.as_ref();
        Witness {
            site: &self.names.site,
            record_missing: self.missing.is_some(),
            exception: own.and_then(|own| own.spec.exception.as_ref()),
            lost_members: &self.said.lost_members,
        }
    }
}
