//! Configurations: JSON text is parsed into a plugin's own type, or its errors are returned.

use serde::de::DeserializeOwned;

use crate::{Problem, json::parse};

impl Problem {
    /// A problem in the part of the configuration to which the JSON pointer `path` leads.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// The errors of a configuration: those of parsing it into a `T`, or those that `check` finds in
/// it.
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

/// The text of a problem in `what`. A problem of the whole has no path.
pub(crate) fn at(what: &str, Problem { path, message }: &Problem) -> String {
    let space = if path.is_empty() { "" } else { " " };
    format!("{what}{space}{path}: {message}")
}

/// Parses the configuration of a call.
pub(crate) fn of_call<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    parse(text).map_err(|problem| at("configuration", &problem))
}
