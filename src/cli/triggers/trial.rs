//! `tidegate trigger test`: a rule applied to sample events.
//!
//! It needs no server: the outcome depends on the rule and the event alone, and the code is that of
//! the server.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use super::{contents, events};
use crate::cli::{
    Context, ExitCode,
    output::{self, OutputStyle},
};
use tidegate_core::{
    event::{
        Decision, Event, Trigger, TriggerConfig, Triggers,
        trigger::{Reply, RequestedJob, TriggerOutcome},
    },
    job::{Payload, TriggerName},
    strict::strict,
};

/// The options of `tidegate trigger test`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A file with events has one CloudEvent, a list of them, or one on each line; \
    built with `--features aws`, also\n\
    what Lambda calls the function `ingest` with.\n\
    Exit code 1: the rule is invalid, an input is no event, or the rule cannot map it.\n\n\
    Examples:\n  \
    tidegate trigger test rule.json events.json\n  \
    tidegate trigger test rule.json events.json --json \
    | jq '.events[] | select(.action == \"dead_lettered\")'"
)]
pub struct Args {
    /// The file with the rule, JSON as for `put`; `-` reads standard input.
    rule: PathBuf,
    /// Files with events; `-` reads standard input.
    #[arg(required = true)]
    events: Vec<PathBuf>,
    /// The trigger's name, from which the ids of jobs follow.
    #[arg(long, default_value = "test")]
    name: TriggerName,
}

/// The outcome of a rule for one event.
#[derive(Debug, Serialize)]
struct TrialOutcome {
    /// The event's id, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    event_type: Option<String>,
    /// What a server would do: `enqueued`, `completed`, `unmatched` (the filter does not match),
    /// `dead_lettered` (the rule cannot map it), or `refused` (it is no event).
    action: &'static str,
    /// The job or the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<Value>,
    /// Why there is no job and no reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl TrialOutcome {
    fn about(event: &Event, action: &'static str) -> Self {
        let (id, source, event_type) =
            (Some(event.id.clone()), Some(event.source.clone()), Some(event.event_type.clone()));
        Self { id, source, event_type, action, job: None, reason: None }
    }

    fn refused(reason: String) -> Self {
        Self {
            id: None,
            source: None,
            event_type: None,
            action: "refused",
            job: None,
            reason: Some(reason),
        }
    }

    /// Whether the rule handled the event or does not apply to it.
    fn is_ok(&self) -> bool {
        !matches!(self.action, "dead_lettered" | "refused")
    }
}

/// Applies the rule to each event and prints the outcomes.
///
/// # Errors
///
/// A file cannot be read, or the rule is invalid.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let rule = contents(&args.rule).await?;
    let reader = &mut serde_json::Deserializer::from_slice(&rule);
    let config: TriggerConfig = serde_path_to_error::deserialize(strict(reader))
        .map_err(|error| anyhow::anyhow!("{}: {error}", args.rule.display()))?;
    let trigger = Trigger::new(&args.name, &config)
        .map_err(|fault| anyhow::anyhow!("{}: {fault}", args.rule.display()))?;
    let rules = Triggers::new(vec![trigger.clone()]);
    let mut tried = Vec::new();
    for file in &args.events {
        for event in events(&contents(file).await?) {
            tried.push(match event {
                Ok(event) => try_one(&rules, &trigger, &event),
                Err(reason) => TrialOutcome::refused(reason),
            });
        }
    }
    let failed = tried.iter().filter(|one| !one.is_ok()).count();
    if ctx.json() {
        ctx.print(json!({"ok": failed == 0, "events": tried}))?;
    } else {
        ctx.print_tables(render(ctx.look, &tried))?;
    }
    Ok(if failed == 0 { ExitCode::Ok } else { ExitCode::Refused })
}

/// Applies the rule to one event.
fn try_one(rules: &Triggers, trigger: &Trigger, event: &Event) -> TrialOutcome {
    match rules.decide_one(trigger, event) {
        None => TrialOutcome::about(event, "unmatched"),
        Some(Decision::Failed(reason)) => {
            TrialOutcome { reason: Some(reason), ..TrialOutcome::about(event, "dead_lettered") }
        }
        Some(Decision::Enqueue(wanted)) => {
            TrialOutcome { job: Some(job(&wanted)), ..TrialOutcome::about(event, "enqueued") }
        }
        Some(Decision::Complete(reply)) => {
            TrialOutcome { job: Some(report(&reply)), ..TrialOutcome::about(event, "completed") }
        }
    }
}

/// Returns a job as the body of `POST /v1/jobs`.
fn job(wanted: &RequestedJob) -> Value {
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
fn report(reply: &Reply) -> Value {
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

/// Returns data as a JSON value, null if it is malformed.
fn value_of(payload: &Payload) -> Value {
    payload.to_json().ok().and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default()
}

/// Returns the table of the outcomes.
fn render(look: OutputStyle, tried: &[TrialOutcome]) -> String {
    let rows = tried.iter().map(|one| {
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(output::dash);
        let what = match (&one.job, &one.reason) {
            (Some(job), _) => job.to_string(),
            (None, reason) => {
                reason.clone().unwrap_or_else(|| "the filter does not match".to_owned())
            }
        };
        [dash(&one.id), dash(&one.event_type), one.action.to_owned(), what]
    });
    output::table(look, ["event", "type", "action", "what"], rows)
}
