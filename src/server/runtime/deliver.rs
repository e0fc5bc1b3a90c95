//! Delivery: a claimed job is sent to its target, and the response becomes a report.
//!
//! ```text
//!   2xx but 202 ─▶ succeeded        no connection, 429, 503 ─▶ up to 3 more tries, then not_delivered
//!   202 (any 2xx with `complete: on_result`) ─▶ the result comes later
//!                                   other 4xx, 5xx ─▶ failed (489: not retryable)
//!   no answer in time ─▶ failed `timeout`, or with `on_response_timeout: wait` still running
//! ```
//!
//! With `at_most_once`, only a connection that was never established is retried. After any other
//! failure the job may have run, and ends `outcome_unknown`.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use chrono::DateTime;
use serde_json::value::RawValue;
use tidegate_api::{AnyValue, PushCallback, PushRequest};

use super::Inner;
use tidegate_core::{
    job::{
        Body, Encoding, Job, Payload, TypeName, Value,
        lifecycle::{Failure, Reason},
        spec::KeepResult,
        trace,
        type_config::{Delivery, OnResponseTimeout, TypeConfig},
    },
    port::target::{Request, Response, ServiceMessage, TargetError},
    target::{AwsTarget, Complete, Push, PushEncoding, TargetConfig, signature},
    time::{Seconds, Timestamp},
    validate::target_url,
};
use tidegate_engine::{
    CALLBACK_TYPE, Catalog, Error, PushTarget,
    events::ingest::HOPS_HEADER,
    request::{Heartbeat, Report, ReportOutcome},
};

/// The waits before a delivery that did not arrive is retried within the same attempt.
const RETRY_WAITS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// The status by which a worker rejects further attempts.
const STATUS_NOT_RETRYABLE: u16 = 489;
/// Headers that a message also has as attributes, because services pass attributes on unchanged: the
/// hop count and the trace.
const HEADERS_AS_ATTRIBUTES: [&str; 3] = [HOPS_HEADER, trace::PARENT, trace::STATE];
/// Most bytes of a response that go into an error message.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Sends a running job to its target. Returns the report of its attempt, or `None` if the attempt
/// continues at the worker.
///
/// A call without a response by `until` fails, even if its type would wait longer.
pub(super) async fn push(
    inner: &Arc<Inner>,
    job: Job,
    catalog: &Catalog,
    until: Timestamp,
) -> Option<Report> {
    let Some(item) = catalog.types.get(&job.spec.job_type) else {
        return Some(failed(
            &job,
            Failure::new(Reason::NotDelivered, "its type is gone"),
            true,
            Duration::ZERO,
        ));
    };
    let config = &item.config;
    let Some(target) = inner.engine.push_target(config) else {
        return Some(failed(
            &job,
            Failure::new(Reason::NotDelivered, "its type is pulled now"),
            true,
            Duration::ZERO,
        ));
    };
    let job = match inner.engine.load(vec![job.clone()]).await {
        Ok(mut jobs) => jobs.pop().unwrap_or(job),
        Err(error) => {
            return Some(failed(
                &job,
                Failure::new(Reason::NotDelivered, error.to_string()),
                true,
                Duration::ZERO,
            ));
        }
    };
    let deadline = (inner.engine.now() + config.response_timeout_seconds.duration()).min(until);
    match exchange(inner, &job, config, target, catalog, deadline).await {
        DeliveryOutcome::Report(verdict) => Some(report(&job, verdict)),
        DeliveryOutcome::Later => accepted(inner, &job).await,
    }
}

/// The outcome of a delivery.
enum DeliveryOutcome {
    Report(ReportOutcome),
    /// The result comes later.
    Later,
}

