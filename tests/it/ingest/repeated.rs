//! A store that does not answer: the source redelivers the failed records, and each is processed
//! once.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::harness::{Harness, message, recorded, records};

/// Valid records and a malformed one, of each source with its own kind of failure response.
fn mixed(kind: &str) -> (Value, usize) {
    let mut payload = recorded(kind);
    match kind {
        "sqs" => payload["Records"]
            .as_array_mut()
            .unwrap()
            .push(message("bad", r#"{"specversion": "1.0"}"#)),
        "kinesis" => payload["Records"][1]["kinesis"]["data"] = json!("%"),
        "dynamodb" => payload["Records"][1]["dynamodb"]["SequenceNumber"] = json!(7),
        "msk" => payload["records"]["replies-0"][2]["value"] = json!("%"),
        "sns" => payload["Records"][0]["Sns"]["Message"] = json!(r#"{"specversion": "1.0"}"#),
        _ => panic!("{kind}"),
    }
    let good = match kind {
        "kinesis" => 3,
        "msk" => 5,
        "sns" => 0,
        _ => 2,
    };
    (payload, good)
}

/// The records that the source redelivers after `answer`: some by id, or all.
fn again(
    kind: &str,
    payload: &Value,
    answer: Result<Value, impl std::fmt::Display>,
) -> Option<Value> {
    let Ok(answer) = answer else {
        return Some(payload.clone());
    };
    let names: BTreeSet<&str> = answer["batchItemFailures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|failure| failure["itemIdentifier"].as_str().unwrap())
        .collect();
    if names.is_empty() {
        return None;
    }
    let name = |record: &Value| match kind {
        "sqs" => record["messageId"].clone(),
        "kinesis" => record["kinesis"]["sequenceNumber"].clone(),
        "dynamodb" => record["dynamodb"]["SequenceNumber"].clone(),
        _ => panic!("{kind} has no names"),
    };
    let all = payload["Records"].as_array().unwrap();
    let named: Vec<Value> = all
        .iter()
        .filter(|record| name(record).as_str().is_some_and(|name| names.contains(name)))
        .cloned()
        .collect();
    assert_eq!(named.len(), names.len(), "each name is that of a record");
    Some(records(named))
}

#[tokio::test]
async fn a_store_outage_at_any_point_still_does_everything_once() {
    for kind in ["sqs", "kinesis", "dynamodb", "msk", "sns"] {
        let (payload, good) = mixed(kind);
        let harness = Harness::seeing().await;
        let before = harness.store.writes();
        harness.taken(&payload).await;
        let writes = harness.store.writes() - before;
        for left in 0..=writes {
            let harness = Harness::seeing().await;
            harness.store.crash_after(left);
            let answer = harness.call(&payload).await;
            assert_eq!(
                answer.is_err()
                    || answer
                        .as_ref()
                        .is_ok_and(|answer| *answer != json!({"batchItemFailures": []})),
                left < writes
            );
            harness.store.revive();
            let mut next = again(kind, &payload, answer);
            while let Some(payload) = next {
                next = again(kind, &payload, harness.call(&payload).await);
            }
            assert_eq!(
                (harness.seen().await.len(), harness.dead().await.len()),
                (good, 1),
                "{kind}, stopped after {left}"
            );
        }
    }
}

/// Record `n` of a source that names its records, and its name.
fn numbered(kind: &str, n: usize) -> (Value, String) {
    let (mut record, name) = (recorded(kind)["Records"][0].take(), format!("name-{n}"));
    let (id, named) = match kind {
        "sqs" => ("/messageId", "/messageId"),
        "kinesis" => ("/eventID", "/kinesis/sequenceNumber"),
        _ => ("/eventID", "/dynamodb/SequenceNumber"),
    };
    *record.pointer_mut(id).unwrap() = json!(format!("id-{n}"));
    *record.pointer_mut(named).unwrap() = json!(name);
    (record, name)
}

#[tokio::test]
async fn only_what_was_not_taken_is_named() {
    for kind in ["sqs", "kinesis", "dynamodb"] {
        let (all, names): (Vec<Value>, Vec<String>) = (0..1200).map(|n| numbered(kind, n)).unzip();
        // The first thousand are written, and then the store is gone.
        let harness = Harness::seeing().await;
        let before = harness.store.writes();
        harness.taken(&records(all[..1000].to_vec())).await;
        let writes = harness.store.writes() - before;
        let harness = Harness::seeing().await;
        harness.store.crash_after(writes);
        let answer = harness.call(&records(all)).await.unwrap();
        let failures = answer["batchItemFailures"].as_array().unwrap();
        let named: Vec<&str> =
            failures.iter().map(|failure| failure["itemIdentifier"].as_str().unwrap()).collect();
        assert_eq!(named, names[1000..], "{kind}");
    }
}

#[tokio::test]
async fn a_call_that_stores_nothing_fails_for_every_source() {
    for kind in ["sqs", "kinesis", "dynamodb", "msk", "sns", "s3", "eventbridge", "cloudevent"] {
        let harness = Harness::seeing().await;
        harness.store.crash_after(0);
        let error = harness.call(&recorded(kind)).await.unwrap_err().to_string();
        assert!(error.contains("all must be redelivered: the read was not answered"), "{error}");
        harness.store.revive();
        harness.taken(&recorded(kind)).await;
    }
}
