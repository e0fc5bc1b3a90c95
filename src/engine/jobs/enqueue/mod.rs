//! `enqueue`: a job is accepted once, even if the request is repeated.
//!
//! A job's keys are written before the job, and the job before the answer. A taken key leads to its
//! holder. A live holder is a conflict, or the answer for `unique` and for a repeated request, or it
//! takes the request. An ended holder loses the key by compare-and-set.
//!
//! A job is added only while its type is at the version under which the job was resolved. If the
//! type has moved to another queue or was deleted, the job is resolved again. Other settings may be
//! those of a moment ago, as if the write of the job had taken that long.
//!
//! Read in this order: this file (the loop that inserts), [`resolve`] (from the request to the
//! job), [`item`] (its transaction), [`keys`] (a key that another job holds), [`holders`] (the jobs
//! that hold keys, read at once), [`merge`] (a waiting job that takes a request),
//! [`digest`](mod@digest) (how a repeat is recognised).

mod digest;
mod holders;
mod item;
mod keys;
mod merge;
mod resolve;

use std::{mem, sync::Arc};

use futures_util::{StreamExt, stream};

pub(crate) use digest::digest;
pub(crate) use item::EnqueueWrites;
pub use resolve::fault;
pub(crate) use resolve::{check_weight, extract_again};

use crate::{
    Engine, Error,
    config::catalog::Catalog,
    jobs::objects::MAX_CONCURRENT_WRITES,
    plugins::registry::Checked,
    request::{Enqueued, NewJob},
};
use holders::Found;
use item::{EnqueueItem, JobKeys, Part, keys_of};
use keys::{answer_of_holder, same_request};
use merge::{Chain, chained};
use tidegate_core::{
    error_code::ErrorCode,
    job::{Body, Job, JobId, Payload, Spec, retry::Retry},
    port::{
        Committed, StoreError, Txn, Write,
        job_store::{CurrentRecord, Expect, Key},
    },
    time::Timestamp,
};

/// How often an enqueue is tried again because a key changed its holder, or the type changed.
const MAX_ENQUEUE_RETRIES: usize = 8;

/// The answers to the requests of a call, as far as they are known.
type Answers = [Option<Result<Enqueued, Error>>];

/// An item, and what it writes if it or a follower may change a waiting job.
struct Planned {
    item: EnqueueItem,
    chain: Option<Box<Chain>>,
}

impl Planned {
    fn txn(&self) -> Txn {
        let mut txn: Txn = self.item.inbox_requests().cloned().map(Write::TakeRequest).collect();
        match (&self.item.holder, &self.chain) {
            (Some(holder), Some(chain)) => {
                let (job, was) = (chain.job.clone(), holder.life.revision);
                txn.push(Write::SetJob { job, was, all: true });
            }
            (_, chain) => {
                let job = chain.as_ref().map_or(&self.item.job, |chain| &chain.job);
                txn.extend(self.item.writes(job));
            }
        }
        txn
    }

