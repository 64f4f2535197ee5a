//! Takes over an etcd that quorate did not create (ADR 4): its CA, its members at the site that declares them, and the
//! record once it was seen as declared.

use std::sync::Arc;

use quorate_core::adopt::{self, CertificateRequest, Foreign};
use quorate_core::ballot;
use quorate_core::federation::member::{IncarnationState, Process};
use quorate_core::federation::observed::{ListedMember, LocalMember, Status};
use quorate_core::federation::spec::AdoptSpec;
use quorate_core::id::{Digest, IncarnationId, PeerUrl, SiteName, Slot};
use quorate_core::reason::{Code, Reason};

use super::{Event, Federation};
use crate::ports::{Adoption as _, Fault, Peers as _, Runtime as _, Wanted, World};

/// While something is missing.
const AGAIN_MS: u64 = 1_000;
/// Certificates are renewed at two thirds of ninety days.
const RENEW_MS: u64 = 10 * 60 * 1000;

/// Digest of the foreign roots that are trusted; none = that there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trusted(Option<Digest>);

/// What is known of the foreign CA at this site.
#[derive(Debug, Default)]
pub(super) struct Adopting {
    /// What was made known; none = nothing yet.
    trusted: Option<Trusted>,
    asking: bool,
    again_at: u64,
    /// For which slots was asked.
    slots: Vec<(Slot, PeerUrl)>,
    /// Certificates without which the own slots cannot be filled; none = not looked yet.
    missing: Option<usize>,
    failed: Option<String>,
}

impl<W: World> Federation<W> {
    /// The foreign etcd that the effective spec, or before that the ballot's, takes over.
    pub(super) fn adopts(&self) -> Option<&AdoptSpec> {
        self.agreed()?.adopt.as_ref()
    }

    /// The same, if this site speaks for it and it may have members still.
    pub(super) fn declares(&self) -> Option<AdoptSpec> {
        let adopt = self.adopts().filter(|adopt| adopt.cluster == self.names.site)?;
        let listed = self.listed();
        let over = !listed.is_empty() && !listed.iter().any(|m| self.foreign(m));
        (!over).then(|| adopt.clone())
    }

    /// A member that quorate did not create: its URL tells no slot.
    pub(super) fn foreign(&self, member: &ListedMember) -> bool {
        member.peer_url.slot(&self.names.federation.name).is_none()
    }

    /// Makes the foreign CA known here, and gets certificates of it for the own slots.
    pub(super) fn prepare_adoption(&mut self) {
        let Some(spec) = self.agreed().cloned() else { return };
        let roots = spec.adopt.as_ref().map(|adopt| adopt.peer_ca.as_str());
        let trusted = Some(Trusted(roots.map(|roots| Digest::of(roots.as_bytes()))));
        if self.adopting.trusted != trusted {
            match self.ports.adoption.trust(roots) {
                Ok(changed) => {
                    self.adopting = Adopting { trusted, ..Adopting::default() };
                    if changed {
                        let text = if roots.is_some() { "is trusted" } else { "is trusted no longer" };
                        self.event("ForeignPeerCA", format!("the CA of the foreign peers {text}"));
                        self.ports.runtime.renew();
                    }
                }
                Err(error) => {
                    self.adoption_failed(&error);
                    return;
                }
            }
        }
        if let Some(adopt) = &spec.adopt {
            self.ask_for_certificates(&adopt.cluster);
        }
    }

    fn ask_for_certificates(&mut self, cluster: &SiteName) {
        let (now, slots) = (self.now(), self.urls());
        let Some(uid) = self.record.uid else { return };
        let due = now >= self.adopting.again_at || self.adopting.slots != slots;
        if self.adopting.asking || !due {
            return;
        }
        self.adopting.asking = true;
        if self.adopting.slots != slots {
            self.adopting.missing = None; // what was known was about other slots
            self.adopting.slots.clone_from(&slots);
        }
        let (adoption, peers) = (Arc::clone(&self.ports.adoption), Arc::clone(&self.ports.peers));
        let (me, cluster, from) = (self.names.site.clone(), cluster.clone(), self.sender());
        self.spawn(async move {
            let get = async {
                let mut missing = 0;
                let mut failed = None;
                for Wanted { request, missing: needed } in adoption.requests(uid, &slots).await? {
                    let chain = if cluster == me {
                        adoption.certify(&me, uid, &request).await
                    } else {
                        let asked = peers.certify(&cluster, from, &request).await;
                        asked.map_err(|reason| Fault::new(reason.to_string()))
                    };
                    let taken = match chain {
                        Ok(Some(chain)) => adoption.install(uid, &request.kind, &chain).await.map(|()| true),
                        other => other.map(|_| false),
                    };
                    let there = *taken.as_ref().unwrap_or(&false);
                    failed = taken.err().or(failed);
                    missing += usize::from(needed && !there);
                }
                Ok((missing, failed))
            };
            Event::Certified(get.await)
        });
    }

