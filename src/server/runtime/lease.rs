//! Leases: pull workers take jobs and report results of earlier ones in one call.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{
    Server, deliver,
    workers::{check_name, outside},
};
use crate::auth::Bounds;
use tidegate_core::{
    error_code::ErrorCode,
    job::{Job, QueueName, TypeName, type_config::TypeConfig},
    port::job_store::ItemKind,
    time::Seconds,
    validate::check_lease,
};
use tidegate_engine::{
    Catalog, Error, RepeatableCall, fault,
    request::{LeaseRequest, Leased, Registration, Report},
};

/// Most jobs and reports of one call.
pub(crate) const MAX_LEASES: u32 = 1000;
/// The longest wait of one call.
pub const MAX_WAIT: Duration = Duration::from_mins(1);
/// The longest wait of a worker that is to stop. It gets no jobs. One that does not know `stop` asks
/// again and again, and must not do so without a pause.
const STOPPED_WAIT: Duration = Duration::from_secs(1);

/// A queue to lease from, and its types; `None` selects all pulled types.
pub(super) type QueueSelection = (QueueName, Option<Vec<TypeName>>);

impl Server {
    /// Leases jobs and settles reports. If no job is due, waits for the first one; with
    /// [`LeaseRequest::min`], for as many.
    ///
    /// # Errors
    ///
    /// 400 for values out of bounds; 404 for an unknown type or queue. Each report has its own
    /// result.
    pub async fn lease(&self, request: LeaseRequest) -> Result<Leased, Error> {
        self.lease_within(request, &Bounds::default()).await
    }

    /// As [`Server::lease`], only jobs within `bounds`. It does not check the reports.
    ///
    /// # Errors
    ///
    /// As [`Server::lease`]; 403 for a queue or a type outside the bounds.
    pub async fn lease_within(
        &self,
        request: LeaseRequest,
        bounds: &Bounds,
    ) -> Result<Leased, Error> {
        self.lease_while(request, bounds, None).await
    }

    /// As [`Server::lease_within`]. The wait ends when the sender of `forwarder` is gone.
    pub(super) async fn lease_while(
        &self,
        mut request: LeaseRequest,
        bounds: &Bounds,
        forwarder: Option<watch::Receiver<()>>,
    ) -> Result<Leased, Error> {
        if request.max > MAX_LEASES {
            return Err(Error::invalid("max", format!("must be 0 to {MAX_LEASES}")));
        }
        if request.wait > MAX_WAIT {
            return Err(Error::invalid("wait_seconds", "must be 0 to 60"));
        }
        if request.min > request.max {
            return Err(Error::invalid(
                "min",
                format!("must be 0 to {}, the value of max", request.max),
            ));
        }
        if request.max_pause > MAX_WAIT {
            return Err(Error::invalid("max_pause_seconds", "must be 0 to 60"));
        }
        request.worker.as_deref().map_or(Ok(()), check_name)?;
        request.lease_seconds.map_or(Ok(()), check_lease).map_err(fault)?;
        if request.reports.len() > MAX_LEASES as usize {
            return Err(Error::invalid(
                "reports",
                format!("must have at most {MAX_LEASES} entries"),
            ));
        }
        let began = self.inner.engine.ports().clock.machine_now();
        let catalog = self.inner.engine.catalog().await?;
        let selections = self.select_queues(&catalog, &request, bounds)?;
        drop(catalog);
        if request.min > 1 && selections.len() > 1 {
            let message = "must be at most 1 in a request to several queues: name its queue";
            return Err(Error::invalid("min", message));
        }
        let inner = Arc::clone(&self.inner);
        let poll = inner.workers.poll(&request, &*inner.engine.ports().clock);
        // A stop ends the calls that it finds, so those that come later look for it.
        if self.is_worker_stopping(request.worker.as_deref()).await {
            request.wait = request.wait.min(STOPPED_WAIT);
        }
        let until = began + request.wait;
        if let (Some(worker), Some(capacity)) = (&request.worker, poll.renewal())
            && let Err(error) =
                self.keep_registration(worker, &Registration::of_capacity(capacity)).await
        {
            tracing::warn!(worker, %error, "the worker's capacity may be forgotten at a restart");
        }
        let presence = poll.presence().while_forwarded(forwarder);
        let Some(call) = request.call.clone() else {
            return self.lease_from(selections, request, until, presence).await;
        };
        let turn = inner.lease_calls.begin(&call);
        let (lease, max) = (request.lease_seconds, request.max as usize);
        let mut jobs = self.repeated_leases(&call, lease, bounds).await?;
        if !jobs.is_empty() {
            if turn.is_superseded() {
                jobs.clear();
            }
            let reports = Box::pin(self.report(std::mem::take(&mut request.reports))).await;
            return Ok(Leased { jobs, reports, pause: None });
        }
        let presence = presence.while_latest(turn.latest());
        let mut leased = self.lease_from(selections, request, until, presence).await?;
        // The call that this one repeats may have claimed jobs after they were looked for. A call
        // that was repeated itself must neither renew the leases of its repeat nor hand them back.
        if !turn.is_superseded() && (leased.jobs.is_empty() || turn.is_repeat()) {
            leased.jobs = self.repeated_leases(&call, lease, bounds).await?;
            if turn.is_superseded() {
                leased.jobs.clear();
            }
            // A repeat may ask only for those of the call before.
            let most = if max == 0 { leased.jobs.len() } else { max };
            let beyond = leased.jobs.split_off(leased.jobs.len().min(most));
            self.hand_back(&beyond, "its worker repeated the call and had enough jobs").await;
        }
        Ok(leased)
    }

