//! A live queue recorded as a trace and simulated again: both must agree.

use std::process::Stdio;

use serde_json::{Value, json};

use super::{
    serve::{Tidegate, program},
    wait::eventually,
};

#[tokio::test]
async fn a_trace_of_a_live_queue_is_simulated_and_agrees_with_it() {
    let tide = Tidegate::start().await;
    let each = json!({"name": "each", "per": "region", "concurrency": 1});
    tide.queue("q", json!({"concurrency": 3, "constraints": [each]})).await;
    tide.job_type("t", json!({"queue": "q", "attributes": {"region": "/region"}})).await;
    tide.job_type("other", json!({})).await;
    tide.enqueue_a("other").await;
    let mut command = program(["work", "--type", "t", "--concurrency", "4", "--", "sleep", "0.5"]);
    command.env("TIDEGATE_URL", &tide.base).stdout(Stdio::null()).stderr(Stdio::null());
    let _worker = tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap();
    eventually("the worker asks for jobs", || async {
        let workers = tide.get("/v1/workers").await.is(200);
        (!workers["workers"].as_array().unwrap().is_empty()).then_some(())
    })
    .await;
    let mut ids = Vec::new();
    for region in ["east", "east", "north", "east", "west", "east", "north"] {
        ids.push(tide.enqueue(json!({"type": "t", "data": {"region": region}})).await);
    }
    for id in &ids {
        tide.job_in(id, "succeeded").await;
    }

    let trace = tide.cli(&["plugin", "trace", "q"]).await.ok();
    let parsed: Value = serde_json::from_str(&trace).unwrap();
    assert_eq!(parsed["jobs"].as_array().unwrap().len(), ids.len(), "{parsed:#}");
    assert_eq!(
        (&parsed["name"], &parsed["queue"]["concurrency"], &parsed["jobs"][0]["data"]),
        (&json!("q"), &json!(3), &Value::Null)
    );
    assert!(parsed["types"]["t"].is_object() && parsed["types"]["other"].is_null(), "{parsed:#}");

    let dir = tempfile::tempdir().unwrap();
    let (file, picture) = (dir.path().join("trace.json"), dir.path().join("out.svg"));
    std::fs::write(&file, &trace).unwrap();
    let (file, picture) = (file.to_str().unwrap(), picture.to_str().unwrap());
    let out =
        tide.cli(&["simulate", file, "--by", "region", "--picture", picture, "--json"]).await.ok();
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&out["real"]["all"]["succeeded"], &out["simulated"]["all"]["succeeded"]),
        (&json!(ids.len()), &json!(ids.len()))
    );
    for row in out["real"]["groups"].as_array().unwrap() {
        assert_eq!(row["most_running"], 1, "{row:#}");
    }
    let agreement = &out["agreement"];
    assert_eq!(agreement["jobs"], json!(ids.len()));
    // They differ only by the time that the live queue needs from a result to the next start,
    // mostly the worker's on a busy machine.
    let part = agreement["overlap"]["east"].as_f64().unwrap();
    assert!(part > 0.5, "{agreement:#}");
    let longest = |side: &str| agreement[side]["longest"].as_f64().unwrap();
    // The last job came some milliseconds after the first one.
    assert!(
        longest("simulated_wait_seconds") >= 1.4
            && longest("simulated_wait_seconds") <= longest("real_wait_seconds"),
        "{agreement:#}"
    );
    assert!(std::fs::read_to_string(picture).unwrap().contains("what the queue really did"));
    assert_eq!(tide.cli(&["plugin", "trace", "missing"]).await.code, Some(4));
}

#[tokio::test]
async fn a_queue_is_simulated_with_a_change_by_a_command() {
    let tide = Tidegate::start().await;
    tide.queue("q", json!({"concurrency": 3})).await;
    tide.job_type("t", json!({"queue": "q", "attributes": {"region": "/region"}})).await;
    assert_eq!(tide.cli(&["queues", "simulate", "q"]).await.code, Some(1), "nothing was recorded");
    for region in ["east", "north", "east", "east"] {
        tide.enqueue(json!({"type": "t", "data": {"region": region}})).await;
    }
    for _ in 0..4 {
        let lease = tide.lease_one("t").await;
        tide.report(&lease, "succeeded").await.is(200);
    }
    let change = ["--limit", "1", "--rate", "2/1s", "--order", "priority", "--by", "region"];
    let simulate = [&["queues", "simulate", "q"][..], &change].concat();
    let shown = tide.cli(&simulate).await.ok();
    let row = |name: &str| -> Vec<&str> {
        let line = shown.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name} in {shown}")).split_whitespace().collect()
    };
    assert!(shown.starts_with("4 jobs, "), "{shown}");
    assert_eq!(row("limit "), ["limit", "3", "3", "1"]);
    assert_eq!(row("finished"), ["finished", "4", "4", "4"]);
    assert_eq!(row("east")[1], "3", "{shown}");
    let json = tide.cli(&[&simulate[..], &["--json"]].concat()).await.ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    let ended = json["changed"]["drained_after_seconds"].as_f64().unwrap();
    assert!(ended >= 1.0, "two start in a second: {json}");
    let unknown = tide.cli(&["queues", "simulate", "q", "--limit", "none=3"]).await;
    assert_eq!(unknown.code, Some(2));
    let queue = tide.get("/v1/queues/q").await.is(200);
    assert_eq!((&queue["concurrency"], &queue["constraints"]), (&json!(3), &json!([])));
}
