//! Filters on a live server: lists, error groups, and what "all failed jobs with this error" means
//! to a bulk operation.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{api::Api, serve::Tidegate};

/// Two types with three failed jobs of one cause and one of another; ids by cause and number.
async fn failures(tide: &Tidegate) {
    for kind in ["mail", "sms"] {
        let fails_once = json!({"max_attempts": 1});
        tide.job_type(kind, fails_once).await;
        for n in 1..=4 {
            let cause = if n == 4 { "bad" } else { "busy" };
            let data =
                json!({"user": {"id": n}, "text": "x".repeat(if n == 2 { 3000 } else { 3 })});
            tide.enqueue(json!({"type": kind, "id": format!("{kind}-{cause}-{n}"), "data": data}))
                .await;
        }
        for lease in tide.lease(json!({"types": [kind], "max": 4, "worker": "w1"})).await {
            let number = lease.id.rsplit('-').next().unwrap();
            let message = if lease.id.contains("busy") {
                format!("HTTP 503: no answer within {number}000 ms")
            } else {
                "the address is invalid".to_owned()
            };
            let report = json!({"attempt": 1, "status": "failed", "message": message});
            let path = format!("/v1/jobs/{kind}/{}", lease.id);
            tide.with_token(&lease.token).post(&path, report).await.is(200);
        }
    }
}

