//! Real things: harness, end-to-end tests and benchmarks.

pub mod field;
pub mod relay;
