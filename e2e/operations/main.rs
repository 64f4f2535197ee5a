//! The whole life of an etcd, each operation with a writer running.

mod adopt;
mod birth;
mod course;
mod cuts;
mod delete;
mod drift;
mod executor;
mod how_to;
mod outage;
mod placement;
mod pulse;
mod replace;
mod restart;
mod size;
mod swap;

use std::process::ExitCode;

use anyhow::Result;
use quorate_e2e::suite::{self, Case};

fn main() -> Result<ExitCode> {
    let cases: Vec<Case> = [
        birth::CASES,
        size::CASES,
        replace::CASES,
        swap::CASES,
        outage::CASES,
        placement::CASES,
        restart::CASES,
        executor::CASES,
        cuts::CASES,
        drift::CASES,
        delete::CASES,
        adopt::CASES,
        how_to::CASES,
    ]
    .concat();
    suite::main("operations", cases.leak(), &[])
}
