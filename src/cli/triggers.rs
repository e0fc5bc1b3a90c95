//! `tidegate trigger`: rules that turn a matching event into a job or into the reply to a waiting job.
//!
//! `test` needs no server: the outcome depends only on the rule and the event, and the code is the same.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Subcommand;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use super::{
    Context, ExitCode, UsageError,
    client::Client,
    output::{self, OutputStyle},
    pages,
    types::{Configure, Name},
};
use tidegate_api::TriggerView;
use tidegate_core::{
    event::{
        Decision, Event, Filter, Trigger, TriggerConfig, Triggers, read,
        trigger::{Reply, TriggerOutcome, Wanted},
    },
    job::TriggerName,
};

/// The commands about triggers.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List triggers.
    List,
    /// Show a trigger.
    Get(Name),
    /// Create a trigger, or replace it.
    Put(Configure),
    /// Delete a trigger; its dead letters stay.
    Delete(Name),
    /// Apply a rule to sample events without a server.
    Test(Test),
}

/// The options of `tidegate trigger test`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A file with events has one CloudEvent, a list of them, or one on each line; built with `--features aws`, also\n\
    what Lambda calls the function `ingest` with.\n\
    Ends with 1 if the rule is not good, or something could not be made of an event.\n\n\
    Examples:\n  \
    tidegate trigger test rule.json events.json\n  \
    tidegate trigger test rule.json events.json --json | jq '.events[] | select(.does == \"failed\")'"
)]
pub struct Test {
    /// The file with the rule, JSON as for `put`; `-` reads standard input.
    rule: PathBuf,
    /// Files with events; `-` reads standard input.
    #[arg(required = true)]
    events: Vec<PathBuf>,
    /// The trigger's name, from which the ids of jobs follow.
    #[arg(long, default_value = "test")]
    name: TriggerName,
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request; a file cannot be read.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    if let Command::Test(args) = command {
        return test(args, ctx).await;
    }
    let client = ctx.client()?;
    let (answer, deleted) = match command {
        Command::List => return list(&client, ctx).await,
        Command::Get(Name { name }) => (client.get(&["triggers", &name]).send().await?, None),
        Command::Put(args) => (
            client.put(&["triggers", &args.name]).json(&args.settings().await?).send().await?,
            None,
        ),
        Command::Delete(Name { name }) => {
            (client.delete(&["triggers", &name]).send().await?, Some(name))
        }
        Command::Test(_) => unreachable!("it was run above"),
    };
    match deleted {
        _ if ctx.json() => ctx.print_body(&answer.body)?,
        Some(name) => ctx.print(format_args!("{name} is deleted"))?,
        None => ctx.print(output::fields(ctx.look, &answer.read()?, &[], ctx.now()))?,
    }
    Ok(ExitCode::Ok)
}

async fn list(client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let page = pages::collect(|client| client.get(&["triggers"]), client, usize::MAX).await?;
    if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
        return Ok(ExitCode::Ok);
    }
    let triggers: Vec<TriggerView<'_>> = page.read(client)?;
    let rows = triggers.into_iter().map(|trigger| {
        let TriggerConfig { filter, enqueue, complete } = &*trigger.config;
        let (does, fields) =
            if enqueue.is_empty() { ("complete", complete) } else { ("enqueue", enqueue) };
        let filter = if *filter == Filter::default() {
            "every event".to_owned()
        } else {
            serde_json::to_string(filter).unwrap_or_default()
        };
        let job_type = fields.get("type").map_or_else(output::dash, |field| text(&field.0));
        let version = trigger.version.to_string();
        [trigger.name.to_string(), does.to_owned(), job_type, filter, version]
    });
    ctx.print(output::table(ctx.look, ["name", "does", "type", "about", "version"], rows))?;
    Ok(ExitCode::Ok)
}

/// A value in a table: texts as they are.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The outcome of a rule for one event.
#[derive(Debug, Serialize)]
struct Tried {
    /// The event's id, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    event_type: Option<String>,
    /// `enqueue`, `complete`, `passed` (the filter does not match), `failed`, or `refused` (it is no event).
    does: &'static str,
    /// The job or the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<Value>,
    /// Why there is no job and no reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Tried {
    fn about(event: &Event, does: &'static str) -> Self {
        let (id, source, event_type) =
            (Some(event.id.clone()), Some(event.source.clone()), Some(event.event_type.clone()));
        Self { id, source, event_type, does, job: None, reason: None }
    }

