//! The clock of a server for development.

use serde::{Deserialize, Serialize};
use tidegate_core::time::{Seconds, Timestamp};

/// The clock of a server that `tidegate dev` started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = DevClock)]
pub struct DevClockView {
    /// What it shows.
    pub now: Timestamp,
    /// Whether it is stopped.
    pub frozen: bool,
}

/// A change of that clock: exactly one field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DevClockChange)]
pub struct DevClockBody {
    /// Whether it is stopped from now on, or runs on from what it shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freeze: Option<bool>,
    /// By how much it moves forward, 0 to 3155760000 (100 years).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advance_seconds: Option<Seconds>,
    /// What it shows from now on; not before what it shows now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<Timestamp>,
}
