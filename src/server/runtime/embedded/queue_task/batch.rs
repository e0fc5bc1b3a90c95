//! Messages become the batch of one tick, and each report of the batch gets its answer.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::oneshot;

use super::{ERROR_BACKOFF, Task, TaskMessage, leases::WaitingLease};
use crate::runtime::{Inner, StopGuard};
use tidegate_core::{job::Job, time::Timestamp};
use tidegate_engine::{Error, TickOutcome, request::Report};

/// A report of this process's own attempt, and what delays a stop until it is settled.
pub(super) type Unsettled = (Report, Option<StopGuard>);

/// Callers that wait for the answers to their reports.
type Callers = Vec<(oneshot::Sender<Vec<Result<Job, Error>>>, Vec<Result<Job, Error>>)>;

/// The source of a report.
enum ReportSource {
    /// The lease call with this index.
    Lease(usize),
    /// The caller with this index.
    Caller(usize),
    /// An attempt of this process.
    Own,
}

/// The messages of one tick.
pub(super) struct Batch {
    pub(super) reports: Vec<Report>,
    /// The source of each report.
    sources: Vec<ReportSource>,
    callers: Callers,
    /// The reports of this process's own attempts, in order.
    own: Vec<Unsettled>,
    /// Whether there was any message.
    pub(super) has_messages: bool,
    /// Whether all messages are lease calls, and there is one. No job was scheduled since the tick before,
    /// as far as this process knows, and each call has read the configuration.
    pub(super) has_only_lease_calls: bool,
    /// Whether a watching worker may find something after this tick: not if it only has requests.
    pub(super) may_free_capacity: bool,
}

impl Batch {
    /// The recipients of the answers to the reports. `took`: when the tick began and was committed.
    pub(super) fn recipients(self, took: (Timestamp, Timestamp)) -> Recipients {
        Recipients { sources: self.sources, callers: self.callers, own: self.own, took }
    }
}

/// The recipients of the answers to a tick's reports.
pub(super) struct Recipients {
    sources: Vec<ReportSource>,
    callers: Callers,
    own: Vec<Unsettled>,
    /// When the tick began and when it was committed.
    took: (Timestamp, Timestamp),
}

impl Task {
    /// Collects messages into a batch, after the reports that a failed tick could not settle.
    pub(super) fn collect(&mut self, inbox: Vec<TaskMessage>) -> Batch {
        let own = std::mem::take(&mut self.unsettled);
        let is_request = |message: &TaskMessage| match message {
            TaskMessage::Lease(call) => call.reports.is_empty(),
            message => matches!(message, TaskMessage::Watch(_)),
        };
        let is_lease_call = |message: &TaskMessage| matches!(message, TaskMessage::Lease(_));
        let has_only_lease_calls =
            own.is_empty() && !inbox.is_empty() && inbox.iter().all(is_lease_call);
        let mut batch = Batch {
            reports: own.iter().map(|(report, _)| report.clone()).collect(),
            sources: own.iter().map(|_| ReportSource::Own).collect(),
            callers: Vec::new(),
            own,
            has_messages: !inbox.is_empty(),
            has_only_lease_calls,
            may_free_capacity: inbox.is_empty() || !inbox.iter().all(is_request),
        };
        for message in inbox {
            match message {
                TaskMessage::Wake => {}
                TaskMessage::Released(job, version) => self.released.push((job, version)),
                TaskMessage::Reports(reports, reply) => {
                    let caller = batch.callers.len();
                    batch.sources.extend(reports.iter().map(|_| ReportSource::Caller(caller)));
                    batch.reports.extend(reports);
                    batch.callers.push((reply, Vec::new()));
                }
                TaskMessage::Done(slot, report, guard) => {
                    if let Some(count) = slot.and_then(|slot| self.running.get_mut(&slot)) {
                        *count = count.saturating_sub(1);
                    }
                    if let Some(report) = report {
                        batch.sources.push(ReportSource::Own);
                        batch.reports.push(report.clone());
                        batch.own.push((report, guard));
                    }
                }
                TaskMessage::Lease(mut call) => {
                    let reports = std::mem::take(&mut call.reports);
                    batch
                        .sources
                        .extend(reports.iter().map(|_| ReportSource::Lease(self.leases.len())));
                    // A waiting call keeps its answers, so they take no room to grow.
                    let answers = Vec::with_capacity(reports.len());
                    batch.reports.extend(reports);
                    self.leases.push_back(WaitingLease { call, answers });
                }
                TaskMessage::Watch(watch) => self.watches.push(watch),
            }
        }
        batch
    }

    /// Sends the answer of each report to its source.
    pub(super) fn answer_reports(
        &mut self,
        inner: &Arc<Inner>,
        outcome: &mut TickOutcome,
        recipients: Recipients,
    ) {
        let Recipients { sources, mut callers, own, took: (from, to) } = recipients;
        outcome
            .settled()
            .chain(&outcome.ended)
            .filter(|job| job.life.ended().is_some())
            .for_each(|job| inner.count_finished(job));
        let mut own = own.into_iter();
        for (source, answer) in sources.into_iter().zip(std::mem::take(&mut outcome.reports)) {
            if let Ok(job) = &answer {
                if let Some(traces) = &inner.traces {
                    traces.reported(job, !matches!(source, ReportSource::Own), from, to);
                }
                if job.life.ended().is_some() {
                    inner.on_job_finished(job);
                }
            }
            match source {
                ReportSource::Lease(index) => self.leases[index].add_answer(answer),
                ReportSource::Caller(index) => callers[index].1.push(answer),
                ReportSource::Own => self.keep_unsettled(own.next(), answer),
            }
        }
        for (reply, answers) in callers {
            let _ = reply.send(answers);
        }
    }

    /// Keeps a report of this process's own for the next tick if the store was unavailable: no
    /// other process repeats it.
    fn keep_unsettled(&mut self, own: Option<Unsettled>, answer: Result<Job, Error>) {
        match (own, answer) {
            (Some(unsettled), Err(Error::Unavailable { .. })) => self.unsettled.push(unsettled),
            (_, Err(error)) => {
                tracing::debug!(queue = %self.queue, %error, "a report came too late");
            }
            _ => {}
        }
    }

    /// Answers the callers of a tick that the store failed. Returns when to tick again.
    pub(super) fn on_tick_failed(
        &mut self,
        inner: &Inner,
        error: &Error,
        batch: Batch,
        draining: bool,
    ) -> Timestamp {
        tracing::warn!(queue = %self.queue, %error, "a tick failed; it is repeated");
        self.unsettled = batch.own;
        // A dropped channel means an unknown outcome to its caller.
        drop(batch.callers);
        let mut waiting = VecDeque::with_capacity(self.leases.len());
        for (index, lease) in std::mem::take(&mut self.leases).into_iter().enumerate() {
            let has_reports = batch
                .sources
                .iter()
                .any(|source| matches!(source, ReportSource::Lease(of) if *of == index));
            if has_reports {
                let _ = lease.call.reply.send(Err(error.clone()));
            } else {
                waiting.push_back(lease);
            }
        }
        self.leases = waiting;
        self.expire_leases(inner.engine.ports().clock.machine_now(), draining);
        inner.engine.now() + ERROR_BACKOFF
    }
}
