//! The operations on jobs: enqueue, read, change, dispatch, explain, heartbeat, report, and the
//! sweep, which acts on jobs whose time is over.

pub mod bodies;
pub mod change;
pub mod checkpoint;
pub mod dispatch;
pub mod enqueue;
pub mod errors;
pub mod explain;
pub mod heartbeat;
pub mod inbox;
pub mod job_writes;
pub mod list;
pub mod lookahead;
pub mod objects;
pub mod orphans;
pub(crate) mod pass;
pub mod phases;
pub mod repeated_leases;
pub mod replay;
pub mod report;
mod resend;
pub(crate) mod running;
pub mod sorted;
pub mod sweep;
pub mod unclaimed;
pub(crate) mod waiting;
