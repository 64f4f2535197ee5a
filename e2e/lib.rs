//! Real things: harness, end-to-end tests and benchmarks.
