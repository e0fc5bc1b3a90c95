//! Changing jobs: patch, cancel, replay.
//!
//! Changes of a single job need the scope `enqueue`; bulk changes need `admin` ([`super::bulk`]).

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
};
use tidegate_api::{Bodies, JobView, PatchBody, ReplayBody};

use super::{
    super::{
        Api, HandlerResult,
        access::{Enqueue, Within, check_critical},
        body::Body,
        media::Accept,
        params::{IdempotencyKey, IfMatch, JobPath, Name, Params},
    },
    enqueue::trace_of,
};
use tidegate_core::{
    job::{JobId, TypeName},
    time::Timestamp,
};
use tidegate_engine::request::{JobPatch, ReplayWith};

/// Change a scheduled job.
#[utoipa::path(
    patch, path = "/v1/jobs/{type}/{id}", operation_id = "patch_job", tag = "jobs",
    request_body = PatchBody,
    params(
        ("type" = String, Path, description = "The job type"),
        ("id" = String, Path, description = "The job's id"),
        (
            "If-Match" = Option<String>, Header,
            description = "The `ETag` that must still be current",
        ),
    ),
    responses(
        (status = 200, description = "The job as it is now", body = JobView),
        (status = 404, description = "`job_not_found`"),
        (status = 409, description = "`not_scheduled`, `already_dispatched`"),
        (status = 412, description = "`precondition_failed`: it has changed since it was read"),
    ),
    security(("bearer" = ["enqueue"]), ("basic" = ["enqueue"])),
)]
pub async fn patch(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Enqueue>,
    path: JobPath,
    IfMatch(version): IfMatch,
    body: Body,
) -> HandlerResult {
    caller.check_job(&api, &path.id, Some(&path.job_type)).await?;
    let ask: PatchBody<'_> = body.read()?;
    let data =
        ask.data.map(|raw| body.value(raw, "data", api.options.max_data_bytes)).transpose()?;
    let patch = JobPatch {
        // In the past means now.
        run_at: ask.run_at.map(|at| at.unwrap_or(Timestamp::EPOCH)),
        priority: ask.priority,
        data,
        expires_at: ask.expires_at,
        windows: ask.windows,
    };
    let job = api.server.patch(&path.id, Some(&path.job_type), patch, version).await?;
    let job = api.whole(job).await?;
    Ok(api.fitting(|bodies| {
        accept
            .ok(JobView::new(&job, api.server.now(), accept.0, bodies))
            .etag(job.life.revision.0)
            .into_response()
    }))
}

/// Cancel a job.
///
/// A scheduled job never runs. A running job is marked: its worker receives the cancel with the
/// next heartbeat. The job ends `cancelled` at its result, the end of its lease or its timeout;
/// with `force=true` it ends at once.
#[utoipa::path(
    delete, path = "/v1/jobs/{type}/{id}", operation_id = "cancel_job", tag = "jobs",
    params(
        ("type" = String, Path, description = "The job type"),
        ("id" = String, Path, description = "The job's id"),
        ("force" = Option<bool>, Query, description = "End it at once, even while it runs"),
    ),
    responses(
        (status = 200, description = "Cancelled", body = JobView),
        (
            status = 202,
            description = "Marked: the job runs until the next report of its worker",
            body = JobView,
        ),
        (status = 404, description = "`job_not_found`"),
        (status = 409, description = "`ended`, `already_dispatched`"),
    ),
    security(("bearer" = ["enqueue"]), ("basic" = ["enqueue"])),
)]
pub async fn cancel(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Enqueue>,
    path: JobPath,
    mut params: Params,
) -> HandlerResult {
    caller.check_job(&api, &path.id, Some(&path.job_type)).await?;
    let force = params.one::<bool>("force")?.unwrap_or_default();
    params.done()?;
    let cancelled = api.server.cancel(&path.id, Some(&path.job_type), force).await?;
    let status = if cancelled.ended { StatusCode::OK } else { StatusCode::ACCEPTED };
    let view = JobView::new(&cancelled.job, api.server.now(), accept.0, Bodies::Small);
    Ok(accept.reply(status, view).etag(cancelled.job.life.revision.0).into_response())
}

