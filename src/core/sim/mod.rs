//! The seeded simulator: many short histories of a world of agents, members and a network, with faults before and after
//! every step, judged after every event against what really happened.

pub mod etcd;
pub mod rng;
