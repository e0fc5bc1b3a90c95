//! Workers: they receive work, run attempts and report them, or vanish.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    error_code::ErrorCode,
    job::{
        Body, Job, Payload,
        lifecycle::{Failure, HandBack, Reason},
    },
    port::Work,
};
use tidegate_engine::{
    Demand, Dispatch, Error, RepeatableCall,
    request::{Heartbeat, Report, ReportOutcome},
    testkit::builders::name,
};

use super::{
    super::model::NOT_RECEIVED,
    World,
    config::StartPath,
    messages::{Arrival, first_arrival},
    unclaimed::EngineProcess,
};

impl World {
    /// Starts a receiver of work. If it dies, another one replaces it.
    pub(super) fn start_deliverer(self: &Arc<Self>) {
        let (world, replacement) = (Arc::clone(self), Arc::clone(self));
        self.scheduler.spawn_restartable(async move { world.deliver().await }, move |death| {
            replacement.count_death(death);
            replacement.start_deliverer();
        });
    }

    /// Starts a receiver of offers. If it dies, another one replaces it.
    pub(super) fn start_offer_taker(self: &Arc<Self>) {
        let (world, replacement) = (Arc::clone(self), Arc::clone(self));
        self.scheduler.spawn_restartable(async move { world.take_offers().await }, move |death| {
            replacement.count_death(death);
            replacement.start_offer_taker();
        });
    }

    /// Receives work and claims it, until the end of the run.
    async fn deliver(self: Arc<Self>) {
        loop {
            self.scheduler.set_timeout(None);
            let nap = self.scheduler.span(0.6) + Duration::from_millis(20);
            self.rest(nap, |in_flight| first_arrival(&in_flight.work)).await;
            let now = self.scheduler.now();
            let mut arrived = self.arrived(|in_flight| &mut in_flight.work, now);
            if arrived.is_empty() {
                continue;
            }
            let later = arrived.split_off(arrived.len().min(4));
            let later = later
                .into_iter()
                .map(|(is_minutes_late, work)| (Arrival { at: now, is_minutes_late }, work));
            self.in_flight.lock().work.extend(later);
            let work = arrived.into_iter().map(|(is_late, work)| {
                let version = self.trusted_version(is_late, &work.job, work.version);
                Work { version, ..work }
            });
            let work: Vec<Work> = work.collect();
            self.draw_timeout();
            // Unless a message is deleted, the work queue delivers it again.
            if self.fault_happens(0.1) {
                let at = now + self.visibility();
                let again = work.iter().map(|work| (at.into(), work.clone()));
                self.in_flight.lock().work.extend(again);
            }
            let engine = self.any_engine();
            match engine.claim(&work, Some("deliverer")).await {
                Ok(claimed) => {
                    let claimed = claimed.into_iter().flatten();
                    claimed.for_each(|claimed| self.start(claimed.job, StartPath::GrantedDispatch));
                }
                // The messages are delivered again.
                Err(_) if !self.fault_happens(0.3) => {
                    let at = now + Duration::from_secs(3);
                    let again = work.into_iter().map(|work| (at.into(), work));
                    self.in_flight.lock().work.extend(again);
                }
                Err(_) => {}
            }
        }
    }

    /// Passes offered jobs on to their worker. Some are lost, and some arrive after their grant was
    /// revoked.
    pub(super) fn offer(&self, offers: impl Iterator<Item = Work>) {
        for work in offers {
            if self.fault_happens(0.2) {
                continue;
            }
            let arrival = self.arrival(self.scheduler.now(), 0.3, (0.2, 20.0));
            self.in_flight.lock().offers.push((arrival, work));
        }
    }

    /// Claims offered jobs, or gives them back, until the end of the run.
    async fn take_offers(self: Arc<Self>) {
        loop {
            self.scheduler.set_timeout(None);
            let nap = self.scheduler.span(0.6) + Duration::from_millis(20);
            self.rest(nap, |in_flight| first_arrival(&in_flight.offers)).await;
            let now = self.scheduler.now();
            let offers = self.arrived(|in_flight| &mut in_flight.offers, now);
            let offers: Vec<Work> = offers.into_iter().map(|(_, work)| work).collect();
            if offers.is_empty() {
                continue;
            }
            self.draw_timeout();
            let engine = self.any_engine();
            if self.fault_happens(0.2) {
                for (job, version) in engine.decline(&offers).await.unwrap_or_default() {
                    self.hint(&job, version);
                }
                continue;
            }
            let demand = Demand {
                min: 0,
                types: vec![name("pull"), name("pull-once")],
                capacity: offers.len() as u32,
                worker: Some("leaser".into()),
                lease: None,
                dispatch: Dispatch::Offer,
                call: Some(self.repeatable_call()),
            };
            let call = demand.call.clone();
            // After an error it is unknown what was claimed.
            if let Ok(claimed) = engine.claim_offers(&offers, &demand).await {
                for claimed in claimed.into_iter().flatten() {
                    self.start_leased(claimed.job, StartPath::GrantedOffer, call.clone());
                }
            } else {
                self.repeat(call);
            }
        }
    }

    /// A checkpoint, or none. Some are so large that they become objects.
    fn checkpoint(&self) -> Option<Body> {
        let s = &self.scheduler;
        s.happens(0.4).then(|| {
            let bytes = s.pick(&[1, 100, 5000]);
            Body::Inline(Payload::json(format!("\"{}{}\"", s.draw(3), "x".repeat(bytes))))
        })
    }

