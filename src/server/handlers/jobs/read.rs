//! Reading jobs: one, a list, a result, and why a job waits.

use std::time::Duration;
use tidegate_core::error_code::ErrorCode;

use axum::{extract::State, response::IntoResponse};
use tidegate_api::{AnyValue, Bodies, Explanation, JobPage, JobView};

use super::super::{
    Api, HandlerResult,
    access::{May, Read},
    convert,
    error::Problem,
    media::Accept,
    params::{JobPath, Name, Params},
};
use tidegate_core::{
    job::{JobId, Payload, TypeName},
    time::Seconds,
};

/// How long a request for a result may wait.
const MAX_WAIT: Seconds = Seconds::new(60);

async fn show(api: &Api, accept: Accept, id: &JobId, job_type: Option<&TypeName>) -> HandlerResult {
    let job = api.whole(api.server.job(id, job_type).await?).await?;
    Ok(api.fitting(|bodies| {
        accept
            .ok(JobView::new(&job, api.server.now(), accept.0, bodies))
            .etag(job.life.revision.0)
            .into_response()
    }))
}

/// A job, by its id.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", operation_id = "get_job_by_id", tag = "jobs",
    params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job, its `ETag` the revision", body = JobView),
        (status = 404, description = "`job_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
pub async fn by_id(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    Name(id): Name<JobId>,
) -> HandlerResult {
    show(&api, accept, &id, None).await
}

/// A job, by its type and id.
#[utoipa::path(
    get, path = "/v1/jobs/{type}/{id}", operation_id = "get_job", tag = "jobs",
    params(
        ("type" = String, Path, description = "The job type"),
        ("id" = String, Path, description = "The job's id"),
    ),
    responses(
        (status = 200, description = "The job, its `ETag` the revision", body = JobView),
        (status = 404, description = "`job_not_found`, also if it has another type"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
pub(crate) async fn by_type_and_id(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    path: JobPath,
) -> HandlerResult {
    show(&api, accept, &path.id, Some(&path.job_type)).await
}

/// Jobs, newest first by creation.
///
/// A short or empty page can still have a `next_cursor`. Bodies over 1 KiB are left out. The
/// server's own jobs, which deliver completion callbacks, are listed only if `type` or `queue` names
/// them.
#[utoipa::path(
    get, path = "/v1/jobs", operation_id = "list_jobs", tag = "jobs",
    params(
        ("type" = Option<String>, Query, description = "Only this type"),
        ("queue" = Option<String>, Query, description = "Only this queue"),
        (
            "state" = Option<String>, Query,
            description = "Only these states: words with commas between them, or `ended`",
        ),
        (
            "phase" = Option<String>, Query,
            description = "Only these phases: words with commas between them",
        ),
        (
            "attribute.{name}" = Option<String>, Query,
            description = "Only jobs whose attribute `name` has this value",
        ),
        ("from" = Option<String>, Query, description = "Only created at this instant or later"),
        ("to" = Option<String>, Query, description = "Only created before this instant"),
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of jobs on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = JobPage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
pub async fn list(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    params: Params,
) -> HandlerResult {
    let now = api.server.now();
    let page = api.server.list(&params.jobs(now)?).await?;
    let jobs =
        page.jobs.iter().map(|job| JobView::new(job, now, accept.0, Bodies::Small)).collect();
    Ok(accept.ok(JobPage { jobs, next_cursor: page.next_cursor }).into_response())
}

/// A job's result; with `wait`, the request waits for it.
///
/// The answer is the value itself. It is null if there is no result, if the result was read once
/// already, or (without `wait`) if the job has not ended.
#[utoipa::path(
    get, path = "/v1/jobs/{type}/{id}/result", operation_id = "get_result", tag = "jobs",
    params(
        ("type" = String, Path, description = "The job type"),
        ("id" = String, Path, description = "The job's id"),
        (
            "wait" = Option<f64>, Query,
            description = "Wait this many seconds for the job's end, 0 to 60 (default 0)",
        ),
    ),
    responses(
        (status = 200, description = "The result", body = AnyValue),
        (status = 404, description = "`job_not_found`"),
        (status = 408, description = "`wait_timeout`: the job has not ended; retry"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
pub async fn result(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    path: JobPath,
    mut params: Params,
) -> HandlerResult {
    let wait = match params.one::<f64>("wait")?.map(Seconds::try_from) {
        None => Duration::ZERO,
        Some(Ok(wait)) if wait <= MAX_WAIT => wait.duration(),
        Some(_) => return Err(Problem::invalid("wait", "must be 0 to 60")),
    };
    params.done()?;
    let shown = |result: &Payload| accept.ok(AnyValue::new(result, accept.0)).into_response();
    // A result that can be read once must not be lost with an answer that is too large.
    let fits =
        |result: &Payload| api.server.options().answer_bytes.is_none() || api.fits(&shown(result));
    match api.server.result_if(&path.id, Some(&path.job_type), wait, fits).await? {
        Some(Some(result)) => Ok(shown(&result)),
        Some(None) => Ok(accept.ok(()).into_response()),
        None if wait.is_zero() => Ok(accept.ok(()).into_response()),
        None => Err(Problem::new(ErrorCode::WaitTimeout, "the job has not ended yet; retry")),
    }
}

/// Why a job waits.
#[utoipa::path(
    get, path = "/v1/jobs/{type}/{id}/explain", operation_id = "explain_job", tag = "jobs",
    params(
        ("type" = String, Path, description = "The job type"),
        ("id" = String, Path, description = "The job's id"),
    ),
    responses(
        (status = 200, description = "What holds it", body = Explanation),
        (status = 404, description = "`job_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
pub async fn explain(
    State(api): State<Api>,
    accept: Accept,
    _: May<Read>,
    path: JobPath,
) -> HandlerResult {
    let explanation = api.server.explain(&path.id, Some(&path.job_type)).await?;
    Ok(accept.ok(convert::explanation(explanation)).into_response())
}
