//! Pull workers: each leases one job at a time, and reports it in the call that leases the next.
//!
//! A worker stops its work before its lease can expire. If no heartbeat was answered for nearly the
//! duration of the lease, another worker may get the job.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    event_log::EventLog,
    plan::{JobKind, LEASE, PlannedJob},
    until_answered, web,
};
use crate::cli::{
    client::{Client, Error, Problem},
    context::pause,
};

/// How long one lease call waits for a job.
const WAIT: Duration = Duration::from_secs(5);
/// The time between two heartbeats.
const BEAT: Duration = Duration::from_secs(1);
/// How long before the end of its lease a worker without a response stops.
const MARGIN: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct Granted {
    leases: Vec<Lease>,
    reports: Vec<Reported>,
}

#[derive(Deserialize)]
struct Lease {
    job: Job,
    attempt: u16,
    token: String,
}

#[derive(Deserialize)]
struct Job {
    id: String,
    r#type: String,
    data: PlannedJob,
}

#[derive(Deserialize)]
struct Reported {
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Beat {
    cancel: bool,
}

/// Works until the task is aborted.
pub async fn work(name: String, client: Client, event_log: Arc<EventLog>) {
    let mut reports: Vec<Value> = Vec::new();
    let types: Vec<&str> = JobKind::PULLED.iter().map(|kind| kind.name()).collect();
    loop {
        let ask = json!({
            "types": types, "max": 1, "wait_seconds": WAIT.as_secs(), "worker": name,
            "reports": reports,
        });
        let answer = until_answered(|| client.post(&["leases"]).json(&ask).wait(WAIT)).await;
        let Ok(granted) = answer.and_then(|answer| answer.read::<Granted>()) else {
            // A rejection is a bug of this program: the table shows the missing jobs.
            pause(Duration::from_secs(1)).await;
            continue;
        };
        let late = granted.reports.iter().filter(|report| report.error.is_some()).count();
        event_log.write(|pages| pages.late_reports += late as u64);
        reports.clear();
        for lease in granted.leases {
            reports.extend(attempt(&client, &event_log, &lease).await);
        }
    }
}

/// Runs one attempt and returns its report, or none if the worker stopped it.
async fn attempt(
    client: &Client,
    event_log: &Arc<EventLog>,
    Lease { job, attempt, token }: &Lease,
) -> Option<Value> {
    let kind = JobKind::named(&job.r#type)?;
    let at_work = event_log.begin(kind, &job.id, *attempt, &job.data);
    let ended = tokio::select! {
        () = pause(Duration::from_millis(job.data.work_ms)) => Ended::Done,
        ended = keep(client, event_log, kind, &job.id, *attempt, token) => ended,
    };
    drop(at_work);
    let mut report = json!({"id": job.id, "type": job.r#type, "attempt": attempt});
    match ended {
        Ended::Done => {
            event_log.write(|pages| pages.succeeded.insert((job.id.clone(), *attempt)));
            report["status"] = json!("succeeded");
            report["result"] = web::result(&job.id, *attempt);
        }
        Ended::Cancelled => {
            event_log.write(|pages| pages.stopped_by_heartbeat.push(job.id.clone()));
            report["status"] = json!("failed");
            report["message"] = json!("stopped, as the heartbeat said");
        }
        Ended::Lost => {
            event_log.write(|pages| pages.given_up += 1);
            return None;
        }
    }
    Some(report)
}

/// How an attempt ended.
enum Ended {
    Done,
    /// The response of a heartbeat: the job is to be cancelled.
    Cancelled,
    /// The lease is over, or may be.
    Lost,
}

/// Keeps the lease by heartbeats, until it must end.
async fn keep(
    client: &Client,
    event_log: &EventLog,
    kind: JobKind,
    id: &str,
    attempt: u16,
    token: &str,
) -> Ended {
    let beat = json!({"attempt": attempt});
    let mut until = Instant::now() + LEASE - MARGIN;
    loop {
        pause(BEAT).await;
        let sent = Instant::now();
        let request =
            client.post(&["jobs", kind.name(), id, "heartbeat"]).token(token).json(&beat).send();
        match tokio::time::timeout_at(until, request)
            .await
            .map(|answer| answer.and_then(|answer| answer.read::<Beat>()))
        {
            Ok(Ok(beat)) => {
                event_log.write(|pages| pages.heartbeats += 1);
                if beat.cancel {
                    return Ended::Cancelled;
                }
                until = sent + LEASE - MARGIN;
            }
            Ok(Err(Error::Unreachable { .. })) if Instant::now() < until => {}
            Ok(Err(_)) | Err(_) => return Ended::Lost,
        }
    }
}
