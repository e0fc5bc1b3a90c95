//! Leases: pull workers request jobs and report on earlier ones.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use axum::{Extension, extract::State, response::IntoResponse};
use tidegate_api::{LeaseBody, LeaseView, LeasesView, NewLogLine, ReportedView};

use super::{
    Api, HandlerResult, MAX_BATCH_BYTES,
    access::{Within, Work, outside as outside_bounds},
    body::Body,
    bound,
    error::Problem,
    forwarded::{Hop, add_claims, answer_of_owner},
    jobs::attempt::read_report,
    media::Accept,
    routes::{Routes, routes},
};
use crate::runtime::{AttemptLog, LeaseClaim, MAX_LEASES, UnwrittenLeases};
use tidegate_core::{
    job::{Job, JobId, lifecycle::word},
    time::Seconds,
};
use tidegate_engine::request::LeaseRequest;

/// Why a lease is handed back.
const NO_ROOM: &str = "the answer to its worker had no room for it";
/// Why an attempt fails.
const TOO_LARGE: &str = "its lease, in the encoding that the worker requested, is larger than an \
    answer may be: deliver it by push, request the other encoding, or store large data elsewhere \
    and enqueue a reference";

/// Lease jobs, and report on earlier ones.
#[utoipa::path(
    post, path = "/v1/leases", operation_id = "lease", tag = "workers", request_body = LeaseBody,
    responses(
        (
            status = 200,
            description = "Leases, perhaps none, and one answer per report",
            body = LeasesView,
        ),
        (status = 404, description = "`job_type_not_found`, `queue_not_found`"),
    ),
    security(("bearer" = ["work"]), ("basic" = ["work"])),
)]
async fn lease(
    State(api): State<Api>,
    unwritten: Option<Extension<UnwrittenLeases>>,
    accept: Accept,
    caller: Within<Work>,
    hop: Hop,
    body: Body,
) -> HandlerResult {
    let LeaseCall { mut request, sent, logs, mut refused } = read_request(&body, &api)?;
    let forwarder = hop.forwarder();
    let received = hop.received(&body);
    // A call may wait for a minute; the buffer of its request is freed before.
    drop(body);
    let unwritten = unwritten.map(|Extension(unwritten)| unwritten);
    if let Some(received) = received
        && let Some(answer) =
            answer_of_owner(&api, &caller, &mut request, received, unwritten.as_ref()).await
    {
        return Ok(answer);
    }
    remove_outside(&api, &caller, &mut request, &mut refused).await?;
    if !refused.is_empty() {
        // The worker learns at once what is wrong, and sends it again.
        request.wait = Duration::ZERO;
    }
    // The lines follow their reports at once, and not after the wait.
    let mut answers = Vec::new();
    let has_lines = logs.iter().any(|lines| !lines.is_empty());
    if has_lines {
        // Its future is large, and would be a part of each call that waits.
        let settled = Box::pin(api.server.report(std::mem::take(&mut request.reports))).await;
        if settled.iter().any(Result::is_err) {
            request.wait = Duration::ZERO;
        }
        answers = answers_of(sent.len(), &mut refused, settled);
        add_logs(&api, logs, &sent, &mut answers).await;
    }
    let worker = request.worker.clone();
    let leased = match &forwarder {
        Some(by) => Box::pin(api.server.lease_forwarded(request, caller.bounds(), by)).await?,
        None => api.server.lease_within(request, caller.bounds()).await?,
    };
    let stop = api.server.is_worker_stopping(worker.as_deref()).await;
    let mut jobs = leased.jobs;
    if let Some(unwritten) = unwritten.filter(|_| !jobs.is_empty()) {
        unwritten.hold(&api.server, jobs.iter().map(LeaseClaim::of));
    }
    let retry_after_seconds =
        leased.pause.map(|pause| Seconds::from_millis(pause.as_millis() as u64));
    if !has_lines {
        answers = answers_of(sent.len(), &mut refused, leased.reports);
    }
    let reports: Vec<ReportedView> =
        sent.into_iter().zip(answers).map(|((id, _), answer)| reported_view(id, answer)).collect();
    loop {
        let leases = jobs.iter().filter_map(|job| LeaseView::new(job, accept.0)).collect();
        let mut answer = accept
            .ok(LeasesView { leases, reports: Cow::Borrowed(&reports), retry_after_seconds, stop })
            .into_response();
        if jobs.is_empty() || api.fits(&answer) {
            if forwarder.is_some() {
                add_claims(&mut answer, &jobs);
            }
            return Ok(answer);
        }
        // Stored jobs fit; in the other encoding they can be several times as long.
        let fits_alone = |job: &Job| {
            let leases = LeaseView::new(job, accept.0).into_iter().collect();
            let reports = Cow::Borrowed(&[][..]);
            let alone = LeasesView { leases, reports, retry_after_seconds: None, stop };
            api.fits(&accept.ok(alone).into_response())
        };
        let unfit: Vec<Job> = jobs.extract_if(.., |job| !fits_alone(job)).collect();
        if unfit.is_empty() {
            let back = last(&mut jobs, api.excess(&answer), accept);
            api.server.hand_back(&back, NO_ROOM).await;
        } else {
            api.server.refuse_leases(&unfit, TOO_LARGE).await;
        }
    }
}

