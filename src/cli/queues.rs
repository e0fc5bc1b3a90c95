//! `tidegate queues`: lists, configures, pauses, purges and deletes queues.

use clap::Subcommand;

use super::{
    Context, ExitCode,
    client::Client,
    history, operation,
    output::{self, OutputStyle},
    pages,
    preview::Previewed,
    queue_simulation,
    safe::line,
    types::{self, Configure, Name, Put},
};
use tidegate_api::{HeldJobs, QueueExplanation, QueueView, WorkerStatus};
use tidegate_core::{job::Phase, time::Timestamp};

/// The commands about queues.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List queues with their status.
    List,
    /// Show a queue with its status and all its settings.
    Get(Name),
    /// Explain why a queue is idle or slow.
    Explain(Name),
    /// Show the last hour or day of a queue: jobs in and out, delays, depth.
    History(history::Show),
    /// Run the recorded last hour of a queue again, as it is configured and with a change.
    Simulate(Box<queue_simulation::Args>),
    /// Create a queue, or replace all its settings.
    Put(Previewed<Put>),
    /// Change some of a queue's settings.
    Patch(Previewed<Configure>),
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
        Command::Explain(Name { name }) => return explain(&client, &name, ctx).await,
        Command::History(show) => return history::show(&client, "queues", &show, ctx).await,
        Command::Purge(Name { name }) => {
            let answer = client.post(&["queues", &name, "purge"]).send().await?;
            return operation::follow(&client, answer, "dropped", ctx).await;
        }
        Command::Get(Name { name }) => {
            (client.get(&["queues", &name]).send().await?, ShownQueue::Whole)
        }
        Command::Simulate(args) => return queue_simulation::run(*args, &client, ctx).await,
        Command::Put(args) => match types::put(&args, (&client, "queues"), ctx).await? {
            Some(answer) => (answer, ShownQueue::Row),
            None => return Ok(ExitCode::Ok),
        },
        Command::Patch(args) => match types::patch(&args, (&client, "queues"), ctx).await? {
            Some(answer) => (answer, ShownQueue::Row),
            None => return Ok(ExitCode::Ok),
        },
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
        ShownQueue::Row => ctx.print_tables(render(ctx.look, &[answer.read()?], ctx.now()))?,
        ShownQueue::Whole => {
            let row = render(ctx.look, &[answer.read()?], ctx.now());
            let settings =
                output::fields(ctx.look, &answer.read()?, &["name", "paused", "status"], ctx.now());
            ctx.print_tables(format_args!("{row}\n\n{settings}"))?;
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
        let queues = page.read(client)?;
        ctx.print_tables(render(ctx.look, &queues, ctx.now()))?;
        if let Some(note) = age_of_counts(&queues, ctx.now()) {
            ctx.note(note);
        }
    }
    Ok(ExitCode::Ok)
}

/// When the server counted the jobs, if not for this answer.
fn age_of_counts(queues: &[QueueView<'_>], now: Timestamp) -> Option<String> {
    let counted = queues.iter().filter_map(|queue| queue.status.as_ref()?.counted_at).min()?;
    Some(format!(
        "scheduled, retrying and running jobs were counted {}",
        output::when(counted, now)
    ))
}

async fn explain(client: &Client, name: &str, ctx: &Context) -> anyhow::Result<ExitCode> {
    let answer = client.get(&["queues", name, "explain"]).send().await?;
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        ctx.print_tables(render_explanation(ctx.look, &answer.read()?, ctx.now()))?;
    }
    Ok(ExitCode::Ok)
}

