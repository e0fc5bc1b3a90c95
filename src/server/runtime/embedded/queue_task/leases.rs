//! Lease calls that wait for jobs of the queue, and the distribution of a tick's jobs.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{Notify, oneshot};

use super::{Task, batch::Recipients, demands::Requester};
use crate::runtime::{
    Inner,
    embedded::lease::{LeasedJobs, not_delivered},
    workers::Presence,
};
use tidegate_core::{
    job::{Job, TypeName},
    time::{Seconds, Timestamp},
};
use tidegate_engine::{Catalog, Error, RepeatableCall, TickOutcome, request::Report};

/// A worker's lease call to one queue.
pub(crate) struct LeaseCall {
    pub(crate) types: Option<Vec<TypeName>>,
    pub(crate) max: u32,
    /// It gets no fewer jobs before its wait ends.
    pub(crate) min: u32,
    /// How long it waits, in the machine's time.
    pub(crate) until: Timestamp,
    pub(crate) worker: Option<String>,
    pub(crate) presence: Presence,
    pub(crate) lease: Option<Seconds>,
    pub(crate) repeatable: Option<Arc<RepeatableCall>>,
    pub(crate) reports: Vec<Report>,
    pub(crate) reply: oneshot::Sender<Result<LeaseAnswer, Error>>,
}

impl LeaseCall {
    /// Whether its wait is over at `now` of the machine, or no worker takes its jobs.
    fn is_over(&self, now: Timestamp) -> bool {
        self.until <= now || self.is_gone()
    }

    /// Whether its worker has left or repeated it, or its caller is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.presence.has_left() || self.reply.is_closed()
    }
}

/// The jobs of a lease call, and the answers to its reports.
pub(crate) type LeaseAnswer = (LeasedJobs, Vec<Result<Job, Error>>);

/// The watch of one queue by a worker that waits for several. The queue notifies the worker when
/// there may be jobs, and the worker then sends a lease call.
pub(crate) struct QueueWatch {
    /// Whether the queue notified the worker since the worker's last lease call.
    pub(crate) notified: AtomicBool,
    pub(crate) waker: Arc<Notify>,
}

impl QueueWatch {
    fn notify(&self) {
        self.notified.store(true, Ordering::Release);
        self.waker.notify_one();
    }
}

/// A lease call that waits; its reports may be settled already.
pub(super) struct WaitingLease {
    pub(super) call: LeaseCall,
    pub(super) answers: Vec<Result<Job, Error>>,
}

impl WaitingLease {
    /// Adds the answer to a report. After a refused one the call does not wait any longer: its
    /// worker may be able to mend the report.
    pub(super) fn add_answer(&mut self, answer: Result<Job, Error>) {
        if answer.is_err() {
            self.call.until = Timestamp::EPOCH;
        }
        self.answers.push(answer);
    }
}

impl Task {
    /// Answers reports and leases, and starts pushes and handlers.
    pub(super) fn distribute(
        &mut self,
        inner: &Arc<Inner>,
        mut outcome: TickOutcome,
        catalog: &Arc<Catalog>,
        requesters: &[Requester],
        recipients: Recipients,
    ) {
        self.update_means(&outcome);
        self.answer_reports(inner, &mut outcome, recipients);
        outcome.lapsed.iter().for_each(|job| inner.on_attempt_finished(job));
        for job in &outcome.ended {
            inner.on_attempt_finished(job);
            inner.on_job_finished(job);
        }
        let mut leased: HashMap<usize, Vec<Job>> = HashMap::new();
        for mut claimed in outcome.claimed {
            if let Some(traces) = &inner.traces {
                traces.claimed(&mut claimed.job, claimed.run_at);
            }
            match &requesters[claimed.demand] {
                Requester::Lease(index) => leased.entry(*index).or_default().push(claimed.job),
                Requester::Slot(slot) => {
                    *self.running.entry(slot.clone()).or_default() += 1;
                    self.start(inner, slot.clone(), claimed.job, catalog);
                }
            }
        }
        let mut waiting = VecDeque::with_capacity(self.leases.len());
        for (index, lease) in std::mem::take(&mut self.leases).into_iter().enumerate() {
            match leased.remove(&index) {
                None if lease.call.max > 0 => waiting.push_back(lease),
                jobs => answer_lease(inner, lease, jobs.unwrap_or_default()),
            }
        }
        self.leases = waiting;
    }

    /// Answers the calls whose wait is over, or all of them while draining, without jobs.
    pub(super) fn expire_leases(&mut self, now: Timestamp, draining: bool) {
        if !draining && self.leases.iter().all(|waiting| !waiting.call.is_over(now)) {
            return;
        }
        let (expired, waiting): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.leases)
            .into_iter()
            .partition(|waiting| draining || waiting.call.is_over(now));
        self.leases = waiting;
        for WaitingLease { call, answers } in expired {
            let _ = call.reply.send(Ok((LeasedJobs::default(), answers)));
        }
    }

    /// Notifies the workers that wait for this queue and others.
    pub(super) fn notify_watches(&self) {
        self.watches.iter().filter_map(Weak::upgrade).for_each(|watch| watch.notify());
    }
}

/// Sends jobs to a lease call, with their bodies.
fn answer_lease(inner: &Arc<Inner>, waiting: WaitingLease, jobs: Vec<Job>) {
    let WaitingLease { call, answers } = waiting;
    // From here on, the attempts of jobs that the call does not receive end.
    let mut leased = LeasedJobs::new(inner);
    if jobs.iter().all(Job::is_whole) {
        leased.add(jobs);
        let _ = call.reply.send(Ok((leased, answers)));
        return;
    }
    let server = Arc::clone(inner);
    inner.spawn(async move {
        let loaded = server.engine.load_each(jobs.clone()).await;
        for (job, loaded) in jobs.into_iter().zip(loaded) {
            match loaded {
                Ok(job) => leased.add([job]),
                Err(error) => not_delivered(&server, &job, error.to_string()),
            }
        }
        let _ = call.reply.send(Ok((leased, answers)));
    });
}
