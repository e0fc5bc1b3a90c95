//! The console: three files without external resources, which call the API like any client.
//!
//! It has no rights of its own: a token that its user enters stays in that browser tab. Its
//! Content-Security-Policy allows scripts and styles of these files alone, so data of a job can
//! never run.
//!
//! `dist` has the built files. Their names are relative, so a proxy may serve the console below a
//! prefix that it removes.

pub mod sign_in;

use std::collections::BTreeMap;

use axum::{
    Router,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use url::Url;

use crate::{
    packed_file::{PackedFile, packed_file},
    settings,
};

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

/// The files, in the order of [`PATHS`].
static FILES: [PackedFile; 3] = [
    packed_file!("index.html", "text/html; charset=utf-8"),
    packed_file!("console.js", "text/javascript; charset=utf-8"),
    packed_file!("console.css", "text/css; charset=utf-8"),
];

/// The routes of the console.
pub fn routes(options: &ConsoleOptions) -> Router {
    let policy = HeaderValue::from_str(&policy(options)).expect("a policy of ASCII");
    PATHS.into_iter().zip(&FILES).fold(Router::new(), |routes, (path, file)| {
        let policy = policy.clone();
        routes.route(
            path,
            get(move |headers: HeaderMap| async move { answer(file, &headers, policy) }),
        )
    })
}

/// The answer to a request with these headers: `file` with `policy`. The browser takes the policy
/// even from the answer that it has the file, because a setting may have changed it.
fn answer(file: &PackedFile, request: &HeaderMap, policy: HeaderValue) -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ];
    (headers, file.answer(request)).into_response()
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
        http::{Request, StatusCode},
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
        let built = [
            include_bytes!("dist/index.html").as_slice(),
            include_bytes!("dist/console.js"),
            include_bytes!("dist/console.css"),
        ];
        for ((path, file), built) in PATHS.into_iter().zip(&FILES).zip(built) {
            let (status, headers, plain) = ask(path, &[]).await;
            assert_eq!((status, &*plain), (StatusCode::OK, built), "{path}");
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
        let page = String::from_utf8(FILES[0].unpacked()).unwrap();
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
        let style = String::from_utf8(FILES[2].unpacked()).unwrap();
        for refused in ["@import", "url(http", "url(//"] {
            assert!(!style.contains(refused), "{refused}");
        }
    }
}
