//! The demo that stays up: says what can be tried, and shows how things stand.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::guide::Guide;
use super::mesh::{CLIENT_PORT, Site};
use super::watch::{Watch, settled, table};
use super::writer::Writer;
use super::{FEDERATION, Stage};

const SETTLED: Duration = Duration::from_mins(3);
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Without a terminal a line that replaces itself is noise.
const LOG_LINE_EVERY: u32 = 30;

pub(super) async fn run(stage: &Stage) -> Result<ExitCode> {
    let Stage { mesh, sites, story, clock, .. } = stage;
    story.chapter("four sites, each with its own agent, trust roots and state folder");
    stage.raise().await?;
    let watch = Watch::start(mesh, FEDERATION, Some(story));
    let writer = Writer::start(stage.clients().await?, *clock);
    let _guide = Guide::start(mesh, &watch, &writer);
    let statuses =
        watch.until("three settled voters", SETTLED, |now| settled(now, sites, sites.len())).await?;
    let status = statuses.values().next().context("no status")?;
    story.say("three settled voters");
    story.more(table(status).trim_start_matches('\n'));
    story.line(&suggestions(stage)?);

    let terminal = std::io::stdout().is_terminal();
    let mut before = writer.acknowledged();
    for second in 0_u32.. {
        let now = clock.elapsed();
        tokio::time::sleep(LINE_EVERY).await;
        let acknowledged = writer.acknowledged();
        let gap = writer.longest_gap(now, clock.elapsed()).ms();
        let best =
            watch.statuses().into_values().max_by_key(|status| (status.leader.is_some(), status.generation));
        let how = best.map_or_else(
            || "no agent answers".to_owned(),
            |status| {
                let now = &status.arithmetic;
                let leader = status.members.iter().find(|m| m.leader).map_or("nobody", |m| m.site.as_str());
                format!("voters {}, alive {}, margin {}, leader {leader}", now.voters, now.alive, now.margin)
            },
        );
        let line = format!("{how}; {} writes/s, gap {gap} ms", acknowledged - before);
        before = acknowledged;
        if terminal {
            // The rest of the line before is wiped.
            let _ = write!(std::io::stdout(), "\r\x1b[K  {line}");
            let _ = std::io::stdout().flush();
        } else if second % LOG_LINE_EVERY == 0 {
            story.say(&line);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn suggestions(stage: &Stage) -> Result<String> {
    let Stage { mesh, sites, spare, etcd, .. } = stage;
    let quorate = std::env::current_exe()?.display().to_string();
    let first = mesh.site(sites.first().context("no sites")?)?;
    let second = mesh.site(sites.get(1).context("no second site")?)?;
    let gone = sites.last().context("no sites")?;
    let data = second
        .member(FEDERATION, &format!("{FEDERATION}-{}-0", second.name))
        .join("data")
        .display()
        .to_string();
    let file = |site: &Site| site.manifests().join(format!("{FEDERATION}.yaml")).display().to_string();
    Ok(format!(
        "
Try, in another terminal:
  look            {quorate} status --state-dir {folder} --watch
  use it          {etcdctl} --endpoints https://{address}:{CLIENT_PORT} --cacert {folder}/pki/client-ca.crt \\
                    --cert {user}.crt --key {user}.key member list -w table
  kill a member   pkill -KILL -f data-dir={data}
                    its supervisor starts it again, on its data
  lose a disk     mv {data} {away} && pkill -KILL -f data-dir={data}
                    the member is removed, and another one takes its place
  change sites    sed 's/{{name: {gone}}}/{{name: {spare}}}/' {manifest} > {new}
                  for file in {files}; do cp {new} $file; done
                    the member of {gone} moves to {spare} while writes go on
  kill a site     pkill -KILL -f {gone_folder}
                    agent, supervisor and etcd of {gone} die at once; to bring it back: sh {script}
Ctrl-C ends it and leaves nothing behind.
",
        folder = first.state().display(),
        etcdctl = etcd.join("etcdctl").display(),
        address = first.address,
        user = first.folder.join("user/user").display(),
        away = second.folder.join("lost").display(),
        manifest = file(first),
        new = mesh.run.folder().join("new.yaml").display(),
        files = mesh.sites.iter().map(file).collect::<Vec<_>>().join(" "),
        gone_folder = mesh.site(gone)?.folder.display(),
        script = mesh.script(mesh.site(gone)?)?.display(),
    ))
}
