//! The history of queues and types: the last hour and the last day in steps, in memory and in records
//! of the store.
//!
//! ```text
//!   embedded:    counters of this process, each 10 s ─┐            ┌▶ a record of an hour each
//!                                                     ├▶ steps of ─┤
//!   serverless:  the counts of each sweep, each 60 s ─┘  the hour  └▶ every 5 min their sum: a step of
//!                                                                     the day, a record of a day each
//! ```
//!
//! The counters are those of the metrics: [`Inner::count_enqueued`], [`Inner::count_tick`] and
//! [`Inner::count_finished`] are the only callers of both. An embedded server reads its records at
//! the start. The processes of a serverless deployment share no memory, so each reads the records of
//! others when a client requests a history, and takes what happened from the differences between two
//! sweeps.
//!
//! Nothing depends on the history. A step whose record is lost is missing after a restart.

mod day;
mod overview;
mod pool;
mod recorder;
mod steps;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub(super) use self::overview::QueueHour;
use self::{
    day::DAY_STEP,
    recorder::Recorder,
    steps::{Bounds, Depth, Point, Series, Steps},
};
use super::{Inner, Server, measurement::Measurement};
use crate::telemetry::metrics;
use tidegate_api::{History as HistoryView, HistoryPoint, HistoryRange, Quantiles, Throughput};
use tidegate_core::{
    job::{Job, Phase, QueueName, TypeName},
    port::{
        Write,
        job_store::{Record, RecordKind, RecordQuery, StateFilter},
    },
    time::Timestamp,
};
use tidegate_engine::{
    Catalog, Engine, Error, TickOutcome, jobs::phases::PhaseCounts, request::Enqueued,
};

/// How long a step of an embedded server is.
const STEP: Duration = Duration::from_secs(10);
/// How long a step of a serverless deployment is: the time between two sweeps.
const SWEPT_STEP: Duration = Duration::from_mins(1);
/// Over which time the throughput is measured.
const THROUGHPUT_SPAN: Duration = Duration::from_mins(5);
/// How old the steps may be that a serverless process shows.
const MAX_READ_AGE: Duration = Duration::from_secs(10);
/// How long a serverless deployment records counts after the last queue with jobs has emptied: its
/// ended jobs are counted a while later.
const AFTERMATH: Duration = Duration::from_mins(5);
/// Most series of a sweep's record.
const MAX_SWEPT_SERIES: usize = 500;
/// Most records that are read or dropped at once: more than an hour and a day have.
const MAX_RECORDS: u32 = 1000;

/// The history, as this process knows it.
#[derive(Default)]
pub(crate) struct History {
    recorder: Mutex<Recorder>,
    state: Mutex<State>,
}

/// The steps of an hour or a day, as far as they are known.
struct Known {
    steps: Steps,
    /// The record that was read last, and when.
    read: Option<(String, Timestamp)>,
}

impl Known {
    fn new(bounds: Bounds) -> Self {
        Self { steps: Steps::new(bounds), read: None }
    }
}

struct State {
    hour: Known,
    day: Known,
    /// When the step under way began.
    began_at: Option<Timestamp>,
    /// Until when the steps of the day have ended: those before are stored, or had nothing.
    day_ended_until: Option<Timestamp>,
    /// What the sweep before counted of each series.
    swept: HashMap<Series, Swept>,
    /// When a sweep last counted live jobs.
    live_at: Option<Timestamp>,
    /// Since when an embedded server knows what happened.
    since: Option<Timestamp>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            hour: Known::new(Bounds::HOUR),
            day: Known::new(Bounds::DAY),
            began_at: None,
            day_ended_until: None,
            swept: HashMap::new(),
            live_at: None,
            since: None,
        }
    }
}

/// What a sweep counted of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Swept {
    ended: u64,
    failed: u64,
}

/// A point in a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredPoint {
    #[serde(flatten)]
    series: Series,
    #[serde(flatten)]
    point: Point,
    /// From a sweep: what happened follows from the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    swept: Option<Swept>,
}

/// The start of the step of this length in which `at` is.
fn step_of(at: Timestamp, step: Duration) -> Timestamp {
    let step = i64::try_from(step.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(at.millis().div_euclid(step) * step)
}

/// What the names of the records of a range begin with. Instants of the next million years begin with
/// a zero.
fn prefix(range: HistoryRange) -> &'static str {
    match range {
        HistoryRange::Hour => "0",
        HistoryRange::Day => "day-",
    }
}

