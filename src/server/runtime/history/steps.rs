//! The recorded steps: a ring that is bounded in time and in memory.
//!
//! There is one for queues and types, and one for workers, whose points have other numbers: see
//! [`Sample`].

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidegate_api::HistoryRange;
use tidegate_core::{
    job::{QueueName, TypeName},
    time::Timestamp,
};

use super::pool::Pool;

/// How much of the past is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// How far back the steps go.
    pub span: Duration,
    /// Most points of all steps together.
    pub points: usize,
    /// Most series of all steps together.
    pub series: usize,
}

/// How far back the steps of a range go.
pub(super) fn span_of(range: HistoryRange) -> Duration {
    match range {
        HistoryRange::Hour => Duration::from_hours(1),
        HistoryRange::Day => Duration::from_hours(24),
    }
}

/// What happened to a series in a step.
pub(super) trait Sample: Copy + Default + Serialize + DeserializeOwned {
    /// What a series is of.
    type Series: Clone + Ord + std::hash::Hash + Serialize + DeserializeOwned;
    /// The numbers that last until the next point of the series.
    type Lasting: Copy + Default;

    /// How much of a range is kept.
    fn bounds(range: HistoryRange) -> Bounds;

    /// What the names of the records of a range begin with.
    fn prefix(range: HistoryRange) -> &'static str;

    /// Whether it has numbers that last until the next point of the series.
    fn lasts(&self) -> bool;

    /// Replaces these numbers.
    fn set_lasting(&mut self, lasting: Self::Lasting);

    /// Those of several steps, in their order, as one.
    fn sum<'a>(points: impl Iterator<Item = &'a Self>) -> Self
    where
        Self: 'a;
}

/// A queue, or a type in its queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Series {
    pub queue: QueueName,
    pub job_type: Option<TypeName>,
}

/// The jobs of a series at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Depth {
    #[serde(skip_serializing_if = "is_zero")]
    pub scheduled: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub ready: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub retrying: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub running: u32,
    /// The weight that runs; none for a type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The concurrency limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl Depth {
    /// The jobs that have not ended.
    pub fn live(&self) -> u64 {
        [self.scheduled, self.ready, self.retrying, self.running].map(u64::from).iter().sum()
    }
}

/// What happened to a series in a step, and its jobs at the end of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Point {
    #[serde(skip_serializing_if = "is_zero")]
    pub enqueued: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub started: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub finished: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u32,
    /// Seconds: the quantiles 0.5, 0.95 and 0.99.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_delay: Option<[f32; 3]>,
    /// Seconds: the quantiles 0.5, 0.95 and 0.99.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_time: Option<[f32; 3]>,
    #[serde(flatten)]
    pub depth: Depth,
}

impl Sample for Point {
    type Series = Series;
    type Lasting = Depth;

    /// An hour takes about 2 MB and a day about 3 MB, and the series 0.5 MB.
    fn bounds(range: HistoryRange) -> Bounds {
        let points = match range {
            HistoryRange::Hour => 22_000,
            HistoryRange::Day => 34_000,
        };
        Bounds { span: span_of(range), points, series: 2000 }
    }

    /// Instants of the next million years begin with a zero.
    fn prefix(range: HistoryRange) -> &'static str {
        match range {
            HistoryRange::Hour => "0",
            HistoryRange::Day => "day-",
        }
    }

    fn lasts(&self) -> bool {
        self.depth.live() > 0
    }

    fn set_lasting(&mut self, depth: Depth) {
        self.depth = depth;
    }

    /// Quantiles are pooled. Those of run times weigh as much as jobs ended in their step: how many
    /// attempts ended is not kept.
    fn sum<'a>(points: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        let (mut delays, mut times) = (Pool::default(), Pool::default());
        for point in points {
            sum.enqueued = sum.enqueued.saturating_add(point.enqueued);
            sum.started = sum.started.saturating_add(point.started);
            sum.finished = sum.finished.saturating_add(point.finished);
            sum.failed = sum.failed.saturating_add(point.failed);
            sum.depth = point.depth;
            if let Some(delay) = point.start_delay {
                delays.add(point.started, delay);
            }
            if let Some(time) = point.run_time {
                times.add(point.finished.max(1), time);
            }
        }
        sum.start_delay = delays.quantiles();
        sum.run_time = times.quantiles();
        sum
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// One step.
pub(super) struct Step<P: Sample> {
    /// When it began.
    pub at: Timestamp,
    /// In the order of the series.
    pub points: Vec<(Arc<P::Series>, P)>,
}

