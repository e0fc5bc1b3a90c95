//! `tidegate trigger test`: a rule applied to sample events.
//!
//! It needs no server: the outcome depends on the rule and the event alone, and the code is that of
//! the server.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::json;

use super::{contents, events};
use crate::cli::{
    Context, ExitCode,
    output::{self, OutputStyle},
};
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
    /// What a server would do; its action is `refused` if it is no event.
    #[serde(flatten)]
    trial: Trial,
}

impl TrialOutcome {
    fn refused(reason: String) -> Self {
        let trial = Trial { action: "refused", job: None, reason: Some(reason) };
        Self { id: None, source: None, event_type: None, trial }
    }

    /// Whether the rule handled the event or does not apply to it.
    fn is_ok(&self) -> bool {
        !matches!(self.trial.action, "dead_lettered" | "refused")
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
    let mut tried = Vec::new();
    for file in &args.events {
        for event in events(&contents(file).await?) {
            tried.push(match event {
                Ok(event) => try_one(&trigger, &event),
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
fn try_one(trigger: &Trigger, event: &Event) -> TrialOutcome {
    let (id, source, event_type) =
        (Some(event.id.clone()), Some(event.source.clone()), Some(event.event_type.clone()));
    TrialOutcome { id, source, event_type, trial: trial(trigger, event) }
}

/// Returns the table of the outcomes.
fn render(look: OutputStyle, tried: &[TrialOutcome]) -> String {
    let rows = tried.iter().map(|one| {
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(output::dash);
        let Trial { action, job, reason } = &one.trial;
        let what = match (job, reason) {
            (Some(job), _) => job.to_string(),
            (None, reason) => {
                reason.clone().unwrap_or_else(|| "the filter does not match".to_owned())
            }
        };
        [dash(&one.id), dash(&one.event_type), (*action).to_owned(), what]
    });
    output::table(look, ["event", "type", "action", "what"], rows)
}
