//! Reading jobs: one, a list, a result, and why a job waits.

use std::time::Duration;
use tidegate_core::error_code::ErrorCode;

use axum::{
    extract::State,
    http::HeaderValue,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tidegate_api::{AnyValue, Bodies, Explanation, FilterBody, JobPage, JobView, LogPage};

use super::super::{
    Api, HandlerResult,
    access::{Read, ReadJob, Within, outside},
    convert,
    error::Problem,
    headers::{JOB_RESULT, JOB_STATE},
    media::Accept,
    params::{JobPath, Name, Params},
    reply::Reply,
};
use crate::auth::Bounds;
use tidegate_core::{
    job::{JobId, JobSort, Outcome, Payload, TypeName, lifecycle::word},
    port::job_store::ListQuery,
    time::Seconds,
};
use tidegate_engine::{jobs::sorted::SortedPage, request::JobResult};

/// How long a request for a result or for log lines may wait.
pub(in super::super) const MAX_WAIT: Seconds = Seconds::new(60);

async fn show(
    api: &Api,
    accept: Accept,
    caller: &Within<ReadJob>,
    id: &JobId,
    job_type: Option<&TypeName>,
) -> HandlerResult {
    let job = caller.job(api, id, job_type).await?;
    let job = api.whole(job).await?;
    Ok(api.fitting(|bodies| {
        accept
            .ok(JobView::new(&job, api.server.now(), accept.0, bodies))
            .etag(job.life.revision.0)
            .into_response()
    }))
}

/// A job, by its id.
///
/// The scope `read` or `enqueue` is enough.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", operation_id = "get_job_by_id", tag = "jobs",
    params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job, its `ETag` the revision", body = JobView),
        (status = 404, description = "`job_not_found`"),
    ),
    security(
        ("bearer" = ["read"]), ("bearer" = ["enqueue"]), ("basic" = ["read"]),
        ("basic" = ["enqueue"]),
    ),
)]
pub async fn by_id(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<ReadJob>,
    Name(id): Name<JobId>,
) -> HandlerResult {
    show(&api, accept, &caller, &id, None).await
}

/// A job, by its type and id.
///
/// The scope `read` or `enqueue` is enough.
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
    security(
        ("bearer" = ["read"]), ("bearer" = ["enqueue"]), ("basic" = ["read"]),
        ("basic" = ["enqueue"]),
    ),
)]
pub(crate) async fn by_type_and_id(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<ReadJob>,
    path: JobPath,
) -> HandlerResult {
    show(&api, accept, &caller, &path.id, Some(&path.job_type)).await
}

/// Jobs, newest first by creation; with `id`, in the order of the ids.
///
/// On AWS the jobs come by when they were first due: from the time of the first page back to the
/// earliest, then those due later, soonest first.
///
/// Several words of a condition are separated by commas. A value in the data is written
/// `data[/user/id]=7`, an attribute `attribute[region]=eu`.
///
/// With `sort` the matching jobs are compared, at most the first 10,000 of the list in its own order,
/// with `data` those of 2000 bodies; `sorted` in the answer says whether these were all. Jobs without
/// the value come last, and of equal values the newest comes first. Later pages leave out jobs that
/// were accepted after the first page. Each page reads as much as the first one.
///
/// A page reads a bounded number of jobs, so a short or empty page can still have a `next_cursor`;
/// with `data` it reads at most 2000 bodies, and no more after 64 MiB. A token with bounds sees only the
/// jobs within them, and no `unreadable`. Bodies over 1 KiB are left out. The server's own jobs, which
/// carry callbacks and events, are listed only if `type`, `queue` or `id` names them.
#[utoipa::path(
    get, path = "/v1/jobs", operation_id = "list_jobs", tag = "jobs",
    params(
        FilterBody,
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of jobs on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
        (
            "sort" = Option<String>, Query,
            description = "`created_at`, `run_at`, `started_at`, `ended_at`, `duration` (of the \
                latest attempt), `wait` (before it), `attempt` or `priority`; after `-` the \
                largest comes first. A `cursor` needs the `sort` of its page",
        ),
    ),
    responses((status = 200, description = "A page", body = JobPage)),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
