//! The decisions of quorate: pure, without IO, clock, randomness or async.
//!
//! [`federation`] says what is wanted and what was seen, [`membership`] what may be done next and why not,
//! [`ballot`], [`intent`] and [`executor`] how agents agree on doing it, [`adopt`] how a foreign etcd is taken over,
//! [`identity`] whether a data directory may be started and [`joiner`] whether a new one is started once more, [`node`] what
//! a site does for its own members, [`deletion`] when it stops them, [`condition`] what users are told.

pub mod adopt;
pub mod ballot;
pub mod condition;
pub mod deletion;
pub mod doctor;
pub mod executor;
pub mod federation;
pub mod id;
pub mod identity;
pub mod intent;
pub mod joiner;
pub mod membership;
pub mod node;
pub mod reason;
pub mod report;
#[cfg(feature = "sim")]
pub mod sim;
pub mod timing;
