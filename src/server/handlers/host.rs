//! What an open server answers to: the names of this machine, and its own.
//!
//! The one thing to know: that only this machine reaches a server is no protection from a page in this machine's browser. Such a page
//! may have its own name point here (DNS rebinding); the browser then takes the server for the page's own site, and lets the page
//! read and change everything. What gives it away is the `Host`, which is still the page's.

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

/// What the layer goes by.
pub struct Hosts {
    auth: Arc<dyn Authenticate>,
    own: Option<String>,
}

impl Hosts {
    /// For a server that lets in whom `auth` does, and that is reached at `public_url`.
    pub fn new(auth: Arc<dyn Authenticate>, public_url: &str) -> Self {
        let own = public_url.parse::<Url>().ok().and_then(|url| url.host_str().map(str::to_owned));
        Self { auth, own }
    }

    /// The host that a request is for, if it is neither this machine nor the server's own name. One that names none was sent by no browser.
    fn foreign(&self, request: &Request) -> Option<String> {
        let named = request.headers().get_all(header::HOST).iter();
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

/// Answers what is meant for this server by what is inside. One that is open to nobody unknown answers to every name.
pub async fn only_here(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    if hosts.auth.is_open()
        && !health::ROUTES.contains(&request.uri().path())
        && let Some(name) = hosts.foreign(&request)
    {
        let detail = format!(
            "without a token this server is for this machine alone, and {name:?} is no name of it: make a token, or set public_url to the \
             name that it is reached by"
        );
        return Problem::new(ErrorCode::HostNotAllowed, detail).into_response();
    }
    next.run(request).await
}
