//! Messages that must not be believed, from somebody with a good certificate.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate_api::document::format;
use quorate_api::peer::Envelope;
use quorate_core::federation::observed::SiteObservation;
use quorate_core::id::SiteName;
use quorate_e2e::stranger::Impostor;
use quorate_e2e::suite::{Case, Minor, Outcome};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::house::at_home;

pub(crate) const CASES: &[Case] = &[
    Case { name: "wire::claims", minors: &[Minor::V3_6], short: Some(Minor::V3_6), run: claims },
    Case { name: "wire::replay", minors: &[Minor::V3_6], short: None, run: replay },
    Case { name: "wire::protocol", minors: &[Minor::V3_6], short: None, run: protocol },
    Case { name: "wire::garbage", minors: &[Minor::V3_6], short: None, run: garbage },
    Case { name: "wire::slow_loris", minors: &[Minor::V3_6], short: None, run: slow_loris },
    Case { name: "wire::flood", minors: &[Minor::V3_6], short: None, run: flood },
];

const MOMENT: Duration = Duration::from_millis(500);

fn observation(site: &str) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(&SiteObservation::empty(SiteName::new(site)?))?)
}

fn ended(status: Option<tonic::Status>, word: &str) -> Result<()> {
    let status = status.with_context(|| format!("the stream goes on; {word} was expected"))?;
    ensure!(status.message().contains(word), "{status} instead of {word}");
    Ok(())
}

fn denied<T>(answer: Result<T, tonic::Status>, word: &str) -> Result<()> {
    let Err(status) = answer else { anyhow::bail!("it was answered; {word} was expected") };
    ensure!(status.message().contains(word), "{status} instead of {word}");
    Ok(())
}

/// Another mesh, another sender, another site's members, a federation without a part for the sender.
fn claims(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let mut impostor = house.impostor()?;
        impostor.hello().await.context("west has to be heard, or the rest proves nothing")?;

        let good = impostor.envelope.clone();
        impostor.envelope.mesh = String::from("00000000-0000-4000-8000-000000000000");
        denied(impostor.hello().await, "OtherMesh")?;
        impostor.envelope = Envelope { sender_site: "east".to_owned(), ..good.clone() };
        denied(impostor.hello().await, "SenderMismatch")?;
        house.logged(&["message refused", "SenderMismatch", "west says it is east"]).await?;
        impostor.envelope = good.clone();

        let view = Impostor::view(impostor.next(), format::OBSERVATION, &observation("east")?, 1);
        ended(impostor.stream(vec![view], MOMENT).await, "SpeaksForOthers")?;
        house.logged(&["message refused", "SpeaksForOthers", "west speaks for east"]).await?;

        // West has no part in these federations: it may neither propose nor vote, and learns nothing of them.
        for name in ["main", "other", "no-such-federation"] {
            impostor.envelope = Envelope { name: name.to_owned(), ..good.clone() };
            let ballot = impostor.vote(format::BALLOT, b"{}").await;
            ensure!(ballot.is_err(), "west voted in {name}");
            let intent = impostor.propose(format::INTENT, b"{}").await;
            ensure!(intent.is_err(), "west proposed in {name}");
        }
        impostor.envelope = Envelope { namespace: "../..".to_owned(), name: "main".to_owned(), ..good };
        denied(impostor.propose(format::INTENT, b"{}").await, "BadName")?;
        house.unharmed().await
    })
}

/// The same number twice, and a lower one.
fn replay(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let impostor = house.impostor()?;
        let first = impostor.next();
        let again = vec![Impostor::ping(first.clone()), Impostor::ping(first.clone())];
        ended(impostor.stream(again, MOMENT).await, "Replayed")?;
        let (later, latest) = (impostor.next(), impostor.next());
        let older = vec![Impostor::ping(latest), Impostor::ping(later)];
        ended(impostor.stream(older, MOMENT).await, "Replayed")?;
        house.logged(&["message refused", "west", "Replayed"]).await?;
        // In order it is fine.
        let fine = vec![Impostor::ping(impostor.next()), Impostor::ping(impostor.next())];
        let status = impostor.stream(fine, MOMENT).await;
        ensure!(status.is_none(), "messages in order were refused: {status:?}");
        house.unharmed().await
    })
}

