//! What answers contain has the shape that the document describes.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::{
    document,
    schema::{conforms, faults_of},
};
use crate::handlers;
use tidegate_api::{Bodies, JobView};
use tidegate_backends::aws_targets;
use tidegate_core::{
    job::{
        self, Body, Encoding, Job, Lifecycle, Origin, Payload,
        lifecycle::{
            AttemptRecord, Failure, HandBack, Outcome, Reason, Running, State, Token, Waiting,
        },
        spec::{KeepResult, Spec, Unique, UniqueWhile},
        type_config::TypeConfig,
    },
    queue::{
        QueueConfig,
        config::{Constraint, Rate},
    },
    schedule::ScheduleConfig,
    stored::UnknownFields,
    time::{Seconds, Timestamp},
    validate::accept_type,
};

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
            period_seconds: Some(Seconds::new(5)),
            ..Unique::new("k", UniqueWhile::Live)
        }),
        attributes: serde_json::from_value(json!({"region": "east", "size": 3})).unwrap(),
        keep_result: KeepResult::For(Seconds::new(60)),
        callback_url: Some("https://example.com/callback".parse().unwrap()),
        headers: [("traceparent".to_owned(), "00-1-2-03".to_owned())].into(),
        replay_of: Some("old".parse().unwrap()),
        retention: Seconds::new(1),
        partition: String::new(),
        request_digest: [0; 16],
        original: None,
        retry_target: Some("eu".into()),
        enqueued_by: Some("shop".into()),
        merged: Vec::new(),
        origin: Some(Box::new(Origin::schedule("nightly".parse().unwrap(), Some(at)))),
        unknown: UnknownFields::default(),
    };
    let failure = Failure {
        reason: Reason::Timeout,
        message: Some("too slow".into()),
        details: Some("{\"n\":1}".into()),
        status: Some(500),
        retry_after: Some(Seconds::new(9)),
        unknown: UnknownFields::default(),
    };
    let entry = AttemptRecord {
        attempt: 1,
        started_at: at,
        ended_at: at,
        outcome: Outcome::Failed,
        error: Some(failure.clone()),
        retry_at: Some(at),
        token: Token::new(7),
        reply: None,
        hand_back: None,
        worker: None,
        unknown: UnknownFields::default(),
    };
    let until = Some(at);
    let hand_back =
        HandBack { until, message: Some("later".into()), unknown: UnknownFields::default() };
    let snoozed = AttemptRecord {
        attempt: 2,
        outcome: Outcome::Cancelled,
        error: None,
        hand_back: Some(hand_back),
        ..entry.clone()
    };
    let life = Lifecycle {
        state,
        attempt: 2,
        started_at: Some(at),
        error: Some(failure),
        history: vec![entry, snoozed],
        ..Lifecycle::new(at, Waiting::Due)
    };
    Job {
        id: "j1".parse().unwrap(),
        spec: Arc::new(spec),
        data: Body::Inline(Payload::json(r#"{"a":1}"#)),
        life,
    }
}

#[test]
fn the_due_time_stays_readable_once_a_job_runs() {
    let (due, started) = (Timestamp::from_millis(1000), Timestamp::from_millis(2000));
    let mut job = job(State::Ended { at: started, outcome: Outcome::Succeeded });
    job.life.started_at = Some(started);
    let run_at = |job: &Job| shown(job, Bodies::Whole)["run_at"].clone();
    let start = "1970-01-01T00:00:02.000Z";
    assert_eq!(run_at(&job), start, "of a build that kept no due time");
    job.life.due_at = Some(due);
    assert_eq!(run_at(&job), "1970-01-01T00:00:01.000Z");
    job.life.due_at = Some(started + std::time::Duration::from_secs(1));
    assert_eq!(run_at(&job), start, "the due time is of an attempt after the one it was kept for");
}

fn shown(job: &Job, bodies: Bodies) -> Value {
    serde_json::to_value(JobView::new(job, Timestamp::EPOCH, Encoding::Json, bodies)).unwrap()
}

#[test]
fn a_job_conforms_to_its_schema() {
    let at = Timestamp::from_millis(2000);
    let progress = Some(job::lifecycle::Progress { percent: 40.0, note: None });
    let running = Running {
        token: Token::new(7),
        started_at: at,
        lease_until: at,
        timeout_at: at,
        worker: None,
        granted: false,
        cancel: true,
        progress,
        has_advanced: false,
        unknown: UnknownFields::default(),
    };
    for state in [
        State::Scheduled { run_at: at, waiting: Waiting::Retry },
        State::Running(running),
        State::Ended { at, outcome: Outcome::Succeeded },
    ] {
        let value = shown(&job(state), Bodies::Whole);
        conforms("Job", &value);
        for listed in "id type queue state attempt max_attempts priority weight critical run_at \
                       created_at started_at ended_at expires_at data attributes \
                       correlation_key replay_of result error history"
            .split_whitespace()
        {
            assert!(value.get(listed).is_some(), "{listed} is always present");
        }
    }
}

#[test]
fn the_token_of_an_attempt_is_not_shown() {
    let at = Timestamp::EPOCH;
    let token = Token::new(0xdead_beef_dead_beef);
    let running = Running {
        token,
        started_at: at,
        lease_until: at,
        timeout_at: at,
        worker: None,
        granted: false,
        cancel: false,
        progress: None,
        has_advanced: false,
        unknown: UnknownFields::default(),
    };
    let text = shown(&job(State::Running(running)), Bodies::Whole).to_string();
    assert!(!text.contains("deadbeef"), "{text}");
}

#[test]
fn a_list_shows_only_the_size_of_large_bodies() {
    let mut job = job(State::Scheduled { run_at: Timestamp::EPOCH, waiting: Waiting::Due });
    job.data = Body::Inline(Payload::json(format!("\"{}\"", "x".repeat(1023))));
    let value = shown(&job, Bodies::Small);
    assert_eq!((value.get("data"), &value["data_bytes"]), (None, &json!(1025)));
    conforms("Job", &value);
    assert!(shown(&job, Bodies::Whole).get("data").is_some());
}

#[test]
fn a_result_kept_once_is_shown_only_by_its_own_route() {
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
fn a_target_on_aws_conforms_to_its_schema() {
    for target in [
        json!({"sqs": {"queue_url": "https://sqs.eu-west-1.amazonaws.com/1/jobs"}}),
        json!({"sns": {"topic_arn": "arn:aws:sns:eu-west-1:1:jobs"}, "complete": "on_delivery"}),
        json!({"event_bridge": {"bus": "default"}}),
        json!({"lambda": {"function": "work", "invocation": "wait"}, "complete": "on_result"}),
    ] {
        let config = serde_json::from_value(json!({ "target": target })).unwrap();
        let accepted = accept_type(config, aws_targets::accept).unwrap();
        conforms("TypeConfig", &serde_json::to_value(&accepted).unwrap());
    }
    let misspelt = json!({"target": {"sqs": {"queue": "jobs"}, "complete": "on_result"}});
    assert!(!faults_of("TypeConfig", &misspelt).is_empty());
}

#[test]
fn configurations_conform_to_their_schemas() {
    let matcher = json!({
        "type": ["a", "b"], "priority": {"lte": 10}, "attribute": {"size": {"gt": 3}},
        "not": {"type": "c"},
    });
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
    let target = json!({
        "url": "http://127.0.0.1:9/", "signing_secret": ["a", "b"], "encoding": "msgpack",
        "basic_auth": {"username": "u", "password": "p"},
    });
    let push: TypeConfig =
        serde_json::from_value(json!({"target": target, "keep_result": "once"})).unwrap();
    conforms("TypeConfig", &serde_json::to_value(&push).unwrap());
    let whole = json!({
        "type": "a", "cron": "0 3 * * *", "tz": "UTC", "starts_at": "2026-01-01T00:00:00Z",
        "ends_at": "2026-01-01T00:00:00Z", "missed": "all", "max_missed": 5, "paused": true,
        "expires_after_seconds": 1.5, "priority": 1, "weight": 1, "critical": true,
        "windows": [{"from": "08:00", "to": "09:00"}], "timeout_seconds": 1,
        "deadline_seconds": 1, "max_attempts": 1, "retry": {"strategy": "exponential"},
        "unique": {"key": "k", "while": "live"}, "attributes": {"size": 3}, "keep_result": "once",
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
    let trigger = json!({
        "filter": {"type": {"prefix": "a"}, "data": {"/x": 1}, "not": {"source": "s"}},
        "enqueue": {"type": "t", "data": {"$expr": "id"}},
    });
    let trigger: tidegate_core::event::TriggerConfig = serde_json::from_value(trigger).unwrap();
    conforms("TriggerConfig", &serde_json::to_value(&trigger).unwrap());
}

#[test]
fn outcomes_of_events_conform_to_their_schema() {
    use tidegate_api::{Applied, Ingested, TriggerAction};
    let job = || "j1".parse().unwrap();
    let all = [
        TriggerAction::Enqueued { job: job(), job_type: "t".parse().unwrap() },
        TriggerAction::AlreadyEnqueued { job: job() },
        TriggerAction::Completed { job: job() },
        TriggerAction::Recorded { job: job() },
        TriggerAction::AlreadyProcessed { job: job() },
        TriggerAction::Late { job: job() },
        TriggerAction::Pending { until: Timestamp::EPOCH },
        TriggerAction::DeadLettered { letter: "l".into(), reason: "r".into() },
        TriggerAction::Dropped { reason: "r".into() },
    ];
    for action in all {
        let word = action.word();
        conforms("TriggerAction", &serde_json::to_value(&action).unwrap());
        let ingested = Ingested {
            id: "1".into(),
            source: "s".into(),
            outcomes: vec![Applied { trigger: "t".parse().unwrap(), action }],
        };
        let value = serde_json::to_value(&ingested).unwrap();
        assert_eq!(value["outcomes"][0]["action"], word);
    }
}

#[test]
fn a_trigger_can_set_every_field_of_a_job() {
    let document = document();
    let fields = document["components"]["schemas"]["NewJob"]["properties"].as_object().unwrap();
    let own = ["id", "type", "data"];
    let theirs: BTreeSet<&str> =
        fields.keys().map(String::as_str).filter(|name| !own.contains(name)).collect();
    assert_eq!(tidegate_core::event::fields::JobFields::names().collect::<BTreeSet<_>>(), theirs);
}

#[test]
fn a_problem_conforms_to_its_schema() {
    conforms(
        "Problem",
        &serde_json::to_value(
            handlers::error::Problem::invalid("weight", "must be at least 1").at("/v1/jobs"),
        )
        .unwrap(),
    );
}
