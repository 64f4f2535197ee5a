//! Files that cannot be what somebody meant.

use anyhow::{Result, ensure};
use quorate_cli::demo::mesh::NAMESPACE;
use quorate_cli::demo::socket;
use quorate_e2e::field::FEDERATION;
use quorate_e2e::suite::{Case, Minor, Outcome};

use crate::house::{House, OTHER, at_home, single};

pub(crate) const CASES: &[Case] = &[
    Case { name: "spec::mistakes", minors: &[Minor::V3_6], short: Some(Minor::V3_6), run: mistakes },
    Case { name: "spec::files", minors: &[Minor::V3_6], short: None, run: files },
    Case { name: "spec::foreign_sites", minors: &[Minor::V3_6], short: None, run: foreign_sites },
];

/// Applies a file in place of the good one of `main`: the log names file, place and remedy, and nothing changes.
async fn refused(house: &House, spec: &str, words: &[&str]) -> Result<()> {
    house.east()?.apply(FEDERATION, spec)?;
    let mut all = vec!["a manifest cannot be used", "main.yaml"];
    all.extend(words);
    house.logged(&all).await?;
    house.unharmed().await
}

fn mistakes(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let good = single(&house.field, FEDERATION);
        let clusters = "clusters: [{name: east}]";
        let with = |clusters: &str| good.replace("clusters: [{name: east}]", clusters);
        ensure!(good.contains(clusters), "the good file has changed: {good}");

        refused(&house, &good.replace("members: 1", "membres: 1"), &["membres", "members"]).await?;
        refused(&house, &with("clusters: [{name: east}, {name: east}]"), &["clusters[1]", "east"]).await?;
        refused(
            &house,
            &with("clusters: [{name: east, zones: [z9]}]"),
            &["clusters[0].zones", "z9", "default"],
        )
        .await?;
        refused(&house, &with("clusters: []"), &["clusters"]).await?;
        refused(&house, &good.replace("members: 1", "members: 2"), &["members", "odd"]).await?;
        refused(&house, &good.replace("members: 1", "members: -3"), &["members"]).await?;
        refused(&house, &good.replace("members: 1", "members: many"), &["members"]).await?;
        refused(&house, &good.replace("  allowSingleVoter: true\n", ""), &["allowSingleVoter"]).await?;
        refused(&house, &good.replace("v1alpha1", "v9"), &["v9"]).await?;
        refused(&house, &with("clusters: [{name: East_1}]"), &["East_1"]).await?;
        refused(&house, &good.replace("spec:", "spec: [:"), &["line"]).await?;

        // The good file is accepted again, and it is the one that is effective anyway.
        house.east()?.apply(FEDERATION, &good)?;
        house.unharmed().await
    })
}

/// Files that are no manifest at all, beside the good ones.
fn files(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let folder = house.east()?.manifests();
        std::fs::write(folder.join("binary.yaml"), [0xff, 0xfe, 0x00, 0x01])?;
        house.logged(&["a manifest cannot be used", "binary.yaml", "UTF-8"]).await?;
        std::fs::write(folder.join("large.yaml"), vec![b'#'; 3 * 1024 * 1024])?;
        house.logged(&["a manifest cannot be used", "large.yaml", "too large"]).await?;
        std::fs::write(folder.join("twice.yaml"), single(&house.field, OTHER))?;
        house.logged(&["a manifest cannot be used", "described", "already"]).await?;
        std::fs::create_dir(folder.join("folder.yaml"))?;
        std::os::unix::fs::symlink("loop.yaml", folder.join("loop.yaml"))?;
        house.unharmed().await?;

        // The whole folder goes: that is never a deletion.
        let aside = folder.with_extension("aside");
        std::fs::rename(&folder, &aside)?;
        house.logged(&["a manifest cannot be used", "nothing is changed"]).await?;
        house.unharmed().await?;
        std::fs::create_dir(&folder)?;
        house.logged(&["a manifest cannot be used", "no *.yaml file in it", "nothing is changed"]).await?;
        house.unharmed().await?;
        std::fs::remove_dir(&folder)?;
        std::fs::rename(&aside, &folder)?;
        house.unharmed().await
    })
}

/// A new federation that names a site which is no peer: it waits and says for whom; nothing is started for it.
fn foreign_sites(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let spec = house.field.spec(&["east", "mars"], &[]).replace("{name: main,", "{name: far,");
        house.east()?.apply("far", &spec)?;
        house.says("far", &["WaitingForClusters", "mars"]).await?;
        house.says("far", &["mars", "peer"]).await?;
        let status = socket::status(&house.east()?.socket(), NAMESPACE, "far").await?;
        ensure!(status.members.is_empty() && status.cluster_id.is_none(), "it was born: {status:#?}");
        house.unharmed().await
    })
}
