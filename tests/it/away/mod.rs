//! The serverless home without AWS: functions as futures, queues with their delays and latencies, and time that is virtual.

mod lateness;
mod life;
#[cfg(feature = "aws")]
mod many;
mod model;
mod time;
