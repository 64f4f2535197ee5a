//! An etcd that quorate did not create becomes a federation, and its members leave, with a writer that never stops.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quorate_cli::demo::mesh::CLIENT_PORT;
use quorate_cli::demo::process::Kind;
use quorate_e2e::field::{FEDERATION, Field, UP};
use quorate_e2e::foreign::{Foreign, file, report};
use quorate_link::etcd::PeerPort;
use quorate_link::pki::{Leaf, Pair, SitePki};
use quorate_link::tls::EtcdTls;

const OLD: Ipv4Addr = Ipv4Addr::new(127, 77, 41, 1);

/// The flags of the etcd at a site.
fn flag(field: &Field, site: &str, name: &str) -> Option<String> {
    let etcds = field.mesh.run.of(site, Kind::Etcd);
    etcds.first()?.flag(name).map(str::to_owned)
}

/// Whether the peer port of a site shows a certificate of that site's own root, and lets one of ours in.
async fn on_own_roots(field: &Field, site: &str, uid: &str) -> Result<bool> {
    let site = field.site(site)?;
    let pair = Pair::at(&field.folder().join("probe"), &site.name);
    let pki = site.pki()?;
    pki.ensure(&Leaf::Probe { uid: uid.to_owned() }, &pair)?;
    let tls = EtcdTls::load(pki.trust().peer_path(&site.name), pair)?;
    let url = format!("https://main-{0}-0.{0}.quorate.test:2380", site.name);
    let port = PeerPort::new(&url, tls)?.at(format!("{}:{}", site.address, CLIENT_PORT + 1));
    Ok(port.probe().await.is_ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_etcd_is_stretched_into_three_sites_and_let_go() -> Result<()> {
    let field = Arc::new(Field::new(&["east", "west", "north"]).await?);
    let foreign = Foreign::start(&field, OLD, None, 1).await?;
    let cluster = foreign.cluster_id().await?;
    field.start().await?;
    let writer = foreign.writer(&field).await?;
    let begun = field.clock.elapsed();

    // A look changes nothing, and a CA that is not that of the peers is named.
    let (west, ca) = (field.site("west")?, foreign.ca());
    let stranger = SitePki::init(&field.folder().join("stranger"), "x", "x.test")?;
    let wrong = Pair::at(stranger.folder(), "peer-ca");
    let refused =
        foreign.adopt(west, &wrong.cert, &["--peer-ca-key", &wrong.key.display().to_string()]).await?;
    assert_eq!(refused.status.code(), Some(3));
    let told = report(&refused)?;
    let missing = |check: &&serde_json::Value| check["verdict"] == "missing";
    let checks: Vec<_> = told["checks"].as_array().unwrap().iter().filter(missing).collect();
    assert!(checks.len() == 1 && checks[0]["what"] == "peer ports", "{checks:?}");
    let look = foreign.adopt(west, &ca.cert, &["--peer-ca-key", &ca.key.display().to_string()]).await?;
    let told = report(&look)?;
    assert!(look.status.success(), "{told:#}");
    assert_eq!(
        (told["clusterId"].as_str(), told["plan"].as_array().map(Vec::len)),
        (Some(&*cluster), Some(8))
    );
    assert_eq!(told["written"].as_array().map(Vec::len), Some(0));
    assert!(!west.manifests().join(format!("{}.yaml", file())).exists());
    assert_eq!(foreign.clients().await?[0].member_list(true).await?.members.len(), 1);

    let manifest = foreign.taken_over(&field, "west").await?;
    let gap = writer.longest_gap(begun, field.clock.elapsed());
    assert!(gap.length() < Duration::from_secs(3), "{gap:?}");
    assert_eq!(field.watch.cluster_ids().into_iter().collect::<Vec<_>>(), [cluster]);
    assert!(field.watch.smallest_margin().is_none_or(|margin| margin >= 0));
    // Whatever was removed ends by itself.
    field.mesh.run.gone("old", &[Kind::Etcd], UP).await?;
    let uid = field.watch.statuses()["west"].uid.context("no uid")?.to_string();
    assert!(!on_own_roots(&field, "east", &uid).await?, "the foreign CA vouches still");
    assert!(flag(&field, "east", "peer-cert-allowed-cn").is_none());

    // The foreign CA goes with spec.adopt, without a restart; what etcd only reads at its start goes with the next one.
    let (before, _) = manifest.split_once("  adopt:").context("no adopt")?;
    for site in &field.mesh.sites {
        site.apply(&file(), before)?;
    }
    let activated = |now: &quorate_cli::demo::watch::Statuses| {
        now.len() == 3 && now.values().all(|status| status.generation.0 == 2)
    };
    field.until("the spec without spec.adopt", activated).await?;
    let etcds = field.etcds();
    for site in &field.sites {
        while !on_own_roots(&field, site, &uid).await? {
            assert!(
                field.clock.elapsed() < begun + Duration::from_mins(6),
                "{site} shows the foreign CA still"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    field.settled("three settled voters on their own roots").await?;
    assert_eq!(field.etcds(), etcds, "an etcd was restarted");
    let leader = field.leader().await?;
    let follower = field.other_than(&[&leader])?;
    field.mesh.run.kill(&follower, Kind::Member);
    field
        .until("a follower that pins the common name again", |_| {
            flag(&field, &follower, "peer-cert-allowed-cn").is_some()
        })
        .await?;
    field.settled("three settled voters after the restart").await?;
    assert!(field.site(&follower)?.member(FEDERATION, &format!("main-{follower}-0")).exists());
    let proof = field.prove(&writer).await?;
    assert_eq!(proof.lost, 0);
    Ok(())
}
