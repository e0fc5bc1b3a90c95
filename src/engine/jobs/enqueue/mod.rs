//! `enqueue`: a job is accepted once, whatever is repeated.
//!
//! A job's keys are written before the job, and the job before the answer. A key that is taken leads
//! to its holder: a live one makes a clash (or, for `unique` and repeats, the answer), an ended one
//! gives the key up by compare-and-set.
//!
//! A job is added only while its type is as it was resolved under: a type that has moved to another queue
//! since, or is gone, makes the job be resolved anew.

mod digest;
mod keys;
mod resolve;

use std::sync::Arc;

pub(crate) use digest::digest;
pub use resolve::fault;
pub(crate) use resolve::{extract_anew, is_reserved};

use crate::{
    Engine, Error,
    config::catalog::Catalog,
    plugins::registry::Checked,
    request::{Enqueued, NewJob},
};
use digest::UNNAMED;
use keys::same_request;
use tidegate_core::{
    error_code::ErrorCode,
    job::{Body, Job, JobId, Revision, retry::Retry},
    port::{
        Committed, Txn, Write,
        job_store::{CurrentRecord, Expect, ItemKind, Key},
    },
    time::Timestamp,
};

/// How often a key may change hands, or the type change, while one enqueue wants it.
const KEY_TRIES: usize = 8;

/// What is written with a job: the job is added if all of it can be, and where transactions are atomic only then.
#[derive(Clone, Default)]
pub(crate) struct With {
    /// What must stand before the job is added.
    pub require: Vec<Write>,
    /// What is written after it. Of items only.
    pub then: Vec<Write>,
    /// The revision that the job begins with, if it is not to be the first.
    pub revision: Option<Revision>,
}

/// A job on its way into the store.
struct EnqueueItem {
    index: usize,
    with: With,
    /// What was asked for, in case it is to be resolved anew.
    asked: NewJob,
    job: Job,
    /// The version of its type that it was resolved under.
    type_version: u64,
    keys: Keys,
}

/// The keys of a job, and what they must point at.
type Keys = Vec<(Key, Expect<JobId>)>;

impl EnqueueItem {
    /// What adds the job: what it requires, its type as it was, its keys, itself, and what follows it.
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
        writes.push(Write::AddJob(self.job.clone()));
        writes.extend_from_slice(&self.with.then);
        writes
    }

    /// Which part of its writes number `step` is.
    fn part(&self, step: usize) -> Part {
        match step.checked_sub(self.with.require.len()) {
            Some(0) => Part::Type,
            Some(step) if step <= self.keys.len() => Part::Key(step - 1),
            Some(step) if step == self.keys.len() + 1 => Part::Job,
            _ => Part::With,
        }
    }
}

/// A part of an entry's writes that may be refused.
enum Part {
    Type,
    Key(usize),
    Job,
    With,
}

impl Engine {
    /// Accepts jobs: one answer each, in order. After `Ok` a job is durable.
    ///
    /// Repeating a call is harmless where the job has an id or an idempotency key.
    pub async fn enqueue(&self, jobs: Vec<NewJob>) -> Vec<Result<Enqueued, Error>> {
        self.enqueue_with(jobs, Vec::new()).await
    }