/// A protocol that is too new; a lower one after a higher one.
fn protocol(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let mut impostor = house.impostor()?;
        (impostor.envelope.proto_min, impostor.envelope.proto_max) = (7, 9);
        denied(impostor.hello().await, "Protocol")?;
        house.logged(&["message refused", "Protocol", "7 to 9", "we speak"]).await?;
        (impostor.envelope.proto_min, impostor.envelope.proto_max) = (1, 2);
        impostor.hello().await.context("a range that holds ours")?;
        impostor.envelope.proto_max = 1;
        denied(impostor.hello().await, "PeerDowngraded")?;
        house.logged(&["message refused", "PeerDowngraded"]).await?;
        house.unharmed().await
    })
}

/// Documents that cannot be read, of another format, too large; frames that are no HTTP/2; bytes that are no TLS.
fn garbage(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let impostor = house.impostor()?;
        let broken = [&b"\xff\xfe\x00"[..], b"{", b"[]", b"{\"site\":7}", b"null"];
        for body in broken {
            let view = Impostor::view(impostor.next(), format::OBSERVATION, body, 1);
            ended(impostor.stream(vec![view], MOMENT).await, "BadDocument")?;
            denied(impostor.propose(format::INTENT, body).await, "BadDocument")?;
            denied(impostor.vote(format::BALLOT, body).await, "BadDocument")?;
        }
        house.logged(&["message refused", "west", "BadDocument"]).await?;
        denied(impostor.propose("quorate.intent/99", b"{}").await, "BadDocument")?;
        house.logged(&["message refused", "quorate.intent/99", "update the older side"]).await?;
        let nested = "[".repeat(200_000);
        denied(impostor.propose(format::INTENT, nested.as_bytes()).await, "BadDocument")?;
        let large = impostor.propose(format::INTENT, &vec![b' '; 6 * 1024 * 1024]).await;
        ensure!(large.is_err(), "6 MiB were read");

        let mut stream = TcpStream::connect(house.east()?.mesh()).await?;
        stream.write_all(&[0xff; 4096]).await?;
        let mut rest = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await;
        ensure!(end.is_ok(), "a connection with garbage stays open");
        house.unharmed().await
    })
}

/// Connections that say nothing: more than one source may have. They end by themselves, and others get in meanwhile.
fn slow_loris(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let mut idle = Vec::new();
        for _ in 0..200 {
            idle.push(TcpStream::connect(house.east()?.mesh()).await?);
        }
        house.goes_on("main").await?;
        house.goes_on("other").await?;
        // Whoever comes after the handshake's time is let in again: silent connections were closed.
        let impostor = house.impostor()?;
        let patience = tokio::time::timeout(Duration::from_mins(1), async {
            while impostor.hello().await.is_err() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        patience.await.context("west is never let in again")?;
        let mut closed = 0;
        for stream in &mut idle {
            let mut byte = [0];
            let end = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut byte)).await;
            closed += usize::from(matches!(end, Ok(Ok(0) | Err(_))));
        }
        ensure!(closed == idle.len(), "{} silent connections stay open", idle.len() - closed);
        house.unharmed().await
    })
}

/// Many views of many federations in one stream: memory stays bounded, and the federations go on.
fn flood(minor: Minor) -> Result<Outcome> {
    at_home(minor, |house| async move {
        let impostor = house.impostor()?;
        let body = observation("west")?;
        let messages = (0..20_000).map(|number: u64| {
            let envelope = Envelope { name: format!("federation-{}", number % 5_000), ..impostor.next() };
            Impostor::view(envelope, format::OBSERVATION, &body, number)
        });
        let before = memory(&house)?;
        impostor.stream(messages.collect(), MOMENT).await;
        house.logged(&["message refused", "too many federations"]).await?;
        let grown = memory(&house)?.saturating_sub(before);
        ensure!(grown < 64 * 1024, "the agent grew by {grown} KiB");
        house.unharmed().await
    })
}

/// Resident memory of the agent, KiB.
fn memory(house: &crate::house::House) -> Result<u64> {
    use quorate_cli::demo::process::Kind;
    let agents = house.field.mesh.run.of("east", Kind::Agent);
    let agent = agents.first().context("no agent")?;
    let text = std::fs::read_to_string(format!("/proc/{}/status", agent.pid))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
