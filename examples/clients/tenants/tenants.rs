//! Imports files of many tenants. Each gets its turn, and at most two slots of ten, so one tenant
//! with a million files delays the others by one file. `tenants TENANT FILE` enqueues, `tenants`
//! works until SIGTERM.

use std::env;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate_client::{
    Attempt, BoxError, Client, Error, Handler, Job, JobType, Worker, api::LogLevel,
};

#[derive(Serialize, Deserialize)]
pub(crate) struct File {
    pub(crate) tenant: String,
    pub(crate) name: String,
}

pub(crate) const IMPORT: JobType<File> = JobType::new("import");

pub(crate) fn importer(client: Client) -> Result<Worker, BoxError> {
    let mut worker = Worker::new(client);
    let tenant = json!({ "name": "tenant", "per": "tenant", "concurrency": 2 });
    let queue = json!({ "concurrency": 10, "partition_by": "tenant", "constraints": [tenant] });
    worker.config.queue("imports", queue)?;
    let config = json!({ "attributes": { "tenant": "/tenant" } });
    let handler = Handler::new(IMPORT.name(), import).concurrency(10);
    worker.handle(handler.queue("imports").config(config))?;
    Ok(worker)
}

async fn import(file: File, job: Attempt) -> Result<Value, BoxError> {
    job.log(LogLevel::Info, "imported", json!({ "file": file.name }));
    Ok(json!({ "rows": file.name.len() }))
}

/// What the web application calls.
pub(crate) async fn enqueue(client: &Client, file: &File) -> Result<Job, Error> {
    IMPORT.enqueue(client, file).await
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::from_env()?;
    if let [_, tenant, name] = &env::args().collect::<Vec<_>>()[..] {
        let file = File { tenant: tenant.clone(), name: name.clone() };
        println!("{}", enqueue(&client, &file).await?.id());
        return Ok(());
    }
    let worker = importer(client)?;
    worker.apply().await?;
    Ok(worker.run().await?)
}
