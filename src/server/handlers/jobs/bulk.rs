//! Bulk changes: background operations with a progress count.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tidegate_api::{
    BulkBody, BulkChanges, BulkPatchBody, BulkReplayBody, FilterBody, OperationView, Words,
};

use super::super::{
    Api, HandlerResult,
    access::{Admin, May, Read},
    body::Body,
    convert,
    error::Problem,
    media::Accept,
    params::{IdempotencyKey, NO_STATE, Name, states_of},
};
use tidegate_engine::request::{BulkKind, BulkPatch, JobFilter, Operation};

fn read_filter(body: &Body) -> Result<JobFilter, Problem> {
    let BulkBody { filter, all } = body.read()?;
    job_filter(filter, all)
}

fn job_filter(filter: FilterBody, all: bool) -> Result<JobFilter, Problem> {
    match (filter.is_empty(), all) {
        (true, false) => {
            let message = "matches every job: give a condition, or \"all\": true for every job";
            return Err(Problem::invalid("filter", message));
        }
        (false, true) => {
            return Err(Problem::invalid("all", "must not be given with a condition"));
        }
        _ => {}
    }
    let words = match filter.state {
        None => Vec::new(),
        Some(Words::One(word)) => vec![word],
        Some(Words::Many(words)) => words,
    };
    let mut states = Vec::new();
    for word in words {
        states.extend(states_of(&word).ok_or_else(|| Problem::invalid("filter.state", NO_STATE))?);
    }
    Ok(JobFilter {
        job_type: filter.job_type,
        queue: filter.queue,
        states,
        attributes: filter.attribute.unwrap_or_default(),
        from: filter.from,
        to: filter.to,
    })
}

/// Starts an operation, or finds the one that `key` started before. The answer has its location.
///
/// # Errors
///
/// Those of the server.
pub async fn start(
    api: &Api,
    accept: Accept,
    kind: BulkKind,
    filter: JobFilter,
    IdempotencyKey(key): IdempotencyKey,
) -> HandlerResult {
    let operation = api.server.bulk(kind, filter, key.as_deref()).await?;
    Ok(started(accept, operation))
}

/// The answer to a started operation, with its location.
fn started(accept: Accept, operation: Operation) -> Response {
    let place = format!("/v1/operations/{}", operation.id);
    let reply = accept
        .reply(StatusCode::ACCEPTED, OperationView { operation: convert::operation(operation) });
    reply.header(axum::http::header::LOCATION, &place).into_response()
}

/// Cancel every job that a filter matches.
///
/// The server's own jobs, which carry callbacks and events, are excluded unless the filter names
/// their type or queue.
#[utoipa::path(
    post, path = "/v1/jobs/cancel", operation_id = "cancel_jobs", tag = "jobs",
    request_body = BulkBody,
    params(
        (
            "Idempotency-Key" = Option<String>, Header,
            description = "A repeat with the same key starts nothing, while the operation is \
                kept; at most 255 bytes",
        ),
    ),
    responses(
        (
            status = 202,
            description = "Started, or the operation that an earlier request with the key started",
            body = OperationView,
        ),
        (status = 409, description = "`idempotency_key_reused`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
pub async fn cancel(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    key: IdempotencyKey,
    body: Body,
) -> HandlerResult {
    start(&api, accept, BulkKind::Cancel, read_filter(&body)?, key).await
}

/// Replay every job that a filter matches.
///
/// A job that was replayed before is skipped, unless `again` is true, and so is one whose
/// correlation key a live job has. `skipped` counts both.
///
/// The server's own jobs, which carry callbacks and events, are excluded unless the filter names
/// their type or queue.
#[utoipa::path(
    post, path = "/v1/jobs/replay", operation_id = "replay_jobs", tag = "jobs",
    request_body = BulkReplayBody,
    params(
        (
            "Idempotency-Key" = Option<String>, Header,
            description = "A repeat with the same key starts nothing, while the operation is \
                kept; at most 255 bytes",
        ),
    ),
    responses(
        (
            status = 202,
            description = "Started, or the operation that an earlier request with the key started",
            body = OperationView,
        ),
        (status = 409, description = "`idempotency_key_reused`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
pub async fn replay(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    IdempotencyKey(key): IdempotencyKey,
    body: Body,
) -> HandlerResult {
    let BulkReplayBody { filter, all, again } = body.read()?;
    let filter = job_filter(filter, all)?;
    Ok(started(accept, api.server.bulk_replay(filter, again, key.as_deref()).await?))
}

/// Change every scheduled job that a filter matches.
///
/// Jobs that run or have ended are counted as refused. The server's own jobs, which carry callbacks
/// and events, are excluded unless the filter names their type or queue.
#[utoipa::path(
    post, path = "/v1/jobs/patch", operation_id = "patch_jobs", tag = "jobs",
    request_body = BulkPatchBody,
    params(
        (
            "Idempotency-Key" = Option<String>, Header,
            description = "A repeat with the same key starts nothing, while the operation is \
                kept; at most 255 bytes",
        ),
    ),
    responses(
        (
            status = 202,
            description = "Started, or the operation that an earlier request with the key started",
            body = OperationView,
        ),
        (status = 409, description = "`idempotency_key_reused`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
pub async fn patch(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    IdempotencyKey(key): IdempotencyKey,
    body: Body,
) -> HandlerResult {
    let BulkPatchBody { filter, all, patch } = body.read()?;
    let filter = job_filter(filter, all)?;
    let BulkChanges { windows, priority } = patch;
    if windows.is_none() && priority.is_none() {
        return Err(Problem::invalid("patch", "must have at least one field"));
    }
    let patch = BulkPatch { windows, priority };
    Ok(started(accept, api.server.bulk_patch(filter, patch, key.as_deref()).await?))
}

/// The state of a background operation.
#[utoipa::path(
    get, path = "/v1/operations/{id}", operation_id = "get_operation", tag = "jobs",
    params(("id" = String, Path, description = "The operation's id")),
    responses(
        (status = 200, description = "Its state", body = OperationView),
        (status = 404, description = "`operation_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
pub async fn operation(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(id): Name<String>,
) -> HandlerResult {
    let operation = convert::operation(api.server.operation(&id).await?);
    Ok(accept.ok(OperationView { operation }).into_response())
}
