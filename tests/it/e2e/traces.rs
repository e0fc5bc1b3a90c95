//! Traces: the spans that a collector receives for a job, and the context that its worker receives.

use std::{collections::HashMap, time::Duration};

use axum::{http::StatusCode, response::IntoResponse};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest, common::v1::any_value::Value as Any,
    trace::v1::Span,
};
use prost::Message as _;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    serve::{Setup, Tidegate},
    target::{Call, ClosedPort, Target},
    wait::until,
};

/// A caller's span, its trace recorded.
const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A collector, as far as the server can tell.
async fn collector() -> Target {
    Target::start(|_| async { StatusCode::OK }).await
}

fn base(collector: &Target) -> String {
    collector.url.trim_end_matches("/work").to_owned()
}

/// A server that sends its spans to `collector`.
fn traced(collector: &Target) -> Setup {
    Setup::new()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", base(collector))
        .env("OTEL_SERVICE_NAME", "shop")
}

fn at_once() -> Value {
    json!({"strategy": "exponential", "config": {"base_seconds": 0, "jitter": "none"}})
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// A span's context as a worker receives it.
fn parent(span: &Span) -> String {
    format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let value =
        span.attributes.iter().find(|pair| pair.key == name)?.value.as_ref()?.value.as_ref()?;
    Some(match value {
        Any::StringValue(text) => text.clone(),
        Any::IntValue(number) => number.to_string(),
        Any::DoubleValue(number) => number.to_string(),
        other => panic!("{name} is {other:?}"),
    })
}

/// Every span that services called `service` sent to `collector`, in the order of their start.
fn spans(collector: &Target, service: &str) -> Vec<Span> {
    let mut spans = Vec::new();
    for call in collector.calls() {
        assert_eq!(
            (call.path.as_str(), call.header("content-type")),
            ("/v1/traces", "application/x-protobuf")
        );
        let request = ExportTraceServiceRequest::decode(call.body.clone()).unwrap();
        for resource in request.resource_spans {
            let name = resource.resource.unwrap().attributes.remove(0);
            assert_eq!(
                (name.key.as_str(), name.value.unwrap().value),
                ("service.name", Some(Any::StringValue(service.to_owned())))
            );
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    spans.sort_by_key(|span| (span.start_time_unix_nano, span.end_time_unix_nano));
    spans
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// Every span but the first ones is a part of another that was sent, of the same trace.
fn assert_connected(spans: &[Span], roots: usize) {
    let known: HashMap<&[u8], &Span> = spans.iter().map(|span| (&span.span_id[..], span)).collect();
    assert_eq!(known.len(), spans.len(), "each has an id of its own");
    let parts = spans.iter().filter(|span| {
        known.get(&span.parent_span_id[..]).is_some_and(|above| above.trace_id == span.trace_id)
    });
    assert_eq!(parts.count() + roots, spans.len(), "{spans:#?}");
}

async fn enqueue(tide: &Tidegate, headers: &[(&str, &str)], job: Value) -> Value {
    let headers = [headers, &[("content-type", "application/json")]].concat();
    tide.send(Method::POST, "/v1/jobs", &headers, job.to_string()).await.is(201)
}

#[tokio::test]
async fn a_pushed_job_is_one_trace_from_its_enqueue_to_its_result() {
    let collector = collector().await;
    let tide = traced(&collector).start().await;
    let worker = Target::start(|call: Call| async move {
        if call.number == 1 {
            (StatusCode::INTERNAL_SERVER_ERROR, "boom").into_response()
        } else {
            StatusCode::ACCEPTED.into_response()
        }
    })
    .await;
    tide.job_type("t", json!({"target": {"url": worker.url}, "retry": at_once()})).await;
    let receiver = Target::start(|_| async { StatusCode::OK }).await;
    let ask =
        json!({"type": "t", "data": 1, "correlation_key": "order:1", "callback_url": receiver.url});
    let job = enqueue(&tide, &[("traceparent", CALLER), ("tracestate", "team=blue")], ask).await;
    let (first, second) = (worker.call(1).await, worker.call(2).await);
    let callback = second.json()["callback"].clone();
    let path = callback["url"].as_str().unwrap().strip_prefix(&tide.base).unwrap().to_owned();
    tide.with_token(callback["token"].as_str().unwrap())
        .post(&path, json!({"attempt": 2, "status": "succeeded", "result": 3}))
        .await
        .is(200);
    let id = job["id"].as_str().unwrap();
    tide.job_in(id, "succeeded").await;
    let received = receiver.call(1).await;
    // What was recorded is sent before it ends.
    tide.stop().await;

    let spans = spans(&collector, "shop");
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let count = |name: &str| names.iter().filter(|have| **have == name).count();
    let counts =
        ["enqueue default", "wait default", "deliver default", "report default"].map(count);
    assert_eq!((counts, names.len()), ([1, 2, 2, 1], 8), "{names:?}");
    assert!(
        spans.iter().all(|span| hex(&span.trace_id) == TRACE
            && span.start_time_unix_nano <= span.end_time_unix_nano)
    );
    assert_connected(&spans, 1);

    let enqueue = named(&spans, "enqueue default")[0];
    assert_eq!(
        (hex(&enqueue.parent_span_id).as_str(), enqueue.kind, enqueue.flags),
        ("b7ad6b7169203331", 2, 0x301)
    );
    assert_eq!(job["headers"], json!({"traceparent": parent(enqueue), "tracestate": "team=blue"}));
    let attempts = named(&spans, "deliver default");
    for (attempt, call) in attempts.iter().zip([&first, &second]) {
        assert_eq!((attempt.kind, &attempt.parent_span_id), (3, &enqueue.span_id));
        assert_eq!(
            (call.header("traceparent"), call.header("tracestate")),
            (parent(attempt).as_str(), "team=blue")
        );
    }
    // The completion callback carries the same trace.
    let callback = named(&spans, "deliver tidegate.callbacks")[0];
    assert_eq!(
        (received.header("traceparent"), &callback.parent_span_id),
        (parent(callback).as_str(), &enqueue.span_id)
    );
    let status = |span: &Span| {
        span.status
            .as_ref()
            .map_or((0, String::new()), |status| (status.code, status.message.clone()))
    };
    assert_eq!(
        (status(attempts[0]), status(attempts[1])),
        ((2, "HTTP 500: boom".into()), (0, String::new()))
    );
    assert!(attempts[0].end_time_unix_nano <= attempts[1].start_time_unix_nano);
    let waits = named(&spans, "wait default");
    assert_eq!(
        waits[1].start_time_unix_nano, attempts[0].end_time_unix_nano,
        "the second wait begins where the first attempt ended"
    );
    assert_eq!(waits[1].end_time_unix_nano, attempts[1].start_time_unix_nano);
    let report = named(&spans, "report default")[0];
    assert_eq!((&report.parent_span_id, report.kind), (&attempts[1].span_id, 2));

    for (span, operation, kind) in [
        (enqueue, "enqueue", Some("send")),
        (waits[0], "wait", None),
        (attempts[0], "deliver", Some("process")),
        (report, "report", Some("settle")),
    ] {
        let said = |name| attribute(span, name);
        assert_eq!(said("messaging.system").as_deref(), Some("tidegate"));
        assert_eq!(said("messaging.destination.name").as_deref(), Some("default"));
        assert_eq!(
            (
                said("messaging.operation.name").as_deref(),
                said("messaging.operation.type").as_deref()
            ),
            (Some(operation), kind)
        );
        assert_eq!(
            (said("messaging.message.id").as_deref(), said("tidegate.job.type").as_deref()),
            (Some(id), Some("t"))
        );
        assert_eq!(said("messaging.message.conversation_id").as_deref(), Some("order:1"));
    }
    let said = |name| attribute(attempts[0], name);
    assert_eq!(
        (said("error.type").as_deref(), said("http.response.status_code").as_deref()),
        (Some("failed"), Some("500"))
    );
    assert_eq!(
        (said("tidegate.job.attempt").as_deref(), said("tidegate.attempt.outcome").as_deref()),
        (Some("1"), Some("failed"))
    );
    assert_eq!(attribute(report, "tidegate.job.state").as_deref(), Some("succeeded"));
}

#[tokio::test]
async fn a_leased_job_has_an_attempt_span_and_a_lost_lease_fails_it() {
    let collector = collector().await;
    let tide = traced(&collector).start().await;
    for (queue, limit) in [("free", Value::Null), ("limited", json!(1))] {
        tide.queue(queue, json!({"concurrency": limit})).await;
        tide.job_type(queue, json!({"queue": queue, "lease_seconds": 0.3, "retry": at_once()}))
            .await;
        tide.enqueue_a(queue).await;
        let lost = tide.lease_one(queue).await;
        let held = tide.lease_one(queue).await;
        assert_eq!((lost.attempt, held.attempt), (1, 2));
        tide.report(&held, "succeeded").await.is(200);
        // A repeat is harmless and adds nothing.
        tide.report(&held, "succeeded").await.is(200);
        let traceparent = |lease: &super::api::Lease| {
            lease.whole["job"]["headers"]["traceparent"].as_str().unwrap().to_owned()
        };
        let deliver = format!("deliver {queue}");
        let spans = until(|| async {
            let spans = spans(&collector, "shop");
            (named(&spans, &format!("report {queue}")).len() == 1, spans)
        })
        .await;
        let attempts = named(&spans, &deliver);
        assert_eq!(
            attempts.iter().map(|span| parent(span)).collect::<Vec<_>>(),
            [traceparent(&lost), traceparent(&held)]
        );
        assert_eq!(attribute(attempts[0], "error.type").as_deref(), Some("lease_expired"));
        assert_eq!(attempts[0].trace_id, attempts[1].trace_id);
        assert!(
            named(&spans, &format!("enqueue {queue}"))[0].parent_span_id.is_empty(),
            "the caller sent no trace"
        );
    }
    tide.stop().await;
    assert_connected(&spans(&collector, "shop"), 2);
}

#[tokio::test]
async fn a_job_keeps_its_trace_over_a_crash() {
    let collector = collector().await;
    let tide = traced(&collector).start().await;
    tide.job_type("t", json!({})).await;
    enqueue(&tide, &[("traceparent", CALLER)], json!({"type": "t", "data": 1})).await;
    let lease = tide.lease_one("t").await;
    let tide = tide.kill().start().await;
    tide.with_token(&lease.token)
        .post(&lease.path, json!({"attempt": 1, "status": "succeeded"}))
        .await
        .is(200);
    tide.stop().await;
    let spans = spans(&collector, "shop");
    let attempt = named(&spans, "deliver default")[0];
    assert_eq!(
        lease.whole["job"]["headers"]["traceparent"],
        parent(attempt),
        "the new process writes the span that the old one promised"
    );
}

#[tokio::test]
async fn an_unsampled_trace_is_passed_on_and_a_malformed_one_ignored() {
    let collector = collector().await;
    let tide = traced(&collector).start().await;
    tide.job_type("t", json!({})).await;
    let traceparent_of = async |headers: &[(&str, &str)]| {
        enqueue(&tide, headers, json!({"type": "t", "data": 1})).await;
        let lease = tide.lease_one("t").await;
        tide.report(&lease, "succeeded").await.is(200);
        lease.whole["job"]["headers"]["traceparent"].as_str().unwrap().to_owned()
    };
    let unrecorded = CALLER.replace("-01", "-00");
    assert_eq!(traceparent_of(&[("traceparent", &unrecorded)]).await, unrecorded);
    let own = traceparent_of(&[("traceparent", "00-nonsense-01"), ("tracestate", "a=b")]).await;
    tide.stop().await;
    let spans = spans(&collector, "shop");
    assert_eq!(named(&spans, "enqueue default").len(), 1, "of the unrecorded one nothing is sent");
    assert!(named(&spans, "enqueue default")[0].parent_span_id.is_empty());
    assert_eq!(parent(named(&spans, "deliver default")[0]), own);

    // The settings decide how many of the traces that begin here are recorded; a caller's trace is
    // always recorded.
    let setup = traced(&collector)
        .env("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        .env("OTEL_TRACES_SAMPLER_ARG", "0.0");
    let before = spans.len();
    let tide = setup.env("TIDEGATE_TRACING__SERVICE_NAME", "shop").start().await;
    tide.job_type("t", json!({})).await;
    for (headers, flags) in [(&[][..], "-00"), (&[("traceparent", CALLER)][..], "-01")] {
        let job =
            enqueue(&tide, headers, json!({"type": "t", "data": 1, "delay_seconds": 60})).await;
        assert!(job["headers"]["traceparent"].as_str().unwrap().ends_with(flags));
    }
    tide.stop().await;
    assert_eq!(self::spans(&collector, "shop").len(), before + 1);
}

#[tokio::test]
async fn a_replay_and_a_repeat_are_linked_to_what_they_go_back_to() {
    let collector = collector().await;
    let tide = traced(&collector).start().await;
    tide.job_type("t", json!({})).await;
    let ask = json!({"type": "t", "id": "one", "data": 1});
    enqueue(&tide, &[("traceparent", CALLER)], ask.clone()).await;
    let again = CALLER.replace("0af", "1af");
    let headers = [("traceparent", again.as_str()), ("content-type", "application/json")];
    tide.send(Method::POST, "/v1/jobs", &headers, ask.to_string()).await.is(200);
    let lease = tide.lease_one("t").await;
    tide.report(&lease, "succeeded").await.is(200);
    tide.post("/v1/jobs/t/one/replay", Value::Null).await.is(201);
    tide.post("/v1/jobs", json!({"type": "none", "data": 1})).await.is(404);
    let expires =
        json!({"type": "t", "data": 1, "delay_seconds": 5, "expires_at": "2020-01-01T00:00:00Z"});
    let late = enqueue(&tide, &[], expires).await;
    tide.job_in(late["id"].as_str().unwrap(), "expired").await;
    tide.stop().await;

    let spans = spans(&collector, "shop");
    let enqueues = named(&spans, "enqueue default");
    let original = enqueues.iter().find(|span| hex(&span.trace_id) == TRACE).unwrap();
    let links = |span: &Span| {
        span.links
            .iter()
            .map(|link| (link.trace_id.clone(), link.span_id.clone()))
            .collect::<Vec<_>>()
    };
    let back = vec![(original.trace_id.clone(), original.span_id.clone())];
    let repeat = enqueues.iter().find(|span| hex(&span.trace_id).starts_with("1af")).unwrap();
    let replay = enqueues
        .iter()
        .find(|span| !hex(&span.trace_id)[1..].starts_with("af") && !span.links.is_empty())
        .unwrap();
    assert_eq!((links(original), links(repeat), links(replay)), (vec![], back.clone(), back));
    assert_eq!(attribute(repeat, "tidegate.job.repeated").as_deref(), Some("true"));
    let refused = named(&spans, "enqueue")[0];
    assert_eq!(
        (attribute(refused, "error.type").as_deref(), refused.status.as_ref().unwrap().code),
        (Some("job_type_not_found"), 2)
    );
    let expired = named(&spans, "wait default")
        .into_iter()
        .find(|span| attribute(span, "error.type").as_deref() == Some("expired"));
    assert_eq!(
        expired.unwrap().status.as_ref().unwrap().code,
        2,
        "a job that never started has a wait that failed"
    );
}

#[tokio::test]
async fn without_a_collector_a_trace_goes_on_as_it_came() {
    let tide = Tidegate::start().await;
    let worker = Target::start(|_| async { StatusCode::OK }).await;
    tide.job_type("t", json!({"target": {"url": worker.url}})).await;
    enqueue(
        &tide,
        &[("traceparent", CALLER), ("tracestate", "a=b")],
        json!({"type": "t", "data": 1}),
    )
    .await;
    let call = worker.call(1).await;
    assert_eq!((call.header("traceparent"), call.header("tracestate")), (CALLER, "a=b"));
    enqueue(
        &tide,
        &[("traceparent", "malformed"), ("tracestate", "a=b")],
        json!({"type": "t", "data": 1}),
    )
    .await;
    let call = worker.call(2).await;
    assert_eq!((call.header("traceparent"), call.header("tracestate")), ("", ""));
}

#[tokio::test]
async fn a_dead_collector_delays_no_job_and_is_logged_once() {
    let closed = ClosedPort::new();
    let setup = Setup::new()
        .env("TIDEGATE_TRACING__OTLP_ENDPOINT", &closed.url)
        .env("TIDEGATE_SHUTDOWN_SECONDS", "2");
    let mut tide = setup.start().await;
    let worker = Target::start(|_| async { StatusCode::OK }).await;
    tide.job_type("t", json!({"target": {"url": worker.url}})).await;
    let jobs: Vec<Value> = (0..500).map(|n| json!({"type": "t", "data": n})).collect();
    tide.post("/v1/jobs/batch", json!({"jobs": jobs})).await.is(200);
    worker.call(500).await;
    // All its tries would take seven seconds.
    tide.terminate();
    let ended = tokio::time::timeout(Duration::from_secs(20), tide.ended()).await.unwrap();
    assert!(ended.success(), "{}", tide.log());
    let warnings = tide.log().lines().filter(|line| line.contains("spans were lost")).count();
    assert_eq!(warnings, 1, "{}", tide.log());
}
