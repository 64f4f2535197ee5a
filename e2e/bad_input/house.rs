//! Where the bad input arrives: an agent with two federations. What is done to one of them, or to the agent, must leave
//! the other one alone; and what is refused must leave everything as it was.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use quorate_cli::demo::mesh::{NAMESPACE, Site};
use quorate_cli::demo::process::Kind;
use quorate_cli::demo::socket;
use quorate_cli::demo::verify::verify;
use quorate_cli::demo::writer::Writer;
use quorate_core::condition::{ConditionStatus, ConditionType, Status};
use quorate_e2e::field::{FEDERATION, Field, PACE};
use quorate_e2e::stranger::Impostor;
use quorate_e2e::suite::{Minor, Outcome, on_sites};
use quorate_link::clock::Clock;
use quorate_link::etcd::EtcdClient;

/// The federation that goes on.
pub(crate) const OTHER: &str = "other";
const PATIENCE: Duration = Duration::from_mins(1);

/// East runs an agent with the federations `main` and `other`, one voter each. West is a site of the mesh whose agent does
/// not run: whoever speaks for it is a test.
pub(crate) struct House {
    pub(crate) field: Arc<Field>,
    main: Writer,
    other: Writer,
    before: Picture,
    main_is_lost: AtomicBool,
}

/// What bad input must not change.
#[derive(Debug, PartialEq)]
struct Picture {
    records: Vec<serde_json::Value>,
    members: Vec<Vec<String>>,
    etcds: Vec<i32>,
}

/// Runs a case in the house.
pub(crate) fn at_home<F>(minor: Minor, case: impl FnOnce(Arc<House>) -> F + Send) -> Result<Outcome>
where
    F: Future<Output = Result<()>>,
{
    on_sites(minor, &["east", "west"], &[], |field| async move {
        let house = Arc::new(House::begin(field).await?);
        case(Arc::clone(&house)).await?;
        house.end().await
    })
}

impl House {
    async fn begin(field: Arc<Field>) -> Result<Self> {
        let east = field.site("east")?;
        for name in [FEDERATION, OTHER] {
            east.apply(name, &single(&field, name))?;
        }
        field.mesh.start(east)?;
        field.mesh.up(east, PATIENCE).await?;
        let main = Writer::paced(vec![client(east, FEDERATION).await?], field.clock, PACE);
        let other = Writer::paced(vec![client(east, OTHER).await?], field.clock, PACE);
        field.writes(&main).await?;
        field.writes(&other).await?;
        let before = picture(&field).await?;
        Ok(Self { field, main, other, before, main_is_lost: AtomicBool::new(false) })
    }

    pub(crate) fn east(&self) -> Result<&Site> {
        self.field.site("east")
    }

    pub(crate) fn west(&self) -> Result<&Site> {
        self.field.site("west")
    }

    /// Somebody with the good certificate of west, at east's door.
    pub(crate) fn impostor(&self) -> Result<Impostor> {
        Impostor::of(self.west()?, self.east()?, self.field.mesh.id())
    }

    /// The status of a federation at east.
    pub(crate) async fn status(&self, name: &str) -> Result<Status> {
        socket::status(&self.east()?.socket(), NAMESPACE, name).await
    }

