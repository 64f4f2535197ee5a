//! A voter gets another peer URL: served beside the old one, reached by everybody, listed, and then the old one is gone.

use anyhow::{Context as _, Result, ensure};
use quorate_cli::demo::process::Kind;
use quorate_e2e::field::FEDERATION;
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, case};

pub(crate) const CASES: &[Case] = &[
    Case { short: Some(Minor::V3_6), ..case("address::another_name_and_port_for_a_voter", follower) },
    case("address::another_name_and_port_for_the_leader", leader),
];

const SITES: [&str; 3] = ["east", "north", "west"];
const SLOTS: [&str; 3] = ["east-0", "north-0", "west-0"];
const DOMAIN: &str = "new.quorate.test";
const PORT: u16 = 2680;

fn follower(minor: Minor) -> Result<Outcome> {
    change(minor, false)
}

fn leader(minor: Minor) -> Result<Outcome> {
    change(minor, true)
}

fn change(minor: Minor, of_leader: bool) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        let mut course = Course::begin(field, &spec, &SLOTS).await?;
        let leads = course.field.leader().await?;
        let site = if of_leader { leads } else { course.field.other_than(&[&leads])? };
        let (slot, members, begun) = (format!("{site}-0"), course.field.members(), course.now());
        let id = course.id(&slot)?;
        course.mark();
        course.field.readdress(&site, DOMAIN, PORT)?;
        // Another address takes a restart of the agent, which its member does not notice.
        let etcds = course.field.etcds();
        course.kill_agents(&[&site]).await?;
        ensure!(course.field.etcds() == etcds, "the end of an agent was noticed");
        course.start(&site).await?;

        let url = format!("https://{FEDERATION}-{slot}.{DOMAIN}:{PORT}");
        let all = course.field.etcds().len();
        let mut both = false;
        let alone = format!("https://{}:{PORT}", course.field.site(&site)?.address);
        let listens = |course: &Course| {
            ensure!(course.field.etcds().len() + 1 >= all, "more than one etcd is away");
            let etcds = course.field.mesh.run.of(&site, Kind::Etcd);
            let now = etcds.first().and_then(|etcd| etcd.flag("listen-peer-urls"));
            both |= now.is_some_and(|urls| urls.contains(":2380") && urls.contains(&alone));
            let updated = course.told().iter().any(|told| told.event == "UrlUpdated");
            Ok((updated && now == Some(alone.as_str())).then_some(()))
        };
        course.for_a("etcd on the new port alone, after the update", listens).await?;
        ensure!(both, "it never listened on both ports");
        course.settled(&course.field.sites, &SLOTS).await?;
        course.planned_since(begun);
        course.took(&["UrlUpdated"]).await?;
        ensure!(course.field.members() == members, "a member was replaced");
        for voter in course.field.voters().await? {
            let list = voter.member_list(true).await?;
            let listed = list.members.iter().find(|member| format!("{:x}", member.id) == id);
            let listed = listed.with_context(|| format!("{} does not list {id}", voter.endpoint()))?;
            ensure!(listed.peer_urls == [url.as_str()], "{} lists {:?}", voter.endpoint(), listed.peer_urls);
        }
        course.writes().await?;
        course.end_between(&SITES, &SLOTS, 0, 1).await
    })
}
