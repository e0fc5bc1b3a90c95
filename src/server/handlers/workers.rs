//! Pull workers: listed, registered with a capacity, drained, deleted.

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use tidegate_api::{HistoryRange, RegistrationBody, Worker, WorkerHistory, WorkerPage};
use tidegate_core::error_code::ErrorCode;
use tidegate_engine::request::Registration;

use super::{
    Api, HandlerResult,
    access::{May, Read, Within, Work},
    body::Body,
    convert,
    error::Problem,
    media::Accept,
    params::{Name, PageRequest, Params},
    routes::{Routes, routes},
};

/// Workers that called within ten minutes, run a job, or are drained; in the serverless deployment
/// mode and of servers that share a store, those that registered within ten minutes, or are drained.
#[utoipa::path(
    get, path = "/v1/workers", operation_id = "list_workers", tag = "workers",
    params(
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of workers on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = WorkerPage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn list(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    request: PageRequest,
) -> HandlerResult {
    let named = api
        .server
        .workers()
        .await?
        .into_iter()
        .map(|worker| (worker.name.clone(), worker))
        .collect();
    let (workers, next_cursor) = request.page(named);
    let workers = workers.into_iter().map(|(_, worker)| convert::worker(worker)).collect();
    Ok(accept.ok(WorkerPage { workers, next_cursor }).into_response())
}

/// The last hour or the last day of a worker in steps: attempts that ended, that failed, and jobs
/// that run.
///
/// A worker that has left has its history until that is over. At most 400 workers of a step are
/// recorded, and of many active workers only the latest steps are kept. A serverless deployment
/// answers 501 `worker_history_not_supported`.
#[utoipa::path(
    get, path = "/v1/workers/{worker}/history", operation_id = "get_worker_history",
    tag = "workers",
    params(
        ("worker" = String, Path, description = "The worker's name"),
        (
            "range" = Option<HistoryRange>, Query,
            description = "How far back, `hour` (default) or `day`",
        ),
    ),
    responses(
        (status = 200, description = "Its steps", body = WorkerHistory),
        (status = 404, description = "`worker_not_found`"),
        (status = 501, description = "`worker_history_not_supported`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
async fn history(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(name): Name<String>,
    mut params: Params,
) -> HandlerResult {
    let range = params.one::<HistoryRange>("range")?.unwrap_or_default();
    params.done()?;
    if api.server.is_serverless() {
        let detail = "a function does not know what others did";
        return Err(Problem::new(ErrorCode::WorkerHistoryNotSupported, detail));
    }
    Ok(accept.ok(api.server.worker_history(&name, range).await?).into_response())
}

/// Register a worker, or renew or change its registration.
///
/// A token with bounds may, too, for queues and types within them: the names of workers are shared
/// by all.
#[utoipa::path(
    put, path = "/v1/workers/{worker}", operation_id = "put_worker", tag = "workers",
    request_body = Option<RegistrationBody>,
    params(("worker" = String, Path, description = "The worker's name, at most 128 bytes")),
    responses((status = 200, description = "The worker", body = Worker)),
    security(("bearer" = ["work"]), ("basic" = ["work"])),
)]
async fn register(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Work>,
    Name(name): Name<String>,
    body: Body,
) -> HandlerResult {
    let RegistrationBody { capacity, queue, types } = body.read_or_default()?;
    let registration = Registration { capacity, queue, types: types.unwrap_or_default() };
    let worker = api.server.register_worker_within(&name, registration, caller.bounds()).await?;
    Ok(accept.ok(convert::worker(worker)).into_response())
}

/// Drain a worker: it gets no more jobs until it is undrained or deleted, even after a restart of
/// the worker or the server.
#[utoipa::path(
    post, path = "/v1/workers/{worker}/drain", operation_id = "drain_worker", tag = "workers",
    params(("worker" = String, Path, description = "The worker's name")),
    responses(
        (status = 200, description = "The worker", body = Worker),
        (
            status = 404,
            description = "`worker_not_found`; the serverless deployment mode drains any name",
        ),
        (status = 409, description = "`too_many_drains`"),
    ),
    security(("bearer" = ["work"]), ("basic" = ["work"])),
)]
async fn drain(
    State(api): State<Api>,
    accept: Accept,
    _: May<Work>,
    Name(name): Name<String>,
) -> HandlerResult {
    Ok(accept.ok(convert::worker(api.server.drain_worker(&name, true).await?)).into_response())
}

/// Stop a worker: it gets no more jobs, and is to end after those that it runs.
///
/// The answer to its next lease request, or to the one that waits, has `stop`; on AWS a request that
/// waits in another process is not ended. `tidegate work` and
/// the workers of the client libraries then end as on SIGTERM. Whatever started the process may
/// start it again: the stop ends when the worker leaves, and a drain from before stays.
#[utoipa::path(
    post, path = "/v1/workers/{worker}/stop", operation_id = "stop_worker", tag = "workers",
    params(("worker" = String, Path, description = "The worker's name")),
    responses(
        (status = 200, description = "The worker", body = Worker),
        (
            status = 404,
            description = "`worker_not_found`; the serverless deployment mode stops any name",
        ),
        (status = 409, description = "`too_many_drains`"),
    ),
    security(("bearer" = ["work"]), ("basic" = ["work"])),
)]
async fn stop(
    State(api): State<Api>,
    accept: Accept,
    _: May<Work>,
    Name(name): Name<String>,
) -> HandlerResult {
    Ok(accept.ok(convert::worker(api.server.stop_worker(&name).await?)).into_response())
}

/// Undrain a worker: it gets jobs again, and a stop that it has not received yet is withdrawn.
#[utoipa::path(
    post, path = "/v1/workers/{worker}/undrain", operation_id = "undrain_worker", tag = "workers",
    params(("worker" = String, Path, description = "The worker's name")),
    responses(
        (status = 200, description = "The worker", body = Worker),
        (status = 404, description = "`worker_not_found`"),
    ),
    security(("bearer" = ["work"]), ("basic" = ["work"])),
)]
async fn undrain(
    State(api): State<Api>,
    accept: Accept,
    _: May<Work>,
    Name(name): Name<String>,
) -> HandlerResult {
    Ok(accept.ok(convert::worker(api.server.drain_worker(&name, false).await?)).into_response())
}

/// Delete a worker that is gone, or that stops. Its leases stay until they expire. Its waiting
/// lease requests end without jobs; in the serverless deployment mode they end by themselves. A
/// token with bounds may delete it, too, but a drain stays.
#[utoipa::path(
    delete, path = "/v1/workers/{worker}", operation_id = "delete_worker", tag = "workers",
    params(
        ("worker" = String, Path, description = "The worker's name"),
        (
            "keep_drain" = Option<bool>, Query,
            description = "Whether a drain stays, as for a worker that restarts (default false)",
        ),
    ),
    responses(
        (status = 204, description = "Deleted"),
        (status = 404, description = "`worker_not_found`"),
    ),
    security(("bearer" = ["work"]), ("basic" = ["work"])),
)]
async fn forget(
    State(api): State<Api>,
    caller: Within<Work>,
    Name(name): Name<String>,
    mut params: Params,
) -> Result<StatusCode, Problem> {
    let keep_drain = params.one::<bool>("keep_drain")?.unwrap_or_default();
    params.done()?;
    // Such a caller may not undrain a worker.
    let keep_drain = keep_drain || !caller.bounds().is_everything();
    api.server.forget_worker(&name, keep_drain).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The routes of workers.
pub fn routes() -> Routes {
    routes!(list, register, forget, history, drain, stop, undrain)
}
