//! What the server knows of this worker: its capacity, and when it leaves.

use std::time::Duration;

use tokio::sync::watch;

use super::worker::{MAX_BACKOFF, MIN_BACKOFF};
use crate::cli::{
    client::Client,
    context::{pause, print_error},
};
use tidegate_api::RegistrationBody;

/// The longest wait for the answer to the last request.
const MAX_LEAVE_TIME: Duration = Duration::from_secs(2);

/// Registers the capacity of `worker`, and again whenever it is sent.
pub(super) async fn register(client: Client, worker: String, mut capacity: watch::Receiver<usize>) {
    loop {
        let limit = *capacity.borrow_and_update();
        let body = RegistrationBody { capacity: u32::try_from(limit).ok() };
        let mut wait = MIN_BACKOFF;
        while let Err(err) = client.put(&["workers", &worker]).json(&body).send().await {
            if !err.passes() {
                print_error(format_args!("the capacity of {worker} was not registered: {err}"));
                break;
            }
            pause(wait).await;
            wait = (wait * 2).min(MAX_BACKOFF);
        }
        if capacity.changed().await.is_err() {
            return;
        }
    }
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
