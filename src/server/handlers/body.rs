//! Request bodies: bounded, checked for depth, and read into structs that borrow from them.
//!
//! A body is JSON text once it is here, whatever it was written in: of MessagePack only what is
//! around the kept values is converted ([`super::msgpack::split`]), so that there is one way to read
//! a request and one way to complain about it. `data` and `result` are the bytes that came.

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::header,
};
use futures_util::StreamExt;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tidegate_core::error_code::ErrorCode;

use super::{
    error::Problem,
    media,
    msgpack::{self, Malformed},
};
use tidegate_core::job::{Encoding, Payload, payload::MAX_DEPTH};

/// What a request and an item of its list add to the depth of the value that they carry.
const ENVELOPE_DEPTH: usize = 3;

/// What is read of a body past its limit, and thrown away: a client that still sends would see its connection
/// end before it reads why.
const DRAINED_BYTES: usize = 16 << 20;

/// The most bytes that the body of a request may have, as an extension of the request.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimit(pub usize);

/// The body of a request.
#[derive(Debug)]
pub struct Body {
    json: Bytes,
    encoding: Encoding,
    /// With MessagePack: the kept values, which the JSON names by their index.
    kept: Vec<Bytes>,
}

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let encoding = media::of_content(request.headers())?;
        let BodyLimit(most) = *request.extensions().get().expect("every route has a limit");
        let bytes = bounded(request, most).await?;
        Self::new(encoding, bytes)
    }
}

