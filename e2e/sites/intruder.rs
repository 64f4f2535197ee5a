//! Bad input against running agents: it is refused with a reason, and everything else goes on.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_cli::demo::mesh::{CLIENT_PORT, MESH_PORT, NAMESPACE, Site, TRUST_DOMAIN, manifest};
use quorate_cli::demo::socket;
use quorate_e2e::field::{FEDERATION, Field};
use quorate_e2e::stranger::handshake;
use quorate_link::clock::Clock;
use quorate_link::pki::SitePki;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(20);

/// One site with one voter: the quickest federation there is.
async fn small() -> Result<Field> {
    let field = Field::new(&["east", "west"]).await?;
    let spec =
        format!("{}  members: 1\n  allowSingleVoter: true\n", manifest(FEDERATION, &["east".to_owned()]));
    field.site("east")?.apply(FEDERATION, &spec)?;
    field.start().await?;
    field
        .until("one settled voter", |now| quorate_cli::demo::watch::settled(now, &["east".to_owned()], 1))
        .await?;
    Ok(field)
}

async fn log_says(site: &Site, words: &[&str]) -> Result<()> {
    let clock = Clock::start();
    loop {
        let log = std::fs::read_to_string(site.log())?;
        if log.lines().any(|line| words.iter().all(|word| line.contains(word))) {
            return Ok(());
        }
        if clock.elapsed() > PATIENCE {
            bail!("no line with {words:?} in the log of {}:\n{log}", site.name);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_with_an_unknown_field_stops_only_itself() -> Result<()> {
    let field = small().await?;
    let writer =
        quorate_cli::demo::writer::Writer::start(vec![field.site("east")?.client().await?], field.clock);
    field.writes(&writer).await?;
    let etcds = field.etcds();
    let east = field.site("east")?;

    east.apply("other", &manifest("other", &["east".to_owned()]).replace("clusters:", "clutsers:"))?;
    log_says(east, &["clutsers", "clusters"]).await?;
    // And the manifest of the federation that runs: what is effective stays so.
    let broken = manifest(FEDERATION, &["east".to_owned()]).replace("spec:\n", "spec:\n  membres: 1\n");
    east.apply(FEDERATION, &broken)?;
    log_says(east, &["membres", "members"]).await?;

    field.writes(&writer).await?;
    assert_eq!(field.etcds(), etcds);
    let (code, _) = socket::get(&east.socket(), &format!("/v1/federations/{NAMESPACE}/other")).await?;
    assert_ne!(code, 500);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_garbage_and_old_tls_are_refused() -> Result<()> {
    let field = small().await?;
    let east = field.site("east")?;
    let west = field.site("west")?;
    let mesh = format!("{}:{MESH_PORT}", east.address);
    let client = format!("{}:{CLIENT_PORT}", east.address);
    let (tls12, tls13) = (&rustls::version::TLS12, &rustls::version::TLS13);
    let agent_roots = |site: &Site| anyhow::Ok(site.pki()?.root_path(quorate_link::pki::Root::Agent));

    // The other site of the mesh is let in: this is what the others are compared with.
    let known = west.pki()?.agent_pair();
    handshake(&mesh, tls13, &agent_roots(east)?, &known).await.context("a site of the mesh")?;

    // The same names, from another mesh.
    let foreign = tempfile::tempdir()?;
    let stranger = SitePki::init(foreign.path(), "west", TRUST_DOMAIN)?;
    let refused = handshake(&mesh, tls13, &agent_roots(east)?, &stranger.agent_pair()).await;
    assert!(refused.is_err(), "an agent of another mesh was let in: {refused:?}");

    // TLS 1.2, with certificates that are good.
    let refused = handshake(&mesh, tls12, &agent_roots(east)?, &known).await;
    assert!(refused.is_err(), "the mesh port speaks TLS 1.2: {refused:?}");
    let user = east.user_pair();
    let client_roots = east.pki()?.root_path(quorate_link::pki::Root::Client);
    handshake(&client, tls13, &client_roots, &user).await.context("a user of etcd")?;
    let refused = handshake(&client, tls12, &client_roots, &user).await;
    assert!(refused.is_err(), "etcd speaks TLS 1.2: {refused:?}");

    // Bytes that are no TLS at all.
    let mut stream = TcpStream::connect(&mesh).await?;
    stream.write_all(&[0xff; 4096]).await?;
    let mut rest = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
    assert!(end.is_ok(), "the connection with garbage stays open");

    // After all that the agent is as it was.
    handshake(&mesh, tls13, &agent_roots(east)?, &known).await.context("a site of the mesh, afterwards")?;
    field
        .until("one settled voter", |now| quorate_cli::demo::watch::settled(now, &["east".to_owned()], 1))
        .await?;
    Ok(())
}
