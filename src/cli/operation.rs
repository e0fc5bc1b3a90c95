//! The progress of a bulk operation, until it ends.
//!
//! The operation runs in the server: it continues if the program ends early.

use std::time::Duration;

use tidegate_api::{OperationView, SkippedJob};
use tidegate_core::job::JobId;

use super::{
    Context, ExitCode,
    client::{ApiResponse, Client},
    context::{pause, print_error},
    jobs::warn_of_unreadable,
    safe::line,
};

/// The longest wait between two requests for the state.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Waits for the end of the operation that `answer` started, and prints its outcome.
///
/// # Errors
///
/// The server is unreachable or does not know the operation.
pub async fn follow(
    client: &Client,
    mut answer: ApiResponse,
    what: &'static str,
    ctx: &Context,
) -> anyhow::Result<ExitCode> {
    let mut operation = answer.read::<OperationView>()?.operation;
    let bar = ctx.progress(operation.matched, what);
    let mut wait = Duration::from_millis(50);
    while matches!(operation.state.as_str(), "pending" | "running") {
        pause(wait).await;
        wait = (wait * 2).min(MAX_POLL_INTERVAL);
        answer = client.get(&["operations", &operation.id]).send().await?;
        operation = answer.read::<OperationView>()?.operation;
        bar.set_length(operation.matched);
        bar.set_position(operation.done + operation.refused + operation.skipped);
    }
    bar.finish_and_clear();
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        let skipped = match operation.skipped {
            0 => String::new(),
            skipped => format!(", {skipped} skipped"),
        };
        let would = if operation.dry_run { "dry run, would have " } else { "" };
        ctx.print(format_args!(
            "{would}{what} {} of {} jobs, {} refused{skipped}",
            operation.done, operation.matched, operation.refused
        ))?;
        if !operation.sample.is_empty() {
            let ids: Vec<&str> = operation.sample.iter().map(JobId::as_str).collect();
            ctx.print(format_args!("for example {}", ids.join(", ")))?;
        }
        for SkippedJob { id, reason, holder } in &operation.skipped_jobs {
            ctx.print(format_args!("{id} is skipped: {}, {holder}", line(reason)))?;
        }
        if let Some(error) = &operation.error {
            print_error(format_args!("error: the operation stopped: {error}"));
        }
    }
    warn_of_unreadable(&operation.unreadable);
    let whole =
        operation.refused == 0 && operation.unreadable.is_empty() && operation.state != "failed";
    Ok(if whole { ExitCode::Ok } else { ExitCode::Refused })
}
