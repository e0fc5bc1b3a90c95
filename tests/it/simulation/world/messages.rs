//! The messages between processes, and the work queue that loses, repeats and delays them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tidegate_core::{
    job::{JobId, QueueName, Version},
    port::{
        Hint, HintKind, Timer, Work, WorkQueue, job_store::StoreError, work_queue::REACH_SECONDS,
    },
    queue::GrantDigest,
    time::Timestamp,
};
use tidegate_engine::request::Report;

use super::{
    super::model::ProcessNumber,
    World,
    config::{MESSAGES_MINUTES_LATE, REQUESTS_MINUTES_LATE},
};

/// The probability that a message arrives minutes late.
const MINUTES_LATE: f64 = 0.1;
/// How late such a message is at least, in seconds; half of them are not much later.
const LEAST_LATE: u64 = 60;
/// How late it is at most: by the longest delay that the work queue has.
const MOST_LATE: [u64; 2] = [3 * LEAST_LATE, REACH_SECONDS];
/// The longest time until a message that was received and not deleted is delivered again, in
/// seconds.
const MAX_VISIBILITY: f64 = 60.0;
/// The longest time between two ticks that sweeps request, while faults are injected and after.
const SWEPT_TICKS: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(4));

/// When a message arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub at: Timestamp,
    pub is_minutes_late: bool,
}

impl From<Timestamp> for Arrival {
    fn from(at: Timestamp) -> Self {
        Self { at, is_minutes_late: false }
    }
}

/// The messages in flight between processes, with their times of arrival.
#[derive(Default)]
pub(super) struct InFlight {
    pub work: Vec<(Arrival, Work)>,
    /// Jobs that were granted to a waiting worker.
    pub offers: Vec<(Arrival, Work)>,
    pub hints: Vec<(Arrival, (JobId, Version))>,
    pub reports: Vec<(Arrival, Report)>,
    /// Requests for ticks: hints that name no job, and timers.
    pub requests: Vec<(Arrival, ())>,
    /// When a sweep last requested a tick.
    pub swept_at: Timestamp,
    /// Results of unclaimed dispatches, each to the process that made the call.
    pub responses: Vec<(Timestamp, (ProcessNumber, Report))>,
    /// What each tick has received and not answered yet, by the index of its engine.
    pub received: BTreeMap<usize, Received>,
    pub jobs: Vec<JobId>,
}

/// The messages that one tick has received.
pub(super) struct Received {
    pub reports: Vec<Report>,
    pub released: Vec<(JobId, Version)>,
}

impl InFlight {
    /// When the last message that is minutes late arrives.
    pub(super) fn last_late(&self) -> Option<Timestamp> {
        let work = self.work.iter().chain(&self.offers).map(|(arrival, _)| *arrival);
        let hints = self.hints.iter().map(|(arrival, _)| *arrival);
        let reports = self.reports.iter().map(|(arrival, _)| *arrival);
        let requests = self.requests.iter().map(|(arrival, ())| *arrival);
        let all = work.chain(hints).chain(reports).chain(requests);
        all.filter(|arrival| arrival.is_minutes_late).map(|arrival| arrival.at).max()
    }

    /// Whether something has arrived by `now` that a tick must see.
    fn has_arrived(&self, now: Timestamp) -> bool {
        self.hints.iter().any(|(arrival, _)| arrival.at <= now)
            || self.reports.iter().any(|(arrival, _)| arrival.at <= now)
            || self.responses.iter().any(|(at, _)| *at <= now)
    }
}

/// When the first of these messages arrives.
pub(super) fn first_arrival<T>(messages: &[(Arrival, T)]) -> Option<Timestamp> {
    messages.iter().map(|(arrival, _)| arrival.at).min()
}

impl World {
    /// Removes and returns the messages that have arrived by `now`, each with whether it is minutes
    /// late.
    pub(super) fn arrived<T>(
        &self,
        of: impl FnOnce(&mut InFlight) -> &mut Vec<(Arrival, T)>,
        now: Timestamp,
    ) -> Vec<(bool, T)> {
        let here: Vec<(Arrival, T)> = {
            let mut in_flight = self.in_flight.lock();
            let line = of(&mut in_flight);
            let (here, later) =
                std::mem::take(line).into_iter().partition(|(arrival, _)| arrival.at <= now);
            *line = later;
            here
        };
        let here: Vec<(bool, T)> =
            here.into_iter().map(|(arrival, item)| (arrival.is_minutes_late, item)).collect();
        for _ in here.iter().filter(|(is_late, _)| *is_late) {
            self.model.lock().count(MESSAGES_MINUTES_LATE);
        }
        here
    }

    /// When a message arrives that is due at `due_at`: at most `usual` seconds later. It may be a fault
    /// of the probability `late.0` that it arrives up to `late.1` seconds later, or else minutes.
    pub(super) fn arrival(&self, due_at: Timestamp, usual: f64, late: (f64, f64)) -> Arrival {
        if self.fault_happens(MINUTES_LATE) {
            let most = self.scheduler.pick(&MOST_LATE) - LEAST_LATE;
            let late = Duration::from_secs(LEAST_LATE) + self.scheduler.span(most as f64);
            return Arrival { at: due_at + late, is_minutes_late: true };
        }
        let (probability, late) = late;
        let late = if self.fault_happens(probability) { late } else { usual };
        Arrival::from(due_at + self.scheduler.span(late))
    }

