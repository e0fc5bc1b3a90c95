//! `lease`: pull workers take jobs and report what became of earlier ones, in one call.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidegate_core::error_code::ErrorCode;

use tokio::sync::{Notify, oneshot};

use super::{Home, Inner, Server, Stage, deliver, workers::check_name};
use crate::runtime::embedded::queue_task::{LeaseCall, Message, QueueWatch};
use tidegate_core::{
    job::{
        Job, QueueName, TypeName,
        lifecycle::{Failure, Reason},
        type_config::TypeConfig,
    },
    time::Timestamp,
    validate::check_lease,
};
use tidegate_engine::{
    Error, fault,
    request::{LeaseRequest, Leased, Report},
};

/// Most jobs of one call.
pub const MAX_LEASES: u32 = 1000;
/// The longest wait of one call.
pub const MAX_WAIT: Duration = Duration::from_mins(1);

/// A queue to lease from, and which types of it: all that are pulled if none are named.
pub(super) type Lane = (QueueName, Option<Vec<TypeName>>);

impl Server {
    /// Leases jobs, waiting for the first if there is none; answers reports.
    ///
    /// # Errors
    ///
    /// 400 for values out of bounds; 404 for a type or queue that is not there. Reports have their own answers.
    pub async fn lease(&self, request: LeaseRequest) -> Result<Leased, Error> {
        if request.max > MAX_LEASES {
            return Err(Error::invalid("max", format!("must be 0 to {MAX_LEASES}")));
        }
        if request.wait > MAX_WAIT {
            return Err(Error::invalid("wait_seconds", "must be 0 to 60"));
        }
        request.worker.as_deref().map_or(Ok(()), check_name)?;
        request.lease_seconds.map_or(Ok(()), check_lease).map_err(fault)?;
        if request.reports.len() > MAX_LEASES as usize {
            return Err(Error::invalid(
                "reports",
                format!("must have at most {MAX_LEASES} entries"),
            ));
        }
        let until = self.now() + request.wait;
        let lanes = self.lanes(&request).await?;
        if let Some(worker) = &request.worker {
            self.inner.workers.seen(worker, self.now());
        }
        let mut lanes: Vec<Lane> = lanes.into_iter().collect();
        if self.inner.serverless.is_some() {
            return Box::pin(self.lease_serverless(lanes, request, until)).await;
        }
        if let [(queue, types)] = &mut lanes[..] {
            return self.lease_one(queue.clone(), types.take(), request, until).await;
        }
        let reports = Box::pin(self.report(request.reports.clone())).await;
        let mut leased = Leased { jobs: Vec::new(), reports };
        if request.max > 0 {
            leased.jobs = Box::pin(self.lease_any(&lanes, &request, until)).await?;
        }
        Ok(leased)
    }

    /// Ends the attempts of leased jobs that cannot be handed to their worker after all, and says why. Only some may be tried again.
    pub async fn give_back(&self, jobs: &[Job], why: &str, retryable: bool) {
        let reports = jobs.iter().map(|job| {
            deliver::failed(job, Failure::new(Reason::NotDelivered, why), retryable, Duration::ZERO)
        });
        for answer in Box::pin(self.report(reports.collect())).await {
            // Its lease ends the attempt.
            if let Err(error) = answer {
                tracing::warn!(%error, "a leased job was not given back");
            }
        }
    }

