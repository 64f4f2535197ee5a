//! A member that lost its data is replaced, not restarted.

use anyhow::{Context as _, Result};
use quorate_cli::demo::mesh::wipe;
use quorate_cli::demo::watch::{member_ids, settled};
use quorate_e2e::field::Field;

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_follower_is_replaced_and_no_write_is_lost() -> Result<()> {
    let field = Field::of_three().await?;
    let writer = field.writer().await?;
    let leader = field.mesh.leader().await.context("nobody leads")?;
    let follower = field.mesh.sites.iter().find(|site| site.name != leader.name).context("no follower")?;
    let name = follower.name.clone();
    let old = member_ids(&field.watch.statuses(), &name);
    assert_eq!(old.len(), 1);

    wipe(&field.mesh, follower)?;
    field
        .until("two voters and no member at the site", |now| {
            now.values().any(|status| {
                status.arithmetic.voters == 2 && !status.members.iter().any(|m| old.contains(&m.id))
            })
        })
        .await?;
    let statuses = field.replaced(&name, &old).await?;
    assert!(settled(&statuses, &field.sites, 3));
    let new = member_ids(&statuses, &name);
    assert!(new.len() == 1 && new.is_disjoint(&old), "{old:?} became {new:?}");

    let proof = field.prove(&writer).await?;
    assert_eq!(proof.lost, 0);
    assert_eq!(field.watch.cluster_ids().len(), 1);
    Ok(())
}
