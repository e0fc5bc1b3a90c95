use serde_json::json;

use super::*;
use crate::cli::testing::FakeServer;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn event(id: &str, data: &Value) -> Value {
    json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "order", "data": data})
}

const RULE: &str = r#"{"filter": {"data": {"/kind": "paid"}},
    "enqueue": {"type": "ship", "correlation_key": {"$expr": "data.order"},
        "priority": {"$expr": "data.priority"}, "data": {"$expr": "data.lines"}}}"#;

#[tokio::test]
async fn a_rule_is_tested_without_a_server() {
    let server = FakeServer::answering(|_| (500, json!({}))).await;
    let rule = file(RULE);
    let list = json!([
        event("1", &json!({"kind": "paid", "order": "o-1", "lines": [1, 2]})),
        event("2", &json!({"kind": "open", "order": "o-2"})),
        event("3", &json!({"kind": "paid", "order": "o-3", "priority": "high"})),
        {"id": "4"},
    ]);
    let events = file(&list.to_string());
    let (rule, events) = (rule.path().to_str().unwrap(), events.path().to_str().unwrap());
    let (code, out) = server.run(&["trigger", "test", rule, events]).await;
    assert_eq!(code, ExitCode::Refused);
    insta::assert_snapshot!(out);
    let (_, out) = server.run(&["trigger", "test", rule, events, "--json"]).await;
    let value: Value = serde_json::from_str(&out).unwrap();
    let actions: Vec<_> = value["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["action"].as_str().unwrap())
        .collect();
    assert_eq!(
        (actions, &value["ok"]),
        (vec!["enqueued", "unmatched", "dead_lettered", "refused"], &json!(false))
    );
    assert_eq!(value["events"][0]["job"]["data"], json!([1, 2]));
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn events_on_lines_are_read_and_all_mapped_is_success() {
    let server = FakeServer::answering(|_| (500, json!({}))).await;
    let rule = file(
        r#"{"complete": {"type": "ask", "correlation_key": {"$expr": "data.key"},
            "status": {"$expr": "data.ok"}}}"#,
    );
    let lines = format!(
        "{}\n{}\n\n",
        event("1", &json!({"key": "a", "ok": true})),
        event("2", &json!({"key": "b", "ok": false}))
    );
    let events = file(&lines);
    let (code, out) = server
        .run(&["trigger", "test", rule.path().to_str().unwrap(), events.path().to_str().unwrap()])
        .await;
    assert_eq!(code, ExitCode::Ok, "{out}");
    assert!(
        out.contains("\"status\":\"failed\"") && out.contains("\"status\":\"succeeded\""),
        "{out}"
    );
}

#[cfg(feature = "aws")]
#[tokio::test]
async fn a_lambda_payload_is_read_as_its_events() {
    let server = FakeServer::answering(|_| (500, json!({}))).await;
    let rule =
        file(r#"{"filter": {"type": "org.apache.kafka.Record"}, "enqueue": {"type": "ship"}}"#);
    let payload = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/events/msk.json");
    let (code, out) =
        server.run(&["trigger", "test", rule.path().to_str().unwrap(), payload, "--json"]).await;
    let value: Value = serde_json::from_str(&out).unwrap();
    let actions: Vec<_> = value["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["action"].as_str().unwrap())
        .collect();
    assert_eq!(
        (code, actions),
        (
            ExitCode::Ok,
            vec!["enqueued", "enqueued", "enqueued", "unmatched", "unmatched", "enqueued"]
        )
    );
}

#[tokio::test]
async fn an_invalid_rule_is_rejected_with_its_field() {
    let server = FakeServer::answering(|_| (500, json!({}))).await;
    let events = file("[]");
    for rule in ["{\"enqueue\": {\"type\": \"a b\"}}", "{\"filter\": {\"typ\": 1}}", "{"] {
        let rule = file(rule);
        let (code, _) = server
            .run(&[
                "trigger",
                "test",
                rule.path().to_str().unwrap(),
                events.path().to_str().unwrap(),
            ])
            .await;
        assert_eq!(code, ExitCode::Refused);
    }
    let (code, _) =
        server.run(&["trigger", "test", "/no/such/rule", events.path().to_str().unwrap()]).await;
    assert_eq!(code, ExitCode::Usage);
}

#[tokio::test]
async fn triggers_are_put_listed_and_deleted() {
    let rule: Value = serde_json::from_str(RULE).unwrap();
    let mut shown = rule.clone();
    shown["name"] = json!("orders");
    shown["version"] = json!(1);
    let server = FakeServer::answering(move |seen| match seen.method.as_str() {
        "GET" => {
            let replies = json!({
                "name": "replies", "filter": {}, "complete": {"type": "ask"}, "version": 3,
            });
            (200, json!({"triggers": [shown.clone(), replies]}))
        }
        "DELETE" => (204, Value::Null),
        _ => (201, shown.clone()),
    })
    .await;
    assert_eq!(server.run(&["trigger", "put", "orders", "--config", RULE]).await.0, ExitCode::Ok);
    assert_eq!(server.run(&["trigger", "delete", "orders"]).await.0, ExitCode::Ok);
    let seen = server.seen();
    assert_eq!((seen[0].line().as_str(), &seen[0].body), ("PUT /v1/triggers/orders", &rule));
    assert_eq!(seen[1].line(), "DELETE /v1/triggers/orders");
    insta::assert_snapshot!(server.run(&["trigger", "list"]).await.1);
}

#[tokio::test]
async fn a_trigger_of_the_server_is_tested_with_a_file() {
    let server = FakeServer::answering(|seen| match seen.body["id"].as_str() {
        Some("1") => (200, json!({"action": "enqueued", "job": {"type": "ship", "id": "ev-1"}})),
        Some("2") => (200, json!({"action": "unmatched"})),
        _ => (200, json!({"action": "dead_lettered", "reason": "priority: must be a number"})),
    })
    .await;
    let list = json!([event("1", &json!({"kind": "paid"})), event("2", &json!({}))]);
    let events = file(&list.to_string());
    let path = events.path().to_str().unwrap();
    let (code, out) = server.run(&["trigger", "test", "orders", "--file", path]).await;
    assert_eq!(code, ExitCode::Ok);
    let lines: Vec<Vec<&str>> =
        out.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    let table =
        [["event", "type", "action"], ["1", "order", "enqueued"], ["2", "order", "unmatched"]];
    assert_eq!(lines, table);
    let seen = server.seen();
    assert_eq!(seen[0].line(), "POST /v1/triggers/orders/test");
    assert_eq!(seen[0].body, list[0]);

    let third = file(&event("3", &json!({})).to_string());
    let third = third.path().to_str().unwrap();
    let two = ["trigger", "test", "orders", "--file", path, "--file", third, "--json"];
    let (code, out) = server.run(&two).await;
    let outcome: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &outcome["ok"]), (ExitCode::Refused, &json!(false)));
    assert_eq!(outcome["events"][2]["reason"], "priority: must be a number");
}
