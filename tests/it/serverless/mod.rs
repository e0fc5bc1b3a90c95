//! The serverless mode without AWS: functions as futures, queues with delays and latencies, and
//! virtual time.

mod lateness;
mod life;
#[cfg(feature = "aws")]
mod many;
mod model;
mod pull;
pub mod time;
