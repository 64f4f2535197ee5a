//! An operator's day on the command line: foresee, apply, examine, lose, and collect.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorate_cli::demo::mesh::manifest;
use quorate_cli::demo::process::Kind;
use quorate_cli::demo::watch::member_ids;
use quorate_core::federation::view::HEARD_MS;
use quorate_e2e::field::{FEDERATION, Field};
use quorate_e2e::net::{self, Net};
use quorate_e2e::suite::Minor;
use quorate_link::clock::Clock;
use serde_json::Value;

/// By then three probes in a row have failed.
const MISSED: Duration = Duration::from_mins(1);

/// A command line at one site.
struct Desk<'a> {
    field: &'a Arc<Field>,
    site: &'static str,
}

/// What a command said.
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.out).with_context(|| format!("not JSON: {}\n{}", self.out, self.err))
    }
}

impl Desk<'_> {
    async fn run(&self, args: &[&str]) -> Result<Said> {
        let site = self.field.site(self.site)?;
        let mut command = self.field.mesh.command(site);
        command.args(args).arg("--config").arg(site.config());
        let Output { status, stdout, stderr } =
            tokio::process::Command::from(command).stdin(std::process::Stdio::null()).output().await?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Said { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) })
    }

    /// The same, and it has to end with this code.
    async fn expect(&self, code: i32, args: &[&str]) -> Result<Said> {
        let said = self.run(args).await?;
        if said.code != code {
            bail!(
                "{args:?} at {} ended with {}, not {code}:\n{}{}",
                self.site,
                said.code,
                said.out,
                said.err
            );
        }
        Ok(said)
    }
}

fn contains(text: &str, words: &[&str]) -> Result<()> {
    match words.iter().find(|word| !text.contains(**word)) {
        Some(missing) => bail!("{missing:?} is not in:\n{text}"),
        None => Ok(()),
    }
}

/// The findings of a doctor as `severity check place`.
fn findings(doctor: &Value, severity: &str) -> Vec<String> {
    let all = doctor.get("findings").and_then(Value::as_array).into_iter().flatten();
    let wanted = all.filter(|finding| finding["severity"] == severity);
    wanted.map(|f| format!("{} {}: {}", f["check"], f["place"], f["message"]).replace('"', "")).collect()
}

fn file(folder: &Path, name: &str, text: &str) -> Result<String> {
    let path = folder.join(name);
    std::fs::write(&path, text)?;
    Ok(path.display().to_string())
}

#[test]
fn a_day_on_the_command_line() -> Result<()> {
    let net = Net::new(&["east", "west", "north", "south"])?;
    net::within(&net, |net| async move {
        let field = Arc::new(Field::on(&net, Minor::V3_6, &[]).await?);
        let day = async {
            birth(&field).await?;
            foresee(&field).await?;
            examine(&field).await?;
            swap(&field).await?;
            lose(&field).await?;
            bundle(&field).await
        };
        day.await.map_err(|error| error.context(field.logs()))
    })
}

fn desk<'a>(field: &'a Arc<Field>, site: &'static str) -> Desk<'a> {
    Desk { field, site }
}

