//! `tidegate trigger`: rules that turn a matching event into a job or into the reply to a waiting
//! job.

mod input;
mod trial;

use clap::Subcommand;
use serde_json::Value;

pub use self::input::{contents, events};
use super::{
    Context, ExitCode,
    client::Client,
    output, pages,
    types::{Name, Put},
};
use tidegate_api::TriggerView;
use tidegate_core::{
    event::{Filter, TriggerConfig},
    job::TypeName,
};

/// The commands about triggers.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List triggers.
    List,
    /// Show a trigger.
    Get(Name),
    /// Create a trigger, or replace it.
    Put(Put),
    /// Delete a trigger; its dead letters stay.
    Delete(Name),
    /// Apply a rule, or with `--file` a trigger of the server, to sample events; nothing is done.
    Test(trial::Args),
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request; a file cannot be read.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    if let Command::Test(args) = command {
        return trial::run(args, ctx).await;
    }
    let client = ctx.client()?;
    let (answer, deleted) = match command {
        Command::List => return list(&client, ctx).await,
        Command::Get(Name { name }) => (client.get(&["triggers", &name]).send().await?, None),
        Command::Put(put) => (put.request(&client, "triggers").await?.send().await?, None),
        Command::Delete(Name { name }) => {
            (client.delete(&["triggers", &name]).send().await?, Some(name))
        }
        Command::Test(_) => unreachable!("the branch above ran it"),
    };
    match deleted {
        _ if ctx.json() => ctx.print_body(&answer.body)?,
        Some(name) => ctx.print(format_args!("{name} is deleted"))?,
        None => ctx.print_tables(output::fields(ctx.look, &answer.read()?, &[], ctx.now()))?,
    }
    Ok(ExitCode::Ok)
}

/// Lists the triggers.
async fn list(client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let page = pages::collect(|client| client.get(&["triggers"]), client, usize::MAX).await?;
    if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
        return Ok(ExitCode::Ok);
    }
    let triggers: Vec<TriggerView<'_>> = page.read(client)?;
    let rows = triggers.into_iter().map(|trigger| {
        let TriggerConfig { job_types, filter, enqueue, complete } = &*trigger.config;
        let (does, fields) =
            if enqueue.is_empty() { ("complete", complete) } else { ("enqueue", enqueue) };
        let ends_of: Vec<&str> = job_types.iter().map(TypeName::as_str).collect();
        let filter = match (*filter == Filter::default(), ends_of.is_empty()) {
            (true, true) => "every event".to_owned(),
            (true, false) => format!("ends of {}", ends_of.join(", ")),
            (false, true) => serde_json::to_string(filter).unwrap_or_default(),
            (false, false) => {
                let filter = serde_json::to_string(filter).unwrap_or_default();
                format!("ends of {}: {filter}", ends_of.join(", "))
            }
        };
        let job_type = fields.get("type").map_or_else(output::dash, |field| text(&field.0));
        let version = trigger.version.to_string();
        [trigger.name.to_string(), does.to_owned(), job_type, filter, version]
    });
    ctx.print_tables(output::table(ctx.look, ["name", "does", "type", "about", "version"], rows))?;
    Ok(ExitCode::Ok)
}

/// Returns a value for a table: a text without quotes, any other value as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
