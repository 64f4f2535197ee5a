//! `quorate mesh invite` and `quorate mesh accept`.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use quorate_api::config::SiteConfig;
use quorate_link::pki::SitePki;
use quorate_link::pki::invite::{self, Error, Invitation, LocalSite, MAX_LIFE, SiteCard, Token};
use serde_json::json;
use tokio::net::TcpListener;

use crate::cmd::Outcome;
use crate::cmd::target::load;
use crate::failure::{Exit, Failure};
use crate::output::print;
use crate::output::progress::Spinner;

/// Print a join token for one other site, and wait until it is accepted.
///
/// The token goes to stdout, everything else to stderr. Whoever holds the token before it is used or has expired can
/// join the mesh: hand it over as you would a password.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate mesh invite --config quorate.yaml
  $ quorate mesh invite --config quorate.yaml --listen 0.0.0.0:8445 --advertise east.example.com:8445")]
pub(super) struct Invite {
    /// The configuration of this site
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG", hide_env_values = true)]
    config: PathBuf,
    /// Where to wait for the other site [default: port 8445 on the address of this site]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// What the other site has to dial [default: what is listened on]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// How the other site's agent reaches ours [default: the agent port on the address of this site]
    #[arg(long, value_name = "HOST:PORT")]
    agent_endpoint: Option<String>,
    /// Minutes until the token expires, at most 15
    #[arg(long, value_name = "MINUTES", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=15))]
    minutes: u64,
    /// With json, one line with the token at once and one when it was accepted
    #[arg(short, long, value_enum, default_value_t)]
    output: Lines,
}

/// Accept the token of another site: both sites trust each other afterwards.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  $ quorate mesh accept --config quorate.yaml quorate1.eyJt...
  $ quorate mesh accept --config quorate.yaml - < token       # not on the command line, where others could see it")]
pub(super) struct Accept {
    /// The configuration of this site
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG", hide_env_values = true)]
    config: PathBuf,
    /// How the other site's agent reaches ours [default: the agent port on the address of this site]
    #[arg(long, value_name = "HOST:PORT")]
    agent_endpoint: Option<String>,
    /// The token, or - to read it from stdin
    token: String,
    /// With json, one line when both trust each other
    #[arg(short, long, value_enum, default_value_t)]
    output: Lines,
}

/// Something is printed as soon as it is known, so the forms are those of lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Lines {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The port of an invitation; none of the agent's or a member's.
const PORT: u16 = 8445;

pub(super) async fn invite(args: Invite) -> Outcome {
    let Invite { config, listen, advertise, agent_endpoint, minutes, output } = args;
    let site = load(&config, &[])?;
    let listen = listen.unwrap_or_else(|| std::net::SocketAddr::new(site.address, PORT).to_string());
    let listener = TcpListener::bind(&listen).await.map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("cannot listen on {listen}"));
        Failure::new(Exit::Usage, error)
            .hint("name another address with --listen, and with --advertise how it is reached")
    })?;
    let endpoint = match advertise {
        Some(endpoint) => endpoint,
        None => listener.local_addr()?.to_string(),
    };
    let life = Duration::from_secs(minutes * 60).min(MAX_LIFE);
    let invitation = Invitation::new(local(&site, agent_endpoint)?, &endpoint, life)
        .map_err(|error| failure(error, &config))?;
    eprintln!("At the other site, within {minutes} minutes: quorate mesh accept --config FILE <token>");
    let token = invitation.token().to_string();
    print(&match output {
        Lines::Text => format!("{token}\n"),
        Lines::Json => format!("{}\n", json!({"token": token, "endpoint": endpoint, "minutes": minutes})),
    });
    let spinner = Spinner::start(&format!("waiting on {endpoint} for the other site"));
    let card = invite::invite(listener, invitation).await;
    drop(spinner);
    joined(&site, &card.map_err(|error| failure(error, &config))?, output);
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn accept(args: Accept) -> Outcome {
    let Accept { config, agent_endpoint, token, output } = args;
    let site = load(&config, &[])?;
    let token = match token.as_str() {
        "-" => {
            let mut text = String::new();
            std::io::stdin().take(64 * 1024).read_to_string(&mut text)?;
            text
        }
        _ => token,
    };
    let token: Token = token.parse().map_err(|error| failure(error, &config))?;
    let card = invite::accept(&token, &local(&site, agent_endpoint)?)
        .await
        .map_err(|error| failure(error, &config))?;
    joined(&site, &card, output);
    Ok(ExitCode::SUCCESS)
}

fn local(site: &SiteConfig, agent_endpoint: Option<String>) -> Result<LocalSite, Failure> {
    let pki = SitePki::open(&site.state_dir, site.site.as_str(), &site.trust_domain).map_err(|error| {
        Failure::new(Exit::Usage, error).hint("`quorate mesh init` makes the roots of this site")
    })?;
    let own = || std::net::SocketAddr::new(site.address, site.ports.agent).to_string();
    Ok(LocalSite { pki, mesh: site.mesh.clone(), agent_endpoint: agent_endpoint.unwrap_or_else(own) })
}

fn joined(site: &SiteConfig, card: &SiteCard, output: Lines) {
    if output == Lines::Json {
        let configured =
            site.peers.iter().find(|peer| peer.site.as_str() == card.site).map(|peer| &peer.endpoint);
        let plain = json!({"site": site.site, "peer": card.site, "endpoint": card.agent_endpoint, "configured": configured});
        print(&format!("{plain}\n"));
        return;
    }
    let known = site.peers.iter().find(|peer| peer.site.as_str() == card.site);
    let next = match known {
        Some(peer) if peer.endpoint == card.agent_endpoint => {
            "it is in peers of the configuration already".to_owned()
        }
        Some(peer) => {
            format!("peers of the configuration has {}, it says {}", peer.endpoint, card.agent_endpoint)
        }
        None => format!(
            "add to peers of the configuration:\n  - {{site: {}, endpoint: {:?}}}",
            card.site, card.agent_endpoint
        ),
    };
    eprintln!("{} and {} trust each other now; {next}", site.site, card.site);
}

fn failure(error: Error, config: &std::path::Path) -> Failure {
    let exit = match &error {
        Error::Unreachable { .. } | Error::Io(_) => Exit::Unreachable,
        Error::NotAccepted | Error::Timeout => Exit::Timeout,
        Error::OtherRoot
        | Error::Proof
        | Error::TooManyAttempts(_)
        | Error::OtherSite { .. }
        | Error::Pki(_) => Exit::Unsafe,
        Error::Token(_)
        | Error::Expired(_)
        | Error::OwnToken(_)
        | Error::OwnName(_)
        | Error::OtherMesh { .. }
        | Error::OtherTrustDomain { .. }
        | Error::Name(_)
        | Error::RefusedByPeer(_) => Exit::Usage,
        Error::Message(_) | Error::TooLong(_) | Error::Tls(_) | Error::Random => Exit::Bug,
    };
    let hint = match &error {
        Error::Unreachable { .. } => {
            Some("is `quorate mesh invite` still waiting at the other site? its port must be open".to_owned())
        }
        Error::OtherMesh { .. } | Error::OtherTrustDomain { .. } => Some(format!(
            "set mesh and trustDomain in {} as at the other site, before the first start",
            config.display()
        )),
        _ => None,
    };
    let failure = Failure::new(exit, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
