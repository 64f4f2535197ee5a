//! The command line of quorate. A library, because the end-to-end tests use parts of it too.

pub mod client;
pub mod cmd;
pub mod demo;
pub mod failure;
pub mod output;
