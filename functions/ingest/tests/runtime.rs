//! Runs the real binary against a runtime API that sends invocations of Lambda and API Gateway.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::path::Path;

use serde_json::{Value, json};
use tidegate_server::lambda::testkit::{Function, messages, request};

/// A recorded invocation.
fn recorded(kind: &str) -> Value {
    let path = format!("{}/../../tests/events/{kind}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

async fn start() -> Function {
    // The SHA-256 of `secret`, in base64.
    let first = ("TIDEGATE_ADMIN_TOKEN", "first:K7gNU3sdo+OL0wNhqoVWhr3g6s1xYv72ol/pe/Unols=");
    Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-ingest")), &[first]).await
}

#[tokio::test]
async fn every_source_is_ingested_and_unknown_input_is_not_retried() {
    let function = start().await;
    let done = json!({"batchItemFailures": []});
    for kind in [
        "eventbridge",
        "sns",
        "s3",
        "sqs",
        "sqs-within",
        "kinesis",
        "msk",
        "kafka-self-managed",
        "dynamodb",
        "cloudevent",
    ] {
        assert_eq!(function.call(recorded(kind)).await, Ok(done.clone()), "{kind}");
    }
    for strange in
        [json!(null), json!([1]), json!({}), messages(["hello", r#"{"specversion": "1.0"}"#])]
    {
        assert_eq!(function.call(strange.clone()).await, Ok(done.clone()), "{strange}");
    }
}

#[tokio::test]
async fn an_http_request_is_answered_like_one_to_the_api() {
    let function = start().await;
    let event = json!({"specversion": "1.0", "id": "1", "source": "/shop", "type": "paid"});
    let answer = function.call(request("POST", "/anywhere", None, Some(&event))).await.unwrap();
    assert_eq!(answer["statusCode"], json!(401), "{answer}");
    let mut request = request("POST", "/anywhere", Some("tg_first_secret"), Some(&event));
    request["headers"]["content-type"] = json!("application/cloudevents+json");
    let answer = function.call(request).await.unwrap();
    assert_eq!(answer["statusCode"], json!(200), "{answer}");
    let body: Value = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
    assert_eq!(body, json!({"id": "1", "source": "/shop", "outcomes": []}));
    let answer = function.call(recorded("api-gateway-v1")).await.unwrap();
    assert_eq!(answer["statusCode"], json!(401), "{answer}");
}
