//! The supervisor of one etcd process: identity guard, process and member API.