/// Calls the target, with retries while the job is not delivered, until `deadline`.
async fn exchange(
    inner: &Arc<Inner>,
    job: &Job,
    config: &TypeConfig,
    target: PushTarget<'_>,
    catalog: &Catalog,
    deadline: Timestamp,
) -> DeliveryOutcome {
    let once = config.delivery == Delivery::AtMostOnce;
    let is_callback = job.spec.job_type.as_str() == CALLBACK_TYPE;
    let complete = match target {
        PushTarget::Url(push) => push.complete,
        PushTarget::Aws(target) if target.is_later() => Complete::OnResult,
        PushTarget::Aws(_) => Complete::OnDelivery,
    };
    let max_result =
        (job.spec.keep_result != KeepResult::None).then(|| inner.engine.rules().max_data_bytes);
    let mut waits = RETRY_WAITS.iter();
    loop {
        let now = inner.engine.now();
        let timeout = deadline.since(now);
        let answer = match target {
            PushTarget::Url(push) => match request(inner, job, push, catalog, now, timeout) {
                Ok(request) => inner.target.call(request).await,
                Err(message) => return fail(Reason::NotDelivered, message, false, Duration::ZERO),
            },
            PushTarget::Aws(target) => match message_to(inner, job, target, timeout) {
                Ok(message) => inner.target.send(message).await,
                Err(message) => return fail(Reason::NotDelivered, message, false, Duration::ZERO),
            },
        };
        let (message, after, status) = match answer {
            Ok(response) => {
                match classify(
                    &response,
                    once,
                    is_callback,
                    complete,
                    max_result,
                    inner.engine.now(),
                ) {
                    ResponseClass::Done(outcome) => return outcome,
                    ResponseClass::NotDelivered { message, after, status } => {
                        (message, after, status)
                    }
                }
            }
            Err(TargetError::NotConnected(error)) => {
                (format!("no connection: {error}"), None, None)
            }
            Err(TargetError::Forbidden(error)) => {
                return fail(
                    Reason::NotDelivered,
                    format!("address refused: {error}"),
                    false,
                    Duration::ZERO,
                );
            }
            Err(error @ (TargetError::NoAnswer(_) | TargetError::TimedOut)) => {
                return match (config.on_response_timeout, once, &error) {
                    // A wait starts nothing twice.
                    (OnResponseTimeout::Wait, ..) => DeliveryOutcome::Later,
                    (OnResponseTimeout::Fail, true, _) => fail(
                        Reason::OutcomeUnknown,
                        format!("{error}; it may have run, and must not run twice"),
                        false,
                        Duration::ZERO,
                    ),
                    (OnResponseTimeout::Fail, false, TargetError::TimedOut) => {
                        fail(Reason::Timeout, error.to_string(), true, Duration::ZERO)
                    }
                    (OnResponseTimeout::Fail, false, _) => {
                        fail(Reason::ConnectionLost, error.to_string(), true, Duration::ZERO)
                    }
                };
            }
        };
        let wait = waits.next().map(|wait| after.unwrap_or(*wait));
        match wait {
            Some(wait) if inner.engine.now() + wait < deadline => {
                inner.engine.ports().clock.sleep_until(inner.engine.now() + wait).await;
            }
            _ => {
                let failure = Failure { status, ..Failure::new(Reason::NotDelivered, message) };
                return DeliveryOutcome::Report(ReportOutcome::Failed {
                    failure,
                    retryable: true,
                    least_wait: after.unwrap_or_default(),
                });
            }
        }
    }
}

/// A classified response.
enum ResponseClass {
    Done(DeliveryOutcome),
    /// The worker did not accept the job. Retry, after the time that it requested, if any.
    NotDelivered {
        message: String,
        after: Option<Duration>,
        status: Option<u16>,
    },
}

