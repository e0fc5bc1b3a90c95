//! Queues: configured, inspected, paused, purged.

use std::borrow::Cow;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use tidegate_api::{History, HistoryRange, OperationView, QueueExplanation, QueuePage, QueueView};

use super::{
    Api, HandlerResult,
    access::{Admin, May, outside},
    body::Body,
    config::{Fields, patched},
    convert,
    error::Problem,
    jobs::bulk,
    media::Accept,
    params::{DryRun, IdempotencyKey, IfMatch, Name, Params, PutMode},
    resource::{self, Configure, Delete, GetWithin, Item, ListWithin, Pause},
    routes::{Routes, routes},
};
use tidegate_core::{
    job::QueueName,
    port::job_store::{JobFilter, StateFilter},
    queue::config::{QueueConfig, QueueItem},
    time::Timestamp,
};
use tidegate_engine::request::{BulkChange, BulkRequest, QueueStatus};

impl Item for QueueItem {
    type Name = QueueName;
    type View = QueueView<'static>;

    fn version(&self) -> u64 {
        self.version
    }

    fn view(self, name: QueueName, _: Accept, _: Timestamp) -> Result<Self::View, Problem> {
        let Self { config, paused, version } = self;
        let (name, config) = (Cow::Owned(name), Cow::Owned(config));
        Ok(QueueView { name, config, paused, version, status: None })
    }
}

/// A queue with its status, as reads show it.
impl Item for (QueueItem, QueueStatus) {
    type Name = QueueName;
    type View = QueueView<'static>;

    fn version(&self) -> u64 {
        self.0.version
    }

    fn view(self, name: QueueName, accept: Accept, now: Timestamp) -> Result<Self::View, Problem> {
        let (item, status) = self;
        let status = Some(convert::queue_status(status));
        Ok(QueueView { status, ..item.view(name, accept, now)? })
    }
}

