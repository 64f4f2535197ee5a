//! Membership: the arithmetic, one function per rule, the planner, and a checker that shares no code with them.

pub mod address;
pub mod agreement;
pub mod check;
pub mod disruption;
pub mod loss;
pub mod placement;
pub mod plan;
pub mod preview;
pub mod quorum;
pub mod safety;
#[cfg(test)]
pub(crate) mod scenario;
pub mod step;
#[cfg(test)]
mod worlds;