/// Classifies a response. `once`: the job must not run twice. `is_callback`: it is a completion
/// callback, which has no result. `max_result`: most bytes of the result, if it is kept.
fn classify(
    response: &Response,
    once: bool,
    is_callback: bool,
    complete: Complete,
    max_result: Option<usize>,
    now: Timestamp,
) -> ResponseClass {
    let status = response.status;
    let done = |outcome| ResponseClass::Done(outcome);
    match status {
        202 if !is_callback => done(DeliveryOutcome::Later),
        // With any 2xx it has accepted the job; the result comes later.
        200..=299 if complete == Complete::OnResult => done(DeliveryOutcome::Later),
        200..=299 => {
            done(
                match max_result
                    .filter(|_| !is_callback)
                    .and_then(|most| Some((most, result(response)?)))
                {
                    // The work is done. Another attempt would repeat it, with the same response.
                    Some((most, long)) if long.bytes.len() > most => {
                        let message = format!(
                            "it answered with more than the {most} bytes that a result may have"
                        );
                        fail(Reason::Failed, message, false, Duration::ZERO)
                    }
                    result => DeliveryOutcome::Report(ReportOutcome::Succeeded {
                        result: result.map(|(_, result)| Body::Inline(result)),
                    }),
                },
            )
        }
        429 | 503 if !once => {
            let after = response.header("retry-after").and_then(|text| retry_after(text, now));
            ResponseClass::NotDelivered { message: message(response), after, status: Some(status) }
        }
        _ => {
            let word = response
                .header("tidegate-retryable")
                .is_some_and(|value| value.eq_ignore_ascii_case("false"));
            let retryable = status != STATUS_NOT_RETRYABLE && !word;
            let details = serde_json::from_slice::<&RawValue>(&response.body)
                .ok()
                .filter(|raw| raw.get().len() <= 16 << 10);
            let details = details.map(|raw| raw.get().to_owned());
            let failure = Failure {
                reason: Reason::Failed,
                message: Some(message(response)),
                details,
                status: Some(status),
            };
            done(DeliveryOutcome::Report(ReportOutcome::Failed {
                failure,
                retryable,
                least_wait: Duration::ZERO,
            }))
        }
    }
}

/// The wait that a `Retry-After` requests: seconds, or an HTTP date.
fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse::<u64>() {
        return Some(Duration::from_secs(seconds.min(86_400)));
    }
    let at = DateTime::parse_from_rfc2822(text.trim()).ok()?;
    Some(Timestamp::from_utc(at.to_utc()).since(now).min(Duration::from_hours(24)))
}

fn message(response: &Response) -> String {
    let text =
        String::from_utf8_lossy(&response.body[..response.body.len().min(MAX_MESSAGE_BYTES)]);
    let text = text.trim();
    if text.is_empty() {
        format!("HTTP {}", response.status)
    } else {
        format!("HTTP {}: {text}", response.status)
    }
}

/// The body of a response as a result: JSON or MessagePack as declared, text as a JSON string, other
/// bytes as binary.
fn result(response: &Response) -> Option<Payload> {
    if response.body.is_empty() {
        return None;
    }
    let kind = response.header("content-type").unwrap_or_default();
    let payload = |encoding| Payload { encoding, bytes: response.body.clone() };
    if kind.contains("msgpack")
        && payload(Encoding::MessagePack).check(tidegate_core::job::payload::MAX_DEPTH).is_ok()
    {
        return Some(payload(Encoding::MessagePack));
    }
    if payload(Encoding::Json).check(tidegate_core::job::payload::MAX_DEPTH).is_ok() {
        return Some(payload(Encoding::Json));
    }
    let value = match std::str::from_utf8(&response.body) {
        Ok(text) => serde_json::Value::from(text),
        Err(_) => serde_json::json!({"$binary": BASE64_STANDARD.encode(&response.body)}),
    };
    Some(Payload::json(value.to_string()))
}

fn report(job: &Job, verdict: ReportOutcome) -> Report {
    let token = job.life.running().map(|run| run.token);
    Report {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token,
        outcome: verdict,
    }
}

/// The report that an attempt failed.
pub(super) fn failed(job: &Job, failure: Failure, retryable: bool, least_wait: Duration) -> Report {
    report(job, ReportOutcome::Failed { failure, retryable, least_wait })
}

