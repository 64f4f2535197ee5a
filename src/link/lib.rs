//! What agent and member share: identity, mTLS, transport, the etcd client and telemetry.
//!
//! One folder per adapter, each with its own `Error`. Nothing here decides anything: no loop over federations, no
//! membership rule. Site names are `&str` and member ids `u64`, as etcd and the certificates have them.

pub mod causes;
pub mod clock;
pub mod drain;
pub mod durable;
pub mod etcd;
pub mod host;
pub mod http;
pub mod identity;
pub mod lock;
pub mod metrics;
pub mod pki;
pub mod repeats;
pub mod telemetry;
pub mod tls;
pub mod transport;

#[cfg(test)]
mod testing;