    /// The queues that can serve the request, with the types to take from each.
    async fn lanes(
        &self,
        request: &LeaseRequest,
    ) -> Result<BTreeMap<QueueName, Option<Vec<TypeName>>>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        let mut lanes: BTreeMap<QueueName, Option<Vec<TypeName>>> = BTreeMap::new();
        for name in &request.types {
            let missing = || Error::NotFound {
                code: ErrorCode::JobTypeNotFound,
                what: format!("job type {name}"),
            };
            let item = catalog.types.get(name).ok_or_else(missing)?;
            if self.inner.engine.is_pushed(&item.config) {
                return Err(Error::invalid(
                    "types",
                    format!("{name} is pushed to its target, not pulled"),
                ));
            }
            if request.queue.as_ref().is_none_or(|queue| *queue == item.config.queue) {
                lanes
                    .entry(item.config.queue.clone())
                    .or_insert_with(|| Some(Vec::new()))
                    .get_or_insert_default()
                    .push(name.clone());
            }
        }
        if request.types.is_empty() {
            if let Some(queue) = &request.queue {
                self.inner.engine.queue(queue).await?;
                lanes.insert(queue.clone(), None);
            } else {
                let pulled =
                    catalog.types.iter().filter(|(name, item)| self.is_pulled(name, &item.config));
                lanes.extend(pulled.map(|(_, item)| (item.config.queue.clone(), None)));
            }
        }
        Ok(lanes)
    }

    /// Whether pull workers take jobs of this type.
    fn is_pulled(&self, name: &TypeName, config: &TypeConfig) -> bool {
        !self.inner.engine.is_pushed(config) && !self.inner.handlers.contains_key(name)
    }

    /// The usual call: one queue, which settles the reports and leases in one commit.
    async fn lease_one(
        &self,
        queue: QueueName,
        types: Option<Vec<TypeName>>,
        request: LeaseRequest,
        until: Timestamp,
    ) -> Result<Leased, Error> {
        let (reports, mut answers, order) = self.own_reports(&queue, request.reports).await?;
        let (reply, answer) = oneshot::channel();
        let (worker, lease) = (request.worker, request.lease_seconds);
        let call = LeaseCall { types, max: request.max, until, worker, lease, reports, reply };
        self.inner.queue(&queue).send(Message::Lease(call));
        let (handed, settled) = answer.await.map_err(|_| unknown())??;
        for (index, answer) in order.into_iter().zip(settled) {
            answers[index] = Some(answer);
        }
        let reports =
            answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unknown()))).collect();
        Ok(Leased { jobs: handed.take(), reports })
    }

    /// Splits off and settles the reports of jobs that are not in `queue`.
    #[allow(clippy::type_complexity, reason = "three lists that belong together for two calls")]
    async fn own_reports(
        &self,
        queue: &QueueName,
        reports: Vec<Report>,
    ) -> Result<(Vec<Report>, Vec<Option<Result<Job, Error>>>, Vec<usize>), Error> {
        let mut answers: Vec<Option<Result<Job, Error>>> = reports.iter().map(|_| None).collect();
        let (mut own, mut order) = (Vec::new(), Vec::new());
        let queues = self.queues_of(&reports).await?;
        for (index, (report, at)) in reports.into_iter().zip(queues).enumerate() {
            if at.as_ref() == Some(queue) {
                match self.inner.engine.prepare_report(report).await {
                    Ok(report) => {
                        own.push(report);
                        order.push(index);
                    }
                    Err(error) => answers[index] = Some(Err(error)),
                }
            } else {
                answers[index] = Box::pin(self.report(vec![report])).await.pop();
            }
        }
        Ok((own, answers, order))
    }

    /// A call that several queues can serve: they are looked at in turn, so that no more than `max` are leased in all, and
    /// then again whenever one of them rings.
    async fn lease_any(
        &self,
        lanes: &[(QueueName, Option<Vec<TypeName>>)],
        request: &LeaseRequest,
        until: Timestamp,
    ) -> Result<Vec<Job>, Error> {
        let waker = Arc::new(Notify::new());
        let watch = |types: &Option<Vec<TypeName>>| QueueWatch {
            types: types.clone(),
            max: request.max,
            notified: AtomicBool::new(true),
            waker: Arc::clone(&waker),
        };
        let watches: Vec<Arc<QueueWatch>> =
            lanes.iter().map(|(_, types)| Arc::new(watch(types))).collect();
        if !request.wait.is_zero() {
            for ((queue, _), watch) in lanes.iter().zip(&watches) {
                self.inner.queue(queue).send(Message::Watch(Arc::downgrade(watch)));
            }
        }
        let mut handed = Handed::new(&self.inner, Vec::new());
        // While it stops nobody is served, and its queues' tasks end one by one.
        while *self.inner.stopping.borrow() == Stage::Serving {
            let now = self.now();
            for ((queue, types), watch) in lanes.iter().zip(&watches) {
                if !watch.notified.swap(false, Ordering::AcqRel) {
                    continue;
                }
                let (reply, answer) = oneshot::channel();
                let max = request.max - handed.len() as u32;
                let (worker, lease) = (request.worker.clone(), request.lease_seconds);
                let call = LeaseCall {
                    types: types.clone(),
                    max,
                    until: now,
                    worker,
                    lease,
                    reports: Vec::new(),
                    reply,
                };
                self.inner.queue(queue).send(Message::Lease(call));
                match answer.await.map_err(|_| unknown()).and_then(|answered| answered) {
                    Ok((jobs, _)) => handed.add(jobs.take()),
                    // What another queue gave is not to be lost with this one's answer.
                    Err(error) if handed.len() == 0 => return Err(error),
                    Err(_) => return Ok(handed.take()),
                }
                if handed.len() as u32 >= request.max {
                    return Ok(handed.take());
                }
            }
            if handed.len() > 0 || now >= until {
                return Ok(handed.take());
            }
            tokio::select! {
                () = waker.notified() => {}
                () = self.inner.engine.ports().clock.sleep_until(until) => {}
            }
        }
        Ok(handed.take())
    }
}

/// Leased jobs on their way to a worker. Those that nobody takes, since the worker has gone away, end their attempts at once
/// rather than at the end of their leases.
#[derive(Default)]
pub(crate) struct Handed {
    home: Home,
    jobs: Vec<Job>,
}

impl Handed {
    pub(super) fn new(inner: &Arc<Inner>, jobs: Vec<Job>) -> Self {
        Self { home: Arc::downgrade(inner), jobs }
    }

    pub(super) fn add(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.jobs.extend(jobs);
    }

    fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The jobs: from here on they are the taker's.
    fn take(mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some(inner) = self.home.upgrade() {
            self.jobs.drain(..).for_each(|job| {
                not_delivered(&inner, &job, "its worker was gone before it got the job")
            });
        }
    }
}

/// Ends the attempt of a leased job whose worker did not get it.
///
/// The claim was committed and counts as an attempt, as every claim does. What follows is what the type's retry strategy says.
pub(super) fn not_delivered(inner: &Arc<Inner>, job: &Job, why: impl Into<String>) {
    let report =
        deliver::failed(job, Failure::new(Reason::NotDelivered, why), true, Duration::ZERO);
    inner.queue(&job.spec.queue).send(Message::Done(None, Some(report), inner.busy()));
}

/// The store did not say whether what was asked happened.
pub(super) fn unknown() -> Error {
    Error::Unavailable {
        retry_after: Duration::from_secs(1),
        message: "the store did not answer; repeat the call".into(),
    }
}
