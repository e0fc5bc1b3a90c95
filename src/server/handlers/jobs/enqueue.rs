//! Enqueueing: one job, one under an id of the client, and a batch.
//!
//! These are the hottest routes. A request is parsed into a struct that borrows from it, and `data`
//! stays a slice of the request until it is stored.

use std::collections::BTreeMap;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use tidegate_api::{
    BatchBody, BatchJob, BatchResult, BatchView, Bodies, JobView, NewJobBody, ShortView,
};

use super::super::{
    Api, HandlerResult,
    access::{AllowedTypes, Enqueue, Within, check_critical},
    body::{self, Body},
    error::Problem,
    media::Accept,
    params::{IdempotencyKey, JobPath},
};
use tidegate_core::{
    job::{self, Job, TraceContext, trace},
    time::Timestamp,
};
use tidegate_engine::request::{Enqueued, NewJob};

/// Maximum bytes of `tracestate`; a longer one is left out.
const MAX_TRACE_STATE_BYTES: usize = 512;

/// A job as the engine accepts it.
fn read_job(
    body: NewJobBody<'_>,
    text: &Body,
    api: &Api,
    (caller, types): (&Within<Enqueue>, &AllowedTypes<'_>),
    trace: &BTreeMap<String, String>,
) -> Result<NewJob, Problem> {
    if body.options.critical {
        check_critical(caller)?;
    }
    let job_type = body.job_type.ok_or_else(|| Problem::invalid("type", "is required"))?;
    types.check(&job_type)?;
    Ok(NewJob {
        job_type,
        id: body.id,
        idempotency_key: None,
        data: text.value(body.data, "data", api.options.max_data_bytes)?,
        run_at: body.run_at,
        delay_seconds: body.delay_seconds,
        expires_at: body.expires_at,
        correlation_key: body.correlation_key,
        options: body.options,
        trace: trace.clone(),
        replay_of: None,
        enqueued_by: caller.producer().map(str::to_owned),
        origin: None,
    })
}

/// The trace headers of a request, which the worker receives. A malformed trace is ignored.
pub(super) fn trace_of(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    let mut parents = headers.get_all(trace::PARENT).iter();
    let (Some(parent), None) =
        (parents.next().and_then(|parent| parent.to_str().ok()), parents.next())
    else {
        return kept;
    };
    if parent.parse::<TraceContext>().is_err() {
        return kept;
    }
    kept.insert(trace::PARENT.to_owned(), parent.to_owned());
    let states: Option<Vec<&str>> =
        headers.get_all(trace::STATE).iter().map(|state| state.to_str().ok()).collect();
    let state = states.unwrap_or_default().join(",");
    if !state.is_empty() && state.len() <= MAX_TRACE_STATE_BYTES {
        kept.insert(trace::STATE.to_owned(), state);
    }
    kept
}

/// The answer to one enqueue. The bodies of an existing job are loaded; a new job has `data`. Of a
/// job that `caller` may not read, the answer is the outline.
pub(crate) async fn accepted(
    api: &Api,
    accept: Accept,
    caller: &Within<Enqueue>,
    enqueued: Enqueued,
    data: job::Body,
) -> HandlerResult {
    let (new, merged) = (enqueued.new, enqueued.merged.map(|merged| merged.how));
    let sees = new || caller.sees(&enqueued.job);
    let job = if new || !sees { enqueued.job } else { api.whole(enqueued.job).await? };
    let data = if new { &data } else { &job.data };
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    let place = format!("/v1/jobs/{}/{}", job.spec.job_type, job.id);
    let now = api.server.now();
    let view = |bodies| {
        let view = if sees {
            JobView::with_data(&job, data, now, accept.0, bodies)
        } else {
            JobView::outline(&job, now, accept.0)
        };
        JobView { merged, ..view }
    };
    let answer = |bodies| {
        accept
            .reply(status, view(bodies))
            .etag(job.life.revision.0)
            .header(header::LOCATION, &place)
    };
    Ok(api.fitting(|bodies| answer(bodies).into_response()))
}

/// Enqueue a job.
///
/// If the request's `unique` has `on_conflict: "replace"` or `debounce`, and a job that holds the key
/// has not started, that job takes the request: 200 with it, and `merged` says what changed.
///
/// With an `Idempotency-Key`, or an `id` in the body, a repeat answers 200 with the first job. If a
/// token of another name enqueued that, and the token has no scope `read`, the answer leaves out
/// its data, its result and what else that token gave it.
#[utoipa::path(
    post, path = "/v1/jobs", operation_id = "enqueue", tag = "jobs", request_body = NewJobBody,
    params(
        (
            "Idempotency-Key" = Option<String>, Header,
            description = "A repeat with the same key enqueues nothing; at most 255 bytes",
        ),
    ),
    responses(
        (status = 201, description = "Enqueued", body = JobView),
        (
            status = 200,
            description = "It was enqueued before, or a waiting job with its unique key took it",
            body = JobView,
        ),
        (status = 404, description = "`job_type_not_found`"),
        (
            status = 409,
            description = "`id_taken`, `idempotency_key_reused`, `correlation_key_taken`; \
                `holder` names the job",
        ),
    ),
    security(("bearer" = ["enqueue"]), ("basic" = ["enqueue"])),
)]
pub async fn enqueue(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Enqueue>,
    IdempotencyKey(key): IdempotencyKey,
    headers: HeaderMap,
    body: Body,
) -> HandlerResult {
    let types = caller.types(&api).await?;
    let caller = (&caller, &types);
    let mut job = read_job(body.read()?, &body, &api, caller, &trace_of(&headers))?;
    job.idempotency_key = key;
    enqueue_one(&api, accept, caller.0, job).await
}

