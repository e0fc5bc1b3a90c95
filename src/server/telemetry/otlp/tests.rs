use axum::{Router, body::Bytes as Sent, http::StatusCode, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span as Decoded, span::Link, status::StatusCode as Code},
};
use prost::Message as _;

use super::*;
use tidegate_core::{
    job::TraceContext,
    port::spans::{Attribute, Parent, SpanKind},
    time::Timestamp,
};

const CONTEXT: TraceContext = TraceContext {
    trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
    span: 0xb7ad_6b71_6920_3331,
    sampled: true,
};

fn span(name: &str) -> Span {
    Span {
        name: name.to_owned(),
        kind: SpanKind::Internal,
        context: CONTEXT,
        parent: None,
        link: None,
        started_at: Timestamp::from_millis(1_700_000_000_001),
        ended_at: Timestamp::from_millis(1_700_000_000_250),
        failure: None,
        attributes: Vec::new(),
    }
}

/// The spans of a request, as those read them who know the format best.
fn decoded(body: &[u8]) -> Vec<Decoded> {
    let mut request = ExportTraceServiceRequest::decode(body).unwrap();
    assert_eq!(request.resource_spans.len(), 1);
    let resource = request.resource_spans.remove(0);
    let name = &resource.resource.unwrap().attributes[0];
    assert_eq!((name.key.as_str(), text(name.value.as_ref())), ("service.name", "shop"));
    let scope = resource.scope_spans[0].scope.clone().unwrap();
    assert_eq!(
        (scope.name.as_str(), scope.version.as_str()),
        ("tidegate", env!("CARGO_PKG_VERSION"))
    );
    resource.scope_spans.into_iter().flat_map(|scope| scope.spans).collect()
}

fn text(value: Option<&AnyValue>) -> &str {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?} is no text"),
    }
}

#[test]
fn every_field_of_a_span_is_read_as_it_was_written() {
    let whole = Span {
        kind: SpanKind::Client,
        parent: Some(Parent { span: 7, remote: true }),
        link: Some(TraceContext { span: 9, ..CONTEXT }),
        failure: Some("größer als erlaubt".to_owned()),
        attributes: vec![
            ("text", Attribute::Text("x".repeat(300))),
            ("number", Attribute::Number(-5)),
            ("seconds", Attribute::Seconds(0.25)),
        ],
        ..span("deliver mail")
    };
    let mut spans = decoded(&encode::request("shop", &[whole, span("")]));
    assert_eq!(spans.len(), 2);
    let plain = spans.pop().unwrap();
    let read = spans.pop().unwrap();
    let ids = |span: u64| (CONTEXT.trace.to_be_bytes().to_vec(), span.to_be_bytes().to_vec());
    assert_eq!((read.trace_id.clone(), read.span_id.clone()), ids(CONTEXT.span));
    assert_eq!(
        (read.parent_span_id.clone(), read.name.as_str(), read.kind),
        (ids(7).1, "deliver mail", 3)
    );
    assert_eq!(
        (read.start_time_unix_nano, read.end_time_unix_nano),
        (1_700_000_000_001_000_000, 1_700_000_000_250_000_000)
    );
    let (trace_id, span_id) = ids(9);
    assert_eq!(read.links, [Link { trace_id, span_id, flags: 1, ..Link::default() }]);
    let status = read.status.clone().unwrap();
    assert_eq!((status.code(), status.message.as_str()), (Code::Error, "größer als erlaubt"));
    assert_eq!(read.flags, 0x301);
    let values: Vec<(&str, Value)> = read
        .attributes
        .iter()
        .map(|KeyValue { key, value, .. }| (key.as_str(), value.clone().unwrap().value.unwrap()))
        .collect();
    let wanted = [
        ("text", Value::StringValue("x".repeat(300))),
        ("number", Value::IntValue(-5)),
        ("seconds", Value::DoubleValue(0.25)),
    ];
    assert_eq!(values, wanted);
    assert_eq!(
        (
            plain.kind,
            plain.status.clone(),
            plain.parent_span_id.len(),
            plain.links.len(),
            plain.flags
        ),
        (1, None, 0, 0, 1)
    );
}

