//! `tidegate types`: lists and configures job types.

use std::{path::PathBuf, time::Duration};

use clap::Subcommand;

use super::{
    Context, ExitCode, UsageError,
    args::{self, Json},
    client::Client,
    output::{self, OutputStyle},
    pages,
    wire::JobType,
};

/// The commands about job types.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List job types.
    List,
    /// Show a job type and all its settings.
    Get(Name),
    /// Create a job type, or replace all its settings.
    Put(Configure),
    /// Change some of a job type's settings.
    Patch(Configure),
    /// Delete a job type that has no live jobs.
    Delete(Name),
}

/// The name of a resource.
#[derive(Debug, clap::Args)]
pub struct Name {
    /// The name.
    pub name: String,
}

/// A name and settings.
#[derive(Debug, clap::Args)]
pub struct Configure {
    /// The name.
    pub name: String,
    /// A file with the settings, JSON; `-` reads standard input.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "config",
        required_unless_present = "config"
    )]
    file: Option<PathBuf>,
    /// The settings, JSON; `-` reads standard input.
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
}

impl Configure {
    /// The settings.
    ///
    /// # Errors
    ///
    /// They cannot be read or are not JSON.
    pub async fn settings(&self) -> anyhow::Result<Json> {
        let settings = args::json_from(self.config.as_deref(), self.file.as_deref()).await?;
        settings.ok_or_else(|| {
            UsageError("give the settings with --config or --file".to_owned()).into()
        })
    }
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let (answer, deleted) = match command {
        Command::List => return list(&client, ctx).await,
        Command::Get(Name { name }) => (client.get(&["job-types", &name]).send().await?, None),
        Command::Put(args) => (
            client.put(&["job-types", &args.name]).json(&args.settings().await?).send().await?,
            None,
        ),
        Command::Patch(args) => (
            client.patch(&["job-types", &args.name]).json(&args.settings().await?).send().await?,
            None,
        ),
        Command::Delete(Name { name }) => {
            (client.delete(&["job-types", &name]).send().await?, Some(name))
        }
    };
    match deleted {
        _ if ctx.json() => ctx.print_body(&answer.body)?,
        Some(name) => ctx.print(format_args!("{name} is deleted"))?,
        None => ctx.print(output::fields(ctx.look, &answer.read()?, &[], ctx.now()))?,
    }
    Ok(ExitCode::Ok)
}

async fn list(client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let page = pages::collect(|client| client.get(&["job-types"]), client, usize::MAX).await?;
    if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
    } else {
        ctx.print(render(ctx.look, &page.read(client)?))?;
    }
    Ok(ExitCode::Ok)
}

fn render(look: OutputStyle, types: &[JobType]) -> String {
    let rows = types.iter().map(|job_type| {
        let number =
            |number: Option<u64>| number.map_or_else(output::dash, |number| number.to_string());
        [
            job_type.name.clone(),
            job_type.queue.clone(),
            job_type
                .target
                .as_ref()
                .and_then(|target| target.url.clone())
                .unwrap_or_else(|| "pull".to_owned()),
            job_type.delivery.clone(),
            number(job_type.max_attempts.map(u64::from)),
            number(job_type.concurrency),
            job_type.timeout_seconds.map_or_else(output::dash, |seconds| {
                output::took(Duration::try_from_secs_f64(seconds).unwrap_or_default())
            }),
        ]
    });
    output::table(
        look,
        ["name", "queue", "target", "delivery", "max attempts", "limit", "timeout"],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::testing::FakeServer;

    #[tokio::test]
    async fn types_are_listed_with_their_target() {
        let types = json!([
            {"name": "mail", "queue": "default", "target": {"pull": true}, "delivery": "at_least_once", "max_attempts": 3, "timeout_seconds": 86400},
            {"name": "hook", "queue": "slow", "target": {"url": "http://127.0.0.1:9000/w"}, "delivery": "at_most_once", "concurrency": 5,
             "timeout_seconds": 90.5},
            {"name": "none", "queue": "default", "target": null, "delivery": "at_least_once"},
        ]);
        let server = FakeServer::answering(move |_| (200, json!({ "job_types": types }))).await;
        insta::assert_snapshot!(server.run(&["types", "list"]).await.1);
    }

    #[tokio::test]
    async fn settings_are_sent_as_they_were_written() {
        let server = FakeServer::answering(|_| (200, json!({"name": "mail"}))).await;
        assert_eq!(
            server.run(&["types", "put", "mail", "--config", "{\"max_attempts\": 5}"]).await.0,
            ExitCode::Ok
        );
        assert_eq!(
            server.run(&["types", "patch", "mail", "--config", "{\"max_attempts\": null}"]).await.0,
            ExitCode::Ok
        );
        let seen = server.seen();
        assert_eq!(
            (seen[0].line().as_str(), &seen[0].body),
            ("PUT /v1/job-types/mail", &json!({"max_attempts": 5}))
        );
        assert_eq!(
            (seen[1].line().as_str(), &seen[1].body),
            ("PATCH /v1/job-types/mail", &json!({"max_attempts": null}))
        );
    }
}
