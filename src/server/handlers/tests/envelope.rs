//! The layers around every route: envelope, access, bodies.

use std::sync::Arc;

use axum::{
    Extension, Router,
    http::StatusCode,
    response::IntoResponse,
    routing::{get, post},
};
use serde_json::json;

use super::{ApiOptions, around, ask, options, problem};
use crate::{
    auth::{Anonymous, Authenticate, BuiltIn, Scope, TokenItem},
    handlers::{
        access::{Enqueue, Holder, May, Read, check_critical},
        body::{Body, BodyLimit},
        envelope::Envelope,
        error::Problem,
        host::Hosts,
        media::Accept,
        wrapped,
    },
};
use tidegate_core::{job::Token, time::Timestamp};
use tidegate_engine::memory::{FakeClock, SeededEntropy};

fn routes() -> Router {
    let echo = async |accept: Accept, body: Body| -> Result<_, Problem> {
        Ok(accept.ok(body.read::<serde_json::Value>()?).into_response())
    };
    let small = post(echo).get(async || "got");
    around(
        Router::<Arc<ApiOptions>>::new()
            .route("/v1/echo", small)
            .route("/v1/large", post(echo).layer(Extension(BodyLimit(200_000))))
            .route("/v1/read", get(async |_: May<Read>| "read"))
            .route(
                "/v1/critical",
                get(async |caller: May<Enqueue>| check_critical(&caller).map(|()| "critical")),
            )
            .route(
                "/v1/attempt",
                post(async |holder: Holder| {
                    format!("{:?}", holder.token().and_then(Token::secret))
                }),
            )
            .route(
                "/v1/guarded",
                post(async |_: May<Read>, body: Body| body.read::<serde_json::Value>().map(|_| ())),
            )
            .route(
                "/v1/panic",
                get(async || if true { panic!("the secret of the {}", "handler") } else { "" }),
            ),
    )
}

#[tokio::test]
async fn every_answer_has_an_id_a_server_name_and_no_store() {
    let (answer, _) = ask(&routes(), "GET", "/v1/echo", &[("x-request-id", "mine-1")], "").await;
    assert_eq!(answer.headers()["x-request-id"], "mine-1");
    assert_eq!(answer.headers()["server"], concat!("tidegate/", env!("CARGO_PKG_VERSION")));
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let long = "x".repeat(129);
    for header in ["", &long] {
        let (answer, _) =
            ask(&routes(), "GET", "/v1/nothing", &[("x-request-id", header)], "").await;
        assert_eq!(
            answer.headers()["x-request-id"].len(),
            16,
            "one is drawn instead of {header:?}"
        );
    }
}

#[tokio::test]
async fn an_unknown_route_and_a_wrong_method_are_problems() {
    let answer = ask(&routes(), "GET", "/v2/echo", &[], "").await;
    assert_eq!(problem(&answer), (StatusCode::NOT_FOUND, "route_not_found".into()));
    let answer = ask(&routes(), "DELETE", "/v1/echo", &[], "").await;
    assert_eq!(problem(&answer), (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed".into()));
    let mut allowed: Vec<_> = answer.0.headers()["allow"].to_str().unwrap().split(',').collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["GET", "HEAD", "POST"]);
}

#[tokio::test]
async fn a_panic_is_an_internal_problem_without_its_cause() {
    let answer = ask(&routes(), "GET", "/v1/panic", &[], "").await;
    assert_eq!(problem(&answer), (StatusCode::INTERNAL_SERVER_ERROR, "internal".into()));
    assert!(!String::from_utf8(answer.1).unwrap().contains("secret"));
}

#[tokio::test]
async fn a_problem_has_the_accepted_encoding() {
    let (answer, body) =
        ask(&routes(), "GET", "/v1/nothing", &[("accept", "application/x-msgpack")], "").await;
    assert_eq!(answer.headers()["content-type"], "application/problem+msgpack");
    let problem: serde_json::Value = rmp_serde::from_slice(&body).unwrap();
    assert_eq!(
        (&problem["code"], &problem["instance"]),
        (&json!("route_not_found"), &json!("/v1/nothing"))
    );
}

#[tokio::test]
async fn a_body_is_answered_in_either_encoding() {
    let value = json!({"a": [1, -2.5, "x", null, true]});
    let packed = rmp_serde::to_vec(&value).unwrap();
    let msgpack = ("content-type", "application/msgpack");
    let (answer, body) = ask(&routes(), "POST", "/v1/echo", &[msgpack], packed.clone()).await;
    assert_eq!(answer.headers()["content-type"], "application/msgpack");
    assert_eq!(rmp_serde::from_slice::<serde_json::Value>(&body).unwrap(), value);
    let (answer, body) =
        ask(&routes(), "POST", "/v1/echo", &[msgpack, ("accept", "application/json")], packed)
            .await;
    assert_eq!(answer.headers()["content-type"], "application/json");
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), value);
}