pub async fn list(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Read>,
    mut params: Params,
) -> HandlerResult {
    let now = api.server.now();
    let bounds = caller.bounds();
    let sort = params.one::<JobSort>("sort")?;
    let query = within(params.jobs(now)?, bounds)?;
    let SortedPage { mut page, compared } = match sort {
        None => SortedPage { page: api.server.list(&query).await?, compared: None },
        Some(sort) => api.server.list_sorted(&query, sort).await?,
    };
    if !bounds.is_everything() {
        // The queue and the type of a job that cannot be read are not known.
        page.unreadable.clear();
    }
    let jobs =
        page.jobs.iter().map(|job| JobView::new(job, now, accept.0, Bodies::Small)).collect();
    let unreadable = page.unreadable.into_iter().map(|job| job.id).collect();
    let sorted = compared.map(convert::compared);
    let next_cursor = page.next_cursor;
    Ok(accept.ok(JobPage { jobs, unreadable, sorted, next_cursor }).into_response())
}

/// The query for the jobs that a caller with these bounds may see.
///
/// # Errors
///
/// 403 if the query names a queue or a type outside them.
pub(super) fn within(mut query: ListQuery, bounds: &Bounds) -> Result<ListQuery, Problem> {
    if query.filter.queue.as_ref().is_some_and(|queue| !bounds.allow_queue(queue))
        || query.filter.job_type.as_ref().is_some_and(|job_type| !bounds.allow_type(job_type))
    {
        return Err(outside());
    }
    // The store decides, so that a page and its cursor depend on no other job.
    query.within_queues.clone_from(&bounds.queues);
    query.within_types.clone_from(&bounds.types);
    Ok(query)
}

/// The answer of a job that succeeded, with the headers of its state and its result.
fn succeeded<T: Serialize>(answer: Reply<T>, state: &str, result: &str) -> Response {
    let answer = answer.header(JOB_STATE.clone(), state).header(JOB_RESULT.clone(), result);
    answer.into_response()
}

