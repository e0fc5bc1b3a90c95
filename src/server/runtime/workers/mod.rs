//! The pull workers that called recently: their capacity, what they run, and which are drained.
//!
//! A drain is configuration, so it outlasts a restart and holds in every process. A capacity
//! outlasts a restart of an embedded server, and processes on a shared store share
//! registrations, see [`super::registrations`]. Everything else is known to this process only, and
//! ends with it.

mod of_queue;
mod registry;

use registry::MAX_TYPES;
pub(super) use registry::{Presence, WORKER_EXPIRY, Workers};

use super::{Server, changes::Change};
use crate::auth::Bounds;
use tidegate_api::WorkerChange;
use tidegate_core::{error_code::ErrorCode, job::TypeName};
use tidegate_engine::{
    Catalog, Error,
    config::drain::{Drain, DrainChange},
    request::{Registration, Worker},
};

/// Whether a worker gets no more jobs.
pub(super) fn is_drained(catalog: &Catalog, name: Option<&str>) -> bool {
    name.is_some_and(|name| catalog.drains.contains_key(name))
}

/// Whether a worker is to end after its running jobs.
pub(super) fn is_stopping(catalog: &Catalog, name: Option<&str>) -> bool {
    name.and_then(|name| catalog.drains.get(name)).is_some_and(|drain| drain.is_stop())
}

/// Checks the name of a worker.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > 128 {
        return Err(Error::invalid("worker", "must be 1 to 128 bytes"));
    }
    Ok(())
}

/// The error for a queue or a type outside the bounds of a token.
pub(super) fn outside(what: &str) -> Error {
    Error::Forbidden(format!("the token does not concern {what}"))
}

impl Server {
    /// Registers a pull worker, or renews its registration.
    ///
    /// # Errors
    ///
    /// 400 for a bad name or capacity, or more than 100 types.
    pub async fn register_worker(
        &self,
        name: &str,
        registration: Registration,
    ) -> Result<Worker, Error> {
        self.register_worker_within(name, registration, &Bounds::default()).await
    }

    /// As [`Server::register_worker`], within `bounds`.
    ///
    /// # Errors
    ///
    /// As [`Server::register_worker`]; 403 for a queue, a type or the queue of a type outside the
    /// bounds.
    pub async fn register_worker_within(
        &self,
        name: &str,
        registration: Registration,
        bounds: &Bounds,
    ) -> Result<Worker, Error> {
        check_name(name)?;
        let Registration { capacity, queue, types } = &registration;
        if *capacity == Some(0) {
            return Err(Error::invalid("capacity", "must be at least 1"));
        }
        if types.len() > MAX_TYPES {
            let message = format!("must have at most {MAX_TYPES} entries");
            return Err(Error::invalid("types", message));
        }
        if let Some(queue) = queue.as_ref().filter(|queue| !bounds.allow_queue(queue)) {
            return Err(outside(&format!("queue {queue}")));
        }
        let catalog = self.inner.engine.catalog().await?;
        let is_within = |name: &&TypeName| {
            let of_queue =
                catalog.types.get(*name).map(|item| bounds.allow_queue(&item.config.queue));
            // It may be created later, in any queue.
            bounds.allow_type(name) && of_queue.unwrap_or_else(|| bounds.is_everything())
        };
        if let Some(name) = types.iter().find(|name| !is_within(name)) {
            return Err(outside(&format!("type {name}")));
        }
        let (now, workers) = (self.now(), &self.inner.workers);
        let is_known = workers.is_stored(name, *capacity, now);
        if self.inner.is_serverless() {
            self.keep_registration(name, &registration).await?;
        } else if !self.inner.shares_store() && is_known {
            workers.register(name, &registration, None, now);
        } else {
            self.keep_registration(name, &registration).await?;
            workers.register(name, &registration, Some(now), now);
            if !is_known {
                self.worker_changed(name, "registered");
            }
            self.inner.wake_known();
        }
        let running = self.inner.engine.running_by_worker(&[]);
        Ok(Worker {
            name: name.to_owned(),
            capacity: *capacity,
            running: running.get(name).copied().unwrap_or(0),
            draining: is_drained(&catalog, Some(name)),
            stopping: is_stopping(&catalog, Some(name)),
            seen_at: now,
            queue: registration.queue,
            types: registration.types,
        })
    }

