//! The inbox: applications request jobs in transactions of their own, and a server adds the jobs.
//!
//! ```text
//!   every 40 ms: the requests behind the last one ─▶ jobs, or dead letters
//!   every second or more: all requests
//! ```
//!
//! A transaction that commits late has a request before the last one, so all requests are read from time
//! to time. Reads from a position stay fast while an old transaction keeps removed rows in the index.
//!
//! One server reads the inbox. If another one reads it too, each request is taken by one of them.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::upgrade;
use crate::{
    runtime::{Inner, Server, WeakServer},
    telemetry::metrics,
};
use tidegate_api::NewJobBody;
use tidegate_core::{
    event::Event,
    job::{Encoding, JobId, Payload, Spec},
    port::{Inbox, InboxRequest, InboxRules, StoreError},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{
    Error,
    jobs::inbox::{RefusedRequest, is_final},
    request::NewJob,
};

/// The name under which a server owns the inbox.
pub(super) const INBOX: &str = "tidegate.inbox";
/// How often the owner looks for new requests.
const LOOK_INTERVAL: Duration = Duration::from_millis(40);
/// The least time between two reads of all requests.
const WHOLE_INTERVAL: Duration = Duration::from_secs(1);
/// How much longer than a read of all requests the time until the next one is.
const WHOLE_INTERVAL_FACTOR: u32 = 20;
/// How often another server looks whether it has become the owner; and the wait after an error.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Most requests that are read at once.
const PAGE: u32 = 500;
/// The type and the source of the event in the dead letter of a request.
const EVENT: (&str, &str) = ("tidegate.enqueue.refused", "tidegate.inbox");

/// Lets the inbox check what this server would refuse.
pub(super) async fn set_rules(inner: &Inner, inbox: &dyn Inbox) -> Result<(), StoreError> {
    let rules = inner.engine.rules();
    inbox
        .set_rules(InboxRules {
            max_data_bytes: rules.max_data_bytes,
            create_unknown_types: rules.create_unknown_types,
        })
        .await
}

/// Where the reader of the inbox is.
#[derive(Default)]
struct Reader {
    /// The last request of the page before; none at the start of a read of all requests.
    after: Option<JobId>,
    /// When the read of all requests began, as long as it goes on.
    whole_since: Option<Timestamp>,
    /// When all requests are read next.
    whole_at: Timestamp,
}

impl Reader {
    /// Decides whether the page that follows is the first of all requests.
    fn begin(&mut self, now: Timestamp) {
        if now >= self.whole_at && self.whole_since.is_none() {
            self.after = None;
            self.whole_since = Some(now);
        }
    }

    /// Notes that a page was empty.
    fn end(&mut self, now: Timestamp) {
        if let Some(since) = self.whole_since.take() {
            let took = now.since(since);
            self.whole_at = now + WHOLE_INTERVAL.max(took * WHOLE_INTERVAL_FACTOR);
        }
    }
}

/// Adds the jobs of the inbox while this server owns it.
pub(super) async fn read_inbox(server: WeakServer) -> Option<()> {
    let mut reader = Reader::default();
    loop {
        let (inner, shared) = upgrade(&server)?;
        let clock = Arc::clone(&inner.engine.ports().clock);
        let inbox = shared.inbox.as_deref()?;
        let pause = if inner.owns(INBOX) {
            match inner.read_page(inbox, &mut reader).await {
                Ok(true) => Duration::ZERO,
                Ok(false) => LOOK_INTERVAL,
                Err(error) => {
                    tracing::warn!(%error, "requests of the inbox wait");
                    IDLE_INTERVAL
                }
            }
        } else {
            reader = Reader::default();
            IDLE_INTERVAL
        };
        drop(inner);
        if !pause.is_zero() {
            clock.sleep_until(clock.now() + pause).await;
        }
    }
}

impl Inner {
    /// Adds the jobs of the next page. Returns whether there was one.
    async fn read_page(
        self: &Arc<Self>,
        inbox: &dyn Inbox,
        reader: &mut Reader,
    ) -> Result<bool, Error> {
        let clock = &self.engine.ports().clock;
        reader.begin(clock.now());
        let page = inbox.requests(reader.after.as_ref(), PAGE).await?;
        let Some(last) = page.last() else {
            reader.end(clock.now());
            return Ok(false);
        };
        reader.after = Some(last.id.clone());
        self.accept_requests(page).await?;
        Ok(true)
    }

    /// Adds the job of this id if the inbox has its request. Returns whether there was one.
    pub(in crate::runtime) async fn take_from_inbox(
        self: &Arc<Self>,
        id: &JobId,
    ) -> Result<bool, Error> {
        let inbox = self.shared.as_ref().and_then(|shared| shared.inbox.as_deref());
        let Some(inbox) = inbox else { return Ok(false) };
        let request = inbox.request(id).await?;
        let was_there = request.is_some();
        self.accept_requests(request.into_iter().collect()).await?;
        Ok(was_there)
    }

    /// Adds the jobs of `requests`, or dead letters for those that are refused. What fails for
    /// another reason stays in the inbox.
    pub(super) async fn accept_requests(
        self: &Arc<Self>,
        requests: Vec<InboxRequest>,
    ) -> Result<(), Error> {
        let (mut jobs, mut kept, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            match read(&request) {
                Ok(job) => {
                    jobs.push((request.id.clone(), job));
                    kept.push(request);
                }
                Err(reason) => refused.push(refusal(request, reason)),
            }
        }
        let server = Server { inner: Arc::clone(self) };
        let mut failed = None;
        for (request, answer) in kept.into_iter().zip(server.enqueue_requests(jobs).await?) {
            match answer {
                Err(error) if is_final(&error) => {
                    refused.push(refusal(request, error.to_string()));
                }
                // Another server has taken it.
                Err(Error::Stale { .. }) | Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        metrics::inbox_refused(self.engine.refuse_requests(refused).await?);
        failed.map_or(Ok(()), Err)
    }
}

/// The job that `request` asks for.
fn read(request: &InboxRequest) -> Result<NewJob, String> {
    let (data, options) = (text(&request.data)?, text(&request.options)?);
    let type_name = request.job_type.parse().map_err(|error| format!("type: {error}"))?;
    // `options` has the fields of a request over HTTP, without those that are arguments.
    let rest = options.trim_start().strip_prefix('{').ok_or("options: must be a JSON object")?;
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    let body = format!("{{\"data\":{data}{comma}{rest}");
    let NewJobBody {
        job_type,
        id,
        data,
        run_at,
        delay_seconds,
        expires_at,
        correlation_key,
        options,
    } = serde_json::from_str(&body).map_err(|error| {
        let error = error.to_string();
        // The place is one in the text above.
        format!("options: {}", error.split(" at line ").next().unwrap_or(&error))
    })?;
    for (field, is_given) in [
        ("type", job_type.is_some()),
        ("id", id.is_some()),
        ("run_at", run_at.is_some()),
        ("delay_seconds", delay_seconds.is_some()),
    ] {
        if is_given {
            return Err(format!("options.{field}: is not for `enqueue`, which has it otherwise"));
        }
    }
    if options.critical {
        return Err("options.critical: needs a token with the scope `critical`".into());
    }
    let payload =
        Payload { encoding: Encoding::Json, bytes: data.get().as_bytes().to_vec().into() };
    let caller = &request.caller;
    let named =
        format!("sql:{}", &caller[..caller.floor_char_boundary(Spec::MAX_CALLER_BYTES - 4)]);
    Ok(NewJob {
        run_at: request.run_at,
        delay_seconds: request.delay.map(|left| Seconds::from_millis(left.as_millis() as u64)),
        expires_at,
        correlation_key,
        options,
        enqueued_by: Some(named),
        ..NewJob::new(type_name, payload)
    })
}

fn text(json: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(json).map_err(|error| error.to_string())
}

/// What the dead letter of a request shows of it.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(rename = "type")]
    job_type: &'a str,
    data: Option<Box<RawValue>>,
    options: Option<Box<RawValue>>,
    run_at: Option<Timestamp>,
    delay_seconds: Option<Seconds>,
}

/// The refusal of `request` for `reason`.
fn refusal(request: InboxRequest, reason: String) -> RefusedRequest {
    let raw = |json: &[u8]| {
        let text = std::str::from_utf8(json).unwrap_or_default();
        RawValue::from_string(text.to_owned()).ok()
    };
    let shown = Shown {
        job_type: &request.job_type,
        data: raw(&request.data),
        options: raw(&request.options),
        run_at: request.run_at,
        delay_seconds: request.delay.map(|left| Seconds::from_millis(left.as_millis() as u64)),
    };
    let data = to_raw_value(&shown).ok().map(|shown| Payload {
        encoding: Encoding::Json,
        bytes: shown.get().as_bytes().to_vec().into(),
    });
    let (event_type, source) = EVENT;
    let event = Event {
        id: request.id.to_string(),
        source: source.to_owned(),
        event_type: event_type.to_owned(),
        subject: Some(request.caller),
        time: None,
        data_content_type: None,
        data_schema: None,
        extensions: std::collections::BTreeMap::new(),
        data,
    };
    RefusedRequest { id: request.id, reason, event }
}
