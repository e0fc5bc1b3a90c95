//! A shop's mailer: five e-mails a second, three at once, newsletters by day only.
//!
//! ```sh
//! mailer URL-OF-THE-PROVIDER     works until SIGTERM
//! ```

use std::{env, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_client::{Attempt, BoxError, Client, Handler, PermanentError, Snooze, Worker};

#[derive(Serialize, Deserialize)]
pub(crate) struct Mail {
    pub(crate) to: String,
    pub(crate) subject: String,
    pub(crate) text: String,
}

pub(crate) fn mailer(client: Client, provider: &str) -> Result<Worker, BoxError> {
    let backoff = json!({ "base_seconds": 10, "max_seconds": 3600 });
    let retry = json!({ "strategy": "exponential", "config": backoff });
    let daytime = json!({ "from": "08:00", "to": "20:00", "tz": "Europe/Berlin" });
    let rate = json!({ "name": "provider", "rate": { "count": 5, "per_seconds": 1 } });
    let receipts = json!({ "max_attempts": 6, "retry": retry });
    let newsletters = json!({ "priority": 200, "windows": [daytime] });

    let provider = provider.to_owned();
    let send = move |mail: Mail, job: Attempt| deliver(provider.clone(), mail, job);
    let mut worker = Worker::new(client);
    worker.config.queue("mail", json!({ "concurrency": 3, "constraints": [rate] }))?;
    let receipt = Handler::new("receipt", send.clone()).concurrency(3);
    worker.handle(receipt.queue("mail").config(receipts))?;
    worker.handle(Handler::new("newsletter", send).queue("mail").config(newsletters))?;
    Ok(worker)
}

async fn deliver(provider: String, mail: Mail, job: Attempt) -> Result<(), BoxError> {
    let request = reqwest::Client::new().post(provider).body(serde_json::to_vec(&mail)?);
    // A repeat is no second mail.
    let answer = request.header("idempotency-key", job.id()).send().await?;
    match answer.status().as_u16() {
        422 => Err(PermanentError::new(format!("no such address: {}", mail.to)).into()),
        503 => Err(Snooze::new(Duration::from_mins(1)).message("the provider is away").into()),
        _ => Ok(answer.error_for_status().map(drop)?),
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let provider = env::args().nth(1).ok_or("the URL of the provider is missing")?;
    let worker = mailer(Client::from_env()?, &provider)?;
    println!("{}", worker.apply().await?);
    Ok(worker.run().await?)
}
