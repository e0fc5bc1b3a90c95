//! The console: three files without external resources, which call the API like any client.
//!
//! It has no rights of its own: a token that its user enters stays in that browser tab. Its
//! Content-Security-Policy allows scripts and styles of these files alone, so data of a job can
//! never run.
//!
//! `dist` has the built files. The build of this crate compresses them, see `build.rs`; their names
//! are relative, so a proxy may serve the console below a prefix that it removes.

pub mod sign_in;

use std::{collections::BTreeMap, sync::LazyLock};

use axum::{
    Router,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use url::Url;

use crate::settings;

/// The paths of the console.
pub(crate) const PATHS: [&str; 3] = ["/", "/console.js", "/console.css"];

/// The operator's options of the console.
#[derive(Clone, Debug)]
pub struct ConsoleOptions {
    /// The title.
    pub title: String,
    /// A page of the operator, embedded in the first page.
    pub embed: Option<Url>,
    /// Whether the console offers no changes.
    pub read_only: bool,
    /// The URL of a trace; `{trace_id}` is its id.
    pub trace_url: Option<String>,
    /// The consoles of other servers, by name.
    pub servers: BTreeMap<String, Url>,
}

impl Default for ConsoleOptions {
    fn default() -> Self {
        Self {
            title: "tidegate".into(),
            embed: None,
            read_only: false,
            trace_url: None,
            servers: BTreeMap::new(),
        }
    }
}

impl From<&settings::Console> for ConsoleOptions {
    fn from(settings: &settings::Console) -> Self {
        let settings::Console { title, page_url, read_only, trace_url, servers } = settings.clone();
        Self { title, embed: page_url, read_only, trace_url, servers }
    }
}

/// A file of the console.
struct File {
    media: &'static str,
    bytes: &'static [u8],
    /// The same, compressed with gzip.
    packed: &'static [u8],
    /// Made with the first request.
    tag: LazyLock<HeaderValue>,
}

macro_rules! file {
    ($name:literal, $media:literal) => {
        File {
            media: $media,
            bytes: include_bytes!(concat!("dist/", $name)),
            packed: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz")),
            tag: LazyLock::new(|| tag(include_bytes!(concat!("dist/", $name)))),
        }
    };
}

/// The files, in the order of [`PATHS`].
static FILES: [File; 3] = [
    file!("index.html", "text/html; charset=utf-8"),
    file!("console.js", "text/javascript; charset=utf-8"),
    file!("console.css", "text/css; charset=utf-8"),
];

/// The `ETag` of a file with these bytes. It is weak, because the compressed form has it too.
fn tag(bytes: &[u8]) -> HeaderValue {
    let hash = BASE64.encode(&Sha256::digest(bytes)[..12]);
    HeaderValue::from_str(&format!("W/\"{hash}\"")).expect("a hash of ASCII")
}

/// The routes of the console.
pub fn routes(options: &ConsoleOptions) -> Router {
    let policy = HeaderValue::from_str(&policy(options)).expect("a policy of ASCII");
    PATHS.into_iter().zip(&FILES).fold(Router::new(), |routes, (path, file)| {
        let policy = policy.clone();
        routes.route(
            path,
            get(move |headers: HeaderMap| async move { file.answer(&headers, policy) }),
        )
    })
}

impl File {
    /// The answer to a request with these headers: the file, unless the browser has it.
    fn answer(&self, request: &HeaderMap, policy: HeaderValue) -> Response {
        let headers = [
            (header::ETAG, self.tag.clone()),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (header::VARY, HeaderValue::from_static("accept-encoding")),
        ];
        let of_page = [
            (header::CONTENT_TYPE, HeaderValue::from_static(self.media)),
            (header::CONTENT_SECURITY_POLICY, policy),
            (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
            (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
            (
                HeaderName::from_static("cross-origin-opener-policy"),
                HeaderValue::from_static("same-origin"),
            ),
        ];
        if is_known(request, &self.tag) {
            // The browser takes the policy from here: a setting may have changed it.
            return (StatusCode::NOT_MODIFIED, headers, of_page).into_response();
        }
        let is_packed = accepts_gzip(request);
        let bytes = Bytes::from_static(if is_packed { self.packed } else { self.bytes });
        let mut answer = (headers, of_page, bytes).into_response();
        if is_packed {
            let gzip = HeaderValue::from_static("gzip");
            answer.headers_mut().insert(header::CONTENT_ENCODING, gzip);
        }
        answer
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

/// The policy: the page may run its own script, call its own server, embed the operator's page.
fn policy(options: &ConsoleOptions) -> String {
    let frame = options
        .embed
        .as_ref()
        .map_or_else(|| "'none'".to_owned(), |url| url.origin().ascii_serialization());
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self' data:; frame-src {frame}; base-uri 'none'; form-action 'self'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use axum::{
        body::{self, Body},
        http::Request,
    };
    use flate2::read::GzDecoder;
    use tower::ServiceExt as _;

    use super::*;

    /// The answer to a request for `path` with these headers.
    async fn ask(path: &str, headers: &[(HeaderName, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let routes = routes(&ConsoleOptions::default());
        let answer = routes.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        let bytes = body::to_bytes(body, usize::MAX).await.unwrap();
        (parts.status, parts.headers, bytes.to_vec())
    }

    #[tokio::test]
    async fn a_compressed_file_has_the_same_content() {
        for (path, file) in PATHS.into_iter().zip(&FILES) {
            let (status, headers, plain) = ask(path, &[]).await;
            assert_eq!((status, &*plain), (StatusCode::OK, file.bytes), "{path}");
            assert!(!headers.contains_key(header::CONTENT_ENCODING), "{path}");
            let (_, headers, packed) = ask(path, &[(header::ACCEPT_ENCODING, "br, gzip")]).await;
            assert_eq!(headers[header::CONTENT_ENCODING], "gzip");
            assert_eq!(headers[header::CONTENT_TYPE], file.media);
            assert!(packed.len() < plain.len(), "{path}");
            let mut read = Vec::new();
            GzDecoder::new(&*packed).read_to_end(&mut read).unwrap();
            assert_eq!(read, plain, "{path}");
        }
    }

    #[tokio::test]
    async fn a_file_that_the_browser_has_is_not_sent_again() {
        let (_, headers, _) = ask("/console.js", &[]).await;
        let tag = headers[header::ETAG].to_str().unwrap();
        for known in [tag, "*", &format!("\"other\", {tag}"), tag.trim_start_matches("W/")] {
            let (status, headers, bytes) =
                ask("/console.js", &[(header::IF_NONE_MATCH, known)]).await;
            assert_eq!((status, bytes.len()), (StatusCode::NOT_MODIFIED, 0), "{known}");
            assert_eq!(headers[header::ETAG], tag);
            assert!(headers.contains_key(header::CONTENT_SECURITY_POLICY), "it may have changed");
        }
        let (status, ..) = ask("/console.css", &[(header::IF_NONE_MATCH, tag)]).await;
        assert_eq!(status, StatusCode::OK, "another file");
    }

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

    #[test]
    fn the_policy_allows_only_the_files_of_the_console() {
        let plain = policy(&ConsoleOptions::default());
        assert!(plain.starts_with("default-src 'none'; script-src 'self';"), "{plain}");
        assert!(plain.contains("frame-src 'none'") && !plain.contains("unsafe"), "{plain}");
        let embed = Some("https://example.com/board".parse().unwrap());
        let embedding = policy(&ConsoleOptions { embed, ..ConsoleOptions::default() });
        assert!(embedding.contains("frame-src https://example.com;"), "{embedding}");
    }

    #[test]
    fn the_page_needs_no_external_resources() {
        let page = str::from_utf8(FILES[0].bytes).unwrap();
        for refused in [
            "src=\"http",
            "href=\"http",
            "src=\"/",
            "href=\"/",
            " style=",
            " onclick=",
            "<style",
            "@import",
        ] {
            assert!(!page.contains(refused), "{refused}");
        }
        let scripts = page.matches("<script").count();
        assert_eq!(page.matches("src=\"./console.js\"").count(), scripts, "none is inline");
        let style = str::from_utf8(FILES[2].bytes).unwrap();
        for refused in ["@import", "url(http", "url(//"] {
            assert!(!style.contains(refused), "{refused}");
        }
    }
}
