//! Which agent is asked, and about which federation.

use std::path::{Path, PathBuf};

use quorate_api::config;
use quorate_core::condition::Status;

use crate::client::{Client, socket_in};
use crate::failure::{Exit, Failure};

/// Which agent is asked.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Target {
    /// The configuration of the agent to ask; its socket is in its state folder
    #[arg(long, value_name = "FILE", conflicts_with = "state_dir")]
    config: Option<PathBuf>,
    /// The state folder of the agent to ask
    #[arg(
        long,
        value_name = "DIR",
        env = "QUORATE_STATE_DIR",
        hide_env_values = true,
        default_value = "/var/lib/quorate"
    )]
    state_dir: PathBuf,
}

impl Target {
    /// The configuration, if one was named.
    pub(super) fn config(&self) -> Result<Option<config::SiteConfig>, Failure> {
        self.config.as_ref().map(|path| load(path, &[])).transpose()
    }

    /// The state folder of the agent.
    pub(super) fn state_dir<'a>(&'a self, config: Option<&'a config::SiteConfig>) -> &'a Path {
        config.map_or(&self.state_dir, |config| &config.state_dir)
    }

    pub(super) fn client(&self) -> Result<Client, Failure> {
        match &self.config {
            Some(path) => Ok(Client::new(load(path, &[])?.socket())),
            None => Ok(Client::new(socket_in(&self.state_dir))),
        }
    }
}

/// Reads a configuration file, the environment and flags.
pub(super) fn load(path: &PathBuf, flags: &[(config::Key, String)]) -> Result<config::SiteConfig, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("cannot read {}", path.display()));
        Failure::new(Exit::Usage, error).hint("`quorate mesh init` writes a first one")
    })?;
    let environment = |name: &str| std::env::var(name).ok();
    config::load(&text, &environment, flags).map_err(|error| {
        let lines: Vec<String> = error.problems.iter().map(|p| format!("\n  {p}")).collect();
        Failure::message(Exit::Usage, format!("{} cannot be used:{}", path.display(), lines.concat()))
    })
}

/// Which federation: `NAMESPACE/NAME`, or `NAME` if there is only one of that name.
pub(super) async fn federations(client: &Client, wanted: Option<&str>) -> Result<Vec<Status>, Failure> {
    let Some(wanted) = wanted else { return client.all().await };
    if let Some((namespace, name)) = wanted.split_once('/')
        && let Some(status) = client.one(namespace, name).await?
    {
        return Ok(vec![status]);
    }
    let all = client.all().await?;
    let same: Vec<&Status> = all.iter().filter(|status| status.name == wanted).collect();
    match same.as_slice() {
        [one] => Ok(vec![(*one).clone()]),
        [] => Err(unknown(wanted, &all)),
        several => {
            let names: Vec<String> = several.iter().map(|status| full_name(status)).collect();
            Err(Failure::message(
                Exit::Usage,
                format!("{wanted} is not one federation but {}", names.join(" and ")),
            )
            .hint("name it as NAMESPACE/NAME"))
        }
    }
}

pub(super) fn full_name(status: &Status) -> String {
    format!("{}/{}", status.namespace, status.name)
}

fn unknown(wanted: &str, all: &[Status]) -> Failure {
    let names: Vec<String> = all.iter().map(full_name).collect();
    let hint = if names.is_empty() {
        "it knows none; put a FederatedEtcd file into its manifest folder".to_owned()
    } else {
        format!("it knows {}", names.join(", "))
    };
    Failure::message(Exit::Usage, format!("this agent knows no federation {wanted}")).hint(hint)
}