    /// A new lease call that its worker may repeat.
    pub(super) fn repeatable_call(&self) -> Arc<RepeatableCall> {
        let bits = || self.scheduler.draw(usize::MAX) as u128;
        Arc::new(RepeatableCall::new(&format!("sim-{:032x}", bits()), None, bits()))
    }

    /// The worker of a lease call starts an attempt, unless the answer is lost. Then it may repeat
    /// the call, and the server may hand the lease back, or both.
    pub(super) fn start_leased(
        self: &Arc<Self>,
        job: Job,
        path: StartPath,
        call: Option<Arc<RepeatableCall>>,
    ) {
        if !self.fault_happens(0.15) {
            return self.start(job, path);
        }
        self.model.lock().count("lease answers lost");
        if self.scheduler.happens(0.6) {
            let outcome = ReportOutcome::NotReceived {
                revision: job.life.revision,
                message: NOT_RECEIVED.into(),
            };
            let token = job.life.running().map(|run| run.token);
            let (id, attempt) = (job.id.clone(), job.life.attempt);
            let report = Report { id, job_type: None, attempt, token, outcome, checkpoint: None };
            let arrival = self.arrival(self.scheduler.now(), 0.1, (0.2, 20.0));
            self.in_flight.lock().reports.push((arrival, report));
        }
        if self.scheduler.happens(0.7) {
            self.repeat(call);
        }
    }

    /// Repeats a lease call after a while, and works on the leases that it had got.
    pub(super) fn repeat(self: &Arc<Self>, call: Option<Arc<RepeatableCall>>) {
        let Some(call) = call else { return };
        let world = Arc::clone(self);
        self.scheduler.spawn(async move {
            let nap = world.scheduler.span(12.0);
            world.scheduler.elapse(nap).await;
            let leases = world.any_engine().repeated_leases(&call, None, |_| true).await;
            for job in leases.unwrap_or_default() {
                let mut model = world.model.lock();
                model.count("leases repeated");
                model.begin(&job);
                drop(model);
                let world = Arc::clone(&world);
                world.scheduler.spawn({
                    let world = Arc::clone(&world);
                    async move { world.work(job, None).await }
                });
            }
        });
    }

    /// A worker starts an attempt, unless the claim never reaches it.
    pub(super) fn start(self: &Arc<Self>, job: Job, path: StartPath) {
        self.model.lock().count(path.cell(!self.config.slow));
        self.model.lock().count("attempts");
        if self.fault_happens(0.1) {
            return;
        }
        let world = Arc::clone(self);
        self.scheduler.spawn(async move { world.work(job, None).await });
    }

    /// Runs an attempt and reports it. `caller` is the process that waits for the response if it
    /// dispatched the job without a claim.
    pub(super) async fn work(self: Arc<Self>, job: Job, mut caller: Option<EngineProcess>) {
        let s = &self.scheduler;
        let run = job.life.running().expect("it was claimed").clone();
        let took = if self.faults_active() {
            s.pick(&[0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0, 40.0])
        } else {
            0.5
        };
        let end = s.now() + Duration::from_millis((took * 1000.0) as u64);
        let sends_heartbeats = s.happens(0.5);
        if let Some(process) = caller.take_if(|_| !sends_heartbeats) {
            caller = self.await_response(&job, process, end).await;
        }
        while s.now() < end {
            let next =
                if sends_heartbeats { end.min(s.now() + Duration::from_secs(4)) } else { end };
            s.elapse_until(next).await;
            if sends_heartbeats && s.now() < end {
                let beat = Heartbeat {
                    id: job.id.clone(),
                    job_type: None,
                    attempt: job.life.attempt,
                    token: Some(run.token),
                    lease_seconds: None,
                    progress: None,
                    checkpoint: self.checkpoint(),
                };
                let engine = self.engine_to_call(caller.as_ref());
                let beaten = engine.heartbeat(beat).await;
                if beaten.is_ok() {
                    // It is claimed from now on, like any other attempt.
                    caller = None;
                }
                if matches!(
                    beaten,
                    Err(Error::Conflict { code: ErrorCode::StaleAttempt, .. } | Error::Forbidden(_))
                ) {
                    let model = self.model.lock();
                    let there = model.jobs.get(&job.id).map(|there| {
                        there.life.attempt == job.life.attempt
                            && there.life.running().is_some_and(|now| now.token == run.token)
                    });
                    drop(model);
                    assert_ne!(there, Some(true), "the heartbeat of a running attempt was refused");
                    break;
                }
            }
        }
        if self.fault_happens(0.15) {
            if let Some(process) = caller {
                self.give_up(&process, &job, Reason::ConnectionLost);
            }
            return;
        }
        let outcome = if !self.faults_active() || s.happens(0.7) {
            ReportOutcome::Succeeded { result: None }
        } else if s.happens(0.4) {
            let snoozed = s.happens(0.5).then(|| s.now() + s.span(20.0));
            ReportOutcome::HandedBack(HandBack { until: snoozed, ..HandBack::default() })
        } else {
            let failure = Failure::new(Reason::Failed, "it failed");
            ReportOutcome::Failed { failure, retryable: s.happens(0.8) }
        };
        let report = Report {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token: Some(run.token),
            checkpoint: self
                .checkpoint()
                .filter(|_| !matches!(outcome, ReportOutcome::Succeeded { .. })),
            outcome,
        };
        for _ in 0..=usize::from(self.fault_happens(0.3)) {
            if let Some(process) = &caller {
                self.respond(process, report.clone());
                continue;
            }
            let arrival = self.arrival(s.now(), 0.1, (0.2, 60.0));
            self.in_flight.lock().reports.push((arrival, report.clone()));
        }
    }
}
