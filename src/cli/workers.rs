//! `tidegate workers`: lists pull workers and their history, drains, stops and removes them.

use clap::Subcommand;

use super::{
    Context, ExitCode, history,
    output::{self, OutputStyle},
    pages,
    safe::line,
    types::Name,
};
use tidegate_api::Worker;
use tidegate_core::{job::TypeName, time::Timestamp};

/// The commands about workers.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the pull workers that called lately, run a job, or are drained.
    List,
    /// Give a worker no more jobs until it is undrained, even after a restart of it.
    Drain(Name),
    /// Give a worker jobs again, and withdraw a stop that it has not received.
    Undrain(Name),
    /// Have a worker end in order: it finishes the jobs that it runs, and gets no more.
    ///
    /// Workers of `tidegate work` and of the client libraries obey. What started the process may
    /// start it again.
    Stop(Name),
    /// Show the attempts that ended at a worker, and what runs there, in steps.
    History(history::Show),
    /// Remove a worker that is gone from the list, and end its drain.
    Remove(Name),
}

/// Runs the command.
///
/// # Errors
///
/// The server is unreachable or rejects the request.
pub async fn run(command: Command, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let post = async |name: &str, verb: &str| client.post(&["workers", name, verb]).send().await;
    let (answer, done) = match command {
        Command::List => {
            let page =
                pages::collect(|client| client.get(&["workers"]), &client, usize::MAX).await?;
            if ctx.json() {
                ctx.print(serde_json::to_string(&page)?)?;
            } else {
                ctx.print_tables(render(ctx.look, &page.read(&client)?, ctx.now()))?;
            }
            return Ok(ExitCode::Ok);
        }
        Command::History(show) => return history::show_worker(&client, &show, ctx).await,
        Command::Drain(Name { name }) => {
            (post(&name, "drain").await?, format!("{} gets no more jobs", line(&name)))
        }
        Command::Undrain(Name { name }) => {
            (post(&name, "undrain").await?, format!("{} gets jobs again", line(&name)))
        }
        Command::Stop(Name { name }) => {
            let answer = post(&name, "stop").await?;
            let done = match answer.read::<Worker>()?.running {
                0 => format!("{} is to end", line(&name)),
                running => format!("{} is to end after its running jobs: {running}", line(&name)),
            };
            (answer, done)
        }
        Command::Remove(Name { name }) => (
            client.delete(&["workers", &name]).send().await?,
            format!("{} is removed", line(&name)),
        ),
    };
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        ctx.print(done)?;
    }
    Ok(ExitCode::Ok)
}

/// What a worker does, in a word.
fn state(worker: &Worker) -> &'static str {
    match worker {
        Worker { stopping: true, .. } => "stopping",
        Worker { draining: true, running: 0, .. } => "drained",
        Worker { draining: true, .. } => "draining",
        Worker { running: 0, .. } => "waiting",
        _ => "working",
    }
}

fn render(look: OutputStyle, workers: &[Worker], now: Timestamp) -> String {
    let rows = workers.iter().map(|worker| {
        let capacity = worker.capacity.map_or_else(String::new, |most| format!(" of {most}"));
        let takes: Vec<_> = worker.types.iter().map(TypeName::as_str).collect();
        let takes = match &worker.queue {
            _ if !takes.is_empty() => takes.join(", "),
            Some(queue) => format!("queue {queue}"),
            None => output::dash(),
        };
        [
            line(&worker.name),
            state(worker).to_owned(),
            format!("{}{capacity}", worker.running),
            takes,
            output::when(worker.seen_at, now),
        ]
    });
    output::table(look, ["worker", "state", "runs", "types", "last call"], rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cli::{
        ExitCode,
        testing::{FakeServer, SeenRequest},
    };

    #[tokio::test]
    async fn workers_are_listed_with_what_they_do() {
        let worker = |name: &str, running: u64, draining: bool, stopping: bool| {
            json!({
                "name": name, "capacity": 4, "running": running, "draining": draining,
                "stopping": stopping, "seen_at": "2001-09-09T01:46:30Z", "types": ["mail"],
            })
        };
        let body = json!({"workers": [
            worker("a", 2, false, false), worker("b", 0, false, false), worker("c", 1, true, false),
            worker("d", 0, true, false), worker("e", 1, true, true),
        ]});
        let server = FakeServer::answering(move |_| (200, body.clone())).await;
        let (code, out) = server.run(&["workers", "list"]).await;
        assert_eq!(code, ExitCode::Ok);
        let states = ["working", "waiting", "draining", "drained", "stopping"];
        for ((state, name), row) in states.iter().zip("abcde".chars()).zip(out.lines().skip(1)) {
            assert!(row.starts_with(name) && row.contains(state), "{out}");
        }
        assert!(out.contains("2 of 4") && out.contains("mail"), "{out}");
    }

    #[tokio::test]
    async fn verbs_are_sent_and_confirmed() {
        let worker = json!({
            "name": "a b", "capacity": null, "running": 2, "draining": true, "stopping": true,
            "seen_at": "2001-09-09T01:46:30Z",
        });
        let server = FakeServer::answering(move |_| (200, worker.clone())).await;
        for (verb, said) in [
            ("drain", "a b gets no more jobs\n"),
            ("undrain", "a b gets jobs again\n"),
            ("stop", "a b is to end after its running jobs: 2\n"),
            ("remove", "a b is removed\n"),
        ] {
            assert_eq!(
                server.run(&["workers", verb, "a b"]).await,
                (ExitCode::Ok, said.to_owned())
            );
        }
        let seen: Vec<String> = server.seen().iter().map(SeenRequest::line).collect();
        let expected = [
            "POST /v1/workers/a%20b/drain",
            "POST /v1/workers/a%20b/undrain",
            "POST /v1/workers/a%20b/stop",
            "DELETE /v1/workers/a%20b",
        ];
        assert_eq!(seen, expected);
    }
}
