//! `enqueue`: a job is accepted once, even if the request is repeated.
//!
//! A job's keys are written before the job, and the job before the answer. A taken key leads to its
//! holder. A live holder is a conflict, or the answer for `unique` and for a repeated request. An
//! ended holder loses the key by compare-and-set.
//!
//! A job is added only while its type is at the version under which the job was resolved. If the
//! type has moved to another queue or was deleted, the job is resolved again. Other settings may be
//! those of a moment ago, as if the write of the job had taken that long.
//!
//! Read in this order: this file (the loop that inserts), [`resolve`] (from the request to the
//! job), [`keys`] (a key that another job holds), [`digest`](mod@digest) (how a repeat is
//! recognised).

mod digest;
mod keys;
mod resolve;

use std::{mem, sync::Arc};

use futures_util::{StreamExt, stream};

pub(crate) use digest::digest;
pub(crate) use resolve::extract_again;
pub use resolve::fault;

use crate::{
    Engine, Error,
    config::catalog::Catalog,
    jobs::objects::MAX_CONCURRENT_WRITES,
    plugins::registry::Checked,
    request::{Enqueued, NewJob},
};
use keys::same_request;
use tidegate_core::{
    error_code::ErrorCode,
    job::{Body, Event, Job, JobId, Payload, Revision, Spec, retry::Retry},
    port::{
        Committed, Txn, Write,
        job_store::{CurrentRecord, Expect, ItemKind, Key},
    },
    time::Timestamp,
};

/// How often an enqueue is tried again because a key changed its holder, or the type changed.
const MAX_ENQUEUE_RETRIES: usize = 8;

/// The writes that belong to a job's enqueue. The job is added if all of them succeed; on an atomic
/// store, only then.
#[derive(Clone, Default)]
pub(crate) struct EnqueueWrites {
    /// Conditions and writes before the job.
    pub require: Vec<Write>,
    /// Writes of items after the job.
    pub then: Vec<Write>,
    /// The job that the new one replays, which then names it. It has started. If it has changed
    /// since it was read, the enqueue is refused with [`Error::Stale`].
    pub replayed: Option<Box<Job>>,
    /// The revision that the job starts with, if not the first.
    pub revision: Option<Revision>,
}

/// A job that is not in the store yet.
struct EnqueueItem {
    /// The index of its answer.
    index: usize,
    with: EnqueueWrites,
    /// The request, in case it is resolved again.
    request: NewJob,
    job: Job,
    /// The version of its type under which it was resolved.
    type_version: u64,
    keys: JobKeys,
}

/// The keys of a job, each with the holder that it must have when the job is added.
type JobKeys = Vec<(Key, Expect<JobId>)>;

impl EnqueueItem {
    /// The transaction that adds the job: its conditions, its type's version, its keys, the job,
    /// and the writes after it.
    fn writes(&self) -> Txn {
        let (kind, name) = (ItemKind::Type, self.job.spec.job_type.to_string());
        let mut writes = Vec::with_capacity(
            self.with.require.len() + self.keys.len() + 2 + self.with.then.len(),
        );
        writes.extend_from_slice(&self.with.require);
        writes.push(Write::RequireItem { kind, name, version: self.type_version });
        let keys = self.keys.iter();
        writes.extend(keys.map(|(key, was)| Write::SetKey {
            key: key.clone(),
            job: self.job.id.clone(),
            was: was.clone(),
        }));
        let add = Write::AddJob(self.job.clone());
        writes.push(match &self.with.replayed {
            Some(replayed) => Write::Together(vec![add, self.mark_of(replayed)]),
            None => add,
        });
        writes.extend_from_slice(&self.with.then);
        writes
    }

    /// The write by which `replayed` names the job.
    fn mark_of(&self, replayed: &Job) -> Write {
        let event = Event::Replayed { by: self.job.id.clone() };
        let job = replayed.apply(event, self.job.spec.created_at);
        let job = job.expect("a job that has started may be replayed");
        Write::SetJob { job, was: replayed.life.revision, all: false }
    }

    /// The part of the transaction that the write at index `step` belongs to.
    fn part(&self, step: usize) -> Part {
        match step.checked_sub(self.with.require.len()) {
            Some(0) => Part::Type,
            Some(step) if step <= self.keys.len() => Part::Key(step - 1),
            Some(step) if step == self.keys.len() + 1 => Part::Job,
            _ => Part::Attached,
        }
    }
}

/// A part of the transaction that the store may refuse.
enum Part {
    Type,
    /// The key at this index.
    Key(usize),
    Job,
    /// One of the enqueue's own writes.
    Attached,
}

impl Engine {
    /// Accepts jobs. Returns one answer per job, in order. After `Ok` a job is durable.
    ///
    /// A repeated call is harmless if the job has an id or an idempotency key.
    pub async fn enqueue(&self, jobs: Vec<NewJob>) -> Vec<Result<Enqueued, Error>> {
        self.enqueue_with(jobs, Vec::new()).await
    }

