//! The dashboard: one page without external resources, which calls the API like any client.
//!
//! It has no rights of its own: a token that its user enters stays in that browser tab. Its
//! Content-Security-Policy allows scripts and styles by hash, so data of a job can never run.

use axum::{
    Router,
    http::{HeaderName, HeaderValue, header},
    routing::get,
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use url::Url;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The operator's options of the dashboard.
#[derive(Clone, Debug)]
pub struct DashboardOptions {
    /// The title.
    pub title: String,
    /// A page of the operator, embedded in the dashboard.
    pub embed: Option<Url>,
}

impl Default for DashboardOptions {
    fn default() -> Self {
        Self { title: "tidegate".into(), embed: None }
    }
}

/// The route of the page.
pub fn route(options: &DashboardOptions) -> Router {
    let page = Bytes::from(page(options));
    let policy = HeaderValue::from_str(&policy(options)).expect("a policy of ASCII");
    let served = move || {
        let (page, policy) = (page.clone(), policy.clone());
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (header::CONTENT_SECURITY_POLICY, policy),
            (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
            (HeaderName::from_static("x-frame-options"), HeaderValue::from_static("DENY")),
        ];
        async move { (headers, page) }
    };
    Router::new().route("/", get(served))
}

/// The page with its placeholders replaced.
fn page(options: &DashboardOptions) -> String {
    let embed = options.embed.as_ref().map(|url| {
        format!(
            "<iframe id=\"embed\" title=\"embedded page\" src=\"{}\"></iframe>",
            escaped(url.as_str())
        )
    });
    PAGE.replace("{{title}}", &escaped(&options.title))
        .replace("{{embed}}", &embed.unwrap_or_default())
        .replace("{{version}}", env!("CARGO_PKG_VERSION"))
        .replace("{{style}}", STYLE)
        .replace("{{script}}", SCRIPT)
}

/// The policy: the page may run its own script, call its own server, embed the operator's page.
fn policy(options: &DashboardOptions) -> String {
    let hash = |text: &str| format!("'sha256-{}'", BASE64.encode(Sha256::digest(text)));
    let frame = options
        .embed
        .as_ref()
        .map_or_else(|| "'none'".to_owned(), |url| url.origin().ascii_serialization());
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; \
         frame-src {frame}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE),
    )
}

/// Text escaped for HTML and its attributes. Braces are escaped too, so that it is no placeholder.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
        .replace('{', "&#123;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_cannot_inject_html_or_placeholders() {
        let title = "<script>alert(1)</script>{{script}}".to_owned();
        let embed = Some("https://example.com/a?b='\"><script>".parse().unwrap());
        let page = page(&DashboardOptions { title, embed });
        assert_eq!((page.matches("<script").count(), page.matches(SCRIPT).count()), (1, 1));
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    }

    #[test]
    fn the_policy_allows_only_the_parts_of_the_page() {
        let plain = policy(&DashboardOptions::default());
        assert!(
            plain.starts_with("default-src 'none'; script-src 'sha256-")
                && plain.contains("frame-src 'none'"),
            "{plain}"
        );
        assert!(!plain.contains("unsafe"));
        let embedding = policy(&DashboardOptions {
            embed: Some("https://example.com/board".parse().unwrap()),
            ..DashboardOptions::default()
        });
        assert!(embedding.contains("frame-src https://example.com;"), "{embedding}");
    }

    #[test]
    fn the_page_needs_no_external_resources() {
        let page = page(&DashboardOptions::default());
        for outside in ["src=", "href=\"http", "@import", "url(", "import "] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(
            !page.contains(" style=") && !page.contains(" onclick="),
            "inline styles and handlers are refused by the policy"
        );
        assert!(
            page.contains(SCRIPT) && page.contains(STYLE) && !page.contains("{{"),
            "every placeholder is replaced"
        );
    }
}