    fn refused(reason: String) -> Self {
        Self {
            id: None,
            source: None,
            event_type: None,
            does: "refused",
            job: None,
            reason: Some(reason),
        }
    }

    fn fine(&self) -> bool {
        !matches!(self.does, "failed" | "refused")
    }
}

async fn test(args: Test, ctx: &Context) -> anyhow::Result<ExitCode> {
    let rule = contents(&args.rule).await?;
    let reader = &mut serde_json::Deserializer::from_slice(&rule);
    let config: TriggerConfig = serde_path_to_error::deserialize(reader)
        .map_err(|error| anyhow::anyhow!("{}: {error}", args.rule.display()))?;
    let trigger = Trigger::new(&args.name, &config)
        .map_err(|fault| anyhow::anyhow!("{}: {fault}", args.rule.display()))?;
    let rules = Triggers::new(vec![trigger.clone()]);
    let mut tried = Vec::new();
    for file in &args.events {
        for event in events(&contents(file).await?) {
            tried.push(match event {
                Ok(event) => try_one(&rules, &trigger, &event),
                Err(reason) => Tried::refused(reason),
            });
        }
    }
    let failed = tried.iter().filter(|one| !one.fine()).count();
    if ctx.json() {
        ctx.print(json!({"ok": failed == 0, "events": tried}))?;
    } else {
        ctx.print(render(ctx.look, &tried))?;
    }
    Ok(if failed == 0 { ExitCode::Ok } else { ExitCode::Refused })
}

fn try_one(rules: &Triggers, trigger: &Trigger, event: &Event) -> Tried {
    match rules.decide_one(trigger, event) {
        None => Tried::about(event, "passed"),
        Some(Decision::Failed(reason)) => {
            Tried { reason: Some(reason), ..Tried::about(event, "failed") }
        }
        Some(Decision::Enqueue(wanted)) => {
            Tried { job: Some(job(&wanted)), ..Tried::about(event, "enqueue") }
        }
        Some(Decision::Complete(reply)) => {
            Tried { job: Some(answered(&reply)), ..Tried::about(event, "complete") }
        }
    }
}

/// Returns a job as the body of `POST /v1/jobs`.
fn job(wanted: &Wanted) -> Value {
    let mut shown = serde_json::to_value(&wanted.fields).unwrap_or_default();
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|_, value| !value.is_null() && *value != Value::Bool(false));
        fields.insert("id".into(), wanted.id.as_str().into());
        fields.insert("type".into(), wanted.job_type.as_str().into());
        fields.insert("data".into(), value_of(&wanted.data));
    }
    shown
}

/// Returns a reply as a worker's report.
fn answered(reply: &Reply) -> Value {
    let mut shown = json!({"type": reply.job_type, "correlation_key": reply.correlation_key});
    let more = match &reply.said {
        TriggerOutcome::Succeeded(result) => {
            json!({"status": "succeeded", "result": result.as_ref().map(value_of)})
        }
        TriggerOutcome::Failed { message, details, retryable } => {
            let error: Option<Value> =
                details.as_ref().and_then(|text| serde_json::from_str(text).ok());
            json!({"status": "failed", "message": message, "error": error, "retryable": retryable})
        }
    };
    if let (Some(fields), Some(more)) = (shown.as_object_mut(), more.as_object()) {
        fields.extend(reply.attempt.map(|attempt| ("attempt".to_owned(), attempt.into())));
        fields.extend(
            more.iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name.clone(), value.clone())),
        );
    }
    shown
}

fn value_of(payload: &tidegate_core::job::Payload) -> Value {
    payload.to_json().ok().and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default()
}