/// A job's result; with `wait`, the request waits for it.
///
/// The header `Tidegate-State` has the state of the job, also with 408 and 409. With `succeeded` the
/// answer is the value itself. A success without a result is 200 with null, and the header
/// `Tidegate-Result` is `none` then: none was reported, it is not kept any longer, or it was read
/// once already. If it is `value`, the answer is what the worker reported, which may be null. With
/// `scheduled` or `running` it is null, or 408 after a `wait`. With every other state it is 409 and
/// has the job's error.
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
        (
            status = 200, description = "The result", body = AnyValue,
            headers(
                ("Tidegate-State" = String, description = "The state of the job"),
                ("Tidegate-Result" = String, description = "Of a success: `value` or `none`")
            ),
        ),
        (status = 404, description = "`job_not_found`"),
        (
            status = 408, description = "`wait_timeout`: the job has not ended; retry",
            headers(("Tidegate-State" = String, description = "The state of the job")),
        ),
        (
            status = 409,
            description = "`job_failed`: the job ended otherwise than succeeded; `state` says how, \
                and `error` why",
            headers(("Tidegate-State" = String, description = "The state of the job")),
        ),
    ),
    security(
        ("bearer" = ["read"]), ("bearer" = ["enqueue"]), ("basic" = ["read"]),
        ("basic" = ["enqueue"]),
    ),
)]
pub async fn result(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<ReadJob>,
    path: JobPath,
    mut params: Params,
) -> HandlerResult {
    caller.check_job(&api, &path.id, Some(&path.job_type)).await?;
    let wait = wait(&mut params)?;
    params.done()?;
    let shown = |result: &Payload| accept.ok(AnyValue::new(result, accept.0));
    // A result that can be read once must not be lost with an answer that is too large.
    let fits = |result: &Payload| {
        api.server.options().answer_bytes.is_none() || api.fits(&shown(result).into_response())
    };
    let JobResult { job, value } =
        api.server.result_if(&path.id, Some(&path.job_type), wait, fits).await?;
    let state = word(&job.life.state);
    let refused =
        |problem: Problem| problem.header(JOB_STATE.clone(), HeaderValue::from_static(state));
    match (job.life.ended(), value) {
        (Some(Outcome::Succeeded), Some(result)) => Ok(succeeded(shown(&result), state, "value")),
        (Some(Outcome::Succeeded), None) => Ok(succeeded(accept.ok(()), state, "none")),
        (Some(_), _) => Err(refused(Problem::job_failed(&job))),
        (None, _) if wait.is_zero() => {
            Ok(accept.ok(()).header(JOB_STATE.clone(), state).into_response())
        }
        (None, _) => {
            let detail = "the job has not ended yet; retry";
            Err(refused(Problem::new(ErrorCode::WaitTimeout, detail)))
        }
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
    security(
        ("bearer" = ["read"]), ("bearer" = ["enqueue"]), ("basic" = ["read"]),
        ("basic" = ["enqueue"]),
    ),
)]
pub async fn explain(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<ReadJob>,
    path: JobPath,
) -> HandlerResult {
    caller.check_job(&api, &path.id, Some(&path.job_type)).await?;
    let mut explanation = api.server.explain(&path.id, Some(&path.job_type)).await?;
    if let Some(ahead) = explanation.job_ahead()
        && caller.check_job(&api, &ahead, None).await.is_err()
    {
        explanation.hide_job_ahead();
    }
    Ok(accept.ok(convert::explanation(explanation)).into_response())
}

/// The log lines of a job's attempts.
///
/// The page is empty if there are no lines. With `wait`, the request waits for the first. Lines are
/// kept for as long as the type keeps ended jobs, from when they were received, and at least an hour.
#[utoipa::path(
    get, path = "/v1/jobs/{type}/{id}/log", operation_id = "get_log", tag = "jobs",
    params(
        ("type" = String, Path, description = "The job type"),
        ("id" = String, Path, description = "The job's id"),
        ("attempt" = Option<u16>, Query, description = "Only lines of this attempt"),
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of lines on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<u64>, Query, description = "`next_cursor` of the previous page"),
        (
            "wait" = Option<f64>, Query,
            description = "Wait this many seconds for a line, 0 to 60 (default 0)",
        ),
    ),
    responses(
        (status = 200, description = "A page, oldest line first", body = LogPage),
        (status = 404, description = "`job_not_found`"),
    ),
    security(("bearer" = ["read"]), ("basic" = ["read"])),
)]
pub async fn log(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Read>,
    path: JobPath,
    mut params: Params,
) -> HandlerResult {
    caller.check_job(&api, &path.id, Some(&path.job_type)).await?;
    let (limit, from) = (params.limit()?, params.one::<u64>("cursor")?.unwrap_or(0));
    let (attempt, wait) = (params.one("attempt")?, wait(&mut params)?);
    params.done()?;
    let range = (from, limit as usize);
    let page = api.server.log(&path.id, Some(&path.job_type), attempt, range, wait).await?;
    Ok(accept.ok(page).into_response())
}

/// How long a request waits.
///
/// # Errors
///
/// 400 if it is not 0 to 60 seconds.
fn wait(params: &mut Params) -> Result<Duration, Problem> {
    match params.one::<f64>("wait")?.map(Seconds::try_from) {
        None => Ok(Duration::ZERO),
        Some(Ok(wait)) if wait <= MAX_WAIT => Ok(wait.duration()),
        Some(_) => Err(Problem::invalid("wait", "must be 0 to 60")),
    }
}
