//! Servers on one database: their first token, and what any of them shows of all.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate_backends::postgres::test_server;

use super::{
    serve::{Setup, Tidegate, program},
    wait::until,
};

#[tokio::test]
async fn the_first_token_is_made_in_the_database() {
    let (address, schema) = (test_server::address("postgres"), test_server::new_name());
    let reachable = || {
        let setup = Setup::on_postgres(&address, &schema);
        setup.env("TIDEGATE_PUBLIC_URL", "https://jobs.example")
    };
    let (status, said) = reachable().refused().await;
    let command = "tidegate token create --name admin --scope admin --store";
    assert!(!status.success() && said.contains(command), "{said}");
    let mut create = program(command.split(' ').skip(1));
    // The encryption key is not needed.
    create.env("TIDEGATE_STORE", format!("{address}&schema={schema}"));
    let output = tokio::process::Command::from(create).kill_on_drop(true).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let token = String::from_utf8(output.stdout).unwrap();
    let tide = reachable().start().await;
    tide.get("/v1/tokens").await.is(401);
    let listed = tide.with_token(token.trim()).get("/v1/tokens").await.is(200);
    assert_eq!(listed["tokens"][0]["name"], "admin");
}

/// Sends an event with this id.
async fn send(tide: &Tidegate, id: &str) {
    let event = json!({"specversion": "1.0", "id": id, "source": "/bucket", "type": "put"});
    let headers = [("content-type", "application/cloudevents+json")];
    tide.send(Method::POST, "/v1/events", &headers, event.to_string()).await.is(200);
}

#[tokio::test]
async fn any_server_shows_what_all_did() {
    let (address, schema) = (test_server::address("postgres"), test_server::new_name());
    let one = Setup::on_postgres(&address, &schema).start().await;
    let two = Setup::on_postgres(&address, &schema).start().await;
    one.job_type("work", json!({})).await;
    let trigger = json!({"filter": {"type": "put"}, "enqueue": {"type": "work"}});
    one.put("/v1/triggers/uploads", trigger).await.good();
    send(&one, "1").await;
    send(&two, "2").await;
    for tide in [&one, &two] {
        let status = until(|| async {
            let trigger = tide.get("/v1/triggers/uploads").await.is(200);
            let status = trigger["status"].clone();
            (status["matched"] == 2, status)
        })
        .await;
        let recent = status["recent"].as_array().unwrap();
        let mut ids: Vec<&Value> = recent.iter().map(|of| &of["event"]["id"]).collect();
        ids.sort_unstable_by_key(ToString::to_string);
        assert_eq!(ids, [&json!("1"), &json!("2")], "{status}");
        let listed = tide.get("/v1/triggers").await.is(200);
        assert_eq!(listed["triggers"][0]["status"], status);
    }
    // What a server has not stored yet is stored at its stop.
    send(&two, "3").await;
    two.stop().await;
    until(|| async {
        let trigger = one.get("/v1/triggers/uploads").await.is(200);
        (trigger["status"]["matched"] == 3, trigger)
    })
    .await;
    one.put("/v1/workers/w", json!({})).await.good();
    let history = one.get("/v1/workers/w/history").await.is(200);
    assert_eq!(history["step_seconds"], 60);
}