fn render(look: OutputStyle, tried: &[Tried]) -> String {
    let rows = tried.iter().map(|one| {
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(output::dash);
        let what = match (&one.job, &one.reason) {
            (Some(job), _) => job.to_string(),
            (None, reason) => {
                reason.clone().unwrap_or_else(|| "the filter does not match".to_owned())
            }
        };
        [dash(&one.id), dash(&one.event_type), one.does.to_owned(), what]
    });
    output::table(look, ["event", "type", "does", "what"], rows)
}

/// Returns the content of a file, where `-` means standard input.
///
/// # Errors
///
/// It cannot be read.
pub async fn contents(path: &Path) -> anyhow::Result<Bytes> {
    let read = if path == Path::new("-") {
        let mut text = Vec::new();
        tokio::io::stdin().read_to_end(&mut text).await.map(|_| text)
    } else {
        tokio::fs::read(path).await
    };
    Ok(read
        .map_err(|error| UsageError(format!("{} cannot be read: {error}", path.display())))?
        .into())
}

/// Parses the events of a file: a list, one, one on each line, or the payload of an AWS service.
pub fn events(text: &Bytes) -> Vec<Result<Event, String>> {
    let said =
        |fault: tidegate_core::validate::ValidationError| fault.to_string().trim().to_owned();
    let start = text.trim_ascii_start();
    if start.first() == Some(&b'[') {
        // A list of any length: the limit is that of a request.
        return match serde_json::from_slice::<Vec<&serde_json::value::RawValue>>(text) {
            Ok(list) => list
                .into_iter()
                .map(|raw| read::structured(&text.slice_ref(raw.get().as_bytes())).map_err(said))
                .collect(),
            Err(error) => vec![Err(format!("not a list of events: {error}"))],
        };
    }
    match read::structured(text) {
        Ok(event) => vec![Ok(event)],
        Err(fault) => {
            let lines: Vec<&[u8]> = text
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.trim_ascii().is_empty())
                .collect();
            match lines[..] {
                [_, _, ..]
                    if serde_json::from_slice::<&serde_json::value::RawValue>(lines[0]).is_ok() =>
                {
                    lines
                        .into_iter()
                        .map(|line| read::structured(&text.slice_ref(line)).map_err(said))
                        .collect()
                }
                _ => Some(invoked(text))
                    .filter(|events| events.iter().any(Result::is_ok))
                    .unwrap_or_else(|| vec![Err(said(fault))]),
            }
        }
    }
}

/// Returns the events in the payload of a Lambda call.
#[cfg(feature = "aws")]
fn invoked(payload: &Bytes) -> Vec<Result<Event, String>> {
    tidegate_server::lambda::ingest::events(payload)
}

