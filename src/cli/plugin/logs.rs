//! `tidegate plugin logs`: the log of a plugin, also while it grows.

use std::time::Duration;

use tidegate_api::{LogView, LogsView};

use super::Named;
use crate::cli::{
    Context, ExitCode,
    client::{ApiResponse, Client, Error},
    context::pause,
    safe::indented,
};

/// The interval between two requests for new lines.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The options of `tidegate plugin logs`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    name: Named,
    /// The maximum number of lines at the start.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Also print new lines as they come, until Ctrl-C.
    #[arg(long)]
    follow: bool,
}

/// Prints the lines.
///
/// # Errors
///
/// The server is unreachable or does not know the plugin.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let name = &args.name.name;
    let mut last = show(&client, name, args.limit, None, args.follow, ctx).await?;
    if !args.follow {
        return Ok(ExitCode::Ok);
    }
    loop {
        pause(POLL_INTERVAL).await;
        last = show(&client, name, 1000, Some(last.unwrap_or_default()), true, ctx).await?.or(last);
    }
}

/// Prints the lines after line `after` and returns the number of the last one, if any.
async fn show(
    client: &Client,
    name: &str,
    limit: u32,
    after: Option<u64>,
    follow: bool,
    ctx: &Context,
) -> anyhow::Result<Option<u64>> {
    let answer = request(client, name, limit, after).await?;
    let logs: LogsView = answer.read()?;
    if ctx.json() && !follow {
        ctx.print_body(&answer.body)?;
        return Ok(None);
    }
    for line in &logs.logs {
        // One object per line, so that a program can read them as they come.
        if ctx.json() { ctx.print(serde_json::to_string(line)?)? } else { ctx.print(text(line))? }
    }
    Ok(logs.logs.last().map(|line| line.number))
}

/// Requests the latest lines, or with `after` the first ones after line `after`: at most `limit`, 1 to
/// 1000.
///
/// # Errors
///
/// The server is unreachable or does not know the plugin.
pub(super) async fn request(
    client: &Client,
    name: &str,
    limit: u32,
    after: Option<u64>,
) -> Result<ApiResponse, Error> {
    let mut request = client.get(&["plugins", name, "logs"]).query("limit", &limit.to_string());
    if let Some(after) = after {
        request = request.query("after", &after.to_string());
    }
    request.send().await
}

/// Returns a line of the log as text.
pub(super) fn text(line: &LogView) -> String {
    format!("{} v{} {:5} {}", line.at, line.version, line.level, indented(&line.message))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use serde_json::json;

    use crate::cli::{ExitCode, testing::FakeServer};

    fn line(number: u64) -> serde_json::Value {
        json!({
            "number": number, "at": "2026-01-01T00:00:00Z", "version": 2, "role": "throttler",
            "level": "info", "message": format!("line {number}"),
        })
    }

    #[tokio::test]
    async fn lines_are_printed_in_order() {
        let server = FakeServer::answering(|_| (200, json!({"logs": [line(1), line(2)]}))).await;
        let (code, out) = server.run(&["plugin", "logs", "share", "--limit", "2"]).await;
        assert_eq!(
            (code, out.as_str()),
            (
                ExitCode::Ok,
                "2026-01-01T00:00:00.000Z v2 info  line 1\n\
                 2026-01-01T00:00:00.000Z v2 info  line 2\n"
            )
        );
        assert_eq!(server.seen()[0].path, "/v1/plugins/share/logs?limit=2");
    }

    #[tokio::test]
    async fn follow_requests_the_lines_after_the_last_one() {
        let asked = AtomicU32::new(0);
        let server = FakeServer::answering(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
            0 => (200, json!({"logs": [line(7)]})),
            1 => (200, json!({"logs": []})),
            2 => (200, json!({"logs": [line(8)]})),
            _ => (404, json!({"title": "Plugin not found", "code": "plugin_not_found"})),
        })
        .await;
        let (code, out) = server.run(&["plugin", "logs", "share", "--follow"]).await;
        assert_eq!(code, ExitCode::NotFound);
        assert!(out.contains("line 7\n") && out.ends_with("line 8\n"), "{out}");
        let after: Vec<String> = server
            .seen()
            .iter()
            .skip(1)
            .map(|seen| seen.path.rsplit('=').next().unwrap().to_owned())
            .collect();
        assert_eq!(after, ["7", "7", "8"]);
    }
}
