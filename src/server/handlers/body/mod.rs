//! Request bodies: bounded, checked for depth, and read into structs that borrow from them.
//!
//! Every body is read as JSON text, so that there is one parser and one form of error. Of a body in
//! MessagePack, only the envelope around the kept values is converted ([`super::msgpack::split`]).
//! `data` and `result` stay the bytes that were received.

mod read;

use std::{sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::header,
};
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_core::{error_code::ErrorCode, port::Clock, time::Timestamp};

pub use self::read::read;

use self::read::{too_deep, too_deep_in};
use super::{
    audit::AuditNotes,
    error::Problem,
    media,
    msgpack::{self, Malformed},
};
use tidegate_core::job::{Encoding, Payload, payload::MAX_DEPTH};

/// How many levels a request and an item of its list add around the value that they carry.
const ENVELOPE_DEPTH: usize = 3;

/// How many bytes past its limit a body is read and discarded. Without this, a client that is still
/// sending loses its connection before it reads the error.
const DRAINED_BYTES: usize = 16 << 20;

/// Maximum bytes of the body of a request, as an extension of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimit(pub usize);

/// The bytes of a body that take one second of the time that it may take.
const MIN_BYTES_PER_SECOND: usize = 16 << 10;

/// The time that a body may take, as an extension of the request.
#[derive(Clone)]
pub(crate) struct BodyTime {
    pub clock: Arc<dyn Clock>,
    pub limit: Duration,
}

impl BodyTime {
    /// Returns when a body that began at `start` is late, if it has `read` bytes so far.
    async fn late(&self, start: Timestamp, read: usize) {
        let more = Duration::from_secs((read / MIN_BYTES_PER_SECOND) as u64);
        self.clock.sleep_until(start + self.limit + more).await;
    }
}

/// The body of a request.
#[derive(Debug)]
pub struct Body {
    received: Bytes,
    json: Bytes,
    encoding: Encoding,
    /// With MessagePack: the kept values. The JSON contains their indexes.
    kept: Vec<Bytes>,
}

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let encoding = media::of_content(request.headers())?;
        let has_type = request.headers().contains_key(header::CONTENT_TYPE);
        let BodyLimit(most) = *request.extensions().get().expect("every route has a limit");
        let notes = request.extensions().get::<AuditNotes>().cloned();
        let bytes = bounded(request, most).await?;
        if !has_type && !bytes.is_empty() {
            let detail = "a body needs Content-Type: application/json or application/msgpack";
            return Err(Problem::new(ErrorCode::UnsupportedMediaType, detail));
        }
        let body = Self::new(encoding, bytes)?;
        if let Some(notes) = notes {
            notes.body(&body.json);
        }
        Ok(body)
    }
}

/// The bytes of a body of at most `most` bytes.
///
/// # Errors
///
/// 413 if it has more; 400 if it is incomplete; 408 if it takes too long.
pub async fn bounded(request: Request, most: usize) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("the request's body is larger than {most} bytes");
        Problem::new(ErrorCode::BodyTooLarge, detail)
    };
    let too_late =
        || Problem::new(ErrorCode::BodyTimeout, "the request's body did not come in time");
    let declared = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let expects_continue = request.headers().contains_key(header::EXPECT);
    if declared.is_some_and(|declared| {
        declared > most && (expects_continue || declared - most > DRAINED_BYTES)
    }) {
        return Err(too_large());
    }
    let time = request.extensions().get::<BodyTime>().expect("every request has a clock").clone();
    let start = time.clock.now();
    let mut body = request.into_body().into_data_stream();
    let mut parts: Vec<Bytes> = Vec::new();
    let mut read = 0;
    loop {
        // Most bodies are there already, and need no timer.
        let data = if let Some(data) = body.next().now_or_never() {
            data
        } else {
            tokio::select! {
                data = body.next() => data,
                () = time.late(start, read) => return Err(too_late()),
            }
        };
        let Some(data) = data else { break };
        let data = data.map_err(|_| {
            Problem::new(ErrorCode::InvalidBody, "the request's body is incomplete")
        })?;
        read += data.len();
        if read <= most {
            parts.push(data);
        } else if read - most > DRAINED_BYTES {
            break;
        }
    }
    match parts.pop() {
        _ if read > most => Err(too_large()),
        Some(whole) if parts.is_empty() => Ok(whole),
        last => {
            parts.extend(last);
            Ok(parts.concat().into())
        }
    }
}

impl Body {
    fn new(encoding: Encoding, bytes: Bytes) -> Result<Self, Problem> {
        if encoding == Encoding::Json || bytes.is_empty() {
            if let Some(field) = too_deep_in(&bytes, MAX_DEPTH + ENVELOPE_DEPTH) {
                return Err(too_deep(field));
            }
            let (received, kept) = (bytes.clone(), Vec::new());
            return Ok(Self { received, json: bytes, encoding: Encoding::Json, kept });
        }
        let (json, kept) = msgpack::split(&bytes).map_err(|malformed| match malformed {
            Malformed::Deep(field) => too_deep(field),
            other => Problem::new(
                ErrorCode::InvalidBody,
                format!("the body is not valid MessagePack: {other}"),
            ),
        })?;
        Ok(Self { received: bytes, json: json.into(), encoding, kept })
    }

    /// The bytes as they were received.
    pub fn received(&self) -> &Bytes {
        &self.received
    }

    /// Whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.json.is_empty()
    }

    /// The body as a `T`, which may borrow from it.
    ///
    /// # Errors
    ///
    /// 400 with the path of the wrong field.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        read(&self.json)
    }

    /// The body as a `T`, or the default of `T` if the body is empty.
    ///
    /// # Errors
    ///
    /// As [`Body::read`].
    pub(crate) fn read_or_default<'a, T: Deserialize<'a> + Default>(
        &'a self,
    ) -> Result<T, Problem> {
        if self.is_empty() { Ok(T::default()) } else { self.read() }
    }

    /// The value of `field` in this body, byte for byte as it was received. It is not checked here:
    /// the server checks it when it accepts the job.
    ///
    /// # Errors
    ///
    /// 413 if it has more than `most` bytes.
    pub fn value(
        &self,
        raw: &RawValue,
        field: &'static str,
        most: usize,
    ) -> Result<Payload, Problem> {
        let bytes = match self.encoding {
            Encoding::Json => self.json.slice_ref(raw.get().as_bytes()),
            Encoding::MessagePack => {
                let index = raw.get().parse::<usize>().ok();
                let kept = index.and_then(|index| self.kept.get(index));
                kept.cloned().ok_or_else(|| Problem::invalid(field, "must be one value"))?
            }
        };
        if bytes.len() > most {
            return Err(tidegate_engine::Error::TooLarge { field, limit: most }.into());
        }
        Ok(Payload { encoding: self.encoding, bytes })
    }

    /// [`Body::value`], and a check that the value is well formed.
    ///
    /// # Errors
    ///
    /// 400 if it is not well formed or nested too deeply, 413 if it has more than `most` bytes.
    pub fn checked(
        &self,
        raw: &RawValue,
        field: &'static str,
        most: usize,
    ) -> Result<Payload, Problem> {
        let payload = self.value(raw, field, most)?;
        payload
            .check(MAX_DEPTH)
            .map_err(|malformed| tidegate_engine::Error::malformed(field, &malformed))?;
        Ok(payload)
    }
}

#[cfg(test)]
mod tests;
