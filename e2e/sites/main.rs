//! Sites as separate processes with a real etcd.
#![expect(clippy::unwrap_used, reason = "tests; a panic is their way to fail")]

mod addresses;
mod adopt;
mod birth;
mod delete;
mod demo;
mod drift;
mod intruder;
mod leave;
mod operator;
mod replace;
mod yardstick;