/// How far back the steps of a range go.
fn bounds(range: HistoryRange) -> Bounds {
    match range {
        HistoryRange::Hour => Bounds::HOUR,
        HistoryRange::Day => Bounds::DAY,
    }
}

fn record_name(range: HistoryRange, at: Timestamp) -> String {
    let at = at.millis().max(0);
    match range {
        HistoryRange::Hour => format!("{at:016x}"),
        HistoryRange::Day => format!("{}{at:016x}", prefix(range)),
    }
}

/// The start and the points of a step in a record; none if it cannot be read.
fn read(record: &Record) -> Option<(Timestamp, Vec<StoredPoint>)> {
    let at = record.name.strip_prefix(prefix(HistoryRange::Day)).unwrap_or(&record.name);
    let at = i64::from_str_radix(at, 16).ok()?;
    let points = serde_json::from_slice(&record.bytes)
        .inspect_err(|error| tracing::warn!(%error, "a step of the history cannot be read"));
    Some((Timestamp::from_millis(at), points.ok()?))
}

impl State {
    /// Since when this process knows what happened, at `now`. The sweep of a serverless deployment
    /// has stored steps since long before this process began.
    fn known_since(&self, now: Timestamp, is_serverless: bool) -> Timestamp {
        self.since.filter(|_| !is_serverless).unwrap_or(now - Bounds::HOUR.span)
    }

    /// The steps of a range.
    fn known(&mut self, range: HistoryRange) -> &mut Known {
        match range {
            HistoryRange::Hour => &mut self.hour,
            HistoryRange::Day => &mut self.day,
        }
    }

