//! A request over HTTP whose reply arrives later as an event, matched by a key.
//!
//! ```text
//! cargo run --example reply_as_event
//! ```
//!
//! The other system knows neither job ids nor callbacks. It accepts an order with status 200, and
//! later publishes "confirmed". Both have the order's number, and a trigger has the expression that
//! finds it.

use std::sync::Arc;

use axum::{Router, http::StatusCode, routing::post};
use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_backends::http::Guard;
use tidegate_core::{
    event::{Event, read},
    job::{Payload, TypeName},
};
use tidegate_engine::request::NewJob;
use tidegate_server::Server;
use tokio::sync::mpsc;

/// The other system: it accepts orders over HTTP and publishes confirmations as records.
async fn other_system() -> anyhow::Result<(String, mpsc::UnboundedReceiver<Value>)> {
    let (publish, records) = mpsc::unbounded_channel();
    let publish = Arc::new(publish);
    let take = move |request: Bytes| {
        let request: Value = serde_json::from_slice(&request).unwrap_or_default();
        let order = &request["data"]["order"];
        let record = json!({"specversion": "1.0", "id": format!("confirmation-{order}"), "source": "/other-system", "type": "confirmed",
                            "data": {"order": order, "price": 10 + order.as_u64().unwrap_or_default()}});
        // The receiver ends with the program.
        let _ = publish.send(record);
        async { (StatusCode::OK, "taken") }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/orders", listener.local_addr()?);
    tokio::spawn(
        async move { axum::serve(listener, Router::new().route("/orders", post(take))).await },
    );
    Ok((url, records))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (url, mut records) = other_system().await?;
    let dir = tempfile::tempdir()?;
    let server = Server::open(dir.path(), Guard::On)?.start().await?;

    // Status 200 only means that the order was accepted: the result comes later.
    let order: TypeName = "order".parse()?;
    let target = json!({"target": {"url": url, "complete": "on_result"}, "timeout_seconds": 60});
    server.put_type(&order, serde_json::from_value(target)?, None).await?;
    let rule = json!({
        "filter": {"source": "/other-system", "type": "confirmed"},
        "complete": {"type": "order", "correlation_key": {"$expr": "data.order"}, "result": {"$expr": "data.price"}},
    });
    server.put_trigger(&"confirmations".parse()?, serde_json::from_value(rule)?, None).await?;

    let mut jobs = Vec::new();
    for number in 1..=5 {
        let job = NewJob {
            correlation_key: Some(number.to_string()),
            ..NewJob::new(order.clone(), Payload::json(json!({ "order": number }).to_string()))
        };
        jobs.push((number, server.enqueue(job).await?.job.id));
    }

    // A consumer publishes each record until it is accepted. Duplicates are harmless: this one
    // sends two.
    for _ in &jobs {
        let Some(record) = records.recv().await else {
            break;
        };
        let event: Event = read::structured(&Bytes::from(record.to_string()))
            .map_err(|fault| anyhow::anyhow!("{fault}"))?;
        for _ in 0..2 {
            let [answer] = <[_; 1]>::try_from(server.ingest(std::slice::from_ref(&event)).await)
                .map_err(|_| anyhow::anyhow!("one answer"))?;
            let outcomes: Vec<&str> =
                answer?.outcomes.iter().map(|applied| applied.action.word()).collect();
            println!("{}: {}", event.id, outcomes.join(", "));
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
