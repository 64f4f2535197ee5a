//! Sites that are taken out of the spec, and come back.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::mesh::Site;
use quorate_cli::demo::process::Kind;
use quorate_cli::demo::watch::{Statuses, member_ids};
use quorate_core::condition::{ConditionStatus, ConditionType, Status};
use quorate_e2e::field::{FEDERATION, Field};
use quorate_e2e::suite::{Minor, on_sites};

const GONE: Duration = Duration::from_secs(20);
const FOUR: [&str; 4] = ["east", "west", "north", "south"];
const BEFORE: [&str; 3] = ["east", "west", "north"];
const AFTER: [&str; 3] = ["east", "north", "south"];

/// The site says that it was taken out, and shows nothing of the federation.
fn says_retired(now: &Statuses, site: &str) -> bool {
    now.get(site).is_some_and(|status| {
        let ready = |c: &quorate_core::condition::Condition| {
            c.kind == ConditionType::Ready && c.status == ConditionStatus::False && c.reason == "Retired"
        };
        status.members.is_empty() && status.conditions.iter().any(ready)
    })
}

/// Nobody of these sites waits for, or names, any other one.
fn complete(now: &Statuses, sites: &[&str]) -> bool {
    let alone = |status: &Status| {
        let mut known: Vec<&str> = status.sites.iter().map(|s| s.name.as_str()).collect();
        let mut wanted = sites.to_vec();
        known.sort_unstable();
        wanted.sort_unstable();
        let heard = |c: &quorate_core::condition::Condition| {
            c.kind == ConditionType::PeersReachable && c.status == ConditionStatus::True
        };
        known == wanted && status.conditions.iter().any(heard)
    };
    sites.iter().all(|site| now.get(*site).is_some_and(alone))
}

fn volume(site: &Site) -> PathBuf {
    site.member(FEDERATION, &format!("main-{}-0", site.name))
}

