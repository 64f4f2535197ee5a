//! The agent of one site: ports, adapters and the loops.
