//! Enqueueing, listing, changing and replaying jobs: ids, keys, pages, conditions.

use std::{collections::BTreeSet, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use tidegate_backends::system::SystemClock;
use tidegate_core::port::Clock as _;

use super::serve::Tidegate;

#[tokio::test]
async fn a_clients_id_makes_an_enqueue_idempotent() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    tide.job_type("u", json!({})).await;
    let ask = json!({"data": {"n": 1}, "priority": 7});
    let first = tide.put("/v1/jobs/t/one", ask.clone()).await;
    assert_eq!(first.header("location"), Some("/v1/jobs/t/one"));
    first.is(201);
    // Another trace is not another request: a client's library draws a new one for each try.
    let traced =
        |parent: &'static str| [("content-type", "application/json"), ("traceparent", parent)];
    for parent in [
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01",
    ] {
        tide.send(Method::PUT, "/v1/jobs/t/one", &traced(parent), ask.to_string()).await.is(200);
    }
    tide.put("/v1/jobs/t/one", ask.clone()).await.is(200);
    assert_eq!(
        tide.post("/v1/jobs", json!({"type": "t", "id": "one", "data": {"n": 1}, "priority": 7}))
            .await
            .is(200)["id"],
        "one"
    );
    for other in [
        json!({"data": {"n": 2}, "priority": 7}),
        json!({"data": {"n": 1}}),
        json!({"data": {"n": 1}, "priority": 8}),
    ] {
        assert_eq!(
            tide.put("/v1/jobs/t/one", other).await.problem(409, "id_taken")["holder"],
            "one"
        );
    }
    // Ids are the server's, not the type's.
    tide.put("/v1/jobs/u/one", ask.clone()).await.problem(409, "id_taken");
    tide.get("/v1/jobs/u/one").await.problem(404, "job_not_found");
    // Ended jobs too.
    let lease = tide.lease_one("t").await;
    tide.report(&lease, "succeeded").await.is(200);
    assert_eq!(tide.put("/v1/jobs/t/one", ask).await.is(200)["state"], "succeeded");
}

#[tokio::test]
async fn an_idempotency_key_answers_with_the_first_job() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    let send = async |path: &str, key: &str, body: Value| {
        tide.send(
            Method::POST,
            path,
            &[("idempotency-key", key), ("content-type", "application/json")],
            body.to_string(),
        )
        .await
    };
    let ask = json!({"type": "t", "data": 1, "delay_seconds": 60});
    let first = send("/v1/jobs", "k1", ask.clone()).await.is(201);
    let again = send("/v1/jobs", "k1", ask.clone()).await.is(200);
    assert_eq!(first["id"], again["id"]);
    let clash = send("/v1/jobs", "k1", json!({"type": "t", "data": 2}))
        .await
        .problem(409, "idempotency_key_reused");
    assert_eq!(clash["holder"], first["id"]);
    send("/v1/jobs", &"k".repeat(256), ask.clone()).await.blames(
        400,
        "invalid_field",
        "Idempotency-Key",
    );
    let batch = json!({"jobs": [ask.clone(), ask.clone()]});
    let statuses = |answer: Value| {
        answer["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["status"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(statuses(send("/v1/jobs/batch", "b1", batch.clone()).await.is(200)), [201, 201]);
    assert_eq!(statuses(send("/v1/jobs/batch", "b1", batch).await.is(200)), [200, 200]);
    tide.delete(&format!("/v1/jobs/t/{}", first["id"].as_str().unwrap())).await.is(200);
    let replay = format!("/v1/jobs/t/{}/replay", first["id"].as_str().unwrap());
    let replayed = send(&replay, "r1", Value::Null).await;
    assert_eq!(replayed.status, 400, "null is no object: {}", replayed.value());
    let replays =
        [send(&replay, "r1", json!({})).await.is(201), send(&replay, "r1", json!({})).await.good()];
    assert_eq!(replays[0]["id"], replays[1]["id"]);
}

#[tokio::test]
async fn a_batch_answers_for_each_job_of_its_own() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    tide.put("/v1/jobs/t/there", json!({"data": 1})).await.is(201);
    let jobs = json!([
        {"type": "t", "data": 1}, {"type": "t", "data": 1, "id": "there"}, {"type": "t", "data": 2, "id": "there"},
        {"type": "t"}, {"type": "none", "data": 1}, {"type": "t", "data": 1, "id": "new"}, {"type": "t", "data": 1, "id": "new"}, 7,
    ]);
    let answer = tide.post("/v1/jobs/batch", json!({"jobs": jobs})).await.is(200);
    let statuses: Vec<_> = answer["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["status"].as_u64().unwrap())
        .collect();
    assert_eq!(statuses, [201, 200, 409, 400, 404, 201, 200, 400], "{answer:#}");
    for one in answer["results"].as_array().unwrap() {
        let good = one["status"].as_u64().unwrap() < 300;
        assert_eq!(
            (one["job"]["id"].is_string(), one["error"]["code"].is_string()),
            (good, !good),
            "{one}"
        );
    }
    assert_eq!(
        tide.post("/v1/jobs/batch", json!({"jobs": []})).await.is(200)["results"],
        json!([])
    );
    let many: Vec<_> = (0..1001).map(|_| json!({"type": "t", "data": 1})).collect();
    tide.post("/v1/jobs/batch", json!({"jobs": many})).await.blames(400, "invalid_field", "jobs");
    assert_eq!(tide.get("/v1/jobs?type=t").await.is(200)["jobs"].as_array().unwrap().len(), 3);
    let thousand: Vec<_> = (0..1000).map(|_| json!({"type": "t", "data": 1})).collect();
    let answer = tide.post("/v1/jobs/batch", json!({"jobs": thousand})).await.is(200);
    assert!(answer["results"].as_array().unwrap().iter().all(|one| one["status"] == 201));
}

#[tokio::test]
async fn lists_are_paged_without_gaps_or_repeats() {
    let tide = Tidegate::start().await;
    for name in ["a", "b"] {
        tide.job_type(name, json!({"attributes": {"region": "/region"}})).await;
    }
    let mut all = BTreeSet::new();
    for n in 0..25 {
        let kind = if n % 5 == 0 { "b" } else { "a" };
        let region = if n % 2 == 0 { "east" } else { "west" };
        all.insert(
            tide.enqueue(json!({"type": kind, "data": {"region": region}, "delay_seconds": 600}))
                .await,
        );
    }
    let walk = async |query: &str| {
        let (mut found, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let after = cursor.map_or(String::new(), |cursor| format!("&cursor={cursor}"));
            let page = tide.get(&format!("/v1/jobs?limit=4{query}{after}")).await.is(200);
            let jobs = page["jobs"].as_array().unwrap();
            assert!(jobs.len() <= 4);
            found.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return found;
            }
        }
    };
    let found = walk("").await;
    assert_eq!((found.len(), found.iter().cloned().collect::<BTreeSet<_>>()), (25, all));
    assert_eq!(walk("&type=b").await.len(), 5);
    assert_eq!(walk("&type=a&attribute.region=east").await.len(), 10);
    tide.delete(&format!("/v1/jobs/b/{}", walk("&type=b").await[0])).await.is(200);
    assert_eq!(
        (
            walk("&state=cancelled").await.len(),
            walk("&state=ended").await.len(),
            walk("&state=scheduled,running").await.len()
        ),
        (1, 1, 24)
    );
    assert_eq!(
        (
            walk("&created_from=2100-01-01T00:00:00Z").await.len(),
            walk("&created_to=2100-01-01T00:00:00Z").await.len()
        ),
        (0, 25)
    );
    assert_eq!(tide.get("/v1/job-types?limit=1").await.is(200)["next_cursor"], "a");
    assert_eq!(
        tide.get("/v1/job-types?limit=1&cursor=a").await.is(200)["job_types"][0]["name"],
        "b"
    );
}

