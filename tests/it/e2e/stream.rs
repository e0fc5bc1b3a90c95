//! The stream of changes over HTTP, and the history of queues.

use serde_json::{Value, json};
use tidegate_backends::postgres::test_server;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    api::Api,
    serve::{Setup, Tidegate},
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
    assert_eq!(resumed.next().await.2["resumed"], true);
    assert_eq!(resumed.next().await.2["state"], "scheduled");
    // One of another server cannot.
    let mut strange = Events::open(&tide, "?type=letter", Some("0123456789abcdef-5")).await;
    assert_eq!(strange.next().await.2["resumed"], false);
    assert_eq!(strange.next().await.0, "skipped");
    tide.get("/v1/stream?id=a%20b").await.blames(400, "invalid_field", "id");
    tide.get("/v1/stream?since=1").await.blames(400, "unknown_parameter", "since");
}

#[tokio::test]
async fn servers_on_one_database_send_the_changes_of_all() {
    let (address, schema) = (test_server::address("postgres"), test_server::new_name());
    let one = Setup::on_postgres(&address, &schema).start().await;
    let two = Setup::on_postgres(&address, &schema).start().await;
    one.job_type("t", json!({})).await;
    assert_eq!(two.get("/v1/session").await.is(200)["server"]["stream"], true);
    let mut events = Events::open(&two, "?type=t", None).await;
    assert_eq!(events.next().await.0, "ready");
    for tide in [&one, &two, &one] {
        let id = tide.enqueue_a("t").await;
        loop {
            let (name, _, data) = events.next().await;
            if name == "job" {
                assert_eq!((&data["id"], &data["state"]), (&json!(id), &json!("scheduled")));
                break;
            }
            // A server that is slow to begin.
            assert_eq!(name, "skipped");
        }
    }
    let mut elsewhere = Events::open(&one, "?type=t", None).await;
    assert_eq!(elsewhere.next().await.0, "ready");
    let lease = two.lease_one("t").await;
    for events in [&mut events, &mut elsewhere] {
        while events.next().await.2["state"] != "running" {}
    }
    two.report(&lease, "succeeded").await.is(200);
}

#[tokio::test]
async fn a_stop_ends_the_streams() {
    let mut tide = Tidegate::start().await;
    let mut events = Events::open(&tide, "", None).await;
    events.next().await;
    tide.terminate();
    assert!(tide.ended().await.success());
    while events.response.chunk().await.is_ok_and(|chunk| chunk.is_some()) {}
    assert!(!tide.log().contains("responses were still in progress"), "{}", tide.log());
}

#[tokio::test]
async fn a_quiet_stream_is_no_idle_connection() {
    let setup = Setup::new().env("TIDEGATE_IDLE_TIMEOUT_SECONDS", "1");
    let tide = setup.start().await;
    tide.job_type("t", json!({})).await;
    let mut events = Events::open(&tide, "", None).await;
    assert_eq!(events.next().await.0, "ready");
    // An idle connection is closed meanwhile.
    let mut idle = TcpStream::connect(tide.base.trim_start_matches("http://")).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    idle.read_to_end(&mut Vec::new()).await.unwrap();
    // By a new connection: the one before was idle, too.
    let id = Api::at(tide.base.clone()).enqueue_a("t").await;
    assert_eq!(events.next().await.2["id"], json!(id));
}

/// The steps of the queue in the history: jobs in, out and failed of all of them.
async fn sums(tide: &Tidegate) -> [u64; 3] {
    let history = tide.get("/v1/queues/default/history").await.is(200);
    let points = history["points"].as_array().unwrap();
    let sum = |name: &str| points.iter().map(|point| point[name].as_u64().unwrap()).sum();
    ["enqueued", "finished", "failed"].map(sum)
}

#[tokio::test]
async fn the_history_of_a_queue_outlasts_a_restart() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"max_attempts": 1})).await;
    for _ in 0..3 {
        tide.enqueue_a("t").await;
    }
    let lease = json!({"types": ["t"], "max": 2, "min": 2, "wait_seconds": 20});
    for (lease, status) in tide.lease(lease).await.iter().zip(["succeeded", "failed"]) {
        tide.report(lease, status).await.is(200);
    }
    // What happened in the step under way is stored at the stop.
    let tide = tide.stop().await.start().await;
    assert_eq!(sums(&tide).await, [3, 2, 1]);
    let of_type = tide.get("/v1/job-types/t/history").await.is(200);
    let points = of_type["points"].as_array().unwrap();
    let started: u64 = points.iter().filter_map(|point| point["started"].as_u64()).sum();
    assert_eq!((started, &of_type["step_seconds"]), (2, &json!(10)));
    assert!(points.iter().any(|point| point["run_seconds"]["p99"].is_number()), "{of_type}");
    let shown = tide.cli(&["queues", "history", "default"]).await.ok();
    assert!(shown.contains("jobs/s in") && shown.contains("delay p50/p99"), "{shown}");
    let day = tide.get("/v1/queues/default/history?range=day").await.is(200);
    assert_eq!(
        (&day["step_seconds"], &day["throughput"]["over_seconds"].is_number()),
        (&json!(300), &true)
    );
    let wrong = tide.get("/v1/job-types/t/history?range=week").await;
    assert_eq!(wrong.problem(400, "invalid_field")["field"], "range");
    let shown = tide.cli(&["types", "history", "t", "--range", "day"]).await.ok();
    assert!(shown.contains("jobs/s in"), "{shown}");
    tide.get("/v1/queues/none/history").await.problem(404, "queue_not_found");
    tide.get("/v1/job-types/none/history").await.problem(404, "job_type_not_found");
}
