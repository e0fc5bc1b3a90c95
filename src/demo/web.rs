//! The HTTP worker, the target of pushed jobs. Each job type has a route and a behaviour.

use std::{collections::HashSet, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};
use url::Url;

use super::{
    event_log::EventLog,
    plan::{JobKind, PlannedJob},
    until_answered,
};
use crate::cli::{client::Client, context::pause};
use tidegate_backends::system::SystemClock;
use tidegate_core::{port::Clock as _, target::signature};

/// The `Retry-After` of a busy worker.
const BUSY: Duration = Duration::from_secs(1);
/// The status of a failure without a retry.
const HOPELESS: u16 = 489;

/// The worker.
struct Web {
    event_log: Arc<EventLog>,
    secrets: Vec<String>,
    client: Client,
    /// Jobs that were rejected once and are accepted now.
    turned_away: Mutex<HashSet<String>>,
}

/// The body of a push.
#[derive(Deserialize)]
struct Delivery {
    id: String,
    attempt: u16,
    data: PlannedJob,
    callback: Callback,
}

/// The callbacks to send later.
#[derive(Deserialize)]
struct Callback {
    url: Url,
    token: String,
}

/// Starts the worker on a free port of this machine as a task of `workers`, and returns its URL.
/// Pushes are signed with `secret`; callbacks go through `client`.
pub async fn start(
    workers: &mut JoinSet<()>,
    event_log: Arc<EventLog>,
    secret: &str,
    client: Client,
) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let web =
        Web { event_log, secrets: vec![secret.to_owned()], client, turned_away: Mutex::default() };
    let routes = Router::new().route("/{type}", post(take)).with_state(Arc::new(web));
    workers.spawn(async move {
        // It ends with the demo: a listener on loopback does not fail.
        let _ = axum::serve(listener, routes).await;
    });
    Ok(url)
}

/// Handles one push.
async fn take(
    State(web): State<Arc<Web>>,
    Path(job_type): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !web.is_signed(&headers, &body) {
        web.event_log.write(|pages| pages.signatures.1 += 1);
        return (StatusCode::UNAUTHORIZED, "the signature does not fit").into_response();
    }
    web.event_log.write(|pages| pages.signatures.0 += 1);
    let (Some(kind), Ok(delivery)) =
        (JobKind::named(&job_type), serde_json::from_slice::<Delivery>(&body))
    else {
        return (StatusCode::BAD_REQUEST, "the body is malformed").into_response();
    };
    let Delivery { id, attempt, data: errand, callback } = delivery;
    if kind == JobKind::Busy && web.turned_away.lock().insert(id.clone()) {
        web.event_log.write(|pages| pages.turned_away += 1);
        let after = [(header::RETRY_AFTER, BUSY.as_secs().to_string())];
        return (StatusCode::SERVICE_UNAVAILABLE, after, "too busy").into_response();
    }
    let at_work = web.event_log.begin(kind, &id, attempt, &errand);
    let work = pause(Duration::from_millis(errand.work_ms));
    if kind == JobKind::Later {
        web.event_log.write(|pages| pages.callbacks.0 += 1);
        tokio::spawn(async move {
            work.await;
            drop(at_work);
            web.call_back(&id, attempt, &callback).await;
        });
        return StatusCode::ACCEPTED.into_response();
    }
    work.await;
    drop(at_work);
    if errand.breaks_off {
        // The connection breaks after the response head: the caller cannot know the outcome.
        let broken =
            futures_util::stream::iter([Ok(Bytes::from_static(b"{")), Err("the worker is gone")]);
        return Response::new(Body::from_stream(broken));
    }
    if kind == JobKind::Hopeless {
        let status = StatusCode::from_u16(HOPELESS).unwrap_or(StatusCode::BAD_REQUEST);
        return (status, "no such address, and there never will be").into_response();
    }
    if attempt <= errand.failures {
        return (StatusCode::BAD_GATEWAY, "the mail server hung up").into_response();
    }
    web.event_log.write(|pages| pages.succeeded.insert((id.clone(), attempt)));
    ([(header::CONTENT_TYPE, "application/json")], result(&id, attempt).to_string()).into_response()
}

/// Returns the result of an attempt that succeeded.
pub fn result(id: &str, attempt: u16) -> Value {
    json!({"job": id, "attempt": attempt})
}

impl Web {
    fn is_signed(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        let value =
            |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (id, timestamp, signatures) =
            (value(signature::ID), value(signature::TIMESTAMP), value(signature::SIGNATURE));
        signature::verify(&self.secrets, id, timestamp, signatures, body, SystemClock.now()).is_ok()
    }

    /// Reports a success with the attempt's own token, and retries while the server is unreachable.
    async fn call_back(&self, id: &str, attempt: u16, callback: &Callback) {
        #[derive(Serialize)]
        struct Report {
            status: &'static str,
            attempt: u16,
            result: Value,
        }
        let report = Report { status: "succeeded", attempt, result: result(id, attempt) };
        self.event_log.write(|pages| pages.succeeded.insert((id.to_owned(), attempt)));
        let answer = until_answered(|| {
            self.client.post_to(callback.url.clone()).token(&callback.token).json(&report)
        })
        .await;
        self.event_log.write(|pages| match answer {
            Ok(_) => pages.callbacks.1 += 1,
            Err(_) => pages.late_reports += 1,
        });
    }
}
