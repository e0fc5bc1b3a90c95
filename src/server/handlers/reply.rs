//! Answers, in the encoding that the client accepts.

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    error::Problem,
    media::{self, Accept},
    msgpack,
};
use tidegate_core::job::Encoding;

/// How many headers an answer usually has, so that its map is allocated once.
const USUAL_HEADERS: usize = 8;

/// An answer: a status, headers, and a value to encode.
#[derive(Debug)]
pub struct Reply<T> {
    status: StatusCode,
    encoding: Encoding,
    headers: HeaderMap,
    value: T,
}

impl Accept {
    /// The answer `value`, with status 200.
    pub fn ok<T: Serialize>(self, value: T) -> Reply<T> {
        self.reply(StatusCode::OK, value)
    }

    /// The answer `value`.
    pub fn reply<T: Serialize>(self, status: StatusCode, value: T) -> Reply<T> {
        Reply { status, encoding: self.0, headers: HeaderMap::with_capacity(USUAL_HEADERS), value }
    }
}

impl<T> Reply<T> {
    /// The same answer with a header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    /// The same answer with the `ETag` of `version`.
    #[must_use]
    pub fn etag(self, version: u64) -> Self {
        self.header(header::ETAG, &format!("\"v{version}\""))
    }
}

impl<T: Serialize> IntoResponse for Reply<T> {
    fn into_response(self) -> Response {
        match encode(&self.value, self.encoding) {
            Ok(bytes) => {
                let mut response = Response::new(bytes.into());
                *response.status_mut() = self.status;
                *response.headers_mut() = self.headers;
                response.headers_mut().insert(header::CONTENT_TYPE, media::name(self.encoding));
                response
            }
            Err(problem) => problem.into_response(),
        }
    }
}

/// `value` as bytes.
///
/// # Errors
///
/// 500 if a stored value in it is damaged.
pub fn encode<T: Serialize>(value: &T, encoding: Encoding) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::with_capacity(1024);
    match encoding {
        Encoding::Json => serde_json::to_writer(&mut bytes, value)
            .map_err(|error| Problem::internal(error.to_string()))?,
        Encoding::MessagePack => {
            let mut writer =
                rmp_serde::Serializer::new(&mut bytes).with_struct_map().with_human_readable();
            value.serialize(&mut writer).map_err(|error| Problem::internal(error.to_string()))?;
            bytes = msgpack::join(&bytes);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_api::AnyValue;
    use tidegate_core::job::Payload;

    use super::*;

    #[derive(Serialize)]
    struct Answer {
        id: u8,
        data: AnyValue,
        at: tidegate_core::time::Timestamp,
    }

    fn answer(payload: &Payload, encoding: Encoding) -> Vec<u8> {
        encode(
            &Answer {
                id: 1,
                data: AnyValue::new(payload, encoding),
                at: tidegate_core::time::Timestamp::EPOCH,
            },
            encoding,
        )
        .unwrap()
    }

    #[test]
    fn stored_bytes_are_answered_verbatim_in_their_own_encoding() {
        let text = Payload::json(r#"{"n": 1.0e2,  "s":"\u00e9"}"#);
        let shown = String::from_utf8(answer(&text, Encoding::Json)).unwrap();
        assert_eq!(
            shown,
            r#"{"id":1,"data":{"n": 1.0e2,  "s":"\u00e9"},"at":"1970-01-01T00:00:00.000Z"}"#
        );

        let packed =
            Payload { encoding: Encoding::MessagePack, bytes: Bytes::from_static(&[0xcd, 0, 7]) };
        let shown = answer(&packed, Encoding::MessagePack);
        let wanted = [
            &[0x83, 0xa2][..],
            b"id",
            &[1, 0xa4],
            b"data",
            &[0xcd, 0, 7, 0xa2],
            b"at",
            &[0xb8],
            b"1970-01-01T00:00:00.000Z",
        ]
        .concat();
        assert_eq!(shown, wanted);
    }

    #[test]
    fn stored_bytes_are_converted_for_the_other_encoding() {
        let packed = Payload {
            encoding: Encoding::MessagePack,
            bytes: Bytes::from_static(&[0xc4, 3, 1, 2, 3]),
        };
        let shown: serde_json::Value =
            serde_json::from_slice(&answer(&packed, Encoding::Json)).unwrap();
        assert_eq!(shown["data"], serde_json::json!({"$binary": "AQID"}));
        let shown = answer(&Payload::json("[1]"), Encoding::MessagePack);
        assert!(shown.windows(3).any(|bytes| bytes == [b'a', 0x91, 1]), "{shown:?}");
    }

    #[test]
    fn a_damaged_stored_value_fails_only_its_own_answer() {
        let damaged = AnyValue::new(&Payload::json("{\"a\":"), Encoding::Json);
        assert_eq!(
            encode(&damaged, Encoding::Json).unwrap_err().status(),
            StatusCode::INTERNAL_SERVER_ERROR
        );
    }
}
