//! The history of each worker: the attempts that ended there, and those that run there.
//!
//! It counts attempts, where a queue counts jobs: a job that fails at one worker and succeeds at
//! another shows what is wrong with the first. Workers without a name have none.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::{
    MAX_READ_AGE, seconds_of,
    steps::{Bounds, Sample, is_zero, span_of},
    timeline::DAY_STEP,
};
use crate::runtime::{Error, Inner, Server, workers::check_name};
use tidegate_api::{HistoryRange, WorkerHistory, WorkerHistoryPoint};
use tidegate_core::job::{Job, Outcome, lifecycle::AttemptRecord};

/// Most workers of a step; what happens at others is not recorded.
pub(super) const MAX_WORKERS: usize = 400;

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct WorkerName {
    worker: String,
}

/// What happened at a worker in a step, and what ran there at the end of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct WorkerPoint {
    #[serde(skip_serializing_if = "is_zero")]
    finished: u32,
    #[serde(skip_serializing_if = "is_zero")]
    failed: u32,
    #[serde(skip_serializing_if = "is_zero")]
    running: u32,
}

impl Sample for WorkerPoint {
    type Series = WorkerName;
    type Lasting = u32;

    /// Each range takes about 0.4 MB, and its series 0.2 MB.
    fn bounds(range: HistoryRange) -> Bounds {
        Bounds { span: span_of(range), points: 15_000, series: 600 }
    }

    fn prefix(range: HistoryRange) -> &'static str {
        match range {
            HistoryRange::Hour => "worker-hour-",
            HistoryRange::Day => "worker-day-",
        }
    }

    fn lasts(&self) -> bool {
        self.running > 0
    }

    fn set_lasting(&mut self, running: u32) {
        self.running = running;
    }

    fn sum<'a>(points: impl Iterator<Item = &'a Self>) -> Self {
        points.fold(Self::default(), |sum, point| Self {
            finished: sum.finished.saturating_add(point.finished),
            failed: sum.failed.saturating_add(point.failed),
            running: point.running,
        })
    }
}

/// The step under way.
#[derive(Default)]
pub(super) struct WorkerRecorder {
    ended: HashMap<String, WorkerPoint>,
    /// What ran at each worker at the end of its latest point.
    recorded: HashMap<String, u32>,
}

impl WorkerRecorder {
    /// Counts an attempt that ended.
    pub fn attempt_ended(&mut self, entry: &AttemptRecord) {
        let Some(worker) = &entry.worker else { return };
        if !self.ended.contains_key(worker) {
            if self.ended.len() >= MAX_WORKERS {
                return;
            }
            self.ended.insert(worker.clone(), WorkerPoint::default());
        }
        if let Some(point) = self.ended.get_mut(worker) {
            point.finished += 1;
            point.failed += u32::from(entry.outcome == Outcome::Failed);
        }
    }

    /// Takes what ran at each worker in its latest point, from before the start.
    pub fn restore(&mut self, lasting: HashMap<WorkerName, WorkerPoint>) {
        let running = lasting.into_iter().map(|(of, point)| (of.worker, point.running));
        self.recorded = running.collect();
    }

    /// Ends the step: the workers at which an attempt ended, without what runs there.
    pub fn take_ended(&mut self) -> Vec<(WorkerName, WorkerPoint)> {
        let ended = std::mem::take(&mut self.ended).into_iter();
        ended.map(|(worker, point)| (WorkerName { worker }, point)).collect()
    }

    /// Ends the step: the points of the workers at which an attempt ended, and of those that run
    /// another number of jobs than in their latest point.
    pub fn take(&mut self, running: &BTreeMap<String, u64>) -> Vec<(WorkerName, WorkerPoint)> {
        let mut points: BTreeMap<String, WorkerPoint> =
            std::mem::take(&mut self.ended).into_iter().collect();
        let runs = |worker: &str| number(running.get(worker).copied().unwrap_or_default());
        let known = |worker: &str| self.recorded.get(worker).copied().unwrap_or_default();
        for worker in running.keys().chain(self.recorded.keys()) {
            let has_changed = known(worker) != runs(worker);
            if has_changed && (points.len() < MAX_WORKERS || points.contains_key(worker)) {
                points.entry(worker.clone()).or_default();
            }
        }
        for (worker, point) in &mut points {
            point.running = runs(worker);
            if point.running > 0 {
                self.recorded.insert(worker.clone(), point.running);
            } else {
                self.recorded.remove(worker);
            }
        }
        points.into_iter().map(|(worker, point)| (WorkerName { worker }, point)).collect()
    }
}

/// A number of jobs, as points have it.
fn number(jobs: u64) -> u32 {
    u32::try_from(jobs).unwrap_or(u32::MAX)
}

