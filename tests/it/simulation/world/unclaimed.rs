//! Unclaimed dispatches: one process calls the target itself and waits for the response.
//!
//! Only one engine dispatches, like the one process of an embedded server. The others tick the same
//! queue, and answer clients and callbacks.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    job::{
        Job,
        lifecycle::{Failure, Reason},
    },
    time::Timestamp,
};
use tidegate_engine::{
    Engine,
    request::{Report, ReportOutcome},
};

use super::{
    super::{bugs::Bug, model::ProcessNumber},
    RESPONSE_TIMEOUT, World,
    config::StartPath,
};

/// The index of the engine that dispatches without a claim.
pub(super) const DISPATCHER: usize = 0;

/// An engine and its process.
#[derive(Clone)]
pub(super) struct EngineProcess {
    pub number: ProcessNumber,
    pub engine: Arc<Engine>,
}

impl World {
    /// The process that changes a job for a client.
    pub(super) fn changing_process(self: &Arc<Self>) -> EngineProcess {
        let process = self.any_process();
        if self.config.bug == Some(Bug::HoldsIgnored) {
            // Another engine does not know what this one dispatches.
            return EngineProcess { number: process.number, ..self.engine(DISPATCHER) };
        }
        process
    }

    /// Calls the target of a job that `process` dispatched.
    pub(super) fn start_unclaimed(self: &Arc<Self>, job: Job, process: &EngineProcess) {
        let mut model = self.model.lock();
        model.count(StartPath::UnclaimedDispatch.cell(!self.config.slow));
        model.count("attempts");
        drop(model);
        if self.fault_happens(0.1) {
            return self.give_up(process, &job, Reason::NotDelivered);
        }
        let (world, process) = (Arc::clone(self), process.clone());
        self.scheduler.spawn(async move { world.work(job, Some(process)).await });
    }

    /// Waits for the response of a worker that sends no heartbeats and returns at `end`. Returns
    /// the process, unless its wait was over: then the worker calls back.
    pub(super) async fn await_response(
        &self,
        job: &Job,
        process: EngineProcess,
        end: Timestamp,
    ) -> Option<EngineProcess> {
        let timeout_at = self.scheduler.now() + RESPONSE_TIMEOUT.duration();
        self.scheduler.elapse_until(end.min(timeout_at)).await;
        if end <= timeout_at {
            return Some(process);
        }
        self.give_up(&process, job, Reason::Timeout);
        None
    }

    /// The engine that a worker reaches: the one that waits for its response, or any.
    pub(super) fn engine_to_call(&self, caller: Option<&EngineProcess>) -> Arc<Engine> {
        match caller.filter(|process| self.lives(process.number)) {
            Some(process) => Arc::clone(&process.engine),
            None => self.any_engine(),
        }
    }

    fn lives(&self, number: ProcessNumber) -> bool {
        self.engines.lock().iter().any(|process| process.number == number)
    }

    /// The result of a call reaches the process that made it. If that process is dead, the worker
    /// calls back, and any process receives the result.
    pub(super) fn respond(&self, to: &EngineProcess, report: Report) {
        let at = self.scheduler.now() + self.scheduler.span(0.1);
        let mut in_flight = self.in_flight.lock();
        if self.lives(to.number) {
            in_flight.responses.push((at, (to.number, report)));
        } else {
            in_flight.reports.push((at.into(), report));
        }
    }

    /// The process ends its call without a response.
    pub(super) fn give_up(&self, process: &EngineProcess, job: &Job, reason: Reason) {
        let failure = Failure::new(reason, "there was no response");
        let outcome = ReportOutcome::Failed { failure, retryable: true };
        let report = Report {
            id: job.id.clone(),
            job_type: None,
            attempt: job.life.attempt,
            token: job.life.running().map(|run| run.token),
            outcome,
            checkpoint: None,
        };
        if self.lives(process.number) {
            self.respond(process, report);
        }
    }

    /// The process does not know what became of a result, and reports it again as long as it lives.
    pub(super) fn respond_again(&self, process: ProcessNumber, report: &Report) {
        let at = self.scheduler.now() + Duration::from_secs(1);
        self.in_flight.lock().responses.push((at, (process, report.clone())));
    }

    /// Removes and returns the results that have reached `process`.
    pub(super) fn responses_to(&self, process: ProcessNumber, now: Timestamp) -> Vec<Report> {
        let mut in_flight = self.in_flight.lock();
        let here = in_flight
            .responses
            .extract_if(.., |(at, (number, _))| *at <= now && *number == process);
        here.map(|(_, (_, report))| report).collect()
    }

    /// A process died: what it had dispatched is forgotten, and its responses are lost, or a
    /// callback carries them to another process.
    pub(super) fn bury(&self, process: ProcessNumber) {
        self.model.lock().process_died(process);
        let mut in_flight = self.in_flight.lock();
        let responses = std::mem::take(&mut in_flight.responses);
        for (at, (number, report)) in responses {
            if number != process {
                in_flight.responses.push((at, (number, report)));
            } else if self.scheduler.happens(0.5) {
                in_flight.reports.push((at.into(), report));
            }
        }
    }
}