    /// Requests a tick at `at`, if ticks need requests in this world. The request may be lost, and
    /// may arrive twice.
    pub(super) fn request_tick(&self, at: Timestamp) {
        if !self.config.ticks_requested || self.fault_happens(0.1) {
            return;
        }
        for _ in 0..=usize::from(self.fault_happens(0.2)) {
            let arrival = self.arrival(at.max(self.scheduler.now()), 0.3, (0.2, 20.0));
            self.in_flight.lock().requests.push((arrival, ()));
        }
    }

    /// A sweep requests a tick, unless one has done so recently.
    pub(super) fn request_swept_tick(&self) {
        let now = self.scheduler.now();
        let interval = if self.faults_active() { SWEPT_TICKS.0 } else { SWEPT_TICKS.1 };
        let is_due = {
            let mut in_flight = self.in_flight.lock();
            let is_due = in_flight.swept_at + interval <= now;
            if is_due {
                in_flight.swept_at = now;
            }
            is_due
        };
        if is_due {
            self.request_tick(now);
        }
    }

    /// Waits until the next tick is to start.
    pub(super) async fn await_tick(&self) {
        loop {
            let nap = self.scheduler.span(1.5);
            self.scheduler.elapse(nap + Duration::from_millis(50)).await;
            let now = self.scheduler.now();
            let requests = self.arrived(|in_flight| &mut in_flight.requests, now);
            if requests.iter().any(|(is_late, ())| *is_late) {
                self.model.lock().count(REQUESTS_MINUTES_LATE);
            }
            let is_requested = !self.config.ticks_requested
                || !requests.is_empty()
                || self.in_flight.lock().has_arrived(now);
            if is_requested || self.ticks_off_until().is_some() {
                return;
            }
        }
    }

    /// Waits for `nap`. While no tick sends anything, it waits until the first of the messages
    /// arrives that `next` returns.
    pub(super) async fn rest(&self, nap: Duration, next: impl Fn(&InFlight) -> Option<Timestamp>) {
        let mut until = self.scheduler.now() + nap;
        if let Some(on_at) = self.ticks_off_until() {
            let next = next(&self.in_flight.lock());
            until = until.max(next.map_or(on_at, |next| next.min(on_at)));
        }
        self.scheduler.elapse_until(until).await;
    }

    /// How long after it was received a message is delivered again.
    pub(super) fn visibility(&self) -> Duration {
        self.scheduler.span(MAX_VISIBILITY)
    }

    /// The tick of the engine at `index` died: most of the messages that it had received are
    /// delivered again.
    pub(super) fn redeliver(&self, index: usize) {
        let now = self.scheduler.now();
        let received = self.in_flight.lock().received.remove(&index);
        self.request_tick(now + self.visibility());
        let Some(Received { reports, released }) = received else { return };
        for report in reports {
            if self.scheduler.happens(0.7) {
                let at = now + self.visibility();
                self.in_flight.lock().reports.push((at.into(), report));
            }
        }
        for hint in released {
            if self.scheduler.happens(0.7) {
                let at = now + self.visibility();
                self.in_flight.lock().hints.push((at.into(), hint));
            }
        }
    }
}

/// A work queue that delays, loses and repeats messages.
pub(super) struct Messages(pub std::sync::Weak<World>);

#[async_trait::async_trait]
impl WorkQueue for Messages {
    async fn send(&self, work: &[Work]) -> Result<(), StoreError> {
        let Some(world) = self.0.upgrade() else {
            return Ok(());
        };
        world.scheduler.step().await;
        let fails = world.fault_happens(0.05);
        for piece in work {
            world.model.lock().check_sent(&piece.job);
            if fails && world.scheduler.happens(0.5) {
                return Err(StoreError::unavailable("a message was not taken"));
            }
            let copies = if world.fault_happens(0.3) {
                0
            } else {
                1 + usize::from(world.fault_happens(0.2))
            };
            for _ in 0..copies {
                let arrival = world.arrival(world.scheduler.now(), 0.3, (0.2, 20.0));
                world.in_flight.lock().work.push((arrival, piece.clone()));
            }
        }
        Ok(())
    }

    async fn hint(&self, hints: &[Hint]) -> Result<(), StoreError> {
        let Some(world) = self.0.upgrade() else {
            return Ok(());
        };
        for hint in hints {
            match &hint.kind {
                HintKind::Released(job, version) => {
                    for _ in 0..=usize::from(world.fault_happens(0.2)) {
                        let arrival = world.arrival(world.scheduler.now(), 0.1, (0.2, 20.0));
                        let left = (job.clone(), *version);
                        world.in_flight.lock().hints.push((arrival, left));
                    }
                }
                _ => world.request_tick(world.scheduler.now()),
            }
        }
        Ok(())
    }

    async fn take_releases(&self, _: &QueueName) -> Result<BTreeSet<GrantDigest>, StoreError> {
        Ok(BTreeSet::new())
    }

    async fn set_timers(&self, timers: &[Timer]) -> Result<(), StoreError> {
        if let Some(world) = self.0.upgrade() {
            for timer in timers {
                world.request_tick(timer.at);
            }
        }
        Ok(())
    }
}
