//! Plugins on a live server: a throttler that governs a queue, versions that are swapped, and bad
//! ones.

mod attacks;
mod govern;
mod kept_code;
mod recorded;
mod refusals;
mod requests;
mod versions;

use reqwest::Method;
use serde_json::{Value, json};

use super::api::{Api, ApiAnswer};

/// The shipped throttler.
fn region_share() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/dist/region-share.wasm")).unwrap()
}

/// How `region-share` shares `limit`.
fn shares(limit: u32) -> Value {
    json!({"attribute": "region", "limit": limit, "shares": {"east": 40, "north": 30, "west": 30}})
}

/// Pushes a component. An unoptimised compiler takes some seconds.
async fn push(api: &Api, name: &str, wasm: Vec<u8>) -> ApiAnswer {
    api.patient()
        .send(
            Method::PUT,
            &format!("/v1/plugins/{name}"),
            &[("content-type", "application/wasm")],
            wasm,
        )
        .await
}

/// A type whose jobs take their region from their data.
async fn regional(api: &Api, more: Value) {
    let mut config = json!({"attributes": {"region": "/region"}});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    api.job_type("t", config).await;
}

async fn throttled(api: &Api, plugin: &str, config: Value) -> Value {
    api.patch("/v1/queues/default", json!({"throttler": {"plugin": plugin, "config": config}}))
        .await
        .is(200)
}
