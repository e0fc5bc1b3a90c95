//! `tidegate types`: lists and configures job types.

use std::{path::PathBuf, time::Duration};

use clap::Subcommand;
use serde_json::Value;

use super::{
    Context, ExitCode, UsageError,
    args::{self, Json},
    client::{ApiResponse, Client, Request},
    history,
    output::{self, OutputStyle},
    pages,
    preview::Previewed,
};
use tidegate_api::JobTypeView;

/// The commands about job types.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List job types.
    List,
    /// Show a job type and all its settings.
    Get(Name),
    /// Show the last hour or day of a type: jobs in and out, delays, depth.
    History(history::Show),
    /// Create a job type, or replace all its settings.
    Put(Previewed<Put>),
    /// Change some of a job type's settings.
    Patch(Previewed<Configure>),
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
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The settings, JSON; `-` reads standard input.
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
}

/// A name, settings, and whether they replace what cannot be read.
#[derive(Debug, clap::Args)]
pub struct Put {
    #[command(flatten)]
    configure: Configure,
    #[command(flatten)]
    force: Force,
}

/// Whether settings replace what cannot be read.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Force {
    /// Replace stored settings that cannot be read: they are damaged, a newer release wrote them,
    /// or the key of their secrets is lost.
    #[arg(long)]
    force: bool,
}

impl Force {
    /// `request` with the parameter.
    pub fn applied(self, request: Request<'_>) -> Request<'_> {
        if self.force { request.query("force", "true") } else { request }
    }
}

impl Put {
    /// The request of the settings of the named item below `kind`.
    ///
    /// # Errors
    ///
    /// The settings cannot be read.
    pub async fn request<'a>(&self, client: &'a Client, kind: &str) -> anyhow::Result<Request<'a>> {
        let request = self.force.applied(client.put(&[kind, &self.configure.name]));
        Ok(request.json(&self.configure.settings().await?))
    }
}

/// Sets or changes the item of `kind` that the arguments name: the answer. None if that was a dry
/// run, which is shown.
///
/// # Errors
///
/// The settings cannot be read; the server is unreachable or rejects the request.
pub async fn put(
    args: &Previewed<Put>,
    (client, kind): (&Client, &str),
    ctx: &Context,
) -> anyhow::Result<Option<ApiResponse>> {
    let request = args.settings.request(client, kind).await?;
    args.mode.send(request, &[kind, &args.settings.configure.name], client, ctx).await
}

/// Changes some settings of an item, as [`put`] sets all.
///
/// # Errors
///
/// As [`put`].
pub async fn patch(
    args: &Previewed<Configure>,
    (client, kind): (&Client, &str),
    ctx: &Context,
) -> anyhow::Result<Option<ApiResponse>> {
    let Configure { name, .. } = &args.settings;
    let request = client.patch(&[kind, name]).json(&args.settings.settings().await?);
    args.mode.send(request, &[kind, name], client, ctx).await
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
        Command::History(show) => return history::show(&client, "job-types", &show, ctx).await,
        Command::Put(args) => match put(&args, (&client, "job-types"), ctx).await? {
            Some(answer) => (answer, None),
            None => return Ok(ExitCode::Ok),
        },
        Command::Patch(args) => match patch(&args, (&client, "job-types"), ctx).await? {
            Some(answer) => (answer, None),
            None => return Ok(ExitCode::Ok),
        },
        Command::Delete(Name { name }) => {
            (client.delete(&["job-types", &name]).send().await?, Some(name))
        }
    };
    match deleted {
        _ if ctx.json() => ctx.print_body(&answer.body)?,
        Some(name) => ctx.print(format_args!("{name} is deleted"))?,
        None => ctx.print_tables(output::fields(ctx.look, &answer.read()?, &[], ctx.now()))?,
    }
    Ok(ExitCode::Ok)
}

async fn list(client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let page = pages::collect(|client| client.get(&["job-types"]), client, usize::MAX).await?;
    if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
    } else {
        ctx.print_tables(render(ctx.look, &page.read(client)?))?;
    }
    Ok(ExitCode::Ok)
}

fn render(look: OutputStyle, types: &[JobTypeView<'_>]) -> String {
    let rows = types.iter().map(|job_type| {
        let setting = |name: &str| job_type.config.get(name).filter(|value| !value.is_null());
        let number = |name: &str| setting(name).map_or_else(output::dash, ToString::to_string);
        [
            job_type.name.to_string(),
            job_type.queue().to_owned(),
            job_type.target_url().unwrap_or("pull").to_owned(),
            setting("delivery").and_then(Value::as_str).unwrap_or_default().to_owned(),
            number("max_attempts"),
            number("concurrency"),
            setting("timeout_seconds")
                .and_then(Value::as_f64)
                .map_or_else(output::dash, |seconds| {
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
    use crate::cli::testing::{FakeServer, sample};

    #[tokio::test]
    async fn types_are_listed_with_their_target() {
        let types = [
            json!({"target": {"pull": true}, "max_attempts": 3}),
            json!({"name": "hook", "queue": "slow", "target": {"url": "http://127.0.0.1:9000/w"},
                "delivery": "at_most_once", "concurrency": 5, "timeout_seconds": 90.5}),
            json!({"name": "none", "target": null, "timeout_seconds": null}),
        ];
        let types = types.map(sample::job_type);
        let server = FakeServer::answering(move |_| (200, json!({ "job_types": types }))).await;
        insta::assert_snapshot!(server.run(&["types", "list"]).await.1);
    }

    #[tokio::test]
    async fn force_is_asked_of_every_kind_of_configuration() {
        let server = FakeServer::answering(|_| (200, json!({}))).await;
        let kinds = [
            ("types", "job-types"),
            ("queues", "queues"),
            ("schedule", "schedules"),
            ("trigger", "triggers"),
        ];
        for (place, (command, kind)) in kinds.into_iter().enumerate() {
            server.run(&[command, "put", "n", "--force", "--config", "{}", "--json"]).await;
            assert_eq!(server.seen()[place].line(), format!("PUT /v1/{kind}/n?force=true"));
        }
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