/// Removes the reports on jobs outside the caller's bounds, unless they show the token of their
/// attempt, and adds them to `refused`.
async fn remove_outside(
    api: &Api,
    caller: &Within<Work>,
    request: &mut LeaseRequest,
    refused: &mut Refused,
) -> Result<(), Problem> {
    let bounds = caller.bounds();
    if bounds.is_everything() {
        return Ok(());
    }
    let ids: Vec<JobId> = request.reports.iter().map(|report| report.id.clone()).collect();
    let jobs = api.server.engine().cached_jobs(&ids).await?;
    let places = (0..).filter(|place| !refused.contains_key(place));
    let places: Vec<usize> = places.take(ids.len()).collect();
    let reports = std::mem::take(&mut request.reports);
    for ((place, report), job) in places.into_iter().zip(reports).zip(jobs) {
        let shows_token = report.token.is_some();
        if shows_token || job.is_ok_and(|job| job.is_none_or(|job| bounds.allow(&job))) {
            request.reports.push(report);
        } else {
            refused.insert(place, outside_bounds());
        }
    }
    Ok(())
}

/// The answers to `count` reports: those in `refused` were not settled.
fn answers_of(
    count: usize,
    refused: &mut Refused,
    settled: Vec<Result<Job, tidegate_engine::Error>>,
) -> Vec<Result<Job, Problem>> {
    let mut settled = settled.into_iter();
    let answer = |index| match refused.remove(&index) {
        Some(problem) => Some(Err(problem)),
        None => Some(settled.next()?.map_err(Problem::from)),
    };
    (0..count).map_while(answer).collect()
}

/// Adds the log lines of the accepted reports. If they cannot be stored, these are answered with
/// the error: a worker sends them again.
async fn add_logs(
    api: &Api,
    logs: Vec<Vec<NewLogLine>>,
    sent: &[(JobId, u16)],
    answers: &mut [Result<Job, Problem>],
) {
    let (mut accepted, mut with_lines) = (Vec::new(), Vec::new());
    for (index, ((lines, (_, attempt)), answer)) in
        logs.into_iter().zip(sent).zip(answers.iter()).enumerate()
    {
        let Ok(job) = answer else { continue };
        if let Some(log) = AttemptLog::new(job, *attempt, lines) {
            accepted.push(log);
            with_lines.push(index);
        }
    }
    if let Err(error) = api.server.add_log(accepted).await {
        for index in with_lines {
            answers[index] = Err(Problem::from(error.clone()));
        }
    }
}

/// Why reports were refused before they were settled, by their places in the call.
type Refused = BTreeMap<usize, Problem>;

/// A lease call as it was read.
struct LeaseCall {
    /// The request, with the reports that were not refused.
    request: LeaseRequest,
    /// The job and the attempt of each report.
    sent: Vec<(JobId, u16)>,
    /// The log lines of each report.
    logs: Vec<Vec<NewLogLine>>,
    /// A wrong report does not hold up the others.
    refused: Refused,
}

/// Reads a lease call.
///
/// # Errors
///
/// 400 for a body that is no lease call, for too many reports, or a report that names no job.
fn read_request(body: &Body, api: &Api) -> Result<LeaseCall, Problem> {
    let mut ask: LeaseBody<'_> = body.read()?;
    if ask.reports.len() > MAX_LEASES as usize {
        let most = format!("must have at most {MAX_LEASES} entries");
        return Err(Problem::invalid("reports", most));
    }
    let logs = ask.reports.iter_mut().map(|report| std::mem::take(&mut report.log)).collect();
    let worker = ask.worker.as_deref();
    let call = ask.request_id.as_deref().map(|id| api.server.repeatable_call(id, worker));
    let call = call.transpose()?;
    let (mut sent, mut reports, mut refused) = (Vec::new(), Vec::new(), Refused::new());
    for (place, report) in ask.reports.into_iter().enumerate() {
        let id = report.id.clone().ok_or_else(|| Problem::invalid("id", "is required"))?;
        sent.push((id, report.attempt));
        match read_report(report, body, api, None) {
            Ok(report) => reports.push(report),
            Err(problem) => {
                refused.insert(place, problem);
            }
        }
    }
    let request = LeaseRequest {
        call,
        queue: ask.queue,
        types: ask.types.unwrap_or_default(),
        max: ask.max.unwrap_or(1),
        min: ask.min.unwrap_or_default(),
        wait: ask.wait_seconds.unwrap_or_default().duration(),
        max_pause: ask.max_pause_seconds.unwrap_or_default().duration(),
        worker: ask.worker,
        lease_seconds: ask.lease_seconds,
        reports,
    };
    Ok(LeaseCall { request, sent, logs, refused })
}

/// The answer to one report of a lease call.
fn reported_view(id: JobId, answer: Result<Job, Problem>) -> ReportedView {
    match answer {
        Ok(job) => {
            ReportedView { status: 200, id, state: Some(word(&job.life.state).into()), error: None }
        }
        Err(problem) => ReportedView {
            status: problem.status().as_u16(),
            id,
            state: None,
            error: Some(problem.document()),
        },
    }
}

/// Removes the last of `jobs`: as few as have `excess` bytes in their leases. The first keep their
/// places, so that a long job comes first at last, and is answered alone.
fn last(jobs: &mut Vec<Job>, excess: u64, accept: Accept) -> Vec<Job> {
    let bytes = |job: &Job| {
        LeaseView::new(job, accept.0)
            .map_or(0, |lease| bound::bytes(&accept.ok(lease).into_response()))
    };
    let (mut kept, mut freed) = (jobs.len(), 0);
    while kept > 0 && (freed < excess || kept == jobs.len()) {
        kept -= 1;
        freed += bytes(&jobs[kept]);
    }
    jobs.split_off(kept)
}

/// The routes of leases.
pub fn routes() -> Routes {
    routes!(lease).body_limit(MAX_BATCH_BYTES)
}
