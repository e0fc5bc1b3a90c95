//! Bulk changes: background operations with a progress count.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tidegate_api::{
    BulkBody, BulkChanges, BulkPatchBody, BulkReplayBody, FilterBody, OperationView,
};

use super::super::{
    Api, HandlerResult,
    access::{Admin, May, Read},
    body::Body,
    convert,
    error::Problem,
    media::Accept,
    params::{IdempotencyKey, Name},
};
use super::filter::job_filter;
use tidegate_core::port::JobFilter;
use tidegate_engine::request::{BulkChange, BulkPatch, BulkRequest, Operation};

/// The request for an operation.
fn request(
    change: BulkChange,
    filter: FilterBody,
    all: bool,
    dry_run: bool,
) -> Result<BulkRequest, Problem> {
    let filter = job_filter(filter, "filter.")?;
    match (filter == JobFilter::default(), all) {
        (true, false) => {
            let message = "matches every job: give a condition, or \"all\": true for every job";
            Err(Problem::invalid("filter", message))
        }
        (false, true) => Err(Problem::invalid("all", "must not be given with a condition")),
        _ => Ok(BulkRequest { change, filter, dry_run }),
    }
}

/// Starts an operation, or finds the one that `key` started before. The answer has its location.
///
/// # Errors
///
/// Those of the server.
pub async fn start(
    api: &Api,
    accept: Accept,
    request: BulkRequest,
    IdempotencyKey(key): IdempotencyKey,
) -> HandlerResult {
    Ok(started(accept, api.server.bulk(request, key.as_deref()).await?))
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
/// their type, queue or id.
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
    let BulkBody { filter, all, dry_run } = body.read()?;
    start(&api, accept, request(BulkChange::Cancel, filter, all, dry_run)?, key).await
}

/// Replay every job that a filter matches.
///
/// A job that was replayed before is skipped, unless `again` is true, and so is one whose
/// correlation key a live job has. `skipped` counts both.
///
/// The server's own jobs, which carry callbacks and events, are excluded unless the filter names
/// their type, queue or id.
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
    key: IdempotencyKey,
    body: Body,
) -> HandlerResult {
    let BulkReplayBody { filter, all, again, dry_run } = body.read()?;
    start(&api, accept, request(BulkChange::Replay { again }, filter, all, dry_run)?, key).await
}

/// Change every scheduled job that a filter matches.
///
/// `"run_at": null` starts them now, as far as the limits of their queue allow. Without `state` and
/// `phase`, jobs that run or have ended do not match. The server's own jobs, which carry callbacks
/// and events, are excluded unless the filter names their type, queue or id.
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
    key: IdempotencyKey,
    body: Body,
) -> HandlerResult {
    let BulkPatchBody { filter, all, patch, dry_run } = body.read()?;
    let BulkChanges { run_at, windows, priority } = patch;
    if run_at.is_none() && windows.is_none() && priority.is_none() {
        return Err(Problem::invalid("patch", "must have at least one field"));
    }
    let change = BulkChange::Patch(BulkPatch { run_at, windows, priority });
    start(&api, accept, request(change, filter, all, dry_run)?, key).await
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
