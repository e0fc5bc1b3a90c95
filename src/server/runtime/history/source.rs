//! Where the steps of the history come from, and the read of those that other processes stored.

use std::time::Duration;

use super::{
    MAX_READ_AGE, STEP, SWEPT_STEP, State,
    merged::MERGE_DELAY,
    steps::{Point, Sample},
    timeline::{StoredPoint, Timeline, plain_points, read, read_records},
    workers::WorkerPoint,
};
use crate::runtime::{Error, Inner, Server, shared::PART_INTERVAL};
use tidegate_api::HistoryRange;
use tidegate_core::time::Timestamp;

/// Which processes count what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// This one, which has its store to itself.
    OneServer,
    /// Several servers that share a store. One adds up what all have counted.
    Servers,
    /// The leader of a log, whose steps a standby reads.
    Leader,
    /// None: functions take what happened from the differences between two sweeps.
    Sweeps,
}

impl Source {
    /// How long a step of the hour is.
    pub fn step(self) -> Duration {
        match self {
            Self::OneServer | Self::Leader => STEP,
            Self::Servers | Self::Sweeps => SWEPT_STEP,
        }
    }

    /// How long after its end a step may be missing here.
    pub fn delay(self) -> Duration {
        match self {
            Self::Servers => MERGE_DELAY + PART_INTERVAL + MAX_READ_AGE,
            Self::Leader => STEP + MAX_READ_AGE,
            Self::OneServer | Self::Sweeps => Duration::ZERO,
        }
    }

    /// Whether other processes store steps, too.
    pub fn is_shared(self) -> bool {
        self != Self::OneServer
    }

    /// Whether it is counted what came and started.
    pub fn counts_starts(self) -> bool {
        self != Self::Sweeps
    }
}

impl Inner {
    /// Where its history comes from.
    pub(super) fn history_source(&self) -> Source {
        if self.is_standby {
            Source::Leader
        } else if self.is_serverless() {
            Source::Sweeps
        } else if self.shares_store() {
            Source::Servers
        } else {
            Source::OneServer
        }
    }
}

impl Server {
    /// Reads the steps of queues and types that other processes stored, unless that was done less than
    /// `max_age` ago.
    pub(super) async fn read_new_steps(
        &self,
        range: HistoryRange,
        max_age: Duration,
    ) -> Result<(), Error> {
        let add = |state: &mut State, at, points: Vec<StoredPoint<Point>>| match range {
            HistoryRange::Hour => state.add_swept(at, points),
            HistoryRange::Day => state.queues.add(range, (at, plain_points(points))),
        };
        self.read_new(range, max_age, |state| &mut state.queues, add).await
    }

    /// As [`Self::read_new_steps`], those of workers.
    pub(super) async fn read_new_worker_steps(
        &self,
        range: HistoryRange,
        max_age: Duration,
    ) -> Result<(), Error> {
        let add = |state: &mut State, at, points: Vec<StoredPoint<WorkerPoint>>| {
            state.workers.add(range, (at, plain_points(points)));
        };
        self.read_new(range, max_age, |state| &mut state.workers, add).await
    }

    /// Reads the steps of a timeline, and has each added.
    async fn read_new<P: Sample>(
        &self,
        range: HistoryRange,
        max_age: Duration,
        of: impl Fn(&mut State) -> &mut Timeline<P>,
        add: impl Fn(&mut State, Timestamp, Vec<StoredPoint<P>>),
    ) -> Result<(), Error> {
        let (engine, now) = (&self.inner.engine, self.now());
        let read_before = of(&mut self.inner.history.state.lock()).known(range).read.clone();
        if read_before.as_ref().is_some_and(|(_, at)| *at <= now && now.since(*at) < max_age) {
            return Ok(());
        }
        let after = read_before.map(|(name, _)| name);
        let records = read_records::<P>(engine, range, after).await?;
        let mut state = self.inner.history.state.lock();
        for (at, points) in records.iter().filter_map(read::<P>) {
            add(&mut state, at, points);
        }
        let known = of(&mut state).known(range);
        let before = known.read.take().map(|(name, _)| name);
        let last = records.last().map(|record| record.name.clone()).or(before);
        known.read = Some((last.unwrap_or_default(), now));
        Ok(())
    }
}
