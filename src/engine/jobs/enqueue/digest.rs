//! The digest of a request, by which a repeat is recognised.

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest, Sha256};
use url::Url;

use crate::request::NewJob;
use tidegate_core::{
    calendar::window::Window,
    job::{
        Attributes, JobOptions, TypeName,
        retry::Retry,
        spec::{KeepResult, Unique},
        trace,
    },
    time::{Seconds, Timestamp},
};

/// The fields that a repeated request must have in common with the first one, in addition to its
/// data and the job that it replays.
///
/// Digests are stored with jobs, so names and order of these fields are fixed. A field that is
/// added later is skipped where it is absent.
#[derive(Serialize)]
struct DigestedRequest<'a> {
    job_type: &'a TypeName,
    priority: Option<i32>,
    weight: Option<u32>,
    critical: bool,
    run_at: Option<Timestamp>,
    delay_seconds: Option<Seconds>,
    expires_at: Option<Timestamp>,
    windows: &'a Option<Vec<Window>>,
    timeout_seconds: Option<Seconds>,
    deadline_seconds: Option<Seconds>,
    max_attempts: Option<u16>,
    retry: &'a Option<Retry>,
    correlation_key: Option<&'a str>,
    unique: &'a Option<Unique>,
    attributes: &'a Attributes,
    keep_result: Option<KeepResult>,
    callback_url: Option<&'a Url>,
    headers: BTreeMap<&'a str, &'a str>,
}

/// The digest of a request, by which a repeat is recognised.
pub(crate) fn digest(new: &NewJob) -> [u8; 16] {
    let JobOptions {
        priority,
        weight,
        critical,
        windows,
        timeout_seconds,
        deadline_seconds,
        max_attempts,
        retry,
        unique,
        attributes,
        keep_result,
        callback_url,
        headers,
    } = &new.options;
    // A repeat has a trace of its own.
    let is_trace = |name: &str| {
        name.eq_ignore_ascii_case(trace::PARENT) || name.eq_ignore_ascii_case(trace::STATE)
    };
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let request = DigestedRequest {
        job_type: &new.job_type,
        priority: *priority,
        weight: *weight,
        critical: *critical,
        run_at: new.run_at,
        delay_seconds: new.delay_seconds,
        expires_at: new.expires_at,
        windows,
        timeout_seconds: *timeout_seconds,
        deadline_seconds: *deadline_seconds,
        max_attempts: *max_attempts,
        retry,
        correlation_key: new.correlation_key.as_deref(),
        unique,
        attributes,
        keep_result: *keep_result,
        callback_url: callback_url.as_ref(),
        headers: headers.filter(|(name, _)| !is_trace(name)).collect(),
    };
    let mut hash = Sha256::new();
    hash.update(serde_json::to_vec(&request).unwrap_or_default());
    hash.update([u8::from(new.data.encoding == tidegate_core::job::Encoding::Json)]);
    hash.update(&new.data.bytes);
    if let Some(of) = &new.replay_of {
        hash.update(format!("replay of {of}"));
    }
    let mut short = [0; 16];
    short.copy_from_slice(&hash.finalize()[..16]);
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidegate_core::{event::trigger::hex, job::Payload};

    use super::*;
    use crate::testkit::builders::name;

    fn parsed<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).expect("it is written as in a request")
    }

    fn plain() -> NewJob {
        NewJob { id: Some(name("j1")), ..NewJob::new(name("mail"), Payload::json("{\"to\":1}")) }
    }

    /// A request that sets everything that is part of the digest.
    fn full() -> NewJob {
        let at = |text: &str| Some(text.parse::<Timestamp>().expect("an instant"));
        NewJob {
            run_at: at("2026-03-29T01:00:00.250Z"),
            delay_seconds: Some(Seconds::from_millis(1500)),
            expires_at: at("2026-04-01T00:00:00Z"),
            correlation_key: Some("order-17".into()),
            replay_of: Some(name("j0")),
            ..plain()
        }
        .with_options(|options| {
            options.priority = Some(-5);
            options.weight = Some(3);
            options.critical = true;
            options.windows = Some(parsed(json!([{"from": "22:00", "to": "06:00"}])));
            options.timeout_seconds = Some(Seconds::new(60));
            options.deadline_seconds = Some(Seconds::new(3600));
            options.max_attempts = Some(7);
            options.retry = Some(parsed(json!({"plugin": "planner", "config": {"b": 1, "a": 2}})));
            options.unique =
                Some(parsed(json!({"key": "u", "while": "live", "period_seconds": 5})));
            options.attributes = parsed(json!({"tenant": "a", "size": 2, "ratio": 0.5}));
            options.keep_result = Some(parsed(json!({"seconds": 90})));
            options.callback_url = Some("https://example.com/done".parse().expect("a URL"));
            options.headers = parsed(json!({"x-b": "2", "X-A": "1"}));
        })
    }

    /// Digests are stored with jobs. If this fails, a client that repeats a request after an
    /// upgrade gets 409 instead of its job: restore the digest, and do not change the values here.
    #[test]
    fn the_digest_of_a_request_is_the_same_in_every_release() {
        let bytes = vec![0xc0].into();
        let message_pack = Payload { encoding: tidegate_core::job::Encoding::MessagePack, bytes };
        let with = |set: fn(&mut JobOptions)| plain().with_options(set);
        let exponential = with(|options| {
            let config = json!({"base_seconds": 1.5, "max_seconds": 60, "jitter": "full"});
            options.retry = Some(parsed(json!({"strategy": "exponential", "config": config})));
        });
        let requests = [
            plain(),
            full(),
            NewJob { data: message_pack, ..plain() },
            exponential,
            with(|options| options.keep_result = Some(KeepResult::Once)),
        ];
        let expected = [
            "7cb222ceffa06fe1ce690d56f592d0ef",
            "8e4f03a780ca462a5405956f0b9a4560",
            "6852c8514f45482acd95ad77c3685437",
            "f7618c7902d8f47a3ad4bede31574f71",
            "bec5c61a686e5d817e083fdceca8b5f5",
        ];
        assert_eq!(requests.map(|request| hex(&digest(&request))), expected);
    }

    #[test]
    fn key_and_trace_of_a_request_are_not_in_its_digest() {
        let traced = full().with_options(|options| {
            options.headers.insert("Traceparent".into(), "00-1".into());
            options.headers.insert(trace::STATE.into(), "v=1".into());
        });
        let keyed = NewJob { id: None, idempotency_key: Some("key".into()), ..traced };
        assert_eq!(digest(&keyed), digest(&full()));
    }
}
