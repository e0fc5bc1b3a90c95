//! Leases of the embedded mode: a call becomes a demand to the tasks of its queues.
//!
//! One queue settles the reports and leases in one commit. A call for several queues watches them
//! and reads each queue that changed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{Notify, oneshot};

use super::queue_task::{CLAIMED_BYTES, LeaseCall, QueueWatch, TaskMessage};
use crate::runtime::{
    Inner, Server, StopPhase, WeakServer, deliver,
    lease::{QueueSelection, outcome_unknown},
    workers::Presence,
};
use tidegate_core::{
    job::{Job, QueueName, TypeName},
    time::Timestamp,
};
use tidegate_engine::{
    Error,
    request::{LeaseRequest, Leased, Report},
};

/// Why a lease is handed back whose worker left while it was on its way.
pub(super) const WORKER_GONE: &str = "its worker was gone before it received the lease";

impl Server {
    /// Leases from `selections`, and settles the request's reports. It waits until `until` of the
    /// machine's time.
    pub(in crate::runtime) async fn lease_embedded(
        &self,
        mut selections: Vec<QueueSelection>,
        request: LeaseRequest,
        until: Timestamp,
        presence: Presence,
    ) -> Result<Leased, Error> {
        if let [(queue, types)] = &mut selections[..] {
            return self.lease_one(queue.clone(), types.take(), request, until, presence).await;
        }
        let reports = Box::pin(self.report(request.reports.clone())).await;
        let until = if reports.iter().any(Result::is_err) { Timestamp::EPOCH } else { until };
        let mut leased = Leased { jobs: Vec::new(), reports, pause: None };
        if request.max > 0 {
            leased.jobs = Box::pin(self.lease_any(&selections, &request, until, presence)).await?;
        }
        Ok(leased)
    }

    /// Settles reports by queue in the queues' tasks, which work at the same time.
    pub(in crate::runtime) async fn settle_in_tasks(
        &self,
        batches: Vec<(QueueName, Vec<Report>)>,
    ) -> Vec<Vec<Result<Job, Error>>> {
        let mut pending = Vec::with_capacity(batches.len());
        for (queue, batch) in batches {
            let (reply, answer) = oneshot::channel();
            self.inner.queue(&queue).send(TaskMessage::Reports(batch, reply));
            pending.push(answer);
        }
        let mut settled = Vec::with_capacity(pending.len());
        for answer in pending {
            settled.push(answer.await.unwrap_or_default());
        }
        settled
    }

    /// Leases from one queue, which settles the reports and leases in one commit.
    async fn lease_one(
        &self,
        queue: QueueName,
        types: Option<Vec<TypeName>>,
        request: LeaseRequest,
        until: Timestamp,
        presence: Presence,
    ) -> Result<Leased, Error> {
        let (reports, mut answers, order) = self.own_reports(&queue, request.reports).await?;
        let is_refused = |answer: &Option<Result<Job, Error>>| matches!(answer, Some(Err(_)));
        let until = if answers.iter().any(is_refused) { Timestamp::EPOCH } else { until };
        let (reply, answer) = oneshot::channel();
        let (worker, lease) = (request.worker, request.lease_seconds);
        let (max, min) = (request.max, request.min);
        let repeatable = request.call;
        let call = LeaseCall {
            types,
            max,
            min,
            until,
            worker,
            presence,
            lease,
            repeatable,
            reports,
            reply,
        };
        self.inner.queue(&queue).send(TaskMessage::Lease(call));
        let (leased, settled) = answer.await.map_err(|_| outcome_unknown())??;
        for (index, answer) in order.into_iter().zip(settled) {
            answers[index] = Some(answer);
        }
        let reports = answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(outcome_unknown())))
            .collect();
        Ok(Leased { jobs: leased.take(), reports, pause: None })
    }

    /// Settles the reports of jobs in other queues than `queue`.
    ///
    /// Returns the prepared reports of `queue`, the answers so far, and the index of the answer of
    /// each prepared report.
    #[allow(clippy::type_complexity, reason = "three lists of one call, used once")]
    async fn own_reports(
        &self,
        queue: &QueueName,
        reports: Vec<Report>,
    ) -> Result<(Vec<Report>, Vec<Option<Result<Job, Error>>>, Vec<usize>), Error> {
        let mut answers: Vec<Option<Result<Job, Error>>> = reports.iter().map(|_| None).collect();
        let queues = self.queues_of(&reports).await?;
        let (of_queue, others): (Vec<_>, Vec<_>) = reports
            .into_iter()
            .zip(queues)
            .enumerate()
            .partition(|(_, (_, at))| at.as_ref().is_ok_and(|at| at == queue));
        let (indices, of_queue): (Vec<usize>, Vec<Report>) =
            of_queue.into_iter().map(|(index, (report, _))| (index, report)).unzip();
        let (mut own, mut order) = (Vec::new(), Vec::new());
        let prepared = self.inner.engine.prepare_reports(of_queue).await;
        for (index, report) in indices.into_iter().zip(prepared) {
            match report {
                Ok(report) => {
                    own.push(report);
                    order.push(index);
                }
                Err(error) => answers[index] = Some(Err(error)),
            }
        }
        let (indices, others): (Vec<usize>, Vec<Report>) =
            others.into_iter().map(|(index, (report, _))| (index, report)).unzip();
        if !others.is_empty() {
            let reported = Box::pin(self.report(others)).await;
            for (index, answer) in indices.into_iter().zip(reported) {
                answers[index] = Some(answer);
            }
        }
        Ok((own, answers, order))
    }

    /// Leases from several queues: one after the other, so that at most `max` jobs are leased in
    /// all, and again from each queue that notifies the call.
    async fn lease_any(
        &self,
        selections: &[QueueSelection],
        request: &LeaseRequest,
        until: Timestamp,
        mut presence: Presence,
    ) -> Result<Vec<Job>, Error> {
        let waker = Arc::new(Notify::new());
        let watch = || QueueWatch { notified: AtomicBool::new(true), waker: Arc::clone(&waker) };
        let watches: Vec<Arc<QueueWatch>> = selections.iter().map(|_| Arc::new(watch())).collect();
        if !request.wait.is_zero() {
            for ((queue, _), watch) in selections.iter().zip(&watches) {
                self.inner.queue(queue).send(TaskMessage::Watch(Arc::downgrade(watch)));
            }
        }
        let mut leased = LeasedJobs::new(&self.inner);
        let mut stopping = self.inner.stopping.subscribe();
        // A stopping server leases nothing.
        while *self.inner.stopping.borrow() == StopPhase::Serving {
            let clock = &self.inner.engine.ports().clock;
            for ((queue, types), watch) in selections.iter().zip(&watches) {
                if !watch.notified.swap(false, Ordering::AcqRel) {
                    continue;
                }
                let max = request.max - leased.len() as u32;
                match self.lease_now(queue, types.as_deref(), max, request).await {
                    Ok(jobs) => leased.add(jobs.take()),
                    // The jobs of the other queues are leased already: return them.
                    Err(error) if leased.len() == 0 => return Err(error),
                    Err(_) => return Ok(leased.take()),
                }
                // Each queue leases a bounded number of bytes; the rest stays due.
                if leased.len() as u32 >= request.max || leased.bytes() >= CLAIMED_BYTES {
                    return Ok(leased.take());
                }
            }
            if leased.len() > 0 || clock.machine_now() >= until || presence.has_left() {
                return Ok(leased.take());
            }
            tokio::select! {
                () = waker.notified() => {}
                _ = stopping.wait_for(|phase| *phase != StopPhase::Serving) => {}
                () = presence.left() => {}
                () = clock.sleep_until(clock.at_machine_time(until)) => {}
            }
        }
        Ok(leased.take())
    }
}

