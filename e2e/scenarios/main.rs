//! The failures of the scenario list, one by one. Rows without a case are listed with the reason.

mod capacity;
mod executor;
mod identity;
mod machine;
mod membership;
mod network;
mod raw;
mod stage;
mod witness;

use std::process::ExitCode;

use anyhow::Result;
use quorate_e2e::suite::{self, Case, Pending};

const UPGRADE: &str = "needs an upgrade of etcd from one version to another";
const DEFRAGMENTATION: &str = "needs defragmentation by quorate";
const RESTORE: &str = "needs backups and the recovery of a lost quorum";

/// Rows that wait for something that is not there yet.
const PENDING: &[Pending] = &[
    Pending { name: "s33_promotion_not_in_raft", reason: UPGRADE },
    Pending { name: "s34_zombie_members", reason: UPGRADE },
    Pending { name: "s36_authentication", reason: "needs authentication of the agents towards etcd" },
    Pending { name: "s47_defragmentation_during_a_snapshot", reason: DEFRAGMENTATION },
    Pending { name: "s50_ca_rotation", reason: "needs the rotation of certificate authorities" },
    Pending { name: "s53_no_space_repaired", reason: DEFRAGMENTATION },
    Pending { name: "s54_defragmentation_blocks", reason: DEFRAGMENTATION },
    Pending { name: "s57_upgrade_in_flight", reason: UPGRADE },
    Pending { name: "s58_recovery_of_a_lost_quorum", reason: RESTORE },
    Pending { name: "s59_restore_goes_back_in_revision", reason: RESTORE },
    Pending { name: "s60_leases_in_a_restore", reason: RESTORE },
];

fn main() -> Result<ExitCode> {
    let cases = [
        identity::CASES,
        membership::CASES,
        executor::CASES,
        network::CASES,
        machine::CASES,
        capacity::CASES,
    ]
    .concat();
    let cases: Vec<Case> = cases;
    suite::main("scenarios", cases.leak(), PENDING)
}
