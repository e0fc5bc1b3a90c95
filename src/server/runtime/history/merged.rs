//! The history of servers that share a store: each counts what it does, and one adds it up.
//!
//! ```text
//!   each server, at the end of a minute: its counts ─▶ a part
//!   the owner of the sweep, 10 s later: all parts, and the jobs as it counted them ─▶ a step of the hour
//!                                       every 5 min the sum of these ─▶ a step of the day
//! ```
//!
//! A part that comes later is added to the step after it. Quantiles are pooled, as those of several steps
//! are.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    SWEPT_STEP, depths,
    recorder::MAX_SERIES,
    step_of,
    steps::{Depth, Point, Sample, Series},
    timeline::{StoredPoint, stored_points, write_of},
    workers::{self, MAX_WORKERS, WorkerName, WorkerPoint},
};
use crate::runtime::{Error, Inner, Server, measurement::Measurement, shared::Subject};
use tidegate_api::HistoryRange;
use tidegate_core::{job::Phase, time::Timestamp};
use tidegate_engine::Catalog;

/// How long after the end of a minute its parts are added: longer than servers take to store them.
pub(super) const MERGE_DELAY: Duration = Duration::from_secs(10);
/// Most series of the jobs in a step.
const MAX_DEPTHS: usize = MAX_SERIES;

/// What one server counted in a minute.
#[derive(Serialize, Deserialize)]
struct Part {
    queues: Vec<StoredPoint<Point>>,
    workers: Vec<StoredPoint<WorkerPoint>>,
}

/// The points of a step: the sums of `parts`, with the numbers that last in `lasting`. A series whose
/// numbers lasted until now (`before`) has a point, too. At most `most`, of the first series.
fn merge<P: Sample>(
    parts: impl Iterator<Item = StoredPoint<P>>,
    lasting: &HashMap<P::Series, P::Lasting>,
    before: &HashMap<P::Series, P>,
    most: usize,
) -> Vec<(P::Series, P)> {
    let mut counted: BTreeMap<P::Series, Vec<P>> = BTreeMap::new();
    for StoredPoint { series, point, .. } in parts {
        counted.entry(series).or_default().push(point);
    }
    for series in lasting.keys().chain(before.keys()) {
        counted.entry(series.clone()).or_default();
    }
    let sum = |(series, points): (P::Series, Vec<P>)| {
        let mut sum = P::sum(points.iter());
        sum.set_lasting(lasting.get(&series).copied().unwrap_or_default());
        (series, sum)
    };
    counted.into_iter().take(most).map(sum).collect()
}

/// The jobs of each series. Of too many series, those with most jobs.
fn depths_of(catalog: &Catalog, measured: &Measurement) -> HashMap<Series, Depth> {
    let depths = depths(catalog, &measured.counts, &measured.weights);
    let mut depths: Vec<_> = depths.into_iter().collect();
    depths.sort_by_key(|(_, depth)| std::cmp::Reverse(depth.live()));
    depths.truncate(MAX_DEPTHS);
    depths.into_iter().collect()
}

impl Inner {
    /// Stores what this server has counted in the minute that is over, or until now if it stops.
    /// Returns whether there was any.
    ///
    /// # Errors
    ///
    /// The store's; a repeat stores the same.
    pub(in crate::runtime) async fn store_history_part(&self, stops: bool) -> Result<bool, Error> {
        let minute = step_of(self.engine.now(), SWEPT_STEP);
        let take = || {
            let began = {
                let mut state = self.history.state.lock();
                state.began_at.replace(minute).unwrap_or(minute)
            };
            if began == minute && !stops {
                return None;
            }
            let queues: Vec<_> = self.history.recorder.lock().take_counts().into_iter().collect();
            let workers = self.history.workers.lock().take_ended();
            let part = Part { queues: stored_points(queues), workers: stored_points(workers) };
            (!part.queues.is_empty() || !part.workers.is_empty()).then_some(part)
        };
        self.store_part(Subject::History, take).await
    }
}

