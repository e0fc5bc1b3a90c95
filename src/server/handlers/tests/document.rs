//! The `OpenAPI` document is whole: every route is in it, every reference leads somewhere, and what is
//! answered has the shape that it says.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use crate::handlers::{self, openapi};
use tidegate_api::{Bodies, JobView};
use tidegate_core::{
    job::{
        self, Body, Encoding, Job, Lifecycle, Payload,
        lifecycle::{AttemptRecord, Failure, Outcome, Reason, Running, State, Token, Waiting},
        spec::{KeepResult, Spec, Unique, UniqueWhile},
        type_config::TypeConfig,
    },
    queue::{
        QueueConfig,
        config::{Constraint, Rate},
    },
    schedule::ScheduleConfig,
    time::{Seconds, Timestamp},
};

fn document() -> Value {
    openapi::complete(handlers::routes().into_openapi())
}

/// Every operation as `method path`.
fn operations(document: &Value) -> BTreeSet<String> {
    let paths = document["paths"].as_object().unwrap();
    let named = |path: &String, item: &Value| {
        item.as_object()
            .unwrap()
            .keys()
            .map(|method| format!("{method} {path}"))
            .collect::<Vec<_>>()
    };
    paths.iter().flat_map(|(path, item)| named(path, item)).collect()
}

#[test]
fn every_route_of_the_specification_is_there() {
    let wanted = "
        delete /v1/job-types/{type}, delete /v1/jobs/{type}/{id}, delete /v1/queues/{queue}, delete /v1/tokens/{id}, delete /v1/workers/{worker},
        delete /v1/plugins/{plugin}, delete /v1/plugins/{plugin}/shadow, get /v1/plugins, get /v1/plugins/{plugin},
        get /v1/plugins/{plugin}/differences, get /v1/plugins/{plugin}/faults, get /v1/plugins/{plugin}/logs, get /v1/plugins/{plugin}/versions,
        get /v1/plugins/{plugin}/versions/{number}/component, post /v1/plugins/{plugin}/rollback, put /v1/plugins/{plugin},
        put /v1/plugins/{plugin}/shadow, get /healthz, get /metrics, get /openapi.json, get /readyz, get /v1/doctor, get /v1/job-types, get /v1/job-types/{type}, get /v1/jobs, get /v1/jobs/{id},
        get /v1/jobs/{type}/{id}, get /v1/jobs/{type}/{id}/explain, get /v1/jobs/{type}/{id}/result, get /v1/operations/{id}, get /v1/queues,
        get /v1/queues/{queue}, get /v1/tokens, get /v1/workers, patch /v1/job-types/{type}, patch /v1/jobs/{type}/{id}, patch /v1/queues/{queue},
        post /v1/jobs, post /v1/jobs/batch, post /v1/jobs/cancel, post /v1/jobs/replay, post /v1/jobs/{type}/{id}, post /v1/jobs/{type}/{id}/heartbeat,
        post /v1/jobs/{type}/{id}/replay, post /v1/jobs/{id}/replay, post /v1/leases, post /v1/queues/{queue}/pause, post /v1/queues/{queue}/purge, post /v1/queues/{queue}/resume,
        post /v1/tokens, post /v1/workers/{worker}/drain, post /v1/workers/{worker}/undrain, put /v1/job-types/{type}, put /v1/jobs/{type}/{id},
        put /v1/queues/{queue}, put /v1/workers/{worker}, get /v1/schedules, get /v1/schedules/{schedule}, put /v1/schedules/{schedule},
        patch /v1/schedules/{schedule}, delete /v1/schedules/{schedule}, post /v1/schedules/{schedule}/pause,
        post /v1/schedules/{schedule}/resume, post /v1/schedules/{schedule}/run, post /v1/events, get /v1/triggers, put /v1/triggers/{trigger},
        get /v1/triggers/{trigger}, delete /v1/triggers/{trigger}, get /v1/dead-letters, get /v1/dead-letters/{id}, delete /v1/dead-letters/{id},
        post /v1/dead-letters/{id}/replay, post /v1/dead-letters/replay";
    let wanted: BTreeSet<String> =
        wanted.split(',').map(|operation| operation.trim().to_owned()).collect();
    assert_eq!(operations(&document()), wanted);
}