impl<P: Sample> Step<P> {
    /// The point of a series.
    fn point(&self, series: &P::Series) -> Option<&P> {
        let found = self.points.binary_search_by(|(of, _)| (**of).cmp(series)).ok()?;
        Some(&self.points[found].1)
    }
}

/// The steps of the last hour or day, oldest first. Of too many points the oldest steps go first.
pub(super) struct Steps<P: Sample> {
    bounds: Bounds,
    ring: VecDeque<Step<P>>,
    points: usize,
    /// The series of the points, so that each is kept once.
    series: HashSet<Arc<P::Series>>,
    /// The latest point of each series.
    latest: HashMap<Arc<P::Series>, P>,
}

impl<P: Sample> Steps<P> {
    /// No steps yet.
    pub fn new(range: HistoryRange) -> Self {
        Self {
            bounds: P::bounds(range),
            ring: VecDeque::new(),
            points: 0,
            series: HashSet::new(),
            latest: HashMap::new(),
        }
    }

    /// Adds a step, which is later than the ones before.
    pub fn push(&mut self, at: Timestamp, points: Vec<(P::Series, P)>) {
        let mut step = Step { at, points: Vec::with_capacity(points.len()) };
        for (series, point) in points.into_iter().take(self.bounds.points) {
            let series =
                self.series.get(&series).map_or_else(|| Arc::new(series.clone()), Arc::clone);
            self.series.insert(Arc::clone(&series));
            self.latest.insert(Arc::clone(&series), point);
            step.points.push((series, point));
        }
        step.points.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        self.points += step.points.len();
        self.ring.push_back(step);
        while let Some(oldest) = self.ring.front() {
            let is_over = oldest.at + self.bounds.span <= at || self.points > self.bounds.points;
            if !is_over && self.series.len() <= self.bounds.series {
                break;
            }
            self.points -= oldest.points.len();
            self.ring.pop_front();
            self.forget();
        }
    }

    /// Forgets the series without points. Those whose numbers last are kept.
    fn forget(&mut self) {
        // One reference is in the set, and one in the latest points.
        self.latest.retain(|series, point| point.lasts() || Arc::strong_count(series) > 2);
        self.series.retain(|series| Arc::strong_count(series) > 1);
    }

    /// The steps of the span before `now`, oldest first.
    fn recent(&self, now: Timestamp) -> impl Iterator<Item = &Step<P>> {
        let span = self.bounds.span;
        self.ring.iter().skip_while(move |step| step.at + span <= now)
    }

    /// The steps that began from the first instant on and before the second, as one.
    pub fn sum(&self, (from, to): (Timestamp, Timestamp)) -> Vec<(P::Series, P)> {
        let steps = self.ring.range(self.ring.partition_point(|step| step.at < from)..);
        let steps: Vec<_> = steps.take_while(|step| step.at < to).collect();
        let series: BTreeSet<_> =
            steps.iter().flat_map(|step| step.points.iter().map(|(of, _)| of)).collect();
        let sum = |series: &Arc<P::Series>| {
            let points = steps.iter().filter_map(|step| step.point(series));
            (P::Series::clone(series), P::sum(points))
        };
        series.into_iter().map(sum).collect()
    }

    /// All points of the span before `now`, oldest first.
    pub fn all(&self, now: Timestamp) -> impl Iterator<Item = (Timestamp, &P::Series, &P)> {
        self.recent(now).flat_map(|step| {
            step.points.iter().map(move |(series, point)| (step.at, &**series, point))
        })
    }

    /// When the oldest step of the span before `now` began.
    pub fn from(&self, now: Timestamp) -> Option<Timestamp> {
        self.recent(now).next().map(|step| step.at)
    }

    /// When the latest step began.
    pub fn latest_at(&self) -> Option<Timestamp> {
        self.ring.back().map(|step| step.at)
    }

    /// The points of a series in the span before `now`, oldest first.
    pub fn of<'a>(
        &'a self,
        series: &'a P::Series,
        now: Timestamp,
    ) -> impl Iterator<Item = (Timestamp, &'a P)> {
        self.recent(now).filter_map(|step| Some((step.at, step.point(series)?)))
    }

    /// The latest points whose numbers last.
    pub fn lasting(&self) -> HashMap<P::Series, P> {
        let lasting = self.latest.iter().filter(|(_, point)| point.lasts());
        lasting.map(|(series, point)| (P::Series::clone(series), *point)).collect()
    }
}

