//! `tidegate jobs log`: the log lines of a job, up to now or as they come.

use std::time::Duration;

use super::one::type_of;
use crate::cli::{Context, ExitCode, context::print_error, safe::line};
use tidegate_api::{LogLine, LogPage};

/// How long one request of `--follow` waits for lines.
const WAIT: Duration = Duration::from_secs(20);
/// Most lines of one request.
const MAX_PAGE_LINES: &str = "1000";

/// The options of `tidegate jobs log`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The job's id.
    id: String,
    /// Only lines of this attempt.
    #[arg(long, value_name = "N")]
    attempt: Option<u16>,
    /// Print further lines as they come, until the job has ended.
    #[arg(long, short)]
    follow: bool,
}

/// Prints the lines, oldest first.
///
/// # Errors
///
/// There is no such job, or the server is unreachable or rejects the request.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let job_type = type_of(&client, &args.id).await?;
    let mut cursor: Option<String> = None;
    loop {
        let request = client.get(&["jobs", &job_type, &args.id, "log"]);
        let mut request = request.query("limit", MAX_PAGE_LINES);
        if let Some(cursor) = &cursor {
            request = request.query("cursor", cursor);
        }
        if let Some(attempt) = args.attempt {
            request = request.query("attempt", &attempt.to_string());
        }
        if args.follow {
            request = request.wait(WAIT).query("wait", &WAIT.as_secs().to_string());
        }
        let page: LogPage = request.send().await?.read()?;
        if page.dropped > 0 {
            print_error(format_args!("{} lines are no longer kept", page.dropped));
        }
        for entry in &page.lines {
            if ctx.json() {
                ctx.print(serde_json::to_string(entry)?)?;
            } else {
                ctx.print(shown(entry))?;
            }
        }
        let Some(next) = page.next_cursor else { return Ok(ExitCode::Ok) };
        if !args.follow && next == cursor.as_deref().unwrap_or("0") {
            return Ok(ExitCode::Ok);
        }
        cursor = Some(next);
    }
}

/// A line as people read it: `2026-11-26T12:00:00Z  2  warn  the disk is full {"free":0}`.
fn shown(entry: &LogLine) -> String {
    let LogLine { time, attempt, level, text, fields, cut, .. } = entry;
    let mut shown = format!("{time}  {attempt}  {:5}  {}", level.as_str(), line(text));
    if !fields.is_empty() {
        shown = shown + " " + &line(&serde_json::Value::from(fields.clone()).to_string());
    }
    if *cut { shown + " [cut]" } else { shown }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cli::{
        ExitCode,
        testing::{FakeServer, sample},
    };

    #[tokio::test]
    async fn lines_are_printed_page_by_page() {
        let server = FakeServer::answering(|seen| {
            if !seen.path.contains("/log?") {
                return (200, sample::job(json!({"id": "j"})));
            }
            if seen.path.contains("cursor=5") {
                return (200, json!({"lines": [], "dropped": 0, "next_cursor": "5"}));
            }
            // A page whose lines are of other attempts.
            if !seen.path.contains("cursor") {
                return (200, json!({"lines": [], "dropped": 0, "next_cursor": "3"}));
            }
            let line = json!({
                "number": 4, "attempt": 2, "time": "1970-01-01T00:00:01Z", "level": "warn",
                "text": "full\u{1b}[2J", "fields": {"free": 0}, "cut": true,
            });
            (200, json!({"lines": [line], "dropped": 4, "next_cursor": "5"}))
        })
        .await;
        let (code, out) = server.run(&["jobs", "log", "j", "--attempt", "2"]).await;
        assert_eq!(code, ExitCode::Ok, "{out}");
        assert!(out.contains("1970-01-01T00:00:01.000Z  2  warn   full"), "{out}");
        assert!(out.contains(r#"{"free":0} [cut]"#) && !out.contains('\u{1b}'), "{out}");
        let seen = server.seen();
        assert_eq!(seen.len(), 4);
        assert!(seen[1].line().ends_with("log?limit=1000&attempt=2"), "{}", seen[1].line());
    }
}
