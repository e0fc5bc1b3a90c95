//! One item of an enqueue: a request, the job that it asks for, and the keys of that job.

use crate::request::NewJob;
use tidegate_core::{
    job::{Event, Job, JobId, Revision, spec::Unique, unique::MergedRequest},
    port::{
        Txn, Write,
        job_store::{Expect, ItemKind, Key},
    },
};

use super::merge;

/// The writes that belong to a job's enqueue. The job is added if all of them succeed; on an atomic
/// store, only then.
#[derive(Clone, Default)]
pub(crate) struct EnqueueWrites {
    /// Conditions and writes before the job.
    pub require: Vec<Write>,
    /// Writes of items after the job.
    pub then: Vec<Write>,
    /// The job that the new one replays, which then names it. It has started. If it has changed
    /// since it was read, the enqueue is refused with [`Error::Stale`](crate::Error::Stale).
    pub replayed: Option<Box<Job>>,
    /// The revision that the job starts with, if not the first.
    pub revision: Option<Revision>,
    /// The request of the inbox that the job answers. It is removed in the transaction that adds the
    /// job, or changes the one that holds its unique key. If it is gone, the enqueue is refused with
    /// [`Error::Stale`](crate::Error::Stale).
    pub inbox_request: Option<JobId>,
}

impl EnqueueWrites {
    /// Whether there are none, apart from the removal of a request.
    pub(super) fn is_none(&self) -> bool {
        self.require.is_empty() && self.then.is_empty() && self.replayed.is_none()
    }
}

/// A job that is not in the store yet, or a change of the one that holds its unique key.
pub(super) struct EnqueueItem {
    /// The index of its answer.
    pub index: usize,
    pub with: EnqueueWrites,
    /// The request, in case it is resolved again.
    pub request: NewJob,
    pub job: Job,
    /// The version of its type under which it was resolved.
    pub type_version: u64,
    pub keys: JobKeys,
    /// The later requests of the call with its unique key, in their order, if one of them may
    /// change a waiting job. They have no followers.
    pub followers: Vec<Self>,
    /// The job that holds the unique key. It takes this request and its followers.
    pub holder: Option<Box<Job>>,
}

/// The keys of a job, each with the holder that it must have when the job is added.
pub(super) type JobKeys = Vec<(Key, Expect<JobId>)>;

impl EnqueueItem {
    /// The transaction that adds `job`, the item's own with what followers changed: its conditions,
    /// its type's version, its keys, the job, and the writes after it.
    pub fn writes(&self, job: &Job) -> Txn {
        let (kind, name) = (ItemKind::Type, job.spec.job_type.clone().into());
        let mut writes = Vec::with_capacity(
            self.with.require.len() + self.keys.len() + 2 + self.with.then.len(),
        );
        writes.extend_from_slice(&self.with.require);
        writes.push(Write::RequireItem { kind, name, version: self.type_version });
        let keys = self.keys.iter();
        writes.extend(keys.map(|(key, was)| Write::SetKey {
            key: key.clone(),
            job: job.id.clone(),
            was: was.clone(),
        }));
        let add = Write::AddJob(job.clone());
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
    pub fn part(&self, step: usize) -> Part {
        match step.checked_sub(self.with.require.len()) {
            Some(0) => Part::Type,
            Some(step) if step <= self.keys.len() => Part::Key(step - 1),
            Some(step) if step == self.keys.len() + 1 => Part::Job,
            _ => Part::Attached,
        }
    }

    /// Whether its request may change the waiting job that holds its unique key. The job of an
    /// enqueue with writes of its own is a job of its own.
    pub fn merges(&self) -> bool {
        let unique = self.request.options.unique.as_ref();
        unique.is_some_and(Unique::merges) && self.with.is_none()
    }

    /// Whether it may change a waiting job, by itself or by a follower.
    pub fn is_chain(&self) -> bool {
        !self.followers.is_empty() || self.merges()
    }

    /// The index of its unique key, if it has one. That is its last key.
    pub fn unique_key(&self) -> Option<usize> {
        let last = self.keys.len().checked_sub(1)?;
        matches!(self.keys[last].0, Key::Unique(..)).then_some(last)
    }

    /// By what a job that takes its request recognises a repeat. None if it cannot be repeated.
    pub fn merged_request(&self) -> Option<MergedRequest> {
        merge::request_of(&self.request, &self.job.spec.request_digest)
    }

    /// The requests of the inbox that it and its followers answer, in their order.
    pub fn inbox_requests(&self) -> impl Iterator<Item = &JobId> {
        std::iter::once(self)
            .chain(&self.followers)
            .filter_map(|item| item.with.inbox_request.as_ref())
    }

    /// The item or follower that answers the request at `index` of [`Self::inbox_requests`], and the others.
    pub fn without_inbox_request(self, index: usize) -> (Self, Option<Self>) {
        let id = self.inbox_requests().nth(index).cloned();
        let (mut gone, others): (Vec<Self>, Vec<Self>) =
            self.into_requests().into_iter().partition(|item| item.with.inbox_request == id);
        let mut others = others.into_iter();
        let rest = others.next().map(|mut lead| {
            lead.followers = others.collect();
            lead
        });
        (gone.remove(0), rest)
    }

    /// Its followers without it, the first of them in its place. None if it has none.
    pub fn without_lead(mut self) -> Option<Self> {
        if self.followers.is_empty() {
            return None;
        }
        let mut next = self.followers.remove(0);
        next.followers = self.followers;
        Some(next)
    }

    /// It and its followers, in the order of the call.
    pub fn into_requests(mut self) -> Vec<Self> {
        let followers = std::mem::take(&mut self.followers);
        let mut all = vec![self];
        all.extend(followers);
        all
    }
}

/// A part of the transaction that the store may refuse.
pub(super) enum Part {
    Type,
    /// The key at this index.
    Key(usize),
    Job,
    /// One of the enqueue's own writes.
    Attached,
}

/// The keys of the job that `new` requests. None of them has a holder as far as is known.
pub(super) fn keys_of(new: &NewJob) -> JobKeys {
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
