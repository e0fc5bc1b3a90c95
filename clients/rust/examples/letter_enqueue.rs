//! The program of `clients/README.md` that enqueues a job.

use std::time::Duration;

use serde_json::json;
use tidegate_client::{BoxError, Client};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::from_env()?;
    let job = client.enqueue("letter", &json!({"to": "ann@example.com"})).await?;
    println!("{}", job.result::<String>(Duration::from_secs(10)).await?);
    Ok(())
}
