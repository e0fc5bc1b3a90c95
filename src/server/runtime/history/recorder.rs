//! The step under way: counters, and sketches of durations.

use std::collections::{BTreeSet, HashMap};

use sketches_ddsketch::{Config, DDSketch};
use tidegate_core::{
    job::{Job, Outcome, QueueName, TypeName},
    time::Timestamp,
};
use tidegate_engine::{TickOutcome, request::Enqueued};

use super::steps::{Depth, Point, Series};

/// Most series of a step; what happens to others is not recorded. Their sketches take about 1 MB.
pub(super) const MAX_SERIES: usize = 400;
/// The relative error of quantiles.
const ERROR: f64 = 0.05;
/// Most buckets of a sketch.
const MAX_BUCKETS: u32 = 256;
/// Durations below this many seconds are one bucket.
const LEAST: f64 = 0.001;

/// What has happened to a series since the step began.
#[derive(Default)]
struct Counts {
    enqueued: u32,
    started: u32,
    finished: u32,
    failed: u32,
    start_delay: Durations,
    run_time: Durations,
}

/// A sketch of durations, made with the first one.
#[derive(Default)]
struct Durations(Option<Box<DDSketch>>);

impl Durations {
    fn add(&mut self, seconds: f64) {
        let new = || Box::new(DDSketch::new(Config::new(ERROR, MAX_BUCKETS, LEAST)));
        self.0.get_or_insert_with(new).add(seconds);
    }

    fn quantiles(&self) -> Option<[f32; 3]> {
        let sketch = self.0.as_ref()?;
        let quantile = |q| sketch.quantile(q).ok().flatten().unwrap_or_default() as f32;
        Some([0.5, 0.95, 0.99].map(quantile))
    }
}

/// A queue, and its types.
#[derive(Default)]
struct OfQueue {
    all: Counts,
    types: HashMap<TypeName, Counts>,
}

/// The step under way.
#[derive(Default)]
pub(super) struct Recorder {
    queues: HashMap<QueueName, OfQueue>,
    series: usize,
    /// The jobs as they were counted last.
    depths: HashMap<Series, Depth>,
    /// The jobs in the latest point of each series.
    recorded: HashMap<Series, Depth>,
}

impl Recorder {
    /// Changes the counts of a queue and of a type in it.
    fn count(&mut self, queue: &QueueName, job_type: &TypeName, change: impl Fn(&mut Counts)) {
        if !self.queues.contains_key(queue) {
            if self.series >= MAX_SERIES {
                return;
            }
            self.series += 1;
            self.queues.insert(queue.clone(), OfQueue::default());
        }
        let Some(of_queue) = self.queues.get_mut(queue) else { return };
        change(&mut of_queue.all);
        match of_queue.types.get_mut(job_type) {
            Some(counts) => change(counts),
            None if self.series < MAX_SERIES => {
                self.series += 1;
                change(of_queue.types.entry(job_type.clone()).or_default());
            }
            None => {}
        }
    }

    /// Counts accepted jobs.
    pub fn enqueued<'a>(&mut self, jobs: impl Iterator<Item = &'a Enqueued>) {
        let new = jobs.filter(|enqueued| enqueued.new).map(|enqueued| &enqueued.job.spec);
        // Most calls have one job, and few have many types.
        let mut counts: Vec<(&QueueName, &TypeName, u32)> = Vec::new();
        for spec in new {
            let (queue, job_type) = (&spec.queue, &spec.job_type);
            match counts.iter_mut().find(|(of, kind, _)| (*of, *kind) == (queue, job_type)) {
                Some((.., count)) => *count += 1,
                None => counts.push((queue, job_type, 1)),
            }
        }
        for (queue, job_type, jobs) in counts {
            self.count(queue, job_type, |counts| counts.enqueued += jobs);
        }
    }

    /// Counts the claims of a tick at `now`, and the attempts that it settled.
    pub fn tick(&mut self, queue: &QueueName, outcome: &TickOutcome, now: Timestamp) {
        for claimed in &outcome.claimed {
            let delay = now.since(claimed.run_at).as_secs_f64();
            self.count(queue, &claimed.job.spec.job_type, |counts| {
                counts.started += 1;
                counts.start_delay.add(delay);
            });
        }
        for job in outcome.settled() {
            let Some(entry) = job.life.history.last() else { continue };
            let took = entry.ended_at.since(entry.started_at).as_secs_f64();
            self.count(queue, &job.spec.job_type, |counts| counts.run_time.add(took));
        }
    }

    /// Counts a job that ended.
    pub fn finished(&mut self, job: &Job) {
        let has_failed = job.life.ended() == Some(Outcome::Failed);
        self.count(&job.spec.queue, &job.spec.job_type, |counts| {
            counts.finished += 1;
            counts.failed += u32::from(has_failed);
        });
    }

    /// Replaces the numbers of jobs by those that were counted now, but for the `uncounted` queues. Of
    /// too many series those with most jobs are kept.
    pub fn measured(
        &mut self,
        mut depths: HashMap<Series, Depth>,
        uncounted: &BTreeSet<QueueName>,
    ) {
        let kept = self.depths.drain().filter(|(series, _)| uncounted.contains(&series.queue));
        depths.extend(kept);
        if depths.len() > MAX_SERIES {
            let mut all: Vec<_> = depths.into_iter().collect();
            all.sort_unstable_by_key(|(_, depth)| std::cmp::Reverse(depth.live()));
            all.truncate(MAX_SERIES);
            depths = all.into_iter().collect();
        }
        self.depths = depths;
    }

    /// Takes the jobs of the series in their latest points, from before the start.
    pub fn restore(&mut self, lasting: HashMap<Series, Point>) {
        self.recorded = lasting.into_iter().map(|(series, point)| (series, point.depth)).collect();
    }

    /// Ends the step: what happened to the series, without their jobs.
    pub fn take_counts(&mut self) -> HashMap<Series, Point> {
        self.series = 0;
        let mut points = HashMap::new();
        for (queue, of_queue) in std::mem::take(&mut self.queues) {
            let series = |job_type| Series { queue: queue.clone(), job_type };
            points.insert(series(None), point_of(&of_queue.all));
            for (job_type, counts) in of_queue.types {
                points.insert(series(Some(job_type)), point_of(&counts));
            }
        }
        points
    }

    /// Ends the step: the points of the series to which something happened, and of those with other
    /// jobs than in their latest point.
    pub fn take(&mut self) -> Vec<(Series, Point)> {
        let mut points = self.take_counts();
        let gone: Vec<Series> =
            self.recorded.keys().filter(|of| !self.depths.contains_key(of)).cloned().collect();
        let now = self.depths.iter().map(|(of, depth)| (of.clone(), *depth));
        for (series, depth) in now.chain(gone.into_iter().map(|of| (of, Depth::default()))) {
            let has_changed = self.recorded.get(&series).copied().unwrap_or_default() != depth;
            if has_changed {
                points.entry(series.clone()).or_default();
            }
            if let Some(point) = points.get_mut(&series) {
                point.depth = depth;
            }
            if depth.live() > 0 {
                self.recorded.insert(series, depth);
            } else {
                self.recorded.remove(&series);
            }
        }
        let mut points: Vec<_> = points.into_iter().collect();
        points.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        points.truncate(2 * MAX_SERIES);
        points
    }
}