/// Run a job again, as a new job with `replay_of`, found by its id alone.
///
/// A repeat of the request makes no other job, unless `again` is true; the first job names its
/// latest replay in `replayed_by`. A scheduled job cannot be replayed: it will run anyway.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/replay", operation_id = "replay_job_by_id", tag = "jobs",
    request_body = Option<ReplayBody>,
    params(
        ("id" = String, Path, description = "The job's id"),
        (
            "Idempotency-Key" = Option<String>, Header,
            description = "With `again`, a repeat with the same key replays nothing",
        ),
    ),
    responses(
        (status = 201, description = "The new job", body = JobView),
        (status = 200, description = "The job that an earlier request created", body = JobView),
        (status = 404, description = "`job_not_found`"),
        (
            status = 409,
            description = "`job_not_finished`: it is scheduled; `already_replayed` with other \
                values, `correlation_key_taken`: `holder` names the job; `idempotency_key_reused`",
        ),
    ),
    security(("bearer" = ["enqueue"]), ("basic" = ["enqueue"])),
)]
pub(crate) async fn replay_by_id(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Enqueue>,
    Name(id): Name<JobId>,
    key: IdempotencyKey,
    headers: HeaderMap,
    body: Body,
) -> HandlerResult {
    replay_as_new(&api, accept, &caller, (&id, None), key, &headers, &body).await
}

/// Run a job again, as a new job with `replay_of`.
///
/// A repeat of the request makes no other job, unless `again` is true; the first job names its
/// latest replay in `replayed_by`. A scheduled job cannot be replayed: it will run anyway.
#[utoipa::path(
    post, path = "/v1/jobs/{type}/{id}/replay", operation_id = "replay_job", tag = "jobs",
    request_body = Option<ReplayBody>,
    params(
        ("type" = String, Path, description = "The job type"),
        ("id" = String, Path, description = "The job's id"),
        (
            "Idempotency-Key" = Option<String>, Header,
            description = "With `again`, a repeat with the same key replays nothing",
        ),
    ),
    responses(
        (status = 201, description = "The new job", body = JobView),
        (status = 200, description = "The job that an earlier request created", body = JobView),
        (status = 404, description = "`job_not_found`"),
        (
            status = 409,
            description = "`job_not_finished`: it is scheduled; `already_replayed` with other \
                values, `correlation_key_taken`: `holder` names the job; `idempotency_key_reused`",
        ),
    ),
    security(("bearer" = ["enqueue"]), ("basic" = ["enqueue"])),
)]
pub async fn replay(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Enqueue>,
    path: JobPath,
    key: IdempotencyKey,
    headers: HeaderMap,
    body: Body,
) -> HandlerResult {
    replay_as_new(&api, accept, &caller, (&path.id, Some(&path.job_type)), key, &headers, &body)
        .await
}

/// Replays the job with this id, and with this type if one is given.
async fn replay_as_new(
    api: &Api,
    accept: Accept,
    caller: &Within<Enqueue>,
    (id, job_type): (&JobId, Option<&TypeName>),
    IdempotencyKey(key): IdempotencyKey,
    headers: &HeaderMap,
    body: &Body,
) -> HandlerResult {
    let ask: ReplayBody<'_> = body.read_or_default()?;
    let data =
        ask.data.map(|raw| body.value(raw, "data", api.options.max_data_bytes)).transpose()?;
    let old = caller.job(api, id, job_type).await?;
    // The new job goes to the queue that its type has now.
    caller.types(api).await?.check(&old.spec.job_type)?;
    if old.spec.critical {
        check_critical(caller)?;
    }
    let with = ReplayWith {
        data,
        priority: ask.priority,
        weight: ask.weight,
        attributes: ask.attributes,
        windows: ask.windows,
        expires_at: ask.expires_at,
        again: ask.again,
        trace: trace_of(headers),
    };
    let replayed = api.server.replay(id, job_type, with, key).await?;
    let status = if replayed.new { StatusCode::CREATED } else { StatusCode::OK };
    let job = api.whole(replayed.job).await?;
    let place = format!("/v1/jobs/{}/{}", job.spec.job_type, job.id);
    let answer = |bodies| {
        accept
            .reply(status, JobView::new(&job, api.server.now(), accept.0, bodies))
            .etag(job.life.revision.0)
            .header(header::LOCATION, &place)
    };
    Ok(api.fitting(|bodies| answer(bodies).into_response()))
}
