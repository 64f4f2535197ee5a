//! The instruments themselves: the writer sees a failover of bare etcd, and the proof sees a key that is wrong.

use std::time::Duration;

use anyhow::Result;
use quorate_cli::demo::bare::{Bare, Timers};
use quorate_cli::demo::process::Run;
use quorate_cli::demo::verify::verify;
use quorate_cli::demo::writer::{Writer, key};
use quorate_e2e::field::etcd;
use quorate_e2e::suite::Minor;
use quorate_link::clock::Clock;

const PATIENCE: Duration = Duration::from_secs(30);

async fn one_more(writer: &Writer, clock: &Clock) {
    let (begun, before) = (clock.elapsed(), writer.acknowledged());
    while writer.acknowledged() <= before {
        assert!(clock.elapsed() < begun + PATIENCE, "{:?}", writer.last_error());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_of_bare_etcd_is_seen_and_a_wrong_key_is_found() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let run = Run::begin(folder.path(), true)?;
    let timers = Timers { heartbeat: "100".to_owned(), election: "1000".to_owned() };
    let bare = Bare::start(&run, etcd(Minor::V3_6).await?, 78, timers)?;
    let leader = bare.healthy(PATIENCE).await?;
    let clock = Clock::start();
    let clients = bare.clients().await?;
    let writer = Writer::start(clients.clone(), clock);
    one_more(&writer, &clock).await;

    let at = clock.elapsed();
    bare.kill(&run, leader);
    bare.gone(&run, leader, PATIENCE).await?;
    while writer.last().is_none_or(|last| last < at + Duration::from_millis(300)) {
        one_more(&writer, &clock).await;
    }
    let gap = writer.longest_gap(at, clock.elapsed());
    assert!(gap.from <= at + Duration::from_millis(300), "the gap begins when the leader dies");
    assert!(gap.length() > Duration::from_millis(700), "an election takes about a second: {gap:?}");
    assert!(gap.length() < Duration::from_secs(8), "{gap:?}");
    bare.spawn(&run, leader)?;
    bare.healthy(PATIENCE).await?;

    let acknowledged = writer.stop().await;
    assert!(acknowledged > 10);
    let proof = verify(&clients, acknowledged).await?;
    assert_eq!(proof.lost, 0);
    // One key more than was written is one that is missing; one that holds something else is as bad.
    assert_eq!(verify(&clients, acknowledged + 2).await?.lost, 2);
    clients[0].put(&key(5), "something else").await?;
    assert_eq!(verify(&clients, acknowledged).await?.lost, 1);
    Ok(())
}