    /// A lease call that `worker` may repeat with the same `request_id`.
    ///
    /// # Errors
    ///
    /// 400 for an id that has not 16 to 128 bytes.
    pub fn repeatable_call(
        &self,
        request_id: &str,
        worker: Option<&str>,
    ) -> Result<Arc<RepeatableCall>, Error> {
        if !(16..=128).contains(&request_id.len()) {
            return Err(Error::invalid("request_id", "must be 16 to 128 bytes"));
        }
        let nonce = self.inner.engine.ports().entropy.bits();
        Ok(Arc::new(RepeatableCall::new(request_id, worker, nonce)))
    }

    /// The leases of the call that `call` repeats, with their bodies, as far as they are within
    /// `bounds`.
    async fn repeated_leases(
        &self,
        call: &RepeatableCall,
        lease: Option<Seconds>,
        bounds: &Bounds,
    ) -> Result<Vec<Job>, Error> {
        let engine = &self.inner.engine;
        let jobs = engine.repeated_leases(call, lease, |job| bounds.allow(job)).await?;
        if jobs.is_empty() { Ok(jobs) } else { Ok(self.loaded(jobs).await) }
    }

    /// The jobs with their bodies. One whose body cannot be read ends its attempt at once.
    pub(super) async fn loaded(&self, jobs: Vec<Job>) -> Vec<Job> {
        let mut whole = Vec::with_capacity(jobs.len());
        let mut failed = Vec::new();
        for (job, loaded) in jobs.iter().zip(self.engine().load_each(jobs.clone()).await) {
            match loaded {
                Ok(job) => whole.push(job),
                Err(error) => {
                    failed.push(deliver::not_delivered(job, error.to_string(), true));
                }
            }
        }
        if !failed.is_empty() {
            Box::pin(self.report(failed)).await;
        }
        whole
    }

    /// Hands back leased jobs that are not in the answer to their worker, for this `reason`.
    pub async fn hand_back(&self, jobs: &[Job], reason: &str) {
        self.end_leases(jobs.iter().map(|job| deliver::not_received(job, reason)).collect()).await;
    }

