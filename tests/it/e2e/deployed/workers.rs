//! The workers of the tests with load: a push target and a pull loop, and the event log that they
//! write. Only their observations count. An attempt is at work in the [`EventLog`] from the first
//! byte of its call until its worker answers or reports.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{http::StatusCode, response::IntoResponse};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::json;
use tidegate_backends::system::SystemClock;
use tidegate_core::port::Clock;

use crate::e2e::{api::Api, target::Call};

/// How long a pull worker waits after a failed request.
const PAUSE: Duration = Duration::from_millis(200);

/// The observations of the workers.
#[derive(Default)]
pub struct EventLog {
    /// Weight at work now, and the most there was, by what it is counted for: a queue, or a region
    /// of the throttled one.
    pub at_work: BTreeMap<String, (u64, u64)>,
    /// Starts of each job, by id.
    pub starts: BTreeMap<String, usize>,
}

/// A call in progress. It is over when this value is dropped, also by the death of the caller.
struct AtWork(Arc<Mutex<EventLog>>, String);

impl AtWork {
    fn begin(event_log: &Arc<Mutex<EventLog>>, scope: String, id: &str) -> Self {
        let mut open = event_log.lock();
        *open.starts.entry(id.to_owned()).or_default() += 1;
        let (now, most) = open.at_work.entry(scope.clone()).or_default();
        *now += 1;
        *most = (*most).max(*now);
        drop(open);
        Self(Arc::clone(event_log), scope)
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        if let Some((now, _)) = self.0.lock().at_work.get_mut(&self.1) {
            *now -= 1;
        }
    }
}

/// How long work takes.
async fn takes(span: Duration) {
    SystemClock.sleep_until(SystemClock.now() + span).await;
}

/// What a job of `kind` is answered in its `attempt`: a callback follows where the answer is 202.
pub async fn work(
    event_log: Arc<Mutex<EventLog>>,
    api: Api,
    call: Call,
) -> axum::response::Response {
    let job = call.json();
    let (id, attempt) = (job["id"].as_str().unwrap().to_owned(), job["attempt"].as_u64().unwrap());
    let kind = job["type"].as_str().unwrap().split_once('-').unwrap().1.to_owned();
    let scope = job["data"]["region"]
        .as_str()
        .map_or_else(|| kind.clone(), |region| format!("{kind} {region}"));
    let scope = if ["steady", "flaky", "later", "once", "large"].contains(&kind.as_str()) {
        "limited".into()
    } else {
        scope
    };
    let at_work = AtWork::begin(&event_log, scope, &id);
    takes(Duration::from_millis(50)).await;
    let number = job["data"]["number"].as_u64().unwrap();
    match kind.as_str() {
        "flaky" if attempt == 1 && number.is_multiple_of(2) => {
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
        "flaky" if attempt == 1 && number.is_multiple_of(3) => {
            (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")]).into_response()
        }
        "later" => {
            let callback = job["callback"].clone();
            tokio::spawn(async move {
                takes(Duration::from_millis(300)).await;
                // Its slot may be free before the response to this report arrives.
                drop(at_work);
                let answer = json!({"attempt": attempt, "status": "succeeded", "result": {"number": number}});
                let path =
                    callback["url"].as_str().unwrap().trim_start_matches(&api.base).to_owned();
                let authorized = api.with_token(callback["token"].as_str().unwrap());
                authorized.ask(Method::POST, &path, &answer).await
            });
            StatusCode::ACCEPTED.into_response()
        }
        "large" => {
            assert_eq!(job["data"]["text"].as_str().unwrap().len(), 100_000);
            answered(number)
        }
        _ => answered(number),
    }
}

/// A result that says which job it is of.
fn answered(number: u64) -> axum::response::Response {
    ([("content-type", "application/json")], json!({"number": number}).to_string()).into_response()
}

/// Leases and reports the pulled jobs, without end.
pub async fn pull(api: Api, run: String, event_log: Arc<Mutex<EventLog>>) {
    loop {
        let ask = json!({"types": [format!("{run}-pulled")], "max": 10, "wait_seconds": 5});
        let Some(answer) = api
            .try_send(
                Method::POST,
                "/v1/leases",
                &[("content-type", "application/json")],
                ask.to_string(),
            )
            .await
        else {
            takes(PAUSE).await;
            continue;
        };
        if answer.status != 200 {
            takes(PAUSE).await;
            continue;
        }
        for lease in answer.value()["leases"].as_array().unwrap() {
            let id = lease["job"]["id"].as_str().unwrap();
            let at_work = AtWork::begin(&event_log, "pulled".into(), id);
            let report = json!({"attempt": lease["attempt"], "status": "succeeded", "result": {"number": lease["job"]["data"]["number"]}});
            drop(at_work);
            let path = format!("/v1/jobs/{run}-pulled/{id}");
            // A lost answer leaves an attempt whose lease expires; the job is then leased again.
            api.try_send(
                Method::POST,
                &path,
                &[("content-type", "application/json")],
                report.to_string(),
            )
            .await;
        }
    }
}