/// Enqueue a job under an id of your own.
///
/// A repeat of the request gets 200 with the current job, even if it has ended. Another request
/// with that id gets 409.
#[utoipa::path(
    put, path = "/v1/jobs/{type}/{id}", operation_id = "put_job", tag = "jobs",
    request_body = NewJobBody,
    params(
        ("type" = String, Path, description = "The job type"),
        ("id" = String, Path, description = "The job's id"),
    ),
    responses(
        (status = 201, description = "Enqueued", body = JobView),
        (status = 200, description = "The same request was accepted before", body = JobView),
        (status = 404, description = "`job_type_not_found`"),
        (status = 409, description = "`id_taken`, `correlation_key_taken`; `holder` names the job"),
    ),
    security(("bearer" = ["enqueue"]), ("basic" = ["enqueue"])),
)]
pub async fn put(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Enqueue>,
    path: JobPath,
    headers: HeaderMap,
    body: Body,
) -> HandlerResult {
    // A route of another system, which draws an id. Here its jobs would all be the same job.
    if path.id.as_str() == "random_id" {
        return Err(Problem::invalid("id", "is no id: POST /v1/jobs draws one"));
    }
    let mut ask: NewJobBody<'_> = body.read()?;
    if ask.job_type.get_or_insert_with(|| path.job_type.clone()) != &path.job_type {
        return Err(Problem::invalid("type", "differs from the type in the path"));
    }
    if ask.id.get_or_insert_with(|| path.id.clone()) != &path.id {
        return Err(Problem::invalid("id", "differs from the id in the path"));
    }
    let types = caller.types(&api).await?;
    let job = read_job(ask, &body, &api, (&caller, &types), &trace_of(&headers))?;
    enqueue_one(&api, accept, &caller, job).await
}

/// Enqueues a job. An existing one is shown only if it is within the caller's bounds.
async fn enqueue_one(
    api: &Api,
    accept: Accept,
    caller: &Within<Enqueue>,
    job: NewJob,
) -> HandlerResult {
    let data = job::Body::Inline(job.data.clone());
    let enqueued = api.server.enqueue(job).await.map_err(|error| caller.problem(error))?;
    caller.check_bounds(&enqueued.job)?;
    accepted(api, accept, caller, enqueued, data).await
}

/// The jobs of a batch as unparsed texts, for a batch in which one is wrong.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchTexts<'a> {
    #[serde(borrow)]
    jobs: Vec<&'a RawValue>,
}

