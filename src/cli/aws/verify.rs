//! Checks of a deployment after a change: its functions answer, `doctor` finds no error, and a job
//! is enqueued, leased and completed.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{
    cloud::{Cloud, Wait, reach},
    stack::Stack,
};
use crate::cli::{
    Client, Context,
    client::{self, base_url},
    doctor::{self, DoctorReport},
};

/// Time between two requests to a deployment that is not ready.
const POLL: Duration = Duration::from_secs(2);
/// How long a new function may take to answer: its role must be known everywhere.
const MAX_START: Duration = Duration::from_mins(2);
/// How long `doctor` may find errors: the first maintenance sweep comes within a minute.
const MAX_ERRORS: Duration = Duration::from_mins(2);
/// The timeout of one request to the compiler's function, which recompiles all plugins.
const PLUGINS_TIMEOUT: Duration = Duration::from_mins(5);
/// The queue and the type of the smoke job.
const SMOKE: &str = "tidegate-smoke";
/// Leases until the smoke job must have come: each may be a job that an interrupted command left.
const MAX_LEASES: usize = 20;

/// The context of the API of `stack`.
///
/// # Errors
///
/// The stack has no URL.
pub fn api(ctx: &Context, stack: &Stack, token: Option<String>) -> anyhow::Result<Context> {
    let mut api = ctx.clone();
    let url = stack.output("Url").context("the stack has no output Url")?;
    let url = base_url(url).map_err(anyhow::Error::msg);
    api.global.url = Some(url.context("the output Url of the stack")?);
    api.global.token = token;
    Ok(api)
}

/// Waits until the functions with URLs answer. `plugins` recompiles the plugins of earlier releases
/// at its first request.
///
/// # Errors
///
/// One does not answer in time.
pub async fn answering(cloud: &Cloud, stack: &Stack, api: &Client) -> anyhow::Result<()> {
    let http = reqwest::Client::builder().timeout(PLUGINS_TIMEOUT).build()?;
    let url = stack.output("PluginsUrl").context("the stack has no output PluginsUrl")?;
    let (url, host) = reach(url, cloud.endpoint())?;
    let (url, health) = (url.join("healthz")?, api.base().join("healthz")?);
    for (url, host) in [(url, host), (health, None)] {
        let mut wait = Wait::new(POLL, MAX_START);
        loop {
            let request = http.get(url.clone());
            let request = match &host {
                Some(host) => request.header(reqwest::header::HOST, host),
                None => request,
            };
            let found = match request.send().await {
                Ok(answer) if answer.status().is_success() => break,
                Ok(answer) => answer.status().to_string(),
                Err(error) => error.without_url().to_string(),
            };
            wait.next(&format!("{url} does not answer: {found}")).await?;
        }
    }
    Ok(())
}

/// Runs `doctor` until it finds no error, at most for some minutes, and returns its report.
///
/// # Errors
///
/// The deployment does not answer, or denies access.
pub async fn doctor(api: &Context) -> anyhow::Result<DoctorReport> {
    let mut wait = Wait::new(POLL, MAX_ERRORS);
    loop {
        let report = doctor::check_server(api).await?;
        if report.errors() == 0 || wait.next("doctor finds errors").await.is_err() {
            return Ok(report);
        }
    }
}

/// Enqueues a job, leases it, completes it, and removes its type and queue.
///
/// # Errors
///
/// The deployment refuses a request, or the job does not succeed.
pub async fn smoke_job(client: &Client) -> anyhow::Result<()> {
    let put = |kind, config: Value| client.put(&[kind, SMOKE]).json(&config).send();
    put("queues", json!({})).await?;
    put("job-types", json!({"queue": SMOKE, "retention_seconds": 3600})).await?;
    let job = json!({"type": SMOKE, "data": {"from": "tidegate aws"}});
    let job: Value = client.post(&["jobs"]).json(&job).send().await?.read()?;
    let id = job["id"].as_str().context("the answer has no id")?.to_owned();
    for _ in 0..MAX_LEASES {
        let request = json!({"types": [SMOKE], "worker": "tidegate aws", "wait_seconds": 2});
        let wait = Duration::from_secs(2);
        let leased: Value =
            client.post(&["leases"]).json(&request).wait(wait).send().await?.read()?;
        for lease in leased["leases"].as_array().into_iter().flatten() {
            let leased = lease["job"]["id"].as_str().unwrap_or_default();
            let report = json!({
                "attempt": lease["attempt"], "token": lease["token"], "status": "succeeded",
            });
            client.post(&["jobs", SMOKE, leased]).json(&report).send().await?;
        }
        let job: Value = client.get(&["jobs", SMOKE, &id]).send().await?.read()?;
        if job["state"] == "succeeded" {
            return remove(client).await;
        }
    }
    anyhow::bail!(
        "the smoke job {id} has not succeeded: `tidegate jobs explain {id}` has the reason"
    )
}

/// Removes the type and the queue of the smoke job. Jobs that another command runs keep them.
async fn remove(client: &Client) -> anyhow::Result<()> {
    for kind in ["job-types", "queues"] {
        match client.delete(&[kind, SMOKE]).send().await {
            Ok(_) | Err(client::Error::Problem(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