fn fail(
    reason: Reason,
    message: impl Into<String>,
    retryable: bool,
    least_wait: Duration,
) -> DeliveryOutcome {
    DeliveryOutcome::Report(ReportOutcome::Failed {
        failure: Failure::new(reason, message),
        retryable,
        least_wait,
    })
}

/// Extends the lease of an attempt that continues at its worker until its timeout.
async fn accepted(inner: &Arc<Inner>, job: &Job) -> Option<Report> {
    let run = job.life.running()?;
    let left = run.timeout_at.since(inner.engine.now());
    let beat = Heartbeat {
        id: job.id.clone(),
        job_type: None,
        attempt: job.life.attempt,
        token: Some(run.token),
        lease_seconds: Some(Seconds::from_millis(left.as_millis() as u64)),
        progress: None,
    };
    loop {
        match inner.engine.heartbeat(beat.clone()).await {
            // The worker has accepted the job, so this is retried until the lease ends.
            Err(Error::Unavailable { retry_after, .. }) if inner.engine.now() < run.lease_until => {
                inner.engine.ports().clock.sleep_until(inner.engine.now() + retry_after).await;
            }
            // The attempt is over already, for example by a callback that arrived before the response.
            Err(error) => {
                tracing::debug!(job = %job.id, %error, "an accepted attempt was over already");
                return None;
            }
            Ok(_) => return None,
        }
    }
}

/// The URL for the result of a running job, and the token that permits the report.
fn callback(inner: &Inner, job: &Job) -> Result<(String, String), String> {
    let run = job.life.running().ok_or("it does not run")?;
    Ok((
        format!("{}/v1/jobs/{}/{}", inner.options.public_url, job.spec.job_type, job.id),
        format!("{:032x}", run.token.0),
    ))
}

/// The message that carries `job` to a service.
fn message_to(
    inner: &Inner,
    job: &Job,
    target: &AwsTarget,
    timeout: Duration,
) -> Result<ServiceMessage, String> {
    let data = job.data.inline().ok_or("its body was not read")?;
    let (url, token) = callback(inner, job)?;
    let mut attributes = vec![
        ("id", job.id.to_string()),
        ("type", job.spec.job_type.to_string()),
        ("attempt", job.life.attempt.to_string()),
    ];
    attributes.extend(job.spec.correlation_key.clone().map(|key| ("correlation_key", key)));
    let copied = HEADERS_AS_ATTRIBUTES
        .into_iter()
        .filter_map(|name| Some((name, trace::named(&job.spec.headers, name)?.1.clone())));
    // Services reject an attribute without a value.
    attributes.extend(copied.filter(|(_, value)| !value.is_empty()));
    Ok(ServiceMessage {
        to: target.service.clone(),
        group: job.id.to_string(),
        key: format!("{}.{}", job.id, job.life.attempt),
        kind: job.spec.job_type.to_string(),
        attributes,
        body: json_body(job, data, &url, &token, Some(&job.spec.headers))?,
        timeout,
    })
}

