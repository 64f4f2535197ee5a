//! TLS: one provider, TLS 1.3 only, certificates that are reloaded while connections are open, and trust per site.
//!
//! The root of a site vouches for identities of that site only. Session resumption is switched off everywhere: a
//! resumed session would skip the check of a certificate that has since expired or lost its root.

pub mod crypto;
pub mod etcd;
pub mod pem;
pub mod store;
pub mod verify;

pub use etcd::EtcdTls;
pub use store::{Source, TlsStore, Trust};
pub use verify::Admit;

#[cfg(test)]
mod tests;
