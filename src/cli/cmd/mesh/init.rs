//! `quorate mesh init`.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use quorate_agent::store::{Fixed, StateFolder};
use quorate_api::config;
use quorate_core::id::SiteName;
use quorate_link::durable::{PUBLIC, write_file};
use quorate_link::pki::SitePki;
use serde_json::json;

use crate::cmd::Outcome;
use crate::failure::{Exit, Failure};
use crate::output::{Plain, json, print};

/// Make the roots of this site, the leaf of its agent, its state folder and a first configuration.
///
/// Nothing that exists is replaced; the keys of the roots never leave this site.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate mesh init --site east --trust-domain example.com --address 10.0.1.1
  $ quorate mesh init --site west --trust-domain example.com --address 10.0.2.1 --mesh 6f0c8d1e-0000-4000-8000-000000000001")]
pub(super) struct Args {
    /// This site's name, for ever
    #[arg(long)]
    site: SiteName,
    /// The trust domain; the same at all sites
    #[arg(long, value_name = "DOMAIN")]
    trust_domain: String,
    /// The address on which agent, members and etcd listen
    #[arg(long, value_name = "IP")]
    address: IpAddr,
    /// The mesh id; leave it out at the first site only
    #[arg(long, value_name = "UUID")]
    mesh: Option<String>,
    /// Where the agent keeps what it must not forget
    #[arg(
        long,
        value_name = "DIR",
        env = "QUORATE_STATE_DIR",
        hide_env_values = true,
        default_value = "/var/lib/quorate"
    )]
    state_dir: PathBuf,
    /// The folder for FederatedEtcd files
    #[arg(long, value_name = "DIR", default_value = "/etc/quorate/federations")]
    manifests: PathBuf,
    /// Where the configuration is written
    #[arg(long, value_name = "FILE", default_value = "/etc/quorate/quorate.yaml")]
    config: PathBuf,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Plain,
}

pub(super) fn run(args: &Args) -> Outcome {
    let Args { site, trust_domain, address, mesh, state_dir, manifests, config, output } = args;
    if config.exists() {
        let message = format!("{} exists already; it is not replaced", config.display());
        return Err(Failure::message(Exit::Usage, message)
            .hint("name another file with --config, or remove that one"));
    }
    let first = mesh.is_none();
    let mesh = match mesh {
        Some(mesh) => mesh.clone(),
        None => new_mesh(),
    };
    let text = configuration(args, &mesh);
    // What we are about to write must be a configuration, before anything is made.
    config::parse(&text).map_err(|error| Failure::new(Exit::Usage, error))?;

    let fixed = Fixed { site: site.clone(), mesh: mesh.clone(), trust_domain: trust_domain.clone() };
    let folder = StateFolder::open(state_dir, &fixed).map_err(|error| Failure::new(Exit::Unsafe, error))?;
    SitePki::init(state_dir, site.as_str(), trust_domain)
        .map_err(|error| Failure::new(Exit::Usage, error))?;
    drop(folder);
    fs::create_dir_all(manifests)?;
    write_file(config, text.as_bytes(), PUBLIC).map_err(|error| Failure::new(Exit::Usage, error))?;

    if *output != Plain::Table {
        let plain = json!({"site": site, "mesh": mesh, "trustDomain": trust_domain, "address": address,
            "stateDir": state_dir, "manifests": manifests, "config": config});
        print(&if *output == Plain::Json { json::json(&plain)? } else { json::yaml(&plain)? });
        return Ok(ExitCode::SUCCESS);
    }
    let (state, config) = (state_dir.display(), config.display());
    let join = if first {
        format!(
            "  quorate mesh init --mesh {mesh} --trust-domain {trust_domain} --site NAME --address IP   # at each other site\n"
        )
    } else {
        String::new()
    };
    print(&format!(
        "site {site} is ready at {address}, mesh {mesh}\n  {state}/pki   the roots of this site; keep it safe, it stays here\n  \
         {config}   read it, and set etcdDir\nnext:\n{join}  quorate mesh invite --config {config}   # then accept at the other site\n  \
         quorate agent --config {config}\n"
    ));
    Ok(ExitCode::SUCCESS)
}

