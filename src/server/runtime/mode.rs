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
    serverless::{self, NEAR, Serverless},
    shared::OPERATIONS,
    workers::{Presence, Workers},
};
use tidegate_core::{
    job::{Job, QueueName, TypeName, Version},
    time::Timestamp,
};
use tidegate_engine::{
    Catalog, Error,
    request::{LeaseRequest, Leased, Report, WorkerStatus},
};

impl Inner {
    /// Whether the server runs no tasks and publishes follow-up messages instead.
    ///
    /// A program without the feature `embedded` has no other mode. The constant lets the compiler
    /// leave the code of the tasks out of it, a hundredth of a function on AWS; where async code
    /// calls them, `cfg` must, because its resumed states are not known to the compiler.
    #[inline]
    pub(super) fn is_serverless(&self) -> bool {
        cfg!(not(any(test, feature = "embedded"))) || self.serverless.is_some()
    }

    /// The serverless mode, if it is the server's.
    #[inline]
    pub(super) fn serverless(&self) -> Option<&Serverless> {
        self.is_serverless().then(|| self.serverless.as_ref().expect("the mode of the program"))
    }

    /// Requests a tick of `queue`.
    pub(super) fn wake(self: &Arc<Self>, queue: &QueueName) {
        match self.serverless() {
            Some(serverless) => serverless.outbox.queue_due(queue),
            None => self.queue(queue).send(TaskMessage::Wake),
        }
    }

    /// Announces jobs that are new to their queues.
    pub(super) fn on_enqueued<'a>(self: &Arc<Self>, jobs: impl IntoIterator<Item = &'a Job>) {
        match self.serverless() {
            Some(serverless) => {
                jobs.into_iter().for_each(|job| serverless.outbox.job_changed(job, None));
            }
            None => self.notify_queues(jobs.into_iter().map(|job| &job.spec.queue)),
        }
    }

    /// Announces that a job left `version`, at which it may hold a grant.
    pub(super) fn on_version_left(self: &Arc<Self>, job: &Job, version: Version) {
        match self.serverless() {
            Some(serverless) => serverless.outbox.job_changed(job, Some(version)),
            None => {
                self.queue(&job.spec.queue).send(TaskMessage::Released(job.id.clone(), version));
            }
        }
    }

    /// What the latest ticks of `queue` showed.
    ///
    /// Processes that share a store read what runs from the ledger, which others may have changed.
    pub(super) async fn queue_snapshot(
        self: &Arc<Self>,
        queue: &QueueName,
    ) -> Result<QueueSnapshot, Error> {
        if !self.shares_store() {
            return Ok(self.queue(queue).snapshot());
        }
        let QueueSnapshot { running_weight, .. } =
            serverless::snapshot(&self.engine, queue).await?;
        Ok(QueueSnapshot { running_weight, ..self.known_snapshot(queue) })
    }

    /// The status of the workers of each type of `queue`.
    ///
    /// A process that shares its store does not know the workers of others: only what runs.
    pub(super) async fn worker_status(
        self: &Arc<Self>,
        queue: &QueueName,
    ) -> Result<Box<dyn Fn(&TypeName) -> WorkerStatus + Send + Sync>, Error> {
        if self.shares_store() {
            return serverless::worker_status(&self.engine, queue).await;
        }
        let catalog = self.engine.catalog().await?;
        Ok(Box::new(embedded::worker_status(self, queue, &catalog)))
    }

    /// How many of `workers` share `queue`.
    pub(super) fn active_workers(
        &self,
        workers: &Workers,
        queue: &QueueName,
        catalog: &Catalog,
    ) -> u64 {
        let (running, now) = (self.engine.running_by_worker(&[]), self.engine.now());
        workers.of_queue(queue, &running, &catalog.drains, now).active(catalog, now)
    }
}

impl Server {
    /// The pull workers that call this process; of processes that share a store, those that
    /// registered with any of them. A standby knows none, because the leader stores only some.
    pub(super) async fn shared_workers(&self) -> Result<Arc<Workers>, Error> {
        if self.inner.shares_store() && !self.inner.is_standby {
            return self.stored_workers().await;
        }
        Ok(Arc::clone(&self.inner.workers))
    }

    /// Settles reports by queue: for each batch its results in order; too few if the store failed.
    pub(super) async fn settle(
        &self,
        batches: Vec<(QueueName, Vec<Report>)>,
    ) -> Vec<Vec<Result<Job, Error>>> {
        #[cfg(any(test, feature = "embedded"))]
        if !self.inner.is_serverless() {
            return self.settle_in_tasks(batches).await;
        }
        let mut settled = Vec::with_capacity(batches.len());
        for (queue, batch) in batches {
            settled.push(self.settle_serverless(&queue, batch).await);
        }
        settled
    }

    /// Leases from `selections` until there is a job, the worker leaves, or `until`, and settles
    /// the request's reports.
    pub(super) async fn lease_from(
        &self,
        selections: Vec<QueueSelection>,
        request: LeaseRequest,
        until: Timestamp,
        presence: Presence,
    ) -> Result<Leased, Error> {
        #[cfg(any(test, feature = "embedded"))]
        if !self.inner.is_serverless() {
            return self.lease_embedded(selections, request, until, presence).await;
        }
        Box::pin(self.lease_serverless(selections, request, until, presence)).await
    }

    /// Continues a bulk operation in the background.
    pub(super) fn continue_operation(&self, stored: StoredOperation) {
        match self.inner.serverless() {
            Some(serverless) => serverless.outbox.operation_left(&stored.operation.id),
            // Otherwise their owner learns of it.
            None if self.inner.owns(OPERATIONS) => self.spawn_operation(stored),
            None => {}
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