    /// Accepts jobs, each with the writes at its index in `with`. Jobs past the end of `with` have
    /// none.
    ///
    /// If one of the writes is refused, the job is refused with [`Error::Stale`]. If the answer is
    /// a job that existed before, [`EnqueueWrites::then`] is not written.
    pub(crate) async fn enqueue_with(
        &self,
        jobs: Vec<NewJob>,
        with: Vec<EnqueueWrites>,
    ) -> Vec<Result<Enqueued, Error>> {
        let mut answers: Vec<Option<Result<Enqueued, Error>>> = jobs.iter().map(|_| None).collect();
        let mut catalog = match self.recent_catalog().await {
            Ok(catalog) => catalog,
            Err(error) => return jobs.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut is_current = false;
        let now = self.now();
        let mut items = Vec::with_capacity(jobs.len());
        let mut with = with.into_iter();
        let mut checked = Checked::default();
        for (index, job) in jobs.into_iter().enumerate() {
            let with = with.next().unwrap_or_default();
            let mut parts = self.enqueue_item_parts(&job, &mut catalog, &mut checked, now).await;
            // Only the current configuration refuses a job.
            if parts.is_err() && !mem::replace(&mut is_current, true) {
                parts = match Box::pin(self.catalog()).await {
                    Ok(current) => {
                        catalog = current;
                        self.enqueue_item_parts(&job, &mut catalog, &mut checked, now).await
                    }
                    Err(error) => Err(error),
                };
            }
            match parts {
                Ok((mut made, type_version, keys)) => {
                    made.life.revision = with.revision.unwrap_or(made.life.revision);
                    items.push(EnqueueItem {
                        index,
                        with,
                        request: job,
                        job: made,
                        type_version,
                        keys,
                    });
                }
                Err(error) => {
                    answers[index] = Some(Box::pin(self.unless_repeated(&job, error)).await);
                }
            }
        }
        for (index, error) in self.store_bodies(&mut items).await {
            let at = items.iter().position(|item| item.index == index).expect("it is an item");
            let refused = items.remove(at).request;
            answers[index] = Some(Box::pin(self.unless_repeated(&refused, error)).await);
        }
        for _ in 0..MAX_ENQUEUE_RETRIES {
            if items.is_empty() {
                break;
            }
            items = self.insert(items, &mut answers).await;
        }
        for item in items {
            let message = "its type or its keys changed too often".to_owned();
            let refused =
                Err(Error::Conflict { code: ErrorCode::ConcurrentUpdate, message, holder: None });
            Box::pin(self.forget_refused(&item.job.data, &refused)).await;
            answers[item.index] = Some(refused);
        }
        answers
            .into_iter()
            .map(|answer| {
                answer.unwrap_or_else(|| Err(Error::Internal("an enqueue has no answer".into())))
            })
            .collect()
    }

    /// Tries once to insert `items`. Returns those that must be tried again: an ended job gave up
    /// their key, or their type changed.
    async fn insert(
        &self,
        items: Vec<EnqueueItem>,
        answers: &mut [Option<Result<Enqueued, Error>>],
    ) -> Vec<EnqueueItem> {
        let txns: Vec<Txn> = items.iter().map(EnqueueItem::writes).collect();
        let committed = match self.ports.store.commit(txns).await {
            Ok(committed) => committed,
            Err(error) => {
                for item in items {
                    answers[item.index] = Some(Err(error.clone().into()));
                }
                return Vec::new();
            }
        };
        let mut again = Vec::new();
        for (mut item, outcome) in items.into_iter().zip(committed) {
            let (index, body) = (item.index, item.job.data.clone());
            let answer = match outcome {
                Committed::All => Some(Ok(Enqueued { job: item.job, new: true })),
                Committed::Conflict { step, current } => {
                    let conflict = Box::pin(self.on_enqueue_conflict(&mut item, step, current));
                    let answer = conflict.await.transpose();
                    if answer.is_none() {
                        again.push(item);
                    }
                    answer
                }
            };
            if let (Body::Object { .. }, Some(answer)) = (&body, &answer) {
                Box::pin(self.forget_refused(&body, answer)).await;
            }
            answers[index] = answer;
        }
        again
    }

    /// Handles a refused write of `item`: returns its answer, or none if it must be inserted again.
    async fn on_enqueue_conflict(
        &self,
        item: &mut EnqueueItem,
        step: usize,
        current: CurrentRecord,
    ) -> Result<Option<Enqueued>, Error> {
        let is_replayed = |job: &Job| item.with.replayed.as_ref().is_some_and(|of| of.id == job.id);
        match (item.part(step), current) {
            (_, CurrentRecord::Job(stored)) if is_replayed(&stored) => {
                Err(Error::Stale { version: stored.life.revision.0 })
            }
            (_, CurrentRecord::Job(stored)) => same_request(&item.job, *stored).map(Some),
            (_, CurrentRecord::Unreadable(job)) => Err(job.into()),
            (Part::Key(key), CurrentRecord::Key { job, since }) => {
                self.on_taken_key(item, key, job, since).await
            }
            (Part::Key(key), _) => {
                // The key became free since it was read.
                item.keys[key].1 = Expect::Absent;
                Ok(None)
            }
            (Part::Type, _) => self.resolve_again(item).await.map(|()| None),
            // The job that had the id no longer exists.
            (Part::Job, _) => Ok(None),
            (Part::Attached, CurrentRecord::Version(version)) => Err(Error::Stale { version }),
            (Part::Attached, _) => Err(Error::Stale { version: 0 }),
        }
    }

    /// The job that `new` requests, resolved and checked, the version of its type, and its keys.
    ///
    /// Futures of rare steps are boxed, so that the future of every enqueue stays small.
    async fn enqueue_item_parts(
        &self,
        new: &NewJob,
        catalog: &mut Arc<Catalog>,
        checked: &mut Checked,
        now: Timestamp,
    ) -> Result<(Job, u64, JobKeys), Error> {
        let job_type = self.type_of(&new.job_type, catalog).await?;
        let digest = if new.is_repeatable() { digest(new) } else { Spec::NO_DIGEST };
        if let Some(retry @ Retry::Plugin(..)) =
            new.options.retry.as_ref().filter(|retry| **retry != job_type.config.retry)
        {
            Box::pin(self.check_retry(catalog, retry, checked)).await?;
        }
        let job = self.resolve(new, catalog, &job_type, digest, now)?;
        Ok((job, job_type.version, keys_of(new)))
    }

    /// Stores the large bodies of `items` as objects. Returns the indices of the answers of the
    /// items whose body could not be stored, each with the error.
    async fn store_bodies(&self, items: &mut [EnqueueItem]) -> Vec<(usize, Error)> {
        let is_large = |payload: &&Payload| payload.bytes.len() > self.rules.object_bytes;
        let mut each = Vec::new();
        for item in items {
            if let Some(large) = item.job.data.inline().filter(is_large).cloned() {
                each.push(async {
                    let body = self
                        .put_object(&item.job.id, large)
                        .await
                        .map_err(|error| (item.index, error))?;
                    item.job.data = body;
                    Ok(())
                });
            }
        }
        let stored: Vec<Result<(), (usize, Error)>> =
            stream::iter(each).buffered(MAX_CONCURRENT_WRITES).collect().await;
        stored.into_iter().filter_map(Result::err).collect()
    }

    /// The answer to a request that is refused with `error` now: the job that it created, if it was
    /// accepted before.
    async fn unless_repeated(&self, new: &NewJob, error: Error) -> Result<Enqueued, Error> {
        if !new.is_repeatable() {
            return Err(error);
        }
        let digest = digest(new);
        let mut ids: Vec<JobId> = new.id.iter().cloned().collect();
        if let Some(key) = &new.idempotency_key {
            for holder in self.ports.store.keys(&[Key::Idempotency(key.clone())]).await? {
                ids.extend(holder?);
            }
        }
        for found in self.ports.store.get(&ids).await? {
            if let Some(job) = found?.filter(|job| job.spec.request_digest == digest) {
                return Ok(Enqueued { job, new: false });
            }
        }
        Err(error)
    }

    /// Resolves `item` again under the current version of its type.
    async fn resolve_again(&self, item: &mut EnqueueItem) -> Result<(), Error> {
        let mut catalog = self.catalog().await?;
        let job_type = self.type_of(&item.request.job_type, &mut catalog).await?;
        let digest = item.job.spec.request_digest;
        let Job { spec, mut life, .. } =
            self.resolve(&item.request, &catalog, &job_type, digest, self.now())?;
        // The job keeps its id and revision, the replies that it inherited with its key, and its
        // body, which may be an object by now.
        life.revision = item.job.life.revision;
        life.processed_replies = mem::take(&mut item.job.life.processed_replies);
        (item.job.spec, item.job.life, item.type_version) = (spec, life, job_type.version);
        Ok(())
    }
}

/// The keys of the job that `new` requests. None of them has a holder as far as is known.
fn keys_of(new: &NewJob) -> JobKeys {
    let mut keys = Vec::new();
    if let Some(key) = &new.idempotency_key {
        keys.push((Key::Idempotency(key.clone()), Expect::Absent));
    }
    if let Some(key) = &new.correlation_key {
        keys.push((Key::Correlation(new.job_type.clone(), key.clone()), Expect::Absent));
    }
    if let Some(unique) = &new.options.unique {
        keys.push((Key::Unique(new.job_type.clone(), unique.key.clone()), Expect::Absent));
    }
    keys
}
