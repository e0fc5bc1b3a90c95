//! Plugins: their versions, the decisions of retry strategies, and the circuit breaker for those
//! that fail.

pub mod circuit_breaker;
pub mod registry;
pub mod retry_decisions;
mod retry_state;

use std::time::Duration;

/// How soon a job follows the decision of a plugin that defers it, at the earliest: a throttler is
/// called again for a job that it holds or reschedules, and a retry starts. Without it, a plugin that
/// names the next millisecond is called without a pause for one job, and each decision is a commit.
pub(crate) const MIN_DEFERRAL: Duration = Duration::from_millis(50);
