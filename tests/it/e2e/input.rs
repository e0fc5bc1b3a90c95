//! Requests with a wrong field: each refusal names the field, and nothing is stored.

use reqwest::Method;
use serde_json::{Value, json};

use super::{api::ApiAnswer, serve::Tidegate};

/// `base` with the one field at `path` set to `value`.
fn with(base: &Value, path: &str, value: &Value) -> Value {
    let mut whole = base.clone();
    *path.split('.').fold(&mut whole, |at, name| match name.parse::<usize>() {
        Ok(index) => &mut at[index],
        Err(_) => &mut at[name],
    }) = value.clone();
    whole
}

/// What differs between `answer` and the refusal it should be, if anything does.
fn differs(asked: &str, answer: &ApiAnswer, code: &str, field: &str) -> Option<String> {
    let value = answer.value();
    let fits = answer.status == 400 && value["code"] == code && value["field"] == field;
    (!fits).then(|| format!("{asked}: not {code} of {field}: {} {value}", answer.status))
}

#[tokio::test]
async fn a_job_with_a_wrong_field_is_refused_by_name_and_not_stored() {
    let tide = Tidegate::start().await;
    tide.queue("small", json!({"concurrency": 10})).await;
    tide.job_type("t", json!({"queue": "small"})).await;
    tide.job_type("once", json!({"queue": "small", "delivery": "at_most_once"})).await;
    let many = |count: usize| {
        (0..count).map(|n| (format!("a{n}"), json!(n))).collect::<serde_json::Map<_, _>>()
    };
    let long = |length: usize| "x".repeat(length);
    let base = json!({"type": "t", "data": 1});
    let cases: &[(&str, Value, &str, &str)] = &[
        ("nonsense", json!(1), "unknown_field", "nonsense"),
        ("type", json!("a b"), "invalid_field", "type"),
        ("type", json!(7), "invalid_field", "type"),
        ("id", json!("a/b"), "invalid_field", "id"),
        ("id", json!(".."), "invalid_field", "id"),
        ("id", json!(long(65)), "invalid_field", "id"),
        ("id", json!("batch"), "invalid_field", "id"),
        ("id", json!("cancel"), "invalid_field", "id"),
        ("id", json!("replay"), "invalid_field", "id"),
        ("priority", json!("high"), "invalid_field", "priority"),
        ("priority", json!(1_i64 << 40), "invalid_field", "priority"),
        ("weight", json!(-1), "invalid_field", "weight"),
        ("weight", json!(11), "weight_over_limit", "weight"),
        ("critical", json!("yes"), "invalid_field", "critical"),
        ("run_at", json!("tomorrow"), "invalid_field", "run_at"),
        ("run_at", json!(1_700_000_000), "invalid_field", "run_at"),
        ("delay_seconds", json!(-1), "invalid_field", "delay_seconds"),
        ("delay_seconds", json!("5s"), "invalid_field", "delay_seconds"),
        ("delay_seconds", json!(315_360_001), "invalid_field", "delay_seconds"),
        ("expires_at", json!("never"), "invalid_field", "expires_at"),
        ("timeout_seconds", json!(0), "invalid_field", "timeout_seconds"),
        ("timeout_seconds", json!(31_536_001), "invalid_field", "timeout_seconds"),
        ("deadline_seconds", json!(0), "invalid_field", "deadline_seconds"),
        ("max_attempts", json!(0), "invalid_max_attempts", "max_attempts"),
        ("max_attempts", json!(70_000), "invalid_field", "max_attempts"),
        ("retry", json!({"plugin": "magic"}), "invalid_field", "retry.plugin"),
        (
            "retry",
            json!({"strategy": "exponential", "config": {"base_seconds": 90_000}}),
            "invalid_field",
            "retry.config.base_seconds",
        ),
        (
            "retry",
            json!({"strategy": "exponential", "config": {"base": 1}}),
            "unknown_field",
            "retry.config.base",
        ),
        ("correlation_key", json!(long(257)), "invalid_field", "correlation_key"),
        ("correlation_key", json!(""), "invalid_field", "correlation_key"),
        ("unique", json!({"key": "", "while": "live"}), "invalid_field", "unique.key"),
        ("unique", json!({"key": "k", "while": "always"}), "invalid_field", "unique.while"),
        ("attributes", json!(many(17)), "invalid_field", "attributes"),
        ("attributes", json!({"a": long(257)}), "invalid_field", "attributes.a"),
        ("attributes", json!({"a": [1]}), "invalid_field", "attributes.a"),
        ("windows", json!([{"from": "09:00", "to": "09:00"}]), "invalid_field", "windows[0]"),
        ("windows", json!([{"from": "25:00", "to": "09:00"}]), "invalid_field", "windows[0].from"),
        (
            "windows",
            json!([{"from": "08:00", "to": "09:00", "tz": "Mars/Base"}]),
            "invalid_field",
            "windows[0].tz",
        ),
        (
            "windows",
            json!([{"from": "08:00", "to": "09:00", "days": ["monday"]}]),
            "invalid_field",
            "windows[0].days[0]",
        ),
        ("keep_result", json!("twice"), "invalid_field", "keep_result"),
        ("keep_result", json!({"seconds": 315_360_001}), "invalid_field", "keep_result.seconds"),
        ("callback_url", json!("not a url"), "invalid_field", "callback_url"),
        ("callback_url", json!("ftp://a/"), "invalid_field", "callback_url"),
        ("callback_url", json!("http://user:pass@a/"), "invalid_field", "callback_url"),
        ("headers", json!({"host": "evil"}), "invalid_field", "headers.host"),
        ("headers", json!({"a": "line\nbreak"}), "invalid_field", "headers.a"),
        ("headers", json!({"a b": "c"}), "invalid_field", "headers"),
    ];
    let mut wrong = Vec::new();
    for (field, value, code, blamed) in cases {
        let body = with(&base, field, value);
        wrong.extend(differs(
            &body.to_string(),
            &tide.post("/v1/jobs", body.clone()).await,
            code,
            blamed,
        ));
        let batch = tide.post("/v1/jobs/batch", json!({"jobs": [body]})).await.is(200);
        let error = &batch["results"][0]["error"];
        if (&error["code"], &error["field"]) != (&json!(code), &json!(blamed)) {
            wrong.push(format!("in a batch: {body}: {batch}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    tide.post("/v1/jobs", json!({"type": "once", "data": 1, "max_attempts": 2})).await.blames(
        400,
        "invalid_max_attempts",
        "max_attempts",
    );
    tide.post("/v1/jobs", json!({"data": 1})).await.blames(400, "invalid_field", "type");
    tide.post("/v1/jobs", json!({"type": "t"})).await.blames(400, "invalid_field", "data");
    let both =
        json!({"type": "t", "data": 1, "delay_seconds": 5, "run_at": "2030-01-01T00:00:00Z"});
    tide.post("/v1/jobs", both).await.blames(400, "invalid_field", "delay_seconds");
    tide.post("/v1/jobs", json!({"type": "missing", "data": 1}))
        .await
        .problem(404, "job_type_not_found");
    tide.put("/v1/jobs/t/one", json!({"data": 1, "type": "other"})).await.blames(
        400,
        "invalid_field",
        "type",
    );
    tide.put("/v1/jobs/t/one", json!({"data": 1, "id": "two"})).await.blames(
        400,
        "invalid_field",
        "id",
    );
    tide.put("/v1/jobs/t/result", json!({"data": 1})).await.blames(400, "invalid_field", "id");
    assert_eq!(tide.get("/v1/jobs").await.is(200)["jobs"], json!([]));
}

#[tokio::test]
async fn a_wrong_setting_is_refused_by_name_and_changes_nothing() {
    let tide = Tidegate::start().await;
    let queue = tide.queue("q", json!({"concurrency": 3})).await;
    let kind = tide.job_type("t", json!({"max_attempts": 4})).await;
    let constraint = |fields: Value| {
        let mut whole = json!({"name": "c", "concurrency": 1});
        whole.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!([whole])
    };
    let queues: &[(&str, Value, &str, &str)] = &[
        ("concurency", json!(1), "unknown_field", "concurency"),
        ("concurrency", json!(-1), "invalid_field", "concurrency"),
        ("order", json!("random"), "invalid_field", "order"),
        ("order_step_seconds", json!(301), "invalid_queue", "order_step_seconds"),
        ("ageing_seconds", json!(5), "invalid_queue", "ageing_seconds"),
        ("partition_by", json!(""), "invalid_queue", "partition_by"),
        ("constraints", json!([{"name": "c"}]), "invalid_queue", "constraints[0].concurrency"),
        ("constraints", constraint(json!({"name": ""})), "invalid_queue", "constraints[0].name"),
        ("constraints", constraint(json!({"per": ""})), "invalid_queue", "constraints[0].per"),
        (
            "constraints",
            constraint(json!({"rate": {"count": 0, "per_seconds": 1}})),
            "invalid_queue",
            "constraints[0].rate.count",
        ),
        (
            "constraints",
            constraint(json!({"rate": {"count": 1, "per_seconds": 0}})),
            "invalid_queue",
            "constraints[0].rate.per_seconds",
        ),
        (
            "constraints",
            constraint(json!({"rate": {"count": 1}})),
            "invalid_field",
            "constraints[0].rate.per_seconds",
        ),
        (
            "constraints",
            constraint(json!({"match": {"colour": "red"}})),
            "unknown_field",
            "constraints[0].match.colour",
        ),
        (
            "constraints",
            constraint(json!({"match": {"priority": {"lte": "x"}}})),
            "invalid_queue",
            "constraints[0].match.priority.lte",
        ),
    ];
    let mut wrong = Vec::new();
    for (field, value, code, blamed) in queues {
        let body = with(&json!({}), field, value);
        wrong.extend(differs(
            &body.to_string(),
            &tide.put("/v1/queues/q", body.clone()).await,
            code,
            blamed,
        ));
    }
    let types: &[(&str, Value, &str, &str)] = &[
        ("atempts", json!(1), "unknown_field", "atempts"),
        ("queue", json!("a b"), "invalid_field", "queue"),
        ("max_attempts", json!(0), "invalid_max_attempts", "max_attempts"),
        ("delivery", json!("maybe"), "invalid_field", "delivery"),
        ("target", json!({"pull": false}), "invalid_type", "target.pull"),
        ("target", json!({"url": "gopher://x/"}), "invalid_type", "target.url"),
        ("target", json!({"url": "http://{id}.example/"}), "invalid_type", "target.url"),
        (
            "target",
            json!({"url": "http://127.0.0.1/", "signing_secret": "whsec_short"}),
            "invalid_type",
            "target.signing_secret",
        ),
        (
            "target",
            json!({"url": "http://127.0.0.1/", "headers": {"content-length": "3"}}),
            "invalid_type",
            "target.headers.content-length",
        ),
        ("timeout_seconds", json!(0), "invalid_type", "timeout_seconds"),
        ("lease_seconds", json!(1e9), "invalid_type", "lease_seconds"),
        ("response_timeout_seconds", json!("x"), "invalid_field", "response_timeout_seconds"),
        ("retention_seconds", json!(-1), "invalid_field", "retention_seconds"),
        ("attributes", json!({"region": "address"}), "invalid_type", "attributes.region"),
        ("start", json!("plain"), "invalid_type", "start"),
        ("callback_url", json!("file:///etc/passwd"), "invalid_type", "callback_url"),
    ];
    for (field, value, code, blamed) in types {
        let mut body = with(&json!({}), field, value);
        if *field == "start" {
            body["target"] = json!({"pull": true});
        }
        wrong.extend(differs(
            &body.to_string(),
            &tide.put("/v1/job-types/t", body.clone()).await,
            code,
            blamed,
        ));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    tide.put("/v1/queues/a%20b", json!({})).await.blames(400, "invalid_field", "queue");
    tide.put("/v1/job-types/tidegate.mine", json!({})).await.problem(403, "forbidden");
    tide.patch("/v1/queues/none", json!({})).await.problem(404, "queue_not_found");
    tide.patch("/v1/queues/q", json!({"order": "random"})).await.blames(
        400,
        "invalid_field",
        "order",
    );
    tide.patch("/v1/job-types/t", json!({"max_attempts": 0})).await.blames(
        400,
        "invalid_max_attempts",
        "max_attempts",
    );
    let now = tide.get("/v1/queues/q").await.is(200);
    assert_eq!((&now["concurrency"], &now["version"]), (&queue["concurrency"], &queue["version"]));
    assert_eq!(tide.get("/v1/job-types/t").await.is(200), kind);
}

#[tokio::test]
async fn other_requests_with_a_wrong_field_are_refused_by_name() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    let id = tide.enqueue_a("t").await;
    let lease = tide.lease_one("t").await;
    let report = |fields: Value| {
        let mut whole = json!({"attempt": 1, "status": "failed"});
        whole.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        whole
    };
    let (job, beat, leases) = (&*lease.path, &*format!("{}/heartbeat", lease.path), "/v1/leases");
    let cases: &[(&str, &str, Value, &str, &str)] = &[
        ("POST", job, json!({"attempt": 1}), "invalid_field", "status"),
        ("POST", job, json!({"status": "failed"}), "invalid_field", "attempt"),
        ("POST", job, report(json!({"status": "done"})), "invalid_field", "status"),
        ("POST", job, report(json!({"result": 1})), "invalid_field", "result"),
        ("POST", job, report(json!({"reason": "bad luck"})), "invalid_field", "reason"),
        ("POST", job, report(json!({"message": "m".repeat(4097)})), "invalid_field", "message"),
        ("POST", job, report(json!({"retryable": 1})), "invalid_field", "retryable"),
        ("POST", job, report(json!({"token": "xyz"})), "invalid_field", "token"),
        ("POST", job, report(json!({"id": "other"})), "invalid_field", "id"),
        ("POST", job, report(json!({"extra": 1})), "unknown_field", "extra"),
        (
            "POST",
            job,
            json!({"attempt": 1, "status": "succeeded", "message": "m"}),
            "invalid_field",
            "message",
        ),
        ("POST", beat, json!({}), "invalid_field", "attempt"),
        ("POST", beat, json!({"attempt": 1, "progress": 101}), "invalid_field", "progress"),
        ("POST", beat, json!({"attempt": 1, "note": "n"}), "invalid_field", "note"),
        ("POST", beat, json!({"attempt": 1, "lease_seconds": 0}), "invalid_field", "lease_seconds"),
        ("POST", leases, json!({"max": 1001}), "invalid_field", "max"),
        ("POST", leases, json!({"wait_seconds": 61}), "invalid_field", "wait_seconds"),
        ("POST", leases, json!({"worker": ""}), "invalid_field", "worker"),
        ("POST", leases, json!({"lease_seconds": 0}), "invalid_field", "lease_seconds"),
        ("POST", leases, json!({"typ": ["t"]}), "unknown_field", "typ"),
        (
            "POST",
            leases,
            json!({"reports": [{"id": "x", "attempt": 1, "status": "eh"}]}),
            "invalid_field",
            "reports[0].status",
        ),
        ("PATCH", job, json!({"weight": 3}), "unknown_field", "weight"),
        ("PATCH", job, json!({"run_at": "soon"}), "invalid_field", "run_at"),
        ("POST", "/v1/jobs/cancel", json!({}), "invalid_field", "filter"),
        (
            "POST",
            "/v1/jobs/cancel",
            json!({"filter": {"state": "gone"}}),
            "invalid_field",
            "filter.state",
        ),
        (
            "POST",
            "/v1/jobs/replay",
            json!({"filter": {"kind": "x"}}),
            "unknown_field",
            "filter.kind",
        ),
        ("PUT", "/v1/workers/w", json!({"capacity": -1}), "invalid_field", "capacity"),
        ("POST", "/v1/tokens", json!({"name": "x", "scopes": ["root"]}), "invalid_field", "scopes"),
        ("POST", "/v1/tokens", json!({"name": "x", "scopes": []}), "invalid_field", "scopes"),
        ("POST", "/v1/tokens", json!({"name": "", "scopes": ["read"]}), "invalid_field", "name"),
        ("GET", "/v1/jobs?limit=0", Value::Null, "invalid_field", "limit"),
        ("GET", "/v1/jobs?limit=1001", Value::Null, "invalid_field", "limit"),
        ("GET", "/v1/jobs?state=gone", Value::Null, "invalid_field", "state"),
        ("GET", "/v1/jobs?ended_from=monday", Value::Null, "invalid_field", "ended_from"),
        ("GET", "/v1/jobs?colour=red", Value::Null, "unknown_parameter", "colour"),
        ("GET", "/v1/jobs?cursor=zzz", Value::Null, "invalid_field", "cursor"),
        ("GET", "/v1/jobs?sort=size", Value::Null, "invalid_field", "sort"),
        ("GET", "/v1/jobs?sort=wait&cursor=1_1", Value::Null, "invalid_field", "cursor"),
        ("GET", "/v1/workers/w/history?range=week", Value::Null, "invalid_field", "range"),
        ("GET", "/v1/queues?sort=name", Value::Null, "unknown_parameter", "sort"),
        ("GET", &format!("{job}/result?wait=61"), Value::Null, "invalid_field", "wait"),
        ("DELETE", &format!("{job}?force=maybe"), Value::Null, "invalid_field", "force"),
    ];
    let mut wrong = Vec::new();
    for (method, path, body, code, blamed) in cases {
        let answer = tide.ask(method.parse().unwrap(), path, body).await;
        wrong.extend(differs(&format!("{method} {path} {body}"), &answer, code, blamed));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let job = tide.job(&id).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("running"), &json!(1)));
}

#[tokio::test]
async fn a_body_of_null_is_answered_without_names_of_the_code() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    let id = tide.enqueue_a("t").await;
    for (method, path) in [
        (Method::PUT, "/v1/workers/w".to_owned()),
        (Method::POST, format!("/v1/jobs/{id}/replay")),
        (Method::POST, format!("/v1/jobs/t/{id}/replay")),
    ] {
        let json = [("content-type", "application/json")];
        let answer = tide.send(method, &path, &json, "null").await;
        let problem = answer.problem(400, "invalid_field");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("expected an object"), "{path}: {detail}");
        assert!(!detail.contains("Body") && !detail.contains("struct"), "{path}: {detail}");
    }
}

