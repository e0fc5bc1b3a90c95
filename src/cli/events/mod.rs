//! `tidegate event`: publishes events, and lists and replays dead letters.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Context, ExitCode, UsageError,
    args::{self, Json},
    client::{ApiResponse, Client},
    output, pages, triggers,
};
use tidegate_api::{
    Applied, CloudEvent, DeadLetterView, EventAnswer, EventResult, Replayed, ReplayedDeadLetters,
    TriggerAction,
};
use tidegate_backends::system::SystemEntropy;
use tidegate_core::port::Entropy as _;

/// The commands about events.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish an event, or the events of a file.
    Send(Send),
    /// List dead letters: events that a trigger could not handle.
    DeadLetters(List),
    /// Show a dead letter.
    Get(One),
    /// Apply the current trigger to dead letters again.
    Replay(Replay),
    /// Delete dead letters.
    Delete(Several),
}

/// The options of `tidegate event send`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code 1 means that an event became a dead letter, was dropped or was \
    rejected.\n\n\
    Examples:\n  \
    tidegate event send --type order.paid --source /shop --data '{\"id\": 7}'\n  \
    tidegate event send --file events.json")]
pub struct Send {
    /// A file with CloudEvents: one, a list, or one on each line; `-` reads standard input.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["event_type", "source", "id", "subject", "extensions", "data"]
    )]
    file: Option<PathBuf>,
    /// The event's type.
    #[arg(long = "type", required_unless_present = "file")]
    event_type: Option<String>,
    /// The source of the event: a URI reference.
    #[arg(long, required_unless_present = "file")]
    source: Option<String>,
    /// The id of the event, unique within its source [default: a new one].
    #[arg(long)]
    id: Option<String>,
    /// The subject of the event.
    #[arg(long)]
    subject: Option<String>,
    /// An extension attribute; repeatable.
    #[arg(long = "extension", value_name = "NAME=VALUE", value_parser = extension)]
    extensions: Vec<(String, String)>,
    /// The data of the event, JSON; `-` reads standard input.
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
}

/// The options of `tidegate event dead-letters`.
#[derive(Debug, clap::Args)]
pub struct List {
    /// Only those of this trigger.
    #[arg(long)]
    trigger: Option<String>,
    /// The maximum number of dead letters.
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

/// The options of `tidegate event get`.
#[derive(Debug, clap::Args)]
pub struct One {
    /// The id of the dead letter.
    id: String,
}

/// The options of `tidegate event delete`.
#[derive(Debug, clap::Args)]
pub struct Several {
    /// The ids of the dead letters.
    #[arg(required = true)]
    ids: Vec<String>,
}

/// The options of `tidegate event replay`.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The ids of the dead letters.
    #[arg(
        required_unless_present_any = ["trigger", "all"],
        conflicts_with_all = ["trigger", "all"],
    )]
    ids: Vec<String>,
    /// All dead letters of this trigger.
    #[arg(long, conflicts_with = "all")]
    trigger: Option<String>,
    /// All dead letters.
    #[arg(long)]
    all: bool,
}

fn extension(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("name=value is expected")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request; a file cannot be read.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    match command {
        Command::Send(args) => send(args, &client, ctx).await,
        Command::DeadLetters(args) => dead_letters(args, &client, ctx).await,
        Command::Get(One { id }) => {
            let answer = client.get(&["dead-letters", &id]).send().await?;
            if ctx.json() {
                ctx.print_body(&answer.body)?;
            } else {
                ctx.print_tables(output::fields(ctx.look, &answer.read()?, &[], ctx.now()))?;
            }
            Ok(ExitCode::Ok)
        }
        Command::Replay(args) => replay(args, &client, ctx).await,
        Command::Delete(Several { ids }) => {
            for id in ids {
                client.delete(&["dead-letters", &id]).send().await?;
                ctx.note(format_args!("{id} was deleted"));
            }
            Ok(ExitCode::Ok)
        }
    }
}

/// Most events in one request.
const MAX_BATCH_EVENTS: usize = 200;

async fn send(args: Send, client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::Ok;
    if let Some(file) = &args.file {
        let text = triggers::contents(file).await?;
        let events = triggers::events(&text).into_iter().collect::<Result<Vec<_>, _>>();
        let events =
            events.map_err(|reason| UsageError(format!("{}: {reason}", file.display())))?;
        for batch in events.chunks(MAX_BATCH_EVENTS) {
            let request = client
                .post(&["events"])
                .body("application/cloudevents-batch+json", serde_json::to_vec(batch)?);
            code = worse(code, print_outcomes(&request.send().await?, ctx)?);
        }
        return Ok(code);
    }
    let data = args::json_from(args.data.as_deref(), None).await?;
    let event = CloudEvent {
        specversion: "1.0".to_owned(),
        id: args.id.unwrap_or_else(|| format!("{:032x}", SystemEntropy.bits())),
        source: args.source.unwrap_or_default(),
        r#type: args.event_type.unwrap_or_default(),
        subject: args.subject,
        time: None,
        datacontenttype: None,
        dataschema: None,
        data: data.map(|Json(data)| data.into()),
        data_base64: None,
        extensions: args
            .extensions
            .into_iter()
            .map(|(name, value)| (name, Value::String(value)))
            .collect(),
    };
    let request =
        client.post(&["events"]).body("application/cloudevents+json", serde_json::to_vec(&event)?);
    print_outcomes(&request.send().await?, ctx)
}