/// The bytes of a body that has no more than `most` of them.
///
/// # Errors
///
/// 413 if it has more; 400 if it does not arrive whole.
pub async fn bounded(request: Request, most: usize) -> Result<Bytes, Problem> {
    let too_large = || {
        Problem::new(ErrorCode::BodyTooLarge, "the request's body is larger than this route takes")
    };
    let told = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let asks_first = request.headers().contains_key(header::EXPECT);
    if told.is_some_and(|told| told > most && (asks_first || told - most > DRAINED_BYTES)) {
        return Err(too_large());
    }
    let mut body = request.into_body().into_data_stream();
    let mut parts: Vec<Bytes> = Vec::new();
    let mut read = 0;
    while let Some(data) = body.next().await {
        let data = data.map_err(|_| {
            Problem::new(ErrorCode::InvalidBody, "the request's body did not arrive whole")
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
            return Ok(Self { json: bytes, encoding: Encoding::Json, kept: Vec::new() });
        }
        let (json, kept) = msgpack::split(&bytes).map_err(|malformed| match malformed {
            Malformed::Deep(field) => too_deep(field),
            other => Problem::new(
                ErrorCode::InvalidBody,
                format!("the body is not MessagePack: it {other}"),
            ),
        })?;
        Ok(Self { json: json.into(), encoding, kept })
    }

    /// Whether nothing was sent.
    pub fn is_empty(&self) -> bool {
        self.json.is_empty()
    }

    /// The body as a `T`, which may borrow from it.
    ///
    /// # Errors
    ///
    /// 400 with the path of the field that is to blame.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        read(&self.json)
    }

    /// The body as a `T`, or the default of `T` if nothing was sent.
    ///
    /// # Errors
    ///
    /// As [`Body::read`].
    pub fn read_or_default<'a, T: Deserialize<'a> + Default>(&'a self) -> Result<T, Problem> {
        if self.is_empty() { Ok(T::default()) } else { self.read() }
    }

    /// The value that `field` of this body holds, byte for byte as it came. The server checks it where it takes it.
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

    /// The same, checked here.
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

/// JSON text as a `T`, which may borrow from it.
///
/// # Errors
///
/// 400 with the path of the field that is to blame.
pub fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Problem> {
    // The path costs an allocation per field, so it is only looked for once something is wrong.
    serde_json::from_slice(json).or_else(|_| {
        let reader = &mut serde_json::Deserializer::from_slice(json);
        let value =
            serde_path_to_error::deserialize(&mut *reader).map_err(|error| wrong(&error))?;
        reader.end().map_err(|error| malformed(&error))?;
        Ok(value)
    })
}

fn too_deep(field: String) -> Problem {
    Problem::invalid_as(
        ErrorCode::NestingTooDeep,
        field,
        format!("is nested deeper than {MAX_DEPTH}"),
    )
}

fn malformed(error: &serde_json::Error) -> Problem {
    Problem::new(ErrorCode::InvalidBody, format!("the body is not JSON: {error}"))
}

/// What people call what Rust calls otherwise.
const NUMBERS: [(&str, &str); 4] = [
    ("expected u16", "expected a whole number from 0 to 65535"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected i32", "expected a whole number from -2147483648 to 2147483647"),
    ("expected f64", "expected a number"),
];

/// What is wrong with a body, blamed on a field where one is to blame.
fn wrong(error: &serde_path_to_error::Error<serde_json::Error>) -> Problem {
    let inner = error.inner();
    if !inner.is_data() {
        return malformed(inner);
    }
    let mut message = inner.to_string();
    // The position helps nobody who is told the field.
    if let Some(position) = message.rfind(" at line ") {
        message.truncate(position);
    }
    for (rust, words) in NUMBERS {
        if message.ends_with(rust) {
            message = message.replace(rust, words);
        }
    }
    let path = error.path().to_string();
    let path = if path == "." { String::new() } else { path };
    let named = |prefix: &str| {
        message.strip_prefix(prefix)?.split_once('`').map(|(name, _)| name.to_owned())
    };
    let inside = |name: String| match path.as_str() {
        "" => name,
        path if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
        path => format!("{path}.{name}"),
    };
    match (named("unknown field `"), named("missing field `"), named("duplicate field `")) {
        (Some(name), ..) => Problem::invalid_as(ErrorCode::UnknownField, inside(name), message),
        (_, Some(name), _) => Problem::invalid(inside(name), "is required"),
        (.., Some(name)) => Problem::invalid(inside(name), "is given twice"),
        _ => Problem::invalid(path, message),
    }
}

/// Which field of an object in JSON text opens more than `most` lists and objects inside one another, if one does; without a name
/// if the text is no object.
fn too_deep_in(json: &[u8], most: usize) -> Option<String> {
    let (mut depth, mut at) = (0usize, 0);
    // The latest text at the top: while what is inside it is read, the name of a field.
    let mut name = 0..0;
    while let Some(&byte) = json.get(at) {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if depth > most {
                    return Some(String::from_utf8_lossy(&json[name]).into_owned());
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                at += 1;
                let start = at;
                while let Some(&inner) = json.get(at) {
                    match inner {
                        b'"' => break,
                        b'\\' => at += 2,
                        _ => at += 1,
                    }
                }
                if depth == 1 && json[0] == b'{' {
                    name = start..at.min(json.len());
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Reads a field so that an absent one differs from one that is null.
///
/// # Errors
///
/// As the field's own type.
pub fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{job::type_config::TypeConfig, queue::QueueConfig, time::Timestamp};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(clippy::option_option, reason = "absent differs from null")]
    struct Ask<'a> {
        #[serde(rename = "type")]
        kind: String,
        #[serde(borrow)]
        data: &'a RawValue,
        #[serde(default, deserialize_with = "present")]
        expires_at: Option<Option<Timestamp>>,
    }

    fn json(text: &str) -> Body {
        Body::new(Encoding::Json, Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn refusal<'a, T: Deserialize<'a> + std::fmt::Debug>(
        body: &'a Body,
    ) -> (&'static str, Option<String>, String) {
        let problem = body.read::<T>().unwrap_err();
        (problem.code(), problem.field().map(str::to_owned), problem.detail().to_owned())
    }

    #[test]
    fn data_is_taken_byte_for_byte_without_a_copy() {
        let body = json(r#"{"type": "a", "data": {"n":1.0e2,  "s":"\u00e9"} }"#);
        let ask: Ask<'_> = body.read().unwrap();
        let data = body.value(ask.data, "data", 100).unwrap();
        assert_eq!(data, Payload::json(r#"{"n":1.0e2,  "s":"\u00e9"}"#));
        assert!(body.json.as_ptr_range().contains(&data.bytes.as_ptr()));
    }

    #[test]
    fn messagepack_data_is_taken_byte_for_byte() {
        // {"type": "a", "data": uint8 7 written in more bytes than it needs}
        let bytes = [&[0x82, 0xa4][..], b"type", &[0xa1, b'a', 0xa4], b"data", &[0xcc, 7]].concat();
        let body = Body::new(Encoding::MessagePack, bytes.into()).unwrap();
        let ask: Ask<'_> = body.read().unwrap();
        assert_eq!(ask.kind, "a");
        let data = body.value(ask.data, "data", 100).unwrap();
        assert_eq!(
            data,
            Payload { encoding: Encoding::MessagePack, bytes: Bytes::from_static(&[0xcc, 7]) }
        );
    }

    #[test]
    fn absent_differs_from_null() {
        assert_eq!(json(r#"{"type":"a","data":null}"#).read::<Ask<'_>>().unwrap().expires_at, None);
        assert_eq!(
            json(r#"{"type":"a","data":null,"expires_at":null}"#)
                .read::<Ask<'_>>()
                .unwrap()
                .expires_at,
            Some(None)
        );
    }

    #[test]
    fn what_is_wrong_is_blamed_on_its_field() {
        let body = json(r#"{"type":"a","data":1,"priorty":5}"#);
        let (code, field, detail) = refusal::<Ask<'_>>(&body);
        assert_eq!((code, field.as_deref()), ("unknown_field", Some("priorty")));
        assert!(
            detail.starts_with("priorty: unknown field `priorty`, expected one of `type`"),
            "{detail}"
        );

        let body = json(r#"{"type":"a"}"#);
        assert_eq!(
            refusal::<Ask<'_>>(&body),
            ("invalid_field", Some("data".into()), "data: is required".into())
        );
        let body = json(r#"{"type":5,"data":1}"#);
        let (_, field, detail) = refusal::<Ask<'_>>(&body);
        assert_eq!(
            (field.as_deref(), detail.as_str()),
            (Some("type"), "type: invalid type: integer `5`, expected a string")
        );
        let body = json(r#"{"type":"a","data":1,"expires_at":"soon"}"#);
        let (_, field, detail) = refusal::<Ask<'_>>(&body);
        assert_eq!(field.as_deref(), Some("expires_at"));
        assert!(detail.contains("RFC 3339"), "{detail}");
    }

    #[test]
    fn a_wrong_number_is_told_its_bounds() {
        let body = json(r#"{"concurrency":-1}"#);
        let (_, _, detail) = refusal::<TypeConfig>(&body);
        assert_eq!(
            detail,
            "concurrency: invalid value: integer `-1`, expected a whole number from 0 to 4294967295"
        );
    }

    #[test]
    fn a_nested_field_is_named_with_its_path() {
        let body = json(r#"{"constraints":[{"name":"a","rate":{"count":1,"per":2}}]}"#);
        assert_eq!(refusal::<QueueConfig>(&body).1.as_deref(), Some("constraints[0].rate.per"));
        let body =
            json(r#"{"windows":[{"from":"08:00","to":"09:00"},{"from":"08:00","too":"09:00"}]}"#);
        assert_eq!(refusal::<TypeConfig>(&body).1.as_deref(), Some("windows[1].too"));
    }

    #[test]
    fn what_is_not_json_is_said_to_be_so() {
        for text in ["", "{", "{}x", "nul", "\u{7f}"] {
            assert_eq!(refusal::<TypeConfig>(&json(text)).0, "invalid_body", "{text}");
        }
    }

    #[test]
    fn a_value_may_be_64_deep_and_no_deeper_and_brackets_in_texts_do_not_count() {
        for (depth, fits) in [(64, true), (65, false)] {
            let body = json(&format!(
                r#"{{"type":"a","data":{}1{}}}"#,
                "[".repeat(depth),
                "]".repeat(depth)
            ));
            let ask: Ask<'_> = body.read().unwrap();
            assert_eq!(
                body.checked(ask.data, "data", 1000).map_err(|p| p.code()).err(),
                (!fits).then_some("nesting_too_deep")
            );
        }
        let hostile = Bytes::from("[".repeat(100_000));
        assert_eq!(Body::new(Encoding::Json, hostile).unwrap_err().code(), "nesting_too_deep");
        let hostile = format!(r#"{{"type":"a","data":{}"#, "[".repeat(1000));
        assert_eq!(Body::new(Encoding::Json, hostile.into()).unwrap_err().field(), Some("data"));
        let harmless = format!(r#"["{}", "\"{}"]"#, "[".repeat(200), "{".repeat(200));
        assert!(Body::new(Encoding::Json, harmless.into()).is_ok());
    }

    #[test]
    fn data_over_its_bound_is_refused() {
        let body = json(r#"{"type":"a","data":"1234"}"#);
        let ask: Ask<'_> = body.read().unwrap();
        assert!(body.value(ask.data, "data", 6).is_ok());
        let problem = body.value(ask.data, "data", 5).unwrap_err();
        assert_eq!(
            (problem.status().as_u16(), problem.code(), problem.field()),
            (413, "data_too_large", Some("data"))
        );
    }
}
