//! The history of queues, types and workers: the last hour and the last day in steps, in memory and
//! in records of the store.
//!
//! ```text
//!   one server: its counters, each 10 s              ─┐            ┌▶ a record of an hour each
//!   servers on one store: those of all, each minute  ─┼▶ steps of ─┤
//!   functions: the counts of a sweep, each minute    ─┘  the hour  └▶ every 5 min their sum: a step of
//!                                                                     the day, a record of a day each
//! ```
//!
//! Workers have a [history of their own](workers), except on functions.
//!
//! The counters are those of the metrics: [`Inner::count_enqueued`], [`Inner::count_tick`] and
//! [`Inner::count_finished`] are the only callers of both. A server alone reads its records at
//! the start. Processes that share a store, servers or functions, share no memory. So each reads the
//! records of others when a client requests a history. One of the servers [adds up](merged) what all
//! have counted. Functions take what happened from the differences between two sweeps.
//!
//! Nothing depends on the history. A step whose record is lost is missing after a restart.

mod merged;
mod overview;
mod pool;
mod recorder;
mod source;
mod steps;
mod swept;
mod timeline;
mod workers;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use parking_lot::Mutex;

pub(super) use self::{overview::QueueHour, timeline::drop_old_steps};
use self::{
    recorder::Recorder,
    source::Source,
    steps::{Depth, Point, Sample, Series, Steps},
    swept::Swept,
    timeline::{DAY_STEP, Timeline, read_records, read_step, write_of},
    workers::{WorkerName, WorkerPoint, WorkerRecorder},
};
use super::{Inner, Server, measurement::Measurement};
use crate::telemetry::metrics;
use tidegate_api::{History as HistoryView, HistoryPoint, HistoryRange, Quantiles, Throughput};
use tidegate_core::{
    job::{Job, Phase, QueueName, TypeName},
    time::Timestamp,
};
use tidegate_engine::{Catalog, Error, TickOutcome, jobs::phases::PhaseCounts, request::Enqueued};

/// How long a step of an embedded server is.
const STEP: Duration = Duration::from_secs(10);
/// How long a step is of processes that share a store: the time between two sweeps.
const SWEPT_STEP: Duration = Duration::from_mins(1);
/// Over which time the throughput is measured.
const THROUGHPUT_SPAN: Duration = Duration::from_mins(5);
/// How old the steps may be that a process shows whose store is shared.
const MAX_READ_AGE: Duration = Duration::from_secs(10);

/// The history, as this process knows it.
#[derive(Default)]
pub(crate) struct History {
    recorder: Mutex<Recorder>,
    workers: Mutex<WorkerRecorder>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: Timeline<Point>,
    workers: Timeline<WorkerPoint>,
    /// When the step under way began.
    began_at: Option<Timestamp>,
    /// What the sweep before counted of each series.
    swept: HashMap<Series, Swept>,
    /// When a sweep last counted live jobs.
    live_at: Option<Timestamp>,
    /// The latest step in which the counts of all servers are.
    merged_at: Option<Timestamp>,
    /// Since when an embedded server knows what happened.
    since: Option<Timestamp>,
}