/// The first file: foreseen, refused without a yes, written at three sites, waited for.
async fn birth(field: &Arc<Field>) -> Result<()> {
    field.start().await?;
    let three = field.spec(&["east", "west", "north"], &[]);
    let main = file(field.folder(), "main.yaml", &three)?;
    let east = desk(field, "east");
    let manifests = field.site("east")?.manifests();

    let dry = east.expect(0, &["apply", "-f", &main, "--dry-run"]).await?;
    contains(
        &dry.out,
        &[
            "demo/main: a new federation",
            "plan: 4 steps",
            "AddLearner north/default-0",
            "it is needed at:      west, north",
        ],
    )?;
    contains(
        &dry.out,
        &[
            "I12: 2 voters survive no more losses than 1",
            "afterwards it survives the loss of any one cluster",
        ],
    )?;
    let refused = east.expect(2, &["apply", "-f", &main]).await?;
    contains(&refused.err, &["nothing was written", "--yes"])?;
    let broken = file(field.folder(), "broken.yaml", &three.replace("clusters", "clustres"))?;
    let refused = east.expect(2, &["apply", "-f", &broken, "--yes"]).await?;
    contains(&refused.err, &["broken.yaml:5: spec.clustres: unknown field", "did you mean"])?;
    if std::fs::read_dir(&manifests)?.next().is_some() {
        bail!("something was written");
    }

    // One site alone waits, and says for whom.
    let late = east.expect(5, &["apply", "-f", &main, "--yes", "--timeout", "3"]).await?;
    contains(&late.err, &["not as wished after 3 s", "WaitingForClusters"])?;
    desk(field, "west").expect(0, &["apply", "-f", &main, "--yes", "--wait=false"]).await?;
    let born = desk(field, "north").expect(0, &["apply", "-f", &main, "--yes", "--timeout", "120"]).await?;
    contains(
        &born.out,
        &["written: ", "demo.main.yaml", "demo/main: generation 1 is in force, 3 of 3 voters alive"],
    )?;
    contains(&born.err, &["demo/main: "])?;
    field.until_settled(&field.in_spec(&three), 3).await?;
    let again = east.expect(0, &["apply", "-f", &main, "--yes", "-o", "json"]).await?.json()?;
    assert_eq!(
        (&again[0]["unchanged"], &again[0]["written"], &again[0]["done"]),
        (&true.into(), &Value::Null, &true.into())
    );
    Ok(())
}

/// The plan of a change, and what a loss would do: nothing happens.
async fn foresee(field: &Arc<Field>) -> Result<()> {
    let east = desk(field, "east");
    let before = field.watch.statuses();
    let swapped = file(field.folder(), "swap.yaml", &field.spec(&["east", "north", "south"], &[]))?;
    let dry = east.expect(0, &["apply", "-f", &swapped, "--dry-run"]).await?;
    contains(
        &dry.out,
        &["generation 1 -> 2", "+ member south/default-0", "- member west/default-0", "plan: "],
    )?;
    contains(
        &dry.out,
        &["waits   ActivationPending", "Promote the new member of south/default-0", "I12: 4 voters"],
    )?;
    contains(&dry.out, &["of west/default-0   (ReplaceLive/", "it is needed at:      north, south"])?;
    contains(&dry.out, &["-- name: west", "+- name: south"])?;
    let plan = east.expect(0, &["apply", "-f", &swapped, "--dry-run", "-o", "json"]).await?.json()?;
    let margins = plan[0]["plan"].as_array().context("no plan")?.iter();
    assert!(
        margins
            .map(|line| line["after"].as_str().unwrap_or_default())
            .all(|after| after.ends_with("margin 1")),
        "{plan}"
    );
    let live = east.expect(0, &["plan", "demo/main"]).await?;
    contains(&live.out, &["nothing to do, the members are as wished"])?;

    let leader = field.leader().await?;
    let lost = format!("site={leader}");
    let said = east.expect(0, &["simulate", "--lose", &lost, "-o", "json"]).await?.json()?;
    assert_eq!((&said[0]["writable"], &said[0]["election"]), (&true.into(), &true.into()), "{said}");
    assert_eq!(said[0]["next"]["reason"]["code"], "LostMemberUnconfirmed", "{said}");
    assert!(
        said[0]["second"].as_array().context("no second")?.iter().all(|second| second["writable"] == false)
    );
    let two = east.expect(0, &["simulate", "--lose", "site=west", "--lose", "member=main-north-0"]).await?;
    contains(&two.out, &["WRITES STOP", "I11 QuorumLost"])?;
    let unknown = east.expect(2, &["simulate", "--lose", "zone=nowhere"]).await?;
    contains(&unknown.err, &["no member is in zone nowhere", "hint: its members are in"])?;

    let after = field.watch.statuses();
    let ids = |statuses: &quorate_cli::demo::watch::Statuses| {
        statuses.get("east").map(|status| {
            (status.generation, status.members.iter().map(|m| m.id.clone()).collect::<Vec<_>>())
        })
    };
    assert_eq!(ids(&before), ids(&after));
    Ok(())
}

