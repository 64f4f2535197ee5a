//! Waits until the members are as a file wishes, and says meanwhile what goes on.

use std::time::Duration;

use quorate_core::condition::{ConditionStatus, ConditionType, Status};
use quorate_core::id::Digest;
use quorate_link::clock::Clock;

use super::preview::Preview;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::progress::Spinner;
use crate::output::table::count;

/// Looks again this often; the agent answers from memory.
const LOOK: Duration = Duration::from_millis(500);

/// How one federation stands on its way.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// As wished.
    Done(String),
    /// On its way: what goes on.
    Underway(String),
}

/// Where a federation is on the way to the spec with this digest.
pub(super) fn stand(status: Option<&Status>, digest: Digest) -> Stand {
    let Some(status) = status else {
        return Stand::Underway("the agent has not read the file yet".to_owned());
    };
    let text = digest.to_string();
    let ready = |kind| status.conditions.iter().any(|c| c.kind == kind && c.status == ConditionStatus::True);
    let effective = status.digest == Some(digest);
    let now = &status.arithmetic;
    let voters = format!("{} of {} alive", now.alive, count(now.voters, "voter"));
    if effective && status.decision == "Done" && ready(ConditionType::Ready) {
        return Stand::Done(format!("generation {} is in force, {voters}", status.generation));
    }
    let waits = status.reason.as_ref().map(ToString::to_string);
    if status.members.is_empty() {
        return Stand::Underway(waits.unwrap_or_else(|| "the first member is being started".to_owned()));
    }
    if !effective {
        let lacking = status.sites.iter().filter(|site| site.spec_digest.as_deref() != Some(text.as_str()));
        let names: Vec<&str> = lacking.map(|site| site.name.as_str()).collect();
        let names = if names.is_empty() {
            String::new()
        } else {
            format!("; without this file: {}", names.join(", "))
        };
        return Stand::Underway(format!("generation {} is still in force{names}", status.generation));
    }
    let next = match (waits, status.plan.first()) {
        (Some(reason), _) => format!("waits: {reason}"),
        (None, Some(line)) => format!("{} ({} of them left)", line.step, count(status.plan.len(), "step")),
        (None, None) => status.decision.clone(),
    };
    Stand::Underway(format!("{voters}; {next}"))
}

/// Waits for all; gives one line for each.
pub(super) async fn all(
    client: &Client,
    previews: &[Preview],
    timeout: Duration,
) -> Result<Vec<String>, Failure> {
    let clock = Clock::start();
    let mut spinner = Spinner::start("the file is written; waiting for the agents");
    let mut lines = Vec::new();
    for preview in previews {
        let (namespace, name) = (preview.key.namespace.as_str(), preview.key.name.as_str());
        loop {
            let status = match client.one(namespace, name).await {
                Ok(status) => status,
                // An agent that restarts is nothing to end a wait for.
                Err(failure) if clock.elapsed() < timeout && failure.exit == Exit::Unreachable => None,
                Err(failure) => return Err(failure),
            };
            match stand(status.as_ref(), preview.digest) {
                Stand::Done(how) => {
                    lines.push(format!("{}: {how}", preview.key));
                    break;
                }
                Stand::Underway(what) if clock.elapsed() >= timeout => {
                    let message =
                        format!("{} is not as wished after {} s: {what}", preview.key, timeout.as_secs());
                    let hint = "it goes on by itself; `quorate plan` shows what it waits for, `quorate apply` again waits again";
                    return Err(Failure::message(Exit::Timeout, message).hint(hint));
                }
                Stand::Underway(what) => spinner.say(&format!("{}: {what}", preview.key)),
            }
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(lines)
}
