//! The real binary, called with messages as Lambda's poller hands them over, through a runtime API.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::{path::Path, process::Command};

use serde_json::json;
use tidegate_server::lambda::testkit::{Function, messages, messages_of};

#[tokio::test]
async fn work_for_a_job_that_is_gone_is_done_and_a_strange_message_comes_again() {
    let function = Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-deliver")), &[]).await;
    let work = r#"{"work": {"queue": "q", "jobs": [{"id": "gone", "version": 1, "run_at": 0, "granted_at": 0}, {"id": "free", "version": 1, "run_at": 0}]}}"#;
    let failed = json!({"batchItemFailures": [{"itemIdentifier": "message-1"}]});
    assert_eq!(function.call(messages([work, "{}"])).await, Ok(failed));
    assert_eq!(function.call(messages([work])).await, Ok(json!({"batchItemFailures": []})));
}

#[tokio::test]
async fn what_could_not_be_claimed_comes_again_within_seconds() {
    let function = Function::start(
        Path::new(env!("CARGO_BIN_EXE_tidegate-deliver")),
        &[("TIDEGATE_TABLE", "gone")],
    )
    .await;
    let work = r#"{"work": {"queue": "q", "jobs": [{"id": "a", "version": 1, "run_at": 0}]}}"#;
    let failed = json!({"batchItemFailures": [{"itemIdentifier": "message-0"}]});
    assert_eq!(function.call(messages_of("work", 1, [work])).await, Ok(failed));
    let again = json!({"Id": "0", "ReceiptHandle": "receipt-0", "VisibilityTimeout": 2});
    assert_eq!(function.sent(), [("work".to_owned(), again)]);
}

#[test]
fn without_a_public_url_it_does_not_start() {
    let queue = "https://sqs.us-east-1.amazonaws.com/1/q";
    let vars = [
        ("TIDEGATE_TABLE", "memory:"),
        ("TIDEGATE_BUCKET", "memory:"),
        ("TIDEGATE_WORK_QUEUE_URL", queue),
        ("TIDEGATE_HINT_QUEUE_URL", queue),
        ("TIDEGATE_WAKE_QUEUE_URL", queue),
    ];
    let ended = Command::new(env!("CARGO_BIN_EXE_tidegate-deliver"))
        .env_clear()
        .envs(vars)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("TIDEGATE_PUBLIC_URL"), "{said}");
}
