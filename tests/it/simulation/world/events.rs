//! Events about the ends of jobs: their triggers are applied.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    job::lifecycle::{Failure, Reason},
    time::Timestamp,
};
use tidegate_engine::{
    Demand, Dispatch, END_EVENT_QUEUE, END_EVENT_TYPE, TickCache, TickInput,
    events::ingest::Ingestion,
    request::{Report, ReportOutcome},
    testkit::builders::name,
};

use super::World;

impl World {
    /// Starts a process that applies triggers to ends of jobs. If it dies, another one replaces it.
    pub(super) fn start_event_taker(self: &Arc<Self>) {
        let (world, replacement) = (Arc::clone(self), Arc::clone(self));
        self.scheduler.spawn_restartable(async move { world.take_events().await }, move |death| {
            replacement.count_death(death);
            replacement.start_event_taker();
        });
    }

    /// Claims the jobs that carry events, applies their triggers and reports, until the end of the
    /// run.
    async fn take_events(self: Arc<Self>) {
        let mut reports = Vec::new();
        loop {
            self.scheduler.set_timeout(None);
            self.scheduler.elapse(Duration::from_secs(1) + self.scheduler.span(5.0)).await;
            self.draw_timeout();
            let engine = self.any_engine();
            let demands = vec![Demand {
                min: 0,
                types: vec![name(END_EVENT_TYPE)],
                capacity: 4,
                worker: Some("events".into()),
                lease: None,
                dispatch: Dispatch::Claim,
                call: None,
            }];
            let reports_now = std::mem::take(&mut reports);
            let input = TickInput { reports: reports_now, demands, ..TickInput::default() };
            let queue = name(END_EVENT_QUEUE);
            let ticked = engine.tick(&queue, &mut TickCache::default(), input).await;
            // After an error the leases end the attempts.
            let Ok(ticked) = ticked else { continue };
            for job in ticked.claimed.into_iter().map(|claimed| claimed.job) {
                let Ingestion { answers, enqueued, .. } = engine.ingest_end(&job).await;
                for enqueued in enqueued {
                    let run_at = enqueued.job.life.run_at();
                    self.request_tick(run_at.unwrap_or(Timestamp::EPOCH).max(self.scheduler.now()));
                    self.model.lock().accept(&enqueued.job.id);
                    self.in_flight.lock().jobs.push(enqueued.job.id);
                }
                let outcome = match answers.into_iter().find_map(Result::err) {
                    None => ReportOutcome::Succeeded { result: None },
                    Some(error) => ReportOutcome::Failed {
                        failure: Failure::new(Reason::Failed, error.to_string()),
                        retryable: true,
                    },
                };
                reports.push(Report {
                    id: job.id.clone(),
                    job_type: None,
                    attempt: job.life.attempt,
                    token: job.life.running().map(|run| run.token),
                    outcome,
                    checkpoint: None,
                });
            }
        }
    }
}
