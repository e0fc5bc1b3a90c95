use super::*;
use crate::cli::testing::FakeServer;

#[tokio::test]
async fn an_event_is_sent_with_its_options() {
    let server = FakeServer::answering(|_| {
        let outcome = json!({
            "trigger": "orders", "action": "enqueued", "job": "ev-1", "type": "ship",
        });
        (200, json!({"id": "1", "source": "/shop", "outcomes": [outcome]}))
    })
    .await;
    let args = [
        "event",
        "send",
        "--type",
        "order",
        "--source",
        "/shop",
        "--id",
        "1",
        "--extension",
        "region=east",
        "--data",
        "{\"n\": 1.0e2}",
    ];
    assert_eq!(
        server.run(&args).await,
        (ExitCode::Ok, "1: orders: enqueued ship ev-1\n".to_owned())
    );
    let seen = server.seen();
    let wanted = json!({
        "specversion": "1.0", "id": "1", "source": "/shop", "type": "order", "region": "east",
        "data": {"n": 100.0},
    });
    assert_eq!((seen[0].line().as_str(), &seen[0].body), ("POST /v1/events", &wanted));
}

#[tokio::test]
async fn a_file_of_events_goes_in_batches() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let event = |id: usize| {
        json!({
            "specversion": "1.0", "id": id.to_string(), "source": "/s", "type": "t",
        })
    };
    std::fs::write(file.path(), json!((0..250).map(event).collect::<Vec<_>>()).to_string())
        .unwrap();
    let server = FakeServer::answering(|seen| {
        let none = json!({"status": 200, "event": {"id": "x", "source": "/s", "outcomes": []}});
        let mut results = vec![none; seen.body.as_array().unwrap().len()];
        let error = json!({"title": "Invalid field", "detail": "id: is required"});
        results[0] = json!({"status": 400, "error": error});
        (200, json!({ "results": results }))
    })
    .await;
    let (code, out) = server.run(&["event", "send", "--file", file.path().to_str().unwrap()]).await;
    assert_eq!((code, server.seen().len()), (ExitCode::Refused, 2));
    assert!(out.starts_with("rejected: id: is required\nx: no trigger matches\n"), "{out}");
}

#[tokio::test]
async fn dead_letters_are_listed_newest_first_and_replayed() {
    let letter = |id: &str, at: &str| {
        json!({
            "id": id, "trigger": "orders", "reason": "priority: no", "failed_at": at,
            "event": {"id": "1", "type": "order"},
        })
    };
    let letters = [letter("a", "2001-09-09T01:46:30Z"), letter("b", "2001-09-09T01:46:40Z")];
    let page = json!({"dead_letters": letters});
    let server =
        FakeServer::answering(move |seen| match (seen.method.as_str(), seen.path.as_str()) {
            ("GET", _) => (200, page.clone()),
            (_, "/v1/dead-letters/replay") if seen.body["cursor"].is_null() => {
                (200, json!({"replayed": 100, "remaining": 0, "next_cursor": "x"}))
            }
            (_, "/v1/dead-letters/replay") => (200, json!({"replayed": 5, "remaining": 1})),
            _ => (200, json!({"action": "dead_lettered", "letter": "a", "reason": "priority: no"})),
        })
        .await;
    let (code, out) = server.run(&["event", "dead-letters", "--trigger", "orders"]).await;
    assert_eq!(code, ExitCode::Ok);
    assert!(out.find("b ").unwrap() < out.find("\na ").unwrap(), "{out}");
    assert_eq!(server.seen()[0].path, "/v1/dead-letters?trigger=orders&limit=100");
    assert_eq!(
        server.run(&["event", "replay", "--all"]).await,
        (ExitCode::Refused, "replayed 105, 1 remain dead letters\n".to_owned())
    );
    let (code, out) = server.run(&["event", "replay", "a"]).await;
    assert_eq!((code, out.as_str()), (ExitCode::Refused, "a: dead letter a: priority: no\n"));
    assert_eq!(server.run(&["event", "delete", "a", "b"]).await.0, ExitCode::Ok);
    assert_eq!(server.seen().last().unwrap().line(), "DELETE /v1/dead-letters/b");
}
