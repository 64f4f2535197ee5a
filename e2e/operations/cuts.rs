//! Links are cut and healed: nobody is removed for being silent, and nothing changes without those who have to agree.

use anyhow::{Result, ensure};
use quorate_e2e::net::Traffic;
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, case};

pub(crate) const CASES: &[Case] = &[
    case("cuts::the_mesh_is_cut_while_etcd_is_fine", mesh),
    case("cuts::etcd_is_cut_while_the_mesh_is_fine", etcd),
    case("cuts::one_way", one_way),
    case("cuts::single_links", single),
];

const SITES: [&str; 3] = ["east", "north", "west"];
const SLOTS: [&str; 3] = ["east-0", "north-0", "west-0"];

/// No agent hears another one while a fourth site is to take over from one of three. Writes go on, nothing is changed, each
/// agent says whom it misses; when the mesh is back, it is done.
fn mesh(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &["east", "north", "south", "west"], &[], |field| async move {
        let before = field.spec(&SITES, &[]);
        let after = field.spec(&["east", "north", "south"], &[]);
        let mut course = Course::begin(field, &before, &SLOTS).await?;
        let (members, etcds, begun) = (course.field.members(), course.field.etcds(), course.now());
        course.field.watch.from_now();
        course.mark();
        let net = course.field.net()?;
        for site in ["east", "north", "west"] {
            net.isolate(site, Traffic::Mesh)?;
        }
        for site in SITES {
            course.said(&[&format!("{site}: PeersReachable=False")]).await?;
        }
        // An agent that hears nobody knows of no quorum but by hearsay: hands off, and each of them says so.
        course.field.watch.from_now();
        course.field.apply(&after)?;
        for site in SITES {
            course.said(&[&format!("{site}: SpecAgreed=False"), "ActivationPending"]).await?;
            course.said(&[&format!("{site}: Progressing=True QuorumLost"), "I11"]).await?;
        }
        course.writes().await?;
        ensure!(course.steps().is_empty(), "members were changed without the others: {:?}", course.steps());
        ensure!(course.field.members() == members, "{:?}", course.field.members());
        ensure!(course.field.etcds() == etcds, "an etcd was restarted");
        let generation = course.generation();
        net.heal()?;
        course.effective(&course.field.in_spec(&after), generation).await?;
        course.settled(&course.field.in_spec(&after), &["east-0", "north-0", "south-0"]).await?;
        course.took(&["SpecActivated", "LearnerAdded", "LearnerPromoted", "VoterRemoved"]).await?;
        course.planned_since(begun);
        course.end(&["east", "north", "south"], &["east-0", "north-0", "south-0"], 1).await
    })
}

/// The agents hear each other, but etcd of one site reaches no other one: first a follower's, then the leader's.
fn etcd(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        let mut course = Course::begin(field, &spec, &SLOTS).await?;
        let (members, etcds) = (course.field.members(), course.field.etcds());
        course.mark();
        for leader in [false, true] {
            let leading = course.field.leader().await?;
            let site = if leader { leading } else { course.field.other_than(&[&leading])? };
            let id = course.id(&format!("{site}-0"))?;
            course.field.watch.from_now();
            course.field.net()?.isolate(&site, Traffic::Peer)?;
            // Its agent is heard and says that it runs, and still it does not count.
            course
                .executing(&format!("member {id} not to count while all agents are heard"), |status| {
                    let state =
                        status.members.iter().find(|member| member.id == id).map(|m| m.state.as_str());
                    let heard = status.sites.iter().all(|site| site.reachable);
                    state == Some("unknown") && heard && status.arithmetic.margin == 0
                })
                .await?;
            course.said(&["AllMembersReady=False", &id]).await?;
            course.writes().await?;
            ensure!(course.field.net()?.dropped(&site)? > 0, "nothing was dropped at {site}");
            course.field.net()?.heal()?;
            course.settled(&course.field.sites, &SLOTS).await?;
        }
        unchanged(&course, &members, &etcds)?;
        course.end(&SITES, &SLOTS, 0).await
    })
}

fn unchanged(
    course: &Course,
    members: &std::collections::BTreeSet<String>,
    etcds: &[(String, i32)],
) -> Result<()> {
    ensure!(course.steps().is_empty(), "members were changed: {:?}", course.steps());
    ensure!(course.field.members() == *members, "a member was replaced: {:?}", course.field.members());
    ensure!(course.field.etcds() == etcds, "an etcd was restarted");
    Ok(())
}

/// The leader still sends but hears nothing, and then another leader hears everything but is heard by nobody: each time
/// another one leads, writes go on, and it comes back as it was.
fn one_way(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        let mut course = Course::begin(field, &spec, &SLOTS).await?;
        let (members, etcds) = (course.field.members(), course.field.etcds());
        course.mark();
        for deaf in [true, false] {
            let leader = course.field.leader().await?;
            let net = course.field.net()?;
            course.field.watch.from_now();
            if deaf {
                net.deafen(&leader)?;
            } else {
                for other in SITES.iter().filter(|site| **site != leader) {
                    net.cut_one_way(&leader, other, Traffic::All)?;
                }
            }
            course
                .executing("another site to execute, and to miss the one that led", |status| {
                    let misses =
                        |name: &str| status.sites.iter().any(|site| site.name == name && !site.reachable);
                    status.observed_from != leader && misses(&leader) && status.arithmetic.margin == 0
                })
                .await?;
            course.writes().await?;
            course.field.net()?.heal()?;
            course.settled(&course.field.sites, &SLOTS).await?;
        }
        unchanged(&course, &members, &etcds)?;
        course.end(&SITES, &SLOTS, 0).await
    })
}

/// One link at a time: between two followers, which costs nothing, and between the leader and a follower.
fn single(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        let mut course = Course::begin(field, &spec, &SLOTS).await?;
        let (members, etcds) = (course.field.members(), course.field.etcds());
        course.mark();
        let leader = course.field.leader().await?;
        let follower = course.field.other_than(&[&leader])?;
        let third = course.field.other_than(&[&leader, &follower])?;
        for one in [&third, &leader] {
            course.field.watch.from_now();
            course.field.net()?.cut(one, &follower, Traffic::All)?;
            // Each of the two misses the other one, and the third misses nobody.
            course.said(&[&format!("{follower}: PeersReachable=False"), one]).await?;
            course.said(&[&format!("{one}: PeersReachable=False"), &follower]).await?;
            course.writes().await?;
            course.field.net()?.heal()?;
            course.settled(&course.field.sites, &SLOTS).await?;
        }
        unchanged(&course, &members, &etcds)?;
        course.end(&SITES, &SLOTS, 0).await
    })
}
