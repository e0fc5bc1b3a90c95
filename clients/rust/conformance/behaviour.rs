//! What the handlers of the agent do: as the job's data say.

use std::{
    error::Error,
    fmt,
    sync::{Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_client::{Aborted, Attempt, BoxError, PermanentError, Release, Snooze, api::LogLevel};
use tokio::time::sleep;

/// The data of a job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Behaviour {
    r#do: String,
    value: Value,
    message: String,
    cause: String,
    details: Value,
    seconds: f64,
    later: Value,
    bytes: usize,
    beats: bool,
    instant: bool,
    r#type: String,
    child: String,
}

/// An error with a source.
#[derive(Debug)]
struct Failure {
    message: String,
    cause: BoxError,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.cause)
    }
}

/// Null is `echo` of null.
pub type Task = Option<Behaviour>;

static RUNS: Mutex<Vec<Value>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Value>> {
    RUNS.lock().expect("no handler panics while it has the list")
}

/// The attempts that have begun.
pub fn runs() -> Value {
    Value::Array(all().clone())
}

/// Does what the job's data says.
pub async fn behave(data: Task, job: Attempt) -> Result<Value, BoxError> {
    let place = {
        let mut runs = all();
        runs.push(json!({ "job": job.id(), "attempt": job.number() }));
        runs.len() - 1
    };
    let data = data.unwrap_or_default();
    let span = Duration::from_secs_f64(data.seconds);
    Ok(match data.r#do.as_str() {
        "" | "echo" => data.value,
        "fail" => {
            return Err(Failure { message: data.message, cause: data.cause.into() }.into());
        }
        "crash" => json!(data.value.as_str().expect("it has a text")),
        "permanent" => return Err(PermanentError::new(data.message).details(data.details).into()),
        "snooze" | "release" if job.number() > 1 => {
            json!(format!("after {} attempts", job.number()))
        }
        "snooze" if data.instant => {
            return Err(Snooze::until(SystemTime::now() + span).message("not yet").into());
        }
        "snooze" => return Err(Snooze::new(span).message("not yet").into()),
        "release" => return Err(Release::new().into()),
        "sleep" => {
            sleep(span).await;
            json!("slept")
        }
        "until_aborted" if job.number() > 1 => data.later,
        "until_aborted" => {
            while !job.aborted().is_cancelled() {
                if data.beats {
                    job.progress(1.0, "");
                }
                let _ = job.sleep(Duration::from_millis(500)).await;
            }
            let reason = job.abort_reason().ok_or("it is aborted without a reason")?;
            all()[place]["aborted"] = reason.as_str().into();
            return Err(Aborted(reason).into());
        }
        "show" => {
            job.progress(40.0, "half");
            job.log(LogLevel::Warn, "printed", json!({ "pages": 3 }));
            sleep(span).await;
            job.log(LogLevel::Info, "done", Value::Null);
            json!("shown")
        }
        "checkpoint" => {
            let stored = job.checkpoint()?;
            if stored.is_none() {
                job.save_checkpoint(&json!({ "page": 40 }))?;
            }
            stored.ok_or("again")?
        }
        "large" => json!("x".repeat(data.bytes)),
        "trace" => {
            super::agent().client.enqueue(data.r#type, &()).id(data.child).await?;
            json!(job.traceparent())
        }
        other => return Err(PermanentError::new(format!("no behaviour {other}")).into()),
    })
}
