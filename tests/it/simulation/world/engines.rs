//! Engines: their ticks and sweeps.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate_core::{
    job::{Job, JobId, TypeName, Version},
    port::{Hint, HintKind},
    queue::GrantDigest,
    time::Timestamp,
};
use tidegate_engine::{
    Claimed, Demand, Dispatch, Error, TickCache, TickInput, TickOutcome,
    request::{Report, ReportOutcome},
    testkit::builders::name,
};

use super::super::{bugs::Bug, scheduler::Death};
use super::{
    PLAIN_TYPE, World,
    config::{StartPath, TICKS_OFF, TIMEOUTS},
    messages::Received,
    unclaimed::{DISPATCHER, EngineProcess},
};

/// The longest timeout of a tick or of a receiver, in seconds: shorter than the longest pause.
const MAX_TIMEOUT: f64 = 30.0;

impl World {
    /// Leaves some of the hints in the table, and takes what was left there.
    async fn exchange_hints(
        &self,
        process: &EngineProcess,
        mut hints: Vec<(JobId, Version)>,
    ) -> (Vec<(JobId, Version)>, BTreeSet<GrantDigest>) {
        if self.is_requested_in_store() {
            let work = &process.engine.ports().work;
            let count = self.scheduler.draw(hints.len() + 1);
            let left: Vec<Hint> = hints
                .iter()
                .take(count)
                .map(|(job, version)| Hint {
                    queue: self.queue.clone(),
                    kind: HintKind::Released(job.clone(), *version),
                })
                .collect();
            if work.hint(&left).await.is_ok() {
                hints.drain(..count);
            }
            if let Ok(digests) = work.take_releases(&self.queue).await {
                return (hints, digests);
            }
        }
        (hints, BTreeSet::new())
    }

    /// Whether ticks are requested by an item of the store.
    fn is_requested_in_store(&self) -> bool {
        #[cfg(feature = "aws")]
        return self.table.is_some();
        #[cfg(not(feature = "aws"))]
        false
    }

    /// Starts the processes of an engine.
    pub(super) fn start_engine(self: &Arc<Self>, index: usize) {
        self.start_ticks(index);
        self.start_sweeper(index);
        self.start_deliverer();
        self.start_offer_taker();
        self.start_event_taker();
    }

    /// Starts the ticks of an engine. If it dies, a new engine replaces it.
    fn start_ticks(self: &Arc<Self>, index: usize) {
        let (world, replacement) = (Arc::clone(self), Arc::clone(self));
        let restart = move |death| {
            replacement.count_death(death);
            let process = replacement.engine(index);
            let dead = std::mem::replace(&mut replacement.engines.lock()[index], process);
            let is_unnoticed =
                replacement.config.bug == Some(Bug::KillsUnnoticed) && death == Death::Timeout;
            replacement.engine_stores.lock()[dead.number.0 - 1].close();
            if !is_unnoticed {
                replacement.bury(dead.number);
            }
            replacement.redeliver(index);
            replacement.start_ticks(index);
        };
        self.scheduler.spawn_restartable(async move { world.tick(index).await }, restart);
    }

    /// Starts the sweeps of an engine. If that process dies, it is started again.
    fn start_sweeper(self: &Arc<Self>, index: usize) {
        let (world, replacement) = (Arc::clone(self), Arc::clone(self));
        self.scheduler.spawn_restartable(async move { world.sweep(index).await }, move |death| {
            replacement.count_death(death);
            replacement.start_sweeper(index);
        });
    }

    pub(super) fn count_death(&self, death: Death) {
        self.model.lock().count(match death {
            Death::Crash => "deaths",
            Death::Timeout => TIMEOUTS,
        });
    }

    /// Gives what the current process does next a timeout, or sometimes not.
    pub(super) fn draw_timeout(&self) {
        let at = self.fault_happens(0.3).then(|| {
            let timeout = Duration::from_secs(1) + self.scheduler.span(MAX_TIMEOUT);
            self.scheduler.now() + timeout
        });
        self.scheduler.set_timeout(at);
    }