impl Steps<Point> {
    /// The jobs of a series after the latest step.
    pub fn depth(&self, series: &Series) -> Depth {
        self.latest.get(series).map_or_else(Depth::default, |point| point.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(number: usize) -> Series {
        Series { queue: format!("q{number}").parse().unwrap(), job_type: None }
    }

    fn point(ready: u32) -> Point {
        Point { enqueued: 1, depth: Depth { ready, ..Depth::default() }, ..Point::default() }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    #[test]
    fn steps_of_an_hour_are_kept() {
        let mut steps = Steps::<Point>::new(HistoryRange::Hour);
        for step in 0..1000 {
            let others = [3, 2].map(|other| (series(other), point(1)));
            let points = others.into_iter().chain([(series(0), point(5))]);
            steps.push(at(step * 10), points.collect());
        }
        let now = at(9995);
        assert_eq!((steps.from(now), steps.latest_at()), (Some(at(6400)), Some(at(9990))));
        assert_eq!(steps.of(&series(0), now).count(), 360);
        assert_eq!(steps.of(&series(1), now).count(), 0);
        assert_eq!(steps.of(&series(0), at(12_000)).count(), 159, "the last hour");
        assert_eq!(steps.depth(&series(0)).ready, 5);
    }

    #[test]
    fn many_series_shorten_the_history_and_take_bounded_memory() {
        // The same series in each step, and others in each.
        let Bounds { points: most, series: most_series, .. } = Point::bounds(HistoryRange::Hour);
        for (others, left) in [(0, most / 400), (400, most_series / 400)] {
            let mut steps = Steps::<Point>::new(HistoryRange::Hour);
            for step in 0..300 {
                let points = (0..400).map(|n| (series(step * others + n), point(0)));
                steps.push(at(step as i64 * 10), points.collect());
                assert!(steps.points <= most && steps.series.len() <= most_series);
                assert!(steps.latest.len() <= most_series);
            }
            assert_eq!(steps.ring.len(), left);
        }
        let point_bytes = size_of::<(Arc<Series>, Point)>();
        for (range, most) in [(HistoryRange::Hour, 1_950_000), (HistoryRange::Day, 3_000_000)] {
            assert!(point_bytes * Point::bounds(range).points <= most, "{point_bytes}");
        }
    }

    #[test]
    fn the_sum_of_steps_has_what_happened_in_them() {
        let mut steps = Steps::<Point>::new(HistoryRange::Hour);
        for step in 0..60 {
            let point = Point {
                enqueued: 2,
                started: if step == 29 { 96 } else { 4 },
                finished: 3,
                failed: 1,
                start_delay: Some(if step == 29 { [5.0; 3] } else { [0.1, 0.2, 0.3] }),
                run_time: Some([1.0, 2.0, 3.0]),
                depth: Depth { ready: step, ..Depth::default() },
            };
            let quiet = (step == 7).then(|| (series(1), point));
            let points = [(series(0), point)].into_iter().chain(quiet);
            steps.push(at(i64::from(step) * 10), points.collect());
        }
        let sums = steps.sum((at(0), at(300)));
        let [(first, sum), (second, of_one)] = &sums[..] else { panic!("{sums:?}") };
        assert_eq!((first, second), (&series(0), &series(1)));
        let counts = |sum: &Point| (sum.enqueued, sum.started, sum.finished, sum.failed);
        assert_eq!(counts(sum), (60, 29 * 4 + 96, 90, 30));
        assert_eq!((sum.depth.ready, of_one.depth.ready), (29, 7), "the jobs at the end");
        // 96 of 212 attempts waited for 5 s.
        let [p50, p95, p99] = sum.start_delay.unwrap();
        assert!(p50 < 0.5 && (p95, p99) == (5.0, 5.0), "{p50} {p95} {p99}");
        assert_eq!(of_one.run_time, Some([1.0, 2.0, 3.0]));
        assert_eq!(counts(of_one), (2, 4, 3, 1));
        assert_eq!(steps.sum((at(600), at(900))), []);
    }

    #[test]
    fn a_waiting_series_is_known_after_its_last_step_has_gone() {
        let mut steps = Steps::<Point>::new(HistoryRange::Hour);
        steps.push(at(0), vec![(series(0), point(7)), (series(1), point(0))]);
        steps.push(at(10_000), vec![(series(2), point(0))]);
        assert_eq!(steps.depth(&series(0)).ready, 7);
        assert!(!steps.latest.contains_key(&series(1)));
    }

    #[test]
    fn a_point_is_stored_without_zeros() {
        let text = serde_json::to_string(&(series(0), point(3))).unwrap();
        assert_eq!(text, r#"[{"queue":"q0","job_type":null},{"enqueued":1,"ready":3}]"#);
        let read: (Series, Point) = serde_json::from_str(&text).unwrap();
        assert_eq!(read, (series(0), point(3)));
    }
}
