//! Requests with the cookie of a user who has signed in.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use serde_json::{Value, json};

use super::{ApiOptions, ask, live, options};
use crate::{
    auth::{
        AuthError, Authenticate, Credentials, JwtAuthenticator, Principal, Scope, oidc::SignIn,
    },
    handlers, settings,
};
use tidegate_backends::{
    http::{Guard, HttpTarget},
    system::{SystemClock, SystemEntropy},
};

/// Accepts one token.
struct OneUser;

#[async_trait]
impl Authenticate for OneUser {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Principal, AuthError> {
        match credentials.secret() {
            Some("a.valid.token") => Ok(Principal {
                name: "ann".into(),
                scopes: Scope::Admin.into(),
                bounds: Arc::default(),
            }),
            _ => Err(AuthError::Refused("the token has expired".into())),
        }
    }
}

async fn router() -> Router {
    let http = || HttpTarget::new(Guard::On).unwrap();
    let jwt = settings::Jwt {
        jwks_url: "http://127.0.0.1:1/keys".parse().ok(),
        issuer: Some("http://127.0.0.1:1".into()),
        audience: Some("jobs".into()),
        ..settings::Jwt::default()
    };
    let jwt = JwtAuthenticator::new(&jwt, http(), Arc::new(SystemClock)).map(Arc::new);
    let oidc = settings::Oidc { client_id: Some("console".into()), ..settings::Oidc::default() };
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let sign_in = SignIn::new(&oidc, "http://127.0.0.1:8080", jwt, http(), clock, entropy);
    let options = ApiOptions {
        auth: Arc::new(OneUser),
        sign_in: sign_in.map(Arc::new),
        ..ApiOptions::clone(&options())
    };
    handlers::router(live::server().await, options)
}

const MARK: (&str, &str) = ("x-requested-with", "console");
const COOKIE: (&str, &str) = ("cookie", "theme=dark; tidegate_session=a.valid.token");

#[tokio::test]
async fn the_cookie_of_a_user_is_a_credential() {
    let router = router().await;
    let session = async |headers: &[(&str, &str)]| {
        let headers: Vec<_> = headers.iter().copied().chain([MARK]).collect();
        let (answer, body) = ask(&router, "GET", "/v1/session", &headers, "").await;
        (answer.status().as_u16(), serde_json::from_slice::<Value>(&body).unwrap())
    };
    let (status, known) = session(&[COOKIE]).await;
    assert_eq!(
        (status, &known["name"], &known["signed_in_by"]),
        (200, &json!("ann"), &json!("oidc"))
    );
    let (_, unknown) = session(&[]).await;
    assert_eq!(unknown["sign_in"], json!(["token", "oidc"]));
    // It has expired: the user signs in again.
    let (status, expired) = session(&[("cookie", "tidegate_session=an.old.token")]).await;
    assert_eq!((status, &expired["authenticated"]), (200, &json!(false)));
    // A token of the server's own is none of a provider.
    let (_, own) = session(&[("cookie", "tidegate_session=tg_1_2")]).await;
    assert_eq!(own["authenticated"], false);
    let (status, _) = session(&[COOKIE, ("authorization", "Bearer other")]).await;
    assert_eq!(status, 401, "the header wins");
}

#[tokio::test]
async fn a_cookie_does_not_serve_pages_of_other_sites() {
    let router = router().await;
    let status = async |method: &str, headers: &[(&str, &str)]| {
        let headers: Vec<_> = [COOKIE].into_iter().chain(headers.iter().copied()).collect();
        let path = if method == "GET" { "/v1/queues" } else { "/v1/queues/default/pause" };
        ask(&router, method, path, &headers, "").await.0.status().as_u16()
    };
    let marked = MARK;
    assert_eq!(status("GET", &[]).await, 403, "a link in a message");
    assert_eq!(status("GET", &[("sec-fetch-site", "none")]).await, 403, "a link in a message");
    assert_eq!(status("GET", &[marked]).await, 200);
    assert_eq!(status("POST", &[marked, ("sec-fetch-site", "same-origin")]).await, 200);
    assert_eq!(status("GET", &[("sec-fetch-site", "same-origin")]).await, 200);
    assert_eq!(status("POST", &[]).await, 403, "any form can send this");
    for site in ["cross-site", "same-site"] {
        assert_eq!(status("GET", &[("sec-fetch-site", site)]).await, 403, "{site}");
        assert_eq!(status("POST", &[marked, ("sec-fetch-site", site)]).await, 403, "{site}");
    }
    assert_eq!(status("POST", &[marked, ("origin", "https://evil.example")]).await, 403);
    assert_eq!(status("POST", &[marked, ("origin", "http://127.0.0.1:8080")]).await, 200);
}

#[tokio::test]
async fn a_sign_out_deletes_the_cookie() {
    let router = router().await;
    let foreign = [COOKIE, ("origin", "https://evil.example")];
    let (refused, _) = ask(&router, "POST", "/console/sign-out", &foreign, "").await;
    assert_eq!(refused.status(), 403);
    let (out, _) = ask(&router, "POST", "/console/sign-out", &[COOKIE], "").await;
    let cookie = out.headers()["set-cookie"].to_str().unwrap();
    assert_eq!((out.status().as_u16(), cookie.contains("Max-Age=0")), (204, true), "{cookie}");
}

#[tokio::test]
async fn a_failed_sign_in_shows_its_reason_in_the_console() {
    let router = router().await;
    for path in ["/console/callback?code=x&state=y", "/console/sign-in?return=%23/queues"] {
        let (answer, _) = ask(&router, "GET", path, &[], "").await;
        let location = answer.headers()["location"].to_str().unwrap();
        assert_eq!(answer.status().as_u16(), 303, "{path}");
        assert!(location.starts_with("http://127.0.0.1:8080/#/sign-in?error="), "{location}");
        assert_eq!(answer.headers()["cache-control"], "no-store");
    }
}