/// The start of the step of this length in which `at` is.
fn step_of(at: Timestamp, step: Duration) -> Timestamp {
    let step = i64::try_from(step.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(at.millis().div_euclid(step) * step)
}

impl State {
    /// Since when this process knows what happened, at `now`. On a shared store others have stored
    /// steps since long before this process began.
    fn known_since(&self, now: Timestamp, source: Source) -> Timestamp {
        let hour = steps::span_of(HistoryRange::Hour);
        self.since.filter(|_| !source.is_shared()).unwrap_or(now - hour)
    }

    /// When a step that ends now may have begun, if the one under way began at `first`. A step that
    /// was stored is not replaced: not after a restart within it, nor if the clock was set back. What
    /// happens goes into the next one.
    fn next_step(&self, first: Timestamp) -> Timestamp {
        let latest = [self.queues.hour.steps.latest_at(), self.workers.hour.steps.latest_at()];
        latest.into_iter().flatten().fold(first, |next, latest| next.max(latest + STEP))
    }
}

impl Inner {
    /// Counts accepted jobs.
    pub(super) fn count_enqueued<'a>(&self, jobs: impl Iterator<Item = &'a Enqueued> + Clone) {
        metrics::enqueued(jobs.clone());
        if !self.is_serverless() {
            self.history.recorder.lock().enqueued(jobs);
        }
    }

    /// Counts what a tick that began at `began` claimed and settled.
    pub(super) fn count_tick(
        &self,
        queue: &QueueName,
        outcome: &TickOutcome,
        began: Timestamp,
        took: Duration,
    ) {
        metrics::tick(queue, outcome, began, took);
        if !self.is_serverless() {
            self.history.recorder.lock().tick(queue, outcome, began);
            let settled = outcome.settled().filter_map(|job| job.life.history.last());
            let mut workers = self.history.workers.lock();
            settled.for_each(|entry| workers.attempt_ended(entry));
        }
    }

    /// Counts a job that ended.
    pub(super) fn count_finished(&self, job: &Job) {
        metrics::job_finished(job);
        self.changes.add_removed_end(job, self.engine.now());
        if !self.is_serverless() {
            self.history.recorder.lock().finished(job);
        }
    }

    /// Takes the numbers of jobs that were just counted, and the weights that run in the queues.
    /// Those of the uncounted queues stay.
    pub(super) fn measured(&self, catalog: &Catalog, measured: &Measurement) {
        let depths = depths(catalog, &measured.counts, &measured.weights);
        let depths = depths.into_iter().collect();
        self.history.recorder.lock().measured(depths, &measured.uncounted);
    }

    /// Ends the step under way if its time is over, or in any case if the server stops. The step is
    /// stored if anything happened in it. So is the step of the day, once its time is over.
    pub(super) async fn end_step(&self, stops: bool) {
        let began = step_of(self.engine.now(), STEP);
        self.end_step_at(began, stops).await;
        self.end_day_steps(began).await;
    }

    async fn end_step_at(&self, began: Timestamp, stops: bool) {
        let (at, queues, workers) = {
            let mut state = self.history.state.lock();
            let first = *state.began_at.get_or_insert(began);
            let at = state.next_step(first);
            if began <= at && !stops {
                return;
            }
            state.began_at = Some(began);
            let queues = self.history.recorder.lock().take();
            let running = self.engine.running_by_worker(&[]);
            let workers = self.history.workers.lock().take(&running);
            if !queues.is_empty() {
                state.queues.add(HistoryRange::Hour, (at, queues.clone()));
            }
            if !workers.is_empty() {
                state.workers.add(HistoryRange::Hour, (at, workers.clone()));
            }
            (at, queues, workers)
        };
        let stored = self.store_step(HistoryRange::Hour, at, queues, workers).await;
        if let Err(error) = stored {
            tracing::warn!(%error, "a step of the history was not stored");
        }
    }

    /// Stores a step, if it has points.
    async fn store_step(
        &self,
        range: HistoryRange,
        at: Timestamp,
        queues: Vec<(Series, Point)>,
        workers: Vec<(WorkerName, WorkerPoint)>,
    ) -> Result<(), Error> {
        let writes = [write_of(range, (at, queues))?, write_of(range, (at, workers))?];
        let writes: Vec<_> = writes.into_iter().flatten().collect();
        if !writes.is_empty() {
            self.engine.ports().store.commit(vec![writes]).await?;
        }
        Ok(())
    }

    /// Ends and stores the steps of the day that are over at `now`.
    async fn end_day_steps(&self, now: Timestamp) {
        let (queues, workers) = {
            let mut state = self.history.state.lock();
            (state.queues.end_day_steps(now), state.workers.end_day_steps(now))
        };
        let queues = queues.into_iter().map(|(at, points)| (at, points, Vec::new()));
        let workers = workers.into_iter().map(|(at, points)| (at, Vec::new(), points));
        for (at, queues, workers) in queues.chain(workers) {
            if let Err(error) = self.store_step(HistoryRange::Day, at, queues, workers).await {
                tracing::warn!(%error, "a step of the day's history was not stored");
            }
        }
    }

    /// Reads the steps from before the start.
    pub(super) async fn load_history(&self) {
        let loaded = async {
            self.load_steps(|state| &mut state.queues).await?;
            self.load_steps(|state| &mut state.workers).await
        };
        if let Err(error) = loaded.await {
            tracing::warn!(%error, "the history from before the start cannot be read");
        }
        let now = self.engine.now();
        {
            let mut state = self.history.state.lock();
            let from = state.queues.hour.steps.from(now);
            state.since = Some(from.map_or(now, |from| from.min(now)));
            self.history.recorder.lock().restore(state.queues.hour.steps.lasting());
            self.history.workers.lock().restore(state.workers.hour.steps.lasting());
        }
        self.end_day_steps(step_of(now, STEP)).await;
    }

    async fn load_steps<P: Sample>(
        &self,
        of: impl Fn(&mut State) -> &mut Timeline<P>,
    ) -> Result<(), Error> {
        for range in [HistoryRange::Hour, HistoryRange::Day] {
            let records = read_records::<P>(&self.engine, range, None).await?;
            let now = self.engine.now();
            let mut state = self.history.state.lock();
            let timeline = of(&mut state);
            for step in records.iter().filter_map(read_step) {
                // The clock was set back, or that of a server for development began again.
                if step.0 <= now + STEP {
                    timeline.add(range, step);
                }
            }
            let latest_day = timeline.day.steps.latest_at();
            timeline.day_ended_until = latest_day.map(|latest| latest + DAY_STEP);
        }
        Ok(())
    }
}

