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

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
