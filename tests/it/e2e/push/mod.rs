//! Push: the request to a target, the meaning of its answers, and callbacks.

mod answers;
mod callbacks;
mod restart;

use axum::{
    body::Body,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tidegate_backends::system::SystemClock;
use tidegate_core::{port::Clock as _, target::signature};

use super::{
    serve::{Setup, Tidegate},
    target::{Call, Target},
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Retries at once.
fn at_once() -> Value {
    json!({"strategy": "exponential", "config": {"base_seconds": 0, "jitter": "none"}})
}

/// What a target answers: a status, headers and a body.
fn says(status: u16, headers: &[(&'static str, &'static str)], body: impl Into<Body>) -> Response {
    let mut response = (StatusCode::from_u16(status).unwrap(), body.into()).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}

fn signed(call: &Call, secret: &str) -> Result<(), signature::BadSignature> {
    let header = |name| call.header(name);
    let (id, time, signatures) =
        (header(signature::ID), header(signature::TIMESTAMP), header(signature::SIGNATURE));
    signature::verify(&[secret.to_owned()], id, time, signatures, &call.body, SystemClock.now())
}

#[tokio::test]
async fn a_push_carries_the_job_signed_and_its_answer_is_the_result() {
    let tide = Tidegate::start().await;
    let target = Target::start(|_| async {
        says(200, &[("content-type", "application/json")], "{\"sum\": 3}")
    })
    .await;
    let config = json!({
        "target": {"url": format!("{}/{{type}}?id={{id}}", target.url), "signing_secret": [SECRET, "the new one"], "headers": {"x-team": "blue"},
                   "basic_auth": {"username": "ann", "password": "pw"}},
        "attributes": {"region": "/region"}, "headers": {"x-type": "1"},
    });
    let shown = tide.job_type("t", config).await;
    assert!(
        !shown.to_string().contains("whsec") && !shown.to_string().contains("\"pw\""),
        "{shown}"
    );
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [("traceparent", parent), ("content-type", "application/json")];
    let ask =
        json!({"type": "t", "data": {"region": "east"}, "headers": {"x-job": "2"}}).to_string();
    let id = tide.send(reqwest::Method::POST, "/v1/jobs", &headers, ask).await.is(201)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let job = tide.job_in(&id, "succeeded").await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!({"sum": 3}), &json!(1)));
    let call = target.call(1).await;
    assert_eq!(call.path, format!("/work/t?id={id}"));
    for (name, value) in [
        ("x-team", "blue"),
        ("x-type", "1"),
        ("x-job", "2"),
        ("traceparent", parent),
        ("authorization", "Basic YW5uOnB3"),
    ] {
        assert_eq!(call.header(name), value, "{name}");
    }
    let body = call.json();
    assert_eq!(
        (&body["id"], &body["type"], &body["attempt"], &body["max_attempts"]),
        (&json!(id), &json!("t"), &json!(1), &json!(3))
    );
    assert_eq!(
        (&body["data"], &body["attributes"]),
        (&json!({"region": "east"}), &json!({"region": "east"}))
    );
    assert_eq!(body["callback"]["url"], format!("{}/v1/jobs/t/{id}", tide.base));
    for secret in [SECRET, "the new one"] {
        signed(&call, secret).unwrap();
    }
    signed(&call, "another").unwrap_err();
}

#[tokio::test]
async fn a_target_speaks_for_the_server_and_a_job_does_not() {
    let tide = Tidegate::start().await;
    let target = Target::start(|_| async { "ok" }).await;
    let config = json!({
        "target": {"url": target.url, "headers": {"X-Api-Key": "operator", "authorization": "A b"}},
        "headers": {"x-api-key": "default", "x-other": "1"},
    });
    tide.job_type("t", config).await;
    let headers = json!({"x-api-KEY": "enqueuer", "x-mine": "2"});
    let id = tide.enqueue(json!({"type": "t", "data": 1, "headers": headers})).await;
    tide.job_in(&id, "succeeded").await;
    let call = target.call(1).await;
    let all = |name: &str| {
        let values = call.headers.get_all(name).iter();
        values.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(all("x-api-key"), ["operator"]);
    assert_eq!(
        (all("authorization"), all("x-other"), all("x-mine")),
        (vec!["A b".to_owned()], vec!["1".to_owned()], vec!["2".to_owned()])
    );
    for name in ["authorization", "Proxy-Authorization", "cookie"] {
        let job = json!({"type": "t", "data": 1, "headers": {name: "x"}});
        let field = format!("headers.{name}");
        tide.post("/v1/jobs", job).await.blames(400, "invalid_field", &field);
    }
}

#[tokio::test]
async fn the_default_target_serves_types_without_one() {
    let target = Target::start(|_| async { "ok" }).await;
    let tide = Setup::new()
        .env("TIDEGATE_DEFAULT_TARGET__URL", format!("{}/{{type}}", target.url))
        .env("TIDEGATE_DEFAULT_TARGET__ENCODING", "msgpack")
        .start()
        .await;
    tide.job_type("t", json!({})).await;
    tide.job_type("p", json!({"target": {"pull": true}})).await;
    let id = tide.enqueue(json!({"type": "t", "data": {"n": 5}})).await;
    tide.job_in(&id, "succeeded").await;
    let call = target.call(1).await;
    assert_eq!(
        (call.path.as_str(), call.header("content-type")),
        ("/work/t", "application/msgpack")
    );
    let body: Value = rmp_serde::from_slice(&call.body).unwrap();
    assert_eq!((&body["data"], &body["id"]), (&json!({"n": 5}), &json!(id)));
    tide.enqueue_a("p").await;
    tide.lease_one("p").await;
    tide.post("/v1/leases", json!({"types": ["t"]})).await.blames(400, "invalid_field", "types");
}

#[tokio::test]
async fn addresses_that_give_out_credentials_are_not_called() {
    let tide = Tidegate::start().await;
    for (name, url) in [
        ("metadata", "http://169.254.169.254/latest/meta-data"),
        ("link-local", "http://[fe80::1]/"),
        ("any", "http://0.0.0.0:1/"),
    ] {
        let put = async |config: Value| tide.put(&format!("/v1/job-types/{name}"), config).await;
        put(json!({"target": {"url": url}})).await.blames(400, "invalid_type", "target.url");
        put(json!({"callback_url": url})).await.blames(400, "invalid_type", "callback_url");
        put(json!({})).await.is(201);
        let job = json!({"type": name, "data": null, "callback_url": url});
        tide.post("/v1/jobs", job).await.blames(400, "invalid_field", "callback_url");
    }
    // What a name leads to is known when it is called.
    tide.put("/v1/job-types/named", json!({"target": {"url": "http://localhost:1/"}}))
        .await
        .is(201);
    let (status, said) =
        Setup::new().env("TIDEGATE_DEFAULT_TARGET__URL", "http://169.254.169.254/").refused().await;
    assert!(!status.success() && said.contains("default_target.url"), "{said}");
}