    /// Answers all of its requests with `error`.
    fn refuse(&self, error: &Error, answers: &mut Answers) {
        for request in std::iter::once(&self.item).chain(&self.item.followers) {
            answers[request.index] = Some(Err(error.clone()));
        }
    }
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
                        followers: Vec::new(),
                        holder: None,
                    });
                }
                Err(error) => {
                    answers[index] = Some(Box::pin(self.unless_repeated(&job, error)).await);
                }
            }
        }
        let mut items = chained(items);
        if items.iter().any(EnqueueItem::is_chain) {
            items = Box::pin(self.find_holders(items, &mut answers)).await;
        }
        // Rounds that answered nothing.
        let mut in_vain = 0;
        while !items.is_empty() && in_vain < MAX_ENQUEUE_RETRIES {
            let before = unanswered(&answers);
            // A request that remains of a chain is one of these in a later round.
            for (index, error) in self.store_bodies(&mut items).await {
                let at = items.iter().position(|item| item.index == index).expect("it is an item");
                let refused = items.remove(at).request;
                answers[index] = Some(Box::pin(self.unless_repeated(&refused, error)).await);
            }
            items = Box::pin(self.insert(items, &mut answers)).await;
            in_vain = if unanswered(&answers) < before { 0 } else { in_vain + 1 };
        }
        for item in items.into_iter().flat_map(EnqueueItem::into_requests) {
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
    /// their key, a waiting job takes them, or their type changed.
    async fn insert(&self, items: Vec<EnqueueItem>, answers: &mut Answers) -> Vec<EnqueueItem> {
        let held =
            self.unclaimed.hold(items.iter().filter_map(|item| Some(&item.holder.as_ref()?.id)));
        let now = self.now();
        let planned = items.into_iter().map(|item| {
            let is_open = item.holder.as_ref().is_none_or(|holder| held.holds(&holder.id));
            let chain = item.is_chain().then(|| Box::new(Chain::of(&item, is_open, now)));
            Planned { item, chain }
        });
        let mut planned: Vec<Planned> = planned.collect();
        if planned.iter().any(|one| one.chain.is_some()) {
            planned = Box::pin(self.store_merged_bodies(planned, answers)).await;
        }
        let txns: Vec<Txn> = planned.iter().map(Planned::txn).collect();
        let committed = match self.ports.store.commit(txns).await {
            Ok(committed) => committed,
            Err(error) => {
                for one in &planned {
                    one.refuse(&error.clone().into(), answers);
                }
                return Vec::new();
            }
        };
        drop(held);
        let found = Box::pin(self.holders_of_refused(&planned, &committed)).await;
        let mut again = Vec::new();
        for (Planned { mut item, chain }, outcome) in planned.into_iter().zip(committed) {
            let (index, body) = (item.index, item.job.data.clone());
            let answer = match outcome {
                Committed::All => match chain {
                    Some(chain) => {
                        Box::pin(self.on_chain_written(item, chain, answers)).await;
                        continue;
                    }
                    None => Some(Ok(Enqueued::added(item.job))),
                },
                Committed::Conflict { step, current } => {
                    if let Some(chain) = chain {
                        Box::pin(self.forget_unwritten(&item, &chain)).await;
                    }
                    let requests = item.inbox_requests().count();
                    let Some(step) = step.checked_sub(requests) else {
                        // Another server has answered the request. The others go on without it.
                        let (gone, rest) = item.without_inbox_request(step);
                        let answer = Err(Error::Stale { version: 0 });
                        Box::pin(self.forget_refused(&gone.job.data, &answer)).await;
                        answers[gone.index] = Some(answer);
                        again.extend(rest);
                        continue;
                    };
                    let conflict = self.on_enqueue_conflict(&mut item, step, current, &found);
                    let answer = Box::pin(conflict).await.transpose();
                    // The followers of a request that is answered go on without it.
                    again.extend(if answer.is_none() { Some(item) } else { item.without_lead() });
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
        found: &Result<Found, StoreError>,
    ) -> Result<Option<Enqueued>, Error> {
        if let Some(holder) = item.holder.take() {
            return on_changed_holder(item, &holder, current);
        }
        let is_replayed = |job: &Job| item.with.replayed.as_ref().is_some_and(|of| of.id == job.id);
        match (item.part(step), current) {
            (_, CurrentRecord::Job(stored)) if is_replayed(&stored) => {
                Err(Error::Stale { version: stored.life.revision.0 })
            }
            (_, CurrentRecord::Job(stored)) => same_request(&item.job, *stored).map(Some),
            (_, CurrentRecord::Unreadable(job)) => Err(job.into()),
            (Part::Key(key), CurrentRecord::Key { job, since }) => {
                let found = found.as_ref().map_err(|error| Error::from(error.clone()))?;
                self.on_taken_key(item, key, job, since, found).await
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
        // The job that has the body of a chain in the end is not known yet.
        for item in items.iter_mut().filter(|item| !item.is_chain()) {
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
                return Ok(Enqueued::existing(job));
            }
        }
        Err(error)
    }

    /// Resolves `item` again under the current version of its type.
    async fn resolve_again(&self, item: &mut EnqueueItem) -> Result<(), Error> {
        let mut catalog = self.catalog().await?;
        let job_type = self.type_of(&item.request.job_type, &mut catalog).await?;
        let digest = item.job.spec.request_digest;
        let Job { mut spec, mut life, .. } =
            self.resolve(&item.request, &catalog, &job_type, digest, self.now())?;
        // The job keeps its id and revision, the replies and requests that it inherited with its key,
        // and its body, which may be an object by now.
        Arc::make_mut(&mut spec).merged.clone_from(&item.job.spec.merged);
        life.revision = item.job.life.revision;
        life.processed_replies = mem::take(&mut item.job.life.processed_replies);
        (item.job.spec, item.job.life, item.type_version) = (spec, life, job_type.version);
        Ok(())
    }
}

/// The `holder` of the unique key of `item` is not as it was read: it takes the request as it is
/// now, or it gives up the key.
fn on_changed_holder(
    item: &mut EnqueueItem,
    holder: &Job,
    current: CurrentRecord,
) -> Result<Option<Enqueued>, Error> {
    let key = item.unique_key().expect("a chain has a unique key");
    match current {
        CurrentRecord::Job(job) => answer_of_holder(item, key, *job),
        CurrentRecord::Unreadable(job) => Err(job.into()),
        _ => {
            item.keys[key].1 = Expect::Is(holder.id.clone());
            Ok(None)
        }
    }
}

/// How many requests have no answer.
fn unanswered(answers: &Answers) -> usize {
    answers.iter().filter(|answer| answer.is_none()).count()
}
