//! The real binary, called with messages as Lambda's poller hands them over, through a runtime API.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::path::Path;

use serde_json::{Value, json};
use tidegate_server::lambda::testkit::{Function, messages, messages_of};

#[tokio::test]
async fn the_minute_hints_and_wake_ups_are_taken_and_a_strange_message_comes_again() {
    let function = Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-tick")), &[]).await;
    let minute: Value =
        serde_json::from_str(include_str!("../../../tests/events/eventbridge-schedule.json"))
            .unwrap();
    let done = json!({"batchItemFailures": []});
    assert_eq!(function.call(minute).await, Ok(done.clone()));
    assert_eq!(function.call(json!({"tidegate": "minute"})).await, Ok(done));
    let bodies = [
        r#"{"hint": {"queue": "q", "look": true}}"#,
        r#"{"wake": {"queue": "q", "at": 0}}"#,
        "hello",
        r#"{"work": {"queue": "q", "jobs": []}}"#,
    ];
    let failed = json!({"batchItemFailures": [{"itemIdentifier": "message-2"}, {"itemIdentifier": "message-3"}]});
    assert_eq!(function.call(messages(bodies)).await, Ok(failed));
}

#[tokio::test]
async fn a_minute_that_fails_is_an_error_of_the_call() {
    let function = Function::start(
        Path::new(env!("CARGO_BIN_EXE_tidegate-tick")),
        &[("TIDEGATE_TABLE", "gone")],
    )
    .await;
    let error = function.call(json!({"tidegate": "minute"})).await.unwrap_err();
    assert!(
        error["errorMessage"]
            .as_str()
            .is_some_and(|said| said.contains("the maintenance sweep failed")),
        "{error}"
    );
}

#[tokio::test]
async fn a_message_that_failed_comes_again_within_seconds_and_in_the_end_when_its_queue_says() {
    let function = Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-tick")), &[]).await;
    let bodies = [r#"{"hint": {"queue": "q", "look": true}}"#, "hello"];
    let failed = json!({"batchItemFailures": [{"itemIdentifier": "message-1"}]});
    for (receives, seconds) in [(1, Some(2)), (2, Some(10)), (3, Some(60)), (4, None)] {
        assert_eq!(
            function.call(messages_of("hints.fifo", receives, bodies)).await,
            Ok(failed.clone())
        );
        let told: Vec<(String, Value)> = function.sent();
        let expected = seconds.map(|seconds| {
            (
                "hints.fifo".to_owned(),
                json!({"Id": "0", "ReceiptHandle": "receipt-1", "VisibilityTimeout": seconds}),
            )
        });
        assert_eq!(told, Vec::from_iter(expected), "after receive {receives}");
    }
}