#[tokio::test]
async fn names_of_other_systems_are_answered_with_a_hint() {
    let tide = Tidegate::start().await;
    tide.job_type("t", json!({})).await;
    for (field, name) in [("run_after", "run_at"), ("delivery_strategy", "PUT /v1/job-types/")] {
        let answer = tide.post("/v1/jobs", json!({"type": "t", "data": 1, field: "x"})).await;
        let problem = answer.blames(400, "unknown_field", field);
        assert!(problem["detail"].as_str().unwrap().contains(name), "{problem}");
        // The first unknown field may be another one.
        let answer =
            tide.post("/v1/jobs", json!({"attempts": 3, "type": "t", "data": 1, field: "x"})).await;
        let problem = answer.blames(400, "unknown_field", "attempts");
        assert!(problem["detail"].as_str().unwrap().contains(name), "{problem}");
    }
    for path in ["/v1/job-types/u", "/v1/job-types/t"] {
        let method = if path.ends_with('u') { Method::PUT } else { Method::PATCH };
        let answer = tide.ask(method, path, &json!({"queue": "none"})).await;
        let problem = answer.blames(404, "queue_not_found", "queue");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("PUT /v1/queues/none") && detail.contains("default"), "{detail}");
    }
    let answer = tide.ask(Method::PUT, "/v1/jobs/t/random_id", &json!({"data": 1})).await;
    let problem = answer.blames(400, "invalid_field", "id");
    assert!(problem["detail"].as_str().unwrap().contains("POST /v1/jobs"), "{problem}");
    assert_eq!(tide.get("/v1/jobs").await.is(200)["jobs"], json!([]));
    let problem = tide.get("/v1/archived-jobs").await.problem(404, "route_not_found");
    assert!(problem["detail"].as_str().unwrap().contains("/v1/jobs?state=ended"), "{problem}");
    tide.enqueue_a("t").await;
    let lease = tide.lease_one("t").await;
    let report = json!({"attempt": 1, "status": "failed", "reason": "other", "retryable": false});
    let ended = tide.unchecked().post(&lease.path, report).await.is(200);
    assert_eq!(ended["error"]["reason"], "failed");
}
