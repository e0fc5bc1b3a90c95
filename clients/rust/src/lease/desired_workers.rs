//! How many jobs a handler runs at once that follows the desired workers of its queues.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde::Deserialize;
use tidegate_api::QueueStatus;
use tokio::time::sleep;

use super::LeaseLoop;
use crate::{
    error::{Error, ErrorKind},
    transport::{Request, path},
};

/// How often the desired workers are read.
const FOLLOW_TIME: Duration = Duration::from_secs(5);

impl LeaseLoop {
    /// Follows the desired workers of the types' queues, between 1 and the concurrency. Ends if the
    /// token does not allow it.
    pub async fn follow(self: Arc<Self>) {
        loop {
            match self.desired().await {
                Ok(desired) => {
                    // At least one lease request keeps the queue aware of this worker.
                    let desired = usize::try_from(desired).unwrap_or(usize::MAX);
                    let desired = desired.clamp(1, self.handler.concurrency);
                    let mut state = self.state();
                    let has_changed = state.limit != desired;
                    state.limit = desired;
                    drop(state);
                    if has_changed {
                        self.shared.recount.notify_one();
                        self.changed.notify_one();
                    }
                }
                // The scopes and bounds of a token never change.
                Err(err) if err.kind() == ErrorKind::Forbidden => {
                    tracing::warn!(
                        error = %err,
                        "the handler runs one job at a time: auto needs the scope read, and no \
                         bound to types"
                    );
                    return;
                }
                Err(err) => tracing::info!(error = %err, "the desired workers are unknown"),
            }
            sleep(FOLLOW_TIME).await;
        }
    }

    /// This worker's share of the desired workers: what each worker of a queue takes, if all take
    /// the same. Rounded up, so that together they take no less than is desired.
    async fn desired(&self) -> Result<u64, Error> {
        #[derive(Deserialize)]
        struct InQueue {
            queue: String,
        }
        #[derive(Deserialize)]
        struct WithStatus {
            status: Option<QueueStatus>,
        }
        let client = &self.shared.client;
        let mut queues = BTreeSet::new();
        for name in &self.handler.job_types {
            let job_type = client.request(Request::get(path(&["job-types", name]))).await?;
            let InQueue { queue } = job_type.read()?;
            queues.insert(queue);
        }
        let mut sum = 0;
        for queue in queues {
            let queue = client.request(Request::get(path(&["queues", &queue]))).await?;
            let WithStatus { status } = queue.read()?;
            let share =
                |status: QueueStatus| status.desired_workers.div_ceil(status.workers.max(1));
            sum += status.map_or(1, share);
        }
        Ok(sum)
    }
}
