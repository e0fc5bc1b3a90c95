//! Runs the real binary against a runtime API that sends messages in the form of Lambda's poller.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

use std::{path::Path, process::Command};

use serde_json::json;
use tidegate_server::lambda::testkit::{Function, KEY_PARAMETER, messages, messages_of};

#[tokio::test]
async fn a_message_of_a_missing_job_is_done_a_malformed_one_fails() {
    let function = Function::start(Path::new(env!("CARGO_BIN_EXE_tidegate-deliver")), &[]).await;
    let work = r#"{"work": {"queue": "q", "jobs": [
        {"id": "gone", "version": 1, "run_at": 0, "granted_at": 0},
        {"id": "free", "version": 1, "run_at": 0}]}}"#;
    let failed = json!({"batchItemFailures": [{"itemIdentifier": "message-1"}]});
    assert_eq!(function.call(messages([work, "{}"])).await, Ok(failed));
    assert_eq!(function.call(messages([work])).await, Ok(json!({"batchItemFailures": []})));
}

#[tokio::test]
async fn an_unclaimed_message_is_redelivered_within_seconds() {
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

#[tokio::test]
async fn the_key_is_read_from_a_parameter_at_the_start() {
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate-deliver"));
    let parameter = "TIDEGATE_ENCRYPTION_KEY_PARAMETER";
    let vars = [("TIDEGATE_ENCRYPTION_KEY", ""), (parameter, KEY_PARAMETER)];
    let function = Function::start(binary, &vars).await;
    let done = json!({"batchItemFailures": []});
    assert_eq!(
        function.call(messages([r#"{"work": {"queue": "q", "jobs": []}}"#])).await,
        Ok(done)
    );
    let vars = [("TIDEGATE_ENCRYPTION_KEY", ""), (parameter, "/another")];
    let mut function = Function::start(binary, &vars).await;
    assert!(!function.ended().await.success());
}

#[test]
fn the_function_does_not_start_without_a_public_url() {
    let queue = "https://sqs.us-east-1.amazonaws.com/1/q";
    let vars = [
        ("TIDEGATE_TABLE", "memory:"),
        ("TIDEGATE_BUCKET", "memory:"),
        ("TIDEGATE_ENCRYPTION_KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="),
        ("TIDEGATE_WORK_QUEUE_URL", queue),
        ("TIDEGATE_HINT_QUEUE_URL", queue),
        ("TIDEGATE_TIMER_QUEUE_URL", queue),
    ];
    let ended = Command::new(env!("CARGO_BIN_EXE_tidegate-deliver"))
        .env_clear()
        .envs(vars)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && stderr.contains("TIDEGATE_PUBLIC_URL"), "{stderr}");
}
