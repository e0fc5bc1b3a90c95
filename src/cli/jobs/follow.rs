//! `tidegate jobs list --follow`: the jobs of a filter as they change.
//!
//! The stream of the server says which jobs have changed, and they are read with the filter. A
//! server without a stream (AWS) is polled: then only changes among the latest jobs are seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::filter::Filter;
use crate::cli::{
    Context,
    client::{Client, Error},
    context::{pause, print_error},
    output, pages,
    safe::line,
};
use tidegate_api::{JobView, SkippedChanges, client::Events};
use tidegate_core::{job::JobId, time::Timestamp};

/// How long changes are gathered before the jobs are read.
const GATHER: Duration = Duration::from_millis(300);
/// Most jobs that are read at once.
const MAX_JOBS: usize = 100;
/// The time between two reads of a server without a stream, and before a broken connection is made
/// again.
const POLL: Duration = Duration::from_secs(5);

/// What a line shows of a job: another line follows when it changes.
type Shown = (String, u16, Option<Timestamp>);

/// Prints the jobs of `filter` as they change after `listed`, without an end.
///
/// # Errors
///
/// The server refuses the request, or the output is closed.
pub async fn run(
    filter: &Filter,
    listed: &[JobView<'_>],
    limit: u32,
    (client, now): (&Client, Timestamp),
    ctx: &Context,
) -> anyhow::Result<()> {
    let mut printer = Printer { seen: BTreeMap::new(), ctx };
    for job in listed {
        printer.seen.insert(job.id.to_string(), shown(job));
    }
    loop {
        let mut request = client.get(&["stream"]);
        let (queue, job_type) = filter.queue_and_type();
        if let Some(queue) = queue {
            request = request.query("queue", queue.as_str());
        }
        if let Some(job_type) = job_type {
            request = request.query("type", job_type.as_str());
        }
        match request.events().await {
            Ok(events) => {
                // What changed before the stream began.
                poll(filter, limit, (client, now), &mut printer).await?;
                follow(events, filter, limit, (client, now), &mut printer).await?;
            }
            Err(Error::Problem(problem)) if problem.status < 500 => {
                return Err(Error::Problem(problem).into());
            }
            Err(_) => poll(filter, limit, (client, now), &mut printer).await?,
        }
        pause(POLL).await;
    }
}

/// What the events of a stream demand.
#[derive(Default)]
struct Changed {
    /// These jobs have changed.
    jobs: BTreeSet<JobId>,
    /// Others may have, which no event names.
    has_gap: bool,
}

/// Prints the jobs that the events of a stream name, until it ends.
async fn follow(
    mut events: Events,
    filter: &Filter,
    limit: u32,
    (client, now): (&Client, Timestamp),
    printer: &mut Printer<'_>,
) -> anyhow::Result<()> {
    loop {
        let mut changed = Changed::default();
        let mut is_over = read(&mut events, &mut changed).await;
        let is_some = |changed: &Changed| changed.has_gap || !changed.jobs.is_empty();
        let gathered = pause(GATHER);
        tokio::pin!(gathered);
        while !is_over && is_some(&changed) && changed.jobs.len() < MAX_JOBS {
            tokio::select! {
                over = read(&mut events, &mut changed) => is_over = over,
                () = &mut gathered => break,
            }
        }
        if changed.has_gap {
            poll(filter, limit, (client, now), printer).await?;
        }
        let request = filter.query_of(&changed.jobs, client.get(&["jobs"]), now);
        if let Some(request) = request {
            let request = request.query("limit", &MAX_JOBS.to_string());
            let page: pages::Page = request.send().await?.read()?;
            printer.print(&page, client)?;
        }
        if is_over {
            return Ok(());
        }
    }
}

/// Reads one event, and adds what it demands. Returns whether the stream is over.
async fn read(events: &mut Events, changed: &mut Changed) -> bool {
    #[derive(serde::Deserialize)]
    struct Named {
        id: JobId,
    }
    let event = match events.next().await {
        Ok(Some(event)) => event,
        Ok(None) => return true,
        Err(error) => {
            print_error(format_args!("warning: {error}; trying again"));
            return true;
        }
    };
    match event.name.as_str() {
        "job" => changed.jobs.extend(serde_json::from_str(&event.data).ok().map(|Named { id }| id)),
        "skipped" => {
            let skipped = serde_json::from_str::<SkippedChanges>(&event.data).ok();
            let count = skipped.and_then(|skipped| skipped.changes);
            let count = count.map_or_else(|| "some".to_owned(), |count| count.to_string());
            print_error(format_args!(
                "warning: {count} changes were missed; reading the list again"
            ));
            changed.has_gap = true;
        }
        _ => {}
    }
    false
}

/// Prints the jobs of the list that have changed.
async fn poll(
    filter: &Filter,
    limit: u32,
    (client, now): (&Client, Timestamp),
    printer: &mut Printer<'_>,
) -> anyhow::Result<()> {
    let request = |client| filter.query(Client::get(client, &["jobs"]), now);
    match pages::collect(request, client, limit as usize).await {
        Ok(page) => printer.print(&page, client),
        Err(error) if error.passes() => {
            print_error(format_args!("warning: {error}; trying again"));
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn shown(job: &JobView<'_>) -> Shown {
    (job.phase.to_string(), job.attempt, job.ended_at)
}

/// Prints jobs that look other than before.
struct Printer<'a> {
    seen: BTreeMap<String, Shown>,
    ctx: &'a Context,
}

impl Printer<'_> {
    /// Prints the jobs of a page, the oldest first.
    fn print(&mut self, page: &pages::Page, client: &Client) -> anyhow::Result<()> {
        let jobs: Vec<JobView<'_>> = page.read(client)?;
        for (raw, job) in page.items.iter().zip(&jobs).rev() {
            let now = shown(job);
            if self.seen.get(job.id.as_str()) == Some(&now) {
                continue;
            }
            self.seen.insert(job.id.to_string(), now);
            if self.ctx.json() {
                self.ctx.print(raw)?;
            } else {
                self.ctx.print(row(job, self.ctx.now()))?;
            }
        }
        // Those that change are printed again at worst.
        if self.seen.len() > 100_000 {
            self.seen.clear();
        }
        Ok(())
    }
}

/// A job in one line: `2026-11-26T12:00:00Z  failed  j1  mail  default  2/3  timeout: no answer`.
fn row(job: &JobView<'_>, now: Timestamp) -> String {
    let error = job.error.as_ref().map(output::failure_line).unwrap_or_default();
    let at = job.ended_at.or(job.started_at.filter(|_| job.state == "running")).unwrap_or(now);
    let (id, kind, queue) = (&job.id, &job.r#type, &job.queue);
    let (attempt, most) = (job.attempt, job.max_attempts);
    line(&format!("{at}  {:9}  {id}  {kind}  {queue}  {attempt}/{most}  {error}", job.phase))
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::testing::{FakeServer, SeenRequest, sample};

    fn job(id: &str, phase: &str, attempt: u16) -> serde_json::Value {
        let error = json!({"reason": "timeout", "message": "no\nanswer", "details": null});
        sample::job(json!({"id": id, "phase": phase, "attempt": attempt, "error": error}))
    }

    #[tokio::test]
    async fn only_jobs_that_have_changed_are_printed() {
        let server = FakeServer::answering(|_| (200, json!({}))).await;
        let output = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let cli = server.parsed(&["jobs", "list"]);
        let ctx = Context::captured(cli.global, output.clone());
        let mut printer = Printer { seen: BTreeMap::new(), ctx: &ctx };
        let mut print = |jobs: &[serde_json::Value]| {
            output.lock().clear();
            let page = json!({"jobs": jobs}).to_string();
            printer.print(&serde_json::from_str(&page).unwrap(), &server.client()).unwrap();
            String::from_utf8(output.lock().clone()).unwrap()
        };
        let lines = print(&[job("j2", "ready", 0), job("j1", "running", 1)]);
        let ids: Vec<_> =
            lines.lines().map(|line| line.split("  ").nth(2).unwrap().trim()).collect();
        assert_eq!(ids.len(), 2, "{lines}");
        assert!(lines.find("j1") < lines.find("j2"), "the oldest first: {lines}");
        let lines = print(&[job("j2", "ready", 0), job("j1", "retrying", 1)]);
        assert_eq!(lines.lines().count(), 1, "{lines}");
        assert!(lines.contains("retrying") && lines.contains("timeout: answer"), "{lines}");
    }

    #[tokio::test]
    async fn a_refused_stream_ends_the_command() {
        let server = FakeServer::answering(|seen| {
            if seen.path.starts_with("/v1/stream") {
                return (403, json!({"title": "Forbidden", "status": 403, "detail": "no scope"}));
            }
            (200, json!({"jobs": [job("j1", "ready", 0)]}))
        })
        .await;
        let (code, out) = server.run(&["jobs", "list", "--follow", "--queue", "mail"]).await;
        assert_eq!(code, crate::cli::ExitCode::Refused);
        assert!(out.contains("j1"), "{out}");
        let lines: Vec<String> = server.seen().iter().map(SeenRequest::line).collect();
        let expected = ["GET /v1/jobs?queue=mail&limit=100", "GET /v1/stream?queue=mail"];
        assert_eq!(lines, expected);
    }
}