fn new_mesh() -> String {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string()
}

fn configuration(args: &Args, mesh: &str) -> String {
    let Args { site, trust_domain, address, mesh: _, state_dir, manifests, config: _, output: _ } = args;
    let (state_dir, manifests) = (state_dir.display().to_string(), manifests.display().to_string());
    format!(
        "\
# The configuration of one site. Precedence: flags, environment QUORATE_*, this file, defaults.
# `quorate agent --config FILE --print-config` shows the result.

# Fixed for ever in {state_dir}/site.json:
site: {site}
trustDomain: {trust_domain}
mesh: {mesh}

stateDir: {state_dir:?}
# FederatedEtcd files; read again when they change.
manifests: {manifests:?}

# Where agent, members and etcd listen.
address: {address}
# etcd's peer URLs are https://<slot>.<peerDomain>:<peer port>; every site must be able to resolve these names.
peerDomain: {site}.{trust_domain}

# Where this site is; zones are used by federations that spread over them.
#region: eu-1
#zones: [a, b, c]

# The folder with the etcd binary.
#etcdDir: /opt/etcd

# The agents of the other sites; `quorate mesh invite` and `accept` print the lines.
peers: []
#  - {{site: west, endpoint: \"west.example.com:8443\"}}

# Where other agents and members may be; default: anywhere.
#peerCIDRs: [\"10.0.0.0/8\"]

# Another member of this site takes 10 more on each.
#ports: {{agent: 8443, member: 8444, http: 8080, client: 2379, peer: 2380, metrics: 2381}}

logLevel: info
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_makes_a_site_once() {
        let folder = tempfile::tempdir().unwrap();
        let args = |site: &str, config: &str| Args {
            site: site.parse().unwrap(),
            trust_domain: "quorate.test".to_owned(),
            address: "127.0.1.1".parse().unwrap(),
            mesh: Some("6f0c8d1e-0000-4000-8000-000000000001".to_owned()),
            state_dir: folder.path().join("state"),
            manifests: folder.path().join("federations"),
            config: folder.path().join(config),
            output: Plain::Table,
        };
        run(&args("east", "quorate.yaml")).unwrap();
        let text = fs::read_to_string(folder.path().join("quorate.yaml")).unwrap();
        let config = config::parse(&text).unwrap();
        assert_eq!(config.peer_domain, "east.quorate.test");
        assert!(config.manifests.is_dir() && config.state_dir.join("pki/agent-ca.key").exists());
        // The commented lines are good too.
        let uncommented: String = text
            .lines()
            .filter(|line| *line != "peers: []")
            .map(|line| match line.strip_prefix('#') {
                Some("  - {site: west, endpoint: \"west.example.com:8443\"}") => {
                    "peers:\n  - {site: west, endpoint: \"west.example.com:8443\"}\n".to_owned()
                }
                Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        assert_eq!(config::parse(&uncommented).unwrap().peers.len(), 1, "{uncommented}");

        assert_eq!(run(&args("east", "quorate.yaml")).unwrap_err().exit, Exit::Usage);
        run(&args("east", "second.yaml")).unwrap();
        let other = run(&args("west", "third.yaml")).unwrap_err();
        assert_eq!(other.exit, Exit::Unsafe);
        assert!(other.to_string().contains("says site \"east\""), "{other}");
        assert!(!folder.path().join("third.yaml").exists());
    }

    #[test]
    fn mesh_ids_are_uuids_that_differ() {
        let ids = [new_mesh(), new_mesh()];
        assert_ne!(ids[0], ids[1]);
        assert!(ids.iter().all(|id| id.parse::<quorate_core::id::BootId>().is_ok()), "{ids:?}");
    }
}