/// A healthy mesh has no errors, and each site knows how far every other one is.
async fn examine(field: &Arc<Field>) -> Result<()> {
    for site in ["east", "west", "south"] {
        let said = desk(field, site).run(&["doctor", "-o", "json"]).await?;
        let doctor = said.json()?;
        let errors: Vec<String> =
            findings(&doctor, "error").into_iter().filter(|text| !text.starts_with("disk")).collect();
        assert_eq!(errors, [] as [String; 0], "{}", said.out);
        assert!(said.code <= 2, "{}", said.code);
        let peers = doctor["agent"]["peers"].as_array().context("no peers")?;
        assert_eq!(peers.len(), 3);
        for peer in peers {
            assert!(peer["ageMs"].as_u64().is_some_and(|age| age < HEARD_MS), "{peer}");
            assert!(
                peer["rttUs"].as_u64().is_some_and(|us| us < 1_000_000) && peer["trouble"].is_null(),
                "{peer}"
            );
            assert!(peer["clockSkewMs"].as_i64().is_some_and(|skew| skew.abs() < 2_000), "{peer}");
            assert!(peer["certificateEnds"].as_u64().is_some() && peer["protocol"] == 1, "{peer}");
            assert_eq!(peer["hears"].as_array().map(Vec::len), Some(3), "{peer}");
        }
        assert!(doctor["host"]["certificates"].as_array().is_some_and(|files| files.len() > 5));
        assert!(doctor["host"]["etcds"].as_array().is_some_and(|etcds| !etcds.is_empty()), "{doctor}");
        if site != "south" {
            let ports = doctor["host"]["peerPorts"].as_array().context("no peer ports")?;
            assert_eq!(ports.len(), 3, "{ports:?}");
            assert_eq!(doctor["federations"][0]["links"].as_array().map(Vec::len), Some(9), "{doctor}");
        }
    }
    let text = desk(field, "east").run(&["doctor"]).await?;
    contains(&text.out, &["AGENT HEARS", "REACHES PEER PORT", "HOLDS SPEC", "state folder", "3.6."])?;
    Ok(())
}

/// West goes, south comes, while a writer runs.
async fn swap(field: &Arc<Field>) -> Result<()> {
    let writer = field.writer().await?;
    let spec = field.spec(&["east", "north", "south"], &[]);
    let swapped = file(field.folder(), "swap.yaml", &spec)?;
    for site in ["east", "north", "west"] {
        desk(field, site).expect(0, &["apply", "-f", &swapped, "--yes", "--wait=false"]).await?;
    }
    let done = desk(field, "south")
        .expect(0, &["apply", "-f", &swapped, "--yes", "--timeout", "180", "-o", "json"])
        .await?;
    assert_eq!(done.json()?[0]["done"], true);
    let now = field.until_settled(&field.in_spec(&spec), 3).await?;
    assert!(member_ids(&now, "west").is_empty());
    field.outcome(&writer).await?;
    Ok(())
}

