//! Runs the real binary against a runtime API that sends messages in the form of Lambda's poller.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::path::Path;

use serde_json::json;
use tidegate_server::lambda::testkit::{Function, messages};

#[tokio::test]
async fn every_dead_message_is_processed_whatever_its_form() {
    let function =
        Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-dead-letter")), &[]).await;
    let work = r#"{"work": {"queue": "q", "jobs": [
        {"id": "gone", "version": 1, "run_at": 0, "granted_at": 0}]}}"#;
    let bodies = [
        work,
        r#"{"hint": {"queue": "q", "due": true}}"#,
        r#"{"timer": {"queue": "q", "at": 0}}"#,
        "not a message",
    ];
    assert_eq!(function.call(messages(bodies)).await, Ok(json!({"batchItemFailures": []})));
}
