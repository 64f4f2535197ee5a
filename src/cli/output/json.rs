//! JSON and YAML.

use serde::Serialize;

use crate::failure::{Exit, Failure};

/// Pretty JSON with a final line break.
pub fn json<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| Failure::new(Exit::Bug, error))
}

/// YAML.
pub fn yaml<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_saphyr::to_string(value).map_err(|error| Failure::message(Exit::Bug, error.to_string()))
}
