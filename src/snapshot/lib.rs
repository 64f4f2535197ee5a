//! Readers of the files that etcd writes.
//!
//! Nothing here decides, nothing here writes, and nothing here trusts a file: every length is checked against what is
//! left, memory does not grow with the file, and damage is an error that names the file and the offset.

pub mod wal;