#[test]
fn every_operation_says_who_may_and_how_it_fails() {
    let document = document();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name = format!("{method} {path}");
            assert!(
                operation["operationId"].is_string() && operation["summary"].is_string(),
                "{name} has no name or no words"
            );
            let open = operation["security"]
                .as_array()
                .unwrap_or_else(|| panic!("{name} says nothing of who may"));
            let guarded = open.iter().any(|scheme| scheme.get("bearer").is_some());
            assert_eq!(
                guarded,
                !["/healthz", "/readyz", "/openapi.json"].contains(&path.as_str()),
                "{name}"
            );
            let responses = operation["responses"].as_object().unwrap();
            assert_eq!(
                guarded,
                responses.contains_key("401") && responses.contains_key("403"),
                "{name}"
            );
            assert_eq!(
                operation.get("requestBody").is_some(),
                responses.contains_key("415"),
                "{name}"
            );
            for (status, response) in responses {
                let words = response["description"].as_str().unwrap();
                assert!(
                    !words.is_empty() && (status.as_str() < "400" || words.contains('`')),
                    "{name} {status} names no code"
                );
            }
            let named: BTreeSet<&str> = path
                .split('/')
                .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
                .collect();
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let documented: BTreeSet<&str> = parameters
                .filter(|parameter| parameter["in"] == "path")
                .map(|parameter| parameter["name"].as_str().unwrap())
                .collect();
            assert_eq!(named, documented, "{name}");
        }
    }
    let ids: Vec<&str> = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|item| item.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids.iter().collect::<BTreeSet<_>>().len(),
        ids.len(),
        "operation ids are unique: {ids:?}"
    );
}

#[test]
fn every_reference_leads_somewhere() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|inner| references(inner, found));
            }
            Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
            _ => {}
        }
    }
    let document = document();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50, "{found:?}");
    for reference in found {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
}

/// What `value` has that `schema` does not say, or lacks that it demands.
fn faults(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        return faults(
            document,
            document.pointer(reference.trim_start_matches('#')).unwrap(),
            value,
            at,
        );
    }
    for any in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[any].as_array() {
            let each: Vec<_> =
                choices.iter().map(|choice| faults(document, choice, value, at)).collect();
            return if each.iter().any(Vec::is_empty) { Vec::new() } else { each.concat() };
        }
    }
    if let Some(parts) = schema["allOf"].as_array() {
        // The parts share one object, so that what one does not know another may.
        let mut merged = json!({"type": "object", "properties": {}, "required": []});
        for part in parts {
            let part = part["$ref"].as_str().map_or(part, |reference| {
                document.pointer(reference.trim_start_matches('#')).unwrap()
            });
            merged["properties"]
                .as_object_mut()
                .unwrap()
                .extend(part["properties"].as_object().cloned().unwrap_or_default());
            merged["required"]
                .as_array_mut()
                .unwrap()
                .extend(part["required"].as_array().cloned().unwrap_or_default());
        }
        return faults(document, &merged, value, at);
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed: Vec<&str> = schema["type"]
        .as_str()
        .into_iter()
        .chain(schema["type"].as_array().into_iter().flatten().filter_map(Value::as_str))
        .collect();
    let fits = |kind: &str| allowed.is_empty() || allowed.contains(&kind);
    let whole = kind == "integer" && fits("number");
    if !fits(kind) && !whole {
        return vec![format!("{at} is {kind}, not {allowed:?}")];
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return vec![format!("{at} is not one of {words:?}")];
    }
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .flat_map(|(n, item)| faults(document, &schema["items"], item, &format!("{at}[{n}]")))
            .collect(),
        Value::Object(fields) => {
            let known = schema["properties"].as_object();
            let missing = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .filter(|name| !fields.contains_key(*name));
            let missing = missing.map(|name| format!("{at}.{name} is missing"));
            let inner = fields.iter().flat_map(|(name, inner)| {
                match known.and_then(|known| known.get(name)) {
                    Some(schema) => faults(document, schema, inner, &format!("{at}.{name}")),
                    None if known.is_some() => vec![format!("{at}.{name} is not documented")],
                    None => Vec::new(),
                }
            });
            missing.chain(inner).collect()
        }
        _ => Vec::new(),
    }
}

fn conforms(schema: &str, value: &Value) {
    let document = document();
    let schema = document
        .pointer(&format!("/components/schemas/{schema}"))
        .unwrap_or_else(|| panic!("no schema {schema}"));
    let faults = faults(&document, schema, value, "");
    assert!(faults.is_empty(), "{faults:#?}\n{value:#}");
}