    /// Ticks until the end of the run.
    async fn tick(self: Arc<Self>, index: usize) {
        let (mut cache, mut scanning) = (TickCache::default(), false);
        loop {
            if let Some(on_at) = self.ticks_off_until() {
                self.scheduler.elapse_until(on_at).await;
                self.model.lock().count(TICKS_OFF);
            }
            self.draw_timeout();
            let process = self.engines.lock()[index].clone();
            let now = self.scheduler.now();
            // Responses come first: their number tells them from the reports.
            let mut reports = self.responses_to(process.number, now);
            let responses = reports.len();
            let arrived = self.arrived(|in_flight| &mut in_flight.reports, now);
            reports.extend(arrived.into_iter().map(|(_, report)| report));
            let released = self.arrived_hints(now);
            let received = Received { reports: reports.clone(), released: released.clone() };
            self.in_flight.lock().received.insert(index, received);
            let (released, released_digests) = self.exchange_hints(&process, released).await;
            let demands = self.demands(index);
            let calls: Vec<_> = demands.iter().map(|demand| demand.call.clone()).collect();
            let kept = reports.clone();
            let queue_changed = !scanning || !reports.is_empty() || !released.is_empty();
            // Often untrue, because jobs change all the time. Only the order depends on it.
            let unchanged = released.is_empty();
            let input = TickInput {
                reports,
                released,
                released_digests,
                demands,
                queue_changed,
                unchanged,
                ..TickInput::default()
            };
            let promised = self.model.lock().promised(&self.queue);
            let tick_outcome = process.engine.tick(&self.queue, &mut cache, input).await;
            self.in_flight.lock().received.remove(&index);
            scanning = tick_outcome.as_ref().is_ok_and(|tick_outcome| tick_outcome.again);
            self.request_next_tick(tick_outcome.as_ref().ok());
            if let Ok(tick_outcome) = tick_outcome {
                for (index, (report, answer)) in kept.iter().zip(&tick_outcome.reports).enumerate()
                {
                    if !matches!(answer, Err(Error::Unavailable { .. })) {
                        self.check_answer(report, answer);
                        if index < responses {
                            self.model.lock().check_response(report, answer);
                        }
                    } else if index < responses {
                        self.respond_again(process.number, report);
                    } else if !self.fault_happens(0.3) {
                        // The caller does not know the result, and sends the report again.
                        self.in_flight
                            .lock()
                            .reports
                            .push(((now + Duration::from_secs(1)).into(), report.clone()));
                    }
                }
                self.in_flight
                    .lock()
                    .hints
                    .extend(tick_outcome.left.into_iter().map(|hint| (now.into(), hint)));
                self.offer(tick_outcome.offers.into_iter().map(|(_, work)| work));
                for Claimed { job, demand, .. } in tick_outcome.claimed {
                    let call = calls[demand].clone();
                    let granted = job.life.running().is_some_and(|run| run.granted);
                    if granted {
                        self.start_leased(job, StartPath::GrantedClaim, call);
                    } else if job.spec.job_type.as_str() == PLAIN_TYPE && self.starts_unclaimed() {
                        self.model.lock().dispatch(process.number, &job, promised, now);
                        self.start_unclaimed(job, &process);
                    } else {
                        self.start_leased(job, StartPath::UngrantedClaim, call);
                    }
                }
                self.model.lock().count("ticks");
            } else {
                for call in calls {
                    self.repeat(call);
                }
                for report in kept.iter().take(responses) {
                    self.respond_again(process.number, report);
                }
                // The callers that are alive send their reports again.
                let repeated: Vec<_> = kept
                    .into_iter()
                    .skip(responses)
                    .filter(|_| !self.fault_happens(0.3))
                    .map(|report| ((now + Duration::from_secs(1)).into(), report))
                    .collect();
                self.in_flight.lock().reports.extend(repeated);
            }
            if self.fault_happens(0.03) {
                cache = TickCache::default();
            }
            if self.config.bug == Some(Bug::DispatchesForgotten) && self.fault_happens(0.03) {
                let replacement = EngineProcess { number: process.number, ..self.engine(index) };
                self.engines.lock()[index] = replacement;
            }
            self.scheduler.set_timeout(None);
            if !scanning {
                self.await_tick().await;
            }
        }
    }

    /// The hints that have arrived. A planted bug takes one that is minutes late as one about the
    /// version that its job is at now.
    fn arrived_hints(&self, now: Timestamp) -> Vec<(JobId, Version)> {
        let hints = self.arrived(|in_flight| &mut in_flight.hints, now);
        let hints = hints.into_iter().map(|(is_late, (job, version))| {
            let version = self.trusted_version(is_late, &job, version);
            (job, version)
        });
        hints.collect()
    }

    /// The version that a message is about: with a planted bug the current one, if it is late.
    pub(super) fn trusted_version(&self, is_late: bool, job: &JobId, version: Version) -> Version {
        if !is_late || self.config.bug != Some(Bug::LateMessagesTrusted) {
            return version;
        }
        let model = self.model.lock();
        model.jobs.get(job).map_or(version, |job| job.life.version)
    }

    /// Requests what follows a tick: another one soon if it started something or failed, and one
    /// when something is due.
    fn request_next_tick(&self, outcome: Option<&TickOutcome>) {
        let now = self.scheduler.now();
        let Some(outcome) = outcome else {
            return self.request_tick(now + Duration::from_secs(1));
        };
        if outcome.sent > 0 || !outcome.claimed.is_empty() || !outcome.offers.is_empty() {
            self.request_tick(now);
        }
        let next_at = outcome.next_at.into_iter().chain(outcome.next_start_at).min();
        if let Some(next_at) = next_at.filter(|_| self.config.bug != Some(Bug::TicksUnrequested)) {
            self.request_tick(next_at);
        }
    }