/// The jobs of each queue and of its types.
fn depths(
    catalog: &Catalog,
    counts: &BTreeMap<QueueName, PhaseCounts>,
    weights: &BTreeMap<QueueName, u64>,
) -> BTreeMap<Series, Depth> {
    let mut depths: BTreeMap<Series, Depth> = BTreeMap::new();
    for (queue, counts) in counts {
        for ((job_type, phase), jobs) in counts {
            let jobs = u32::try_from(*jobs).unwrap_or(u32::MAX);
            for job_type in [None, Some(job_type.clone())] {
                let depth = depths.entry(Series { queue: queue.clone(), job_type }).or_default();
                let number = match phase {
                    Phase::Scheduled => &mut depth.scheduled,
                    Phase::Ready => &mut depth.ready,
                    Phase::Retrying => &mut depth.retrying,
                    Phase::Running => &mut depth.running,
                    Phase::Ended(_) => continue,
                };
                *number = number.saturating_add(jobs);
            }
        }
    }
    depths.retain(|_, depth| depth.live() > 0);
    for (series, depth) in &mut depths {
        let Series { queue, job_type } = series;
        depth.limit = match job_type {
            None => catalog.limits(queue).queue.concurrency,
            Some(name) => catalog.job_type(name).ok().and_then(|item| item.config.concurrency),
        };
        let weight = weights.get(queue).filter(|_| job_type.is_none());
        depth.weight = weight.map(|weight| u32::try_from(*weight).unwrap_or(u32::MAX));
    }
    depths
}

impl Server {
    /// The history of a queue over a range.
    ///
    /// # Errors
    ///
    /// 404 `queue_not_found`; the store's.
    pub async fn queue_history(
        &self,
        queue: &QueueName,
        range: HistoryRange,
    ) -> Result<HistoryView, Error> {
        self.queue(queue).await?;
        self.history_of(Series { queue: queue.clone(), job_type: None }, range).await
    }

    /// The history of a type in its queue over a range.
    ///
    /// # Errors
    ///
    /// 404 `job_type_not_found`; the store's.
    pub async fn type_history(
        &self,
        job_type: &TypeName,
        range: HistoryRange,
    ) -> Result<HistoryView, Error> {
        let queue = self.job_type(job_type).await?.config.queue.clone();
        self.history_of(Series { queue, job_type: Some(job_type.clone()) }, range).await
    }

