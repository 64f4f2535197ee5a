//! The whole life of an etcd, each operation with a writer running.

mod size;

use std::process::ExitCode;

use anyhow::Result;
use quorate_e2e::suite::{self, Case};

fn main() -> Result<ExitCode> {
    let cases: Vec<Case> = [size::CASES].concat();
    suite::main("operations", cases.leak(), &[])
}
