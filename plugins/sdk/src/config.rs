//! Configurations: JSON text read into a plugin's own type, and what is wrong with one that is not read.

use serde::de::DeserializeOwned;

use crate::{Problem, json::parse};

impl Problem {
    /// `message` about the part of the configuration to which the JSON pointer `path` leads.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// What is wrong with a configuration that is read into a `T`, and then looked at by `check`.
#[doc(hidden)]
pub fn check<T: DeserializeOwned>(
    text: &str,
    check: impl FnOnce(&T) -> Vec<Problem>,
) -> Vec<Problem> {
    match parse(text) {
        Ok(config) => check(&config),
        Err(problem) => vec![problem],
    }
}

/// Reads the configuration of a call.
pub(crate) fn of_call<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    parse(text).map_err(|Problem { path, message }| format!("configuration {path}: {message}"))
}
