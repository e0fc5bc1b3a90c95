//! The recorded steps: a ring that is bounded in time and in memory.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tidegate_core::{
    job::{QueueName, TypeName},
    time::Timestamp,
};

/// How far back the steps go.
pub(super) const SPAN: Duration = Duration::from_hours(1);
/// Most points of all steps together: about 2 MB.
const MAX_POINTS: usize = 25_000;
/// Most series of all steps together: about 0.5 MB.
const MAX_SERIES: usize = 2000;

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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    /// When it began.
    pub at: Timestamp,
    /// In the order of the series.
    pub points: Vec<(Arc<Series>, Point)>,
}

/// The steps of the last hour, oldest first. Of too many points the oldest steps go first.
#[derive(Default)]
pub(super) struct Steps {
    ring: VecDeque<Step>,
    points: usize,
    /// The series of the points, so that each is kept once.
    series: HashSet<Arc<Series>>,
    /// The latest point of each series.
    latest: HashMap<Arc<Series>, Point>,
}

impl Steps {
    /// Adds a step, which is later than the ones before.
    pub fn push(&mut self, at: Timestamp, points: Vec<(Series, Point)>) {
        let mut step = Step { at, points: Vec::with_capacity(points.len()) };
        for (series, point) in points.into_iter().take(MAX_POINTS) {
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
            let is_over = oldest.at + SPAN <= at || self.points > MAX_POINTS;
            if !is_over && self.series.len() <= MAX_SERIES {
                break;
            }
            self.points -= oldest.points.len();
            self.ring.pop_front();
            self.forget();
        }
    }

    /// Forgets the series without points. Those with waiting jobs are kept.
    fn forget(&mut self) {
        // One reference is in the set, and one in the latest points.
        self.latest.retain(|series, point| point.depth.live() > 0 || Arc::strong_count(series) > 2);
        self.series.retain(|series| Arc::strong_count(series) > 1);
    }

    /// The steps of the hour before `now`, oldest first.
    fn recent(&self, now: Timestamp) -> impl Iterator<Item = &Step> {
        self.ring.iter().skip_while(move |step| step.at + SPAN <= now)
    }

    /// All points of the hour before `now`, oldest first.
    pub fn all(&self, now: Timestamp) -> impl Iterator<Item = (Timestamp, &Series, &Point)> {
        self.recent(now).flat_map(|step| {
            step.points.iter().map(move |(series, point)| (step.at, &**series, point))
        })
    }

    /// When the oldest step of the hour before `now` began.
    pub fn from(&self, now: Timestamp) -> Option<Timestamp> {
        self.recent(now).next().map(|step| step.at)
    }

    /// When the latest step began.
    pub fn latest_at(&self) -> Option<Timestamp> {
        self.ring.back().map(|step| step.at)
    }

    /// The points of a series in the hour before `now`, oldest first.
    pub fn of<'a>(
        &'a self,
        series: &'a Series,
        now: Timestamp,
    ) -> impl Iterator<Item = (Timestamp, &'a Point)> {
        let point = |step: &'a Step| {
            let found = step.points.binary_search_by(|(of, _)| (**of).cmp(series)).ok()?;
            Some((step.at, &step.points[found].1))
        };
        self.recent(now).filter_map(point)
    }

    /// The series with jobs after the latest step.
    pub fn depths(&self) -> HashMap<Series, Depth> {
        let live = self.latest.iter().filter(|(_, point)| point.depth.live() > 0);
        live.map(|(series, point)| (Series::clone(series), point.depth)).collect()
    }

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
        let mut steps = Steps::default();
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
        for (others, left) in [(0, MAX_POINTS / 400), (400, MAX_SERIES / 400)] {
            let mut steps = Steps::default();
            for step in 0..300 {
                let points = (0..400).map(|n| (series(step * others + n), point(0)));
                steps.push(at(step as i64 * 10), points.collect());
                assert!(steps.points <= MAX_POINTS && steps.series.len() <= MAX_SERIES);
                assert!(steps.latest.len() <= MAX_SERIES);
            }
            assert_eq!(steps.ring.len(), left);
        }
        let point_bytes = size_of::<(Arc<Series>, Point)>();
        assert!(point_bytes * MAX_POINTS <= 2_200_000, "{point_bytes}");
    }

    #[test]
    fn a_waiting_series_is_known_after_its_last_step_has_gone() {
        let mut steps = Steps::default();
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
