//! What workers say of an attempt: its result, and signs of life.
//!
//! The attempt's own token is enough for both, so that a callback needs no other credentials.

use std::time::Duration;

use axum::{extract::State, response::IntoResponse};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    super::{
        Answer, Api,
        access::{Holder, attempt_token},
        body::{Body, present},
        error::Problem,
        media::Accept,
        params::JobPath,
        schema::AnyValue,
    },
    view::{Bodies, JobView},
};
use tidegate_core::{
    job::{
        JobId, Payload, Token, TypeName,
        lifecycle::{Failure, Progress, Reason},
    },
    time::{Seconds, Timestamp},
};
use tidegate_engine::request::{Heartbeat, Report, ReportOutcome};

/// Most bytes of a failure's message.
const MOST_MESSAGE: usize = 4 * 1024;
/// Most bytes of what a worker sends along with a failure.
const MOST_DETAILS: usize = 16 * 1024;

/// How an attempt went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It worked.
    Succeeded,
    /// It did not.
    Failed,
}

/// A worker's report of one attempt.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Report)]
pub struct ReportBody<'a> {
    /// The job; needed among the reports of a lease call, elsewhere the path says it.
    #[schema(value_type = Option<String>)]
    id: Option<JobId>,
    /// Its type, if it is to be checked.
    #[serde(rename = "type")]
    #[schema(value_type = Option<String>)]
    job_type: Option<TypeName>,
    /// How it went.
    status: Status,
    /// Which attempt, as the delivery or the lease said.
    attempt: u16,
    /// With `succeeded`: the result, any value, kept byte for byte.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = AnyValue, required = false)]
    result: Option<&'a RawValue>,
    /// With `failed`: anything about the error, at most 16 KiB.
    #[serde(borrow, default, deserialize_with = "present")]
    #[schema(value_type = AnyValue, required = false)]
    error: Option<&'a RawValue>,
    /// With `failed`: what went wrong, for people, at most 4 KiB.
    message: Option<String>,
    /// With `failed`: why, as one of a few words (default `failed`).
    reason: Option<Reason>,
    /// With `failed`: whether another attempt makes sense (default true).
    retryable: Option<bool>,
    /// When the worker was done. It is read and not kept: the server's own clock is what counts.
    #[allow(dead_code, reason = "part of the shape that workers send")]
    finished_at: Option<Timestamp>,
    /// The attempt's token. Whoever may work need not show it; shown, it must be the attempt's.
    token: Option<String>,
}

impl ReportBody<'_> {
    /// The same report, about the job in the path.
    fn about(mut self, path: &JobPath) -> Result<Self, Problem> {
        if self.id.get_or_insert_with(|| path.id.clone()) != &path.id {
            return Err(Problem::invalid("id", "differs from the id in the path"));
        }
        if self.job_type.get_or_insert_with(|| path.job_type.clone()) != &path.job_type {
            return Err(Problem::invalid("type", "differs from the type in the path"));
        }
        Ok(self)
    }

    /// The report as the server takes it.
    ///
    /// # Errors
    ///
    /// 400 or 413 with the field that is to blame.
    pub fn into_report(
        self,
        body: &Body,
        api: &Api,
        token: Option<Token>,
    ) -> Result<Report, Problem> {
        let id = self.id.ok_or_else(|| Problem::invalid("id", "is required"))?;
        let verdict = match self.status {
            Status::Succeeded => {
                let foreign = [
                    ("error", self.error.is_some()),
                    ("message", self.message.is_some()),
                    ("reason", self.reason.is_some()),
                ];
                if let Some((field, _)) = foreign.into_iter().find(|(_, given)| *given) {
                    return Err(Problem::invalid(field, "belongs to status failed"));
                }
                let most = api.options.max_data_bytes;
                ReportOutcome::Succeeded {
                    result: self
                        .result
                        .map(|raw| body.checked(raw, "result", most))
                        .transpose()?
                        .map(tidegate_core::job::Body::Inline),
                }
            }
            Status::Failed => {
                if self.result.is_some() {
                    return Err(Problem::invalid("result", "belongs to status succeeded"));
                }
                if self.message.as_ref().is_some_and(|message| message.len() > MOST_MESSAGE) {
                    return Err(Problem::invalid(
                        "message",
                        format!("must have at most {MOST_MESSAGE} bytes"),
                    ));
                }
                let details = self
                    .error
                    .map(|raw| details(&body.checked(raw, "error", MOST_DETAILS)?))
                    .transpose()?;
                let failure = Failure {
                    reason: self.reason.unwrap_or(Reason::Failed),
                    message: self.message,
                    details,
                    status: None,
                };
                ReportOutcome::Failed {
                    failure,
                    retryable: self.retryable.unwrap_or(true),
                    least_wait: Duration::ZERO,
                }
            }
        };
        let shown = self.token.map(|text| {
            attempt_token(&text)
                .ok_or_else(|| Problem::invalid("token", "must be 32 hexadecimal digits"))
        });
        let token = shown.transpose()?.or(token);
        Ok(Report { id, job_type: self.job_type, attempt: self.attempt, token, outcome: verdict })
    }
}

