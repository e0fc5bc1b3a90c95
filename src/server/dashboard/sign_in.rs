//! The routes by which users sign in at an identity provider, and out.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use url::form_urlencoded;

use crate::auth::oidc::{Redirect, SignIn};

/// Sends the browser to `redirect`. The address that it leaves may have a code, so it is not passed
/// on.
fn redirected(redirect: Redirect) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    if let Ok(location) = HeaderValue::from_str(redirect.to.as_str()) {
        headers.insert(header::LOCATION, location);
    }
    for cookie in redirect.cookies {
        headers
            .extend(HeaderValue::from_str(&cookie).ok().map(|value| (header::SET_COOKIE, value)));
    }
    (StatusCode::SEE_OTHER, headers).into_response()
}

async fn begin(State(sign_in): State<Arc<SignIn>>, uri: Uri) -> Response {
    let mut query = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let place = query.find(|(name, _)| name == "return").map(|(_, place)| place.into_owned());
    let begun = sign_in.begin(&place.unwrap_or_default()).await;
    redirected(begun.unwrap_or_else(|error| {
        tracing::warn!(%error, "a sign-in cannot begin");
        sign_in.failed(&error, Vec::new())
    }))
}

async fn finish(State(sign_in): State<Arc<SignIn>>, uri: Uri, headers: HeaderMap) -> Response {
    redirected(sign_in.finish(uri.query().unwrap_or_default(), &headers).await)
}

async fn end(State(sign_in): State<Arc<SignIn>>) -> Response {
    let headers =
        [(header::SET_COOKIE, sign_in.sign_out()), (header::CACHE_CONTROL, "no-store".into())];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// The routes of the sign-in.
pub fn routes(sign_in: Arc<SignIn>) -> Router {
    Router::new()
        .route("/console/sign-in", get(begin))
        .route("/console/callback", get(finish))
        .route("/console/sign-out", post(end))
        .with_state(sign_in)
}
