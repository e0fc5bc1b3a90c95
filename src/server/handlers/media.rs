//! The encoding of a request's body, and of its answer.
//!
//! Two are supported, JSON and MessagePack. Without `Accept`, the answer has the encoding of the
//! request, so that `Content-Type` alone is enough to use MessagePack.

use std::convert::Infallible;
use tidegate_core::error_code::ErrorCode;

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    http::{HeaderMap, HeaderValue, header, request::Parts},
};

use mediatype::{MediaType, MediaTypeList, ReadParams as _, names};

use super::error::Problem;
use tidegate_core::job::Encoding;

/// The media type of an answer.
pub fn name(encoding: Encoding) -> HeaderValue {
    HeaderValue::from_static(match encoding {
        Encoding::Json => "application/json",
        Encoding::MessagePack => "application/msgpack",
    })
}

/// The media type of a problem document.
pub(crate) fn problem_name(encoding: Encoding) -> HeaderValue {
    HeaderValue::from_static(match encoding {
        Encoding::Json => "application/problem+json",
        Encoding::MessagePack => "application/problem+msgpack",
    })
}

/// The encoding of `media`, whatever its parameters.
fn known(media: &MediaType<'_>) -> Option<Encoding> {
    if media.ty != names::APPLICATION {
        return None;
    }
    match media.suffix.unwrap_or(media.subty).as_str().to_ascii_lowercase().as_str() {
        "json" => Some(Encoding::Json),
        "msgpack" => Some(Encoding::MessagePack),
        "x-msgpack" | "vnd.msgpack" if media.suffix.is_none() => Some(Encoding::MessagePack),
        _ => None,
    }
}

/// The media type of a request's body without its parameters, in lower case; empty if the header is
/// absent or malformed.
pub(crate) fn essence(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = value.and_then(|value| MediaType::parse(value).ok());
    media.map(|media| media.essence().to_string().to_ascii_lowercase()).unwrap_or_default()
}

/// The encoding of a request's body by its `Content-Type`. Without one it is JSON, which matters
/// only for the answer: a body needs the header.
///
/// # Errors
///
/// 415 for any other media type, and for a charset other than UTF-8, in which JSON is written (RFC
/// 8259, 8.1).
pub(crate) fn of_content(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let Some(value) =
        headers.get(header::CONTENT_TYPE).filter(|value| *value != "application/json")
    else {
        return Ok(Encoding::Json);
    };
    let text = value.to_str().unwrap_or_default();
    let utf8 = |media: &MediaType<'_>| {
        let charset = media.get_param(names::CHARSET);
        charset.is_none_or(|charset| charset.unquoted_str().eq_ignore_ascii_case("utf-8"))
    };
    let media = MediaType::parse(text).ok().filter(utf8);
    media.as_ref().and_then(known).ok_or_else(|| {
        let detail = format!(
            "Content-Type {text:?} is not supported; send application/json or application/msgpack"
        );
        Problem::new(ErrorCode::UnsupportedMediaType, detail)
    })
}

/// The encoding of the answer to a request with these headers.
///
/// # Errors
///
/// 406 if neither encoding is acceptable.
pub(crate) fn of_answer(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let own = of_content(headers).unwrap_or_default();
    // An empty header allows everything, as does an absent one.
    let mut accepted = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok().filter(|text| !text.trim().is_empty()))
        .peekable();
    if accepted.peek().is_none() {
        return Ok(own);
    }
    // The specificity and the weight of the most specific range for each encoding.
    let mut best = [None::<(u8, f32)>; 2];
    for range in accepted.flat_map(MediaTypeList::new).filter_map(Result::ok) {
        let weight = range
            .get_param(names::Q)
            .and_then(|weight| weight.as_str().parse::<f32>().ok())
            .unwrap_or(1.0);
        for encoding in [Encoding::Json, Encoding::MessagePack] {
            let specificity = match (range.ty.as_str(), range.subty.as_str()) {
                ("*", "*") => 1,
                (kind, "*") if kind.eq_ignore_ascii_case("application") => 2,
                _ if known(&range) == Some(encoding) => 3,
                _ => continue,
            };
            let slot = &mut best[encoding as usize];
            if slot.is_none_or(|(had, _)| specificity > had) {
                *slot = Some((specificity, weight));
            }
        }
    }
    let weight = |encoding: Encoding| best[encoding as usize].map_or(0.0, |(_, weight)| weight);
    let other = if own == Encoding::Json { Encoding::MessagePack } else { Encoding::Json };
    match (weight(own), weight(other)) {
        (mine, theirs) if mine > 0.0 && mine >= theirs => Ok(own),
        (_, theirs) if theirs > 0.0 => Ok(other),
        _ => {
            let detail =
                "answers are application/json or application/msgpack; Accept allows neither";
            Err(Problem::new(ErrorCode::NotAcceptable, detail))
        }
    }
}

/// The encoding of the answer, from the request's headers.
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
    fn a_body_is_json_unless_its_content_type_differs() {
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
    fn an_answer_follows_accept_or_the_request_encoding() {
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
    fn neither_encoding_acceptable_is_refused() {
        for accept in ["text/csv", "application/json;q=0"] {
            assert_eq!(
                of_answer(&headers(&[(header::ACCEPT, accept)])).unwrap_err().code(),
                "not_acceptable",
                "{accept}"
            );
        }
    }
}
