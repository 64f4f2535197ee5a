//! `quorate mesh`: a working mesh without cert-manager.

mod init;
mod invite;

use clap::Subcommand;

use super::Outcome;

/// Set up the mesh: the roots of this site, and the trust between two sites.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A mesh of two sites:
  east$ quorate mesh init --site east --trust-domain example.com --address 10.0.1.1
  west$ quorate mesh init --site west --trust-domain example.com --address 10.0.2.1 --mesh <id that east printed>
  east$ quorate mesh invite --config /etc/quorate/quorate.yaml
  west$ quorate mesh accept --config /etc/quorate/quorate.yaml <token that east printed>")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Debug, Subcommand)]
enum Sub {
    Init(init::Args),
    Invite(invite::Invite),
    Accept(invite::Accept),
}

pub(super) async fn run(args: Args) -> Outcome {
    let Args { command } = args;
    match command {
        Sub::Init(args) => init::run(&args),
        Sub::Invite(args) => invite::invite(args).await,
        Sub::Accept(args) => invite::accept(args).await,
    }
}
