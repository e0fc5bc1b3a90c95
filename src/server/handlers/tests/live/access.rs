//! Scopes, tokens, and the routes that need neither.

use std::{collections::BTreeSet, sync::Arc};

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{
    super::{ask, problem},
    json, router, router_with,
};
use crate::handlers::{self, openapi};
use tidegate_core::port::health_check::{Check, HealthCheck};

#[tokio::test]
async fn every_operation_requires_its_documented_scope() {
    let router = router().await;
    let document = openapi::generate::document(&handlers::routes());
    let mut seen = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let mut schemes = operation["security"].as_array().unwrap().iter();
            if schemes.all(|scheme| scheme["bearer"].is_null()) {
                continue;
            }
            // Credentials are optional.
            if operation["security"].as_array().unwrap().contains(&json!({})) {
                continue;
            }
            let path =
                path.replace("{type}", "invoice").replace("{number}", "1").replace("{id}", "none");
            let path = path
                .replace("{queue}", "none")
                .replace("{worker}", "none")
                .replace("{plugin}", "none");
            let path = path.replace("{schedule}", "none").replace("{trigger}", "none");
            // A stream does not end. This request is refused after the caller is known.
            let path = path.replace("/v1/stream", "/v1/stream?id=%20");
            let method = method.to_uppercase();
            let (anonymous, _) = ask(&router, &method, &path, &[], "").await;
            assert_eq!(anonymous.status(), 401, "{method} {path}");
            let enough: BTreeSet<&str> = operation["security"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|scheme| scheme["bearer"][0].as_str())
                .collect();
            let others = ["enqueue", "work", "read", "enqueue:critical"]
                .into_iter()
                .filter(|other| !enough.contains(other))
                .collect::<Vec<_>>()
                .join(",");
            let (other, _) =
                ask(&router, &method, &path, &[("authorization", &format!("Bearer {others}"))], "")
                    .await;
            assert_eq!(other.status(), 403, "{method} {path}");
            for scope in enough {
                let bearer = format!("Bearer {scope}");
                let (right, _) =
                    ask(&router, &method, &path, &[("authorization", &bearer)], "").await;
                let status = right.status().as_u16();
                assert!(![401, 403, 405].contains(&status), "{method} {path} {scope}: {status}");
                seen.insert(scope.to_owned());
            }
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["admin", "enqueue", "read", "work"]);
}

#[tokio::test]
async fn a_session_says_who_the_caller_is_and_what_it_may_do() {
    let router = router().await;
    let session = async |token: Option<&str>| {
        let header = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = header.iter().map(|text| ("authorization", text.as_str())).collect();
        let (answer, body) = ask(&router, "GET", "/v1/session", &headers, "").await;
        (answer.status().as_u16(), serde_json::from_slice::<Value>(&body).unwrap())
    };
    let (status, unknown) = session(None).await;
    assert_eq!((status, &unknown["authenticated"]), (200, &json!(false)));
    assert_eq!((&unknown["scopes"], &unknown["sign_in"]), (&json!([]), &json!(["token"])));
    assert_eq!(unknown["console"]["title"], "tidegate");
    assert!(unknown.get("server").is_none() && unknown.get("name").is_none(), "{unknown}");
    let (status, known) = session(Some("read,enqueue;queues=mail;name=ops")).await;
    assert_eq!(
        (status, &known["authenticated"], &known["name"]),
        (200, &json!(true), &json!("ops"))
    );
    assert_eq!(known["scopes"], json!(["enqueue", "read"]));
    assert_eq!((&known["queues"], &known["types"]), (&json!(["mail"]), &Value::Null));
    assert_eq!(known["signed_in_by"], "token");
    assert_eq!(known["server"]["deployment_mode"], "embedded");
    let (status, refused) = session(Some("bad")).await;
    assert_eq!((status, &refused["code"]), (401, &json!("unauthorized")));
}

/// A machine on which no work can be accepted.
struct FullDisk;

#[async_trait::async_trait]
impl HealthCheck for FullDisk {
    async fn checks(&self) -> Vec<Check> {
        Vec::new()
    }

    fn refusal(&self) -> Option<String> {
        Some("the disk is full".into())
    }
}

#[tokio::test]
async fn a_server_with_a_full_disk_is_not_ready() {
    let router = router_with(Arc::<tidegate_engine::memory::MemoryStore>::default(), |builder| {
        builder.health_check(Arc::new(FullDisk))
    })
    .await;
    let answer = ask(&router, "GET", "/readyz", &[], "").await;
    assert_eq!(problem(&answer), (StatusCode::SERVICE_UNAVAILABLE, "unavailable".into()));
    assert_eq!(answer.0.headers()["retry-after"], "1");
    assert!(String::from_utf8(answer.1).unwrap().contains("the disk is full"));
    let (healthy, _) = ask(&router, "GET", "/healthz", &[], "").await;
    assert_eq!(healthy.status(), 200);
}

#[tokio::test]
async fn open_routes_need_no_token() {
    let router = router().await;
    for path in ["/healthz", "/readyz", "/openapi.json", "/", "/v1/session", "/v1/limits"] {
        let (answer, body) = ask(&router, "GET", path, &[], "").await;
        assert_eq!((answer.status().as_u16(), body.is_empty()), (200, false), "{path}");
    }
    let (_, page) = ask(&router, "GET", "/", &[], "").await;
    assert!(String::from_utf8(page).unwrap().starts_with("<!doctype html>"));
}

#[tokio::test]
async fn tokens_are_created_listed_without_secrets_and_revoked() {
    let router = router().await;
    let (status, made) =
        json(&router, "POST", "/v1/tokens", json!({"name": "ci", "scopes": ["enqueue", "read"]}))
            .await;
    let text = made["token"].as_str().unwrap();
    assert_eq!((status, text.starts_with("tg_")), (201, true));
    let (_, listed) = json(&router, "GET", "/v1/tokens", Value::Null).await;
    assert_eq!(
        (listed["tokens"].as_array().unwrap().len(), &listed["tokens"][0]["scopes"]),
        (1, &json!(["enqueue", "read"]))
    );
    assert!(
        !listed.to_string().contains(text.rsplit('_').next().unwrap())
            && !listed.to_string().contains("hash")
    );
    let path = format!("/v1/tokens/{}", made["id"].as_str().unwrap());
    assert_eq!(json(&router, "DELETE", &path, Value::Null).await.0, 204);
    assert_eq!(json(&router, "DELETE", &path, Value::Null).await.0, 404);
    let (status, problem) =
        json(&router, "POST", "/v1/tokens", json!({"name": "x", "scopes": ["everything"]})).await;
    assert_eq!((status, &problem["field"]), (400, &json!("scopes")));
}
