//! Words on the wire: the CRDs, the protobuf services and the parsing of what users write.
//!
//! Strings are parsed here, once, into the newtypes of `quorate-core`. No IO and no loops belong here.

pub mod config;
pub mod crd;
pub mod document;
pub mod manifest;
mod problem;
mod schema;
mod yaml;

pub use problem::Problem;

/// The generated services that agents of different sites speak.
#[allow(missing_docs, clippy::pedantic, clippy::all, reason = "generated code")]
pub mod peer {
    tonic::include_proto!("quorate.peer.v1");
}

/// The generated service between an agent and its members.
#[allow(missing_docs, clippy::pedantic, clippy::all, reason = "generated code")]
pub mod member {
    tonic::include_proto!("quorate.member.v1");
}
