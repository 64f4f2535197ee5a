//! Taking over an etcd that quorate did not create, and letting its members go.

use std::future::Future;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::mesh::{CLIENT_PORT, Site};
use quorate_cli::demo::process::Kind;
use quorate_e2e::field::{FEDERATION, Field, UP};
use quorate_e2e::foreign::{self, Foreign, file, report};
use quorate_e2e::net::{self, Net};
use quorate_e2e::suite::{ALL, Case, Minor, Outcome};
use quorate_link::clock::Clock;
use quorate_link::etcd::PeerPort;
use quorate_link::pki::{Leaf, Pair, SitePki};
use quorate_link::tls::EtcdTls;
use serde_json::Value;

use crate::course::{Course, PATIENCE, case};

pub(crate) const CASES: &[Case] = &[
    Case { name: "adopt::one_foreign_member", minors: ALL, short: Some(Minor::V3_6), run: one },
    case("adopt::three_foreign_members", three),
    case("adopt::agents_die_meanwhile", agents_die),
];

const OURS: [&str; 3] = ["east", "north", "west"];
const SLOTS: [&str; 3] = ["east-0", "north-0", "west-0"];
const ADDED: [&str; 6] =
    ["LearnerAdded", "LearnerPromoted", "LearnerAdded", "LearnerPromoted", "LearnerAdded", "LearnerPromoted"];

/// A foreign etcd of so many members with a writer at it, and three sites whose agents have nothing to do yet.
fn beside<F>(minor: Minor, members: u16, case: impl FnOnce(Course, Foreign) -> F + Send) -> Result<Outcome>
where
    F: Future<Output = Result<Outcome>>,
{
    let net = Net::new(&[&OURS[..], &[foreign::NAME]].concat())?;
    net::within(&net, |net| async move {
        let field = Arc::new(Field::among(&net, minor, &[], &OURS).await?);
        let whole = async {
            let foreign = Foreign::start(&field, members).await?;
            field.start().await?;
            let writer = foreign.writer(&field).await?;
            let course = Course::beside(Arc::clone(&field), writer, foreign.clients().await?);
            case(course, foreign).await
        };
        whole.await.map_err(|error| anyhow::anyhow!("{error:#}\nlogs:\n{}", field.logs()))
    })
}

/// The manifest that `quorate adopt` has written goes to the other sites too.
fn apply_elsewhere(course: &Course, at: &str, manifest: &str) -> Result<()> {
    let mut others = course.field.mesh.sites.iter().filter(|site| site.name != at);
    others.try_for_each(|site| site.apply(&file(), manifest))
}

/// Nobody is listed but our members, and the old ones have ended by themselves; it was one etcd all the time.
async fn let_go(course: &mut Course, foreign: &Foreign, cluster: &str) -> Result<()> {
    course.settled(&course.field.sites.clone(), &SLOTS).await?;
    let removals = vec!["VoterRemoved"; usize::from(foreign.members)];
    course.took(&[&ADDED[..], &removals].concat()).await?;
    course.field.mesh.run.gone(foreign::NAME, &[Kind::Etcd], UP).await?;
    let ids: Vec<String> = course.field.watch.cluster_ids().into_iter().collect();
    ensure!(ids == [cluster], "these clusters were seen: {ids:?}, not {cluster} alone");
    for voter in course.field.voters().await? {
        let found = format!("{:x}", voter.status().await?.header.cluster_id);
        ensure!(found == cluster, "{} is of cluster {found}, not of {cluster}", voter.endpoint());
    }
    Ok(())
}

/// The whole of it without a fault; what the writer felt of it counts as planned.
async fn taken_over(course: &mut Course, foreign: &Foreign, at: &str) -> Result<String> {
    let cluster = foreign.cluster_id().await?;
    let begun = course.now();
    let manifest = foreign.hand_over(course.field.site(at)?).await?;
    apply_elsewhere(course, at, &manifest)?;
    let_go(course, foreign, &cluster).await?;
    course.planned_since(begun);
    Ok(manifest)
}

/// One member, and a look before that changes nothing.
fn one(minor: Minor) -> Result<Outcome> {
    beside(minor, 1, |mut course, foreign| async move {
        looks(&course, &foreign).await?;
        taken_over(&mut course, &foreign, "west").await?;
        course.end(&OURS, &SLOTS, 0).await
    })
}

