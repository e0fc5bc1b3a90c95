//! The desired workers of the queues, which a worker with `--concurrency auto` follows.

use std::{collections::BTreeSet, mem, sync::Arc};

use tokio::sync::watch;

use super::WorkPlan;
use crate::cli::{
    client::{Client, Error},
    context::{pause, print_error},
};
use tidegate_api::{JobTypeView, QueueStatus, QueueView};

/// Polls the desired workers of the plan's queues, between 1 and the maximum. Ends if the token
/// does not allow it.
pub(super) async fn follow(client: Client, plan: Arc<WorkPlan>, demanded: watch::Sender<usize>) {
    let mut printed = None;
    loop {
        match demand(&client, &plan).await {
            Ok(desired) => {
                printed = None;
                // At least one lease request keeps the queue aware of this worker.
                let desired =
                    usize::try_from(desired).unwrap_or(usize::MAX).clamp(1, plan.concurrency);
                demanded.send_if_modified(|limit| mem::replace(limit, desired) != desired);
            }
            // The scopes and bounds of a token never change.
            Err(err) if is_forbidden(&err) => {
                print_error(format_args!(
                    "the worker runs one command at a time: --concurrency auto reads the types and \
                     their queues, which needs the scope read, and no bound to types: {err}"
                ));
                return;
            }
            Err(err) => {
                let problem = err.to_string();
                if printed.as_ref() != Some(&problem) {
                    print_error(format_args!(
                        "the number of desired workers is unknown: {problem}"
                    ));
                    printed = Some(problem);
                }
            }
        }
        pause(plan.poll_interval).await;
    }
}

/// Whether the token does not allow the request.
fn is_forbidden(err: &Error) -> bool {
    matches!(err, Error::Problem(problem) if problem.status == 403)
}

/// Returns this worker's share of the desired workers of a queue: what each of its workers takes,
/// if all take the same. Rounded up, so that together they take no less than is desired.
fn share(status: &QueueStatus) -> u64 {
    status.desired_workers.div_ceil(status.workers.max(1))
}

/// Returns the share of this worker of the desired workers of the plan's queue, or of the queues of
/// its types.
async fn demand(client: &Client, plan: &WorkPlan) -> Result<u64, Error> {
    let mut queues: BTreeSet<String> = plan.queue.iter().map(ToString::to_string).collect();
    if queues.is_empty() {
        for name in &plan.types {
            let answer = client.get(&["job-types", name.as_str()]).send().await?;
            queues.insert(answer.read::<JobTypeView<'_>>()?.queue().to_owned());
        }
    }
    let mut desired = 0;
    for queue in &queues {
        let found = client.get(&["queues", queue]).send().await?.read::<QueueView<'_>>()?;
        desired += found.status.map_or(1, |status| share(&status));
    }
    Ok(desired)
}
