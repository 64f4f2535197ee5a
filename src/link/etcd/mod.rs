//! etcd: its client API, its peer port, its command line, and what its answers mean.
//!
//! One client speaks to one member: a client over several would spread calls, and most calls here are about the member
//! that answers. Nothing is retried here; whether a call may be repeated is decided by who knows the intent.

pub mod client;
pub mod client_port;
pub mod error;
pub mod flags;
pub mod peer_port;
mod wire;

pub use client::EtcdClient;
pub use client_port::ClientPort;
pub use error::{Error, Refused, Unknown};
pub use flags::{Flags, Minor};
pub use peer_port::PeerPort;
