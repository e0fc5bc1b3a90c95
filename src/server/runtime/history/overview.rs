//! The history of many queues at once, in minutes, by one pass over the steps.

use std::collections::HashMap;

use super::{
    MAX_READ_AGE, SWEPT_STEP, THROUGHPUT_SPAN,
    pool::Pool,
    quantiles,
    source::Source,
    step_of,
    steps::{Depth, Point, Series, Steps},
    time_to_empty,
};
use crate::runtime::{Error, Server};
use tidegate_api::{HistoryRange, OverviewMinute, Quantiles, Throughput};
use tidegate_core::{job::QueueName, time::Timestamp};

/// The last hour of a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::runtime) struct QueueHour {
    /// The minutes in which something happened, oldest first.
    pub minutes: Vec<OverviewMinute>,
    /// The rates of the last five minutes, or since the first start.
    pub throughput: Throughput,
    /// In how many seconds no job is due or runs any more.
    pub time_to_empty_seconds: Option<f64>,
    /// The start delay of the attempts of the last five minutes.
    pub start_delay_seconds: Option<Quantiles>,
}

/// What the pass over the steps gathers of a queue.
#[derive(Default)]
struct Gathered {
    minutes: Vec<OverviewMinute>,
    enqueued: u64,
    finished: u64,
    failed: u64,
    /// The jobs after the last step before the span of the throughput.
    before: Depth,
    delays: Pool,
}

impl Gathered {
    fn add(&mut self, at: Timestamp, point: &Point, source: Source) {
        let minute = step_of(at, SWEPT_STEP);
        if self.minutes.last().is_none_or(|last| last.at != minute) {
            let enqueued = source.counts_starts().then_some(0);
            self.minutes.push(OverviewMinute { at: minute, enqueued, ..OverviewMinute::default() });
        }
        let Some(last) = self.minutes.last_mut() else { return };
        last.enqueued = last.enqueued.map(|jobs| jobs + u64::from(point.enqueued));
        last.finished += u64::from(point.finished);
        last.failed += u64::from(point.failed);
        last.ready = point.depth.ready.into();
        last.running = point.depth.running.into();
    }

    fn add_recent(&mut self, point: &Point) {
        self.enqueued += u64::from(point.enqueued);
        self.finished += u64::from(point.finished);
        self.failed += u64::from(point.failed);
        if let Some(delay) = point.start_delay {
            self.delays.add(point.started, delay);
        }
    }
}

/// The hours of `queues` from the first to the second instant, which is now, in their order.
pub(super) fn hours<'a>(
    steps: &Steps<Point>,
    queues: impl Iterator<Item = &'a QueueName> + Clone,
    (since, now): (Timestamp, Timestamp),
    source: Source,
) -> Vec<QueueHour> {
    let step = source.step();
    // Whole steps: the last one has just ended, and is known.
    let end = step_of(now - source.delay(), step);
    let span = end.since(step_of(since, step)).clamp(step, THROUGHPUT_SPAN);
    let begin = end - span;
    let mut gathered: HashMap<&QueueName, Gathered> =
        queues.clone().map(|queue| (queue, Gathered::default())).collect();
    for (at, series, point) in steps.all(now) {
        if series.job_type.is_some() {
            continue;
        }
        let Some(of_queue) = gathered.get_mut(&series.queue) else { continue };
        of_queue.add(at, point, source);
        if at < begin {
            of_queue.before = point.depth;
        } else if at < end {
            of_queue.add_recent(point);
        }
    }
    let over_seconds = span.as_secs_f64();
    let rate = |jobs: u64| jobs as f64 / over_seconds;
    let hour = |queue: &QueueName| {
        let Gathered { minutes, enqueued, finished, failed, before, delays } =
            gathered.remove(queue).unwrap_or_default();
        let depth = steps.depth(&Series { queue: queue.clone(), job_type: None });
        QueueHour {
            minutes,
            throughput: Throughput {
                over_seconds,
                enqueued_per_second: source.counts_starts().then(|| rate(enqueued)),
                finished_per_second: rate(finished),
                failed_per_second: rate(failed),
            },
            time_to_empty_seconds: time_to_empty(before, depth, over_seconds),
            start_delay_seconds: delays.quantiles().map(quantiles),
        }
    };
    queues.map(hour).collect()
}

impl Server {
    /// The last hours of `queues`, in their order.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(in crate::runtime) async fn queue_hours<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueueName> + Clone + Send,
    ) -> Result<Vec<QueueHour>, Error> {
        let source = self.inner.history_source();
        if source.is_shared() {
            self.read_new_steps(HistoryRange::Hour, MAX_READ_AGE).await?;
        }
        let now = self.now();
        let state = self.inner.history.state.lock();
        let since = state.known_since(now, source);
        Ok(hours(&state.queues.hour.steps, queues, (since, now), source))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_engine::testkit::builders::name;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    /// Steps of a queue: each takes 10 jobs and ends 9.
    fn steps(count: i64) -> Steps<Point> {
        let mut steps = Steps::new(HistoryRange::Hour);
        for step in 0..count {
            let depth =
                Depth { ready: u32::try_from(step).unwrap(), running: 2, ..Depth::default() };
            let point = Point {
                enqueued: 10,
                started: 4,
                finished: 9,
                failed: 1,
                start_delay: Some([0.1, 0.2, 0.3]),
                depth,
                ..Point::default()
            };
            let of = |job_type| (Series { queue: name("q"), job_type }, point);
            steps.push(at(step * 10), vec![of(None), of(Some(name("t")))]);
        }
        steps
    }

    fn hour_of(steps: &Steps<Point>, queue: &str, now: Timestamp) -> QueueHour {
        let queue = name(queue);
        let mut hours = hours(steps, [&queue].into_iter(), (at(0), now), Source::OneServer);
        hours.pop().unwrap()
    }

    #[test]
    fn steps_are_gathered_in_minutes() {
        let hour = hour_of(&steps(13), "q", at(130));
        let minutes: Vec<_> = hour
            .minutes
            .iter()
            .map(|minute| (minute.at, minute.enqueued, minute.finished, minute.ready))
            .collect();
        let expected =
            [(at(0), Some(60), 54, 5), (at(60), Some(60), 54, 11), (at(120), Some(10), 9, 12)];
        assert_eq!(minutes, expected, "types count in their queue");
        assert_eq!(hour_of(&steps(13), "other", at(130)).minutes, []);
    }

    #[test]
    fn rates_are_those_of_the_history_of_one_queue() {
        for (count, now) in [(13, 130), (60, 605), (60, 700)] {
            let (steps, now) = (steps(count), at(now));
            let hour = hour_of(&steps, "q", now);
            let series = Series { queue: name("q"), job_type: None };
            let history = super::super::view(&steps, &series, (at(0), now), Source::OneServer);
            assert_eq!(hour.throughput, history.throughput);
            assert_eq!(hour.time_to_empty_seconds, history.time_to_empty_seconds);
        }
    }
}