/// Without the feature `aws` the payloads of AWS services are unknown.
#[cfg(not(feature = "aws"))]
fn invoked(_: &Bytes) -> Vec<Result<Event, String>> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::FakeServer;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn event(id: &str, data: &Value) -> Value {
        json!({"specversion": "1.0", "id": id, "source": "/shop", "type": "order", "data": data})
    }

    const RULE: &str = r#"{"filter": {"data": {"/kind": "paid"}},
        "enqueue": {"type": "ship", "correlation_key": {"$expr": "data.order"}, "priority": {"$expr": "data.priority"}, "data": {"$expr": "data.lines"}}}"#;

    #[tokio::test]
    async fn a_rule_is_tested_without_a_server() {
        let server = FakeServer::answering(|_| (500, json!({}))).await;
        let rule = file(RULE);
        let list = json!([
            event("1", &json!({"kind": "paid", "order": "o-1", "lines": [1, 2]})),
            event("2", &json!({"kind": "open", "order": "o-2"})),
            event("3", &json!({"kind": "paid", "order": "o-3", "priority": "high"})),
            {"id": "4"},
        ]);
        let events = file(&list.to_string());
        let (rule, events) = (rule.path().to_str().unwrap(), events.path().to_str().unwrap());
        let (code, out) = server.run(&["trigger", "test", rule, events]).await;
        assert_eq!(code, ExitCode::Refused);
        insta::assert_snapshot!(out);
        let (_, out) = server.run(&["trigger", "test", rule, events, "--json"]).await;
        let value: Value = serde_json::from_str(&out).unwrap();
        let does: Vec<_> = value["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["does"].as_str().unwrap())
            .collect();
        assert_eq!(
            (does, &value["ok"]),
            (vec!["enqueue", "passed", "failed", "refused"], &json!(false))
        );
        assert_eq!(value["events"][0]["job"]["data"], json!([1, 2]));
        assert!(server.seen().is_empty());
    }

    #[tokio::test]
    async fn lines_are_events_too_and_all_is_well_if_every_one_is_mapped() {
        let server = FakeServer::answering(|_| (500, json!({}))).await;
        let rule = file(
            r#"{"complete": {"type": "ask", "correlation_key": {"$expr": "data.key"}, "status": {"$expr": "data.ok"}}}"#,
        );
        let lines = format!(
            "{}\n{}\n\n",
            event("1", &json!({"key": "a", "ok": true})),
            event("2", &json!({"key": "b", "ok": false}))
        );
        let events = file(&lines);
        let (code, out) = server
            .run(&[
                "trigger",
                "test",
                rule.path().to_str().unwrap(),
                events.path().to_str().unwrap(),
            ])
            .await;
        assert_eq!(code, ExitCode::Ok, "{out}");
        assert!(
            out.contains("\"status\":\"failed\"") && out.contains("\"status\":\"succeeded\""),
            "{out}"
        );
    }

    #[cfg(feature = "aws")]
    #[tokio::test]
    async fn what_a_function_is_called_with_is_the_events_that_it_makes_of_it() {
        let server = FakeServer::answering(|_| (500, json!({}))).await;
        let rule =
            file(r#"{"filter": {"type": "org.apache.kafka.Record"}, "enqueue": {"type": "ship"}}"#);
        let payload = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/events/msk.json");
        let (code, out) = server
            .run(&["trigger", "test", rule.path().to_str().unwrap(), payload, "--json"])
            .await;
        let value: Value = serde_json::from_str(&out).unwrap();
        let does: Vec<_> = value["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["does"].as_str().unwrap())
            .collect();
        assert_eq!(
            (code, does),
            (ExitCode::Ok, vec!["enqueue", "enqueue", "enqueue", "passed", "passed", "enqueue"])
        );
    }

    #[tokio::test]
    async fn a_rule_that_is_not_good_is_told_with_its_field() {
        let server = FakeServer::answering(|_| (500, json!({}))).await;
        let events = file("[]");
        for rule in ["{\"enqueue\": {\"type\": \"a b\"}}", "{\"filter\": {\"typ\": 1}}", "{"] {
            let rule = file(rule);
            let (code, _) = server
                .run(&[
                    "trigger",
                    "test",
                    rule.path().to_str().unwrap(),
                    events.path().to_str().unwrap(),
                ])
                .await;
            assert_eq!(code, ExitCode::Refused);
        }
        let (code, _) = server
            .run(&["trigger", "test", "/no/such/rule", events.path().to_str().unwrap()])
            .await;
        assert_eq!(code, ExitCode::Usage);
    }

    #[tokio::test]
    async fn triggers_are_put_listed_and_deleted() {
        let rule: Value = serde_json::from_str(RULE).unwrap();
        let mut shown = rule.clone();
        shown["name"] = json!("orders");
        shown["version"] = json!(1);
        let server = FakeServer::answering(move |seen| match seen.method.as_str() {
            "GET" => {
                (200, json!({"triggers": [shown.clone(), {"name": "replies", "filter": {}, "complete": {"type": "ask"}, "version": 3}]}))
            }
            "DELETE" => (204, Value::Null),
            _ => (201, shown.clone()),
        })
        .await;
        assert_eq!(
            server.run(&["trigger", "put", "orders", "--config", RULE]).await.0,
            ExitCode::Ok
        );
        assert_eq!(server.run(&["trigger", "delete", "orders"]).await.0, ExitCode::Ok);
        let seen = server.seen();
        assert_eq!((seen[0].line().as_str(), &seen[0].body), ("PUT /v1/triggers/orders", &rule));
        assert_eq!(seen[1].line(), "DELETE /v1/triggers/orders");
        insta::assert_snapshot!(server.run(&["trigger", "list"]).await.1);
    }
}
