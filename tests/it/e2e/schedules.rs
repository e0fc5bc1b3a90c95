//! A schedule on a real server that is killed and restarted: every occurrence is one job.

use std::collections::BTreeSet;

use chrono::NaiveDateTime;
use serde_json::{Value, json};
use tidegate_core::time::Timestamp;

use super::{api::Api, serve::Tidegate, wait::until};

/// The instants, in seconds, that the ids of a schedule's jobs say.
async fn occurrences(api: &Api, schedule: &str) -> BTreeSet<i64> {
    let page = api.get("/v1/jobs?type=beat&limit=1000").await.is(200);
    let of = |job: &Value| {
        let instant = job["id"].as_str().unwrap().strip_prefix(&format!("{schedule}:"))?.to_owned();
        Some(
            NaiveDateTime::parse_from_str(&instant, "%Y%m%dT%H%M%SZ")
                .unwrap()
                .and_utc()
                .timestamp(),
        )
    };
    page["jobs"].as_array().unwrap().iter().filter_map(of).collect()
}

async fn at_least(api: &Api, schedule: &str, count: usize) -> BTreeSet<i64> {
    until(|| async {
        let found = occurrences(api, schedule).await;
        (found.len() >= count, found)
    })
    .await
}

#[tokio::test]
async fn killed_at_any_moment_every_second_has_its_one_job() {
    let mut tide = Tidegate::start().await;
    tide.job_type("beat", json!({})).await;
    tide.put("/v1/schedules/cron", json!({"type": "beat", "cron": "* * * * * *"})).await.is(201);
    tide.put("/v1/schedules/span", json!({"type": "beat", "every_seconds": 1})).await.is(201);
    for kills in 1..=3 {
        at_least(&tide, "cron", kills * 2).await;
        tide = tide.kill().start().await;
    }
    for schedule in ["cron", "span"] {
        let found = at_least(&tide, schedule, 8).await;
        let (first, last) = (*found.first().unwrap(), *found.last().unwrap());
        assert_eq!(
            found.len() as i64,
            last - first + 1,
            "{schedule}: a second is missing in {found:?}"
        );
        let shown = tide.get(&format!("/v1/schedules/{schedule}")).await.is(200);
        assert_eq!(
            (&shown["missed_count"], &shown["last_error"]),
            (&json!(0), &Value::Null),
            "{shown}"
        );
    }
    // Each is one job of its own: the list has no more of them than there are instants.
    let jobs =
        tide.get("/v1/jobs?type=beat&limit=1000").await.is(200)["jobs"].as_array().unwrap().len();
    let instants = occurrences(&tide, "cron").await.len() + occurrences(&tide, "span").await.len();
    assert!(jobs <= instants, "{jobs} jobs for {instants} occurrences");
}

#[tokio::test]
async fn an_occurrence_is_worked_on_at_its_time_and_not_before() {
    let tide = Tidegate::start().await;
    tide.job_type("beat", json!({})).await;
    tide.put("/v1/schedules/soon", json!({"type": "beat", "every_seconds": 1, "data": {"n": 1}}))
        .await
        .is(201);
    let lease = tide.lease_one("beat").await;
    let job = &lease.whole["job"];
    assert_eq!(job["data"], json!({"n": 1}));
    let created: Timestamp = job["created_at"].as_str().unwrap().parse().unwrap();
    let second = lease.id.strip_prefix("soon:").unwrap();
    let due = NaiveDateTime::parse_from_str(second, "%Y%m%dT%H%M%SZ")
        .unwrap()
        .and_utc()
        .timestamp_millis();
    assert!(created.millis() >= due, "made at {created}, due at {due}");
    tide.report(&lease, "succeeded").await.is(200);
}

#[tokio::test]
async fn the_command_line_and_the_metrics_say_what_a_schedule_does() {
    let tide = Tidegate::start().await;
    tide.job_type("beat", json!({})).await;
    let put = tide
        .cli(&["schedule", "put", "tick", "--type", "beat", "--every", "1s", "--data", "[1]"])
        .await
        .ok();
    assert!(put.contains("every 1 s"), "{put}");
    at_least(&tide, "tick", 2).await;
    let listed = tide.cli(&["schedule", "list"]).await.ok();
    assert!(listed.contains("tick") && listed.contains("beat"), "{listed}");
    let whole: Value =
        serde_json::from_str(&tide.cli(&["schedule", "get", "tick", "--json"]).await.ok()).unwrap();
    assert_eq!(whole["next"].as_array().unwrap().len(), 10);
    assert!(whole["last_job"].as_str().unwrap().starts_with("tick:"), "{whole}");
    assert_eq!(tide.cli(&["schedule", "pause", "tick"]).await.ok().trim(), "tick is paused");
    let job = tide.cli(&["schedule", "run", "tick"]).await.ok();
    assert_eq!(tide.job(job.trim()).await["data"], json!([1]));
    let shown = tide.cli(&["jobs", "get", job.trim()]).await.ok();
    assert!(shown.contains("schedule tick, on request"), "{shown}");
    let last = tide.job(whole["last_job"].as_str().unwrap()).await;
    let of_last = |one: &&Value| one["job"] == whole["last_job"];
    let occurrence = whole["previous"].as_array().unwrap().iter().find(of_last).unwrap();
    assert_eq!(last["origin"], json!({"schedule": "tick", "occurrence": occurrence["at"]}));
    let metrics = String::from_utf8(tide.get("/metrics").await.body).unwrap();
    assert!(metrics.contains("tidegate_occurrences_total{schedule=\"tick\"}"), "{metrics}");
    assert_eq!(tide.cli(&["schedule", "delete", "tick"]).await.ok().trim(), "tick is deleted");
    assert_eq!(tide.cli(&["schedule", "get", "tick"]).await.code, Some(4));
}
