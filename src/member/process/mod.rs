//! The etcd process: its command line, its start and stop, what it prints, and whether it answers.
//!
//! Whether it may start is the guard's word ([`crate::guard`]); an exit code decides nothing.

pub mod backoff;
pub mod child;
pub mod command;
pub mod helper;
pub mod logs;
pub mod probe;