/// The request that carries `job` to `target`.
fn request(
    inner: &Inner,
    job: &Job,
    target: &Push,
    catalog: &Catalog,
    now: Timestamp,
    timeout: Duration,
) -> Result<Request, String> {
    let data = job.data.inline().ok_or("its body was not read")?;
    let is_callback = job.spec.job_type.as_str() == CALLBACK_TYPE;
    let (url, body, content_type) = if is_callback {
        let url = job.spec.callback_url.as_ref().ok_or("it has no callback_url")?;
        (url.to_string(), data.bytes.clone(), "application/json")
    } else {
        let url = target_url(&target.url, job.spec.job_type.as_str(), job.id.as_str());
        let (callback, token) = callback(inner, job)?;
        match target.encoding {
            PushEncoding::Json => {
                (url, json_body(job, data, &callback, &token, None)?, "application/json")
            }
            PushEncoding::Msgpack => {
                (url, msgpack_body(job, data, &callback, &token)?, "application/msgpack")
            }
        }
    };
    let secrets = if is_callback {
        callback_secrets(job, catalog)
    } else {
        target.signing_secret.list().to_vec()
    };
    let mut headers: Vec<(String, String)> = vec![("content-type".into(), content_type.into())];
    headers.extend(
        job.spec
            .headers
            .iter()
            .chain(&target.headers)
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    let message = format!("{}.{}", job.id, job.life.attempt);
    headers.extend(
        signature::sign(&secrets, &message, now, &body).map_err(|error| error.to_string())?,
    );
    let basic_auth =
        target.basic_auth.as_ref().map(|basic| (basic.username.clone(), basic.password.clone()));
    Ok(Request {
        url,
        headers,
        basic_auth,
        body,
        timeout,
        most_bytes: inner.engine.rules().max_data_bytes,
    })
}

/// The secrets that sign a completion callback: those of the type of the finished job.
fn callback_secrets(job: &Job, catalog: &Catalog) -> Vec<String> {
    let Some(Value::Text(name)) = job.spec.attributes.get("type") else {
        return Vec::new();
    };
    let item = name.parse::<TypeName>().ok().and_then(|name| catalog.types.get(&name));
    match item.and_then(|item| item.config.target.as_ref()) {
        Some(TargetConfig::Push(push)) => push.signing_secret.list().to_vec(),
        _ => Vec::new(),
    }
}

fn json_body(
    job: &Job,
    data: &Payload,
    url: &str,
    token: &str,
    headers: Option<&BTreeMap<String, String>>,
) -> Result<Bytes, String> {
    let body = PushRequest {
        id: Cow::Borrowed(&job.id),
        r#type: Cow::Borrowed(&job.spec.job_type),
        attempt: job.life.attempt,
        max_attempts: job.spec.max_attempts,
        data: AnyValue::new(data, Encoding::Json),
        attributes: Cow::Borrowed(&job.spec.attributes),
        correlation_key: job.spec.correlation_key.as_deref().map(Cow::Borrowed),
        headers: headers.filter(|headers| !headers.is_empty()).map(Cow::Borrowed),
        callback: PushCallback { url: url.into(), token: token.into() },
    };
    serde_json::to_vec(&body).map(Bytes::from).map_err(|error| error.to_string())
}

/// The same map as [`json_body`] in MessagePack, with the data converted to MessagePack.
fn msgpack_body(job: &Job, data: &Payload, url: &str, token: &str) -> Result<Bytes, String> {
    use rmpv::Value as V;
    let attributes = job.spec.attributes.iter().map(|(name, value)| {
        let value = match value {
            Value::Text(text) => V::from(text.as_str()),
            Value::Number(number) => number
                .as_i64()
                .map(V::from)
                .or_else(|| number.as_f64().map(V::from))
                .unwrap_or(V::Nil),
        };
        (V::from(name.as_str()), value)
    });
    let callback = V::Map(vec![(V::from("url"), V::from(url)), (V::from("token"), V::from(token))]);
    let key = job.spec.correlation_key.as_deref().map(|key| ("correlation_key", V::from(key)));
    let fields: Vec<(&str, V)> = [
        ("id", V::from(job.id.as_str())),
        ("type", V::from(job.spec.job_type.as_str())),
        ("attempt", V::from(job.life.attempt)),
        ("max_attempts", V::from(job.spec.max_attempts)),
        ("attributes", V::Map(attributes.collect())),
        ("callback", callback),
    ]
    .into_iter()
    .chain(key)
    .collect();
    let mut body = vec![0x80 | (fields.len() as u8 + 1)];
    let mut put =
        |value: &V| rmpv::encode::write_value(&mut body, value).map_err(|error| error.to_string());
    for (name, value) in &fields {
        put(&V::from(*name))?;
        put(value)?;
    }
    put(&V::from("data"))?;
    body.extend_from_slice(&data.to_msgpack().map_err(|malformed| malformed.to_string())?);
    Ok(body.into())
}
