//! Trust and bad input against a running agent: one clear error each, with place and remedy; nothing lost, nobody in, and
//! another federation of the same agent goes on.

mod data;
mod host;
mod house;
mod spec;
mod trust;
mod wire;

use std::process::ExitCode;

use anyhow::Result;
use quorate_e2e::suite::{self, Case};

fn main() -> Result<ExitCode> {
    let cases: Vec<Case> = [data::CASES, host::CASES, spec::CASES, trust::CASES, wire::CASES].concat();
    suite::main("bad-input", cases.leak(), &[])
}
