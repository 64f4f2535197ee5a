//! Agents are never in the way of etcd.

use std::time::Duration;

use anyhow::{Context as _, Result};
use quorate_cli::demo::process::{Kind, log_file};
use quorate_cli::demo::watch::member_ids;
use quorate_e2e::field::{FEDERATION, Field};

const GONE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn killed_agents_come_back_and_adopt_members_that_never_stopped() -> Result<()> {
    let field = Field::of_three().await?;
    let writer = field.writer().await?;
    let before = field.etcds();
    assert_eq!(before.len(), 3);
    for site in &field.sites {
        assert_eq!(field.mesh.run.kill(site, Kind::Agent).len(), 1);
        field.mesh.gone(field.site(site)?, &[Kind::Agent], GONE).await?;
    }
    field.until("no agent to answer", std::collections::BTreeMap::is_empty).await?;
    assert_eq!(field.etcds(), before);
    field.writes(&writer).await?;

    field.start().await?;
    field.settled("three settled voters after the agents are back").await?;
    assert_eq!(field.etcds(), before, "an etcd was restarted");
    assert!(writer.longest_gap(Duration::ZERO, field.clock.elapsed()).length() < Duration::from_secs(1));
    field.prove(&writer).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_without_any_agent_resumes_at_once() -> Result<()> {
    let field = Field::of_three().await?;
    let writer = field.writer().await?;
    let site = field.site("north")?;
    let members = member_ids(&field.watch.statuses(), "north");
    // No agent anywhere, and one member gone.
    for name in &field.sites {
        field.mesh.run.kill(name, Kind::Agent);
        field.mesh.gone(field.site(name)?, &[Kind::Agent], GONE).await?;
    }
    field.mesh.run.kill("north", Kind::Member);
    field.mesh.gone(field.site("north")?, &[Kind::Member, Kind::Etcd], GONE).await?;

    let config = site.member(FEDERATION, "main-north-0").join("member.json");
    let log = log_file(&site.folder.join("member.log"))?;
    let mut supervisor = field.mesh.command(site);
    supervisor.args(["member", "--config"]).arg(&config).stdout(log.try_clone()?).stderr(log);
    supervisor.spawn().context("starting the supervisor")?;

    let client = site.client().await?.with_deadline(Duration::from_secs(1));
    let begun = field.clock.elapsed();
    loop {
        // Linearizable: it is back in the quorum, with its data.
        let found = client.get(&quorate_cli::demo::writer::key(0), true).await;
        if found.is_ok_and(|found| found.is_some()) {
            break;
        }
        assert!(
            field.clock.elapsed() < begun + Duration::from_secs(30),
            "the member did not resume:\n{}",
            std::fs::read_to_string(site.folder.join("member.log"))?
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    field.start().await?;
    let statuses = field.settled("three settled voters after the agents are back").await?;
    assert_eq!(member_ids(&statuses, "north"), members);
    field.prove(&writer).await?;
    Ok(())
}
