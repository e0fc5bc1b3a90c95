//! `tidegate trigger test`: a rule, or a trigger of a server, applied to sample events.
//!
//! A rule needs no server: the outcome depends on the rule and the event alone, and the code is that
//! of the server.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::json;

use super::{contents, events};
use crate::cli::{
    Context, ExitCode,
    client::Client,
    output::{self, OutputStyle},
};
use tidegate_api::TriggerTrial;
use tidegate_core::{
    event::{Event, Trigger, TriggerConfig},
    job::TriggerName,
    strict::strict,
};
use tidegate_engine::events::trial::{Trial, trial};

/// The options of `tidegate trigger test`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A file with events has one CloudEvent, a list of them, or one on each line; \
    built with `--features aws`, also\n\
    what Lambda calls the function `ingest` with.\n\
    Exit code 1: the rule is invalid, an input is no event, or the rule cannot map it.\n\n\
    Examples:\n  \
    tidegate trigger test rule.json events.json\n  \
    tidegate trigger test orders --file event.json\n  \
    tidegate trigger test rule.json events.json --json \
    | jq '.events[] | select(.action == \"dead_lettered\")'"
)]
pub struct Args {
    /// The file with the rule, JSON as for `put`; `-` reads standard input. With `--file`, the name
    /// of a trigger of the server.
    rule: PathBuf,
    /// Files with events for the rule; `-` reads standard input.
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    events: Vec<PathBuf>,
    /// A file with events for the trigger of the server, which does nothing; `-` reads standard
    /// input; repeatable.
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// The name for the rule, from which the ids of jobs follow.
    #[arg(long, default_value = "test", conflicts_with = "file")]
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
    /// What a server would do; its action is `refused` if it is no event.
    #[serde(flatten)]
    trial: TriggerTrial,
}

impl TrialOutcome {
    fn of(event: &Event, trial: TriggerTrial) -> Self {
        let (id, source, event_type) =
            (Some(event.id.clone()), Some(event.source.clone()), Some(event.event_type.clone()));
        Self { id, source, event_type, trial }
    }

    fn refused(reason: String) -> Self {
        let trial = TriggerTrial { action: "refused".into(), job: None, reason: Some(reason) };
        Self { id: None, source: None, event_type: None, trial }
    }

    /// Whether the rule handled the event or does not apply to it.
    fn is_ok(&self) -> bool {
        !matches!(&*self.trial.action, "dead_lettered" | "refused")
    }
}

/// Applies the rule to each event and prints the outcomes.
///
/// # Errors
///
/// A file cannot be read, or the rule is invalid; with `--file`, the server is unreachable or
/// rejects a request.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let tried = if args.file.is_empty() {
        try_rule(&args).await?
    } else {
        try_on_server(&args, &ctx.client()?).await?
    };
    let failed = tried.iter().filter(|one| !one.is_ok()).count();
    if ctx.json() {
        ctx.print(json!({"ok": failed == 0, "events": tried}))?;
    } else {
        ctx.print_tables(render(ctx.look, &tried))?;
    }
    Ok(if failed == 0 { ExitCode::Ok } else { ExitCode::Refused })
}

/// Applies the trigger of the server to each event.
async fn try_on_server(args: &Args, client: &Client) -> anyhow::Result<Vec<TrialOutcome>> {
    let name = args.rule.to_string_lossy();
    let mut tried = Vec::new();
    for file in &args.file {
        for event in events(&contents(file).await?) {
            tried.push(match event {
                Ok(event) => {
                    let body = serde_json::to_vec(&event)?;
                    let request = client.post(&["triggers", &name, "test"]);
                    let answer = request.body("application/cloudevents+json", body).send().await?;
                    TrialOutcome::of(&event, answer.read()?)
                }
                Err(reason) => TrialOutcome::refused(reason),
            });
        }
    }
    Ok(tried)
}

/// Applies the rule to each event.
async fn try_rule(args: &Args) -> anyhow::Result<Vec<TrialOutcome>> {
    let rule = contents(&args.rule).await?;
    let reader = &mut serde_json::Deserializer::from_slice(&rule);
    let config: TriggerConfig = serde_path_to_error::deserialize(strict(reader))
        .map_err(|error| anyhow::anyhow!("{}: {error}", args.rule.display()))?;
    let trigger = Trigger::new(&args.name, &config)
        .map_err(|fault| anyhow::anyhow!("{}: {fault}", args.rule.display()))?;
    let mut tried = Vec::new();
    for file in &args.events {
        for event in events(&contents(file).await?) {
            tried.push(match event {
                Ok(event) => {
                    let Trial { action, job, reason } = trial(&trigger, &event);
                    let trial = TriggerTrial { action: action.into(), job, reason };
                    TrialOutcome::of(&event, trial)
                }
                Err(reason) => TrialOutcome::refused(reason),
            });
        }
    }
    Ok(tried)
}

/// Returns the table of the outcomes.
fn render(look: OutputStyle, tried: &[TrialOutcome]) -> String {
    let rows = tried.iter().map(|one| {
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(output::dash);
        let TriggerTrial { action, job, reason } = &one.trial;
        let what = match (job, reason) {
            (Some(job), _) => job.to_string(),
            (None, reason) => {
                reason.clone().unwrap_or_else(|| "the filter does not match".to_owned())
            }
        };
        [dash(&one.id), dash(&one.event_type), action.to_string(), what]
    });
    output::table(look, ["event", "type", "action", "what"], rows)
}