#[tokio::test]
async fn unreadable_requests_have_specific_codes() {
    let deep = "[".repeat(68);
    for (headers, body, status, code) in [
        (&[("content-type", "text/plain")][..], "{}", 415, "unsupported_media_type"),
        (&[("accept", "image/png")], "{}", 406, "not_acceptable"),
        (&[], "{", 400, "invalid_body"),
        (
            &[("content-type", "application/msgpack"), ("accept", "application/json")],
            "\u{7f}\u{7f}",
            400,
            "invalid_body",
        ),
        (&[], &deep, 400, "nesting_too_deep"),
    ] {
        let answer = ask(&routes(), "POST", "/v1/echo", headers, body.to_owned()).await;
        assert_eq!(
            problem(&answer),
            (StatusCode::from_u16(status).unwrap(), code.into()),
            "{headers:?} {body}"
        );
    }
}

#[tokio::test]
async fn a_body_is_bounded_and_a_route_can_raise_the_bound() {
    let text = |len: usize| format!("\"{}\"", "x".repeat(len - 2));
    let most = 1000 + 64 * 1024;
    for (path, len, status) in [
        ("/v1/echo", most, 200),
        ("/v1/echo", most + 1, 413),
        ("/v1/large", most + 1, 200),
        ("/v1/large", 200_001, 413),
    ] {
        let answer = ask(&routes(), "POST", path, &[], text(len)).await;
        assert_eq!(answer.0.status().as_u16(), status, "{path} {len}");
        if status == 413 {
            assert_eq!(problem(&answer).1, "body_too_large");
            let detail = String::from_utf8(answer.1).unwrap();
            let bound = if path == "/v1/echo" { most } else { 200_000 };
            assert!(detail.contains(&format!("larger than {bound} bytes")), "{detail}");
        }
    }
}

#[tokio::test]
async fn unauthenticated_callers_get_challenges() {
    let answer = ask(&routes(), "GET", "/v1/read", &[], "").await;
    assert_eq!(problem(&answer), (StatusCode::UNAUTHORIZED, "unauthorized".into()));
    let challenges: Vec<_> = answer
        .0
        .headers()
        .get_all("www-authenticate")
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect();
    assert_eq!(
        challenges,
        ["Bearer realm=\"tidegate\"", "Basic realm=\"tidegate\", charset=\"UTF-8\""]
    );
    let page = ask(&routes(), "GET", "/v1/read", &[("x-requested-with", "dashboard")], "").await;
    assert_eq!(page.0.headers().get_all("www-authenticate").iter().count(), 1);
    let unknown =
        ask(&routes(), "GET", "/v1/read", &[("authorization", "Bearer nonsense")], "").await;
    assert_eq!(unknown.0.status(), 401);
}

#[tokio::test]
async fn a_route_requires_its_scope() {
    for (path, token, status) in [
        ("/v1/read", "Bearer read", 200),
        ("/v1/read", "Basic OnJlYWQ=", 200),
        ("/v1/read", "Bearer work", 403),
        ("/v1/read", "Bearer admin", 200),
        ("/v1/critical", "Bearer enqueue", 403),
        ("/v1/critical", "Bearer enqueue:critical", 403),
        ("/v1/critical", "Bearer enqueue,enqueue:critical", 200),
    ] {
        let answer = ask(&routes(), "GET", path, &[("authorization", token)], "").await;
        assert_eq!(answer.0.status().as_u16(), status, "{path} {token}");
    }
}

#[tokio::test]
async fn credentials_are_checked_before_the_body() {
    let answer =
        ask(&routes(), "POST", "/v1/guarded", &[("content-type", "text/plain")], "x").await;
    assert_eq!(answer.0.status(), 401);
}

