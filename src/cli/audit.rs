//! `tidegate audit`: which token changed what, and when.

use tidegate_api::AuditEntry;
use tidegate_core::time::Timestamp;

use super::{
    Context, ExitCode,
    output::{self, OutputStyle},
    pages,
    safe::line,
};

/// The options of `tidegate audit`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// At most this many entries, newest first.
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

/// Lists the audit log.
///
/// # Errors
///
/// The server is unreachable or rejects the request.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<ExitCode> {
    let client = ctx.client()?;
    let page = pages::collect(|client| client.get(&["audit"]), &client, args.limit).await?;
    if ctx.json() {
        ctx.print(serde_json::to_string(&page)?)?;
    } else {
        let entries: Vec<AuditEntry> = page.read(&client)?;
        ctx.print_tables(render(ctx.look, &entries, ctx.now()))?;
    }
    Ok(ExitCode::Ok)
}

fn render(look: OutputStyle, entries: &[AuditEntry], now: Timestamp) -> String {
    let rows = entries.iter().map(|entry| {
        let query = entry.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
        [
            output::when(entry.at, now),
            line(&entry.caller),
            line(&entry.action),
            line(&format!("{}{query}", entry.path)),
            entry.with.as_ref().map_or_else(output::dash, |with| line(&with.to_string())),
        ]
    });
    output::table(look, ["when", "caller", "action", "path", "with"], rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::testing::FakeServer;

    #[tokio::test]
    async fn the_audit_log_is_listed_page_by_page() {
        let server = FakeServer::answering(|seen| {
            let entry = |action: &str| {
                json!({
                    "at": "2001-09-09T01:44:40Z", "caller": "ops", "action": action,
                    "path": "/v1/queues/mail", "status": 200, "request_id": "r1",
                    "with": {"concurrency": 5},
                })
            };
            if seen.line().contains("cursor") {
                (200, json!({"entries": [entry("pause_queue")]}))
            } else {
                (200, json!({"entries": [entry("put_queue")], "next_cursor": "c"}))
            }
        })
        .await;
        let (code, out) = server.run(&["audit"]).await;
        assert_eq!(code, ExitCode::Ok);
        for part in ["ops", "put_queue", "pause_queue", "/v1/queues/mail", "{\"concurrency\":5}"] {
            assert!(out.contains(part), "{part}: {out}");
        }
        assert_eq!(server.seen()[0].line(), "GET /v1/audit?limit=100");
    }
}