fn worse(a: ExitCode, b: ExitCode) -> ExitCode {
    if a == ExitCode::Ok { b } else { a }
}

/// Prints the outcome of events.
fn print_outcomes(answer: &ApiResponse, ctx: &Context) -> anyhow::Result<ExitCode> {
    let results = match answer.read()? {
        EventAnswer::One(event) => {
            vec![EventResult { status: answer.status, event: Some(event), error: None }]
        }
        EventAnswer::Batch(batch) => batch.results,
    };
    let failed = results.iter().any(|result| {
        result
            .event
            .as_ref()
            .is_none_or(|event| event.outcomes.iter().any(|outcome| lost(&outcome.action)))
    });
    let code = if failed { ExitCode::Refused } else { ExitCode::Ok };
    if ctx.json() {
        ctx.print_body(&answer.body)?;
        return Ok(code);
    }
    for result in results {
        match (result.event, result.error) {
            (Some(event), _) if event.outcomes.is_empty() => {
                ctx.print(format_args!("{}: no trigger matches", event.id))?;
            }
            (Some(event), _) => {
                for Applied { trigger, action } in &event.outcomes {
                    ctx.print(format_args!("{}: {trigger}: {}", event.id, line(action)))?;
                }
            }
            (None, error) => {
                ctx.print(format_args!("rejected: {}", error.unwrap_or_default().detail))?;
            }
        }
    }
    Ok(code)
}

/// Whether a trigger could not handle the event.
fn lost(action: &TriggerAction) -> bool {
    matches!(action, TriggerAction::DeadLettered { .. } | TriggerAction::Dropped { .. })
}

/// Returns what a trigger did, in a line.
fn line(action: &TriggerAction) -> String {
    match action {
        TriggerAction::Enqueued { job, job_type } => format!("enqueued {job_type} {job}"),
        TriggerAction::AlreadyEnqueued { job } => format!("already enqueued: {job}"),
        TriggerAction::Completed { job } => format!("completed {job}"),
        TriggerAction::Recorded { job } => format!("recorded for {job}, which waits for its retry"),
        TriggerAction::AlreadyProcessed { job } => format!("already processed by {job}"),
        TriggerAction::Late { job } => format!("too late for {job}"),
        TriggerAction::Pending { until } => format!("pending until {until}: no such job waits yet"),
        TriggerAction::DeadLettered { letter, reason } => format!("dead letter {letter}: {reason}"),
        TriggerAction::Dropped { reason } => format!("dropped: {reason}"),
    }
}

async fn dead_letters(args: List, client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let request = |client| {
        let request = Client::get(client, &["dead-letters"]);
        match &args.trigger {
            Some(trigger) => request.query("trigger", trigger),
            None => request,
        }
    };
    let page = pages::collect(request, client, args.limit.max(1)).await?;
    if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
        return Ok(ExitCode::Ok);
    }
    let mut letters: Vec<DeadLetterView> = page.read(client)?;
    letters.sort_by_key(|letter| std::cmp::Reverse(letter.failed_at));
    let now = ctx.now();
    let rows = letters.into_iter().map(|letter| {
        let text = letter.event.json().unwrap_or("null");
        let attributes: Value = serde_json::from_str(text).unwrap_or_default();
        let event = |name: &str| attributes[name].as_str().map_or_else(output::dash, str::to_owned);
        [
            letter.id.clone(),
            letter.trigger.as_ref().map_or_else(output::dash, ToString::to_string),
            output::when(letter.failed_at, now),
            event("type"),
            event("id"),
            letter.reason.clone(),
        ]
    });
    ctx.print_tables(output::table(
        ctx.look,
        ["id", "trigger", "failed", "event type", "event", "reason"],
        rows,
    ))?;
    Ok(ExitCode::Ok)
}

async fn replay(args: Replay, client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::Ok;
    if !args.ids.is_empty() {
        for id in &args.ids {
            let answer = client.post(&["dead-letters", id, "replay"]).send().await?;
            let replayed: Replayed = answer.read()?;
            if matches!(&replayed, Replayed::Applied(action) if lost(action)) {
                code = ExitCode::Refused;
            }
            if ctx.json() {
                ctx.print_body(&answer.body)?;
            } else {
                let said = match &replayed {
                    Replayed::Applied(action) => line(action),
                    Replayed::Unmatched { action } => action.to_string(),
                };
                ctx.print(format_args!("{id}: {said}"))?;
            }
        }
        return Ok(code);
    }
    let (mut replayed, mut remaining, mut cursor) = (0, 0, None::<String>);
    loop {
        let body = json!({"trigger": args.trigger, "cursor": cursor});
        let done: ReplayedDeadLetters =
            client.post(&["dead-letters", "replay"]).json(&body).send().await?.read()?;
        (replayed, remaining) = (replayed + done.replayed, remaining + done.remaining);
        match done.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    if ctx.json() {
        ctx.print(json!({"replayed": replayed, "remaining": remaining}))?;
    } else {
        ctx.print(format_args!("replayed {replayed}, {remaining} remain dead letters"))?;
    }
    Ok(if remaining == 0 { ExitCode::Ok } else { ExitCode::Refused })
}

#[cfg(test)]
mod tests;