/// A look says what is missing, or what will be done, and changes nothing.
async fn looks(course: &Course, foreign: &Foreign) -> Result<()> {
    let (site, ca) = (course.field.site("west")?, foreign.ca());
    let stranger = SitePki::init(&course.field.folder().join("stranger"), "x", "x.test")?;
    let wrong = Pair::at(stranger.folder(), "peer-ca");
    let key = wrong.key.display().to_string();
    let refused = foreign.adopt(site, &wrong.cert, &["--peer-ca-key", &key, "--yes"]).await?;
    let told = report(&refused)?;
    ensure!(refused.status.code() == Some(3), "a wrong peer CA is no reason to refuse: {told:#}");
    let all = told["checks"].as_array().context("no checks")?;
    let missing: Vec<&Value> = all.iter().filter(|check| check["verdict"] == "missing").collect();
    ensure!(missing.len() == 1 && missing[0]["what"] == "peer ports", "not the peer ports: {missing:?}");

    let key = ca.key.display().to_string();
    let look = foreign.adopt(site, &ca.cert, &["--peer-ca-key", &key]).await?;
    let told = report(&look)?;
    ensure!(look.status.success(), "a look found something missing: {told:#}");
    ensure!(told["clusterId"].as_str() == Some(&foreign.cluster_id().await?), "another cluster: {told:#}");
    // Three learners, three promotions, the way out of leadership, the removal.
    ensure!(told["plan"].as_array().map(Vec::len) == Some(8), "not the whole plan: {told:#}");
    for told in [report(&refused)?, told] {
        ensure!(told["written"].as_array().is_some_and(Vec::is_empty), "a look has written: {told:#}");
    }
    ensure!(!site.manifests().join(format!("{}.yaml", file())).exists(), "a look has applied a manifest");
    for client in foreign.clients().await? {
        let list = client.member_list(true).await?.members;
        ensure!(list.len() == usize::from(foreign.members), "a look has changed the members: {list:?}");
    }
    Ok(())
}

/// Three members; afterwards the trust in their CA goes, without a restart.
fn three(minor: Minor) -> Result<Outcome> {
    beside(minor, 3, |mut course, foreign| async move {
        let manifest = taken_over(&mut course, &foreign, "east").await?;
        let uid = course.field.watch.statuses()["east"].uid.context("no uid")?.to_string();
        for site in &course.field.mesh.sites {
            ensure!(!on_own_roots(&course, site, &uid).await?, "{} left the foreign CA early", site.name);
            ensure!(flag(&course, &site.name, "peer-cert-allowed-cn").is_none(), "the common name is pinned");
        }

        // etcd reads certificates with each handshake, so the foreign ones go with spec.adopt.
        let (etcds, generation) = (course.field.etcds(), course.generation());
        let (without, _) = manifest.split_once("  adopt:").context("no adopt in the manifest")?;
        course.field.mesh.sites.iter().try_for_each(|site| site.apply(&file(), without))?;
        course.effective(&course.field.sites, generation).await?;
        let clock = Clock::start();
        for site in &course.field.mesh.sites {
            while !on_own_roots(&course, site, &uid).await? {
                ensure!(clock.elapsed() < PATIENCE, "{} shows the foreign CA still", site.name);
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
        course.settled(&course.field.sites, &SLOTS).await?;
        ensure!(course.field.etcds() == etcds, "an etcd was restarted for that");

        course.margin_was(1)?;

        // What etcd reads only at its start goes with the next one.
        let leader = course.field.leader().await?;
        let follower = course.field.other_than(&[&leader])?;
        course.field.mesh.run.kill(&follower, Kind::Member);
        let pinned = |course: &Course| Ok(flag(course, &follower, "peer-cert-allowed-cn").map(drop));
        course.for_a("a follower that pins the common name again", pinned).await?;
        let bundle = course.field.site(&follower)?.member(FEDERATION, &format!("{FEDERATION}-{follower}-0"));
        ensure!(bundle.exists(), "{} is gone", bundle.display());
        course.settled(&course.field.sites, &SLOTS).await?;
        course.forget_margin();
        course.end(&OURS, &SLOTS, 1).await
    })
}

/// The value of a flag of the etcd at a site.
fn flag(course: &Course, site: &str, name: &str) -> Option<String> {
    course.field.mesh.run.of(site, Kind::Etcd).first()?.flag(name).map(str::to_owned)
}

/// Whether the peer port of a site shows a certificate of that site's own root, and lets one of ours in.
async fn on_own_roots(course: &Course, site: &Site, uid: &str) -> Result<bool> {
    let pair = Pair::at(&course.field.folder().join("probe"), &site.name);
    let pki = site.pki()?;
    pki.ensure(&Leaf::Probe { uid: uid.to_owned() }, &pair)?;
    let tls = EtcdTls::load(pki.trust().peer_path(&site.name), pair)?;
    let url = format!("https://{FEDERATION}-{0}-0.{0}.quorate.test:2380", site.name);
    let port = PeerPort::new(&url, tls)?.at(format!("{}:{}", site.address, CLIENT_PORT + 1));
    Ok(port.probe().await.is_ok())
}

/// The agent that speaks for the foreign members dies twice: before its etcd has anything of ours, and between the
/// removals. Meanwhile writes go on and nothing is removed; then it is as if nothing had been.
fn agents_die(minor: Minor) -> Result<Outcome> {
    beside(minor, 3, |mut course, foreign| async move {
        let cluster = foreign.cluster_id().await?;
        let manifest = foreign.hand_over(course.field.site("east")?).await?;
        apply_elsewhere(&course, "east", &manifest)?;
        for step in ["LearnerAdded", "VoterRemoved"] {
            let taken = |course: &Course| Ok(course.steps().iter().any(|taken| taken == step).then_some(()));
            course.for_a(step, taken).await?;
            course.kill_agents(&["east"]).await?;
            course.writes().await?;
            course.start("east").await?;
        }
        let_go(&mut course, &foreign, &cluster).await?;
        course.end(&OURS, &SLOTS, 1).await
    })
}
