//! A server whose encryption key is lost: its types get their secrets again.

use serde_json::json;

use super::{serve::Tidegate, target::Target};

#[tokio::test]
async fn a_type_whose_key_is_lost_is_replaced_by_force() {
    let tide = Tidegate::start().await;
    let target = Target::start(|_| async { "" }).await;
    tide.queue("other", json!({})).await;
    let config = |queue: &str, secret: &str| {
        let target = json!({"url": target.url, "headers": {"x-key": secret}});
        json!({"queue": queue, "target": target})
    };
    tide.job_type("push", config("default", "first")).await;
    tide.post("/v1/queues/default/pause", json!(null)).await.is(200);
    let id = tide.enqueue_a("push").await;
    let setup = tide.stop().await;
    let key = setup.data().join("key");
    std::fs::remove_file(&key).unwrap();

    let tide = setup.start().await;
    let path = "/v1/job-types/push";
    tide.get(path).await.problem(503, "unavailable");
    tide.put(path, config("default", "second")).await.problem(503, "unavailable");
    let forced = format!("{path}?force=true");
    // Its job waits in the queue of before.
    tide.put(&forced, config("other", "second")).await.problem(409, "type_has_live_jobs");
    let stale = tide.send(
        reqwest::Method::PUT,
        &forced,
        &[("content-type", "application/json"), ("if-match", "\"77\"")],
        config("default", "second").to_string(),
    );
    stale.await.problem(412, "precondition_failed");
    // A lost key is not replaced unasked.
    tide.put(&forced, config("default", "second")).await.problem(503, "unavailable");
    std::fs::write(&key, "bmV3IGtleSBvZiB0aGlydHktdHdvIGJ5dGVzLCB5ZXM=").unwrap();
    let settings = config("default", "second").to_string();
    let args = ["types", "put", "push", "--force", "--config", &settings];
    assert!(tide.cli(&args).await.ok().contains("push"));
    tide.post("/v1/queues/default/resume", json!(null)).await.is(200);
    tide.job_in(&id, "succeeded").await;
    assert_eq!(target.call(1).await.header("x-key"), "second");

    // A type that can be read is replaced as without force.
    tide.put(&forced, config("default", "third")).await.is(200);
}
