//! The host names that an open server (one without tokens) answers to: those of this machine, and
//! that of its public URL.
//!
//! A server that only this machine can reach is still exposed to web pages in this machine's
//! browser. A page can make its own host name resolve to this machine (DNS rebinding). The browser
//! then treats the server as the page's own site, and lets the page read and change everything. The
//! `Host` header reveals this: it still has the name of the page.

use std::{net::IpAddr, sync::Arc};
use tidegate_core::error_code::ErrorCode;

use axum::{
    extract::{Request, State},
    http::{header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use url::Url;

use super::{error::Problem, health};
use crate::auth::Authenticate;

/// The state of the layer.
pub struct Hosts {
    auth: Arc<dyn Authenticate>,
    own: Option<String>,
}

impl Hosts {
    /// For a server with these credentials that is reached at `public_url`.
    pub fn new(auth: Arc<dyn Authenticate>, public_url: &str) -> Self {
        let own = public_url.parse::<Url>().ok().and_then(|url| url.host_str().map(str::to_owned));
        Self { auth, own }
    }

    /// The host that a request names, if it is neither this machine nor the server itself. A
    /// request without a host does not come from a browser.
    fn foreign(&self, request: &Request) -> Option<String> {
        // There is one: `headers` refuses two.
        let named = request.headers().get(header::HOST);
        let named = named.filter(|value| !value.is_empty()).map(|value| {
            value
                .to_str()
                .unwrap_or_default()
                .parse::<Authority>()
                .map_or_else(|_| String::new(), |authority| host(&authority))
        });
        let asked = request.uri().authority().map(host);
        asked.into_iter().chain(named).find(|name| !self.is_here(name))
    }

    fn is_here(&self, name: &str) -> bool {
        let local = name == "localhost" || name.ends_with(".localhost");
        let loopback = || {
            name.trim_matches(['[', ']'])
                .parse::<IpAddr>()
                .is_ok_and(|ip| ip.to_canonical().is_loopback())
        };
        local || loopback() || self.own.as_deref() == Some(name)
    }
}

fn host(authority: &Authority) -> String {
    authority.host().trim_end_matches('.').to_ascii_lowercase()
}

/// Refuses requests for other hosts while the server is open. With credentials, every host name is
/// accepted.
pub(crate) async fn only_here(
    State(hosts): State<Arc<Hosts>>,
    request: Request,
    next: Next,
) -> Response {
    if hosts.auth.is_open()
        && !health::ROUTES.contains(&request.uri().path())
        && let Some(name) = hosts.foreign(&request)
    {
        let detail = format!(
            "without tokens this server accepts only requests for this machine, and {name:?} is \
             another host: create a token, or set public_url to this server's name"
        );
        return Problem::new(ErrorCode::HostNotAllowed, detail).into_response();
    }
    next.run(request).await
}
