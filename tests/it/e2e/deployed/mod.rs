//! A deployment on a local stack, made by `localstack/deploy`: the real template with the real
//! functions. `localstack/test` starts a stack and runs these tests.

mod kills;
mod recorded_calls;
mod retention;
mod retry_state;
mod stored;
mod topic;
mod upgrade;
mod workers;

use std::{collections::BTreeMap, path::Path, time::Duration};

use reqwest::Method;
use serde_json::Value;
use tidegate_backends::aws::{self, Calls, SdkConfig};

use super::api::Api;

/// The timeout of a call to the stack.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The input of the rule for the sweep.
const SWEEP: &str = r#"{"tidegate": "sweep"}"#;

/// A setting of the scripts of the stack.
#[allow(clippy::disallowed_methods, reason = "the scripts of the stack set them")]
fn setting(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// The name of the stack.
fn stack() -> String {
    setting("STACK", "tidegate")
}

/// The deployment's API with its first token, and the token.
fn deployed() -> (Api, String) {
    let token = std::fs::read_to_string(of_stack("token"));
    let token = token.expect("localstack/deploy leaves a token");
    let api = Api::at(format!("http://127.0.0.1:{}", setting("PROXY_PORT", "4580")));
    (api.with_token(token.trim()).patient(), token.trim().to_owned())
}

/// A file or folder of the local stack, such as that of the zips of a release.
fn of_stack(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/localstack").join(name);
    folder.to_str().unwrap().to_owned()
}

/// The configuration of clients of the stack.
async fn config() -> SdkConfig {
    aws::config(Calls::new().unwrap(), CALL_TIMEOUT).await
}

/// Starts the sweep as the rule does. It fails while jobs of other tests are late.
async fn sweep(lambda: &aws_sdk_lambda::Client) {
    let function = format!("{}-sweep", stack());
    let call = lambda.invoke().function_name(function).qualifier("live");
    call.payload(SWEEP.as_bytes().into()).send().await.unwrap();
}

/// The file of a shipped component.
fn shipped(component: &str) -> String {
    format!("{}/plugins/dist/{component}.wasm", env!("CARGO_MANIFEST_DIR"))
}

/// Adds the plugin `name`, which is a shipped component.
async fn push(api: &Api, name: &str, component: &str) {
    let wasm = std::fs::read(shipped(component)).unwrap();
    let media = [("content-type", "application/wasm")];
    api.send(Method::PUT, &format!("/v1/plugins/{name}"), &media, wasm).await.is(201);
}

/// Every job of the types `{run}-{kind}` by id, in its current state.
async fn jobs_of(
    api: &Api,
    run: &str,
    kinds: impl IntoIterator<Item = &str>,
) -> BTreeMap<String, Value> {
    let mut jobs = BTreeMap::new();
    for kind in kinds {
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/jobs?type={run}-{kind}&limit=200{cursor}");
            let page = api.get(&path).await.good();
            for job in page["jobs"].as_array().unwrap() {
                jobs.insert(job["id"].as_str().unwrap().to_owned(), job.clone());
            }
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
    }
    jobs
}

/// How many of `jobs` have not ended. The counts of a queue are those of the latest sweep.
fn open_jobs(jobs: &BTreeMap<String, Value>) -> usize {
    let is_open = |job: &&Value| ["scheduled", "running"].iter().any(|open| job["state"] == *open);
    jobs.values().filter(is_open).count()
}