/// Enqueue up to 1000 jobs.
///
/// Each job has its own answer, so a wrong job does not stop the others. An `Idempotency-Key`
/// applies per position in the list.
///
/// Where answers are bounded (on AWS, 4.7 MB), bodies over 1 KiB are left out first. If the answer
/// is still too large, each job has only `id`, `type`, `queue`, `state`, `phase`, `attempt`,
/// `run_at`, `due_at` and `created_at`.
#[utoipa::path(
    post, path = "/v1/jobs/batch", operation_id = "enqueue_batch", tag = "jobs",
    request_body = BatchBody,
    params(
        (
            "Idempotency-Key" = Option<String>, Header,
            description = "Job n of the list is enqueued under this key followed by #n",
        ),
    ),
    responses(
        (status = 200, description = "One answer per job: 201, 200, or an error", body = BatchView),
    ),
    security(("bearer" = ["enqueue"]), ("basic" = ["enqueue"])),
)]
pub async fn enqueue_many(
    State(api): State<Api>,
    accept: Accept,
    caller: Within<Enqueue>,
    IdempotencyKey(key): IdempotencyKey,
    headers: HeaderMap,
    body: Body,
) -> HandlerResult {
    let asked = read_batch(&body)?;
    let trace = trace_of(&headers);
    let types = caller.types(&api).await?;
    // One slot per job: its problem, or none if it goes to the server.
    let mut slots = Vec::with_capacity(asked.len());
    let mut jobs = Vec::with_capacity(asked.len());
    let mut data = Vec::with_capacity(asked.len());
    for (index, ask) in asked.into_iter().enumerate() {
        match ask.and_then(|ask| read_job(ask, &body, &api, (&caller, &types), &trace)) {
            Ok(mut job) => {
                job.idempotency_key = key.as_ref().map(|key| format!("{key}#{index}"));
                data.push(job::Body::Inline(job.data.clone()));
                jobs.push(job);
                slots.push(None);
            }
            Err(problem) => slots.push(Some(problem)),
        }
    }
    let mut answers = api.server.enqueue_many(jobs).await;
    load_repeats(&api, &mut answers).await?;
    let mut known = answers.iter().zip(&data);
    let results = slots.into_iter().map(|slot| match slot {
        Some(problem) => Err(problem),
        None => match known.next() {
            Some((Ok(enqueued), data)) => {
                caller.check_bounds(&enqueued.job).map(|()| (enqueued, data))
            }
            Some((Err(error), _)) => Err(caller.problem(error.clone())),
            None => Err(Problem::internal("an enqueue of a batch has no answer")),
        },
    });
    let results: Vec<_> = results.collect();
    let now = api.server.now();
    let answer = |bodies| batch_answer(accept, &caller, now, &results, bodies);
    let fitting = api.fitting(|bodies| answer(Some(bodies)));
    // The jobs are stored. A caller without this answer would enqueue them again.
    Ok(if api.fits(&fitting) { fitting } else { answer(None) })
}

/// The answer to a batch. Without `bodies`, each job is shown in its short form.
fn batch_answer(
    accept: Accept,
    caller: &Within<Enqueue>,
    now: Timestamp,
    results: &[Result<(&Enqueued, &job::Body), Problem>],
    bodies: Option<Bodies>,
) -> Response {
    let results = results.iter().map(|result| match result {
        Ok((Enqueued { job, new, merged }, data)) => {
            let data = if *new { data } else { &job.data };
            let merged = merged.map(|merged| merged.how);
            let view = match bodies {
                Some(_) if !*new && !caller.sees(job) => {
                    let view = JobView::outline(job, now, accept.0);
                    BatchJob::Whole(JobView { merged, ..view })
                }
                Some(bodies) => {
                    let view = JobView::with_data(job, data, now, accept.0, bodies);
                    BatchJob::Whole(JobView { merged, ..view })
                }
                None => BatchJob::Short(ShortView { merged, ..ShortView::new(job, now) }),
            };
            BatchResult { status: if *new { 201 } else { 200 }, job: Some(view), error: None }
        }
        Err(problem) => BatchResult {
            status: problem.status().as_u16(),
            job: None,
            error: Some(problem.document()),
        },
    });
    accept.ok(BatchWriter { results }).into_response()
}

/// Written as a [`BatchView`]. Each result is made when it is written: a thousand at once would take
/// a megabyte.
#[derive(Serialize)]
struct BatchWriter<R: Iterator<Item: Serialize> + Clone> {
    #[serde(serialize_with = "write_each")]
    results: R,
}

/// Writes a list of the items of `each`.
fn write_each<R: Iterator<Item: Serialize> + Clone, S: Serializer>(
    each: &R,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(each.clone())
}

/// The jobs of a batch, parsed at once; if that fails, each on its own.
fn read_batch(body: &Body) -> Result<Vec<Result<NewJobBody<'_>, Problem>>, Problem> {
    match body.read::<BatchBody<'_>>() {
        Ok(batch) => Ok(batch.jobs.into_iter().map(Ok).collect()),
        Err(_) => Ok(body
            .read::<BatchTexts<'_>>()?
            .jobs
            .into_iter()
            .map(|text| body::read(text.get().as_bytes()))
            .collect()),
    }
}

/// Loads the bodies of jobs that existed before.
async fn load_repeats(
    api: &Api,
    answers: &mut [Result<Enqueued, tidegate_engine::Error>],
) -> Result<(), Problem> {
    let mut repeats: Vec<&mut Job> = answers
        .iter_mut()
        .flatten()
        .filter(|answer| !answer.new)
        .map(|answer| &mut answer.job)
        .collect();
    if repeats.is_empty() {
        return Ok(());
    }
    let loaded = api.server.load(repeats.iter().map(|job| (**job).clone()).collect()).await?;
    for (job, whole) in repeats.iter_mut().zip(loaded) {
        **job = whole;
    }
    Ok(())
}