#[tokio::test]
async fn an_etag_guards_against_lost_updates() {
    let tide = Tidegate::start().await;
    tide.queue("q", json!({})).await;
    tide.job_type("t", json!({})).await;
    let id = tide.enqueue(json!({"type": "t", "data": 1, "delay_seconds": 600})).await;
    let job = format!("/v1/jobs/t/{id}");
    let send = async |method: Method, path: &str, tag: &str, body: Value| {
        tide.send(
            method,
            path,
            &[("if-match", tag), ("content-type", "application/json")],
            body.to_string(),
        )
        .await
    };
    for (path, method, body) in [
        ("/v1/queues/q", Method::PUT, json!({"concurrency": 1})),
        ("/v1/queues/q", Method::PATCH, json!({"concurrency": 2})),
        ("/v1/job-types/t", Method::PUT, json!({"max_attempts": 5})),
        ("/v1/job-types/t", Method::PATCH, json!({"max_attempts": 6})),
        (&job, Method::PATCH, json!({"priority": 3})),
    ] {
        let tag = tide.get(path).await.header("etag").unwrap().to_owned();
        let changed = send(method.clone(), path, &tag, body.clone()).await;
        changed.is(200);
        assert_ne!(changed.header("etag"), Some(&*tag), "{method} {path}");
        assert_eq!(tide.get(path).await.header("etag"), changed.header("etag"));
        send(method.clone(), path, &tag, body.clone()).await.problem(412, "precondition_failed");
        send(method.clone(), path, "\"nonsense\"", body.clone())
            .await
            .problem(412, "precondition_failed");
        send(method, path, "*", body).await.is(200);
    }
    send(Method::DELETE, "/v1/queues/q", "\"v1\"", Value::Null)
        .await
        .problem(412, "precondition_failed");
}