    pub(super) fn certified(&mut self, done: Result<(usize, Option<Fault>), Fault>) {
        self.adopting.asking = false;
        let (missing, failed) = match done {
            Ok((missing, failed)) => (Some(missing), failed),
            Err(error) => (self.adopting.missing, Some(error)),
        };
        if missing == Some(0) && self.adopting.missing != Some(0) {
            let text = "the foreign CA has certified the peer side of this site".to_owned();
            self.event("ForeignCertificates", text);
        }
        self.adopting.missing = missing;
        let wait = if missing == Some(0) && failed.is_none() { RENEW_MS } else { AGAIN_MS };
        self.adopting.again_at = self.now() + wait;
        match failed {
            Some(error) => self.adoption_failed(&error),
            None => self.adopting.failed = None,
        }
    }

    fn adoption_failed(&mut self, error: &Fault) {
        let text = error.to_string();
        if self.adopting.failed.as_ref() != Some(&text) {
            tracing::warn!(federation = %self.names.federation, %error, "no certificate of the foreign CA yet; it is asked for again");
            self.adopting.failed = Some(text);
        }
    }

    /// Own members could not speak with foreign ones yet: their supervisors are not started.
    pub(super) fn uncertified(&self) -> bool {
        // Of a slot that got its address just now nobody knows yet.
        self.adopts().is_some() && (self.adopting.missing != Some(0) || self.adopting.slots != self.urls())
    }

    /// Why the own slots are not offered yet: a member must be able to reach the foreign ones before it is added.
    pub(super) fn held_up(&self) -> Option<Reason> {
        self.adopts()?;
        let about = |code: Code| Reason::new(code).site(&self.names.site);
        if self.uncertified() {
            let missing = self.adopting.missing.unwrap_or(0);
            return Some(about(Code::AdoptCertificateMissing).numbers(missing as u64, 0));
        }
        let listed = self.listed();
        let silent = listed.iter().find(|m| self.foreign(m) && !self.look.reaches(m.id, self.now()))?;
        Some(about(Code::AdoptPeerUnreachable).member(silent.id))
    }

    /// Signs for a site of this federation, or gives what a person has signed (only at the site that declares).
    pub(super) async fn certify(
        &mut self,
        site: &SiteName,
        request: &CertificateRequest,
    ) -> Result<Option<String>, Reason> {
        let me = self.names.site.clone();
        let refused = |code: Code| Reason::new(code).site(&me);
        let uid = self.record.uid.ok_or_else(|| refused(Code::WaitingForClusters))?;
        let here = self.adopts().is_some_and(|adopt| adopt.cluster == self.names.site);
        if !here || !request.kind.belongs_to(site, &self.names.federation.name) {
            return Err(refused(Code::AdoptCertificateMissing));
        }
        let adoption = Arc::clone(&self.ports.adoption);
        adoption.certify(site, uid, request).await.map_err(|error| {
            tracing::warn!(federation = %self.names.federation, peer = %site, %error, "the foreign CA certifies nothing");
            refused(Code::AdoptCertificateMissing)
        })
    }

    /// The foreign members, spoken for by this site: their status is all that can be said of them.
    pub(super) fn foreign_members(&self) -> Vec<LocalMember> {
        let Some(adopt) = self.declares() else { return Vec::new() };
        let speak = |m: ListedMember| {
            let slot = Slot::external(&adopt.cluster, m.id);
            let status = self.look.status(&slot).filter(|s| s.member == m.id).cloned();
            LocalMember {
                slot,
                // It has none of ours; the id of the member is as unique.
                incarnation: IncarnationId(u128::from(m.id.0)),
                state: IncarnationState::Voter,
                member: Some(m.id),
                peer_url: m.peer_url,
                process: if status.is_some() { Process::Running } else { Process::Unknown },
                // Its flags are its owner's: they are neither known nor compared.
                options: None,
                moves_to: None,
                restart: false,
                status,
                certificates_good: true,
            }
        };
        self.listed().into_iter().filter(|m| self.foreign(m)).map(speak).collect()
    }

    /// The grant is complete: once the foreign etcd is seen as declared, the record takes it. Nothing is started.
    pub(super) async fn take_over(&mut self) -> bool {
        let Some(adopt) = self.declares() else { return false };
        let statuses: Vec<Status> = self.look.foreign().cloned().collect();
        let seen = Foreign { statuses: &statuses, list: self.look.foreign_list() };
        match adopt::taken(&adopt, self.record.epoch, &self.names.federation.name, seen) {
            Ok(seeded) => {
                let next = ballot::learn(&self.record, seeded);
                let taken = self.persist(next).await;
                if taken {
                    let members = self.listed().len();
                    let text =
                        format!("cluster {} with {members} foreign members is adopted", seeded.cluster);
                    self.event("Adopted", text);
                    self.look.soon();
                }
                taken
            }
            Err(reason) => {
                self.ballot.waits = Some(reason);
                false
            }
        }
    }
}
