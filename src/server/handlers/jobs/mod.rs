//! Jobs: enqueued ([`enqueue`]), read ([`read`]), changed ([`change`]), reported on by workers
//! ([`attempt`]), and changed in bulk ([`bulk`]).

pub mod attempt;
pub mod bulk;
pub mod change;
pub mod enqueue;
mod errors;
mod filter;
pub mod read;

use axum::Extension;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Api, MAX_BATCH_BYTES, body::BodyLimit};

/// The routes of jobs and of operations on them.
pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(enqueue::enqueue_many))
        .layer(Extension(BodyLimit(MAX_BATCH_BYTES)))
        .routes(routes!(enqueue::enqueue, read::list))
        .routes(routes!(bulk::cancel))
        .routes(routes!(bulk::replay))
        .routes(routes!(bulk::patch))
        .routes(routes!(bulk::operation))
        .routes(routes!(errors::errors))
        .routes(routes!(read::by_id))
        .routes(routes!(
            enqueue::put,
            read::by_type_and_id,
            change::patch,
            change::cancel,
            attempt::report
        ))
        .routes(routes!(attempt::heartbeat))
        .routes(routes!(change::replay))
        .routes(routes!(change::replay_by_id))
        .routes(routes!(read::result))
        .routes(routes!(read::explain))
        .routes(routes!(read::log))
}
