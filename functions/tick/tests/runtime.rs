//! The real binary, called with messages as Lambda's poller hands them over, through a runtime API.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::path::Path;

use serde_json::json;
use tidegate::testkit::lambda::{Function, messages};

#[tokio::test]
async fn the_minute_hints_and_wake_ups_are_taken_and_a_strange_message_comes_again() {
    let function = Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-tick")), &[]).await;
    let minute = json!({"version": "0", "source": "aws.events", "detail-type": "Scheduled Event", "detail": {}, "resources": []});
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