    /// Ends the attempts of leased jobs that fit into no answer, for this `reason`.
    pub async fn refuse_leases(&self, jobs: &[Job], reason: &str) {
        let reports = jobs.iter().map(|job| deliver::not_delivered(job, reason, false));
        self.end_leases(reports.collect()).await;
    }

    async fn end_leases(&self, reports: Vec<Report>) {
        for answer in Box::pin(self.report(reports)).await {
            // The attempt ends with its lease.
            if let Err(error) = answer {
                tracing::warn!(%error, "the attempt of an undelivered leased job was not ended");
            }
        }
    }

    /// The queues that can serve the request under `catalog`, with the types to take from each.
    pub(super) fn select_queues(
        &self,
        catalog: &Catalog,
        request: &LeaseRequest,
        bounds: &Bounds,
    ) -> Result<Vec<QueueSelection>, Error> {
        if let Some(queue) = request.queue.as_ref().filter(|queue| !bounds.allow_queue(queue)) {
            return Err(outside(&format!("queue {queue}")));
        }
        let mut selections: BTreeMap<QueueName, Option<Vec<TypeName>>> = BTreeMap::new();
        for name in &request.types {
            if !bounds.allow_type(name) {
                return Err(outside(&format!("type {name}")));
            }
            let missing = || Error::NotFound {
                code: ErrorCode::JobTypeNotFound,
                what: format!("job type {name}"),
            };
            // It holds its own jobs, and not the worker's other types.
            if catalog.is_unreadable(ItemKind::Type, name.as_str()) {
                continue;
            }
            let item = catalog.types.get(name).ok_or_else(missing)?;
            if !bounds.allow_queue(&item.config.queue) {
                return Err(outside(&format!("queue {} of type {name}", item.config.queue)));
            }
            if self.inner.engine.is_pushed(&item.config) {
                return Err(Error::invalid(
                    "types",
                    format!("{name} is pushed to its target, not pulled"),
                ));
            }
            if request.queue.as_ref().is_none_or(|queue| *queue == item.config.queue) {
                selections
                    .entry(item.config.queue.clone())
                    .or_insert_with(|| Some(Vec::new()))
                    .get_or_insert_default()
                    .push(name.clone());
            }
        }
        if request.types.is_empty() {
            if let Some(queue) = &request.queue {
                catalog.queue(queue)?;
                selections.insert(queue.clone(), None);
            } else {
                let pulled =
                    catalog.types.iter().filter(|(name, item)| self.is_pulled(name, &item.config));
                selections.extend(pulled.map(|(_, item)| (item.config.queue.clone(), None)));
            }
            selections.retain(|queue, _| bounds.allow_queue(queue));
            if bounds.types.is_some() {
                for (queue, types) in &mut selections {
                    let pulled = catalog.types.iter().filter(|(name, item)| {
                        item.config.queue == *queue
                            && bounds.allow_type(name)
                            && self.is_pulled(name, &item.config)
                    });
                    *types = Some(pulled.map(|(name, _)| name.clone()).collect());
                }
                selections.retain(|_, types| types.as_ref().is_some_and(|types| !types.is_empty()));
                if let Some(queue) = request.queue.as_ref().filter(|_| selections.is_empty()) {
                    return Err(outside(&format!("a type of queue {queue}")));
                }
            }
        }
        Ok(selections.into_iter().collect())
    }

    /// Whether pull workers take jobs of this type.
    fn is_pulled(&self, name: &TypeName, config: &TypeConfig) -> bool {
        !self.inner.engine.is_pushed(config) && !self.inner.handlers.contains_key(name)
    }
}

/// The error for a call whose outcome the store did not report.
pub(super) fn outcome_unknown() -> Error {
    Error::Unavailable {
        code: ErrorCode::OutcomeUnknown,
        retry_after: Duration::from_secs(1),
        message: "the store did not answer; repeat the call".into(),
    }
}
