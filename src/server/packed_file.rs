//! Files that the program contains, compressed by `build.rs`. Clients that do not accept gzip are
//! few, so only they cost the time of unpacking, and the program contains each file once.

use std::{io::Read as _, sync::LazyLock};

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use bytes::Bytes;
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

/// A file of the program.
pub struct PackedFile {
    /// Its media type.
    pub media: &'static str,
    /// Its content, compressed with gzip.
    pub packed: &'static [u8],
    /// Its `ETag`, made with the first request.
    pub tag: LazyLock<HeaderValue>,
}

/// A [`PackedFile`]: its name, without folders, and its media type.
macro_rules! packed_file {
    ($name:literal, $media:literal) => {{
        const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz"));
        $crate::packed_file::PackedFile {
            media: $media,
            packed: PACKED,
            tag: std::sync::LazyLock::new(|| $crate::packed_file::tag(PACKED)),
        }
    }};
}
pub(crate) use packed_file;

/// The `ETag` of a file. It is weak, because both forms of the file have it.
pub fn tag(packed: &[u8]) -> HeaderValue {
    let hash = BASE64.encode(&Sha256::digest(packed)[..12]);
    HeaderValue::from_str(&format!("W/\"{hash}\"")).expect("a hash of ASCII")
}

impl PackedFile {
    /// The answer to a request with these headers: 200 with the file, compressed if the client
    /// accepts that; 304 if the client has it.
    pub fn answer(&self, request: &HeaderMap) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(self.media)),
            (header::ETAG, self.tag.clone()),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (header::VARY, HeaderValue::from_static("accept-encoding")),
        ];
        if is_known(request, &self.tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        if accepts_gzip(request) {
            let gzip = [(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))];
            return (headers, gzip, Bytes::from_static(self.packed)).into_response();
        }
        (headers, self.unpacked()).into_response()
    }

    /// The content.
    pub fn unpacked(&self) -> Vec<u8> {
        let mut content = Vec::new();
        GzDecoder::new(self.packed).read_to_end(&mut content).expect("the build compressed it");
        content
    }
}

/// Whether `If-None-Match` names `tag`. Weak and strong tags are equal (RFC 9110, 13.1.2).
fn is_known(request: &HeaderMap, tag: &HeaderValue) -> bool {
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let own = tag.to_str().map(opaque).unwrap_or_default();
    let tags = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    tags.flat_map(|tags| tags.split(',')).any(|tag| tag.trim() == "*" || opaque(tag) == own)
}

/// Whether `Accept-Encoding` allows gzip: by its name, else by `*` (RFC 9110, 12.5.3).
fn accepts_gzip(request: &HeaderMap) -> bool {
    let lists = request.get_all(header::ACCEPT_ENCODING).iter();
    let mut by_name = None;
    let mut by_star = None;
    for coding in lists.filter_map(|list| list.to_str().ok()).flat_map(|list| list.split(',')) {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = parameters.trim().strip_prefix("q=").map(str::parse::<f32>);
        let is_allowed = !matches!(weight, Some(Ok(weight)) if weight <= 0.0);
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => by_name = Some(is_allowed),
            "*" => by_star = Some(is_allowed),
            _ => {}
        }
    }
    by_name.or(by_star).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_follows_accept_encoding() {
        let accepts = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            accepts_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)]))
        };
        for (value, accepted) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("*", true),
            ("", false),
            ("br", false),
            ("gzip;q=0, *", false),
            ("identity;q=1, *;q=0", false),
        ] {
            assert_eq!(accepts(value), accepted, "{value}");
        }
    }
}
