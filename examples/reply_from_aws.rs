//! A request over HTTP whose reply arrives as a Kafka record or an SNS message.
//!
//! The example passes the payloads of the Lambda function `ingest` to the same code, with a server
//! in this process. It needs no AWS account.
//!
//! ```text
//! cargo run --features aws --example reply_from_aws
//! ```
//!
//! A trigger sees each payload as an event. The order's number is in the request and in the reply,
//! and one rule has the expression that finds it in both.

use std::sync::Arc;

use axum::{Router, http::StatusCode, routing::post};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::{Value, json, value::to_raw_value};
use tidegate_backends::http::Guard;
use tidegate_core::job::{Payload, TypeName};
use tidegate_engine::request::NewJob;
use tidegate_server::{Server, lambda::Ingest};
use tokio::sync::mpsc;

/// A record of the topic `confirmations`, as MSK's event source mapping hands it over.
fn from_kafka(order: u64, confirmation: &Value) -> Value {
    let record = json!({
        "topic": "confirmations", "partition": 0, "offset": order, "timestamp": 1_777_889_472_345_u64, "timestampType": "CREATE_TIME",
        "key": BASE64_STANDARD.encode(order.to_string()), "value": BASE64_STANDARD.encode(confirmation.to_string()), "headers": [],
    });
    json!({
        "eventSource": "aws:kafka",
        "eventSourceArn": "arn:aws:kafka:eu-central-1:111122223333:cluster/shop/6357e0b2-0e6a-4b86-a0b4-70df934c2e31-5",
        "bootstrapServers": "b-1.shop.6lq41f.c5.kafka.eu-central-1.amazonaws.com:9098",
        "records": {"confirmations-0": [record]},
    })
}

/// A message of the topic `confirmations`, as SNS hands it to a function.
fn from_sns(order: u64, confirmation: &Value) -> Value {
    let message = json!({
        "Type": "Notification", "MessageId": format!("95df01b4-ee98-5cb9-9903-{order:012}"),
        "TopicArn": "arn:aws:sns:eu-central-1:111122223333:confirmations", "Subject": null, "Message": confirmation.to_string(),
        "Timestamp": "2026-05-04T10:11:12.345Z", "SignatureVersion": "1", "Signature": "none", "MessageAttributes": {},
        "SigningCertUrl": "https://sns.eu-central-1.amazonaws.com/cert.pem", "UnsubscribeUrl": "https://sns.eu-central-1.amazonaws.com/",
    });
    let subscription =
        "arn:aws:sns:eu-central-1:111122223333:confirmations:21be56ed-a058-49f5-8c98-aedd2564c486";
    json!({"Records": [{"EventSource": "aws:sns", "EventVersion": "1.0", "EventSubscriptionArn": subscription, "Sns": message}]})
}

/// The other system: orders come in over HTTP; what it confirms, it publishes, the odd ones here
/// and the even ones there.
async fn other_system() -> anyhow::Result<(String, mpsc::UnboundedReceiver<Value>)> {
    let (publish, published) = mpsc::unbounded_channel();
    let publish = Arc::new(publish);
    let take = move |request: Bytes| {
        let request: Value = serde_json::from_slice(&request).unwrap_or_default();
        let order = request["data"]["order"].as_u64().unwrap_or_default();
        let confirmation = json!({"order": order, "price": 10 + order});
        let invocation = if order % 2 == 1 {
            from_kafka(order, &confirmation)
        } else {
            from_sns(order, &confirmation)
        };
        // The receiver ends with the program.
        let _ = publish.send(invocation);
        async { (StatusCode::OK, "taken") }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/orders", listener.local_addr()?);
    tokio::spawn(
        async move { axum::serve(listener, Router::new().route("/orders", post(take))).await },
    );
    Ok((url, published))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (url, mut published) = other_system().await?;
    let dir = tempfile::tempdir()?;
    let server = Server::open(dir.path(), Guard::On)?.start().await?;
    let ingest = Ingest::new(server.clone(), None);

    // Status 200 only means that the order was accepted: the result comes later.
    let order: TypeName = "order".parse()?;
    let target = json!({"target": {"url": url, "complete": "on_result"}, "timeout_seconds": 60});
    server.put_type(&order, serde_json::from_value(target)?, None).await?;
    let rule = json!({
        "filter": {"any": [
            {"type": "org.apache.kafka.Record", "subject": "confirmations"},
            {"type": "com.amazonaws.sns.Notification", "source": "arn:aws:sns:eu-central-1:111122223333:confirmations"},
        ]},
        "complete": {"type": "order", "correlation_key": {"$expr": "data.order"}, "result": {"$expr": "data.price"}},
    });
    server.put_trigger(&"confirmations".parse()?, serde_json::from_value(rule)?, None).await?;

    let mut jobs = Vec::new();
    for number in 1..=6 {
        let job = NewJob {
            correlation_key: Some(number.to_string()),
            ..NewJob::new(order.clone(), Payload::json(json!({ "order": number }).to_string()))
        };
        jobs.push((number, server.enqueue(job).await?.job.id));
    }

    // Lambda retries each payload until it is accepted. Duplicates are harmless: this one sends
    // two.
    for _ in &jobs {
        let Some(invocation) = published.recv().await else {
            break;
        };
        for _ in 0..2 {
            let answer = ingest.call(to_raw_value(&invocation)?).await?;
            let service = if invocation["records"].is_object() { "Kafka" } else { "SNS" };
            println!("from {service}: {answer}");
        }
    }

    for (number, id) in jobs {
        let result = server.result(&id, None, std::time::Duration::from_secs(10)).await?.value;
        let text = result.map(|payload| String::from_utf8_lossy(&payload.bytes).into_owned());
        println!("order {number}: {}", text.as_deref().unwrap_or("no answer"));
        anyhow::ensure!(
            text == Some((10 + number).to_string()),
            "order {number} has another answer"
        );
    }
    server.stop().await;
    Ok(())
}