    async fn history_of(&self, series: Series, range: HistoryRange) -> Result<HistoryView, Error> {
        let source = self.inner.history_source();
        if source.is_shared() {
            self.read_new_steps(HistoryRange::Hour, MAX_READ_AGE).await?;
            if range == HistoryRange::Day {
                self.read_new_steps(range, MAX_READ_AGE).await?;
            }
        }
        let now = self.now();
        let state = self.inner.history.state.lock();
        let since = state.known_since(now, source);
        let hour = view(&state.queues.hour.steps, &series, (since, now), source);
        Ok(match range {
            HistoryRange::Hour => hour,
            HistoryRange::Day => HistoryView {
                step_seconds: seconds_of(DAY_STEP),
                from: state.queues.day.steps.from(now),
                points: points(&state.queues.day.steps, &series, now, source),
                ..hour
            },
        })
    }
}

fn quantiles(values: [f32; 3]) -> Quantiles {
    let [p50, p95, p99] = values.map(f64::from);
    Quantiles { p50, p95, p99 }
}

/// In how many seconds no job is due or runs any more, if their number goes on to fall from `before`
/// to `now` in this many seconds. None if it does not fall.
fn time_to_empty(before: Depth, now: Depth, over_seconds: f64) -> Option<f64> {
    let due_of = |depth: Depth| f64::from(depth.ready) + f64::from(depth.running);
    let due = due_of(now);
    let fallen = (due_of(before) - due) / over_seconds;
    match due {
        0.0 => Some(0.0),
        due if fallen > 0.0 => Some(due / fallen),
        _ => None,
    }
}

fn seconds_of(step: Duration) -> u32 {
    u32::try_from(step.as_secs()).unwrap_or(u32::MAX)
}

/// The points of a series before `now`, as they are shown.
fn points(
    steps: &Steps<Point>,
    series: &Series,
    now: Timestamp,
    source: Source,
) -> Vec<HistoryPoint> {
    let counts_starts = source.counts_starts();
    let shown = |(at, point): (Timestamp, &Point)| HistoryPoint {
        at,
        enqueued: counts_starts.then_some(point.enqueued.into()),
        started: counts_starts.then_some(point.started.into()),
        finished: point.finished.into(),
        failed: point.failed.into(),
        start_delay_seconds: point.start_delay.map(quantiles),
        run_seconds: point.run_time.map(quantiles),
        scheduled: point.depth.scheduled.into(),
        ready: point.depth.ready.into(),
        retrying: point.depth.retrying.into(),
        running: point.depth.running.into(),
        weight: point.depth.weight.map(u64::from),
        limit: point.depth.limit.map(u64::from),
    };
    steps.of(series, now).map(shown).collect()
}

/// The hour of a series from the first to the second instant, which is now.
fn view(
    steps: &Steps<Point>,
    series: &Series,
    (since, now): (Timestamp, Timestamp),
    source: Source,
) -> HistoryView {
    let points = points(steps, series, now, source);
    let step = source.step();
    // Whole steps: the last one has just ended, and is known.
    let end = step_of(now - source.delay(), step);
    let span = end.since(step_of(since, step)).clamp(step, THROUGHPUT_SPAN);
    let begin = end - span;
    let recent = || points.iter().filter(|point| begin <= point.at && point.at < end);
    let over_seconds = span.as_secs_f64();
    let rate = |jobs: u64| jobs as f64 / over_seconds;
    let throughput = Throughput {
        over_seconds,
        enqueued_per_second: source
            .counts_starts()
            .then(|| rate(recent().filter_map(|point| point.enqueued).sum())),
        finished_per_second: rate(recent().map(|point| point.finished).sum()),
        failed_per_second: rate(recent().map(|point| point.failed).sum()),
    };
    let before = steps.of(series, now).take_while(|(at, _)| *at < begin).last();
    let before = before.map_or_else(Depth::default, |(_, point)| point.depth);
    let time_to_empty_seconds = time_to_empty(before, steps.depth(series), over_seconds);
    let step_seconds = seconds_of(step);
    let from = steps.from(now);
    HistoryView { step_seconds, from, points, throughput, time_to_empty_seconds }
}

#[cfg(test)]
mod tests;
