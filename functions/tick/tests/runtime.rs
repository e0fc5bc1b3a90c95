//! Runs the real binary against a runtime API that sends messages in the form of Lambda's poller.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::path::Path;

use serde_json::{Value, json};
use tidegate_server::lambda::testkit::{DEAD_LETTER_QUEUE_URLS, Function, messages, messages_of};

#[tokio::test]
async fn sweeps_hints_and_timers_succeed_malformed_messages_fail() {
    let function = Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-tick")), &[]).await;
    let rule: Value =
        serde_json::from_str(include_str!("../../../tests/events/eventbridge-schedule.json"))
            .unwrap();
    let done = json!({"batchItemFailures": []});
    assert_eq!(function.call(rule).await, Ok(done.clone()));
    assert_eq!(function.call(json!({"tidegate": "sweep"})).await, Ok(done));
    let bodies = [
        r#"{"hint": {"queue": "q", "due": true}}"#,
        r#"{"timer": {"queue": "q", "at": 0}}"#,
        "hello",
        r#"{"work": {"queue": "q", "jobs": []}}"#,
    ];
    let failed = json!({"batchItemFailures": [
        {"itemIdentifier": "message-2"},
        {"itemIdentifier": "message-3"},
    ]});
    assert_eq!(function.call(messages(bodies)).await, Ok(failed));
}

#[tokio::test]
async fn a_failed_maintenance_sweep_fails_the_invocation() {
    let function = Function::start(
        Path::new(env!("CARGO_BIN_EXE_tidegate-tick")),
        &[("TIDEGATE_TABLE", "gone")],
    )
    .await;
    let error = function.call(json!({"tidegate": "sweep"})).await.unwrap_err();
    assert!(
        error["errorMessage"]
            .as_str()
            .is_some_and(|message| message.contains("the maintenance sweep failed")),
        "{error}"
    );
}

#[tokio::test]
async fn a_failed_message_is_redelivered_early_three_times() {
    let function = Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-tick")), &[]).await;
    let bodies = [r#"{"hint": {"queue": "q", "due": true}}"#, "hello"];
    let failed = json!({"batchItemFailures": [{"itemIdentifier": "message-1"}]});
    for (receives, seconds) in [(1, Some(2)), (2, Some(10)), (3, Some(60)), (4, None)] {
        assert_eq!(
            function.call(messages_of("hints.fifo", receives, bodies)).await,
            Ok(failed.clone())
        );
        let sent: Vec<(String, Value)> = function.sent();
        let expected = seconds.map(|seconds| {
            (
                "hints.fifo".to_owned(),
                json!({"Id": "0", "ReceiptHandle": "receipt-1", "VisibilityTimeout": seconds}),
            )
        });
        assert_eq!(sent, Vec::from_iter(expected), "after receive {receives}");
    }
}

#[tokio::test]
async fn dead_letters_are_handled_deleted_and_fail_the_invocation() {
    let function = Function::start(
        Path::new(env!("CARGO_BIN_EXE_tidegate-tick")),
        &[("TIDEGATE_DEAD_LETTER_QUEUE_URLS", DEAD_LETTER_QUEUE_URLS)],
    )
    .await;
    let request = json!({"tidegate": "dead-letters"});
    let nothing = json!({"batchItemFailures": []});
    assert_eq!(function.call(request.clone()).await, Ok(nothing.clone()));
    let work = r#"{"work": {"queue": "q", "jobs": [
        {"id": "gone", "version": 1, "run_at": 0, "granted_at": 0}]}}"#;
    function.put("work-dead", [work, "not a message"]);
    function.put("hint-dead.fifo", [r#"{"hint": {"queue": "q", "due": true}}"#]);
    function.put("timer-dead", [r#"{"timer": {"queue": "q", "at": 0}}"#]);
    let error = function.call(request.clone()).await.unwrap_err();
    let message = error["errorMessage"].as_str().unwrap_or_default();
    assert!(message.contains("dead letters handled: 4"), "{error}");
    let mut deleted: Vec<String> = function.sent().into_iter().map(|(queue, _)| queue).collect();
    deleted.sort();
    assert_eq!(deleted, ["hint-dead.fifo", "timer-dead", "work-dead", "work-dead"]);
    assert_eq!(function.call(request).await, Ok(nothing));
}

#[tokio::test]
async fn an_unreadable_dead_letter_queue_fails_the_invocation() {
    let function = Function::start(
        Path::new(env!("CARGO_BIN_EXE_tidegate-tick")),
        &[("TIDEGATE_DEAD_LETTER_QUEUE_URLS", "http://sqs.test/0/gone")],
    )
    .await;
    let error = function.call(json!({"tidegate": "dead-letters"})).await.unwrap_err();
    let message = error["errorMessage"].as_str().unwrap_or_default();
    assert!(message.contains("dead-letter queues that failed: 1"), "{error}");
}
