//! The outcome that the response of a worker means.
//!
//! The body of a failure has one of two forms. A [`PushFailure`] is the JSON of a worker's report,
//! with a message for people and details for programs. Any other body is both: its start goes into
//! the message, and the whole of it into the details if it is JSON.

use std::borrow::Cow;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use chrono::DateTime;
use serde_json::value::RawValue;

use super::{DeliveryOutcome, failed_permanently};
use tidegate_api::PushFailure;
use tidegate_core::{
    job::{
        Body, Encoding, Payload,
        lifecycle::{Failure, HandBack, Reason},
        payload::MAX_DEPTH,
    },
    port::target::Response,
    stored::UnknownFields,
    target::Complete,
    time::{Seconds, Timestamp},
};
use tidegate_engine::request::ReportOutcome;

/// The status by which a worker rejects further attempts.
const STATUS_NOT_RETRYABLE: u16 = 489;
/// Most bytes of a response without a message of its own that go into an error message.
const MAX_EXCERPT_BYTES: usize = 1024;
/// Most bytes of the message of a [`PushFailure`]; the rest is cut off.
const MAX_MESSAGE_BYTES: usize = 4 << 10;
/// Most bytes of the details of a failure; larger ones are left out.
const MAX_DETAILS_BYTES: usize = 16 << 10;
/// The header by which a worker hands a job back: `released`, or `snoozed` with `Retry-After`.
const STATUS_HEADER: &str = "tidegate-status";
/// The longest time for which a worker can snooze a job: ten years.
const MAX_SNOOZE: Seconds = tidegate_core::validate::DECADE;
/// The longest wait that a `Retry-After` can request.
const MAX_RETRY_AFTER: Seconds = Seconds::new(24 * 3600);

/// The body of `response` if it gives message and details apart.
fn failure_body(response: &Response) -> Option<PushFailure<'_>> {
    serde_json::from_slice(&response.body).ok()
}

/// What decides how a response is classified.
pub(super) struct ResponseRules {
    /// Whether the job must not run twice.
    pub(super) at_most_once: bool,
    /// Whether the job is a completion callback, which has no result.
    pub(super) is_callback: bool,
    pub(super) complete: Complete,
    /// Most bytes of the result; `None` if it is not kept.
    pub(super) max_result_bytes: Option<usize>,
}

/// A classified response.
pub(super) enum ResponseClass {
    Done(DeliveryOutcome),
    NotDelivered(NotDelivered),
}

/// The worker did not accept the job: the delivery is retried.
pub(super) struct NotDelivered {
    pub(super) message: String,
    /// The wait that the worker requested.
    pub(super) after: Option<Seconds>,
    /// The status of the response, if there was one.
    pub(super) status: Option<u16>,
}

impl ResponseRules {
    /// Classifies a response that arrived at `now`.
    pub(super) fn classify(&self, response: &Response, now: Timestamp) -> ResponseClass {
        let said = response.header(STATUS_HEADER).unwrap_or_default();
        let is = |status: &str| !self.is_callback && said.eq_ignore_ascii_case(status);
        match response.status {
            _ if is("released") => ResponseClass::Done(handed_back(response, None)),
            _ if is("snoozed") => ResponseClass::Done(snoozed(response, now)),
            202 if !self.is_callback => ResponseClass::Done(DeliveryOutcome::Later),
            // With any 2xx it has accepted the job; the result comes later.
            200..=299 if self.complete == Complete::OnResult => {
                ResponseClass::Done(DeliveryOutcome::Later)
            }
            200..=299 => ResponseClass::Done(self.succeeded(response)),
            status @ (429 | 503) if !self.at_most_once => {
                let after = retry_after(response, now).map(|after| after.min(MAX_RETRY_AFTER));
                let message = message(response);
                ResponseClass::NotDelivered(NotDelivered { message, after, status: Some(status) })
            }
            _ => ResponseClass::Done(rejected(response)),
        }
    }

    /// The outcome of a job whose work is done, with its result.
    fn succeeded(&self, response: &Response) -> DeliveryOutcome {
        let kept = self
            .max_result_bytes
            .filter(|_| !self.is_callback)
            .and_then(|most| Some((most, result(response)?)));
        match kept {
            // The work is done. Another attempt would repeat it, with the same response.
            Some((most, long)) if long.bytes.len() > most => failed_permanently(
                Reason::Failed,
                format!("the response has more than the {most} bytes that a result may have"),
            ),
            kept => DeliveryOutcome::Report(ReportOutcome::Succeeded {
                result: kept.map(|(_, result)| Body::Inline(result)),
            }),
        }
    }
}

