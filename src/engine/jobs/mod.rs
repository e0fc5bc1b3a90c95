//! The verbs on jobs: enqueue, change, dispatch, report, heartbeat, explain, and what ends a job when its time is over.

pub mod bodies;
pub mod change;
pub mod dispatch;
pub mod enqueue;
pub mod explain;
pub mod heartbeat;
pub mod job_writes;
pub mod objects;
pub mod report;
pub(crate) mod running;
pub mod sweep;
pub mod unclaimed;
