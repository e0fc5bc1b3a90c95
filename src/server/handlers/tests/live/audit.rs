//! The audit log: every change by a caller is in it.

use std::{collections::BTreeSet, time::Duration};

use futures_util::poll;
use serde_json::{Value, json};

use super::{super::ask, MSGPACK, json, router};
use crate::handlers::{audit, openapi};

/// The actions in the log, newest first, with their callers.
async fn entries(router: &axum::Router) -> Vec<Value> {
    let (status, page) = json(router, "GET", "/v1/audit", Value::Null).await;
    assert_eq!(status, 200, "{page}");
    page["entries"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_change_is_in_the_audit_log() {
    let router = router().await;
    let before = entries(&router).await.len();
    let ops = ("authorization", "Bearer admin;name=ops");
    let limit = json!({"concurrency": 5}).to_string();
    let (made, _) = ask(&router, "PUT", "/v1/queues/mail", &[ops], limit).await;
    assert_eq!(made.status(), 201);
    let (paused, _) =
        ask(&router, "POST", "/v1/queues/mail/pause", &[ops, ("x-request-id", "r-1")], "").await;
    assert_eq!(paused.status(), 200);
    let token = json!({"name": "ci", "scopes": ["read"]});
    let (_, made) = json(&router, "POST", "/v1/tokens", token.clone()).await;
    let (mut packed, limit) = (Vec::new(), ("concurrency".into(), 6.into()));
    rmpv::encode::write_value(&mut packed, &rmpv::Value::Map(vec![limit])).unwrap();
    let (put, _) = ask(&router, "PUT", "/v1/queues/mail?force=true", &[ops, MSGPACK], packed).await;
    assert_eq!(put.status(), 200);
    // Neither a refused change, a read, nor the work of a producer.
    ask(&router, "POST", "/v1/queues/none/pause", &[("authorization", "Bearer read")], "").await;
    ask(&router, "PUT", "/v1/queues/mail", &[ops], r#"{"nonsense": 1}"#).await;
    json(&router, "GET", "/v1/queues/mail", Value::Null).await;
    json(&router, "POST", "/v1/jobs", json!({"type": "invoice", "data": 1})).await;
    let entries = entries(&router).await;
    let new = &entries[..entries.len() - before];
    let of = |name: &str| -> Vec<Value> { new.iter().map(|entry| entry[name].clone()).collect() };
    assert_eq!(of("action"), ["put_queue", "create_token", "pause_queue", "put_queue"]);
    assert_eq!(of("caller"), ["ops", "someone", "ops", "ops"]);
    let paths = ["/v1/queues/mail", "/v1/tokens", "/v1/queues/mail/pause", "/v1/queues/mail"];
    assert_eq!(of("path"), paths);
    let with = [json!({"concurrency": 6}), token, Value::Null, json!({"concurrency": 5})];
    assert_eq!(of("with"), with);
    assert_eq!((&new[0]["query"], &new[2]["request_id"]), (&json!("force=true"), &json!("r-1")));
    let secret = made["token"].as_str().unwrap().rsplit('_').next().unwrap();
    assert!(!json!(entries).to_string().contains(secret));
}

#[tokio::test]
async fn a_change_is_audited_although_its_caller_hangs_up() {
    let router = router().await;
    let before = entries(&router).await.len();
    let admin = [("authorization", "Bearer admin;name=ops")];
    let mut change = Box::pin(ask(&router, "POST", "/v1/queues/default/pause", &admin, ""));
    assert!(poll!(&mut change).is_pending());
    drop(change);
    let seen = async {
        while entries(&router).await.len() == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), seen).await.unwrap();
}

#[tokio::test]
async fn the_audit_log_has_pages() {
    let router = router().await;
    for _ in 0..5 {
        json(&router, "POST", "/v1/queues/default/pause", Value::Null).await;
    }
    let all = entries(&router).await;
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/audit?limit=2{cursor}");
        let (_, page) = json(&router, "GET", &path, Value::Null).await;
        paged.extend(page["entries"].as_array().unwrap().clone());
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert!(all.len() >= 5);
    assert_eq!(paged, all);
}

/// A new route that changes something is audited, unless it is added to the exempt ones here.
#[test]
fn every_changing_route_is_audited_or_exempt() {
    let operations = openapi::OPERATIONS.iter();
    let exempt: BTreeSet<&str> =
        operations.filter(|operation| !audit::is_audited(operation)).map(|of| of.id).collect();
    let named = BTreeSet::from(audit::NOT_AUDITED);
    assert_eq!(exempt, named, "every exempt operation exists, and no other route is left out");
}
