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

/// The digest of a request that cannot be repeated: it has neither an id nor an idempotency key.
pub(super) const NO_DIGEST: [u8; 16] = [0; 16];

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
