//! The bounds of requests, so that clients need no copies of them.

use axum::{extract::State, response::IntoResponse};
use tidegate_api::Limits;

use super::{
    Api, ENVELOPE_BYTES, HandlerResult, MAX_BATCH_BYTES,
    jobs::{
        attempt::{MAX_DETAILS_BYTES, MAX_MESSAGE_BYTES},
        read::MAX_WAIT,
    },
    media::Accept,
    params::MAX_LIMIT,
    routes::{Routes, routes},
};
use crate::runtime::MAX_LEASES;
use tidegate_core::{event::read::MAX_EVENTS, strict::MAX_ITEMS};
use tidegate_engine::request::MAX_CHECKPOINT_BYTES;

/// The bounds of requests and answers.
///
/// It needs no token, and does not change while the server runs.
#[utoipa::path(get, path = "/v1/limits", operation_id = "get_limits", tag = "operate",
    responses((status = 200, description = "The bounds", body = Limits)), security(()))]
async fn get(State(api): State<Api>, accept: Accept) -> HandlerResult {
    let data = api.options.max_data_bytes;
    let answer = api.server.options().answer_bytes;
    // What bounds an answer there, the payload of a function, bounds a request too.
    let request = |most: usize| answer.map_or(most, |answer| most.min(answer)) as u64;
    let limits = Limits {
        request_bytes: request(data + ENVELOPE_BYTES),
        batch_request_bytes: request(MAX_BATCH_BYTES),
        answer_bytes: answer.map(|bytes| bytes as u64),
        data_bytes: data as u64,
        checkpoint_bytes: MAX_CHECKPOINT_BYTES as u64,
        message_bytes: MAX_MESSAGE_BYTES as u64,
        error_bytes: MAX_DETAILS_BYTES as u64,
        batch_jobs: MAX_ITEMS as u64,
        batch_events: MAX_EVENTS as u64,
        leases: MAX_LEASES.into(),
        reports: MAX_LEASES.into(),
        log_lines: MAX_ITEMS as u64,
        page_items: MAX_LIMIT.into(),
        wait_seconds: MAX_WAIT,
    };
    Ok(accept.ok(limits).into_response())
}

/// The route of the limits.
pub fn routes() -> Routes {
    routes!(get)
}
