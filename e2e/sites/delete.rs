//! A `FederatedEtcd` that is gone in one site, in all of them, or only not to be found; and one that is declared again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::mesh::Site;
use quorate_cli::demo::process::Kind;
use quorate_cli::demo::watch::Statuses;
use quorate_e2e::field::{FEDERATION, Field};
use quorate_e2e::suite::{Minor, Outcome, on_sites};
use quorate_link::clock::Clock;

const GONE: Duration = Duration::from_secs(30);
const SITES: [&str; 3] = ["east", "west", "north"];

fn file(site: &Site) -> PathBuf {
    site.manifests().join(format!("{FEDERATION}.yaml"))
}

/// A condition or the decision of this site's status, now.
fn says(now: &Statuses, site: &str, words: &[&str]) -> bool {
    now.get(site).is_some_and(|status| {
        let has = |text: &str| words.iter().all(|word| text.contains(word));
        let line = |c: &quorate_core::condition::Condition| {
            has(&format!("{:?}={:?} {}: {}", c.kind, c.status, c.reason, c.message))
        };
        has(&status.decision) || status.conditions.iter().any(line)
    })
}

/// Waits until the agent's log says so.
async fn logged(site: &Site, words: &[&str]) -> Result<()> {
    let clock = Clock::start();
    loop {
        let log = std::fs::read_to_string(site.log())?;
        if log.lines().any(|line| words.iter().all(|word| line.contains(word))) {
            return Ok(());
        }
        ensure!(clock.elapsed() < GONE, "no line with {words:?} in the log of {}:\n{log}", site.name);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn restart_agent(field: &Field, name: &str) -> Result<()> {
    field.mesh.run.kill(name, Kind::Agent);
    field.mesh.run.gone(name, &[Kind::Agent], GONE).await?;
    field.mesh.start(field.site(name)?)?;
    field.mesh.up(field.site(name)?, GONE).await
}

fn data(site: &Site) -> PathBuf {
    site.member(FEDERATION, &format!("main-{}-0", site.name)).join("data/member/wal")
}

fn record(site: &Site) -> PathBuf {
    site.state().join("federations").join(format!("demo.{FEDERATION}")).join("record.json")
}

/// Gone in one site after the other: drift, until it is gone in all of them. Then declared again.
#[test]
fn it_stops_when_it_is_gone_everywhere_and_resumes_on_its_data() -> Result<()> {
    on_sites(Minor::V3_6, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        for site in &field.mesh.sites {
            // Else the only file of the folder is the one that is deleted.
            std::fs::write(site.manifests().join("README"), "the federations of this site\n")?;
        }
        field.raise(&spec, 3).await?;
        let writer = field.writer().await?;
        let (members, etcds) = (field.members(), field.etcds());
        let uid = field.watch.statuses()["east"].uid;

        std::fs::remove_file(file(field.site("east")?))?;
        field
            .until("both others to name east, and east to name whom the deletion waits for", |now| {
                let named = |site| says(now, site, &["SpecAgreed=False", "SpecDeleted", "site east"]);
                named("west") && named("north") && says(now, "east", &["SpecAgreed=False", "DeletionWaits"])
            })
            .await?;
        std::fs::remove_file(file(field.site("west")?))?;
        field
            .until("east to wait for north alone", |now| {
                says(now, "east", &["DeletionWaits", "site north"])
                    && says(now, "west", &["DeletionWaits", "site north"])
            })
            .await?;
        field.writes(&writer).await?;
        ensure!(field.etcds() == etcds, "an etcd was stopped although north still has it");

        let acknowledged = writer.stop().await;
        // North says it by the name of the file.
        let north = field.site("north")?;
        std::fs::rename(file(north), north.manifests().join(format!("{FEDERATION}.yaml.deleted")))?;
        let deleted = |now: &Statuses| SITES.iter().all(|site| says(now, site, &["Ready=False", "Deleted"]));
        field.until("every site to say that it is deleted", deleted).await?;
        for site in SITES {
            field.mesh.run.gone(site, &[Kind::Member, Kind::Etcd], GONE).await?;
            ensure!(data(field.site(site)?).exists(), "the data of {site} are gone");
        }
        for site in SITES {
            restart_agent(&field, site).await?;
        }
        field.until("every site to say so after a restart", deleted).await?;
        ensure!(field.etcds().is_empty(), "a restart of the agents started {:?}", field.etcds());

        std::fs::remove_file(north.manifests().join(format!("{FEDERATION}.yaml.deleted")))?;
        field.apply(&spec)?;
        let now = field.until_settled(&field.sites, 3).await?;
        ensure!(now["east"].uid == uid, "another uid");
        ensure!(field.members() == members, "{members:?} became {:?}", field.members());
        ensure!(field.watch.cluster_ids().len() == 1, "{:?}", field.watch.cluster_ids());
        let clients = field.clients().await?;
        let proof = quorate_cli::demo::verify::verify(&clients, acknowledged).await?;
        ensure!(proof.lost == 0, "{} of {acknowledged} keys are lost", proof.lost);
        let writer = field.writer().await?;
        ensure!(writer.acknowledged() > 0, "no write");
        writer.stop().await;
        Ok(Outcome { acknowledged, cluster_ids: 1, voters: 3, ..Outcome::default() })
    })
    .map(drop)
}

/// Moves a folder aside; what is in its place looks like a mount point without its file system.
fn unmount(folder: &Path, with: Option<&str>) -> Result<()> {
    std::fs::rename(folder, folder.with_extension("aside"))?;
    if let Some(name) = with {
        std::fs::create_dir(folder)?;
        std::fs::write(folder.join(name), "not yours\n")?;
    }
    Ok(())
}

/// Folders that are empty, missing or others than before, at all sites at once: nothing stops, and each says why.
#[test]
fn a_folder_that_is_not_what_it_was_deletes_nothing() -> Result<()> {
    on_sites(Minor::V3_6, &SITES, &[], |field| async move {
        field.raise(&field.spec(&SITES, &[]), 3).await?;
        let writer = field.writer().await?;
        let (members, etcds) = (field.members(), field.etcds());
        let (east, west, north) = (field.site("east")?, field.site("west")?, field.site("north")?);
        std::fs::remove_file(file(east))?;
        unmount(&west.manifests(), Some("lost"))?;
        unmount(&north.manifests(), None)?;
        logged(east, &["main.yaml", "the folder is empty"]).await?;
        logged(west, &["main.yaml", "another one than before"]).await?;
        logged(north, &["federations", "No such file"]).await?;
        field.writes(&writer).await?;
        ensure!(field.etcds() == etcds, "an etcd was stopped");
        // An agent that starts now has no spec, and says so; its member runs on.
        for site in SITES {
            restart_agent(&field, site).await?;
        }
        field.until("a site to say that there is no spec", |now| says(now, "east", &["SpecAbsent"])).await?;
        field.writes(&writer).await?;
        ensure!(field.etcds() == etcds, "an etcd was stopped after the agents were started again");

        field.site("east")?.apply(FEDERATION, &field.spec(&SITES, &[]))?;
        for site in [west, north] {
            let aside = site.manifests().with_extension("aside");
            if site.manifests().exists() {
                std::fs::remove_dir_all(site.manifests())?;
            }
            std::fs::rename(&aside, site.manifests()).context("mounting it again")?;
        }
        field.until_settled(&field.sites, 3).await?;
        ensure!(field.members() == members, "a member was replaced");
        field.outcome(&writer).await
    })
    .map(drop)
}

/// The records are gone, the volumes are not: nothing new is begun over them.
#[test]
fn volumes_without_a_record_are_refused_with_what_can_be_done() -> Result<()> {
    on_sites(Minor::V3_6, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        field.raise(&spec, 3).await?;
        let members: BTreeSet<String> = field.members();
        for site in SITES {
            let site = field.site(site)?;
            std::fs::rename(file(site), site.manifests().join(format!("{FEDERATION}.yaml.deleted")))?;
        }
        field
            .until("every site to rest", |now| {
                SITES.iter().all(|site| says(now, site, &["Ready=False", "Deleted"]))
            })
            .await?;
        for name in SITES {
            field.mesh.run.gone(name, &[Kind::Member, Kind::Etcd], GONE).await?;
            field.mesh.run.kill(name, Kind::Agent);
            field.mesh.run.gone(name, &[Kind::Agent], GONE).await?;
            let site = field.site(name)?;
            std::fs::rename(record(site), site.folder.join("record.json"))?;
            std::fs::remove_file(site.manifests().join(format!("{FEDERATION}.yaml.deleted")))?;
        }
        field.apply(&spec)?;
        field.start().await?;
        field
            .until("a refusal with its reason", |now| {
                SITES.iter().all(|site| says(now, site, &["VolumesWithoutRecord", site]))
            })
            .await?;
        // What the remedy says: the records come back, and it is resumed.
        for name in SITES {
            let site = field.site(name)?;
            field.mesh.run.kill(name, Kind::Agent);
            field.mesh.run.gone(name, &[Kind::Agent], GONE).await?;
            std::fs::rename(site.folder.join("record.json"), record(site))?;
        }
        field.start().await?;
        field.until_settled(&field.sites, 3).await?;
        ensure!(field.members() == members, "{members:?} became {:?}", field.members());
        let writer = field.writer().await?;
        field.outcome(&writer).await
    })
    .map(drop)
}
