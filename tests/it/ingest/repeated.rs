//! What a store that does not answer leads to: the source is told what is to come again, and in the end everything was done once.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::place::{Place, message, recorded, records};

/// Good records and one that is no event, of each source that is told in its own way.
fn mixed(kind: &str) -> (Value, usize) {
    let mut payload = recorded(kind);
    match kind {
        "sqs" => payload["Records"].as_array_mut().unwrap().push(message("bad", r#"{"specversion": "1.0"}"#)),
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

/// What the source sends again after `answer`: by name, or everything.
fn again(kind: &str, payload: &Value, answer: Result<Value, impl std::fmt::Display>) -> Option<Value> {
    let Ok(answer) = answer else { return Some(payload.clone()) };
    let names: BTreeSet<&str> =
        answer["batchItemFailures"].as_array().unwrap().iter().map(|failure| failure["itemIdentifier"].as_str().unwrap()).collect();
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
    let named: Vec<Value> = all.iter().filter(|record| name(record).as_str().is_some_and(|name| names.contains(name))).cloned().collect();
    assert_eq!(named.len(), names.len(), "each name is that of a record");
    Some(records(named))
}

#[tokio::test]
async fn wherever_the_store_stops_answering_everything_is_done_once_in_the_end() {
    for kind in ["sqs", "kinesis", "dynamodb", "msk", "sns"] {
        let (payload, good) = mixed(kind);
        let place = Place::seeing().await;
        let before = place.store.writes();
        place.taken(&payload).await;
        let writes = place.store.writes() - before;
        for left in 0..=writes {
            let place = Place::seeing().await;
            place.store.crash_after(left);
            let answer = place.call(&payload).await;
            assert_eq!(answer.is_err() || answer.as_ref().is_ok_and(|answer| *answer != json!({"batchItemFailures": []})), left < writes);
            place.store.revive();
            let mut next = again(kind, &payload, answer);
            while let Some(payload) = next {
                next = again(kind, &payload, place.call(&payload).await);
            }
            assert_eq!((place.seen().await.len(), place.dead().await.len()), (good, 1), "{kind}, stopped after {left}");
        }
    }
}

#[tokio::test]
async fn only_what_was_not_taken_is_named() {
    let place = Place::seeing().await;
    let message = |n: usize| message(&n.to_string(), format!("{{\"n\": {n}}}"));
    // The first thousand are written, and then the store is gone.
    let first = records((0..1000).map(message));
    let before = place.store.writes();
    place.taken(&first).await;
    let writes = place.store.writes() - before;
    let place = Place::seeing().await;
    place.store.crash_after(writes);
    let answer = place.call(&records((0..1500).map(message))).await.unwrap();
    let named: Vec<&str> =
        answer["batchItemFailures"].as_array().unwrap().iter().map(|failure| failure["itemIdentifier"].as_str().unwrap()).collect();
    assert_eq!(named, (1000..1500).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn nothing_taken_is_an_error_which_any_source_understands() {
    for kind in ["sqs", "kinesis", "dynamodb", "msk", "sns", "s3", "eventbridge", "cloudevent"] {
        let place = Place::seeing().await;
        place.store.crash_after(0);
        let error = place.call(&recorded(kind)).await.unwrap_err().to_string();
        assert!(error.ends_with("the read was not answered"), "{error}");
        place.store.revive();
        place.taken(&recorded(kind)).await;
    }
}