/// What runs at each worker, as points have it. Of too many workers, those that run most.
pub(super) fn lasting(running: BTreeMap<String, u64>) -> HashMap<WorkerName, u32> {
    let mut running: Vec<(String, u64)> = running.into_iter().collect();
    running.sort_by_key(|(_, jobs)| std::cmp::Reverse(*jobs));
    running.truncate(MAX_WORKERS);
    let running = running.into_iter();
    running.map(|(worker, jobs)| (WorkerName { worker }, number(jobs))).collect()
}

impl Inner {
    /// Counts the end of the latest attempt of a job that had no report, if the job ended with it or
    /// continues.
    pub(in crate::runtime) fn count_attempt_without_report(&self, job: &Job) {
        // A job that expires, or is cancelled, while it waits has ended after its latest attempt.
        let is_of_now = |entry: &&AttemptRecord| {
            job.ended_at().is_none_or(|ended_at| entry.ended_at == ended_at)
        };
        if let Some(entry) = job.life.history.last().filter(is_of_now)
            && !self.is_serverless()
        {
            self.history.workers.lock().attempt_ended(entry);
        }
    }
}

impl Server {
    /// The history of a worker over a range. One that has left has its history until that is over.
    ///
    /// # Errors
    ///
    /// 400 for a bad name; 404 `worker_not_found`; the store's. Functions have no history of workers,
    /// because none of them knows what others did.
    pub async fn worker_history(
        &self,
        name: &str,
        range: HistoryRange,
    ) -> Result<WorkerHistory, Error> {
        check_name(name)?;
        let worker = WorkerName { worker: name.to_owned() };
        let source = self.inner.history_source();
        if source.is_shared() {
            for range in [HistoryRange::Hour, HistoryRange::Day] {
                self.read_new_worker_steps(range, MAX_READ_AGE).await?;
            }
        }
        let now = self.now();
        let (from, points, has_any) = {
            let state = self.inner.history.state.lock();
            let steps = state.workers.steps(range);
            let shown = |(at, point): (_, &WorkerPoint)| WorkerHistoryPoint {
                at,
                finished: point.finished.into(),
                failed: point.failed.into(),
                running: point.running.into(),
            };
            let has_any = [HistoryRange::Hour, HistoryRange::Day]
                .into_iter()
                .any(|range| state.workers.steps(range).of(&worker, now).next().is_some());
            (steps.from(now), steps.of(&worker, now).map(shown).collect::<Vec<_>>(), has_any)
        };
        if !has_any {
            self.worker(name).await?;
        }
        let step = match range {
            HistoryRange::Hour => source.step(),
            HistoryRange::Day => DAY_STEP,
        };
        Ok(WorkerHistory { step_seconds: seconds_of(step), from, points })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn running(workers: &[(&str, u64)]) -> BTreeMap<String, u64> {
        workers.iter().map(|(worker, jobs)| ((*worker).to_owned(), *jobs)).collect()
    }

    fn taken(recorder: &mut WorkerRecorder, workers: &[(&str, u64)]) -> Vec<(String, u32)> {
        let points = recorder.take(&running(workers)).into_iter();
        points.map(|(of, point)| (of.worker, point.running)).collect()
    }

    #[test]
    fn a_worker_is_recorded_when_its_running_jobs_change() {
        let mut recorder = WorkerRecorder::default();
        assert_eq!(taken(&mut recorder, &[("a", 2), ("b", 1)]), [("a".into(), 2), ("b".into(), 1)]);
        assert_eq!(taken(&mut recorder, &[("a", 2), ("b", 1)]), []);
        assert_eq!(taken(&mut recorder, &[("a", 3)]), [("a".into(), 3), ("b".into(), 0)]);
        assert_eq!(taken(&mut recorder, &[("a", 3)]), []);
        let lasting = WorkerPoint { running: 4, ..WorkerPoint::default() };
        recorder.restore([(WorkerName { worker: "c".into() }, lasting)].into());
        assert_eq!(taken(&mut recorder, &[("c", 4)]), [], "as before the start");
    }

    #[test]
    fn the_workers_of_a_step_have_a_bound() {
        let mut recorder = WorkerRecorder::default();
        let names: Vec<String> = (0..3 * MAX_WORKERS).map(|number| format!("w{number}")).collect();
        let all: Vec<(&str, u64)> = names.iter().map(|name| (&**name, 1)).collect();
        assert_eq!(taken(&mut recorder, &all).len(), MAX_WORKERS);
        assert!(recorder.recorded.len() <= MAX_WORKERS);
        let bytes = size_of::<(Arc<WorkerName>, WorkerPoint)>();
        for range in [HistoryRange::Hour, HistoryRange::Day] {
            let Bounds { points, series, .. } = WorkerPoint::bounds(range);
            assert!(bytes * points <= 400_000 && series >= MAX_WORKERS, "{bytes}");
            // The sum of five minutes needs all of their steps.
            assert!(points >= MAX_WORKERS * 30);
        }
    }
}
