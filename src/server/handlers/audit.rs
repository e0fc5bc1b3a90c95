//! The audit log: every changing route is in it unless it is exempt by name, so a new one cannot be
//! forgotten.
//!
//! The layer around the routes knows the operation. [`access`](super::access) notes the caller and
//! [`body`](super::body) the body, because only they know them. The entry is written after the
//! change and before the answer.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate_api::{AuditEntry, AuditPage};
use tracing::Instrument as _;
use url::Url;

use super::{
    Api, HandlerResult,
    access::{Admin, May},
    envelope::RequestId,
    media::Accept,
    openapi::Operation,
    params::Params,
    routes::{Routes, routes},
};

/// The operations by `PUT`, `POST`, `PATCH` and `DELETE` that are not in the audit log: those of
/// producers, workers and senders of events, those on a single job, and those that change nothing.
pub(super) const NOT_AUDITED: [&str; 13] = [
    "cancel_job",
    "delete_worker",
    "enqueue",
    "enqueue_batch",
    "heartbeat",
    "ingest",
    "lease",
    "patch_job",
    "put_job",
    "put_worker",
    "report",
    "simulate_queue",
    "test_trigger",
];
/// Most bytes of a body that an entry shows.
const MAX_BODY_BYTES: usize = 8 << 10;
/// What an entry shows in place of a value that it does not.
const HIDDEN: &str = "***";
/// Fields whose values may be secrets, or belong to jobs.
const HIDDEN_FIELDS: [&str; 8] = [
    "basic_auth",
    "callback_signing_secret",
    "config",
    "data",
    "headers",
    "password",
    "signing_secret",
    "token",
];

/// What is noted about a request on its way.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditNotes(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    caller: Option<String>,
    body: Option<Bytes>,
    is_dry_run: bool,
}

impl AuditNotes {
    /// Notes that the request changes nothing.
    pub fn nothing_changes(&self) {
        self.0.lock().is_dry_run = true;
    }

    /// Notes who the caller is.
    pub fn caller(&self, name: &str) {
        self.0.lock().caller = Some(name.to_owned());
    }

    /// Notes the body, as JSON.
    pub fn body(&self, json: &Bytes) {
        self.0.lock().body = Some(json.clone());
    }
}

/// Whether requests of `operation` are in the audit log.
pub(super) fn is_audited(operation: &Operation) -> bool {
    !NOT_AUDITED.contains(&operation.id)
}

/// Answers the request and adds it to the audit log as `action`, if it succeeds or may have: after
/// an error of the server the change may be stored. The caller may hang up meanwhile.
pub(super) async fn audited(
    api: Api,
    action: &'static str,
    mut request: Request,
    next: Next,
) -> Response {
    let notes = AuditNotes::default();
    request.extensions_mut().insert(notes.clone());
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().map(str::to_owned));
    let request_id = request.extensions().get::<RequestId>().cloned();
    let change = async move {
        let response = next.run(request).await;
        let Noted { caller, body, is_dry_run } = std::mem::take(&mut *notes.0.lock());
        let status = response.status();
        let changes_nothing = is_dry_run || !status.is_success() && !status.is_server_error();
        let Some(caller) = caller.filter(|_| !changes_nothing) else { return response };
        let entry = AuditEntry {
            at: api.server.now(),
            caller,
            action: action.to_owned(),
            path,
            query,
            status: status.as_u16(),
            request_id: request_id.map_or_else(String::new, |RequestId(id)| id),
            with: body.and_then(|body| shown(&body)),
        };
        if let Err(error) = api.server.record_audit(&entry).await {
            let entry = serde_json::to_string(&entry).unwrap_or_default();
            tracing::error!(%error, entry, "an audit entry was not stored");
        }
        response
    };
    // A task of its own, because the server drops the future of a request whose caller hangs up.
    match tokio::spawn(change.in_current_span()).await {
        Ok(response) => response,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// What an entry shows of a body.
fn shown(json: &[u8]) -> Option<Value> {
    if json.is_empty() {
        return None;
    }
    let value = (json.len() <= MAX_BODY_BYTES).then(|| serde_json::from_slice(json).ok());
    let Some(mut value) = value.flatten() else { return Some(json!({"bytes": json.len()})) };
    hide(&mut value);
    Some(value)
}

/// Replaces what may be secret: the values of some fields, and the passwords and queries of URLs.
fn hide(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if HIDDEN_FIELDS.contains(&name.as_str()) {
                    *value = HIDDEN.into();
                } else {
                    hide(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(hide),
        Value::String(text) => {
            let url = text.parse::<Url>().ok().filter(Url::has_host);
            if let Some(mut url) = url {
                let has_credentials = !url.username().is_empty() || url.password().is_some();
                if url.query().is_some() {
                    url.set_query(Some(HIDDEN));
                }
                if has_credentials {
                    let is_set = url.set_username(HIDDEN).and_then(|()| url.set_password(None));
                    *text = is_set.map_or_else(|()| HIDDEN.to_owned(), |()| url.into());
                } else if url.query().is_some() {
                    *text = url.into();
                }
            }
        }
        _ => {}
    }
}

/// The audit log: which token changed what, and when, newest first.
///
/// It has changes of queues, types, schedules, triggers, plugins, workers and tokens, bulk operations,
/// replays, and changes of dead letters: every request with such a change that succeeded. It shows
/// no secrets and no data. Entries are kept for 90 days, at most 20,000.
#[utoipa::path(
    get, path = "/v1/audit", operation_id = "list_audit", tag = "operate",
    params(
        (
            "limit" = Option<u32>, Query,
            description = "Maximum number of entries on the page, 1 to 1000 (default 100)",
        ),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
    ),
    responses((status = 200, description = "A page", body = AuditPage)),
    security(("bearer" = ["admin"]), ("basic" = ["admin"])),
)]
async fn list(
    State(api): State<Api>,
    accept: Accept,
    _: May<Admin>,
    mut params: Params,
) -> HandlerResult {
    let (limit, cursor) = (params.limit()?, params.one::<String>("cursor")?);
    params.done()?;
    let (entries, next_cursor) = api.server.audit(cursor, limit).await?;
    Ok(accept.ok(AuditPage { entries, next_cursor }).into_response())
}

/// The route of the audit log.
pub fn routes() -> Routes {
    routes!(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_shows_no_secret() {
        let body = json!({
            "target": {
                "url": "https://user:s3cret@host/path?key=s3cret", "signing_secret": "s3cret",
                "basic_auth": {"username": "u", "password": "s3cret"},
                "headers": {"x-key": "s3cret"},
            },
            "callback_signing_secret": ["s3cret"], "data": {"card": "s3cret"},
            "throttler": {"plugin": "p", "config": {"key": "s3cret"}}, "concurrency": 7,
        });
        let shown = shown(body.to_string().as_bytes()).unwrap();
        assert!(!shown.to_string().contains("s3cret"), "{shown}");
        assert_eq!(
            (&shown["concurrency"], &shown["throttler"]["plugin"]),
            (&json!(7), &json!("p"))
        );
        let url = shown["target"]["url"].as_str().unwrap();
        assert!(url.starts_with("https://***@host/path?"), "{url}");
    }

    #[test]
    fn a_large_or_foreign_body_is_shown_by_its_size() {
        let large = json!({"a": "x".repeat(MAX_BODY_BYTES)}).to_string();
        assert_eq!(shown(large.as_bytes()), Some(json!({"bytes": large.len()})));
        assert_eq!(shown(b"\0asm"), Some(json!({"bytes": 4})));
        assert_eq!(shown(b""), None);
    }
}