async fn listed(api: &Api, query: &str) -> BTreeSet<String> {
    let page = api.get(&format!("/v1/jobs?{query}")).await.is(200);
    let jobs = page["jobs"].as_array().unwrap();
    jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

fn ids<const N: usize>(ids: [&str; N]) -> BTreeSet<String> {
    ids.map(str::to_owned).into()
}

#[tokio::test]
async fn jobs_are_listed_by_every_condition() {
    let tide = Tidegate::start().await;
    failures(&tide).await;
    tide.enqueue(
        json!({"type": "mail", "id": "later", "data": {"user": {"id": 1}}, "delay_seconds": 600}),
    )
    .await;
    let busy = ids(["mail-busy-1", "mail-busy-2", "mail-busy-3"]);
    for (query, found) in [
        ("id=later,mail-bad-4,none&id=sms-bad-4", ids(["later", "mail-bad-4", "sms-bad-4"])),
        ("id=later,mail-bad-4&state=failed", ids(["mail-bad-4"])),
        ("type=mail&error_pattern=HTTP%20503:%20no%20answer%20within%20*%20ms", busy.clone()),
        ("type=mail&error_contains=http%20503", busy.clone()),
        ("type=mail&error_reason=failed&error_contains=2000", ids(["mail-busy-2"])),
        ("error_reason=timeout", ids([])),
        // The data of one is in its record, and that of the other apart from it.
        ("data[/user/id]=2", ids(["mail-busy-2", "sms-busy-2"])),
        ("data[/user/id]=1&type=mail", ids(["mail-busy-1", "later"])),
        ("data[/user/id]=1&phase=failed&type=mail", ids(["mail-busy-1"])),
        ("worker=w1&type=sms&error_contains=address", ids(["sms-bad-4"])),
        ("worker=w2", ids([])),
        ("max_attempt=0", ids(["later"])),
        ("min_attempt=2", ids([])),
        ("type=mail&ended_from=2001-01-01T00:00:00Z&error_contains=no", busy),
        ("ended_from=2101-01-01T00:00:00Z", ids([])),
        ("started_to=2001-01-01T00:00:00Z", ids([])),
        ("due_from=2001-01-01T00:00:00Z&max_attempt=0", ids(["later"])),
        ("created_from=2101-01-01T00:00:00Z", ids([])),
    ] {
        assert_eq!(listed(&tide, query).await, found, "{query}");
    }
    let first = tide.get("/v1/jobs?id=a,later,mail-bad-4,sms-bad-4&limit=3").await.is(200);
    let cursor = first["next_cursor"].as_str().expect("one more");
    let rest = listed(&tide, &format!("id=a,later,mail-bad-4,sms-bad-4&cursor={cursor}")).await;
    assert_eq!((first["jobs"].as_array().unwrap().len(), rest), (2, ids(["sms-bad-4"])));
    assert_eq!(tide.job("mail-bad-4").await["history"][0]["worker"], "w1");
    tide.get("/v1/jobs?data[user]=1").await.blames(400, "invalid_field", "data[user]");
}

#[tokio::test]
async fn failures_with_one_cause_are_counted_and_replayed() {
    let tide = Tidegate::start().await;
    failures(&tide).await;
    let errors = tide.get("/v1/errors?type=mail").await.is(200);
    let shown = |error: &Value| {
        (error["jobs"].as_u64().unwrap(), error["pattern"].as_str().unwrap().to_owned())
    };
    let groups: Vec<_> = errors["errors"].as_array().unwrap().iter().map(shown).collect();
    let busy = "HTTP 503: no answer within * ms";
    assert_eq!(groups, [(3, busy.to_owned()), (1, "the address is invalid".to_owned())]);
    assert_eq!(errors["errors"][0]["examples"].as_array().unwrap().len(), 3);
    let none = tide.get("/v1/errors?to=2001-01-01T00:00:00Z").await.is(200);
    assert_eq!(none["errors"], json!([]));
    let table = tide.cli(&["jobs", "errors", "--from", "-1d"]).await.ok();
    assert!(table.contains(busy) && table.lines().count() == 5, "{table}");

    // Everything that failed since yesterday with this error, at first without a change.
    let replay =
        ["jobs", "replay", "--state", "failed", "--ended-from", "-1d", "--error-pattern", busy];
    let dry = tide.cli(&[&replay[..], &["--dry-run"]].concat()).await.ok();
    assert!(dry.starts_with("dry run, would have replayed 6 of 6 jobs, 0 refused\n"), "{dry}");
    assert_eq!(listed(&tide, "state=scheduled").await, ids([]));
    assert_eq!(tide.cli(&replay).await.ok(), "replayed 6 of 6 jobs, 0 refused\n");
    assert_eq!(listed(&tide, "state=scheduled").await.len(), 6);
    let again = tide.cli(&replay).await.ok();
    assert!(again.starts_with("replayed 0 of 6 jobs, 0 refused, 6 skipped\n"), "{again}");
}

#[tokio::test]
async fn many_jobs_are_moved_to_now_by_a_condition_on_their_data() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    let jobs: Vec<_> = (0..30)
        .map(|n| json!({"type": "t", "data": {"tenant": n % 3}, "delay_seconds": 600}))
        .collect();
    tide.post("/v1/jobs/batch", json!({"jobs": jobs})).await.is(200);
    let patch = ["jobs", "patch", "--data-at", "/tenant=1", "--run-at", "now"];
    assert_eq!(tide.cli(&patch).await.ok(), "changed 10 of 10 jobs, 0 refused\n");
    assert_eq!(tide.lease(json!({"types": ["t"], "max": 100})).await.len(), 10);
    let null = json!({"filter": {"data": {"/tenant": 2}}, "patch": {"run_at": null}});
    tide.post("/v1/jobs/patch", null).await.is(202);
    let more = tide.lease(json!({"types": ["t"], "max": 100, "min": 10, "wait_seconds": 20})).await;
    assert_eq!(more.len(), 10);
    // An empty list matches neither all jobs nor none.
    for name in ["id", "state", "phase", "error_reason"] {
        let empty = json!({"filter": {"queue": "default", name: []}});
        let blamed = format!("filter.{name}");
        tide.post("/v1/jobs/cancel", empty).await.blames(400, "invalid_field", &blamed);
    }
}

#[tokio::test]
async fn a_page_by_values_in_the_data_reads_2000_bodies() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    for batch in 0..3 {
        let job = |n| json!({"type": "t", "data": {"number": batch * 700 + n}});
        tide.post("/v1/jobs/batch", json!({"jobs": (0..700).map(job).collect::<Vec<_>>()}))
            .await
            .is(200);
    }
    let (mut cursor, mut pages) = (String::new(), Vec::new());
    loop {
        let page = tide.get(&format!("/v1/jobs?data[/number]=none{cursor}")).await.is(200);
        pages.push(page["jobs"].as_array().unwrap().len());
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(pages, [0, 0]);
}