    /// The pull workers that called in the last 10 minutes, run a job, or are drained; of a
    /// store that processes share, those that registered in the last 10 minutes, or are drained.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn workers(&self) -> Result<Vec<Worker>, Error> {
        self.refresh_running().await?;
        let catalog = self.inner.engine.catalog().await?;
        let running = self.inner.engine.running_by_worker(&[]);
        Ok(self.shared_workers().await?.list(&running, &catalog.drains, self.now()))
    }

    /// A listed worker.
    ///
    /// # Errors
    ///
    /// 404 `worker_not_found`; the store's.
    pub(super) async fn worker(&self, name: &str) -> Result<Worker, Error> {
        let missing =
            || Error::NotFound { code: ErrorCode::WorkerNotFound, what: format!("worker {name}") };
        self.refresh_running().await?;
        let catalog = self.inner.engine.catalog().await?;
        let running = self.inner.engine.running_by_worker(&[]);
        let stored;
        let known = if self.inner.shares_store() {
            stored = self.stored_worker(name).await?;
            &stored
        } else {
            &*self.inner.workers
        };
        let listed = known.list(&running, &catalog.drains, self.now());
        listed.into_iter().find(|worker| worker.name == name).ok_or_else(missing)
    }

    /// The named worker, to be drained or stopped. A process that shares its store drains unknown
    /// workers too, because it knows only some.
    async fn drainable(&self, name: &str) -> Result<Worker, Error> {
        match self.worker(name).await {
            Err(Error::NotFound { .. }) if self.inner.shares_store() => Ok(Worker {
                name: name.to_owned(),
                capacity: None,
                running: 0,
                draining: false,
                stopping: false,
                seen_at: self.now(),
                queue: None,
                types: Vec::new(),
            }),
            known => known,
        }
    }

    /// Drains a worker (it gets no more jobs), or ends its drain and the request that it ends. A
    /// process that shares its store drains unknown workers too, because it knows only some.
    ///
    /// # Errors
    ///
    /// 404 `worker_not_found`; 409 `too_many_drains`; 400 for a bad name.
    pub async fn drain_worker(&self, name: &str, draining: bool) -> Result<Worker, Error> {
        check_name(name)?;
        let (worker, change) = if draining {
            (self.drainable(name).await?, DrainChange::Drain)
        } else {
            (self.worker(name).await?, DrainChange::Undrain)
        };
        let drain = self.change_drain(name, change).await?;
        Ok(Worker { draining, stopping: drain.is_some_and(Drain::is_stop), ..worker })
    }

    /// Has a worker end in order: it gets no more jobs, and the answer to its next lease request, or
    /// to the one that waits, requests the end. That request ends when the worker is deleted, as it
    /// is when it leaves; a drain from before stays. Unknown workers are as in
    /// [`Server::drain_worker`].
    ///
    /// # Errors
    ///
    /// As [`Server::drain_worker`].
    pub async fn stop_worker(&self, name: &str) -> Result<Worker, Error> {
        check_name(name)?;
        let worker = self.drainable(name).await?;
        self.change_drain(name, DrainChange::Stop).await?;
        self.inner.workers.end_calls(name);
        Ok(Worker { draining: true, stopping: true, ..worker })
    }

    /// Whether a worker is to end. If that cannot be read, its next request learns it.
    pub(crate) async fn is_worker_stopping(&self, name: Option<&str>) -> bool {
        // The lease call has just read the configuration, and each read may cost a round trip.
        let catalog = self.inner.engine.known_catalog().await;
        catalog.is_ok_and(|catalog| is_stopping(&catalog, name))
    }

    /// Publishes a change of a worker that no item of the store shows.
    fn worker_changed(&self, name: &str, change: &'static str) {
        let change = WorkerChange { worker: name.to_owned(), change: change.into() };
        self.inner.changes.add(Change::Worker(change));
    }

    /// Changes why a worker gets no more jobs, and returns what it is then.
    async fn change_drain(&self, name: &str, change: DrainChange) -> Result<Option<Drain>, Error> {
        let drain = self.inner.engine.change_drain(name, change).await?;
        self.inner.wake_known();
        Ok(drain)
    }

    /// Removes a worker from the list, and ends its drain unless `keep_drain`. A request that it ends
    /// is over. Its leases continue, and its waiting lease calls in this process end without jobs.
    ///
    /// # Errors
    ///
    /// 404 `worker_not_found`.
    pub async fn forget_worker(&self, name: &str, keep_drain: bool) -> Result<(), Error> {
        self.worker(name).await?;
        if is_drained(&*self.inner.engine.catalog().await?, Some(name)) {
            self.change_drain(name, DrainChange::Leave { keep_drain }).await?;
        }
        self.remove_registration(name).await?;
        // On a shared store it may have called other servers only.
        if self.inner.workers.remove(name) || self.inner.shares_store() {
            self.worker_changed(name, "removed");
            self.inner.wake_known();
        }
        Ok(())
    }
}