/// What the volume of a site keeps in its archive.
fn archive(site: &Site) -> Result<Vec<String>> {
    let folder = volume(site).join("archive");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// Nothing of the federation runs at the site any more, and its data are in the archive under their member's id.
async fn has_left(field: &Field, site: &str, id: &str) -> Result<()> {
    field.mesh.run.gone(site, &[Kind::Etcd, Kind::Member], GONE).await?;
    let kept = archive(field.site(site)?)?;
    ensure!(kept.iter().any(|name| name.starts_with(&format!("removed-{id}-"))), "{id} is not in {kept:?}");
    ensure!(!volume(field.site(site)?).join("data").exists(), "a data directory is left at {site}");
    Ok(())
}

fn only_id(now: &Statuses, site: &str) -> Result<String> {
    member_ids(now, site).pop_first().with_context(|| format!("no member at {site}"))
}

#[test]
fn a_site_is_swapped_and_brought_back_as_a_new_life() -> Result<()> {
    on_sites(Minor::V3_6, &FOUR, &[], |field| async move {
        field.raise(&field.spec(&BEFORE, &[]), 3).await?;
        let writer = field.writer().await?;
        let old = only_id(&field.watch.statuses(), "west")?;

        field.change(&field.spec(&AFTER, &[]), 3).await?;
        field
            .until("west to say that it was taken out, and nobody to miss it", |now| {
                says_retired(now, "west") && complete(now, &AFTER)
            })
            .await?;
        has_left(&field, "west", &old).await?;
        field.writes(&writer).await?;

        field.change(&field.spec(&BEFORE, &[]), 3).await?;
        let now = field
            .until("south to say that it was taken out", |now| {
                says_retired(now, "south") && complete(now, &BEFORE)
            })
            .await?;
        let new = only_id(&now, "west")?;
        ensure!(new != old, "west came back under the id that was removed");
        ensure!(now["west"].generation.0 == 3, "{}", now["west"].generation);
        field.outcome(&writer).await
    })
    .map(drop)
}

/// The leader's site is the one that leaves, and its own manifest still says otherwise: the others' majority decides.
#[test]
fn the_leaders_site_is_taken_out_although_its_own_manifest_names_it() -> Result<()> {
    on_sites(Minor::V3_6, &FOUR, &[], |field| async move {
        field.raise(&field.spec(&BEFORE, &[]), 3).await?;
        let writer = field.writer().await?;
        let leaver = field.leader().await?;
        let old = only_id(&field.watch.statuses(), &leaver)?;
        let stay: Vec<&str> = FOUR.into_iter().filter(|site| *site != leaver).collect();
        let spec = field.spec(&stay, &[]);
        for site in &stay {
            field.site(site)?.apply(FEDERATION, &spec)?;
        }
        let names: Vec<String> = stay.iter().map(|site| (*site).to_owned()).collect();
        field.until_settled(&names, 3).await?;
        field
            .until("the leaver to say so, and nobody to miss it", |now| {
                says_retired(now, &leaver) && complete(now, &stay)
            })
            .await?;
        has_left(&field, &leaver, &old).await?;
        field.outcome(&writer).await
    })
    .map(drop)
}

/// S05: it was away while it was taken out and its member removed, and comes back with its old directory.
#[test]
fn a_site_that_was_away_is_told_and_archives_what_it_has() -> Result<()> {
    on_sites(Minor::V3_6, &FOUR, &[], |field| async move {
        field.raise(&field.spec(&BEFORE, &[]), 3).await?;
        let writer = field.writer().await?;
        let old = only_id(&field.watch.statuses(), "west")?;
        field.mesh.run.kill_site("west")?;
        field.mesh.run.gone("west", &[Kind::Agent, Kind::Member, Kind::Etcd], GONE).await?;
        // etcd refuses to add a fourth voter while one of three is down, and silence proves no death: a person says so.
        let lost = format!("east, lostMembers: [\"{old}\"]");
        let spec = field.spec(&[&lost, "north", "south"], &[]);
        for site in AFTER {
            field.site(site)?.apply(FEDERATION, &spec)?;
        }
        let names = AFTER.map(str::to_owned);
        field.until_settled(&names, 3).await?;

        let west = field.site("west")?;
        field.mesh.start(west)?;
        field.mesh.up(west, GONE).await?;
        field
            .until("west to say that it was taken out", |now| {
                says_retired(now, "west") && complete(now, &AFTER)
            })
            .await?;
        has_left(&field, "west", &old).await?;
        // An agent that starts again knows it by itself.
        field.mesh.run.kill("west", Kind::Agent);
        field.mesh.run.gone("west", &[Kind::Agent], GONE).await?;
        field.mesh.start(west)?;
        field.mesh.up(west, GONE).await?;
        field.until("west to remember it", |now| says_retired(now, "west")).await?;
        has_left(&field, "west", &old).await?;
        field.until_settled(&names, 3).await?;
        field.outcome(&writer).await
    })
    .map(drop)
}

/// Everything moves from two sites to two others, which have the manifest first: no second cluster is born meanwhile.
#[test]
fn everything_moves_to_two_other_sites() -> Result<()> {
    on_sites(Minor::V3_6, &FOUR, &[], |field| async move {
        let before = field.spec(&["east", "west"], &[]);
        let after = field.spec(&["north", "south"], &[]);
        for site in ["east", "west"] {
            field.site(site)?.apply(FEDERATION, &before)?;
        }
        field.start().await?;
        field.until_settled(&["east".to_owned(), "west".to_owned()], 3).await?;
        let writer = field.writer().await?;
        for site in ["north", "south"] {
            field.site(site)?.apply(FEDERATION, &after)?;
        }
        field.said(&["north", "NameTaken"]).await?;
        ensure!(field.watch.cluster_ids().len() == 1, "a second cluster was born");
        field.apply(&after)?;
        // Nine steps, with five seconds between two of them.
        let at = |now: &Statuses, site: &str| !member_ids(now, site).is_empty();
        field.until("members at both new sites", |now| at(now, "north") && at(now, "south")).await?;
        field.until_settled(&["north".to_owned(), "south".to_owned()], 3).await?;
        field
            .until("both old sites to say that they were taken out", |now| {
                says_retired(now, "east") && says_retired(now, "west") && complete(now, &["north", "south"])
            })
            .await?;
        field.outcome(&writer).await
    })
    .map(drop)
}
