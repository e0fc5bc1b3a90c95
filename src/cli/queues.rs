//! `tidegate queues`: lists, configures, pauses, purges and deletes queues.

use clap::Subcommand;

use super::{
    Context, ExitCode,
    client::Client,
    operation,
    output::{self, OutputStyle},
    pages,
    types::{Configure, Name},
};
use tidegate_api::QueueView;
use tidegate_core::time::Timestamp;

/// The commands about queues.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List queues with their status.
    List,
    /// Show a queue with its status and all its settings.
    Get(Name),
    /// Create a queue, or replace all its settings.
    Put(Configure),
    /// Change some of a queue's settings.
    Patch(Configure),
    /// Stop starting jobs from this queue until it is resumed; running jobs continue.
    Pause(Name),
    /// Start jobs from this queue again.
    Resume(Name),
    /// Drop every scheduled job of a queue.
    Purge(Name),
    /// Delete a queue that has no live jobs.
    Delete(Name),
}

/// How a response is printed.
enum ShownQueue {
    /// As a row of the list.
    Row,
    /// With all its settings.
    Whole,
    /// As a sentence.
    Sentence(String),
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let (answer, shown) = match command {
        Command::List => return list(&client, ctx).await,
        Command::Purge(Name { name }) => {
            let answer = client.post(&["queues", &name, "purge"]).send().await?;
            return operation::follow(&client, answer, "dropped", ctx).await;
        }
        Command::Get(Name { name }) => {
            (client.get(&["queues", &name]).send().await?, ShownQueue::Whole)
        }
        Command::Put(args) => (
            client.put(&["queues", &args.name]).json(&args.settings().await?).send().await?,
            ShownQueue::Row,
        ),
        Command::Patch(args) => (
            client.patch(&["queues", &args.name]).json(&args.settings().await?).send().await?,
            ShownQueue::Row,
        ),
        Command::Pause(Name { name }) => (
            client.post(&["queues", &name, "pause"]).send().await?,
            ShownQueue::Sentence(format!("{name} is paused; running jobs continue")),
        ),
        Command::Resume(Name { name }) => (
            client.post(&["queues", &name, "resume"]).send().await?,
            ShownQueue::Sentence(format!("{name} is resumed")),
        ),
        Command::Delete(Name { name }) => (
            client.delete(&["queues", &name]).send().await?,
            ShownQueue::Sentence(format!("{name} is deleted")),
        ),
    };
    if ctx.json() {
        ctx.print_body(&answer.body)?;
        return Ok(ExitCode::Ok);
    }
    match shown {
        ShownQueue::Row => ctx.print(render(ctx.look, &[answer.read()?], ctx.now()))?,
        ShownQueue::Whole => {
            let row = render(ctx.look, &[answer.read()?], ctx.now());
            let settings =
                output::fields(ctx.look, &answer.read()?, &["name", "paused", "status"], ctx.now());
            ctx.print(format_args!("{row}\n\n{settings}"))?;
        }
        ShownQueue::Sentence(sentence) => ctx.print(sentence)?,
    }
    Ok(ExitCode::Ok)
}

async fn list(client: &Client, ctx: &Context) -> anyhow::Result<ExitCode> {
    let page = pages::collect(|client| client.get(&["queues"]), client, usize::MAX).await?;
    if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
    } else {
        ctx.print(render(ctx.look, &page.read(client)?, ctx.now()))?;
    }
    Ok(ExitCode::Ok)
}

fn render(look: OutputStyle, queues: &[QueueView<'_>], now: Timestamp) -> String {
    let rows = queues.iter().map(|queue| {
        let status = queue.status.as_ref();
        let count = |count: Option<u64>| count.map_or_else(output::dash, |count| count.to_string());
        let depth = |state: &str| {
            count(status.map(|status| status.depth.get(state).copied().unwrap_or_default()))
        };
        let held = status.map(|status| {
            status.held.iter().map(|(rule, jobs)| format!("{rule} {jobs}")).collect::<Vec<_>>()
        });
        [
            queue.name.to_string(),
            depth("scheduled"),
            count(status.map(|status| status.ready)),
            depth("running"),
            format!(
                "{}/{}",
                count(status.map(|status| status.running_weight)),
                count(queue.config.concurrency.map(u64::from))
            ),
            output::when_known(status.and_then(|status| status.oldest_due_at), now),
            if queue.paused { "paused".to_owned() } else { output::dash() },
            held.unwrap_or_default().join(", "),
            count(status.map(|status| status.desired_workers)),
        ]
    });
    output::table(
        look,
        [
            "name",
            "scheduled",
            "ready",
            "running",
            "weight/limit",
            "oldest",
            "paused",
            "held by",
            "desired workers",
        ],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::testing::{FakeServer, sample};

    #[test]
    fn list_shows_the_status_of_each_queue() {
        let queues = [
            json!({"name": "default", "concurrency": 10, "status": sample::queue_status(json!({
                "depth": {"scheduled": 12000, "running": 3}, "ready": 10000,
                "running_weight": 7,
                "oldest_due_at": "2001-09-09T01:44:40Z",
                "held": {"concurrency": 11000, "due_time": 1000}, "desired_workers": 10,
            }))}),
            json!({"name": "idle", "paused": true, "status": sample::queue_status(json!({}))}),
            json!({"name": "new"}),
        ];
        let queues = queues.map(|changes| serde_json::from_value(sample::queue(changes)).unwrap());
        insta::assert_snapshot!(render(
            OutputStyle::default(),
            &queues,
            Timestamp::from_millis(1_000_000_000_000)
        ));
    }

    #[tokio::test]
    async fn a_queue_is_operated_by_its_routes() {
        let server = FakeServer::answering(|_| (200, json!({"name": "q"}))).await;
        for (verb, line) in [
            ("pause", "POST /v1/queues/q/pause"),
            ("resume", "POST /v1/queues/q/resume"),
            ("delete", "DELETE /v1/queues/q"),
        ] {
            assert_eq!(server.run(&["queues", verb, "q"]).await.0, ExitCode::Ok);
            assert_eq!(server.seen().last().unwrap().line(), line);
        }
    }

    #[tokio::test]
    async fn a_purge_prints_the_number_of_dropped_jobs() {
        let server =
            FakeServer::answering(|_| (202, sample::operation("o", "done", [5, 5, 0]))).await;
        assert_eq!(
            server.run(&["queues", "purge", "q"]).await,
            (ExitCode::Ok, "dropped 5 of 5 jobs, 0 refused\n".to_owned())
        );
        assert_eq!(server.seen()[0].line(), "POST /v1/queues/q/purge");
    }

    #[tokio::test]
    async fn settings_come_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"concurrency\": 10}\n").unwrap();
        let server =
            FakeServer::answering(|_| (200, sample::queue(json!({"concurrency": 10})))).await;
        let (code, out) =
            server.run(&["queues", "put", "q", "--file", file.path().to_str().unwrap()]).await;
        assert_eq!(
            (code, server.seen()[0].body.clone()),
            (ExitCode::Ok, json!({"concurrency": 10}))
        );
        assert!(out.contains("-/10"), "{out}");
    }
}
