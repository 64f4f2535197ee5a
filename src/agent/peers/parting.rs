//! Tells sites that were taken out of a spec that they were, and hears it (networking.md 5, `Retired`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_api::peer::SyncMessage;
use quorate_api::peer::sync_message::Message as Said;
use quorate_core::id::{Epoch, FederationKey, Generation, MemberId, SiteName, Uid};
use quorate_core::intent::retirement::Retired;
use tokio::sync::mpsc;
use tonic::Status;

use super::envelope::{self, Refusal};
use super::{Mesh, lock};
use crate::federation::Message;
use crate::ports::Sender;

/// Everything once more, in case it was not taken note of.
const ALL: Duration = Duration::from_mins(1);

/// Tells a peer on the answering side of its stream, until that ends.
pub(super) async fn tell(
    mesh: Arc<Mesh>,
    peer: SiteName,
    answers: mpsc::Sender<Result<SyncMessage, Status>>,
) {
    let mut told: BTreeMap<FederationKey, Retired> = BTreeMap::new();
    let mut wake = mesh.wake.subscribe();
    let mut all = tokio::time::interval(ALL);
    loop {
        tokio::select! {
            () = answers.closed() => return,
            _ = all.tick() => told.clear(),
            changed = wake.changed() => if changed.is_err() { return },
        }
        for (key, retired) in partings(&mesh, &peer) {
            if told.get(&key) == Some(&retired) {
                continue;
            }
            let from = Sender { uid: Some(retired.uid), epoch: retired.epoch };
            let message = Said::Retired(quorate_api::peer::Retired {
                envelope: Some(mesh.envelope(Some(&key), from)),
                generation: retired.generation.0,
                removed: retired.removed.iter().map(|id| id.0).collect(),
            });
            if answers.send(Ok(SyncMessage { message: Some(message) })).await.is_err() {
                return;
            }
            told.insert(key, retired);
        }
    }
}

fn partings(mesh: &Mesh, peer: &SiteName) -> Vec<(FederationKey, Retired)> {
    let said = lock(&mesh.said);
    let of = |key: &FederationKey, said: &super::Said| {
        let parting = said.partings.iter().find(|parting| parting.site == *peer)?;
        Some((key.clone(), parting.retired.clone()))
    };
    said.iter().filter_map(|(key, said)| of(key, said)).collect()
}

/// Hands on what a peer says about the own site.
pub(super) async fn hear(
    mesh: &Mesh,
    peer: &SiteName,
    retired: quorate_api::peer::Retired,
) -> Result<(), Refusal> {
    let checked = envelope::check(mesh, peer, retired.envelope.as_ref())?;
    let refusal = |detail: &str| Refusal { reason: "BadDocument", detail: detail.to_owned() };
    let envelope = retired.envelope.unwrap_or_default();
    let key = checked.federation.ok_or_else(|| refusal("a retirement names no federation"))?;
    let uid: Uid =
        envelope.federation_uid.parse().map_err(|_| refusal("a retirement names no federation uid"))?;
    let told = Retired {
        uid,
        epoch: Epoch(envelope.epoch),
        generation: Generation(retired.generation),
        removed: retired.removed.into_iter().map(MemberId).collect(),
    };
    // A federation without a task holds nothing that could be retired.
    if let Some(handle) = mesh.handle(&key) {
        handle.tell(Message::Retired { site: peer.clone(), told }).await;
    }
    Ok(())
}
