//! The last day, in steps of five minutes. Each is the sum of the steps of the hour within it.
//!
//! So a server that was down when five minutes were over stores their step at its next start.

use std::time::Duration;

use super::{
    AFTERMATH, STEP, State, StoredPoint, read, read_records, record_name, step_of,
    steps::{Point, Series},
    store,
};
use crate::runtime::{Error, Inner, Server};
use tidegate_api::HistoryRange;
use tidegate_core::time::Timestamp;

/// How long a step of the day is.
pub(super) const DAY_STEP: Duration = Duration::from_mins(5);
/// Most series of a step that a sweep stores.
const MAX_SERIES: usize = 500;

/// A step: when it began, and its points.
type DayStep = (Timestamp, Vec<(Series, Point)>);

/// Stores a step for a day.
async fn store_step(inner: &Inner, (at, points): DayStep) {
    let points =
        points.into_iter().map(|(series, point)| StoredPoint { series, point, swept: None });
    let points: Vec<_> = points.collect();
    if let Err(error) = store(&inner.engine, HistoryRange::Day, at, &points).await {
        tracing::warn!(%error, "a step of the day's history was not stored");
    }
}

impl State {
    /// Adds the steps of the day that are over at `now`, and returns them.
    pub(super) fn end_day_steps(&mut self, now: Timestamp) -> Vec<DayStep> {
        let hours = &self.hour.steps;
        let Some(oldest) = hours.from(now) else { return Vec::new() };
        let oldest = step_of(oldest, DAY_STEP);
        let mut at = self.day_ended_until.map_or(oldest, |until| until.max(oldest));
        let mut ended = Vec::new();
        while at + DAY_STEP <= now {
            let points = hours.sum((at, at + DAY_STEP));
            if !points.is_empty() && self.day.steps.latest_at().is_none_or(|latest| latest < at) {
                self.day.steps.push(at, points.clone());
                ended.push((at, points));
            }
            at = at + DAY_STEP;
            self.day_ended_until = Some(at);
        }
        ended
    }
}

impl Inner {
    /// Ends and stores the steps of the day that are over at `now`.
    pub(super) async fn end_day_steps(&self, now: Timestamp) {
        let ended = self.history.state.lock().end_day_steps(now);
        for step in ended {
            store_step(self, step).await;
        }
    }

    /// Reads the steps of the day from before the start.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(super) async fn load_day(&self) -> Result<(), Error> {
        let records = read_records(&self.engine, HistoryRange::Day, None).await?;
        let now = self.engine.now();
        {
            let mut state = self.history.state.lock();
            for (at, points) in records.iter().filter_map(read) {
                if at <= now + STEP {
                    state.add_day_step(at, points);
                }
            }
            state.day_ended_until = state.day.steps.latest_at().map(|latest| latest + DAY_STEP);
        }
        self.end_day_steps(step_of(now, STEP)).await;
        Ok(())
    }
}

impl State {
    /// Adds a step of the day that a record has.
    pub(super) fn add_day_step(&mut self, at: Timestamp, points: Vec<StoredPoint>) {
        if self.day.steps.latest_at().is_none_or(|latest| latest < at) {
            let points = points.into_iter().map(|of| (of.series, of.point)).collect();
            self.day.steps.push(at, points);
        }
    }
}

impl Server {
    /// Stores the step of the day that ended last, from the records of the sweeps within it, unless
    /// this process has. Another process may store the same.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(super) async fn record_swept_day_step(&self) -> Result<(), Error> {
        let (inner, now) = (&self.inner, self.now());
        let end = step_of(now, DAY_STEP);
        let begin = end - DAY_STEP;
        {
            let state = inner.history.state.lock();
            let was_live = state.live_at.is_some_and(|at| now < at + AFTERMATH + DAY_STEP);
            if !was_live || state.day_ended_until.is_some_and(|until| until >= end) {
                return Ok(());
            }
        }
        // What ended in the first minute follows from the sweep before it.
        let before = record_name(HistoryRange::Hour, begin - DAY_STEP);
        let records = read_records(&inner.engine, HistoryRange::Hour, Some(before)).await?;
        let mut swept = State::default();
        for (at, points) in records.iter().filter_map(read) {
            swept.add(at, points);
        }
        let mut points = swept.hour.steps.sum((begin, end));
        points.truncate(MAX_SERIES);
        if !points.is_empty() {
            store_step(inner, (begin, points)).await;
        }
        inner.history.state.lock().day_ended_until = Some(end);
        Ok(())
    }
}