/// Configure a queue; absent settings have their defaults.
///
/// A stored configuration that cannot be read is replaced only if `force` is true: it may be
/// damaged or written by a newer release. The queue is then paused, because whether it was is not
/// known.
#[utoipa::path(
    put, path = "/v1/queues/{queue}", operation_id = "put_queue", tag = "queues",
    request_body = QueueConfig,
    params(
        ("queue" = String, Path, description = "The queue's name: 1 to 64 of `A-Z a-z 0-9 _ . -`"),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
        (
            "dry_run" = Option<bool>, Query,
            description = "Check and show the change, and store nothing: the answer has the new \
                settings and the stored version, 0 if there is none",
        ),
        (
            "force" = Option<bool>, Query,
            description = "Replace a stored configuration that cannot be read",
        ),
    ),
    responses(
        (status = 201, description = "The queue is new", body = QueueView),
        (status = 200, description = "Replaced, or a dry run", body = QueueView),
        (status = 404, description = "`plugin_not_found`"),
        (status = 409, description = "`config_refused`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn put(
    (State(api), accept, _, Name(name), IfMatch(version)): Configure<QueueName>,
    mode: PutMode,
    body: Body,
) -> HandlerResult {
    let config = body.read::<Fields>()?.config()?;
    if mode.dry_run {
        let item = api.server.preview_queue(&name, config, version).await?;
        return resource::shown(&api, accept, name, item);
    }
    let put = if mode.force {
        api.server.replace_queue(&name, config, version).await?
    } else {
        api.server.put_queue(&name, config, version).await?
    };
    resource::stored(&api, accept, name, put)
}

/// Change some settings of a queue, by JSON merge patch; null resets a setting to its default.
#[utoipa::path(
    patch, path = "/v1/queues/{queue}", operation_id = "patch_queue", tag = "queues",
    request_body = QueueConfig,
    params(
        ("queue" = String, Path, description = "The queue's name"),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
        (
            "dry_run" = Option<bool>, Query,
            description = "Check and show the change, and store nothing: the answer has the new \
                settings and the stored version",
        ),
    ),
    responses(
        (status = 200, description = "Changed", body = QueueView),
        (status = 404, description = "`queue_not_found`, `plugin_not_found`"),
        (status = 409, description = "`config_refused`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn patch(
    (State(api), accept, _, Name(name), IfMatch(version)): Configure<QueueName>,
    DryRun(dry_run): DryRun,
    body: Body,
) -> HandlerResult {
    let patch: Fields = body.read()?;
    if dry_run {
        let config = patched(&api.server.queue(&name).await?.config, patch)?;
        let item = api.server.preview_queue(&name, config, version).await?;
        return resource::shown(&api, accept, name, item);
    }
    let item = resource::patch(
        version,
        || api.server.queue(&name),
        |item| patched(&item.config, patch.clone()),
        |config, version| api.server.put_queue(&name, config, version),
    );
    let item = item.await?;
    resource::shown(&api, accept, name, item)
}

/// A queue: its settings and its state.
#[utoipa::path(
    get, path = "/v1/queues/{queue}", operation_id = "get_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue's name")),
    responses(
        (status = 200, description = "The queue, its `ETag` the version", body = QueueView),
        (status = 404, description = "`queue_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn get((State(api), accept, caller, Name(name)): GetWithin<QueueName>) -> HandlerResult {
    if !caller.bounds().allow_whole_queue(&name) {
        return Err(outside());
    }
    let item = api.server.queue(&name).await?;
    let status = api.server.queue_status(&name).await?;
    resource::shown(&api, accept, name, (item, status))
}

/// Why a queue is idle or slow: what holds its due jobs, what runs, and its workers.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/explain", operation_id = "explain_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue's name")),
    responses(
        (status = 200, description = "What holds its due jobs", body = QueueExplanation),
        (status = 404, description = "`queue_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn explain((State(api), accept, caller, Name(name)): GetWithin<QueueName>) -> HandlerResult {
    if !caller.bounds().allow_whole_queue(&name) {
        return Err(outside());
    }
    let explanation = api.server.explain_queue(&name).await?;
    Ok(accept.ok(convert::queue_explanation(explanation)).into_response())
}

/// The last hour or day of a queue, in steps: what came, what started and ended, and how many jobs
/// there were.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/history", operation_id = "get_queue_history", tag = "queues",
    params(
        ("queue" = String, Path, description = "The queue's name"),
        (
            "range" = Option<HistoryRange>, Query,
            description = "How far back, `hour` (default) or `day`",
        ),
    ),
    responses(
        (status = 200, description = "Its steps and its throughput", body = History),
        (status = 404, description = "`queue_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn history(
    (State(api), accept, caller, Name(name)): GetWithin<QueueName>,
    mut params: Params,
) -> HandlerResult {
    let range = params.one::<HistoryRange>("range")?.unwrap_or_default();
    params.done()?;
    if !caller.bounds().allow_whole_queue(&name) {
        return Err(outside());
    }
    Ok(accept.ok(api.server.queue_history(&name, range).await?).into_response())
}

/// Queues, by name, with their state.
#[utoipa::path(
    get, path = "/v1/queues", operation_id = "list_queues", tag = "queues",
    params(
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of queues on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = QueuePage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn list((State(api), accept, caller, request): ListWithin) -> HandlerResult {
    let mut queues = api.server.queues().await?;
    queues.retain(|(name, _)| caller.bounds().allow_whole_queue(name));
    let (items, next_cursor) = request.page(queues);
    let statuses = api.server.queue_statuses(items.iter().map(|(name, _)| name)).await?;
    // A queue without a status was deleted after the list was read.
    let existing = items
        .into_iter()
        .zip(statuses)
        .filter_map(|((name, item), status)| Some((name, (item, status?))));
    let queues = resource::views(&api, accept, existing.collect())?;
    Ok(accept.ok(QueuePage { queues, next_cursor }).into_response())
}

/// Delete a queue that no type uses and no live job waits in.
#[utoipa::path(
    delete, path = "/v1/queues/{queue}", operation_id = "delete_queue", tag = "queues",
    params(
        ("queue" = String, Path, description = "The queue's name"),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
    ),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "`queue_not_found`"),
        (status = 409, description = "`queue_has_live_jobs`, `queue_in_use`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn delete(
    (State(api), _, Name(name), IfMatch(version)): Delete<QueueName>,
) -> Result<StatusCode, Problem> {
    api.server.delete_queue(&name, version).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a queue: no job starts, critical ones included. Running jobs continue.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/pause", operation_id = "pause_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue's name")),
    responses(
        (status = 200, description = "Paused", body = QueueView),
        (status = 404, description = "`queue_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn pause((State(api), accept, _, Name(name)): Pause<QueueName>) -> HandlerResult {
    let item = api.server.pause_queue(&name, true).await?;
    resource::shown(&api, accept, name, item)
}

/// Resume a paused queue.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/resume", operation_id = "resume_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue's name")),
    responses(
        (status = 200, description = "Resumed", body = QueueView),
        (status = 404, description = "`queue_not_found`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn resume((State(api), accept, _, Name(name)): Pause<QueueName>) -> HandlerResult {
    let item = api.server.pause_queue(&name, false).await?;
    resource::shown(&api, accept, name, item)
}

/// Drop every scheduled job of a queue. Running jobs continue.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/purge", operation_id = "purge_queue", tag = "queues",
    params(
        ("queue" = String, Path, description = "The queue's name"),
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
        (status = 404, description = "`queue_not_found`"),
        (status = 409, description = "`idempotency_key_reused`"),
    ),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn purge(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    Name(name): Name<QueueName>,
    key: IdempotencyKey,
) -> HandlerResult {
    api.server.queue(&name).await?;
    let filter = JobFilter {
        queue: Some(name),
        states: vec![StateFilter::Scheduled],
        ..JobFilter::default()
    };
    bulk::start(&api, accept, BulkRequest::new(BulkChange::Purge, filter), key).await
}

/// The routes of queues.
pub fn routes() -> Routes {
    routes!(list, put, patch, get, delete, explain, history, pause, resume, purge)
}