/// A site that is gone is named by the doctor, by the plan, and with the lines to paste.
async fn lose(field: &Arc<Field>) -> Result<()> {
    for kind in [Kind::Agent, Kind::Member, Kind::Etcd] {
        field.mesh.run.kill("south", kind);
    }
    field
        .until("south to be missing", |now| {
            now.get("east").is_some_and(|status| status.arithmetic.alive == 2 && status.reason.is_some())
        })
        .await?;
    let east = desk(field, "east");
    // A link is down once three probes in a row have failed.
    let words = [
        "mesh south to east: south was last heard",
        "links demo/main: north to south/default-0",
        "peer ports",
    ];
    let clock = Clock::start();
    loop {
        let doctor = east.expect(2, &["doctor", "-o", "json"]).await?.json()?;
        match contains(&findings(&doctor, "error").join("\n"), &words) {
            Err(missing) if clock.elapsed() > MISSED => return Err(missing),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            Ok(()) => break,
        }
    }
    let back = file(field.folder(), "back.yaml", &field.spec(&["east", "north", "west"], &[]))?;
    let dry = east.expect(0, &["apply", "-f", &back, "--dry-run"]).await?;
    contains(
        &dry.out,
        &["I3 LostMemberUnconfirmed", "lostMembers: [", "Only if that member's disk is gone for good"],
    )?;
    // With the lines pasted the same file is foreseen to its end.
    let id =
        member_ids(&field.watch.statuses(), "south").into_iter().next().context("south has no member")?;
    let clusters = ["east", "north", "west"].map(|site| format!("{{name: {site}}}")).join(", ");
    let text = manifest(FEDERATION, &[]).replace(
        "clusters: []",
        &format!("clusters: [{clusters}, {{name: south, members: 0, lostMembers: [\"{id}\"]}}]"),
    );
    let lost = file(field.folder(), "lost.yaml", &text)?;
    let dry = east.expect(0, &["apply", "-f", &lost, "--dry-run"]).await?;
    contains(&dry.out, &["of south/default-0   (ReplaceDead/", "AddLearner west/default-0"])?;
    Ok(())
}

/// Every form in which the secret of a key file could be found again.
fn secrets(state: &Path) -> Result<Vec<String>> {
    let mut folders = vec![state.to_owned()];
    let mut lines = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "key") {
                let text = std::fs::read_to_string(&path)?;
                lines.extend(
                    text.lines().filter(|line| line.len() > 16 && !line.starts_with('-')).map(str::to_owned),
                );
            }
        }
    }
    Ok(lines)
}

fn read_all(folder: &Path, into: &mut Vec<(PathBuf, Vec<u8>)>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { read_all(&path, into)? } else { into.push((path.clone(), std::fs::read(&path)?)) }
    }
    Ok(())
}

/// All of a real site, and not one byte of its keys or of what the writer wrote.
async fn bundle(field: &Arc<Field>) -> Result<()> {
    let to = field.folder().join("bundle");
    desk(field, "east").expect(0, &["support-bundle", "-o", &to.display().to_string()]).await?;
    let mut files = Vec::new();
    read_all(&to, &mut files)?;
    let names: Vec<String> = files
        .iter()
        .filter_map(|(path, _)| Some(path.strip_prefix(&to).ok()?.display().to_string()))
        .collect();
    for wanted in [
        "README.md",
        "agent.log",
        "config.yaml",
        "doctor.json",
        "doctor.txt",
        "metrics.txt",
        "site.json",
        "version.json",
        "federations/demo.main/status.json",
        "federations/demo.main/view.json",
        "federations/demo.main/events.json",
        "federations/demo.main/manifest.yaml",
        "state/federations/demo.main/record.json",
        "state/federations/demo.main/members/main-east-0/etcd.log",
        "state/federations/demo.main/members/main-east-0/supervisor.log",
    ] {
        assert!(names.iter().any(|name| name == wanted), "{wanted} is not in {names:#?}");
    }
    let secrets = secrets(&field.site("east")?.state())?;
    assert!(secrets.len() > 20, "{}", secrets.len());
    let key = String::from_utf8_lossy(quorate_cli::demo::writer::key(0).as_ref()).into_owned();
    let prefix = key.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    assert!(prefix.len() > 2, "{key}");
    for (path, content) in &files {
        let text = String::from_utf8_lossy(content);
        let found = secrets.iter().find(|secret| text.contains(secret.as_str()));
        assert!(found.is_none(), "a private key is in {}", path.display());
        assert!(!text.contains(&prefix), "a key of a user is in {}", path.display());
    }
    let archive = field.folder().join("east.tar.zst").display().to_string();
    desk(field, "east").expect(0, &["support-bundle", "-o", &archive]).await?;
    assert!(std::fs::metadata(&archive)?.len() > 10_000);
    Ok(())
}
