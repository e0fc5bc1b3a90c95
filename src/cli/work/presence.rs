//! What the server knows of this worker: its registration, and when it leaves.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{
    WorkPlan,
    worker::{MAX_BACKOFF, MIN_BACKOFF},
};
use crate::cli::{
    client::Client,
    context::{pause, print_error},
};
use tidegate_api::RegistrationBody;

/// The longest wait for the answer to the last request.
const MAX_LEAVE_TIME: Duration = Duration::from_secs(2);

/// The interval in which a registration is renewed. The server counts a worker for a minute, so
/// one of them may be late.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(30);

/// Most types of a registration.
const MAX_TYPES: usize = 100;

/// Registers the worker of `plan` with the latest capacity, and renews that until the sender of
/// capacities is gone. A registration that the server refuses is not repeated with the same
/// capacity.
pub(super) async fn register(
    client: Client,
    plan: Arc<WorkPlan>,
    mut capacity: watch::Receiver<usize>,
) {
    let worker = plan.worker.as_str();
    loop {
        let limit = *capacity.borrow_and_update();
        let body = RegistrationBody {
            capacity: u32::try_from(limit).ok(),
            queue: plan.queue.clone(),
            types: Some(plan.types.clone()).filter(|types| (1..=MAX_TYPES).contains(&types.len())),
        };
        let is_registered = send(&client, worker, &body).await;
        tokio::select! {
            changed = capacity.changed() => if changed.is_err() {
                return;
            },
            () = pause(RENEWAL_INTERVAL), if is_registered => {}
        }
    }
}

/// Sends a registration until the server answers. Returns whether it accepted it.
async fn send(client: &Client, worker: &str, body: &RegistrationBody) -> bool {
    let mut wait = MIN_BACKOFF;
    while let Err(err) = client.put(&["workers", worker]).json(body).send().await {
        if !err.passes() {
            print_error(format_args!("{worker} was not registered: {err}"));
            return false;
        }
        pause(wait).await;
        wait = (wait * 2).min(MAX_BACKOFF);
    }
    true
}

/// Asks the server to end the waiting lease request of `worker`, until the request has ended.
pub(super) async fn end_wait(client: Client, worker: String) {
    let mut wait = MIN_BACKOFF;
    loop {
        // A refusal changes nothing: the lease request ends by itself.
        let _ = client.delete(&["workers", &worker]).query("keep_drain", "true").send().await;
        pause(wait).await;
        wait = (wait * 2).min(MAX_BACKOFF);
    }
}

/// Removes `worker` from the server's list. A drain stays.
pub(super) async fn leave(client: &Client, worker: &str) {
    let leaving = client.delete(&["workers", worker]).query("keep_drain", "true").send();
    // Without an answer the server forgets the worker after ten minutes.
    let _ = tokio::time::timeout(MAX_LEAVE_TIME, leaving).await;
}