impl Server {
    /// Leases at most `max` jobs from one queue, without waiting for some to become due.
    async fn lease_now(
        &self,
        queue: &QueueName,
        types: Option<&[TypeName]>,
        max: u32,
        request: &LeaseRequest,
    ) -> Result<LeasedJobs, Error> {
        let (reply, answer) = oneshot::channel();
        let call = LeaseCall {
            types: types.map(<[TypeName]>::to_vec),
            max,
            min: 0,
            until: self.inner.engine.ports().clock.machine_now(),
            worker: request.worker.clone(),
            presence: Presence::default(),
            lease: request.lease_seconds,
            repeatable: request.call.clone(),
            reports: Vec::new(),
            reply,
        };
        self.inner.queue(queue).send(TaskMessage::Lease(call));
        let (jobs, _) = answer.await.map_err(|_| outcome_unknown())??;
        Ok(jobs)
    }
}

/// Leased jobs on their way to a worker.
///
/// If the worker's call is gone, the drop of this value hands them back at once, and not only at the
/// end of their leases. A lease that a repeat of the call has got meanwhile stays.
#[derive(Default)]
pub(crate) struct LeasedJobs {
    server: WeakServer,
    jobs: Vec<Job>,
}

impl LeasedJobs {
    pub(super) fn new(inner: &Arc<Inner>) -> Self {
        Self { server: Arc::downgrade(inner), jobs: Vec::new() }
    }

    pub(super) fn add(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.jobs.extend(jobs);
    }

    fn len(&self) -> usize {
        self.jobs.len()
    }

    /// How many bytes of data and checkpoints they have.
    fn bytes(&self) -> usize {
        self.jobs.iter().map(Job::input_bytes).sum()
    }

    /// The jobs; from here on the caller is responsible for them.
    fn take(mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }
}

impl Drop for LeasedJobs {
    fn drop(&mut self) {
        if let Some(inner) = self.server.upgrade() {
            for job in self.jobs.drain(..) {
                let report = deliver::not_received(&job, WORKER_GONE);
                settle(&inner, &job.spec.queue, report);
            }
        }
    }
}

/// Ends the attempt of a leased job whose worker did not get it.
///
/// The claim is committed and counts as an attempt. The type's retry strategy decides what follows.
pub(super) fn not_delivered(inner: &Arc<Inner>, job: &Job, reason: impl Into<String>) {
    settle(inner, &job.spec.queue, deliver::not_delivered(job, reason, true));
}

/// Settles a report of this process about a job of `queue`. A stop waits for it, also one that has begun.
pub(super) fn settle(inner: &Arc<Inner>, queue: &QueueName, report: Report) {
    let guard = inner.busy.token();
    inner.queue(queue).send(TaskMessage::Done(None, Some(report), Some(guard)));
}
