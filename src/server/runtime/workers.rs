//! The pull workers that called recently: their capacity, what they run, and which are drained.
//!
//! A drain is configuration, so it outlasts a restart and holds in every process. Everything else
//! is known to this process only, and ends with it.

use std::{collections::BTreeMap, time::Duration};
use tidegate_core::error_code::ErrorCode;

use parking_lot::Mutex;

use super::Server;
use tidegate_core::{port::job_store::ItemKind, time::Timestamp};
use tidegate_engine::{Catalog, Error, request::Worker};

/// How long a worker is listed after its last call.
const WORKER_EXPIRY: Duration = Duration::from_mins(10);
/// Most workers known.
const MAX_WORKERS: usize = 10_000;
/// Most workers drained at once.
const MAX_DRAINS: usize = 1000;

#[derive(Clone, Copy, Debug)]
struct RegisteredWorker {
    capacity: Option<u32>,
    seen_at: Timestamp,
}

/// Workers by name.
#[derive(Default)]
pub(super) struct Workers(Mutex<BTreeMap<String, RegisteredWorker>>);

impl Workers {
    /// Records a call of a worker.
    pub(super) fn seen(&self, name: &str, now: Timestamp) {
        let mut workers = self.0.lock();
        if let Some(entry) = workers.get_mut(name) {
            entry.seen_at = now;
            return;
        }
        if workers.len() >= MAX_WORKERS {
            workers.retain(|_, entry| now.since(entry.seen_at) < WORKER_EXPIRY);
        }
        if workers.len() < MAX_WORKERS {
            workers.insert(name.to_owned(), RegisteredWorker { capacity: None, seen_at: now });
        }
    }

    /// Registers how many jobs a worker runs at once.
    fn register(&self, name: &str, capacity: Option<u32>, now: Timestamp) {
        self.seen(name, now);
        if let Some(entry) = self.0.lock().get_mut(name) {
            entry.capacity = capacity;
        }
    }

    /// How many jobs a worker runs at once, if it registered that.
    pub(super) fn capacity(&self, name: &str) -> Option<u32> {
        self.0.lock().get(name).and_then(|entry| entry.capacity)
    }

    /// The list at `now`. `running` has the number of jobs that each worker runs, `drains` the
    /// start of each drain.
    fn list(
        &self,
        running: &BTreeMap<String, u64>,
        drains: &BTreeMap<String, Timestamp>,
        now: Timestamp,
    ) -> Vec<Worker> {
        let workers = self.0.lock();
        let silent = drains.iter().filter(|(name, _)| !workers.contains_key(*name));
        let silent = silent
            .map(|(name, since)| (name, RegisteredWorker { capacity: None, seen_at: *since }));
        let all = workers.iter().map(|(name, entry)| (name, *entry)).chain(silent);
        let worker = |(name, entry): (&String, RegisteredWorker)| Worker {
            name: name.clone(),
            capacity: entry.capacity,
            running: running.get(name).copied().unwrap_or(0),
            draining: drains.contains_key(name),
            seen_at: entry.seen_at,
        };
        let listed = |worker: &Worker| {
            worker.draining || worker.running > 0 || now.since(worker.seen_at) < WORKER_EXPIRY
        };
        all.map(worker).filter(listed).collect()
    }
}

/// Whether a worker gets no more jobs.
pub(super) fn is_drained(catalog: &Catalog, name: Option<&str>) -> bool {
    name.is_some_and(|name| catalog.drains.contains_key(name))
}

/// Checks the name of a worker.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > 128 {
        return Err(Error::invalid("worker", "must be 1 to 128 bytes"));
    }
    Ok(())
}

impl Server {
    /// Registers how many jobs a pull worker runs at once.
    ///
    /// # Errors
    ///
    /// 400 for a bad name or capacity.
    pub async fn register_worker(
        &self,
        name: &str,
        capacity: Option<u32>,
    ) -> Result<Worker, Error> {
        check_name(name)?;
        if capacity == Some(0) {
            return Err(Error::invalid("capacity", "must be at least 1"));
        }
        self.inner.workers.register(name, capacity, self.now());
        self.inner.wake_known();
        self.worker(name).await
    }

    /// The pull workers that called in the last 10 minutes, run a job, or are drained.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn workers(&self) -> Result<Vec<Worker>, Error> {
        let catalog = self.inner.engine.catalog().await?;
        Ok(self.inner.workers.list(
            &self.inner.engine.running_by_worker(&[]),
            &catalog.drains,
            self.now(),
        ))
    }

    async fn worker(&self, name: &str) -> Result<Worker, Error> {
        let missing =
            || Error::NotFound { code: ErrorCode::WorkerNotFound, what: format!("worker {name}") };
        self.workers().await?.into_iter().find(|worker| worker.name == name).ok_or_else(missing)
    }

    /// Drains a worker (it gets no more jobs), or ends its drain. A
    /// [serverless](super::Builder::serverless) server drains unknown workers too, because each of
    /// its processes knows only some.
    ///
    /// # Errors
    ///
    /// 404 `worker_not_found`; 409 `too_many_drains`; 400 for a bad name.
    pub async fn drain_worker(&self, name: &str, draining: bool) -> Result<Worker, Error> {
        check_name(name)?;
        let worker = match self.worker(name).await {
            Err(Error::NotFound { .. }) if draining && self.inner.is_serverless() => Worker {
                name: name.to_owned(),
                capacity: None,
                running: 0,
                draining: false,
                seen_at: self.now(),
            },
            known => known?,
        };
        if worker.draining != draining {
            let drains = self.inner.engine.catalog().await?.drains.len();
            if draining && drains >= MAX_DRAINS {
                let message = format!("{drains} workers are drained: delete those that are gone");
                return Err(Error::Conflict {
                    code: ErrorCode::TooManyDrains,
                    message,
                    holder: None,
                });
            }
            self.set_drain(name, draining).await?;
        }
        Ok(Worker { draining, ..worker })
    }

    async fn set_drain(&self, name: &str, draining: bool) -> Result<(), Error> {
        let since =
            serde_json::to_vec(&self.now()).map_err(|error| Error::Internal(error.to_string()))?;
        self.inner.engine.put_item(ItemKind::Drain, name, draining.then_some(since)).await?;
        self.inner.wake_known();
        Ok(())
    }

    /// Removes a worker from the list. Its leases continue.
    ///
    /// # Errors
    ///
    /// 404 `worker_not_found`.
    pub async fn forget_worker(&self, name: &str) -> Result<(), Error> {
        if self.worker(name).await?.draining {
            self.set_drain(name, false).await?;
        }
        self.inner.workers.0.lock().remove(name);
        Ok(())
    }
}
