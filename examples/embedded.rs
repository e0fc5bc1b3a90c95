//! An embedded server: one program that enqueues jobs and runs them with a handler.
//!
//! ```text
//! cargo run --example embedded
//! ```
//!
//! Jobs are durable before `enqueue` returns. This example uses a temporary directory, so that it
//! can run again. A real program names its own directory and finds its unfinished jobs there after
//! a restart.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use serde_json::{Value, json};
use tidegate_backends::http::Guard;
use tidegate_core::{
    job::{Payload, TypeName, type_config::TypeConfig},
    queue::QueueConfig,
};
use tidegate_engine::request::NewJob;
use tidegate_server::{Server, runtime::Handled};

/// The concurrency limit of the queue.
const LIMIT: u32 = 2;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    // A handler is a function from a call to its outcome. Delivery is at least once, so a handler
    // may be called again for the same job. Make its side effects idempotent by the job's id.
    let greet: TypeName = "greet".parse()?;
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let seen = Arc::clone(&most);
    let server = Server::open(dir.path(), Guard::On)?
        .handler(greet.clone(), 8, move |call| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            Box::pin(async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                let data: Option<Value> =
                    call.data().and_then(|data| serde_json::from_slice(&data.bytes).ok());
                running.fetch_sub(1, Ordering::SeqCst);
                match data.as_ref().and_then(|data| data["name"].as_str()) {
                    // The first attempt of every job fails, to show that another follows.
                    Some(_) if call.job.life.attempt == 1 => Handled::failed("not in the mood"),
                    Some(name) => Handled::Succeeded(Some(Payload::json(
                        json!(format!("hello, {name}")).to_string(),
                    ))),
                    None => Handled::failed("no name in the data"),
                }
            })
        })
        .start()
        .await?;

    let limited = QueueConfig { concurrency: Some(LIMIT), ..QueueConfig::default() };
    server.put_queue(&"greetings".parse()?, limited, None).await?;
    let retry = serde_json::from_value(
        json!({"strategy": "exponential", "config": {"base_seconds": 0.1, "jitter": "none"}}),
    )?;
    let greets = TypeConfig { queue: "greetings".parse()?, retry, ..TypeConfig::default() };
    server.put_type(&greet, greets, None).await?;

    let names = ["Ada", "Grace", "Edsger", "Barbara", "Tony"];
    let mut ids = Vec::new();
    for name in names {
        let job = NewJob::new(greet.clone(), Payload::json(json!({ "name": name }).to_string()));
        ids.push(server.enqueue(job).await?.job.id);
    }
    for (id, name) in ids.iter().zip(names) {
        let result = server
            .result(id, None, Duration::from_secs(30))
            .await?
            .value
            .context("no result in time")?;
        let attempts = server.job(id, None).await?.life.attempt;
        println!("{id}  {}  in {attempts} attempts", String::from_utf8_lossy(&result.bytes));
        anyhow::ensure!(
            result.bytes == json!(format!("hello, {name}")).to_string() && attempts == 2
        );
    }
    let most = seen.load(Ordering::SeqCst);
    println!("at most {most} at once, with a limit of {LIMIT} and 8 workers");
    anyhow::ensure!((1..=LIMIT).contains(&most));

    server.stop().await;
    Ok(())
}
