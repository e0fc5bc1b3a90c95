//! The embedded home (skeleton: bodies come from the lead; do not edit).
use std::{sync::Arc, time::Duration};
use crate::{engine::{Error, request::*}, job::*, port::job_store::{ListPage, ListQuery, StateFilter}, queue::config::*, time::*};

/// The server: every verb as a method. Cheap to clone.
#[derive(Clone)]
pub struct Server { inner: Arc<()> }

impl Server {
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued, Error> { todo!() }
    pub async fn enqueue_many(&self, jobs: Vec<NewJob>) -> Vec<Result<Enqueued, Error>> { todo!() }
    /// 404 `job_not_found` also if it has another type than the one named.
    pub async fn job(&self, id: &JobId, job_type: Option<&TypeName>) -> Result<Job, Error> { todo!() }
    /// The jobs with every body that is kept elsewhere read in (data and results).
    pub async fn load(&self, jobs: Vec<Job>) -> Result<Vec<Job>, Error> { todo!() }
    pub async fn list(&self, query: &ListQuery) -> Result<ListPage, Error> { todo!() }
    pub async fn patch(&self, id: &JobId, job_type: Option<&TypeName>, patch: JobPatch, if_match: Option<u64>) -> Result<Job, Error> { todo!() }
    pub async fn cancel(&self, id: &JobId, job_type: Option<&TypeName>, force: bool) -> Result<Cancelled, Error> { todo!() }
    pub async fn report(&self, reports: Vec<Report>) -> Vec<Result<Job, Error>> { todo!() }
    pub async fn heartbeat(&self, beat: Heartbeat) -> Result<Beat, Error> { todo!() }
    pub async fn replay(&self, id: &JobId, job_type: Option<&TypeName>, with: ReplayWith, idempotency_key: Option<String>) -> Result<Job, Error> { todo!() }
    /// `Ok(Some(None))`: ended, no result (or taken). `Ok(None)`: the wait ended first (408 if wait given and not ended; with wait 0 a not-ended job is 200 null).
    pub async fn result(&self, id: &JobId, job_type: Option<&TypeName>, wait: Duration) -> Result<Option<Option<Payload>>, Error> { todo!() }
    pub async fn explain(&self, id: &JobId, job_type: Option<&TypeName>) -> Result<Explanation, Error> { todo!() }
    pub async fn lease(&self, request: LeaseRequest) -> Result<Leased, Error> { todo!() }
    pub async fn register_worker(&self, name: String, capacity: Option<u32>) -> Result<Worker, Error> { todo!() }
    pub async fn workers(&self) -> Vec<Worker> { todo!() }
    pub async fn drain_worker(&self, name: &str, draining: bool) -> Result<Worker, Error> { todo!() }
    pub async fn forget_worker(&self, name: &str) -> Result<(), Error> { todo!() }

    /// `if_match`: the version that must stand (ETag). Answers (item, whether it is new).
    pub async fn put_queue(&self, name: &QueueName, config: QueueConfig, if_match: Option<u64>) -> Result<(QueueItem, bool), Error> { todo!() }
    pub async fn queue(&self, name: &QueueName) -> Result<QueueItem, Error> { todo!() }
    pub async fn queue_status(&self, name: &QueueName) -> Result<QueueStatus, Error> { todo!() }
    pub async fn queues(&self) -> Result<Vec<(QueueName, QueueItem)>, Error> { todo!() }
    pub async fn delete_queue(&self, name: &QueueName, if_match: Option<u64>) -> Result<(), Error> { todo!() }
    pub async fn pause_queue(&self, name: &QueueName, paused: bool) -> Result<QueueItem, Error> { todo!() }
    pub async fn put_type(&self, name: &TypeName, config: TypeConfig, if_match: Option<u64>) -> Result<(TypeItem, bool), Error> { todo!() }
    pub async fn job_type(&self, name: &TypeName) -> Result<TypeItem, Error> { todo!() }
    pub async fn job_types(&self) -> Result<Vec<(TypeName, TypeItem)>, Error> { todo!() }
    pub async fn delete_type(&self, name: &TypeName, if_match: Option<u64>) -> Result<(), Error> { todo!() }

    /// Starts a bulk operation and answers at once.
    pub async fn bulk(&self, kind: BulkKind, filter: JobFilter) -> Result<Operation, Error> { todo!() }
    pub async fn operation(&self, id: &str) -> Result<Operation, Error> { todo!() }

    /// Items of kind Token (auth/ defines the JSON): create, list, delete; the authenticator is refreshed.
    pub async fn put_token(&self, id: &str, json: Vec<u8>) -> Result<(), Error> { todo!() }
    pub async fn tokens(&self) -> Result<Vec<Vec<u8>>, Error> { todo!() }
    pub async fn delete_token(&self, id: &str) -> Result<bool, Error> { todo!() }
    /// True when requests are served (store answers, not stopping).
    pub async fn ready(&self) -> Result<(), Error> { todo!() }
    pub fn now(&self) -> Timestamp { todo!() }
}
