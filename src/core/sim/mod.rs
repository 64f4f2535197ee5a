//! The seeded simulator: many short histories of a world of agents, members and a network, with faults before and after
//! every step, judged after every event against what really happened.
//!
//! The agents are the real thing: tracker, record, ballot, local actions, planner, check and executor of this crate. The
//! etcd is a model that a contract test holds against real processes. Same seed, same history, on every machine.

mod act;
pub mod agent;
pub mod etcd;
pub mod execute;
pub mod faults;
pub mod history;
mod illegal;
pub mod invariants;
mod limits;
pub mod member;
pub mod network;
mod observe;
mod recover;
pub mod rng;
pub mod run;
pub mod scenario;
mod sent;
pub mod shrink;
pub mod site;
mod strike;
#[cfg(test)]
mod tests;
pub mod truth;
mod wish;
pub mod world;
