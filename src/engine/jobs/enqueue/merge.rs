//! A waiting job takes the requests of others: `unique` with `on_conflict: "replace"` or
//! `debounce`.
//!
//! Only a job that has never started is changed, by one write at the revision that was read. So a
//! request is in the job before it starts, or the request finds it started. A job that is
//! dispatched without a claim counts as started.
//!
//! The requests of one call with one key are applied in their order, as if each were a call of its
//! own, and are written once.

use std::{
    collections::{HashMap, HashSet},
    iter,
    sync::Arc,
};

use futures_util::{StreamExt as _, stream};
use sha2::{Digest as _, Sha256};

use super::{Answers, Planned, item::EnqueueItem, keys::key_reused};
use crate::{
    Engine, Error,
    jobs::objects::MAX_CONCURRENT_WRITES,
    request::{Enqueued, MergedInto, NewJob},
};
use tidegate_core::{
    job::{
        Event, Job, Payload, Spec, State,
        lifecycle::Waiting,
        spec::Unique,
        unique::{Merged, MergedRequest},
    },
    port::job_store::Key,
    time::Timestamp,
};

/// What an item writes, if it or a follower may change a waiting job.
pub(super) struct Chain {
    /// The job that is added, or that replaces the holder of the key.
    pub job: Job,
    /// The answers to the item and its followers, in order.
    pub outcomes: Vec<Result<Enqueued, Error>>,
}

impl Chain {
    /// Applies the requests of `item` at `now`, to the holder of its key or to its own job.
    /// `is_open` says whether the holder is held from being dispatched.
    pub fn of(item: &EnqueueItem, is_open: bool, now: Timestamp) -> Self {
        let (mut job, mut outcomes) = match &item.holder {
            Some(holder) => ((**holder).clone(), Vec::new()),
            None => (item.job.clone(), vec![Ok(Enqueued::added(item.job.clone()))]),
        };
        let known = outcomes.len();
        for request in iter::once(item).chain(&item.followers).skip(known) {
            let answer = answer_of_repeat(request, item, &job);
            let taken = match &answer {
                None if is_open => take(request, &job, now),
                _ => None,
            };
            outcomes.push(match (answer, taken) {
                (Some(answer), _) => answer,
                (None, None) => Ok(Enqueued::existing(job.clone())),
                (None, Some((after, how))) => {
                    let merged = Some(MergedInto { how, left: job.life.version });
                    job = after;
                    Ok(Enqueued { job: job.clone(), new: false, merged })
                }
            });
        }
        Self { job, outcomes }
    }

    /// Whether the stored `holder` stays as it is.
    pub fn leaves(&self, holder: &Job) -> bool {
        self.job.life.revision == holder.life.revision
    }
}

impl Engine {
    /// Stores the large bodies of the jobs of chains, each under the id of its job. A chain that
    /// changes nothing, or whose body could not be stored, is answered and left out.
    pub(super) async fn store_merged_bodies(
        &self,
        planned: Vec<Planned>,
        answers: &mut Answers,
    ) -> Vec<Planned> {
        let store = |mut one: Planned| async move {
            let Some(chain) = &mut one.chain else { return (one, Ok(())) };
            let is_large = |payload: &&Payload| payload.bytes.len() > self.rules.object_bytes;
            let mut stored = Ok(());
            if let Some(large) = chain.job.data.inline().filter(is_large).cloned() {
                match self.put_object(&chain.job.id, large).await {
                    Ok(body) => chain.job.data = body,
                    Err(error) => stored = Err(error),
                }
            }
            (one, stored)
        };
        let mut left = Vec::with_capacity(planned.len());
        let mut to_store = Vec::new();
        for one in planned {
            match (&one.item.holder, &one.chain) {
                (Some(holder), Some(chain)) if chain.leaves(holder) => {
                    answer_all(&one.item, one.chain, answers);
                }
                (_, Some(_)) => to_store.push(store(one)),
                (_, None) => left.push(one),
            }
        }
        let mut stored = stream::iter(to_store).buffered(MAX_CONCURRENT_WRITES);
        while let Some((one, result)) = stored.next().await {
            match result {
                Ok(()) => left.push(one),
                Err(error) => one.refuse(&error, answers),
            }
        }
        left
    }

    /// Answers the requests of `item` after `chain` was written.
    pub(super) async fn on_chain_written(
        &self,
        item: EnqueueItem,
        chain: Box<Chain>,
        answers: &mut Answers,
    ) {
        if let Some(holder) = &item.holder {
            self.cache_job(&chain.job);
            Box::pin(self.forget_replaced(holder, &chain.job)).await;
        }
        answer_all(&item, Some(chain), answers);
    }

    /// Deletes the body that was stored for `chain`, which was not written.
    pub(super) async fn forget_unwritten(&self, item: &EnqueueItem, chain: &Chain) {
        let before = item.holder.as_ref().map_or(&item.job, |holder| holder);
        for key in chain.job.object_keys() {
            if !before.object_keys().any(|named| named == key) {
                self.forget_object(key).await;
            }
        }
    }
}

/// Answers the requests of `item` with the outcomes of `chain`.
fn answer_all(item: &EnqueueItem, chain: Option<Box<Chain>>, answers: &mut Answers) {
    let requests = iter::once(item).chain(&item.followers);
    for (request, outcome) in requests.zip(chain.into_iter().flat_map(|chain| chain.outcomes)) {
        answers[request.index] = Some(outcome);
    }
}