/// What a worker sent along, as JSON text.
fn details(payload: &Payload) -> Result<String, Problem> {
    let json = payload.to_json().map_err(|malformed| Problem::invalid("error", malformed))?;
    String::from_utf8(json.into()).map_err(|_| Problem::invalid("error", "must be UTF-8"))
}

/// Report the result of an attempt.
///
/// The same report again is a harmless 200; one for an attempt that is not running is 409 and changes nothing.
#[utoipa::path(post, path = "/v1/jobs/{type}/{id}", operation_id = "report", tag = "workers", request_body = ReportBody,
    params(("type" = String, Path, description = "The job type"), ("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job as it is now", body = JobView),
        (status = 404, description = "`job_not_found`"),
        (status = 409, description = "`stale_attempt`, `not_running`: the attempt is not the running one"),
    ), security(("attempt" = []), ("bearer" = ["work"]), ("basic" = ["work"])))]
pub async fn report(
    State(api): State<Api>,
    accept: Accept,
    Holder(token): Holder,
    path: JobPath,
    body: Body,
) -> Answer {
    let ask: ReportBody<'_> = body.read()?;
    let report = ask.about(&path)?.into_report(&body, &api, token)?;
    let answer = api.server.report(vec![report]).await.pop();
    let job = answer.unwrap_or_else(|| {
        Err(tidegate_engine::Error::Internal("a report has no answer".into()))
    })?;
    Ok(accept
        .ok(JobView::new(&job, accept.0, Bodies::Small))
        .etag(job.life.revision.0)
        .into_response())
}

/// A sign of life.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Heartbeat)]
pub struct HeartbeatBody {
    /// Which attempt.
    attempt: u16,
    /// How long the lease shall last from now (default: as the type says).
    lease_seconds: Option<Seconds>,
    /// How far it is, 0 to 100.
    progress: Option<f64>,
    /// A note on that, at most 4 KiB.
    note: Option<String>,
}

/// The answer to a sign of life.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Beat)]
pub struct BeatView {
    /// Whether somebody wants the job gone: stop, and report.
    cancel: bool,
    /// When the lease ends now.
    expires_at: Timestamp,
}

/// Extend an attempt's lease, say how far it is, and learn of a cancel.
#[utoipa::path(post, path = "/v1/jobs/{type}/{id}/heartbeat", operation_id = "heartbeat", tag = "workers", request_body = HeartbeatBody,
    params(("type" = String, Path, description = "The job type"), ("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The lease is extended", body = BeatView),
        (status = 404, description = "`job_not_found`"),
        (status = 409, description = "`stale_attempt`: the attempt is not the running one; stop"),
    ), security(("attempt" = []), ("bearer" = ["work"]), ("basic" = ["work"])))]
pub async fn heartbeat(
    State(api): State<Api>,
    accept: Accept,
    Holder(token): Holder,
    path: JobPath,
    body: Body,
) -> Answer {
    let ask: HeartbeatBody = body.read()?;
    if ask.note.as_ref().is_some_and(|note| note.len() > MOST_MESSAGE) {
        return Err(Problem::invalid("note", format!("must have at most {MOST_MESSAGE} bytes")));
    }
    let progress = match ask.progress {
        Some(percent) if (0.0..=100.0).contains(&percent) => {
            Some(Progress { percent, note: ask.note })
        }
        Some(_) => return Err(Problem::invalid("progress", "must be 0 to 100")),
        None if ask.note.is_some() => {
            return Err(Problem::invalid("note", "needs progress beside it"));
        }
        None => None,
    };
    let beat = Heartbeat {
        id: path.id,
        job_type: Some(path.job_type),
        attempt: ask.attempt,
        token,
        lease_seconds: ask.lease_seconds,
        progress,
    };
    let beat = api.server.heartbeat(beat).await?;
    Ok(accept.ok(BeatView { cancel: beat.cancel, expires_at: beat.expires_at }).into_response())
}
