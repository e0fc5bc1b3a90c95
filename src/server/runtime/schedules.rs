//! Schedules as methods of the server, and the announcement of the jobs that they made.

use std::sync::Arc;

use super::{Inner, Server};
use crate::telemetry::metrics;
use tidegate_core::{
    job::{Payload, ScheduleName},
    schedule::{ScheduleItem, ScheduleState},
};
use tidegate_engine::{
    Error, Materialized,
    request::{Enqueued, ScheduleRequest},
};

impl Inner {
    /// Counts and logs what schedules did, and announces their new jobs.
    pub(super) fn on_materialized(self: &Arc<Self>, materialized: &Materialized) {
        metrics::materialized(materialized);
        self.count_enqueued(materialized.made.iter().map(|(_, enqueued)| enqueued));
        for (schedule, error) in &materialized.errors {
            tracing::warn!(%schedule, %error, "an occurrence created no job; it will be retried");
        }
        for (schedule, missed) in &materialized.missed {
            tracing::warn!(%schedule, missed, "missed occurrences are skipped");
        }
        self.on_enqueued(materialized.made.iter().map(|(_, enqueued)| &enqueued.job));
    }
}

impl Server {
    /// Replaces a schedule. The flag is `true` if it is new.
    ///
    /// # Errors
    ///
    /// 400; 404 `job_type_not_found`; 409 `too_many_schedules`; 412 if `if_match` is not its
    /// version; 413.
    pub async fn put_schedule(
        &self,
        name: &ScheduleName,
        config: impl Into<ScheduleRequest>,
        data: Payload,
        if_match: Option<u64>,
    ) -> Result<(Arc<ScheduleItem>, bool), Error> {
        let done = self.inner.engine.put_schedule(name, config, data, if_match).await?;
        self.apply_schedules().await?;
        Ok(done)
    }

    /// What [`Self::put_schedule`] would store, at the stored version.
    ///
    /// # Errors
    ///
    /// As [`Self::put_schedule`].
    pub async fn preview_schedule(
        &self,
        name: &ScheduleName,
        config: impl Into<ScheduleRequest>,
        data: Payload,
        if_match: Option<u64>,
    ) -> Result<(Arc<ScheduleItem>, ScheduleState), Error> {
        self.inner.engine.preview_schedule(name, config, data, if_match).await
    }

    /// [`Self::put_schedule`], also over a stored schedule that cannot be read.
    ///
    /// # Errors
    ///
    /// As [`Self::put_schedule`].
    pub async fn replace_schedule(
        &self,
        name: &ScheduleName,
        config: impl Into<ScheduleRequest>,
        data: Payload,
        if_match: Option<u64>,
    ) -> Result<(Arc<ScheduleItem>, bool), Error> {
        let done = self.inner.engine.replace_schedule(name, config, data, if_match).await?;
        self.apply_schedules().await?;
        Ok(done)
    }

    /// A schedule and its state.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`.
    pub async fn schedule(
        &self,
        name: &ScheduleName,
    ) -> Result<(Arc<ScheduleItem>, ScheduleState), Error> {
        self.inner.engine.schedule(name).await
    }

    /// Every schedule and its state, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn schedules(
        &self,
    ) -> Result<Vec<(ScheduleName, (Arc<ScheduleItem>, ScheduleState))>, Error> {
        self.inner.engine.schedules().await
    }

    /// Pauses a schedule, or resumes it from now.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`.
    pub async fn pause_schedule(&self, name: &ScheduleName, paused: bool) -> Result<(), Error> {
        self.inner.engine.pause_schedule(name, paused).await?;
        self.apply_schedules().await
    }

    /// Removes a schedule, and its jobs that are not yet due. Its other jobs remain.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`; 412.
    pub async fn delete_schedule(
        &self,
        name: &ScheduleName,
        if_match: Option<u64>,
    ) -> Result<(), Error> {
        self.inner.engine.delete_schedule(name, if_match).await?;
        self.inner.rescheduled.notify_one();
        Ok(())
    }

    /// Enqueues a job of a schedule now, in addition to its occurrences, for the caller
    /// `enqueued_by`.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`; as for [`Server::enqueue_many`].
    pub async fn run_schedule(
        &self,
        name: &ScheduleName,
        idempotency_key: Option<String>,
        enqueued_by: Option<String>,
    ) -> Result<Enqueued, Error> {
        let run = self.inner.engine.run_schedule(name, idempotency_key, enqueued_by);
        let enqueued = run.await?;
        self.inner.count_enqueued(std::iter::once(&enqueued));
        self.inner.on_enqueued([&enqueued.job]);
        Ok(enqueued)
    }
}
