//! The failures of the scenario list, one by one. Rows without a case are listed with the reason.

mod network;

use std::process::ExitCode;

use anyhow::Result;
use quorate_e2e::suite::{self, Case, Pending};

/// Rows that wait for something that is not there yet.
const PENDING: &[Pending] = &[];

fn main() -> Result<ExitCode> {
    let cases: Vec<Case> = [network::CASES].concat();
    suite::main("scenarios", cases.leak(), PENDING)
}