fn point_of(counts: &Counts) -> Point {
    Point {
        enqueued: counts.enqueued,
        started: counts.started,
        finished: counts.finished,
        failed: counts.failed,
        start_delay: counts.start_delay.quantiles(),
        run_time: counts.run_time.quantiles(),
        depth: Depth::default(),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_engine::testkit::builders::{job, name};

    use super::*;

    fn depths(ready: u32) -> HashMap<Series, Depth> {
        let series = Series { queue: name("q"), job_type: None };
        [(series, Depth { ready, ..Depth::default() })].into()
    }

    #[test]
    fn a_step_has_a_queue_and_its_types() {
        let mut recorder = Recorder::default();
        let jobs =
            ["a", "a", "b"].map(|kind| Enqueued::added(job(kind).queue("q").of_type(kind).build()));
        recorder.enqueued(jobs.iter());
        let points = recorder.take();
        let shown: Vec<_> = points
            .iter()
            .map(|(of, point)| (of.job_type.as_ref().map(TypeName::as_str), point.enqueued))
            .collect();
        assert_eq!(shown, [(None, 3), (Some("a"), 2), (Some("b"), 1)]);
        assert!(recorder.take().is_empty(), "nothing more has happened");
    }

    #[test]
    fn waiting_jobs_are_recorded_when_their_number_changes() {
        let mut recorder = Recorder::default();
        let ready = |recorder: &mut Recorder| {
            recorder.take().iter().map(|(_, point)| point.depth.ready).collect::<Vec<_>>()
        };
        recorder.measured(depths(5), &BTreeSet::new());
        assert_eq!(ready(&mut recorder), [5]);
        assert!(ready(&mut recorder).is_empty());
        recorder.measured(depths(4), &BTreeSet::new());
        // A queue that could not be counted keeps its number.
        recorder.measured(HashMap::new(), &[name("q")].into());
        assert_eq!(ready(&mut recorder), [4]);
        recorder.measured(HashMap::new(), &BTreeSet::new());
        assert_eq!(ready(&mut recorder), [0]);
        assert!(ready(&mut recorder).is_empty());
    }

    #[test]
    fn quantiles_are_within_their_error() {
        let mut durations = Durations::default();
        assert_eq!(durations.quantiles(), None);
        (1..=1000).for_each(|millis| durations.add(f64::from(millis) / 1000.0));
        let quantiles = durations.quantiles().unwrap();
        for (quantile, exact) in quantiles.into_iter().zip([0.5, 0.95, 0.99]) {
            assert!((f64::from(quantile) - exact).abs() <= exact * 0.06, "{quantiles:?}");
        }
    }

    #[test]
    fn the_series_of_a_step_are_bounded() {
        let mut recorder = Recorder::default();
        let jobs: Vec<Enqueued> = (0..3 * MAX_SERIES)
            .map(|n| Enqueued::added(job(&format!("j{n}")).queue(&format!("q{n}")).build()))
            .collect();
        recorder.enqueued(jobs.iter());
        assert_eq!(recorder.take().len(), MAX_SERIES);
        recorder.enqueued(jobs.iter());
        assert_eq!(recorder.take().len(), MAX_SERIES, "the next step has its own");
    }
}
