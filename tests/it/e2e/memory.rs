//! Memory that requests take: the worst bodies are those that have the most items per byte.

use std::{collections::BTreeSet, fs};

use reqwest::Method;
use serde_json::Value;

use super::{api::ApiAnswer, serve::Tidegate};

/// The bytes of each body.
const BODY: usize = 512 << 10;
/// By how much the memory of the server may grow for one: a fault took 400 times the body.
const MOST_GROWTH: usize = 48 << 20;

/// Values in JSON that have as many items as fit: empty objects in a list, names in an object.
fn values() -> [String; 2] {
    let list = format!("[{}{{}}]", "{},".repeat(BODY / 3));
    let names: Vec<String> = (0..BODY / 12).map(|n| format!("\"a{n:05}\":0")).collect();
    [list, format!("{{{}}}", names.join(","))]
}

/// Bodies whose field is one of `values`, and one in MessagePack.
fn worst(field: &str, values: &[String; 2]) -> [(&'static str, Vec<u8>); 3] {
    let [list, object] = values.each_ref().map(|value| format!("{{\"{field}\": {value}}}"));
    // A map of one entry, and in it a list of empty maps.
    let mut packed = vec![0x81, 0xd9, field.len() as u8];
    packed.extend(field.as_bytes());
    packed.push(0xdd);
    packed.extend((BODY as u32).to_be_bytes());
    packed.resize(packed.len() + BODY, 0x80);
    [
        ("application/json", list.into_bytes()),
        ("application/json", object.into_bytes()),
        ("application/msgpack", packed),
    ]
}

/// The names of the fields of a body, all those of a choice.
fn fields(document: &Value, schema: &Value, found: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        fields(document, document.pointer(reference.trim_start_matches('#')).unwrap(), found);
    }
    for choice in schema["anyOf"].as_array().into_iter().flatten() {
        fields(document, choice, found);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if !is_scalar(document, field) {
            found.insert(name.clone());
        }
    }
}

/// Whether a value of `schema` is neither a list nor an object.
fn is_scalar(document: &Value, schema: &Value) -> bool {
    if let Some(reference) = schema["$ref"].as_str() {
        return is_scalar(document, document.pointer(reference.trim_start_matches('#')).unwrap());
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        return choices.iter().all(|choice| is_scalar(document, choice));
    }
    let scalar = |kind: &Value| {
        ["string", "integer", "number", "boolean", "null"].iter().any(|word| kind == word)
    };
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().all(scalar),
        kind => scalar(kind),
    }
}

/// A figure of the process's status, in bytes.
fn figure(tide: &Tidegate, name: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", tide.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// By how much the memory of the server grows for the request that `send` sends, and its answer. The server
/// gives unused pages back every two seconds, and reading them again looks like growth: what is too much must
/// be so three times.
async fn growth(tide: &Tidegate, send: impl AsyncFn() -> ApiAnswer) -> (usize, ApiAnswer) {
    let mut tries = 0;
    loop {
        fs::write(format!("/proc/{}/clear_refs", tide.pid()), "5").unwrap();
        let before = figure(tide, "VmRSS");
        let answer = send().await;
        let growth = figure(tide, "VmHWM").saturating_sub(before);
        tries += 1;
        if growth <= MOST_GROWTH || tries == 3 {
            return (growth, answer);
        }
    }
}

#[tokio::test]
async fn the_worst_body_of_each_route_takes_little_memory() {
    let tide = Tidegate::start().await;
    tide.job_type("t", serde_json::json!({})).await;
    tide.put("/v1/jobs/t/one", serde_json::json!({"data": 1, "delay_seconds": 600})).await.is(201);
    let document = tide.get("/openapi.json").await.is(200);
    let values = values();
    let mut asked = 0;
    let mut wrong = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let content = &operation["requestBody"]["content"];
            let Some(schema) = content.get("application/json").map(|media| &media["schema"]) else {
                continue;
            };
            let mut names = BTreeSet::from(["any".to_owned()]);
            fields(&document, schema, &mut names);
            let path = path.replace("{type}", "t").replace("{id}", "one");
            let path = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
            let path = path.collect::<Vec<_>>().join("/");
            let method: Method = method.to_uppercase().parse().unwrap();
            for (media, body) in names.iter().flat_map(|name| worst(name, &values)) {
                let start: String = String::from_utf8_lossy(&body[..40]).into_owned();
                let headers = [("content-type", media)];
                let send = async || tide.send(method.clone(), &path, &headers, body.clone()).await;
                let (growth, answer) = growth(&tide, send).await;
                let what = format!("{method} {path} {media} {start}");
                if growth > MOST_GROWTH {
                    wrong.push(format!("{what}: {} MB", growth >> 20));
                }
                assert!(answer.status < 500, "{what}: {} {}", answer.status, answer.value());
                asked += 1;
            }
        }
    }
    // Batches of events have a media type of their own.
    for (media, body) in [
        ("application/cloudevents-batch+json", format!("[{}{{}}]", "{},".repeat(BODY / 3))),
        ("application/cloudevents+json", format!("{{\"data\": [{}0]}}", "0,".repeat(BODY / 8))),
    ] {
        let headers = [("content-type", media)];
        let send = async || tide.send(Method::POST, "/v1/events", &headers, body.clone()).await;
        let (growth, answer) = growth(&tide, send).await;
        if growth > MOST_GROWTH || answer.status >= 500 {
            wrong.push(format!("{media}: {} MB, {}", growth >> 20, answer.status));
        }
    }
    assert!(asked > 60, "{asked} bodies");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
