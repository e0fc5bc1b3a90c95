//! `tidegate top`: the overview of the queues, live, with keys to pause, explain and look into one.
//!
//! ```text
//!   keys ─▶ Screen::press ─▶ request ─▶ Screen ─▶ lines ─▶ terminal
//!   time ─▶ GET /v1/overview ────────────▲
//! ```
//!
//! [`screen`] decides what a key means and what is shown; it is pure. [`terminal`] draws and reads
//! keys.

mod screen;
mod terminal;

use std::{io::IsTerminal as _, time::Duration};

use tokio::sync::mpsc;

use self::{
    screen::{Ask, Key, Screen, table},
    terminal::Terminal,
};
use super::{Context, ExitCode, client::Client, context::pause, jobs, pages, queues};
use tidegate_api::{ErrorPage, JobView, QueueOverview};

/// Jobs that are shown of a queue.
const SHOWN_JOBS: &str = "100";

/// The options of `tidegate top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Keys:\n  \
    arrows, j, k  select a queue\n  \
    enter         its latest errors and jobs\n  \
    e             why it is idle or slow\n  \
    p             pause or resume it, after a question\n  \
    esc           back\n  \
    q             quit\n\n\
    Example:\n  tidegate top --once")]
pub struct Args {
    /// Print one table and exit, as without a terminal.
    #[arg(long)]
    once: bool,
    /// Only queues whose name begins with this.
    #[arg(long)]
    prefix: Option<String>,
    /// Seconds between two reads, 1 to 3600.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,
}

/// Shows the queues until the user quits.
///
/// # Errors
///
/// The server is unreachable at the first read, or refuses it; the terminal cannot be used.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let prefix = args.prefix.as_deref();
    if ctx.json() {
        ctx.print(serde_json::to_string(&page(&client, prefix).await?)?)?;
        return Ok(ExitCode::Ok);
    }
    let queues = read(&client, prefix).await?;
    if args.once || !ctx.is_terminal() || !std::io::stdin().is_terminal() {
        ctx.print_tables(table(ctx.look, &queues, ctx.now()))?;
        return Ok(ExitCode::Ok);
    }
    let (mut terminal, mut keys) = Terminal::open()?;
    let mut screen = Screen::new(client.base().to_string());
    screen.refresh(Ok(queues), ctx.now());
    let every = Duration::from_secs(args.interval.into());
    loop {
        terminal.draw(&screen.lines(Terminal::size(), ctx.now()))?;
        let Some(key) = key_within(&mut keys, every).await else {
            let queues = read(&client, prefix).await.map_err(|error| format!("{error:#}"));
            screen.refresh(queues, ctx.now());
            continue;
        };
        let ask = screen.press(key);
        if ask == Ask::Quit {
            return Ok(ExitCode::Ok);
        }
        answer(&mut screen, ask, &client, prefix, ctx).await;
    }
}

/// The next key, if one is pressed within this time. A closed terminal is the key to quit.
async fn key_within(keys: &mut mpsc::Receiver<Key>, time: Duration) -> Option<Key> {
    tokio::select! {
        key = keys.recv() => Some(key.unwrap_or(Key::Quit)),
        () = pause(time) => None,
    }
}

/// Does what the screen asks for.
async fn answer(
    screen: &mut Screen,
    ask: Ask,
    client: &Client,
    prefix: Option<&str>,
    ctx: &Context,
) {
    let done = match ask {
        Ask::Nothing | Ask::Quit => return,
        Ask::Explain(queue) => explanation(client, &queue, ctx).await.map(|text| {
            screen.show(format!("Why {queue} is idle or slow"), &text);
        }),
        Ask::Open(queue) => jobs_of(client, &queue, ctx).await.map(|text| {
            screen.show(format!("Errors and jobs of {queue}"), &text);
        }),
        Ask::SetPaused(queue, paused) => {
            let verb = if paused { "pause" } else { "resume" };
            let done = client.post(&["queues", &queue, verb]).send().await;
            if done.is_ok() {
                let queues = read(client, prefix).await.map_err(|error| format!("{error:#}"));
                screen.refresh(queues, ctx.now());
                screen.note(format!("{queue} is {verb}d"));
            }
            done.map(drop).map_err(Into::into)
        }
    };
    if let Err(error) = done {
        screen.note(format!("{error:#}"));
    }
}

/// All pages of the overview.
async fn page(client: &Client, prefix: Option<&str>) -> anyhow::Result<pages::Page> {
    let request = |client| {
        let request = Client::get(client, &["overview"]);
        match prefix {
            Some(prefix) => request.query("prefix", prefix),
            None => request,
        }
    };
    Ok(pages::collect(request, client, usize::MAX).await?)
}

/// The queues of the overview.
async fn read(client: &Client, prefix: Option<&str>) -> anyhow::Result<Vec<QueueOverview>> {
    Ok(page(client, prefix).await?.read(client)?)
}

async fn explanation(client: &Client, queue: &str, ctx: &Context) -> anyhow::Result<String> {
    let answer = client.get(&["queues", queue, "explain"]).send().await?;
    Ok(queues::render_explanation(screen::LOOK, &answer.read()?, ctx.now()))
}

async fn jobs_of(client: &Client, queue: &str, ctx: &Context) -> anyhow::Result<String> {
    let errors: ErrorPage = client.get(&["errors"]).query("queue", queue).send().await?.read()?;
    let request = |client| Client::get(client, &["jobs"]).query("queue", queue);
    let jobs = pages::collect(request, client, SHOWN_JOBS.parse()?).await?;
    let jobs: Vec<JobView<'_>> = jobs.read(client)?;
    let errors = jobs::render_errors(screen::LOOK, &errors.errors, ctx.now());
    let jobs = jobs::render_jobs(screen::LOOK, &jobs, ctx.now());
    Ok(format!("{errors}\n\n{jobs}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::cli::{ExitCode, testing::FakeServer};

    fn overview(name: &str) -> Value {
        json!({
            "name": name, "paused": false, "concurrency": 5, "phases": {"ready": 7, "running": 2},
            "counted_at": null, "depth_at_least": false, "running_weight": 2,
            "oldest_due_at": null, "held": [], "desired_workers": 3, "workers": 1,
            "start_delay_seconds": {"p50": 0.25, "p95": 1.0, "p99": 2.0},
            "throughput": {
                "over_seconds": 300.0, "enqueued_per_second": 1.0, "finished_per_second": 0.5,
                "failed_per_second": 0.0,
            },
            "minutes": [],
        })
    }

    #[tokio::test]
    async fn without_a_terminal_one_table_of_all_pages_is_printed() {
        let server = FakeServer::answering(|seen| {
            let is_first = !seen.path.contains("cursor=");
            let queues = [overview(if is_first { "mail" } else { "sms" })];
            let cursor = is_first.then_some("mail");
            (200, json!({"at": "2026-01-01T00:00:00Z", "queues": queues, "next_cursor": cursor}))
        })
        .await;
        let (code, out) = server.run(&["top", "--prefix", "m"]).await;
        assert_eq!(code, ExitCode::Ok);
        assert!(out.contains("mail") && out.contains("sms") && out.contains("2/5"), "{out}");
        assert_eq!(server.seen()[0].line(), "GET /v1/overview?prefix=m&limit=1000");
        let (_, json) = server.run(&["top", "--json"]).await;
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["queues"].as_array().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn an_unreachable_server_is_reported_at_the_start() {
        let server = FakeServer::answering(|_| (503, json!({"title": "Unavailable"}))).await;
        assert_eq!(server.run(&["top", "--once"]).await.0, ExitCode::Refused);
    }
}
