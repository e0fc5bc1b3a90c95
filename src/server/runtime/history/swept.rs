//! The history of functions: what the store has counted at each sweep, a minute after the other.
//!
//! What ended follows from two sweeps: the counts of ended jobs only rise, but for those that
//! expired, which count as nothing.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    SWEPT_STEP, State, depths, step_of,
    steps::{Point, Series},
    timeline::{DAY_STEP, StoredPoint, read, read_records, record_name, store_swept},
};
use crate::runtime::{Error, Server};
use tidegate_api::HistoryRange;
use tidegate_core::{
    job::{Outcome, Phase, QueueName},
    port::job_store::StateFilter,
    time::Timestamp,
};
use tidegate_engine::jobs::phases::PhaseCounts;

/// How long counts are recorded after the last queue with jobs has emptied: its
/// ended jobs are counted a while later.
const AFTERMATH: Duration = Duration::from_mins(5);
/// Most series of a record.
const MAX_SWEPT_SERIES: usize = 500;

/// What a sweep counted of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Swept {
    pub ended: u64,
    pub failed: u64,
}

impl State {
    /// Adds a step of the hour that a sweep stored.
    pub(super) fn add_swept(&mut self, at: Timestamp, points: Vec<StoredPoint<Point>>) {
        if self.queues.hour.steps.latest_at().is_some_and(|latest| latest >= at) {
            return;
        }
        let mut swept = HashMap::new();
        let resolved =
            points.into_iter().map(|StoredPoint { series, mut point, swept: counted }| {
                if let Some(counted) = counted {
                    if let Some(before) = self.swept.get(&series) {
                        let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
                        point.finished = count(counted.ended.saturating_sub(before.ended));
                        point.failed = count(counted.failed.saturating_sub(before.failed));
                    }
                    swept.insert(series.clone(), counted);
                }
                (series, point)
            });
        let resolved = resolved.collect();
        self.swept = swept;
        self.queues.hour.steps.push(at, resolved);
    }
}

impl Server {
    /// Stores the counts of the sweep that has just ended, as a step, if queues had jobs now
    /// (`has_jobs`) or a few minutes ago, and the step of the day that has just ended.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(in crate::runtime) async fn record_swept_step(&self, has_jobs: bool) -> Result<(), Error> {
        if has_jobs {
            self.inner.history.state.lock().live_at = Some(self.now());
        }
        self.record_swept_hour_step().await?;
        self.record_swept_day_step().await
    }

    async fn record_swept_hour_step(&self) -> Result<(), Error> {
        let (engine, now) = (&self.inner.engine, self.now());
        {
            let state = self.inner.history.state.lock();
            if state.live_at.is_none_or(|at| at + AFTERMATH <= now) {
                return Ok(());
            }
        }
        let catalog = engine.catalog().await?;
        let counted = engine.ports().store.depth(None).await?;
        let mut counts: BTreeMap<QueueName, PhaseCounts> = BTreeMap::new();
        let mut swept: BTreeMap<Series, Swept> = BTreeMap::new();
        for depth in &counted.counts {
            let of_queue = counts.entry(depth.queue.clone()).or_default();
            let mut add = |phase, jobs| {
                *of_queue.entry((depth.job_type.clone(), phase)).or_default() += jobs;
            };
            match (depth.state, depth.phases) {
                (StateFilter::Scheduled, Some(phases)) => {
                    add(Phase::Ready, phases.ready);
                    add(Phase::Retrying, phases.retrying);
                    add(
                        Phase::Scheduled,
                        depth.jobs.saturating_sub(phases.ready + phases.retrying),
                    );
                }
                (StateFilter::Scheduled, None) => add(Phase::Scheduled, depth.jobs),
                (StateFilter::Running, _) => add(Phase::Running, depth.jobs),
                (StateFilter::Ended(outcome), _) => add(Phase::Ended(outcome), depth.jobs),
            }
            for job_type in [None, Some(depth.job_type.clone())] {
                let of = swept.entry(Series { queue: depth.queue.clone(), job_type }).or_default();
                match depth.state {
                    StateFilter::Ended(outcome) => {
                        of.ended += depth.jobs;
                        if outcome == Outcome::Failed {
                            of.failed += depth.jobs;
                        }
                    }
                    StateFilter::Scheduled | StateFilter::Running => {}
                }
            }
        }
        let weights = counted.kept.iter().flatten();
        let weights = weights.map(|(queue, kept)| (queue.clone(), kept.running_weight)).collect();
        let depths = depths(&catalog, &counts, &weights);
        let point = |(series, swept): (Series, Swept)| {
            let depth = depths.get(&series).copied().unwrap_or_default();
            let point = Point { depth, ..Point::default() };
            StoredPoint { series, point, swept: Some(swept) }
        };
        let points: Vec<_> = swept.into_iter().take(MAX_SWEPT_SERIES).map(point).collect();
        store_swept(engine, step_of(now, SWEPT_STEP), &points).await
    }

    /// Stores the step of the day that ended last, from the records of the sweeps within it, unless
    /// this process has. Another process may store the same.
    ///
    /// # Errors
    ///
    /// The store's.
    async fn record_swept_day_step(&self) -> Result<(), Error> {
        let (inner, now) = (&self.inner, self.now());
        let end = step_of(now, DAY_STEP);
        let begin = end - DAY_STEP;
        {
            let state = inner.history.state.lock();
            let was_live = state.live_at.is_some_and(|at| now < at + AFTERMATH + DAY_STEP);
            if !was_live || state.queues.day_ended_until.is_some_and(|until| until >= end) {
                return Ok(());
            }
        }
        // What ended in the first minute follows from the sweep before it.
        let before = record_name::<Point>(HistoryRange::Hour, begin - DAY_STEP);
        let records =
            read_records::<Point>(&inner.engine, HistoryRange::Hour, Some(before)).await?;
        let mut swept = State::default();
        for (at, points) in records.iter().filter_map(read::<Point>) {
            swept.add_swept(at, points);
        }
        let mut points = swept.queues.hour.steps.sum((begin, end));
        points.truncate(MAX_SWEPT_SERIES);
        if !points.is_empty() {
            inner.store_step(HistoryRange::Day, begin, points, Vec::new()).await?;
        }
        inner.history.state.lock().queues.day_ended_until = Some(end);
        Ok(())
    }
}