#[tokio::test]
async fn a_report_needs_the_attempt_token_or_the_scope_work() {
    let token = format!("Bearer {:032x}", 255);
    for (token, status, shown) in [
        (token.as_str(), 200, "Some(\"000000000000000000000000000000ff\")"),
        ("Bearer work", 200, "None"),
        ("Bearer read", 403, ""),
        ("Bearer ff", 401, ""),
    ] {
        let (answer, body) =
            ask(&routes(), "POST", "/v1/attempt", &[("authorization", token)], "").await;
        assert_eq!(answer.status().as_u16(), status, "{token}");
        if status == 200 {
            assert_eq!(String::from_utf8(body).unwrap(), shown);
        }
    }
}

#[tokio::test]
async fn a_page_of_another_site_changes_nothing() {
    let (ours, here) = ("https://queue.example", "http://127.0.0.1:8080");
    for (method, host, headers, status) in [
        ("POST", "127.0.0.1:8080", &[("sec-fetch-site", "cross-site")][..], 403),
        ("POST", "127.0.0.1:8080", &[("sec-fetch-site", "same-site"), ("origin", here)], 403),
        ("POST", "127.0.0.1:8080", &[("sec-fetch-site", "same-origin")], 200),
        ("POST", "127.0.0.1:8080", &[("sec-fetch-site", "none")], 200),
        ("GET", "127.0.0.1:8080", &[("sec-fetch-site", "cross-site")], 200),
        // Without Sec-Fetch-Site the origin decides.
        ("POST", "127.0.0.1:8080", &[], 200),
        ("POST", "127.0.0.1:8080", &[("origin", here)], 200),
        ("POST", "queue.internal", &[("origin", "http://queue.internal")], 200),
        ("POST", "Queue.internal:80", &[("origin", "http://queue.internal")], 200),
        ("POST", "queue.internal", &[("origin", "https://queue.internal")], 200),
        ("POST", "127.0.0.1:8080", &[("origin", ours)], 200),
        ("GET", "127.0.0.1:8080", &[("origin", "http://evil.example")], 200),
        ("POST", "127.0.0.1:8080", &[("origin", "http://evil.example")], 403),
        ("POST", "127.0.0.1:8080", &[("origin", "null")], 403),
        ("POST", "127.0.0.1:8080", &[("origin", "")], 403),
        ("POST", "127.0.0.1:8080", &[("origin", "http://127.0.0.1:9090")], 403),
        ("POST", "127.0.0.1:8080", &[("origin", "http://127.0.0.1")], 403),
        ("POST", "127.0.0.1:8080", &[("origin", here), ("origin", "http://evil.example")], 403),
        ("POST", "queue.internal", &[("origin", "http://evil.queue.internal")], 403),
        ("POST", "queue.internal", &[("origin", "file://")], 403),
        ("POST", "", &[("origin", here)], 403),
    ] {
        let headers = [headers, &[("host", host)]].concat();
        let answer = ask(&routes(), method, "/v1/echo", &headers, "{}").await;
        assert_eq!(answer.0.status().as_u16(), status, "{method} {headers:?}");
        if status == 403 {
            assert_eq!(problem(&answer).1, "cross_site");
        }
    }
}

#[tokio::test]
async fn unencrypted_requests_through_a_proxy_are_refused() {
    let encrypted = Some("max-age=31536000");
    let cases = [
        ("", 200, None),
        ("foo", 200, None),
        ("https", 200, encrypted),
        ("HTTPS, http", 200, encrypted),
        ("http", 403, None),
        ("http,https", 403, None),
    ];
    for (proto, status, hsts) in cases {
        let answer = ask(&routes(), "GET", "/v1/echo", &[("x-forwarded-proto", proto)], "").await;
        let header = answer
            .0
            .headers()
            .get("strict-transport-security")
            .map(|value| value.to_str().unwrap());
        assert_eq!((answer.0.status().as_u16(), header), (status, hsts), "{proto:?}");
        if status == 403 {
            assert_eq!(problem(&answer).1, "insecure_request");
        }
    }
    let allowing =
        Arc::new(ApiOptions { allow_unencrypted_proxy: true, ..ApiOptions::clone(&options()) });
    let hosts = Hosts::new(Arc::clone(&allowing.auth), "");
    let envelope = Envelope { options: allowing, hosts, answer_bytes: None };
    let router = wrapped(Router::new().route("/v1/echo", get(async || "got")), envelope);
    assert_eq!(
        ask(&router, "GET", "/v1/echo", &[("x-forwarded-proto", "http")], "").await.0.status(),
        200
    );
}