fn job(state: State) -> Job {
    let at = Timestamp::from_millis(1000);
    let spec = Spec {
        job_type: "invoice".parse().unwrap(),
        queue: "mail".parse().unwrap(),
        priority: 100,
        weight: 1,
        critical: false,
        created_at: at,
        expires_at: Some(at),
        deadline_at: Some(at),
        windows: serde_json::from_value(
            json!([{"from": "08:00", "to": "17:30", "days": ["mon"], "tz": "Europe/Berlin"}]),
        )
        .unwrap(),
        timeout: Seconds::from_millis(1500),
        max_attempts: 3,
        retry: job::retry::Retry::default(),
        correlation_key: Some("order:1".into()),
        unique: Some(Unique {
            key: "k".into(),
            hold: UniqueWhile::Live,
            period_seconds: Some(Seconds::new(5)),
        }),
        attributes: serde_json::from_value(json!({"region": "east", "size": 3})).unwrap(),
        keep_result: KeepResult::For(Seconds::new(60)),
        callback_url: Some("https://example.com/told".parse().unwrap()),
        headers: [("traceparent".to_owned(), "00-1-2-03".to_owned())].into(),
        replay_of: Some("old".parse().unwrap()),
        retention: Seconds::new(1),
        partition: String::new(),
        request_digest: [0; 16],
    };
    let failure = Failure {
        reason: Reason::Timeout,
        message: Some("too slow".into()),
        details: Some("{\"n\":1}".into()),
        status: Some(500),
    };
    let entry = AttemptRecord {
        attempt: 1,
        started_at: at,
        ended_at: at,
        outcome: Outcome::Failed,
        error: Some(failure.clone()),
        retry_at: Some(at),
        token: Token(7),
        reply: None,
    };
    let life = Lifecycle {
        state,
        attempt: 2,
        started_at: Some(at),
        error: Some(failure),
        history: vec![entry],
        ..Lifecycle::new(at, Waiting::Due)
    };
    Job {
        id: "j1".parse().unwrap(),
        spec: Arc::new(spec),
        data: Body::Inline(Payload::json(r#"{"a":1}"#)),
        life,
    }
}

fn shown(job: &Job, bodies: Bodies) -> Value {
    serde_json::to_value(JobView::new(job, Encoding::Json, bodies)).unwrap()
}

#[test]
fn a_job_has_the_shape_that_the_document_says() {
    let at = Timestamp::from_millis(2000);
    let progress = Some(job::lifecycle::Progress { percent: 40.0, note: None });
    let running = Running {
        token: Token(7),
        started_at: at,
        lease_until: at,
        timeout_at: at,
        worker: None,
        granted: false,
        cancel: true,
        progress,
    };
    for state in [
        State::Scheduled { run_at: at, waiting: Waiting::Retry },
        State::Running(running),
        State::Ended { at, outcome: Outcome::Succeeded },
    ] {
        let value = shown(&job(state), Bodies::Whole);
        conforms("Job", &value);
        for listed in "id type queue state attempt max_attempts priority weight critical run_at created_at started_at ended_at expires_at data attributes \
                       correlation_key replay_of result error history"
            .split_whitespace()
        {
            assert!(value.get(listed).is_some(), "{listed} is always there");
        }
    }
}

#[test]
fn the_token_of_an_attempt_is_not_shown() {
    let at = Timestamp::EPOCH;
    let token = Token(0xdead_beef_dead_beef);
    let running = Running {
        token,
        started_at: at,
        lease_until: at,
        timeout_at: at,
        worker: None,
        granted: false,
        cancel: false,
        progress: None,
    };
    let text = shown(&job(State::Running(running)), Bodies::Whole).to_string();
    assert!(!text.contains("deadbeef") && !text.contains(&token.0.to_string()), "{text}");
}

#[test]
fn a_list_leaves_out_large_bodies_and_says_how_large_they_are() {
    let mut job = job(State::Scheduled { run_at: Timestamp::EPOCH, waiting: Waiting::Due });
    job.data = Body::Inline(Payload::json(format!("\"{}\"", "x".repeat(1023))));
    let value = shown(&job, Bodies::Small);
    assert_eq!((value.get("data"), &value["data_bytes"]), (None, &json!(1025)));
    conforms("Job", &value);
    assert!(shown(&job, Bodies::Whole).get("data").is_some());
}

#[test]
fn a_result_that_is_kept_once_is_shown_by_its_own_route_alone() {
    let mut job = job(State::Ended { at: Timestamp::EPOCH, outcome: Outcome::Succeeded });
    job.life.result = Some(job::lifecycle::ResultBody {
        encoding: Encoding::Json,
        bytes: "42".into(),
        object: None,
    });
    assert_eq!(shown(&job, Bodies::Whole)["result"], 42);
    Arc::make_mut(&mut job.spec).keep_result = KeepResult::Once;
    assert_eq!(shown(&job, Bodies::Whole)["result"], Value::Null);
}

#[test]
fn configurations_have_the_shape_that_the_document_says() {
    let matcher = json!({"type": ["a", "b"], "priority": {"lte": 10}, "attribute": {"size": {"gt": 3}}, "not": {"type": "c"}});
    let constraint = Constraint {
        name: "c".into(),
        matcher: serde_json::from_value(matcher).unwrap(),
        per: Some("region".into()),
        concurrency: Some(3),
        rate: Some(Rate { count: 1, per_seconds: Seconds::new(1), burst: Some(2) }),
    };
    let queue = QueueConfig {
        concurrency: Some(1),
        constraints: vec![constraint],
        ..QueueConfig::default()
    };
    conforms("QueueConfig", &serde_json::to_value(&queue).unwrap());
    conforms("TypeConfig", &serde_json::to_value(TypeConfig::default()).unwrap());
    let target = json!({"url": "http://127.0.0.1:9/", "signing_secret": ["a", "b"], "basic_auth": {"username": "u", "password": "p"}, "encoding": "msgpack"});
    let push: TypeConfig =
        serde_json::from_value(json!({"target": target, "keep_result": "once"})).unwrap();
    conforms("TypeConfig", &serde_json::to_value(&push).unwrap());
    let whole = json!({
        "type": "a", "cron": "0 3 * * *", "tz": "UTC", "starts_at": "2026-01-01T00:00:00Z", "ends_at": "2026-01-01T00:00:00Z", "missed": "all",
        "max_missed": 5, "paused": true, "expires_after_seconds": 1.5, "priority": 1, "weight": 1, "critical": true,
        "windows": [{"from": "08:00", "to": "09:00"}], "timeout_seconds": 1, "deadline_seconds": 1, "max_attempts": 1,
        "retry": {"strategy": "exponential"}, "unique": {"key": "k", "while": "live"}, "attributes": {"size": 3}, "keep_result": "once",
        "callback_url": "https://example.com/", "headers": {"x": "1"},
    });
    let schedule: ScheduleConfig = serde_json::from_value(whole.clone()).unwrap();
    let shown = serde_json::to_value(&schedule).unwrap();
    conforms("ScheduleConfig", &shown);
    assert_eq!(
        shown.as_object().unwrap().len(),
        whole.as_object().unwrap().len(),
        "every field is read and shown"
    );
    let every = json!({"type": "a", "every_seconds": 1.5, "anchor": "2026-01-01T00:00:00Z"});
    conforms(
        "ScheduleConfig",
        &serde_json::to_value(serde_json::from_value::<ScheduleConfig>(every).unwrap()).unwrap(),
    );
    let trigger = json!({"filter": {"type": {"prefix": "a"}, "data": {"/x": 1}, "not": {"source": "s"}}, "enqueue": {"type": "t", "data": {"$expr": "id"}}});
    let trigger: tidegate_core::event::TriggerConfig = serde_json::from_value(trigger).unwrap();
    conforms("TriggerConfig", &serde_json::to_value(&trigger).unwrap());
}

#[test]
fn what_became_of_an_event_has_the_shape_that_the_document_says() {
    use tidegate_api::{Applied, Did, Ingested};
    let job = || "j1".parse().unwrap();
    let all = [
        Did::Enqueued { job: job(), job_type: "t".parse().unwrap() },
        Did::Repeated { job: job() },
        Did::Completed { job: job() },
        Did::Recorded { job: job() },
        Did::Known { job: job() },
        Did::Late { job: job() },
        Did::Kept { until: Timestamp::EPOCH },
        Did::Dead { letter: "l".into(), reason: "r".into() },
        Did::Dropped { reason: "r".into() },
    ];
    for did in all {
        let word = did.word();
        conforms("Did", &serde_json::to_value(&did).unwrap());
        let ingested = Ingested {
            id: "1".into(),
            source: "s".into(),
            outcomes: vec![Applied { trigger: "t".parse().unwrap(), did }],
        };
        let value = serde_json::to_value(&ingested).unwrap();
        assert_eq!(value["outcomes"][0]["did"], word);
    }
}

#[test]
fn a_rule_can_say_every_field_of_a_job() {
    let document = document();
    let fields = document["components"]["schemas"]["NewJob"]["properties"].as_object().unwrap();
    let own = ["id", "type", "data"];
    let theirs: BTreeSet<&str> =
        fields.keys().map(String::as_str).filter(|name| !own.contains(name)).collect();
    assert_eq!(tidegate_core::event::fields::JobFields::names().collect::<BTreeSet<_>>(), theirs);
}

#[test]
fn a_problem_has_the_shape_that_the_document_says() {
    conforms(
        "Problem",
        &serde_json::to_value(
            handlers::error::Problem::invalid("weight", "must be at least 1").at("/v1/jobs"),
        )
        .unwrap(),
    );
}
