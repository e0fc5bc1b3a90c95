//! The outcome of an attempt, and its report to the server.

use std::{process::ExitStatus, sync::Arc, time::Duration};

use serde_json::value::{RawValue, to_raw_value};
use tokio::{sync::watch, time::Instant};

use super::worker::{MAX_BACKOFF, MIN_BACKOFF};
use crate::cli::{
    client::{Client, Error},
    context::{pause, print_error},
};
use tidegate_api::{LeaseView, NewLogLine, ReportBody, Status};
use tidegate_core::{
    job::{JobId, TypeName},
    time::Seconds,
};

/// How long a report is retried. Its lease has usually expired by then.
pub(super) const MAX_REPORT_TIME: Duration = Duration::from_mins(1);

/// The lease of one attempt, shared by what runs, renews and reports it.
pub type Lease = Arc<LeaseView<'static>>;

/// How an attempt ended.
#[derive(Clone, Debug)]
pub struct AttemptOutcome {
    pub status: Status,
    pub result: Option<Box<RawValue>>,
    pub message: Option<String>,
    /// How the process ended, as JSON.
    pub error: Option<Box<RawValue>>,
    pub retryable: Option<bool>,
    /// For how long it is snoozed.
    pub delay: Option<Seconds>,
    /// What the next attempt needs to go on.
    pub checkpoint: Option<Box<RawValue>>,
    /// Its log lines that no heartbeat has sent.
    pub log: Vec<NewLogLine>,
}

impl AttemptOutcome {
    /// Returns an attempt that is handed back, at once or for a while.
    pub fn handed_back(delay: Option<Seconds>, message: Option<String>) -> Self {
        let status = if delay.is_some() { Status::Snoozed } else { Status::Released };
        Self {
            status,
            result: None,
            message,
            error: None,
            retryable: None,
            delay,
            checkpoint: None,
            log: Vec::new(),
        }
    }

    /// Returns a failure that is retried while attempts are left.
    pub fn failed(message: impl Into<String>) -> Self {
        Self {
            status: Status::Failed,
            result: None,
            message: Some(message.into()),
            error: None,
            retryable: None,
            delay: None,
            checkpoint: None,
            log: Vec::new(),
        }
    }

    /// Adds how the process ended to the error details: an exit code or a signal.
    pub fn with_exit(self, status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        let details = match (status.code(), status.signal()) {
            (Some(code), _) => serde_json::json!({"exit_code": code}),
            (None, signal) => serde_json::json!({"signal": signal}),
        };
        Self { error: to_raw_value(&details).ok(), ..self }
    }
}

/// An outcome on its way to the server. It names the attempt and holds none of the job's data,
/// because many reports may wait for a server that is away.
#[derive(Clone, Debug)]
pub struct Report {
    pub id: JobId,
    pub job_type: TypeName,
    pub attempt: u16,
    pub token: String,
    pub outcome: AttemptOutcome,
}

impl Report {
    /// Returns the report of the attempt that `lease` is for.
    pub fn new(lease: &LeaseView<'_>, outcome: AttemptOutcome) -> Self {
        Self {
            id: (*lease.job.id).clone(),
            job_type: (*lease.job.r#type).clone(),
            attempt: lease.attempt,
            token: lease.token.clone(),
            outcome,
        }
    }

    /// Returns the body of a request of its own, whose path names the job.
    pub fn body(&self) -> ReportBody<'_> {
        let AttemptOutcome { status, result, message, error, retryable, delay, checkpoint, log } =
            &self.outcome;
        ReportBody {
            id: None,
            job_type: None,
            status: *status,
            attempt: self.attempt,
            result: result.as_deref(),
            error: error.as_deref(),
            message: message.clone(),
            reason: None,
            retryable: *retryable,
            run_at: None,
            delay_seconds: *delay,
            checkpoint: checkpoint.as_deref(),
            log: log.clone(),
            finished_at: None,
            token: None,
        }
    }

    /// Returns the report as a part of a lease request, with the job and its token.
    pub fn in_lease_request(&self) -> ReportBody<'_> {
        ReportBody {
            id: Some(self.id.clone()),
            job_type: Some(self.job_type.clone()),
            token: Some(self.token.clone()),
            ..self.body()
        }
    }

    /// Returns the size of the result and the log lines, in bytes.
    pub fn bytes(&self) -> usize {
        let log: usize = self.outcome.log.iter().map(|line| line.text.len()).sum();
        log + self.outcome.result.as_ref().map_or(0, |result| result.get().len())
    }
}

/// Sends a report and retries while the server is unreachable. Returns false if it gives up.
pub async fn post(client: Client, mut report: Report, kill: watch::Receiver<bool>) -> bool {
    let until = Instant::now() + MAX_REPORT_TIME;
    let mut wait = MIN_BACKOFF;
    loop {
        let request = client
            .post(&["jobs", report.job_type.as_str(), report.id.as_str()])
            .token(&report.token)
            .json(&report.body());
        let Err(err) = request.send().await else {
            return true;
        };
        if !err.passes() {
            match replacement(report, &err) {
                Some(other) => report = other,
                None => return true,
            }
        } else if *kill.borrow() || Instant::now() >= until {
            print_error(format_args!("[{}] its report failed: {err}", report.id));
            return false;
        } else {
            pause(wait).await;
            wait = (wait * 2).min(MAX_BACKOFF);
        }
    }
}

/// Returns another report in place of a rejected one, so that a job does not hang: a failure if its
/// result may be too large, or the same outcome without its log lines or its checkpoint. `None` if the attempt is
/// over, or nothing can be left out.
pub fn replacement(report: Report, err: &Error) -> Option<Report> {
    print_error(format_args!("[{}] its report was rejected: {err}", report.id));
    let over = matches!(err, Error::Problem(problem) if matches!(problem.status, 404 | 409 | 410));
    if over {
        return None;
    }
    if !report.outcome.log.is_empty() {
        let outcome = AttemptOutcome { log: Vec::new(), ..report.outcome };
        return Some(Report { outcome, ..report });
    }
    if report.outcome.checkpoint.is_some() {
        let outcome = AttemptOutcome { checkpoint: None, ..report.outcome };
        return Some(Report { outcome, ..report });
    }
    if report.outcome.status != Status::Succeeded {
        return None;
    }
    let outcome = AttemptOutcome {
        retryable: Some(false),
        ..AttemptOutcome::failed(format!("the result was rejected: {err}"))
    };
    Some(Report { outcome, ..report })
}
