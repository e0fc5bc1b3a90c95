//! What a request must show before its route is looked at: that no page of another site sent it,
//! and, while the server is open (it never had a token), that it comes from this machine.
//!
//! A server that only this machine can reach is still exposed to web pages in this machine's
//! browser. A page can make its own host name resolve to this machine (DNS rebinding). The browser
//! then treats the server as the page's own site, and lets the page read and change everything. The
//! `Host` header reveals this: it still has the name of the page.
//!
//! A reverse proxy on this machine makes an open server reachable from everywhere, so a request
//! that a proxy has marked is never anonymous.

use std::sync::Arc;
use tidegate_core::error_code::ErrorCode;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, header, uri::Authority},
    response::{IntoResponse, Response},
};
use url::{Origin, Url};

use super::{access, error::Problem, health};
use crate::auth::{AuthError, Authenticate, local::is_this_machine};

/// Headers by which a proxy marks the requests that it passes on, with `X-Forwarded-*`.
const PROXY_HEADERS: [&str; 3] = ["forwarded", "via", "x-real-ip"];
/// The beginning of the names of the others.
const FORWARDED: &str = "x-forwarded";

/// What decides which hosts a request may name.
pub struct Hosts {
    auth: Arc<dyn Authenticate>,
    /// Where browsers reach the server.
    public: Option<Origin>,
}

impl Hosts {
    /// For a server with these credentials that is reached at `public_url`.
    pub fn new(auth: Arc<dyn Authenticate>, public_url: &str) -> Self {
        Self { auth, public: public_url.parse::<Url>().ok().map(|url| url.origin()) }
    }

    /// The answer to a request that must not reach its route: a change by a page of another site,
    /// and, while the server is open, a request for another host or one that came through a proxy.
    /// With credentials, every host name is accepted.
    pub fn refusal(&self, request: &Request) -> Option<Response> {
        if self.is_foreign_page(request) {
            let detail = "a page of another site must not change anything on this server";
            return Some(Problem::new(ErrorCode::CrossSite, detail).into_response());
        }
        if !self.auth.serves_this_machine_alone()
            || health::OPEN_ROUTES.contains(&request.uri().path())
        {
            return None;
        }
        if let Some(name) = foreign_host(request) {
            let detail = format!(
                "without tokens this server accepts only requests for this machine, and {name:?} \
                 is another host: create a token"
            );
            return Some(Problem::new(ErrorCode::HostNotAllowed, detail).into_response());
        }
        let name = proxy_header(request.headers())?;
        let detail = format!(
            "the request came through a proxy (it has the header {name}), and without tokens this \
             server accepts only requests from this machine: create a token"
        );
        let refused = AuthError::Refused(detail);
        Some(access::unknown(&refused, request.headers()).into_response())
    }

    /// Whether a browser sends this change for a page of another site. It is refused: otherwise
    /// any site that the operator visits could change an open server, and use a password that the
    /// browser remembers.
    ///
    /// Browsers send `Sec-Fetch-Site` to loopback and over HTTPS only. Without it, `Origin`
    /// decides, which browsers send with every change.
    fn is_foreign_page(&self, request: &Request) -> bool {
        let headers = request.headers();
        if request.method().is_safe() {
            return false;
        }
        if let Some(site) = headers.get("sec-fetch-site") {
            return matches!(site.as_bytes(), b"cross-site" | b"same-site");
        }
        headers.get_all(header::ORIGIN).iter().any(|origin| !self.is_own(origin, request))
    }

    /// Whether `origin` is that of this server: its public URL, or the host that `request` names.
    fn is_own(&self, origin: &HeaderValue, request: &Request) -> bool {
        // `null` is no URL.
        let Some(url) = origin.to_str().ok().and_then(|text| text.parse::<Url>().ok()) else {
            return false;
        };
        if self.public.as_ref() == Some(&url.origin()) {
            return true;
        }
        // A proxy may have ended the encryption, so the scheme is the browser's.
        let named = named_hosts(request).find_map(Result::ok);
        let asked = named
            .and_then(|authority| format!("{}://{authority}", url.scheme()).parse::<Url>().ok());
        url.host().is_some() && asked.is_some_and(|asked| asked.origin() == url.origin())
    }
}

/// The hosts that a request names: at most one each in its target and in `Host`. `Err`: one that is
/// no host.
fn named_hosts(request: &Request) -> impl Iterator<Item = Result<Authority, ()>> {
    // There is at most one: `headers` refuses two.
    let named = request.headers().get(header::HOST).filter(|value| !value.is_empty());
    let named = named.map(|value| value.to_str().unwrap_or_default().parse().map_err(drop));
    request.uri().authority().cloned().map(Ok).into_iter().chain(named)
}

/// The host that a request names, if it is not this machine. A request without a host does not come
/// from a browser.
fn foreign_host(request: &Request) -> Option<String> {
    let names = named_hosts(request)
        .map(|named| named.map_or_else(|()| String::new(), |authority| host(&authority)));
    names.into_iter().find(|name| !is_this_machine(name))
}

fn host(authority: &Authority) -> String {
    authority.host().trim_end_matches('.').to_ascii_lowercase()
}

/// A header of `headers` by which a proxy has marked the request.
fn proxy_header(headers: &HeaderMap) -> Option<&HeaderName> {
    let marks = |name: &&HeaderName| {
        PROXY_HEADERS.contains(&name.as_str()) || name.as_str().starts_with(FORWARDED)
    };
    headers.keys().find(marks)
}