/// The answer to `request` if `job` took it before, or if it is the request of `lead`, which made
/// the job in the same call.
fn answer_of_repeat(
    request: &EnqueueItem,
    lead: &EnqueueItem,
    job: &Job,
) -> Option<Result<Enqueued, Error>> {
    let asked = request.merged_request()?;
    let known = job.spec.merged_request(asked.key).or_else(|| {
        let made = lead.merged_request().filter(|_| lead.holder.is_none());
        made.filter(|made| made.key == asked.key)
    })?;
    Some(if known.digest == asked.digest {
        Ok(Enqueued::existing(job.clone()))
    } else {
        Err(key_reused(&request.request, job.id.clone()))
    })
}

/// The answer to `request` if `holder`, which gives up their unique key, took it before.
pub(super) fn taken_before(request: &EnqueueItem, holder: &Job) -> Option<Result<Enqueued, Error>> {
    let asked = request.merged_request()?;
    let known = holder.spec.merged_request(asked.key)?;
    Some(if known.digest == asked.digest {
        Ok(Enqueued::existing(holder.clone()))
    } else {
        Err(key_reused(&request.request, holder.id.clone()))
    })
}

/// `job` after it took `request`, and what changed. None if it stays as it is: it has started, or
/// the request demands no change.
fn take(request: &EnqueueItem, job: &Job, now: Timestamp) -> Option<(Job, Merged)> {
    if job.life.attempt > 0 || !request.merges() {
        return None;
    }
    let unique = request.request.options.unique.as_ref()?;
    let (was, asked) = (due(job)?, due(&request.job)?);
    let wanted = wanted_due(unique, &job.spec, asked, now);
    // A job that is due already keeps its position in the order.
    let run_at = Some(wanted).filter(|wanted| *wanted > now || was > now);
    let how = if unique.debounce.is_some() { Merged::Debounced } else { Merged::Replaced };
    let mut spec = if unique.replaces() {
        replaced(&job.spec, &request.job.spec)
    } else {
        (*job.spec).clone()
    };
    let mark = request.merged_request();
    if run_at.is_none() && mark.is_none() && !unique.replaces() {
        return Some((job.clone(), how));
    }
    if let Some(mark) = mark {
        spec.add_merged(mark);
    }
    let data = if unique.replaces() { request.job.data.clone() } else { job.data.clone() };
    let changed = Job { spec: Arc::new(spec), data, ..job.clone() };
    let after = changed.apply(Event::Patch { run_at }, now).ok()?;
    Some((after, how))
}

/// The due time of a scheduled job without its windows.
fn due(job: &Job) -> Option<Timestamp> {
    match job.life.state {
        State::Scheduled { waiting: Waiting::Window { due }, .. } => Some(due),
        State::Scheduled { run_at, .. } => Some(run_at),
        _ => None,
    }
}

/// When a job of `spec` is due after a request with `unique`, which is due at `asked`.
fn wanted_due(unique: &Unique, spec: &Spec, asked: Timestamp, now: Timestamp) -> Timestamp {
    unique.debounce.map_or(asked, |debounce| {
        let latest = spec.created_at + debounce.max_seconds.duration();
        (now + debounce.seconds.duration()).min(latest)
    })
}

/// The specification of a job that takes the request with the specification `asked`. What
/// identifies the job stays: its queue, its keys, its producer's digest, when it was accepted.
fn replaced(own: &Spec, asked: &Spec) -> Spec {
    Spec {
        queue: own.queue.clone(),
        partition: if own.queue == asked.queue { &asked.partition } else { &own.partition }.clone(),
        created_at: own.created_at,
        correlation_key: own.correlation_key.clone(),
        replay_of: own.replay_of.clone(),
        request_digest: own.request_digest,
        retention: own.retention.max(asked.retention),
        merged: own.merged.clone(),
        unknown: own.unknown.clone(),
        ..asked.clone()
    }
}

/// Joins the items with one unique key, if one of them may change a waiting job: the later ones
/// follow the first.
pub(super) fn chained(items: Vec<EnqueueItem>) -> Vec<EnqueueItem> {
    if !items.iter().any(EnqueueItem::merges) {
        return items;
    }
    let mut leads: Vec<EnqueueItem> = Vec::with_capacity(items.len());
    let mut by_key: HashMap<Key, usize> = HashMap::new();
    let merging: HashSet<_> = items
        .iter()
        .filter(|item| item.merges())
        .filter_map(|item| Some(item.keys[item.unique_key()?].0.clone()))
        .collect();
    for item in items {
        let key = item.unique_key().map(|index| item.keys[index].0.clone());
        let key = key.filter(|key| merging.contains(key) && item.with.is_none());
        let lead = key.as_ref().and_then(|key| by_key.get(key).copied());
        if let Some(lead) = lead {
            let lead: &mut EnqueueItem = &mut leads[lead];
            lead.followers.push(item);
        } else {
            by_key.extend(key.map(|key| (key, leads.len())));
            leads.push(item);
        }
    }
    leads
}

/// By what a job that takes `new` recognises a repeat: none without an id and an idempotency key.
pub(super) fn request_of(new: &NewJob, digest: &[u8; 16]) -> Option<MergedRequest> {
    let mut hash = Sha256::new();
    match (&new.id, &new.idempotency_key) {
        (Some(id), _) => hash.update(format!("id {id}")),
        (None, Some(key)) => hash.update(format!("key {key}")),
        (None, None) => return None,
    }
    let first = |bytes: &[u8]| {
        let mut first = [0; 8];
        first.copy_from_slice(&bytes[..8]);
        u64::from_be_bytes(first)
    };
    Some(MergedRequest { key: first(&hash.finalize()), digest: first(digest) })
}
