//! Where the deployment modes differ: the verbs reach a queue's task or the outbox only from here.
//!
//! | what must follow | embedded | serverless |
//! |---|---|---|
//! | a queue must tick | message to its task | hint in the outbox |
//! | jobs are new or changed | message to the queue's task | message in the outbox |
//! | reports | commit of the queue's task | commit of this call |
//! | a lease | demand to the tasks, which wake the call | ticks of this call, repeated |
//! | a bulk operation | task of this process | hint in the outbox |
//! | a changed schedule | wakes the schedules' task | materializes what is due soon |

use std::sync::Arc;

use super::{
    Inner, Server,
    bulk::StoredOperation,
    embedded::{self, queue_task::QueueSnapshot, queue_task::TaskMessage},
    lease::QueueSelection,
    serverless::{self, NEAR},
};
use tidegate_core::{
    job::{Job, QueueName, Version},
    time::Timestamp,
};
use tidegate_engine::{
    Catalog, Error,
    request::{LeaseRequest, Leased, Report},
};

impl Inner {
    /// Whether the server runs no tasks and publishes follow-up messages instead.
    pub(super) fn is_serverless(&self) -> bool {
        self.serverless.is_some()
    }

    /// Requests a tick of `queue`.
    pub(super) fn wake(self: &Arc<Self>, queue: &QueueName) {
        match &self.serverless {
            Some(serverless) => serverless.outbox.queue_due(queue),
            None => self.queue(queue).send(TaskMessage::Wake),
        }
    }

    /// Announces jobs that are new to their queues.
    pub(super) fn on_enqueued<'a>(self: &Arc<Self>, jobs: impl IntoIterator<Item = &'a Job>) {
        match &self.serverless {
            Some(serverless) => {
                jobs.into_iter().for_each(|job| serverless.outbox.job_changed(job, None));
            }
            None => self.notify_queues(jobs.into_iter().map(|job| &job.spec.queue)),
        }
    }

    /// Announces that a job left `version`, at which it may hold a grant.
    pub(super) fn on_version_left(self: &Arc<Self>, job: &Job, version: Version) {
        match &self.serverless {
            Some(serverless) => serverless.outbox.job_changed(job, Some(version)),
            None => {
                self.queue(&job.spec.queue).send(TaskMessage::Released(job.id.clone(), version));
            }
        }
    }

    /// What the latest ticks of `queue` showed.
    pub(super) async fn queue_snapshot(
        self: &Arc<Self>,
        queue: &QueueName,
    ) -> Result<QueueSnapshot, Error> {
        match &self.serverless {
            Some(_) => serverless::snapshot(&self.engine, queue).await,
            None => Ok(self.queue(queue).snapshot()),
        }
    }

    /// Whether a worker, a handler or a push slot can take `job` now.
    ///
    /// A serverless process does not know the workers of other processes, so there it is `true`.
    pub(super) fn has_capacity_for(self: &Arc<Self>, job: &Job, catalog: &Catalog) -> bool {
        self.is_serverless() || embedded::has_capacity_for(self, job, catalog)
    }
}

impl Server {
    /// Settles reports by queue: for each batch its results in order; too few if the store failed.
    pub(super) async fn settle(
        &self,
        batches: Vec<(QueueName, Vec<Report>)>,
    ) -> Vec<Vec<Result<Job, Error>>> {
        if !self.inner.is_serverless() {
            return self.settle_in_tasks(batches).await;
        }
        let mut settled = Vec::with_capacity(batches.len());
        for (queue, batch) in batches {
            settled.push(self.settle_serverless(&queue, batch).await);
        }
        settled
    }

    /// Leases from `selections` until there is a job or `until`, and settles the request's reports.
    pub(super) async fn lease_from(
        &self,
        selections: Vec<QueueSelection>,
        request: LeaseRequest,
        until: Timestamp,
    ) -> Result<Leased, Error> {
        if self.inner.is_serverless() {
            Box::pin(self.lease_serverless(selections, request, until)).await
        } else {
            self.lease_embedded(selections, request, until).await
        }
    }

    /// Continues a bulk operation in the background.
    pub(super) fn continue_operation(&self, stored: StoredOperation) {
        match &self.inner.serverless {
            Some(serverless) => serverless.outbox.operation_left(&stored.operation.id),
            None => self.spawn_operation(stored),
        }
    }

    /// Applies changed schedules.
    ///
    /// A serverless server materializes here what is due before the next maintenance sweep.
    pub(super) async fn apply_schedules(&self) -> Result<(), Error> {
        self.inner.rescheduled.notify_one();
        if self.inner.is_serverless() {
            self.inner.on_materialized(&self.inner.engine.materialize(NEAR).await?);
        }
        Ok(())
    }
}