    /// Adds a step of the hour that a record has.
    fn add(&mut self, at: Timestamp, points: Vec<StoredPoint>) {
        if self.hour.steps.latest_at().is_some_and(|latest| latest >= at) {
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
        self.hour.steps.push(at, resolved);
    }
}

impl Inner {
    /// Counts accepted jobs.
    pub(super) fn count_enqueued<'a>(&self, jobs: impl Iterator<Item = &'a Enqueued> + Clone) {
        metrics::enqueued(jobs.clone());
        if self.serverless.is_none() {
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
        if self.serverless.is_none() {
            self.history.recorder.lock().tick(queue, outcome, began);
        }
    }

    /// Counts a job that ended.
    pub(super) fn count_finished(&self, job: &Job) {
        metrics::job_finished(job);
        if self.serverless.is_none() {
            self.changes.add_removed_end(job, self.engine.now());
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
        let (at, points) = {
            let mut state = self.history.state.lock();
            let first = *state.began_at.get_or_insert(began);
            // A step that was stored is not replaced: not after a restart within it, nor if the clock
            // was set back. What happens goes into the next one.
            let at = state.hour.steps.latest_at().map_or(first, |latest| first.max(latest + STEP));
            if began <= at && !stops {
                return;
            }
            state.began_at = Some(began);
            let points = self.history.recorder.lock().take();
            if points.is_empty() {
                return;
            }
            state.hour.steps.push(at, points.clone());
            (at, points)
        };
        let stored =
            points.into_iter().map(|(series, point)| StoredPoint { series, point, swept: None });
        if let Err(error) =
            store(&self.engine, HistoryRange::Hour, at, &stored.collect::<Vec<_>>()).await
        {
            tracing::warn!(%error, "a step of the history was not stored");
        }
    }

    /// Reads the steps from before the start.
    pub(super) async fn load_history(&self) {
        let loaded = async {
            self.load_hour().await?;
            self.load_day().await
        };
        if let Err(error) = loaded.await {
            tracing::warn!(%error, "the history from before the start cannot be read");
        }
    }

    async fn load_hour(&self) -> Result<(), Error> {
        let records = read_records(&self.engine, HistoryRange::Hour, None).await?;
        let now = self.engine.now();
        let mut state = self.history.state.lock();
        for (at, points) in records.iter().filter_map(read) {
            // The clock was set back, or that of a server for development began again.
            if at <= now + STEP {
                state.add(at, points);
            }
        }
        state.since = Some(state.hour.steps.from(now).map_or(now, |from| from.min(now)));
        self.history.recorder.lock().restore(state.hour.steps.depths());
        Ok(())
    }
}

/// Stores a step for as long as its range.
async fn store(
    engine: &Engine,
    range: HistoryRange,
    at: Timestamp,
    points: &[StoredPoint],
) -> Result<(), Error> {
    let bytes = serde_json::to_vec(points).map_err(|error| Error::Internal(error.to_string()))?;
    let (kind, name) = (RecordKind::History, record_name(range, at));
    let record = Record { kind, name, until: at + bounds(range).span, bytes };
    engine.ports().store.commit(vec![vec![Write::PutRecord(record)]]).await?;
    Ok(())
}

/// The records of a range after the named one.
async fn read_records(
    engine: &Engine,
    range: HistoryRange,
    after: Option<String>,
) -> Result<Vec<Record>, Error> {
    let first = record_name(range, engine.now() - bounds(range).span);
    let after = Some(after.map_or(first.clone(), |after| after.max(first)));
    let (kind, prefix) = (RecordKind::History, prefix(range).to_owned());
    let query = RecordQuery { kind, prefix, after, limit: MAX_RECORDS };
    Ok(engine.ports().store.records(&[query]).await?.pop().unwrap_or_default())
}

/// Drops the steps that are over.
pub(super) async fn drop_old_steps(engine: &Engine) -> Result<(), Error> {
    let (kind, store) = (RecordKind::History, &engine.ports().store);
    store.purge(kind, engine.now(), u64::from(MAX_RECORDS), MAX_RECORDS).await?;
    Ok(())
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
        let is_serverless = self.inner.is_serverless();
        if is_serverless {
            self.read_new_steps(HistoryRange::Hour).await?;
            if range == HistoryRange::Day {
                self.read_new_steps(range).await?;
            }
        }
        let now = self.now();
        let state = self.inner.history.state.lock();
        let since = state.known_since(now, is_serverless);
        let hour = view(&state.hour.steps, &series, (since, now), is_serverless);
        Ok(match range {
            HistoryRange::Hour => hour,
            HistoryRange::Day => HistoryView {
                step_seconds: seconds_of(DAY_STEP),
                from: state.day.steps.from(now),
                points: points(&state.day.steps, &series, now, is_serverless),
                ..hour
            },
        })
    }

    /// Reads the steps that other processes stored, unless that was done just now.
    async fn read_new_steps(&self, range: HistoryRange) -> Result<(), Error> {
        let (engine, now) = (&self.inner.engine, self.now());
        let read_before = self.inner.history.state.lock().known(range).read.clone();
        if read_before.as_ref().is_some_and(|(_, at)| *at <= now && now.since(*at) < MAX_READ_AGE) {
            return Ok(());
        }
        let records = read_records(engine, range, read_before.map(|(name, _)| name)).await?;
        let mut state = self.inner.history.state.lock();
        for record in &records {
            match (range, read(record)) {
                (HistoryRange::Hour, Some((at, points))) => state.add(at, points),
                (HistoryRange::Day, Some((at, points))) => state.add_day_step(at, points),
                (_, None) => {}
            }
        }
        let known = state.known(range);
        let before = known.read.take().map(|(name, _)| name);
        let last = records.last().map(|record| record.name.clone()).or(before);
        known.read = Some((last.unwrap_or_default(), now));
        Ok(())
    }

    /// Stores the counts of the sweep that has just ended, as a step, if `queues` had jobs now or a
    /// few minutes ago, and the step of the day that has just ended.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(super) async fn record_swept_step(&self, queues: usize) -> Result<(), Error> {
        if queues > 0 {
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
                        if outcome == tidegate_core::job::Outcome::Failed {
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
        store(engine, HistoryRange::Hour, step_of(now, SWEPT_STEP), &points).await
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
fn points(steps: &Steps, series: &Series, now: Timestamp, is_swept: bool) -> Vec<HistoryPoint> {
    let shown = |(at, point): (Timestamp, &Point)| HistoryPoint {
        at,
        enqueued: (!is_swept).then_some(point.enqueued.into()),
        started: (!is_swept).then_some(point.started.into()),
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
    steps: &Steps,
    series: &Series,
    (since, now): (Timestamp, Timestamp),
    is_swept: bool,
) -> HistoryView {
    let points = points(steps, series, now, is_swept);
    let step = if is_swept { SWEPT_STEP } else { STEP };
    // Whole steps: the last one has just ended.
    let end = step_of(now, step);
    let span = end.since(step_of(since, step)).clamp(step, THROUGHPUT_SPAN);
    let begin = end - span;
    let recent = || points.iter().filter(|point| begin <= point.at && point.at < end);
    let over_seconds = span.as_secs_f64();
    let rate = |jobs: u64| jobs as f64 / over_seconds;
    let throughput = Throughput {
        over_seconds,
        enqueued_per_second: (!is_swept)
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
