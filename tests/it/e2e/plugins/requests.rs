//! Hostile requests to the routes of plugins, and configurations that name one: each is refused as the
//! client's error, and changes nothing.

use reqwest::Method;
use serde_json::{Value, json};

use super::{push, region_share, shares, throttled};
use crate::e2e::{api::Api, serve::Tidegate};

/// What a request could have changed.
async fn state(api: &Api) -> [Value; 4] {
    let plugins = api.get("/v1/plugins").await.is(200);
    let names = plugins["plugins"].as_array().unwrap().iter().map(|plugin| plugin["name"].clone());
    let plugin = api.get("/v1/plugins/share").await.is(200);
    let parts = ["live", "shadow", "used_by", "recording"].map(|part| plugin[part].clone());
    let versions = api.get("/v1/plugins/share/versions").await.is(200);
    let queue = api.get("/v1/queues/default").await.is(200);
    [names.collect(), Value::from(parts.to_vec()), versions, queue]
}

/// A live plugin with one version, which the queue `default` uses.
async fn in_use() -> (Tidegate, [Value; 4]) {
    let tide = Tidegate::start().await;
    push(&tide, "share", region_share()).await.is(201);
    throttled(&tide, "share", shares(5)).await;
    let before = state(&tide).await;
    (tide, before)
}

#[tokio::test]
async fn wrong_numbers_and_bodies_about_plugins_change_nothing() {
    let (tide, before) = in_use().await;
    let api = tide.patient().unchecked();
    for (method, path, bodies) in [
        (
            Method::POST,
            "rollback",
            &[
                r#"{"version": 99}"#,
                r#"{"version": 0}"#,
                r#"{"version": -1}"#,
                r#"{"version": 1.5}"#,
                r#"{"version": 4294967296}"#,
                r#"{"version": "one"}"#,
                r#"{"version": 99, "force": true}"#,
                r#"{"version": 99"#,
                r#""latest""#,
            ][..],
        ),
        (
            Method::PUT,
            "shadow",
            &["{}", r#"{"version": null}"#, r#"{"version": 7}"#, r#"{"version": {}}"#, "\u{0}"][..],
        ),
        (
            Method::POST,
            "prune",
            &[r#"{"keep": 0}"#, r#"{"keep": 51}"#, r#"{"keep": -1}"#, r#"{"keep": "all"}"#][..],
        ),
        (Method::POST, "prune?dry_run=perhaps", &["{}"][..]),
        (
            Method::PUT,
            "recording",
            &[
                r#"{"for_seconds": 0}"#,
                r#"{"for_seconds": 86401}"#,
                r#"{"filter": "all"}"#,
                r#"{"filter": {"nothing": 1}}"#,
            ][..],
        ),
    ] {
        for body in bodies {
            let headers = [("content-type", "application/json")];
            let path = format!("/v1/plugins/share/{path}");
            let answer = api.send(method.clone(), &path, &headers, (*body).to_owned()).await;
            let shown = String::from_utf8_lossy(&answer.body);
            assert!((400..500).contains(&answer.status), "{path} {body}: {shown}");
        }
    }
    assert_eq!(state(&tide).await, before);
}

#[tokio::test]
async fn wrong_routes_and_parameters_of_plugins_change_nothing() {
    let (tide, before) = in_use().await;
    let api = tide.patient().unchecked();
    let wasm = region_share();
    for (method, path) in [
        (Method::PUT, "share?shadow=perhaps"),
        (Method::PUT, "share?shadow=true&shadow=false"),
        (Method::PUT, "share?live=true"),
        (Method::PUT, "share/versions"),
        (Method::PUT, "share/versions/1/component"),
        (Method::POST, "share"),
        (Method::PATCH, "share"),
        (Method::DELETE, "share"),
        (Method::DELETE, "share/versions/1/component"),
        (Method::DELETE, ""),
        (Method::DELETE, "none"),
        (Method::DELETE, "none/shadow"),
        (Method::DELETE, "none/recording"),
        (Method::GET, "none/versions"),
        (Method::GET, "none/logs"),
        (Method::GET, "none/faults"),
        (Method::GET, "none/calls"),
        (Method::GET, "none/differences"),
        (Method::GET, "share/versions?limit=0"),
        (Method::GET, "share/versions?limit=1001"),
        (Method::GET, "share/versions?cursor=last"),
        (Method::GET, "share/versions/0/component"),
        (Method::GET, "share/versions/2/component"),
        (Method::GET, "share/versions/-1/component"),
        (Method::GET, "share/versions/4294967296/component"),
        (Method::GET, "share/versions/..%2F..%2Fetc/component"),
        (Method::GET, "share/calls/none"),
        (Method::GET, "share/calls/..%2F..%2Fjobs"),
        (Method::GET, "share/logs?after=-1"),
        (Method::GET, "share/logs?limit=many"),
    ] {
        let path = format!("/v1/plugins/{path}");
        let is_push = method == Method::PUT;
        let headers = [("content-type", "application/wasm")];
        let body = if is_push { wasm.clone() } else { Vec::new() };
        let headers = if is_push { &headers[..] } else { &[] };
        let answer = api.send(method.clone(), &path, headers, body).await;
        let shown = String::from_utf8_lossy(&answer.body);
        assert!((400..500).contains(&answer.status), "{method} {path}: {} {shown}", answer.status);
    }
    assert_eq!(state(&tide).await, before);
}

#[tokio::test]
async fn hostile_configurations_of_a_plugin_change_nothing() {
    let (tide, before) = in_use().await;
    let with = |config: &Value| json!({"throttler": {"plugin": "share", "config": config}});
    let nested = (0..100).fold(json!(1), |inner, _| json!({ "shares": inner }));
    let attribute = |name: &str| json!({"attribute": name, "limit": 5, "shares": {"east": 40}});
    let mut many = shares(5);
    for region in 0..5000 {
        many["shares"][format!("a region with a long name, {region}")] = json!(0);
    }
    for config in [
        json!("{}"),
        json!([]),
        json!(7),
        json!({}),
        json!({"attribute": "region", "limit": -1, "shares": {}}),
        json!({"attribute": "region", "limit": 1e300, "shares": {}}),
        json!({"attribute": "region", "limit": 5, "shares": {"east": 4_294_967_295_u32}}),
        json!({"attribute": "region", "limit": 5, "shares": {"east": 40}, "more": 1}),
        attribute(""),
        attribute(&"a".repeat(70_000)),
        nested,
        many,
    ] {
        let answer = tide.unchecked().put("/v1/queues/default", with(&config)).await;
        let shown = String::from_utf8_lossy(&answer.body);
        let config = config.to_string();
        let config = config.get(..100).unwrap_or(&config);
        assert!((400..500).contains(&answer.status), "{config}: {} {shown}", answer.status);
    }
    assert_eq!(state(&tide).await, before);
}
