//! The stream of changes over HTTP, and the history of queues.

use serde_json::{Value, json};

use super::{
    serve::{Setup, Tidegate},
    wait::eventually,
};

/// A connection to the stream.
struct Events {
    response: reqwest::Response,
    text: String,
}

impl Events {
    async fn open(tide: &Tidegate, query: &str, after: Option<&str>) -> Self {
        let url = format!("{}/v1/stream{query}", tide.base);
        let mut request = reqwest::Client::new().get(url);
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// The name, the id and the data of the next event.
    async fn next(&mut self) -> (String, String, Value) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                if event.starts_with(':') {
                    continue;
                }
                let field = |name: &str| {
                    let found = event.lines().find_map(|line| line.strip_prefix(name));
                    found.unwrap_or_else(|| panic!("{name} in {event}")).to_owned()
                };
                let data = serde_json::from_str(&field("data: ")).unwrap();
                return (field("event: "), field("id: "), data);
            }
            let bytes = self.response.chunk().await.unwrap().expect("the stream goes on");
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }
}

#[tokio::test]
async fn a_client_follows_the_jobs_of_a_queue() {
    let tide = Tidegate::start().await;
    tide.queue("mail", json!({})).await;
    tide.job_type("letter", json!({"queue": "mail"})).await;
    tide.job_type("other", json!({})).await;
    let mut events = Events::open(&tide, "?queue=mail", None).await;
    let (name, ready, _) = events.next().await;
    assert_eq!(name, "ready");
    tide.enqueue_a("other").await;
    let id = tide.enqueue_a("letter").await;
    let lease = tide.lease(json!({"types": ["letter"], "worker": "w1"})).await.remove(0);
    tide.report(&lease, "succeeded").await.is(200);
    tide.post("/v1/queues/mail/pause", Value::Null).await.is(200);
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let (name, _, data) = events.next().await;
        if name == "job" {
            assert_eq!((&data["id"], &data["queue"]), (&json!(id), &json!("mail")));
        }
        seen.push((name, data["state"].as_str().unwrap_or_default().to_owned()));
        if data["state"] == "running" {
            assert_eq!((&data["worker"], &data["attempt"]), (&json!("w1"), &json!(1)));
        }
    }
    let expected = [("job", "scheduled"), ("job", "running"), ("job", "succeeded"), ("queue", "")];
    assert_eq!(seen, expected.map(|(name, state)| (name.to_owned(), state.to_owned())));
    // Another connection goes on where the first one began.
    let mut resumed = Events::open(&tide, "?queue=mail", Some(&ready)).await;
    assert_eq!(resumed.next().await.0, "ready");
    assert_eq!(resumed.next().await.2["state"], "scheduled");
    // One of another server cannot.
    let mut strange = Events::open(&tide, "?type=letter", Some("0123456789abcdef-5")).await;
    assert_eq!(strange.next().await.0, "skipped");
    tide.get("/v1/stream?id=a%20b").await.blames(400, "invalid_field", "id");
    tide.get("/v1/stream?since=1").await.blames(400, "unknown_parameter", "since");
}

#[tokio::test]
async fn a_stop_ends_the_streams() {
    let mut tide = Tidegate::start().await;
    let mut events = Events::open(&tide, "", None).await;
    events.next().await;
    tide.terminate();
    assert!(tide.ended().await.success());
    while events.response.chunk().await.is_ok_and(|chunk| chunk.is_some()) {}
}

/// The steps of the queue in the history: jobs in, out and failed of all of them.
async fn sums(tide: &Tidegate) -> [u64; 3] {
    let history = tide.get("/v1/queues/default/history").await.is(200);
    let points = history["points"].as_array().unwrap();
    let sum = |name: &str| points.iter().map(|point| point[name].as_u64().unwrap()).sum();
    ["enqueued", "finished", "failed"].map(sum)
}

#[tokio::test]
async fn the_history_of_a_queue_outlasts_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::dev().flag("--dir", dir.path().join("data").to_str().unwrap());
    let tide = setup.start().await;
    tide.job_type("t", json!({"max_attempts": 1})).await;
    for _ in 0..3 {
        tide.enqueue_a("t").await;
    }
    for (lease, status) in tide
        .lease(json!({"types": ["t"], "max": 2, "min": 2, "wait_seconds": 20}))
        .await
        .iter()
        .zip(["succeeded", "failed"])
    {
        tide.report(lease, status).await.is(200);
    }
    let advance = json!({"advance_seconds": 11});
    let sums_of = async |tide: &Tidegate| {
        tide.post("/v1/dev/clock", advance.clone()).await.is(200);
        let sums = sums(tide).await;
        (sums == [3, 2, 1]).then_some(())
    };
    eventually("the step is recorded", || sums_of(&tide)).await;
    let of_type = tide.get("/v1/job-types/t/history").await.is(200);
    let latest = of_type["points"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&latest["ready"], &of_type["step_seconds"]), (&json!(1), &json!(10)));
    let first = &of_type["points"][0];
    assert!(first["run_seconds"]["p99"].is_number() && first["started"] == 2, "{first}");
    let shown = tide.cli(&["queues", "history", "default"]).await.ok();
    assert!(shown.contains("jobs/s in") && shown.contains("delay p50/p99"), "{shown}");
    let tide = tide.kill().start().await;
    assert_eq!(sums(&tide).await, [3, 2, 1]);
    tide.get("/v1/queues/none/history").await.problem(404, "queue_not_found");
    tide.get("/v1/job-types/none/history").await.problem(404, "job_type_not_found");
}