#[test]
fn the_traces_path_is_appended_if_it_is_missing() {
    for (given, called) in [
        ("http://a:4318", "http://a:4318/v1/traces"),
        ("http://a:4318/", "http://a:4318/v1/traces"),
        ("https://a/otlp", "https://a/otlp/v1/traces"),
        ("https://a/otlp/v1/traces", "https://a/otlp/v1/traces"),
        ("https://a/?key=x", "https://a/v1/traces?key=x"),
    ] {
        assert_eq!(traces(&given.parse().unwrap()).as_str(), called);
    }
}

/// A collector that returns these statuses, last first. The channel has what it received.
async fn collector(answers: Vec<u16>) -> (Url, mpsc::UnboundedReceiver<Vec<Decoded>>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let answers = Arc::new(Mutex::new(answers));
    let take = move |headers: HeaderMap, body: Sent| {
        let (sender, answers) = (sender.clone(), answers.clone());
        async move {
            assert_eq!(headers["x-key"], "secret");
            assert_eq!(headers[CONTENT_TYPE], "application/x-protobuf");
            let _ = sender.send(decoded(&body));
            StatusCode::from_u16(answers.lock().pop().unwrap_or(200)).unwrap()
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move {
        axum::serve(listener, Router::new().route("/v1/traces", post(take))).await
    });
    (url, receiver)
}

fn exporter(endpoint: Url) -> Exporter {
    let headers = vec![("x-key".to_owned(), "secret".to_owned())];
    Exporter::start(&Collector { endpoint, headers, service_name: "shop".to_owned() }).unwrap()
}

#[tokio::test]
async fn a_stop_sends_all_recorded_spans_in_batches() {
    let (url, mut received) = collector(Vec::new()).await;
    let exporter = exporter(url);
    let names: Vec<String> = (0..MAX_BATCH_SPANS * 2 + 10).map(|n| n.to_string()).collect();
    for name in &names {
        exporter.record(span(name));
    }
    exporter.stop(Duration::from_secs(20)).await;
    let mut batches = Vec::new();
    while let Ok(batch) = received.try_recv() {
        assert!(batch.len() <= MAX_BATCH_SPANS);
        batches.push(batch);
    }
    let sent: Vec<String> = batches.into_iter().flatten().map(|span| span.name).collect();
    assert_eq!(sent, names);
    exporter.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_span_is_sent_soon_without_a_stop() {
    let (url, mut received) = collector(Vec::new()).await;
    let exporter = exporter(url);
    exporter.record(span("one"));
    let batch = timeout(Duration::from_secs(20), received.recv()).await.unwrap().unwrap();
    assert_eq!(batch[0].name, "one");
}

#[tokio::test]
async fn only_a_transient_failure_is_retried() {
    // The last status is returned first.
    let (url, mut received) = collector(vec![400, 503]).await;
    let exporter = exporter(url);
    exporter.record(span("one"));
    assert_eq!(timeout(Duration::from_secs(20), received.recv()).await.unwrap().unwrap().len(), 1);
    // The second request gets a permanent error.
    assert_eq!(
        timeout(Duration::from_secs(20), received.recv()).await.unwrap().unwrap()[0].name,
        "one"
    );
    exporter.record(span("two"));
    exporter.stop(Duration::from_secs(20)).await;
    assert_eq!(received.recv().await.unwrap()[0].name, "two");
    assert!(received.try_recv().is_err());
}

#[tokio::test]
async fn a_hanging_collector_blocks_neither_record_nor_stop() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let exporter = exporter(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
    let recorded = Instant::now();
    (0..MAX_QUEUED_SPANS * 3).for_each(|n| exporter.record(span(&n.to_string())));
    assert!(recorded.elapsed() < Duration::from_secs(5));
    assert!(
        exporter.lost.load(Ordering::Relaxed) as usize >= MAX_QUEUED_SPANS * 2 - MAX_BATCH_SPANS,
        "the queue is bounded"
    );
    let stopped = Instant::now();
    exporter.stop(Duration::from_millis(100)).await;
    assert!(stopped.elapsed() < Duration::from_secs(5));
}