/// The outcome of a job that its worker hands back, until a time or at once.
fn handed_back(response: &Response, until: Option<Timestamp>) -> DeliveryOutcome {
    let message = Some(message(response));
    let hand_back = HandBack { until, message, unknown: UnknownFields::default() };
    DeliveryOutcome::Report(ReportOutcome::HandedBack(hand_back))
}

/// The outcome of a job that its worker hands back until its `Retry-After`.
fn snoozed(response: &Response, now: Timestamp) -> DeliveryOutcome {
    if let Some(after) = retry_after(response, now) {
        return handed_back(response, Some(now + after.min(MAX_SNOOZE).duration()));
    }
    let failure = Failure {
        status: Some(response.status),
        ..Failure::new(Reason::Failed, "the response says snoozed, without `Retry-After`")
    };
    DeliveryOutcome::Report(ReportOutcome::Failed { failure, retryable: true })
}

/// The outcome of a job whose worker answered with an error.
fn rejected(response: &Response) -> DeliveryOutcome {
    let forbids_retry = response
        .header("tidegate-retryable")
        .is_some_and(|value| value.eq_ignore_ascii_case("false"));
    let details = match failure_body(response) {
        Some(failure) => failure.error,
        None => serde_json::from_slice::<&RawValue>(&response.body).ok(),
    };
    let details =
        details.filter(|raw| raw.get().len() <= MAX_DETAILS_BYTES).map(|raw| raw.get().to_owned());
    DeliveryOutcome::Report(ReportOutcome::Failed {
        failure: Failure {
            reason: Reason::Failed,
            message: Some(message(response)),
            details,
            status: Some(response.status),
            retry_after: None,
            unknown: UnknownFields::default(),
        },
        retryable: response.status != STATUS_NOT_RETRYABLE && !forbids_retry,
    })
}

/// The wait that the `Retry-After` of a response requests: seconds, or an HTTP date.
fn retry_after(response: &Response, now: Timestamp) -> Option<Seconds> {
    let text = response.header("retry-after")?;
    let millis = if let Ok(seconds) = text.trim().parse::<u64>() {
        seconds.saturating_mul(1000)
    } else {
        let at = DateTime::parse_from_rfc2822(text.trim()).ok()?;
        Timestamp::from_utc(at.to_utc()).since(now).as_millis() as u64
    };
    Some(Seconds::from_millis(millis))
}

/// The message of a failed response, or of one that hands a job back.
fn message(response: &Response) -> String {
    let own = failure_body(response).map(|body| body.message);
    if let Some(message) = own.as_ref().filter(|message| !message.trim().is_empty()) {
        // A copy: a truncated text keeps the memory of the whole.
        return message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned();
    }
    let start = &response.body[..response.body.len().min(MAX_EXCERPT_BYTES)];
    let text = own.map_or_else(|| String::from_utf8_lossy(start), Cow::Owned);
    let text = text.trim();
    if text.is_empty() {
        format!("HTTP {}", response.status)
    } else {
        format!("HTTP {}: {text}", response.status)
    }
}

/// The body of a response as a result: JSON or MessagePack as declared, text as a JSON string,
/// other bytes as binary.
fn result(response: &Response) -> Option<Payload> {
    if response.body.is_empty() {
        return None;
    }
    let kind = response.header("content-type").unwrap_or_default();
    let payload = |encoding| Payload { encoding, bytes: response.body.clone() };
    if kind.contains("msgpack") && payload(Encoding::MessagePack).check(MAX_DEPTH).is_ok() {
        return Some(payload(Encoding::MessagePack));
    }
    if payload(Encoding::Json).check(MAX_DEPTH).is_ok() {
        return Some(payload(Encoding::Json));
    }
    let value = match std::str::from_utf8(&response.body) {
        Ok(text) => serde_json::Value::from(text),
        Err(_) => serde_json::json!({"$binary": BASE64_STANDARD.encode(&response.body)}),
    };
    Some(Payload::json(value.to_string()))
}
