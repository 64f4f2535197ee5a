//! Parts of the one binary that the end-to-end tests use too.

pub mod demo;