    /// Checks that a report of the running attempt is accepted, and that an accepted report is
    /// recorded.
    fn check_answer(&self, report: &Report, answer: &Result<Job, Error>) {
        let mut model = self.model.lock();
        let Some(job) = model.jobs.get(&report.id) else {
            return;
        };
        // After a death, an unclaimed dispatch starts the same attempt again, with another token.
        let running = job.life.attempt == report.attempt
            && job.life.running().is_some_and(|run| report.token == Some(run.token));
        let recorded = job.life.history.iter().any(|entry| entry.attempt == report.attempt);
        match answer {
            Ok(_) if !recorded => {
                model.fault(format!(
                    "a report of {} attempt {} was accepted and is not recorded",
                    report.id, report.attempt
                ));
            }
            // It may have been renewed.
            Err(_) if matches!(report.outcome, ReportOutcome::NotReceived { .. }) => {}
            Err(error) if running => model.fault(format!(
                "a report of the running attempt of {} was refused: {error:?}",
                report.id
            )),
            _ => {}
        }
    }

    /// The current demands of the workers of the process at `index`.
    fn demands(&self, index: usize) -> Vec<Demand> {
        let types = |prefix: &str| {
            self.job_types()
                .iter()
                .filter(|of| of.starts_with(prefix) && **of != PLAIN_TYPE)
                .map(|of| name::<TypeName>(of))
                .collect::<Vec<_>>()
        };
        let always = !self.faults_active();
        let demand = |types, capacity, dispatch| Demand {
            min: if always { 0 } else { self.scheduler.pick(&[0, 0, 2]) },
            types,
            capacity,
            worker: Some("worker".into()),
            lease: None,
            dispatch,
            call: (dispatch == Dispatch::Claim).then(|| self.repeatable_call()),
        };
        // A tick that offers jobs sends none.
        if self.scheduler.happens(0.3) {
            let capacity = 1 + self.scheduler.draw(3) as u32;
            return vec![demand(types("pull"), capacity, Dispatch::Offer)];
        }
        let mut demands = Vec::new();
        if always || self.scheduler.happens(0.7) {
            demands.push(demand(types("push"), 1 + self.scheduler.draw(4) as u32, Dispatch::Queue));
        }
        if always || self.scheduler.happens(0.4) {
            demands.push(demand(types("pull"), 1 + self.scheduler.draw(3) as u32, Dispatch::Claim));
        }
        // A shared store has no process that dispatches alone.
        if self.config.late_limit && (index == DISPATCHER || self.is_shared()) {
            let plain = vec![name(PLAIN_TYPE)];
            demands.push(demand(plain, 1 + self.scheduler.draw(8) as u32, Dispatch::Claim));
        }
        demands
    }

    /// Sweeps until the end of the run.
    async fn sweep(self: Arc<Self>, index: usize) {
        loop {
            self.scheduler.set_timeout(None);
            let nap = self.scheduler.span(4.0);
            self.scheduler.elapse(nap + Duration::from_millis(500)).await;
            if let Some(on_at) = self.ticks_off_until() {
                self.scheduler.elapse_until(on_at).await;
            }
            self.draw_timeout();
            if self.config.bug != Some(Bug::TicksUnrequested) {
                self.request_swept_tick();
            }
            let engine = Arc::clone(&self.engines.lock()[index].engine);
            if let Ok(replies) = engine.sweep_replies(None).await {
                for (job, version) in replies.changed {
                    self.hint(&job, version);
                }
            }
            if let Ok(swept) = engine.sweep().await {
                for (job, version) in swept.changed {
                    self.hint(&job, version);
                }
                if let Ok(decisions) = engine.decide_retries(swept.pending).await {
                    for (job, version) in decisions.changed {
                        self.model.lock().count("decisions");
                        self.hint(&job, version);
                    }
                }
            }
        }
    }

    /// Sends the ticks a hint that a job left a version, unless it gets lost.
    pub(super) fn hint(&self, job: &Job, version: Version) {
        let is_wrong = self.config.bug == Some(Bug::HintsPremature);
        if job.life.version == version && !is_wrong {
            return;
        }
        for _ in 0..=usize::from(self.fault_happens(0.3)) {
            if !self.fault_happens(0.3) {
                let arrival = self.arrival(self.scheduler.now(), 1.0, (0.3, 40.0));
                let version = if is_wrong { job.life.version } else { version };
                self.in_flight.lock().hints.push((arrival, (job.id.clone(), version)));
            }
        }
    }
}