#[tokio::test]
async fn an_open_server_accepts_only_its_own_host_names() {
    let clock = Arc::new(FakeClock::default());
    let auth = Arc::new(BuiltIn::new(None, Anonymous::AdminWithoutTokens, clock));
    let routes =
        Router::<Arc<ApiOptions>>::new().route("/v1/read", get(async |_: May<Read>| "read"));
    let options =
        Arc::new(ApiOptions { auth: Arc::clone(&auth) as _, ..ApiOptions::clone(&options()) });
    let hosts = Hosts::new(Arc::clone(&auth) as _, "https://Queue.example/jobs");
    let routes = routes.with_state(Arc::clone(&options));
    let router = wrapped(routes, Envelope { options, hosts, answer_bytes: None });
    let status = async |headers: &[(&str, &str)]| {
        ask(&router, "GET", "/v1/read", headers, "").await.0.status().as_u16()
    };
    for ours in
        ["127.0.0.1:8080", "127.9.9.9", "localhost", "LOCALHOST.:8080", "a.localhost", "[::1]:8080"]
    {
        assert_eq!(status(&[("host", ours)]).await, 200, "{ours}");
    }
    for foreign in [
        "evil.example:8080",
        "localhost.evil.example",
        "0.0.0.0:8080",
        "10.0.0.1",
        "[::2]",
        "a b",
        "127.0.0.1.evil.example",
        "queue.example",
        "Queue.Example:443",
    ] {
        assert_eq!(status(&[("host", foreign)]).await, 403, "{foreign}");
        assert_eq!(
            status(&[("host", foreign), ("authorization", "Bearer x")]).await,
            403,
            "{foreign}, with credentials"
        );
    }
    assert_eq!(status(&[("host", "localhost"), ("host", "evil.example")]).await, 400, "two hosts");
    assert_eq!(
        problem(&ask(&router, "GET", "/", &[("host", "evil.example")], "").await).1,
        "host_not_allowed"
    );
    assert_eq!(status(&[("host", "")]).await, 200, "every browser sends a name");
    for header in [
        "forwarded",
        "via",
        "x-real-ip",
        "x-forwarded-for",
        "X-Forwarded-Host",
        "x-forwarded-proto",
        "x-forwarded-anything",
    ] {
        let proxied = [(header, "https")];
        assert_eq!(status(&proxied).await, 401, "{header}");
        let given = [(header, ""), ("authorization", "Bearer x")];
        assert_eq!(status(&given).await, 401, "{header}, with credentials");
        let (healthy, _) = ask(&router, "GET", "/healthz", &proxied, "").await;
        assert_eq!(healthy.status(), 404, "the health of the process is no secret");
    }

    // With tokens, any host name is accepted: a proxy may be in front.
    let (item, text) =
        TokenItem::mint("ci", Scope::Read.into(), Timestamp::EPOCH, &SeededEntropy::new(1));
    auth.set_tokens(vec![item]);
    assert!(!auth.is_open());
    assert_eq!(status(&[("host", "evil.example")]).await, 401);
    let bearer = format!("Bearer {text}");
    assert_eq!(status(&[("x-forwarded-proto", "https"), ("authorization", &bearer)]).await, 200);
    assert_eq!(
        status(&[("host", "queue.internal"), ("authorization", &format!("Bearer {text}"))]).await,
        200
    );
}

#[tokio::test]
async fn headers_that_contradict_themselves_are_refused() {
    let router = routes();
    let json = ("content-type", "application/json");
    for (headers, body, expected) in [
        (&[json, json][..], "1", (400, "invalid_header")),
        (&[json, ("idempotency-key", "a"), ("idempotency-key", "b")], "1", (400, "invalid_header")),
        (&[json, ("if-match", "\"1\""), ("if-match", "\"2\"")], "1", (400, "invalid_header")),
        (&[json, ("transfer-encoding", "gzip, chunked")], "1", (400, "invalid_header")),
        (&[json, ("content-encoding", "gzip")], "1", (415, "unsupported_media_type")),
        (
            &[("content-type", "application/json; charset=utf-16")],
            "1",
            (415, "unsupported_media_type"),
        ),
    ] {
        let (status, code) = problem(&ask(&router, "POST", "/v1/echo", headers, body).await);
        assert_eq!((status.as_u16(), code.as_str()), expected, "{headers:?}");
    }
    for accepted in [
        &[("content-encoding", "identity")][..],
        &[("content-type", "application/json; charset=\"UTF-8\"")],
        &[("accept", "")],
    ] {
        let (answer, _) = ask(&router, "POST", "/v1/echo", accepted, "1").await;
        assert_eq!(answer.status(), 200, "{accepted:?}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    }
}
