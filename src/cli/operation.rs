//! Following a bulk change that the server does in the background, until it is over.
//!
//! The change does not depend on being followed: ending the program early leaves it running.

use std::time::Duration;

use super::{
    Context, ExitCode,
    client::{Answer, Client},
    context::{pause, print_error},
    wire::Operating,
};

/// The longest wait between two looks.
const SLOWEST: Duration = Duration::from_secs(1);

/// Follows the operation that `answer` started, and tells how it ended.
///
/// # Errors
///
/// The server is away or does not know the operation.
pub async fn follow(
    client: &Client,
    mut answer: Answer,
    what: &'static str,
    ctx: &Context,
) -> anyhow::Result<ExitCode> {
    let mut operation = answer.read::<Operating>()?.operation;
    let bar = ctx.progress(operation.matched, what);
    let mut wait = Duration::from_millis(50);
    while matches!(operation.state.as_str(), "pending" | "running") {
        pause(wait).await;
        wait = (wait * 2).min(SLOWEST);
        answer = client.get(&["operations", &operation.id]).send().await?;
        operation = answer.read::<Operating>()?.operation;
        bar.set_length(operation.matched);
        bar.set_position(operation.done + operation.refused);
    }
    bar.finish_and_clear();
    if ctx.json() {
        ctx.print_body(&answer.body)?;
    } else {
        ctx.print(format_args!(
            "{what} {} of {} jobs, {} refused",
            operation.done, operation.matched, operation.refused
        ))?;
        if let Some(error) = &operation.error {
            print_error(format_args!("error: the operation stopped: {error}"));
        }
    }
    let whole = operation.refused == 0 && operation.state != "failed";
    Ok(if whole { ExitCode::Ok } else { ExitCode::Refused })
}
