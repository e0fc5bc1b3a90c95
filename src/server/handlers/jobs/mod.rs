//! Jobs: enqueued ([`enqueue`]), read ([`read`]), changed ([`change`]), reported on by workers
//! ([`attempt`]), and changed in bulk ([`bulk`]).

pub mod attempt;
pub mod bulk;
pub mod change;
pub mod enqueue;
mod errors;
mod filter;
pub mod read;

use super::{
    MAX_BATCH_BYTES,
    routes::{Routes, routes},
};

/// The routes of jobs and of operations on them.
pub fn routes() -> Routes {
    routes!(enqueue::enqueue_many).body_limit(MAX_BATCH_BYTES).merge(routes!(
        enqueue::enqueue,
        read::list,
        bulk::cancel,
        bulk::replay,
        bulk::patch,
        bulk::operation,
        errors::errors,
        read::by_id,
        enqueue::put,
        read::by_type_and_id,
        change::patch,
        change::cancel,
        attempt::report,
        attempt::heartbeat,
        change::replay,
        change::replay_by_id,
        read::result,
        read::explain,
        read::log
    ))
}
