//! Metrics: the same for Prometheus and CloudWatch, without the excluded ones.

use std::fs;

use serde_json::{Value, json};

use super::{serve::Setup, wait::until};

/// The lines of a text, each the JSON of a line for CloudWatch.
fn lines(text: &str) -> Vec<Value> {
    let line = |line: &str| {
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(value["_aws"]["CloudWatchMetrics"][0]["Metrics"][0]["Name"].is_string(), "{line}");
        value
    };
    text.lines().map(line).collect()
}

/// The sum of what a counter grew by.
fn sum(lines: &[Value], metric: &str) -> u64 {
    lines.iter().filter_map(|line| line[metric].as_u64()).sum()
}

#[tokio::test]
async fn cloudwatch_metrics_own_stdout_and_are_flushed_at_the_stop() {
    let setup = Setup::new()
        .env("TIDEGATE_EMF__OUTPUT", "stdout")
        .env("TIDEGATE_EMF__NAMESPACE", "Team/jobs")
        .env("TIDEGATE_EMF__INTERVAL_SECONDS", "3600")
        .env("TIDEGATE_METRICS_EXCLUDE", "tidegate_job_start_delay_seconds,tidegate_http_*")
        .env("TIDEGATE_LOG_TRAFFIC", "true");
    let tide = setup.start().await;
    tide.job_type("t", json!({})).await;
    for _ in 0..3 {
        tide.enqueue_a("t").await;
        let lease = tide.lease_one("t").await;
        tide.report(&lease, "succeeded").await.is(200);
    }
    let answer = tide.get("/metrics").await;
    let shown = String::from_utf8(answer.body).unwrap();
    assert!(shown.contains("tidegate_enqueued_total{queue=\"default\",type=\"t\"} 3"), "{shown}");
    assert!(!shown.contains("tidegate_lateness") && !shown.contains("tidegate_http"), "{shown}");
    let out = tide.out();
    assert_eq!(fs::read_to_string(&out).unwrap(), "", "an hour is not over");
    // What follows a stop keeps the directory.
    let _stopped = tide.stop().await;

    let text = fs::read_to_string(out).unwrap();
    let lines = lines(&text);
    assert_eq!(
        [
            "tidegate_enqueued_total",
            "tidegate_attempts_started_total",
            "tidegate_jobs_finished_total"
        ]
        .map(|name| sum(&lines, name)),
        [3, 3, 3]
    );
    assert!(
        lines.iter().all(|line| line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Team/jobs")
    );
    assert!(!text.contains("tidegate_lateness") && !text.contains("tidegate_http"), "{text}");
    let runs =
        lines.iter().find(|line| line["tidegate_attempt_duration_seconds"].is_object()).unwrap();
    assert_eq!(runs["queue"], "default");
    let counts = runs["tidegate_attempt_duration_seconds"]["Counts"].as_array().unwrap();
    assert_eq!(counts.iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), 3);
}

#[tokio::test]
async fn a_metrics_file_grows_and_may_be_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let (file, moved) = (dir.path().join("metrics.json"), dir.path().join("old.json"));
    let setup = Setup::new()
        .env("TIDEGATE_EMF__OUTPUT", file.to_str().unwrap())
        .env("TIDEGATE_EMF__INTERVAL_SECONDS", "1");
    let tide = setup.start().await;
    tide.job_type("t", json!({})).await;
    let read = |path: &std::path::Path| lines(&fs::read_to_string(path).unwrap_or_default());
    let has = async |count: u64, path: &std::path::Path| {
        until(|| async {
            let lines = read(path);
            (sum(&lines, "tidegate_enqueued_total") == count, lines)
        })
        .await
    };
    tide.enqueue_a("t").await;
    has(1, &file).await;
    fs::rename(&file, &moved).unwrap();
    tide.enqueue_a("t").await;
    tide.enqueue_a("t").await;
    has(2, &file).await;
    assert_eq!(fs::read_to_string(tide.out()).unwrap(), "");
}

#[tokio::test]
async fn an_unwritable_metrics_file_fails_the_start_by_setting_name() {
    let (status, log) =
        Setup::new().env("TIDEGATE_EMF__OUTPUT", "/no/such/dir/metrics.json").refused().await;
    assert!(
        !status.success()
            && log.contains("emf.output: /no/such/dir/metrics.json cannot be written"),
        "{log}"
    );
}