impl Server {
    /// Adds up what all servers have counted in the minute that ended last, unless that was done, and
    /// ends the steps of the day.
    ///
    /// # Errors
    ///
    /// The store's; a repeat counts nothing twice.
    pub(in crate::runtime) async fn record_merged_step(&self) -> Result<(), Error> {
        let (inner, now) = (&self.inner, self.now());
        let at = step_of(now - MERGE_DELAY, SWEPT_STEP) - SWEPT_STEP;
        let is_done = |latest: Option<Timestamp>| latest.is_some_and(|latest| latest >= at);
        if is_done(inner.history.state.lock().merged_at) {
            return Ok(());
        }
        let Some(measured) = inner.measurement.get(now) else { return Ok(()) };
        let parts = inner.parts(Subject::History).await?;
        // After the parts: they are gone if another server has stored the step.
        for range in [HistoryRange::Hour, HistoryRange::Day] {
            self.read_new_steps(range, Duration::ZERO).await?;
            self.read_new_worker_steps(range, Duration::ZERO).await?;
        }
        let running = self.running_at_workers(&measured).await?;
        let depths = depths_of(&*inner.engine.catalog().await?, &measured);
        let (mut of_queues, mut of_workers) = (Vec::new(), Vec::new());
        for Part { queues, workers } in parts.contents::<Part>() {
            of_queues.extend(queues);
            of_workers.extend(workers);
        }
        let (before, workers_before, is_stored) = {
            let state = inner.history.state.lock();
            let (hour, workers_hour) = (&state.queues.hour.steps, &state.workers.hour.steps);
            let is_stored = is_done(hour.latest_at()) || is_done(workers_hour.latest_at());
            (hour.lasting(), workers_hour.lasting(), is_stored)
        };
        let queues = merge(of_queues.into_iter(), &depths, &before, 2 * MAX_SERIES);
        let workers = merge(of_workers.into_iter(), &running, &workers_before, 2 * MAX_WORKERS);
        let writes = [
            write_of(HistoryRange::Hour, (at, queues.clone()))?,
            write_of(HistoryRange::Hour, (at, workers.clone()))?,
        ];
        let writes: Vec<_> = writes.into_iter().flatten().collect();
        let is_empty = parts.is_empty() && writes.is_empty();
        if !is_stored && !is_empty && !inner.add_parts(parts, writes).await? {
            // Another server adds them, or the next call does.
            return Ok(());
        }
        {
            let mut state = inner.history.state.lock();
            state.merged_at = Some(at);
            if !is_stored {
                state.queues.add(HistoryRange::Hour, (at, queues));
                state.workers.add(HistoryRange::Hour, (at, workers));
            }
        }
        inner.end_day_steps(at + SWEPT_STEP).await;
        Ok(())
    }

    /// What runs at each worker. It is read only if jobs run.
    async fn running_at_workers(
        &self,
        measured: &Measurement,
    ) -> Result<HashMap<WorkerName, u32>, Error> {
        let mut counts = measured.counts.values().flatten();
        if !counts.any(|((_, phase), jobs)| *phase == Phase::Running && *jobs > 0) {
            return Ok(HashMap::new());
        }
        self.refresh_running().await?;
        Ok(workers::lasting(self.inner.engine.running_by_worker(&[])))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_engine::testkit::builders::name;

    use super::*;

    fn series(queue: &str) -> Series {
        Series { queue: name(queue), job_type: None }
    }

    fn part(queue: &str, point: Point) -> StoredPoint<Point> {
        StoredPoint { series: series(queue), point, swept: None }
    }

    #[test]
    fn a_step_has_the_counts_of_all_and_the_jobs_of_one() {
        let point = |started, delay: f32| Point {
            enqueued: 2,
            started,
            finished: 1,
            failed: 1,
            start_delay: Some([delay; 3]),
            run_time: Some([1.0; 3]),
            // A server does not store the jobs.
            depth: Depth::default(),
        };
        let parts = [(90, 1.0, "q"), (1, 1.0, "r"), (10, 9.0, "q")];
        let parts = parts.map(|(started, delay, queue)| part(queue, point(started, delay)));
        let ready = |ready| Depth { ready, ..Depth::default() };
        let depths = HashMap::from([(series("q"), ready(5)), (series("idle"), ready(3))]);
        let before = Point { depth: ready(7), ..Point::default() };
        let before = HashMap::from([(series("empty"), before)]);
        let points = merge(parts.into_iter(), &depths, &before, 10);
        let shown: Vec<_> = points
            .iter()
            .map(|(of, point)| {
                let Point { enqueued, started, finished, depth, .. } = *point;
                (of.queue.as_str(), enqueued, started, finished, depth.ready)
            })
            .collect();
        let expected =
            [("empty", 0, 0, 0, 0), ("idle", 0, 0, 0, 3), ("q", 4, 100, 2, 5), ("r", 2, 1, 1, 0)];
        assert_eq!(shown, expected);
        let [p50, p95, p99] = points[2].1.start_delay.unwrap();
        assert!(p50 <= 1.0 && (p95, p99) == (9.0, 9.0), "{p50} {p95} {p99}");
        assert_eq!(merge(std::iter::empty::<StoredPoint<Point>>(), &depths, &before, 2).len(), 2);
    }
}
