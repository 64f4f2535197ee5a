//! `quorate adopt`: looks at an etcd that quorate did not create, says what is missing and what will be done, and on request
//! writes what the agents need. Deciding and doing it step by step is theirs.

mod judge;
mod look;
mod model;
mod text;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

use quorate_api::config::SiteConfig;
use quorate_api::manifest::{self, Manifest};
use quorate_core::condition::PlanLine;
use quorate_core::id::{FederationKey, ObjectName, SiteName};
use serde::Serialize;

use super::Outcome;
use super::target::load;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::progress::Spinner;
use crate::output::{Plain, json, print};
use judge::{Check, Verdict};

/// Take over an etcd that quorate did not create: stretch it into the sites by learners, then let its members go.
///
/// Without --yes nothing is changed: every check is shown, and the steps that the agents would take. With it the credentials
/// go into the adopt folder of this site and the FederatedEtcd into its manifests; apply the same FederatedEtcd at the other
/// sites, and the agents do the rest.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate adopt etcd/main --endpoints https://10.0.0.5:2379 --cacert ca.crt --cert client.crt --key client.key --peer-ca peer-ca.crt --peer-ca-key peer-ca.key --config /etc/quorate/quorate.yaml
  $ quorate adopt etcd/main --endpoints https://10.0.0.5:2379 --cacert ca.crt --cert client.crt --key client.key --peer-ca peer-ca.crt --config /etc/quorate/quorate.yaml --clusters east,west,north -o json
  $ quorate adopt etcd/main --endpoints https://10.0.0.5:2379 --cacert ca.crt --cert client.crt --key client.key --peer-ca peer-ca.crt --peer-ca-key peer-ca.key --config /etc/quorate/quorate.yaml --yes")]
pub(super) struct Args {
    /// NAMESPACE/NAME that the federation will have
    federation: String,
    /// Client URLs of the etcd; those that its members tell are tried too
    #[arg(long, required = true, value_delimiter = ',', value_name = "URLS")]
    endpoints: Vec<String>,
    /// The root of the etcd's client ports
    #[arg(long, value_name = "FILE")]
    cacert: PathBuf,
    /// A client certificate that the etcd accepts
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// Its key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The root of the etcd's peer ports
    #[arg(long, value_name = "FILE")]
    peer_ca: PathBuf,
    /// The key of that root, which then stays at this site; without it the requests of all sites are signed by hand
    #[arg(long, value_name = "FILE")]
    peer_ca_key: Option<PathBuf>,
    /// The configuration of this site's agent, which will speak for the members of the etcd
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The sites of the federation (default: this one and all its peers)
    #[arg(long, value_delimiter = ',', value_name = "SITES")]
    clusters: Vec<SiteName>,
    /// Voters in total (default: by the number of sites)
    #[arg(long, value_name = "N")]
    members: Option<u32>,
    /// The heartbeat interval of the etcd, if it is not 100 ms
    #[arg(long, value_name = "MS")]
    heartbeat_ms: Option<u32>,
    /// The election timeout of the etcd, if it is not 1000 ms
    #[arg(long, value_name = "MS")]
    election_ms: Option<u32>,
    /// The quota of the etcd; from 3.6 on it is asked
    #[arg(long, value_name = "BYTES")]
    quota_bytes: Option<u64>,
    /// Do it
    #[arg(long)]
    yes: bool,
    /// Change nothing, even with --yes
    #[arg(long)]
    dry_run: bool,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Plain,
}

/// What came of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    federation: String,
    cluster: String,
    cluster_id: Option<String>,
    version: Option<String>,
    members: Vec<judge::Member>,
    checks: Vec<Check>,
    plan: Vec<PlanLine>,
    /// The FederatedEtcd, the same for all sites.
    manifest: Option<String>,
    /// What was written, if anything was.
    written: Vec<PathBuf>,
}

pub(super) async fn run(args: Args) -> Outcome {
    let key = key(&args.federation)?;
    let site = load(&args.config, &[])?;
    let clusters = clusters(&args, &site)?;
    let facts = {
        let _spinner = Spinner::start("looking at the etcd and its ports");
        look::look(&args, &site, &Client::new(site.socket())).await?
    };
    let mut checks = judge::checks(&facts, &key, &site.site, args.peer_ca_key.is_some());
    let manifest =
        facts.seen.as_ref().map(|seen| text::manifest(&args, &key, &site.site, &clusters, seen, &facts));
    let parsed = match &manifest {
        Some(text) => Some(read(text)?),
        None => None,
    };
    let plan = match (&facts.seen, &parsed) {
        (Some(seen), Some(wanted)) => model::plan(seen, wanted, &site.site),
        _ => Vec::new(),
    };
    if let Some(wanted) = &parsed {
        checks.extend(judge::names(wanted, &site));
    }
    let missing = checks.iter().filter(|check| check.verdict == Verdict::Missing).count();
    let mut written = Vec::new();
    if let (true, false, 0, Some(text)) = (args.yes, args.dry_run, missing, &manifest) {
        written = write::write(&args, &key, &site, text)?;
    }
    let report = Report {
        federation: key.to_string(),
        cluster: site.site.to_string(),
        cluster_id: facts.seen.as_ref().map(|seen| format!("{:x}", seen.cluster)),
        version: facts.seen.as_ref().and_then(judge::minor),
        members: facts.seen.as_ref().map(judge::members).unwrap_or_default(),
        checks,
        plan,
        manifest,
        written,
    };
    print(&match args.output {
        Plain::Json => json::json(&report)?,
        Plain::Yaml => json::yaml(&report)?,
        Plain::Table => text::report(&report, &clusters, &site.site, missing),
    });
    if missing == 0 { Ok(ExitCode::SUCCESS) } else { Ok(ExitCode::from(Exit::Unsafe as u8)) }
}

fn key(text: &str) -> Result<FederationKey, Failure> {
    let wrong = || Failure::message(Exit::Usage, format!("{text:?} is not NAMESPACE/NAME, both DNS labels"));
    let (namespace, name) = text.split_once('/').ok_or_else(wrong)?;
    let label = |text: &str| ObjectName::new(text).map_err(|_| wrong());
    Ok(FederationKey { namespace: label(namespace)?, name: label(name)? })
}

/// The sites of the federation; this one must be among them, and the others must be peers.
fn clusters(args: &Args, site: &SiteConfig) -> Result<Vec<SiteName>, Failure> {
    let known: Vec<SiteName> =
        [site.site.clone()].into_iter().chain(site.peers.iter().map(|peer| peer.site.clone())).collect();
    if args.clusters.is_empty() {
        return Ok(known);
    }
    if let Some(stranger) = args.clusters.iter().find(|cluster| !known.contains(cluster)) {
        let message = format!("{stranger} is no peer of {} in {}", site.site, args.config.display());
        return Err(Failure::message(Exit::Usage, message)
            .hint("name this site and its peers; `quorate mesh invite` brings in a new one"));
    }
    if !args.clusters.contains(&site.site) {
        let message = format!("{} is not in --clusters, but it has to speak for the etcd", site.site);
        return Err(Failure::message(Exit::Usage, message).hint("run this at one of the sites that you name"));
    }
    Ok(args.clusters.clone())
}

/// What the agents will read; a mistake in it is one of the arguments.
fn read(text: &str) -> Result<Manifest, Failure> {
    let problems = match manifest::parse(text) {
        Ok(mut found) if found.len() == 1 => return Ok(found.remove(0)),
        Ok(_) => "it describes nothing".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Failure::message(Exit::Usage, format!("no FederatedEtcd can be made of this: {problems}")))
}

#[cfg(test)]
mod tests;
