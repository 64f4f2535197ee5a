//! The agent of one site: ports, adapters and the loops.
//!
//! [`run`] wires everything together. What is decided stands in `quorate-core`; here is the IO around it.

pub mod etcd;
pub mod events;
pub mod federation;
pub mod http;
pub mod manifests;
pub mod metrics;
pub mod peers;
pub mod ports;
pub mod process;
pub mod registry;
mod run;
pub mod status;
pub mod store;

pub use run::{Error, Options, run};

pub(crate) use quorate_link::causes::chain;
