//! Queues: configured, inspected, paused, purged.

use std::borrow::Cow;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tidegate_api::{OperationView, QueuePage, QueueView};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Answer, Api,
    access::{Admin, May, Read},
    body::Body,
    config::{Patch, patched},
    convert,
    error::Problem,
    jobs::bulk,
    media::Accept,
    params::{IdempotencyKey, IfMatch, Name, Params, page},
};
use tidegate_core::{
    job::QueueName,
    port::job_store::StateFilter,
    queue::config::{QueueConfig, QueueItem},
};
use tidegate_engine::{
    Error,
    request::{BulkKind, JobFilter, QueueStatus},
};

/// How often a patch without `If-Match` is made again when somebody else was faster.
const TRIES: usize = 5;

fn view<'a>(
    name: &'a QueueName,
    item: &'a QueueItem,
    status: Option<QueueStatus>,
) -> QueueView<'a> {
    QueueView {
        name: Cow::Borrowed(name),
        config: Cow::Borrowed(&item.config),
        paused: item.paused,
        version: item.version,
        status: status.map(convert::queue_status),
    }
}

fn answer(accept: Accept, status: StatusCode, name: &QueueName, item: &QueueItem) -> Response {
    accept.reply(status, view(name, item, None)).etag(item.version).into_response()
}

/// Configure a queue; absent settings have their defaults.
#[utoipa::path(put, path = "/v1/queues/{queue}", operation_id = "put_queue", tag = "queues", request_body = QueueConfig,
    params(
        ("queue" = String, Path, description = "The queue's name: 1 to 64 of `A-Z a-z 0-9 _ . -`"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that must still be current"),
    ),
    responses(
        (status = 201, description = "The queue is new", body = QueueView),
        (status = 200, description = "Replaced", body = QueueView),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ), security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn put(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<QueueName>,
    IfMatch(version): IfMatch,
    body: Body,
) -> Answer {
    let (item, new) = api.server.put_queue(&name, body.read()?, version).await?;
    Ok(answer(accept, if new { StatusCode::CREATED } else { StatusCode::OK }, &name, &item))
}

/// Change some settings of a queue, by JSON merge patch; null resets a setting to its default.
#[utoipa::path(patch, path = "/v1/queues/{queue}", operation_id = "patch_queue", tag = "queues", request_body = QueueConfig,
    params(
        ("queue" = String, Path, description = "The queue's name"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that must still be current"),
    ),
    responses(
        (status = 200, description = "Changed", body = QueueView),
        (status = 404, description = "`queue_not_found`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ), security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn patch(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<QueueName>,
    IfMatch(version): IfMatch,
    body: Body,
) -> Answer {
    let change: Patch = body.read()?;
    let mut tries = 0..TRIES;
    loop {
        let standing = api.server.queue(&name).await?;
        let config = patched(&standing.config, change.clone())?;
        match api.server.put_queue(&name, config, version.or(Some(standing.version))).await {
            Err(Error::Stale { .. }) if version.is_none() && tries.next().is_some() => {}
            answered => return Ok(answer(accept, StatusCode::OK, &name, &answered?.0)),
        }
    }
}

/// A queue: its settings and its state.
#[utoipa::path(get, path = "/v1/queues/{queue}", operation_id = "get_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue's name")),
    responses((status = 200, description = "The queue, its `ETag` the version", body = QueueView), (status = 404, description = "`queue_not_found`")),
    security(("bearer" = ["read"]), ("basic" = ["read"])))]
async fn get(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<QueueName>,
) -> Answer {
    let item = api.server.queue(&name).await?;
    let status = api.server.queue_status(&name).await?;
    Ok(accept.ok(view(&name, &item, Some(status))).etag(item.version).into_response())
}

/// Queues, by name, with their state.
#[utoipa::path(get, path = "/v1/queues", operation_id = "list_queues", tag = "queues",
    params(
        ("limit" = Option<u32>, Query, description = "Most queues of the page, 1 to 1000 (default 100)"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = QueuePage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])))]
async fn list(State(api): State<Api>, accept: Accept, _: May<Read>, mut params: Params) -> Answer {
    let (limit, cursor) = (params.limit()?, params.one::<String>("cursor")?);
    params.done()?;
    let (items, next_cursor) = page(api.server.queues().await?, cursor.as_deref(), limit);
    let statuses = api.server.queue_statuses(items.iter().map(|(name, _)| name)).await?;
    // Without a status are those that were deleted while the page was put together.
    let standing = items.iter().zip(statuses).filter(|(_, status)| status.is_some());
    let queues = standing.map(|((name, item), status)| view(name, item, status)).collect();
    Ok(accept.ok(QueuePage { queues, next_cursor }).into_response())
}

/// Delete a queue that no type uses and no live job waits in.
#[utoipa::path(delete, path = "/v1/queues/{queue}", operation_id = "delete_queue", tag = "queues",
    params(
        ("queue" = String, Path, description = "The queue's name"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` that must still be current"),
    ),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "`queue_not_found`"),
        (status = 409, description = "`queue_has_live_jobs`, `queue_in_use`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ), security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn delete(
    State(api): State<Api>,
    _: May<Admin>,
    Name(name): Name<QueueName>,
    IfMatch(version): IfMatch,
) -> Result<StatusCode, Problem> {
    api.server.delete_queue(&name, version).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a queue: no job starts, critical ones included. Running jobs continue.
#[utoipa::path(post, path = "/v1/queues/{queue}/pause", operation_id = "pause_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue's name")),
    responses((status = 200, description = "Paused", body = QueueView), (status = 404, description = "`queue_not_found`")),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn pause(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<QueueName>,
) -> Answer {
    Ok(answer(accept, StatusCode::OK, &name, &api.server.pause_queue(&name, true).await?))
}

/// Resume a paused queue.
#[utoipa::path(post, path = "/v1/queues/{queue}/resume", operation_id = "resume_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue's name")),
    responses((status = 200, description = "Resumed", body = QueueView), (status = 404, description = "`queue_not_found`")),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn resume(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<QueueName>,
) -> Answer {
    Ok(answer(accept, StatusCode::OK, &name, &api.server.pause_queue(&name, false).await?))
}

/// Drop every scheduled job of a queue. Running jobs continue.
#[utoipa::path(post, path = "/v1/queues/{queue}/purge", operation_id = "purge_queue", tag = "queues",
    params(
        ("queue" = String, Path, description = "The queue's name"),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeat with the same key starts nothing, while the operation is kept; at most 255 bytes"),
    ),
    responses(
        (status = 202, description = "Started, or the operation that an earlier request with the key started", body = OperationView),
        (status = 404, description = "`queue_not_found`"),
        (status = 409, description = "`idempotency_key_reused`"),
    ), security(("bearer" = ["admin"]), ("basic" = ["admin"])))]
async fn purge(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<QueueName>,
    key: IdempotencyKey,
) -> Answer {
    api.server.queue(&name).await?;
    let filter = JobFilter {
        queue: Some(name),
        states: vec![StateFilter::Scheduled],
        ..JobFilter::default()
    };
    bulk::start(&api, accept, BulkKind::Purge, filter, key).await
}

/// The routes of queues.
pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(put, patch, get, delete))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(purge))
}
