//! Which encoding a body has, and which one its answer is to have.
//!
//! Two are known, JSON and MessagePack. A client that states no preference is answered in the
//! encoding it wrote in, so that `Content-Type` alone is enough to speak MessagePack.

use std::convert::Infallible;
use tidegate_core::error_code::ErrorCode;

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    http::{HeaderMap, HeaderValue, header, request::Parts},
};

use super::error::Problem;
use tidegate_core::job::Encoding;

/// The media types of answers and of problems.
pub fn name(encoding: Encoding) -> HeaderValue {
    HeaderValue::from_static(match encoding {
        Encoding::Json => "application/json",
        Encoding::MessagePack => "application/msgpack",
    })
}

/// The media type of a problem document.
pub fn problem_name(encoding: Encoding) -> HeaderValue {
    HeaderValue::from_static(match encoding {
        Encoding::Json => "application/problem+json",
        Encoding::MessagePack => "application/problem+msgpack",
    })
}

/// The encoding that a media type without its parameters names.
fn known(media: &str) -> Option<Encoding> {
    let subtype = media.strip_prefix("application/")?;
    match subtype {
        "json" => Some(Encoding::Json),
        "msgpack" | "x-msgpack" | "vnd.msgpack" => Some(Encoding::MessagePack),
        _ if subtype.ends_with("+json") => Some(Encoding::Json),
        _ if subtype.ends_with("+msgpack") => Some(Encoding::MessagePack),
        _ => None,
    }
}

/// The encoding of a request's body: JSON unless `Content-Type` says otherwise.
///
/// # Errors
///
/// 415 for any other media type.
pub fn of_content(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let Some(value) =
        headers.get(header::CONTENT_TYPE).filter(|value| *value != "application/json")
    else {
        return Ok(Encoding::Json);
    };
    let media = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    known(&media).ok_or_else(|| {
        let detail = format!(
            "Content-Type {media:?} is not known here; send application/json or application/msgpack"
        );
        Problem::new(ErrorCode::UnsupportedMediaType, detail)
    })
}

/// The encoding of the answer to a request with these headers.
///
/// # Errors
///
/// 406 if neither encoding is acceptable.
pub fn of_answer(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let own = of_content(headers).unwrap_or_default();
    let mut accepted =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
    if accepted.peek().is_none() {
        return Ok(own);
    }
    // (how specific the range is, its weight) of the best range for each encoding.
    let mut best = [None::<(u8, f32)>; 2];
    for range in accepted.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';');
        let media = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
        let weight = parts
            .find_map(|part| part.trim().strip_prefix("q=")?.parse::<f32>().ok())
            .unwrap_or(1.0);
        for encoding in [Encoding::Json, Encoding::MessagePack] {
            let specific = match media.as_str() {
                "*/*" => 1,
                "application/*" => 2,
                other if known(other) == Some(encoding) => 3,
                _ => continue,
            };
            let slot = &mut best[encoding as usize];
            if slot.is_none_or(|(had, _)| specific > had) {
                *slot = Some((specific, weight));
            }
        }
    }
    let weight = |encoding: Encoding| best[encoding as usize].map_or(0.0, |(_, weight)| weight);
    let other = if own == Encoding::Json { Encoding::MessagePack } else { Encoding::Json };
    match (weight(own), weight(other)) {
        (mine, theirs) if mine > 0.0 && mine >= theirs => Ok(own),
        (_, theirs) if theirs > 0.0 => Ok(other),
        _ => {
            let detail = "answers come as application/json or application/msgpack, and Accept allows neither";
            Err(Problem::new(ErrorCode::NotAcceptable, detail))
        }
    }
}

/// The encoding that the client wants its answer in.
#[derive(Clone, Copy, Debug)]
pub struct Accept(pub Encoding);

impl<S: Sync> FromRequestParts<S> for Accept {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        of_answer(&parts.headers).map(Self)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Accept {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(of_answer(&parts.headers).ok().map(Self))
    }
}

#[cfg(test)]
mod tests {
    use Encoding::{Json, MessagePack};

    use super::*;

    fn headers(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_body_is_json_unless_its_type_says_otherwise() {
        for (media, encoding) in [
            ("application/json; charset=utf-8", Json),
            ("application/merge-patch+json", Json),
            ("Application/MsgPack", MessagePack),
            ("application/x-msgpack", MessagePack),
            ("application/vnd.msgpack", MessagePack),
        ] {
            assert_eq!(
                of_content(&headers(&[(header::CONTENT_TYPE, media)])).unwrap(),
                encoding,
                "{media}"
            );
        }
        assert_eq!(of_content(&HeaderMap::new()).unwrap(), Json);
        let refused = of_content(&headers(&[(header::CONTENT_TYPE, "text/csv")])).unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.code()), (415, "unsupported_media_type"));
    }

    #[test]
    fn an_answer_follows_accept_and_else_the_request() {
        for (accept, content, encoding) in [
            (None, None, Json),
            (None, Some("application/msgpack"), MessagePack),
            (Some("*/*"), Some("application/msgpack"), MessagePack),
            (Some("*/*"), None, Json),
            (Some("application/json"), Some("application/msgpack"), Json),
            (Some("application/msgpack"), None, MessagePack),
            (Some("application/msgpack;q=0.5, application/json;q=0.4"), None, MessagePack),
            (Some("application/json;q=0, */*"), None, MessagePack),
            (Some("text/html, */*;q=0.8"), None, Json),
            (Some("application/problem+json"), None, Json),
        ] {
            let pairs: Vec<_> = accept
                .map(|v| (header::ACCEPT, v))
                .into_iter()
                .chain(content.map(|v| (header::CONTENT_TYPE, v)))
                .collect();
            assert_eq!(of_answer(&headers(&pairs)).unwrap(), encoding, "{accept:?} {content:?}");
        }
    }

    #[test]
    fn a_client_that_wants_neither_encoding_is_told() {
        for accept in ["text/csv", "application/json;q=0"] {
            assert_eq!(
                of_answer(&headers(&[(header::ACCEPT, accept)])).unwrap_err().code(),
                "not_acceptable",
                "{accept}"
            );
        }
    }
}
