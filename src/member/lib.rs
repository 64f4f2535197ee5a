//! The supervisor of one etcd process: `quorate member`.
//!
//! It owns the volume of one slot. Before every start the [`guard`] gathers what stands beside and in the data
//! directory and lets `quorate-core` decide; [`process`] runs what was permitted; [`api`] is what the agent of the own
//! site may ask for. It never decides about membership, and it needs no agent to go on.

pub mod api;
pub mod archive;
pub mod grant;
pub mod guard;
mod http;
mod mark;
pub mod options;
pub mod process;
mod supervise;
pub mod volume;

pub use options::Options;
pub use process::helper::exec_etcd;
pub use supervise::{Error, Service};
