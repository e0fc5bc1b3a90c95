//! A request from API Gateway acts as `POST /v1/events`, with its tokens, modes and answers.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::harness::{Harness, recorded};

/// A recorded request with this token.
fn request(kind: &str, token: &str) -> Value {
    let mut request = recorded(kind);
    request["headers"]["authorization"] = json!(format!("Bearer {token}"));
    if kind == "api-gateway-v1" {
        request["multiValueHeaders"]["authorization"] = json!([format!("Bearer {token}")]);
    }
    request
}

/// A request in format 2.0 with this media type and body, and these headers.
fn posted(media: &str, body: &str, headers: &[(&str, &str)]) -> Value {
    let mut request = request("api-gateway-v2", "tg_first_secret");
    request["headers"]["content-type"] = json!(media);
    for (name, value) in headers {
        request["headers"][name] = json!(value);
    }
    request["body"] = json!(BASE64_STANDARD.encode(body));
    request
}

async fn answered(harness: &Harness, request: &Value) -> (u64, Value) {
    let answer = harness.call(request).await.unwrap();
    assert_eq!(answer["isBase64Encoded"], json!(false), "{answer}");
    assert!(answer["headers"]["content-type"].is_string(), "{answer}");
    (
        answer["statusCode"].as_u64().unwrap(),
        serde_json::from_str(answer["body"].as_str().unwrap()).unwrap(),
    )
}

#[tokio::test]
async fn both_formats_are_answered_as_the_api_answers() {
    for kind in ["api-gateway-v1", "api-gateway-v2"] {
        let harness = Harness::seeing().await;
        for action in ["enqueued", "already_enqueued"] {
            let (status, body) = answered(&harness, &request(kind, "tg_first_secret")).await;
            assert_eq!(
                (status, &body["id"], &body["outcomes"][0]["action"]),
                (200, &json!("c-1"), &json!(action)),
                "{kind}: {body}"
            );
        }
        assert_eq!(harness.seen().await[0]["data"], json!({"order": "o-1"}));
    }
}

#[tokio::test]
async fn a_request_without_a_token_is_refused() {
    for kind in ["api-gateway-v1", "api-gateway-v2"] {
        let harness = Harness::seeing().await;
        for request in [recorded(kind), request(kind, "tg_first_wrong")] {
            let (status, body) = answered(&harness, &request).await;
            assert_eq!((status, harness.seen().await.len()), (401, 0), "{kind}: {body}");
        }
    }
}

#[tokio::test]
async fn every_mode_is_accepted_and_errors_name_the_fault() {
    let harness = Harness::seeing().await;
    let binary = [
        ("ce-specversion", "1.0"),
        ("ce-id", "b-1"),
        ("ce-source", "/shop"),
        ("ce-type", "paid"),
        ("ce-name", "Zo%C3%AB"),
    ];
    let (status, body) =
        answered(&harness, &posted("application/json", r#"{"order": 1}"#, &binary)).await;
    assert_eq!((status, &body["id"]), (200, &json!("b-1")), "{body}");
    let batch = r#"[{"specversion": "1.0", "id": "b-2", "source": "/shop", "type": "paid"}, {"specversion": "1.0"}]"#;
    let (status, body) =
        answered(&harness, &posted("application/cloudevents-batch+json", batch, &[])).await;
    let statuses: Vec<&Value> =
        body["results"].as_array().unwrap().iter().map(|result| &result["status"]).collect();
    assert_eq!((status, statuses), (200, vec![&json!(200), &json!(400)]), "{body}");
    let (status, body) =
        answered(&harness, &posted("application/cloudevents+json", "{", &[])).await;
    assert_eq!((status, &body["code"]), (400, &json!("invalid_body")), "{body}");
    // Headers that HTTP does not allow are omitted, and text that is not ASCII causes no failure.
    let odd = [("x-name", "Zoë"), ("x bad", "1"), ("x-line", "a\nb")];
    assert_eq!(answered(&harness, &posted("application/cloudevents+json", "{", &odd)).await.0, 400);
    let seen = harness.seen().await;
    assert_eq!(
        (seen.len(), &seen[0]["name"], &seen[0]["data"]),
        (2, &json!("Zoë"), &json!({"order": 1}))
    );
    assert_eq!(harness.dead().await.len(), 0, "its sender received the refusal");
}

#[tokio::test]
async fn nothing_but_events_is_taken_whatever_the_path_is() {
    let harness = Harness::seeing().await;
    let mut get = request("api-gateway-v2", "tg_first_secret");
    get["requestContext"]["http"]["method"] = json!("GET");
    get["rawPath"] = json!("/v1/jobs");
    get["requestContext"]["http"]["path"] = json!("/v1/jobs");
    assert_eq!(answered(&harness, &get).await.0, 405);
    get["requestContext"]["http"]["method"] = json!("DELETE");
    assert_eq!(answered(&harness, &get).await.0, 405);
}

#[tokio::test]
async fn an_unavailable_store_is_answered_with_503() {
    let harness = Harness::seeing().await;
    let good = request("api-gateway-v2", "tg_first_secret");
    harness.store.crash_after(0);
    // It has not even the tokens.
    assert_eq!(answered(&harness, &good).await.0, 503);
    harness.store.revive();
    assert_eq!(answered(&harness, &good).await.0, 200);
    harness.store.crash_after(0);
    let mut another = posted(
        "application/cloudevents+json",
        r#"{"specversion": "1.0", "id": "z", "source": "/s", "type": "t"}"#,
        &[],
    );
    another["requestContext"]["requestId"] = json!("another");
    assert_eq!(answered(&harness, &another).await.0, 503);
}
