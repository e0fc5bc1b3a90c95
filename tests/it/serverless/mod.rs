//! The serverless mode without AWS: functions as futures, queues with delays and latencies, and
//! virtual time.

mod faulty_table;
#[cfg(feature = "aws")]
mod history;
mod lateness;
mod life;
#[cfg(feature = "aws")]
mod many;
mod model;
mod pull;
mod pull_batches;
mod pull_faults;
pub mod time;
