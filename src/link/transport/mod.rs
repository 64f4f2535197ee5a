//! Connections: the server loop and the dialler that the mesh, the member API and the etcd client share.

pub mod dial;
pub mod serve;

pub use dial::{DialError, connect};
pub use serve::{Limits, PeerIdentity, serve};

#[cfg(test)]
mod tests;