#[tokio::test]
async fn a_replay_is_a_new_job_that_names_the_old_one() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({"max_attempts": 1})).await;
    let ask = json!({"type": "t", "data": {"a": 1}, "priority": 3, "weight": 2, "attributes": {"x": "y"}, "correlation_key": "k"});
    let id = tide.enqueue(ask).await;
    let replay = format!("/v1/jobs/t/{id}/replay");
    tide.post(&replay, Value::Null).await.problem(409, "job_not_finished");
    tide.post(&replay.replace("/t/", "/other/"), Value::Null).await.problem(404, "job_not_found");
    let lease = tide.lease_one("t").await;
    tide.report(&lease, "failed").await.is(200);
    let new = tide.post(&replay, Value::Null).await.is(201);
    assert_ne!(new["id"], id);
    assert_eq!(
        (&new["replay_of"], &new["priority"], &new["weight"], &new["data"]),
        (&json!(id), &json!(3), &json!(2), &json!({"a": 1}))
    );
    assert_eq!((&new["attributes"], &new["attempt"]), (&json!({"x": "y"}), &json!(0)));
    assert_eq!(new["correlation_key"], "k");
    assert_eq!(tide.post(&replay, Value::Null).await.is(200)["id"], new["id"]);
    let changed = json!({"data": 5, "priority": 9, "again": true});
    let refused = tide.post(&replay, changed.clone()).await;
    assert_eq!(refused.problem(409, "correlation_key_taken")["holder"], new["id"]);
    tide.delete(&format!("/v1/jobs/t/{}", new["id"].as_str().unwrap())).await.is(200);
    let refused = tide.post(&replay, json!({"data": 5})).await;
    assert_eq!(refused.problem(409, "already_replayed")["holder"], new["id"]);
    let other = tide.post(&replay, changed).await.is(201);
    assert_eq!((&other["data"], &other["priority"]), (&json!(5), &json!(9)));
    let old = tide.job(&id).await;
    assert_eq!((&old["state"], &old["replayed_by"]), (&json!("failed"), &other["id"]));
}

#[tokio::test]
async fn a_job_is_never_started_after_its_end_of_chance() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    let soon = SystemClock.now() + Duration::from_millis(200);
    let id = tide.enqueue(json!({"type": "t", "data": 1, "expires_at": soon.to_string()})).await;
    let past =
        tide.enqueue(json!({"type": "t", "data": 1, "expires_at": "2020-01-01T00:00:00Z"})).await;
    tide.job_in(&id, "expired").await;
    tide.job_in(&past, "expired").await;
    assert_eq!(tide.lease(json!({"types": ["t"]})).await.len(), 0);
    let deadline = tide.enqueue(json!({"type": "t", "data": 1, "deadline_seconds": 0.2})).await;
    let job = tide.job_in(&deadline, "failed").await;
    assert_eq!(job["error"]["reason"], "deadline");
}

#[tokio::test]
async fn a_correlation_key_is_exclusive_a_unique_key_returns_its_job() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    tide.job_type("u", json!({})).await;
    let keyed = |kind: &str| json!({"type": kind, "data": 1, "correlation_key": "order-7"});
    let id = tide.enqueue(keyed("t")).await;
    assert_eq!(
        tide.post("/v1/jobs", keyed("t")).await.problem(409, "correlation_key_taken")["holder"],
        id
    );
    tide.enqueue(keyed("u")).await;
    tide.delete(&format!("/v1/jobs/t/{id}")).await.is(200);
    tide.enqueue(keyed("t")).await;

    let unique = |hold: &str| json!({"type": "t", "data": 1, "delay_seconds": 0, "unique": {"key": hold, "while": hold}});
    for hold in ["scheduled", "live"] {
        let first = tide.enqueue(unique(hold)).await;
        assert_eq!(tide.post("/v1/jobs", unique(hold)).await.is(200)["id"], first);
        let mut leases = tide.lease(json!({"types": ["t"], "max": 10, "wait_seconds": 20})).await;
        let lease = leases.pop().unwrap();
        assert_eq!(lease.id, first);
        tide.post("/v1/jobs", unique(hold)).await.is(if hold == "live" { 200 } else { 201 });
        tide.report(&lease, "succeeded").await.is(200);
        if hold == "live" {
            tide.post("/v1/jobs", unique(hold)).await.is(201);
        }
        for lease in tide.lease(json!({"types": ["t"], "max": 10, "wait_seconds": 20})).await {
            tide.report(&lease, "succeeded").await.is(200);
        }
    }
}

#[tokio::test]
async fn a_scheduled_job_is_changed_and_a_started_one_is_not() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    let id = tide.enqueue(json!({"type": "t", "data": 1, "delay_seconds": 3600})).await;
    let path = format!("/v1/jobs/t/{id}");
    let change = json!({"data": {"new": true}, "priority": -5, "expires_at": "2090-01-01T00:00:00Z", "run_at": "2020-01-01T00:00:00Z"});
    let changed = tide.patch(&path, change).await.is(200);
    assert_eq!((&changed["data"], &changed["priority"]), (&json!({"new": true}), &json!(-5)));
    assert_eq!(
        tide.patch(&path, json!({"expires_at": null})).await.is(200)["expires_at"],
        Value::Null
    );
    let lease = tide.lease_one("t").await;
    assert_eq!(lease.whole["job"]["data"], json!({"new": true}));
    tide.patch(&path, json!({"priority": 1})).await.problem(409, "not_scheduled");
    tide.report(&lease, "succeeded").await.is(200);
    tide.patch(&path, json!({"priority": 1})).await.problem(409, "not_scheduled");
    tide.delete(&path).await.problem(409, "ended");
}
