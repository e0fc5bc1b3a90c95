//! What workers send about an attempt: its result, and heartbeats.
//!
//! The attempt's own token is enough for both, so that a callback needs no other credentials.

use axum::{extract::State, response::IntoResponse};
use serde_json::value::RawValue;
use tidegate_api::{BeatView, Bodies, HeartbeatBody, JobView, ReportBody, Status};

use super::super::{
    Api, HandlerResult,
    access::{Holder, attempt_token},
    body::Body,
    error::Problem,
    media::Accept,
    params::JobPath,
};
use crate::runtime::AttemptLog;
use tidegate_core::{
    job::{
        Payload, Token,
        lifecycle::{Failure, HandBack, Progress, Reason},
    },
    stored::UnknownFields,
    time::Timestamp,
    validate::check_start,
};
use tidegate_engine::request::{Heartbeat, MAX_CHECKPOINT_BYTES, Report, ReportOutcome};

/// Maximum bytes of a failure's message, and of a heartbeat's note.
pub(in super::super) const MAX_MESSAGE_BYTES: usize = 4 * 1024;
/// Maximum bytes of the details of a failure.
pub(in super::super) const MAX_DETAILS_BYTES: usize = 16 * 1024;

/// `report` with the job in the path, which it may repeat but not contradict.
fn about<'a>(mut report: ReportBody<'a>, path: &JobPath) -> Result<ReportBody<'a>, Problem> {
    if report.id.get_or_insert_with(|| path.id.clone()) != &path.id {
        return Err(Problem::invalid("id", "differs from the id in the path"));
    }
    if report.job_type.get_or_insert_with(|| path.job_type.clone()) != &path.job_type {
        return Err(Problem::invalid("type", "differs from the type in the path"));
    }
    Ok(report)
}

/// A report as the engine accepts it.
///
/// # Errors
///
/// 400 or 413 with the field that is wrong. Its log lines are not part of it.
pub(crate) fn read_report(
    report: ReportBody<'_>,
    body: &Body,
    api: &Api,
    token: Option<Token>,
) -> Result<Report, Problem> {
    check_fields(&report)?;
    let outcome = match report.status {
        Status::Succeeded => {
            let result = report
                .result
                .map(|raw| body.checked(raw, "result", api.options.max_data_bytes))
                .transpose()?;
            ReportOutcome::Succeeded { result: result.map(tidegate_core::job::Body::Inline) }
        }
        Status::Failed => {
            let details = report
                .error
                .map(|raw| details(&body.checked(raw, "error", MAX_DETAILS_BYTES)?))
                .transpose()?;
            let failure = Failure {
                reason: report.reason.unwrap_or(Reason::Failed),
                message: report.message,
                details,
                status: None,
                retry_after: None,
                unknown: UnknownFields::default(),
            };
            ReportOutcome::Failed { failure, retryable: report.retryable.unwrap_or(true) }
        }
        Status::Released | Status::Snoozed => {
            let until = snoozed_until(&report, api.server.now())?;
            let (message, unknown) = (report.message, UnknownFields::default());
            ReportOutcome::HandedBack(HandBack { until, message, unknown })
        }
    };
    let checkpoint = read_checkpoint(report.checkpoint, body)?;
    let id = report.id.ok_or_else(|| Problem::invalid("id", "is required"))?;
    let shown = report.token.map(|text| {
        attempt_token(&text)
            .ok_or_else(|| Problem::invalid("token", "must be 32 hexadecimal digits"))
    });
    let token = shown.transpose()?.or(token);
    let (job_type, attempt) = (report.job_type, report.attempt);
    Ok(Report { id, job_type, attempt, token, outcome, checkpoint })
}

/// The checkpoint of a report or a heartbeat.
fn read_checkpoint(
    raw: Option<&RawValue>,
    body: &Body,
) -> Result<Option<tidegate_core::job::Body>, Problem> {
    let read = raw.map(|raw| body.checked(raw, "checkpoint", MAX_CHECKPOINT_BYTES));
    Ok(read.transpose()?.map(tidegate_core::job::Body::Inline))
}

/// Refuses a field that belongs to another status.
fn check_fields(report: &ReportBody<'_>) -> Result<(), Problem> {
    use Status::{Failed, Released, Snoozed, Succeeded};
    let unfinished = &[Failed, Released, Snoozed][..];
    let fields = [
        ("result", report.result.is_some(), &[Succeeded][..], "succeeded"),
        ("error", report.error.is_some(), &[Failed], "failed"),
        ("message", report.message.is_some(), unfinished, "failed, released or snoozed"),
        ("reason", report.reason.is_some(), &[Failed], "failed"),
        // Clients of earlier builds send it with every report.
        ("retryable", report.retryable.is_some(), &[Failed, Succeeded], "failed"),
        ("checkpoint", report.checkpoint.is_some(), unfinished, "failed, released or snoozed"),
        ("run_at", report.run_at.is_some(), &[Snoozed], "snoozed"),
        ("delay_seconds", report.delay_seconds.is_some(), &[Snoozed], "snoozed"),
    ];
    for (field, given, of, status) in fields {
        if given && !of.contains(&report.status) {
            return Err(Problem::invalid(field, format!("belongs to status {status}")));
        }
    }
    if report.message.as_ref().is_some_and(|message| message.len() > MAX_MESSAGE_BYTES) {
        let message = format!("must have at most {MAX_MESSAGE_BYTES} bytes");
        return Err(Problem::invalid("message", message));
    }
    Ok(())
}