    /// Waits until the status of a federation is as wished.
    pub(crate) async fn until(&self, name: &str, what: &str, good: impl Fn(&Status) -> bool) -> Result<()> {
        let clock = Clock::start();
        loop {
            let status = self.status(name).await;
            if status.as_ref().is_ok_and(&good) {
                return Ok(());
            }
            if clock.elapsed() > PATIENCE {
                bail!("{name} never came to {what}: {status:#?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until some condition of a federation says all these words.
    pub(crate) async fn says(&self, name: &str, words: &[&str]) -> Result<()> {
        let says = |status: &Status| {
            let line = |text: String| words.iter().all(|word| text.contains(word));
            line(status.decision.clone())
                || status
                    .conditions
                    .iter()
                    .any(|c| line(format!("{:?}={:?} {} {}", c.kind, c.status, c.reason, c.message)))
        };
        self.until(name, &format!("say {words:?}"), says).await
    }

    /// Waits until the agent's log has a line of level WARN or ERROR with all these words, and returns how many have them.
    pub(crate) async fn logged(&self, words: &[&str]) -> Result<usize> {
        logged(self.east()?, words).await
    }

    /// Both federations write on, and nothing of them has changed.
    pub(crate) async fn unharmed(&self) -> Result<()> {
        self.goes_on(FEDERATION).await?;
        self.goes_on(OTHER).await?;
        let now = picture(&self.field).await?;
        ensure!(now == self.before, "something has changed:\n{:#?}\nbecame\n{now:#?}", self.before);
        Ok(())
    }

    /// One federation writes on.
    pub(crate) async fn goes_on(&self, name: &str) -> Result<()> {
        let writer = if name == OTHER { &self.other } else { &self.main };
        self.field.writes(writer).await.with_context(|| format!("{name} does not write on"))
    }

    /// From here on `main` is what the case has destroyed.
    pub(crate) fn lose_main(&self) {
        self.main_is_lost.store(true, Ordering::Relaxed);
    }

    async fn end(&self) -> Result<Outcome> {
        let mut outcome = Outcome { cluster_ids: 1, voters: 1, ..Outcome::default() };
        let lost = self.main_is_lost.load(Ordering::Relaxed);
        for (name, writer) in [(FEDERATION, &self.main), (OTHER, &self.other)] {
            if lost && name == FEDERATION {
                continue;
            }
            self.until(name, "Ready", |status| {
                let ready = status.conditions.iter().find(|c| c.kind == ConditionType::Ready);
                ready.is_some_and(|c| c.status == ConditionStatus::True)
            })
            .await?;
            self.goes_on(name).await?;
            let acknowledged = writer.stop().await;
            let proof = verify(&[client(self.east()?, name).await?], acknowledged).await?;
            ensure!(proof.lost == 0, "{name} lost {} of {acknowledged} acknowledged keys", proof.lost);
            outcome.acknowledged += acknowledged;
        }
        Ok(outcome)
    }

    /// The folder of a federation's only member.
    pub(crate) fn volume(&self, name: &str) -> Result<PathBuf> {
        Ok(self.east()?.member(name, &format!("{name}-east-0")))
    }
}

/// One voter at east.
pub(crate) fn single(field: &Field, name: &str) -> String {
    let spec = field.spec(&["east"], &["members: 1", "allowSingleVoter: true"]);
    spec.replace("{name: main,", &format!("{{name: {name},"))
}

/// A client of the member of a federation, at the port that the federation has here.
pub(crate) async fn client(site: &Site, name: &str) -> Result<EtcdClient> {
    let clock = Clock::start();
    loop {
        let status = socket::status(&site.socket(), NAMESPACE, name).await;
        let port =
            status.as_ref().ok().and_then(|s| s.endpoints.first()?.rsplit(':').next()?.parse::<u16>().ok());
        if let Some(port) = port {
            let endpoint = format!("https://{}:{port}", site.address);
            return Ok(EtcdClient::connect(&endpoint, &site.user()?).await?);
        }
        if clock.elapsed() > PATIENCE {
            bail!("{name} has no endpoint: {status:#?}; the agent's log:\n{}", site.log_tail(20));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until an agent's log has a line of level WARN or ERROR with all these words; returns how many have them.
pub(crate) async fn logged(site: &Site, words: &[&str]) -> Result<usize> {
    let clock = Clock::start();
    loop {
        let log = std::fs::read_to_string(site.log()).unwrap_or_default();
        let loud = |line: &&str| {
            line.contains("\"WARN\"") || line.contains("\"ERROR\"") || line.starts_with("error:")
        };
        let found =
            log.lines().filter(loud).filter(|line| words.iter().all(|word| line.contains(word))).count();
        if found > 0 {
            return Ok(found);
        }
        if clock.elapsed() > PATIENCE {
            bail!("no warning with {words:?} in the log of {}:\n{log}", site.name);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn picture(field: &Field) -> Result<Picture> {
    let east = field.site("east")?;
    let (mut records, mut members) = (Vec::new(), Vec::new());
    for name in [FEDERATION, OTHER] {
        let file = east.state().join("federations").join(format!("{NAMESPACE}.{name}")).join("record.json");
        let text = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut record: serde_json::Value = serde_json::from_slice(&text)?;
        without_marks(&mut record);
        records.push(record);
        let status = socket::status(&east.socket(), NAMESPACE, name).await?;
        members.push(status.members.into_iter().map(|member| member.id).collect());
    }
    let etcds = field.mesh.run.of("east", Kind::Etcd).into_iter().map(|process| process.pid).collect();
    Ok(Picture { records, members, etcds })
}

/// How far a member was seen moves on by itself, and with it the checksum.
fn without_marks(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(object) => {
            for name in ["mark", "checksum", "state"] {
                object.remove(name);
            }
            object.values_mut().for_each(without_marks);
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(without_marks),
        _ => {}
    }
}
