//! Has schedules occur at their time, and carries what their owners say of them to the engine.
//!
//! The one thing to know: the task sleeps until the next occurrence, and looks a little sooner, since another process may
//! change a schedule and the machine's clock may be set.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::{Inner, Server, Stage};
use crate::telemetry::metrics;
use tidegate_core::{
    job::{Payload, ScheduleName},
    schedule::{ScheduleConfig, ScheduleItem, ScheduleState},
};
use tidegate_engine::{Error, Materialized, request::Enqueued};

/// The longest between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Starts it; ends when the server begins to stop.
pub(super) fn spawn(inner: &Arc<Inner>) {
    let (home, changed) = (Arc::downgrade(inner), Arc::clone(&inner.rescheduled));
    let mut stopping = inner.stopping.subscribe();
    tokio::spawn(async move {
        while let Some((clock, until)) = look(&home).await {
            tokio::select! {
                () = clock.sleep_until(until) => {}
                () = changed.notified() => {}
                told = stopping.changed() => if told.is_err() || *stopping.borrow() != Stage::Serving { return },
            }
        }
    });
}

/// One look, and when to look next. None if the server stops.
async fn look(
    home: &Weak<Inner>,
) -> Option<(Arc<dyn tidegate_core::port::Clock>, tidegate_core::time::Timestamp)> {
    let inner = home.upgrade()?;
    // A stop waits for what is under way.
    let _busy = inner.busy()?;
    let clock = Arc::clone(&inner.engine.ports().clock);
    let next_at = match inner.engine.materialize(Duration::ZERO).await {
        Ok(occurred) => {
            inner.occurred(&occurred);
            occurred.next_at
        }
        Err(error) => {
            tracing::warn!(%error, "schedules cannot be looked at");
            None
        }
    };
    let soon = clock.now() + LOOK;
    Some((clock, next_at.map_or(soon, |at| at.min(soon))))
}

impl Inner {
    /// Tells whoever must know what schedules did.
    pub(super) fn occurred(self: &Arc<Self>, occurred: &Materialized) {
        metrics::occurred(occurred);
        for (schedule, error) in &occurred.errors {
            tracing::warn!(%schedule, %error, "an occurrence made no job; it is tried again");
        }
        for (schedule, missed) in &occurred.missed {
            tracing::warn!(%schedule, missed, "missed occurrences are not made up for");
        }
        self.on_enqueued(occurred.made.iter().map(|(_, enqueued)| &enqueued.job));
    }
}

impl Server {
    /// Sets a schedule as a whole; whether it is new.
    ///
    /// # Errors
    ///
    /// 400; 404 `job_type_not_found`; 409 `too_many_schedules`; 412 if `if_match` is not its version; 413.
    pub async fn put_schedule(
        &self,
        name: &ScheduleName,
        config: ScheduleConfig,
        data: Payload,
        if_match: Option<u64>,
    ) -> Result<(Arc<ScheduleItem>, bool), Error> {
        let done = self.inner.engine.put_schedule(name, config, data, if_match).await?;
        self.rescheduled().await?;
        Ok(done)
    }

    /// Has schedules occur as they are now.
    async fn rescheduled(&self) -> Result<(), Error> {
        self.inner.rescheduled.notify_one();
        if self.inner.serverless.is_some() {
            // The next occurrence may come before the minute's next round.
            self.inner.occurred(&self.inner.engine.materialize(super::NEAR).await?);
        }
        Ok(())
    }

    /// A schedule, and how far it has come.
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

    /// Every schedule and how far it has come, by name.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn schedules(
        &self,
    ) -> Result<Vec<(ScheduleName, (Arc<ScheduleItem>, ScheduleState))>, Error> {
        self.inner.engine.schedules().await
    }

    /// Pauses a schedule, or lets it go on from now.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`.
    pub async fn pause_schedule(&self, name: &ScheduleName, paused: bool) -> Result<(), Error> {
        self.inner.engine.pause_schedule(name, paused).await?;
        self.rescheduled().await
    }

    /// Removes a schedule. The jobs that it made stay, but for those whose time has not come.
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

    /// Makes a job of a schedule now, beside its occurrences.
    ///
    /// # Errors
    ///
    /// 404 `schedule_not_found`; as for [`Server::enqueue_many`].
    pub async fn run_schedule(
        &self,
        name: &ScheduleName,
        idempotency_key: Option<String>,
    ) -> Result<Enqueued, Error> {
        let enqueued = self.inner.engine.run_schedule(name, idempotency_key).await?;
        metrics::enqueued(std::iter::once(&enqueued));
        self.inner.on_enqueued([&enqueued.job]);
        Ok(enqueued)
    }
}