/// The reason, and what holds, runs and works, as tables.
pub(super) fn render_explanation(
    look: OutputStyle,
    why: &QueueExplanation,
    now: Timestamp,
) -> String {
    let mut parts = vec![line(&why.reason)];
    let rows = why.held.iter().map(|held| {
        let types = held.types.iter().map(|(name, jobs)| format!("{name} {jobs}"));
        [
            held_by(held),
            held.jobs.to_string(),
            types.collect::<Vec<_>>().join(", "),
            output::when_known(held.since, now),
            output::when_known(held.earliest_at, now),
            held.reason.clone(),
        ]
    });
    if !why.held.is_empty() {
        let names = ["held by", "jobs", "types", "since", "earliest", "why"];
        parts.push(output::table(look, names, rows));
    }
    let types = why.running.iter().map(|running| {
        let limit = running.limit.map_or_else(output::dash, |limit| limit.to_string());
        [
            format!("type {}", running.r#type),
            running.jobs.to_string(),
            running.weight.to_string(),
            limit,
        ]
    });
    let constraints = why.constraints.iter().map(|one| {
        let value = one.value.as_ref().map_or_else(String::new, |value| format!(" ({value})"));
        let name = format!("constraint {}{value}", one.name);
        [name, output::dash(), one.running_weight.to_string(), one.limit.to_string()]
    });
    if !why.running.is_empty() {
        let names = ["running", "jobs", "weight", "limit"];
        parts.push(output::table(look, names, types.chain(constraints)));
    }
    let workers =
        why.workers.iter().map(|one| [one.r#type.clone(), workers_line(&one.workers, now)]);
    if !why.workers.is_empty() {
        parts.push(output::table(look, ["type", "workers"], workers));
    }
    parts.join("\n\n")
}

/// What holds jobs, with its name and value.
pub fn held_by(held: &HeldJobs) -> String {
    let name = held.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
    let value = held.value.as_ref().map_or_else(String::new, |value| format!(" ({value})"));
    format!("{}{name}{value}", held.kind)
}

/// The status of workers in a line: `2 of 2 in use; 3 known, 3 busy; last call 1 s ago`.
pub fn workers_line(status: &WorkerStatus, now: Timestamp) -> String {
    let mut parts = vec![match status.capacity {
        Some(capacity) => format!("{} of {capacity} in use", status.in_use),
        None => format!("{} in use", status.in_use),
    }];
    let counts: Vec<String> = [
        (status.known, "known"),
        (status.polling, "polling"),
        (status.busy, "busy"),
        (status.draining, "draining"),
    ]
    .into_iter()
    .filter_map(|(count, word)| {
        let count = count.filter(|count| *count > 0 || word == "known")?;
        Some(format!("{count} {word}"))
    })
    .collect();
    if !counts.is_empty() {
        parts.push(counts.join(", "));
    }
    if let Some(at) = status.last_seen_at {
        parts.push(format!("last call {}", output::when(at, now)));
    }
    parts.join("; ")
}

fn render(look: OutputStyle, queues: &[QueueView<'_>], now: Timestamp) -> String {
    let rows = queues.iter().map(|queue| {
        let status = queue.status.as_ref();
        let count = |count: Option<u64>| count.map_or_else(output::dash, |count| count.to_string());
        let in_phase = |phase: Phase| {
            let jobs =
                status.map(|status| status.phases.get(phase.as_str()).copied().unwrap_or_default());
            let more = if status.is_some_and(|status| status.depth_at_least) { "+" } else { "" };
            format!("{}{more}", count(jobs))
        };
        let held = status.map(|status| {
            let each = status.held.iter().map(|held| format!("{} {}", held_by(held), held.jobs));
            each.collect::<Vec<_>>()
        });
        [
            queue.name.to_string(),
            in_phase(Phase::Scheduled),
            count(status.map(|status| status.ready)),
            in_phase(Phase::Retrying),
            in_phase(Phase::Running),
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
            "retrying",
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
                "phases": {"scheduled": 1995, "ready": 10000, "retrying": 5, "running": 3},
                "running_weight": 7,
                "oldest_due_at": "2001-09-09T01:44:40Z",
                "held": [
                    {"kind": "constraint", "name": "tenant", "value": "a", "jobs": 60,
                        "types": {"mail": 60}, "reason": "full"},
                    {"kind": "concurrency", "jobs": 40, "types": {"mail": 40}, "reason": "full"},
                ],
                "desired_workers": 10,
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

    #[test]
    fn kept_counts_are_shown_with_their_age() {
        let of = |status| -> QueueView<'_> {
            let queue = json!({"name": "mail", "status": sample::queue_status(status)});
            serde_json::from_value(sample::queue(queue)).unwrap()
        };
        let now = Timestamp::from_millis(1_000_000_000_000);
        let mut queues = vec![of(json!({"phases": {"scheduled": 7}}))];
        assert_eq!(age_of_counts(&queues, now), None, "counted for this answer");
        for at in ["2001-09-09T01:46:10Z", "2001-09-09T01:45:40Z", "2001-09-09T01:46:30Z"] {
            queues.push(of(json!({
                "phases": {"scheduled": 2000}, "counted_at": at, "depth_at_least": true,
            })));
        }
        let note = age_of_counts(&queues, now).unwrap();
        assert_eq!(note, "scheduled, retrying and running jobs were counted 1 min ago");
        let shown = render(OutputStyle::default(), &queues, now);
        assert!(shown.contains("2000+") && !shown.contains("7+"), "{shown}");
    }

    #[test]
    fn explain_shows_what_holds_runs_and_works() {
        let why: QueueExplanation = serde_json::from_value(json!({
            "reason": "5 of 5 due jobs wait: 2 of 2 of the queue is in use, and it needs 1",
            "examined": 5, "more": false, "next_due_at": null,
            "held": [{
                "kind": "concurrency", "jobs": 5, "types": {"mail": 5},
                "since": "2001-09-09T01:44:40Z", "reason": "2 of 2 of the queue is in use",
                "earliest_at": null,
            }],
            "running": [{"type": "mail", "jobs": 2, "weight": 2}],
            "constraints": [{
                "name": "tenant", "per": "tenant", "value": "a", "running_weight": 2, "limit": 3,
            }],
            "workers": [{"type": "mail", "workers": {
                "known": 3, "polling": 0, "busy": 3, "draining": 0, "in_use": 2, "capacity": 2,
                "last_seen_at": "2001-09-09T01:46:39Z",
            }}],
        }))
        .unwrap();
        insta::assert_snapshot!(render_explanation(
            OutputStyle::default(),
            &why,
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
