//! `tidegate jobs list`.

use super::{filter::Filter, follow, warn_of_unreadable};
use crate::cli::{Context, ExitCode, output, pages};
use tidegate_api::JobView;
use tidegate_core::{job::JobSort, time::Timestamp};

/// The options of `tidegate jobs list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The maximum number of jobs.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Then print a line for each matching job that changes, until Ctrl-C; with `--json`, all jobs
    /// as lines.
    #[arg(long, short)]
    follow: bool,
    /// Sort the matching jobs, at most 10,000, by `created_at`, `run_at`, `started_at`, `ended_at`,
    /// `duration`, `wait`, `attempt` or `priority`; after `-` the largest comes first.
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true, conflicts_with = "follow")]
    sort: Option<JobSort>,
    #[command(flatten)]
    filter: Filter,
}

/// Lists the matching jobs.
///
/// # Errors
///
/// The server is unreachable or rejects the request.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    // One instant for all pages, so that they are pages of one list.
    let now = ctx.now();
    let page = pages::collect(
        |client| {
            let request = args.filter.query(client.get(&["jobs"]), now);
            match args.sort {
                Some(sort) => request.query("sort", &sort.to_string()),
                None => request,
            }
        },
        &client,
        args.limit as usize,
    )
    .await?;
    if ctx.json() && args.follow {
        for job in page.items.iter().rev() {
            ctx.print(job)?;
        }
    } else if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
    } else if page.items.is_empty() {
        ctx.note("no jobs");
    } else {
        ctx.print_tables(render(ctx.look, &page.read(&client)?, now))?;
        if page.next_cursor.is_some() {
            ctx.note(format_args!("there are more than {}; see --limit", args.limit));
        }
    }
    if let Some(sorted) = page.sorted.filter(|sorted| !sorted.complete) {
        ctx.note(format_args!(
            "sorted among {} matching jobs; there are more: add conditions",
            sorted.compared
        ));
    }
    warn_of_unreadable(&page.unreadable);
    if args.follow {
        follow::run(&args.filter, &page.read(&client)?, args.limit, (&client, now), ctx).await?;
    }
    Ok(ExitCode::Ok)
}

pub fn render(look: output::OutputStyle, jobs: &[JobView<'_>], now: Timestamp) -> String {
    let rows = jobs.iter().map(|job| {
        // The instant that matters most in the job's state: its end, its start, its due time.
        let started_at = job.started_at.filter(|_| job.state == "running");
        let at = job.ended_at.or(started_at).unwrap_or(job.run_at);
        [
            job.id.to_string(),
            job.r#type.to_string(),
            job.queue.to_string(),
            job.phase.to_string(),
            format!("{}/{}", job.attempt, job.max_attempts),
            job.priority.to_string(),
            output::when(at, now),
            job.error.as_ref().map(output::failure_line).unwrap_or_default(),
        ]
    });
    output::table(
        look,
        ["id", "type", "queue", "phase", "attempt", "priority", "when", "error"],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::testing::{FakeServer, sample};

    #[test]
    fn list_shows_the_phase_of_each_job() {
        let jobs = [
            json!({"phase": "retrying", "attempt": 1, "run_at": "2001-09-09T01:46:45Z"}),
            json!({"id": "j2", "state": "running", "attempt": 1, "priority": 5,
                "run_at": "2001-09-09T01:40:00Z", "started_at": "2001-09-09T01:46:30Z"}),
            json!({"id": "j3", "type": "invoice", "queue": "slow", "state": "failed", "attempt": 3,
                "ended_at": "2001-09-09T01:44:40Z",
                "error": {"reason": "failed", "message": "trace\nboom\n", "details": null}}),
        ];
        let jobs =
            jobs.map(|changes| serde_json::from_str(&sample::job(changes).to_string()).unwrap());
        insta::assert_snapshot!(render(
            output::OutputStyle::default(),
            &jobs,
            Timestamp::from_millis(1_000_000_000_000)
        ));
    }

    #[tokio::test]
    async fn a_sorted_list_notes_that_it_is_not_whole() {
        let server = FakeServer::answering(|_| {
            let jobs = [sample::job(json!({}))];
            (200, json!({"jobs": jobs, "sorted": {"compared": 10_000, "complete": false}}))
        })
        .await;
        let (code, out) = server.run(&["jobs", "list", "--sort", "-duration", "--json"]).await;
        assert_eq!(code, ExitCode::Ok);
        assert!(out.contains(r#""sorted":{"compared":10000,"complete":false}"#), "{out}");
        assert_eq!(server.seen()[0].line(), "GET /v1/jobs?sort=-duration&limit=100");
    }

    #[tokio::test]
    async fn pages_are_followed_until_the_limit() {
        let server = FakeServer::answering(|seen| {
            let page: Vec<_> = (0..1000).map(|n| json!({"id": format!("j{n}")})).collect();
            let limit: usize = seen
                .path
                .split("limit=")
                .nth(1)
                .unwrap()
                .split('&')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            (200, json!({"jobs": page[..limit], "next_cursor": "c"}))
        })
        .await;
        let args = [
            "jobs",
            "list",
            "--limit",
            "2500",
            "--type",
            "mail",
            "--state",
            "failed,expired",
            "--phase",
            "failed,ready",
            "--attribute",
            "region=east",
            "--json",
        ];
        let (code, out) = server.run(&args).await;
        assert_eq!(code, ExitCode::Ok);
        let body: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (body["jobs"].as_array().unwrap().len(), &body["next_cursor"]),
            (2500, &json!("c"))
        );
        let paths: Vec<String> = server.seen().into_iter().map(|seen| seen.path).collect();
        let filter =
            "type=mail&state=failed%2Cexpired&phase=failed%2Cready&attribute%5Bregion%5D=east";
        let pages = ["limit=1000", "limit=1000&cursor=c", "limit=500&cursor=c"];
        assert_eq!(paths, pages.map(|page| format!("/v1/jobs?{filter}&{page}")));
    }
}
