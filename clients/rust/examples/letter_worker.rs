//! The worker of `clients/README.md`.

use serde_json::json;
use tidegate_client::{Attempt, BoxError, Client, Handler, Worker, api::LogLevel};

#[derive(serde::Deserialize)]
struct Letter {
    to: String,
}

async fn send(letter: Letter, job: Attempt) -> Result<String, BoxError> {
    job.log(LogLevel::Info, "sending", json!({"to": letter.to}));
    Ok(format!("sent to {}", letter.to)) // an error is a failure, and is retried
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut worker = Worker::new(Client::from_env()?); // TIDEGATE_URL and TIDEGATE_TOKEN
    worker.config.queue("mail", json!({"concurrency": 10}))?;
    let handler = Handler::new("letter", send).concurrency(3).queue("mail");
    worker.handle(handler.config(json!({"max_attempts": 5})))?;
    worker.apply().await?;
    Ok(worker.run().await?) // until SIGTERM
}