/// Until when a snoozed job waits; none for a released one.
fn snoozed_until(report: &ReportBody<'_>, now: Timestamp) -> Result<Option<Timestamp>, Problem> {
    check_start(report.run_at, report.delay_seconds)
        .map_err(|fault| Problem::from(tidegate_engine::fault(fault)))?;
    let after = report.delay_seconds.map(|delay| now + delay.duration());
    match report.run_at.or(after) {
        None if report.status == Status::Snoozed => {
            Err(Problem::invalid("run_at", "is required with status snoozed, or delay_seconds"))
        }
        until => Ok(until.map(|until| until.max(now))),
    }
}

/// The details of a failure as JSON text.
fn details(payload: &Payload) -> Result<String, Problem> {
    let json = payload.to_json().map_err(|malformed| Problem::invalid("error", malformed))?;
    String::from_utf8(json.into()).map_err(|_| Problem::invalid("error", "must be UTF-8"))
}

/// Report the result of an attempt.
///
/// A repeat of a report gets 200. A report of an attempt that does not run gets 409 and changes
/// nothing.
#[utoipa::path(
    post, path = "/v1/jobs/{type}/{id}", operation_id = "report", tag = "workers",
    request_body = ReportBody,
    params(
        ("type" = String, Path, description = "The job type"),
        ("id" = String, Path, description = "The job's id"),
    ),
    responses(
        (status = 200, description = "The job as it is now", body = JobView),
        (status = 404, description = "`job_not_found`"),
        (
            status = 409,
            description = "`stale_attempt`, `not_running`: the attempt is not the running one",
        ),
    ),
    security(("attempt" = []), ("bearer" = ["work"]), ("basic" = ["work"])),
)]
pub async fn report(
    State(api): State<Api>,
    accept: Accept,
    holder: Holder,
    path: JobPath,
    body: Body,
) -> HandlerResult {
    let mut report = about(body.read()?, &path)?;
    let lines = std::mem::take(&mut report.log);
    let report = read_report(report, &body, &api, holder.token())?;
    let attempt = report.attempt;
    if report.token.is_none() {
        holder.check_job(&api, &path.id, Some(&path.job_type)).await?;
    }
    let answer = api.server.report(vec![report]).await.pop();
    let job = answer.unwrap_or_else(|| {
        Err(tidegate_engine::Error::Internal("a report has no answer".into()))
    })?;
    api.server.add_log(AttemptLog::new(&job, attempt, lines).into_iter().collect()).await?;
    Ok(accept
        .ok(JobView::new(&job, api.server.now(), accept.0, Bodies::Small))
        .etag(job.life.revision.0)
        .into_response())
}

/// Extend an attempt's lease, report its progress, and receive a cancel request.
#[utoipa::path(
    post, path = "/v1/jobs/{type}/{id}/heartbeat", operation_id = "heartbeat", tag = "workers",
    request_body = HeartbeatBody,
    params(
        ("type" = String, Path, description = "The job type"),
        ("id" = String, Path, description = "The job's id"),
    ),
    responses(
        (status = 200, description = "The lease is extended", body = BeatView),
        (status = 404, description = "`job_not_found`"),
        (status = 409, description = "`stale_attempt`: the attempt is not the running one; stop"),
    ),
    security(("attempt" = []), ("bearer" = ["work"]), ("basic" = ["work"])),
)]
pub async fn heartbeat(
    State(api): State<Api>,
    accept: Accept,
    holder: Holder,
    path: JobPath,
    body: Body,
) -> HandlerResult {
    let ask: HeartbeatBody<'_> = body.read()?;
    if ask.note.as_ref().is_some_and(|note| note.len() > MAX_MESSAGE_BYTES) {
        return Err(Problem::invalid(
            "note",
            format!("must have at most {MAX_MESSAGE_BYTES} bytes"),
        ));
    }
    let progress = match ask.progress {
        Some(percent) if (0.0..=100.0).contains(&percent) => {
            Some(Progress { percent, note: ask.note })
        }
        Some(_) => return Err(Problem::invalid("progress", "must be 0 to 100")),
        None if ask.note.is_some() => {
            return Err(Problem::invalid("note", "needs progress"));
        }
        None => None,
    };
    let checkpoint = read_checkpoint(ask.checkpoint, &body)?;
    holder.check_job(&api, &path.id, Some(&path.job_type)).await?;
    let id = path.id.clone();
    let beat = Heartbeat {
        checkpoint,
        id: path.id,
        job_type: Some(path.job_type),
        attempt: ask.attempt,
        token: holder.token(),
        lease_seconds: ask.lease_seconds,
        progress,
    };
    let beat = api.server.heartbeat(beat).await?;
    if !ask.log.is_empty() {
        let jobs = api.server.engine().cached_jobs(std::slice::from_ref(&id)).await;
        let job = jobs.ok().and_then(|mut jobs| jobs.pop());
        let job = job.and_then(|job| job.ok().flatten());
        let log = job.and_then(|job| AttemptLog::new(&job, ask.attempt, ask.log));
        // The lease is extended, and no attempt may end because of its log.
        if let Err(error) = api.server.add_log(log.into_iter().collect()).await {
            tracing::warn!(job = %id, %error, "log lines of a heartbeat were not stored");
        }
    }
    Ok(accept.ok(BeatView { cancel: beat.cancel, expires_at: beat.expires_at }).into_response())
}