    /// The same, each with the writes that stand in its place in `with`, as far as that goes: if one of those is refused, so
    /// is the job, with [`Error::Stale`]. Where the answer is a job that was there before, what was to follow is not written.
    pub(crate) async fn enqueue_with(
        &self,
        jobs: Vec<NewJob>,
        with: Vec<With>,
    ) -> Vec<Result<Enqueued, Error>> {
        let mut answers: Vec<Option<Result<Enqueued, Error>>> = jobs.iter().map(|_| None).collect();
        let mut catalog = match self.catalog().await {
            Ok(catalog) => catalog,
            Err(error) => return jobs.iter().map(|_| Err(error.clone())).collect(),
        };
        let now = self.now();
        let mut entries = Vec::with_capacity(jobs.len());
        let mut with = with.into_iter();
        let mut checked = Checked::default();
        for (index, job) in jobs.into_iter().enumerate() {
            let with = with.next().unwrap_or_default();
            match self.entry(&job, &mut catalog, &mut checked, now).await {
                Ok((mut made, type_version, keys)) => {
                    made.life.revision = with.revision.unwrap_or(made.life.revision);
                    entries.push(EnqueueItem {
                        index,
                        with,
                        asked: job,
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
        for _ in 0..KEY_TRIES {
            if entries.is_empty() {
                break;
            }
            entries = self.insert(entries, &mut answers).await;
        }
        for entry in entries {
            let message = "its type or its keys changed too often".to_owned();
            let refused =
                Err(Error::Conflict { code: ErrorCode::ConcurrentUpdate, message, holder: None });
            Box::pin(self.forget_refused(&entry.job.data, &refused)).await;
            answers[entry.index] = Some(refused);
        }
        answers
            .into_iter()
            .map(|answer| {
                answer.unwrap_or_else(|| Err(Error::Internal("an enqueue went unanswered".into())))
            })
            .collect()
    }

    /// One attempt to insert `entries`; those whose keys were given up by ended jobs, or whose type changed, come back.
    async fn insert(
        &self,
        entries: Vec<EnqueueItem>,
        answers: &mut [Option<Result<Enqueued, Error>>],
    ) -> Vec<EnqueueItem> {
        let txns: Vec<Txn> = entries.iter().map(EnqueueItem::writes).collect();
        let committed = match self.ports.store.commit(txns).await {
            Ok(committed) => committed,
            Err(error) => {
                for entry in entries {
                    answers[entry.index] = Some(Err(error.clone().into()));
                }
                return Vec::new();
            }
        };
        let mut again = Vec::new();
        for (mut entry, outcome) in entries.into_iter().zip(committed) {
            let (index, body) = (entry.index, entry.job.data.clone());
            let answer = match outcome {
                Committed::All => Some(Ok(Enqueued { job: entry.job, new: true })),
                Committed::Conflict { standing: CurrentRecord::Job(there), .. } => {
                    Some(same_request(&entry.job, *there))
                }
                Committed::Conflict { step, standing } => match (entry.part(step), standing) {
                    (Part::Key(key), CurrentRecord::Key { job, since }) => {
                        match Box::pin(self.contend(&mut entry, key, job, since)).await {
                            Ok(None) => {
                                again.push(entry);
                                None
                            }
                            Ok(Some(enqueued)) => Some(Ok(enqueued)),
                            Err(error) => Some(Err(error)),
                        }
                    }
                    (Part::Key(key), _) => {
                        // The key was freed since: ask again for an absent one.
                        entry.keys[key].1 = Expect::Absent;
                        again.push(entry);
                        None
                    }
                    (Part::Type, _) => match Box::pin(self.resolve_anew(&mut entry)).await {
                        Ok(()) => {
                            again.push(entry);
                            None
                        }
                        Err(error) => Some(Err(error)),
                    },
                    // What stood there is gone by now.
                    (Part::Job, _) => {
                        again.push(entry);
                        None
                    }
                    (Part::With, standing) => {
                        let version = if let CurrentRecord::Version(version) = standing {
                            version
                        } else {
                            0
                        };
                        Some(Err(Error::Stale { version }))
                    }
                },
            };
            if let (Body::Object { .. }, Some(answer)) = (&body, &answer) {
                Box::pin(self.forget_refused(&body, answer)).await;
            }
            answers[index] = answer;
        }
        again
    }

    /// The job that `new` asks for, with everything resolved and checked, and its keys.
    /// What is rare is boxed, so that it takes no room in the future of every enqueue.
    async fn entry(
        &self,
        new: &NewJob,
        catalog: &mut Arc<Catalog>,
        checked: &mut Checked,
        now: Timestamp,
    ) -> Result<(Job, u64, Keys), Error> {
        let job_type = self.type_of(&new.job_type, catalog).await?;
        let digest = if new.is_repeatable() { digest(new) } else { UNNAMED };
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
        if let Some(retry @ Retry::Plugin(..)) =
            new.options.retry.as_ref().filter(|retry| **retry != job_type.config.retry)
        {
            Box::pin(self.check_retry(catalog, retry, checked)).await?;
        }
        let mut job = self.resolve(new, catalog, &job_type, digest, now)?;
        if let Some(large) = job
            .data
            .inline()
            .filter(|payload| payload.bytes.len() > self.rules.object_bytes)
            .cloned()
        {
            job.data = Box::pin(self.put_object(large)).await?;
        }
        Ok((job, job_type.version, keys))
    }

    /// The answer to a request that is refused now: the job that it made before, if it was sent and accepted before.
    async fn unless_repeated(&self, new: &NewJob, error: Error) -> Result<Enqueued, Error> {
        if !new.is_repeatable() {
            return Err(error);
        }
        let digest = digest(new);
        let mut ids: Vec<JobId> = new.id.iter().cloned().collect();
        if let Some(key) = &new.idempotency_key {
            ids.extend(
                self.ports
                    .store
                    .keys(&[Key::Idempotency(key.clone())])
                    .await?
                    .into_iter()
                    .flatten(),
            );
        }
        let found = self.ports.store.get(&ids).await?.into_iter().flatten();
        let same = found.into_iter().find(|job| job.spec.request_digest == digest);
        same.map(|job| Enqueued { job, new: false }).ok_or(error)
    }

    /// The same entry under its type as it stands now.
    async fn resolve_anew(&self, entry: &mut EnqueueItem) -> Result<(), Error> {
        let mut catalog = self.catalog().await?;
        let job_type = self.type_of(&entry.asked.job_type, &mut catalog).await?;
        let digest = entry.job.spec.request_digest;
        let Job { spec, mut life, .. } =
            self.resolve(&entry.asked, &catalog, &job_type, digest, self.now())?;
        // Its id stays, its revision, what it took over with its key, and its body, which may be an object by now.
        life.revision = entry.job.life.revision;
        life.processed_replies = std::mem::take(&mut entry.job.life.processed_replies);
        (entry.job.spec, entry.job.life, entry.type_version) = (spec, life, job_type.version);
        Ok(())
    }
}
