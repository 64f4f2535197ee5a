//! The file goes at every site, and comes back.

use anyhow::{Result, ensure};
use quorate_cli::demo::process::Kind;
use quorate_cli::demo::watch::Statuses;
use quorate_e2e::field::FEDERATION;
use quorate_e2e::suite::{Case, Minor, Outcome, on_sites};

use crate::course::{Course, PATIENCE, case};

pub(crate) const CASES: &[Case] = &[case("delete::gone_everywhere_and_created_again", gone_and_back)];

const SITES: [&str; 3] = ["east", "north", "west"];
const SLOTS: [&str; 3] = ["east-0", "north-0", "west-0"];

/// Gone at one site it stops nothing; gone at all, every etcd stops and its data stay; created again, the same members go
/// on with them.
fn gone_and_back(minor: Minor) -> Result<Outcome> {
    on_sites(minor, &SITES, &[], |field| async move {
        let spec = field.spec(&SITES, &[]);
        for site in &field.mesh.sites {
            // A folder that is empty is no deletion.
            std::fs::write(site.manifests().join("README"), "the federations of this site\n")?;
        }
        let course = Course::begin(field, &spec, &SLOTS).await?;
        let (members, etcds) = (course.field.members(), course.field.etcds());
        let file = |site: &str| -> Result<_> {
            Ok(course.field.site(site)?.manifests().join(format!("{FEDERATION}.yaml")))
        };
        std::fs::remove_file(file("west")?)?;
        course.said(&["SpecAgreed=False", "SpecDeleted", "site west"]).await?;
        course.writes().await?;
        ensure!(course.field.etcds() == etcds, "an etcd was stopped although two sites still have the file");
        for site in ["east", "north"] {
            std::fs::remove_file(file(site)?)?;
        }
        let deleted = |now: &Statuses| {
            SITES.iter().all(|site| {
                let status = now.get(*site);
                status.is_some_and(|s| s.conditions.iter().any(|c| c.reason == "Deleted"))
            })
        };
        course.until("every site to say that it is deleted", deleted).await?;
        for site in SITES {
            course.field.mesh.run.gone(site, &[Kind::Member, Kind::Etcd], PATIENCE).await?;
        }
        course.field.apply(&spec)?;
        course.settled(&course.field.sites, &SLOTS).await?;
        ensure!(course.field.members() == members, "{members:?} became {:?}", course.field.members());
        course.writes().await?;
        // Nothing runs in between: no voter of three is two less than a majority.
        course.end(&SITES, &SLOTS, -2).await
    })
}
