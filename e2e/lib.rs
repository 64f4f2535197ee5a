//! Real things: harness, end-to-end tests and benchmarks.

pub mod field;
pub mod foreign;
pub mod net;
pub mod relay;
pub mod stranger;
pub mod suite;
pub mod wan;
