//! Ports and peer URLs of the members of a site.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use quorate_cli::demo::mesh::manifest;
use quorate_cli::demo::process::Kind;
use quorate_cli::demo::watch::{Statuses, Watch, settled};
use quorate_e2e::field::{FEDERATION, Field, SETTLED, UP};

const SECOND: &str = "second";

/// The peer URLs of a settled federation, the same in each site's view.
fn peer_urls(statuses: &Statuses) -> BTreeSet<String> {
    let of = |site: &str| -> BTreeSet<String> {
        statuses.get(site).unwrap().members.iter().map(|m| m.peer_url.clone()).collect()
    };
    let first = of("east");
    assert!(statuses.keys().all(|site| of(site) == first), "{statuses:?}");
    first
}

#[tokio::test(flavor = "multi_thread")]
async fn two_federations_have_members_on_the_same_machines() -> Result<()> {
    let field = Field::of_three().await?;
    let writer = field.writer().await?;
    let first = field.etcds();
    let second = Watch::start(&field.mesh, SECOND, None);
    for site in &field.mesh.sites {
        site.apply(SECOND, &manifest(SECOND, &field.sites))?;
    }
    let born = second.until("the second federation to settle", SETTLED, |now| settled(now, &field.sites, 3));
    let born = born.await.map_err(|error| error.context(field.logs()))?;
    let expected = |federation: &str, port: u16| -> BTreeSet<String> {
        let url = |site: &String| format!("https://{federation}-{site}-0.{site}.quorate.test:{port}");
        field.sites.iter().map(url).collect()
    };
    assert_eq!(peer_urls(&born), expected(SECOND, 2480));
    let statuses = field.settled("the first federation as before").await?;
    assert_eq!(peer_urls(&statuses), expected(FEDERATION, 2380));

    // Agents come back, here without the first manifest: nobody moves.
    let north = field.site("north")?;
    field.mesh.run.kill("north", Kind::Agent);
    field.mesh.gone(field.site("north")?, &[Kind::Agent], UP).await?;
    std::fs::remove_file(north.manifests().join(format!("{FEDERATION}.yaml")))?;
    field.mesh.start(north)?;
    field.mesh.up(north, UP).await?;
    second
        .until("the second federation settled again", SETTLED, |now| settled(now, &field.sites, 3))
        .await
        .context(field.logs())?;
    site_still_runs(&field, &first)?;
    assert_eq!(field.etcds().len(), 6);
    field.prove(&writer).await?;
    assert_eq!(second.cluster_ids().union(&field.watch.cluster_ids()).count(), 2);
    Ok(())
}

/// The etcds that ran before still do.
fn site_still_runs(field: &Field, before: &[(String, i32)]) -> Result<()> {
    let now = field.etcds();
    let gone = before.iter().find(|etcd| !now.contains(etcd));
    anyhow::ensure!(gone.is_none(), "{gone:?} is gone");
    Ok(())
}
