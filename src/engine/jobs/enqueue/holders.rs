//! The jobs that hold the keys of an enqueue, read for all of its items at once.

use std::{collections::HashMap, sync::Arc};

use super::{
    Answers, Planned,
    item::EnqueueItem,
    keys::{holds_unique_key, repeated_request, same_request},
    merge::taken_before,
};
use crate::{Engine, Error, request::Enqueued};
use tidegate_core::{
    job::{Job, JobId},
    port::{
        Committed, StoreError,
        job_store::{CurrentRecord, Expect, Key, StoredJob, UnreadableJob},
    },
};

/// Jobs by their ids.
pub(super) type Found = HashMap<JobId, StoredJob>;

impl Engine {
    /// The jobs with these ids.
    async fn found(&self, mut ids: Vec<JobId>) -> Result<Found, StoreError> {
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return Ok(Found::new());
        }
        let found = self.ports.store.get(&ids).await?;
        Ok(ids.into_iter().zip(found).collect())
    }

    /// The jobs that refused keys point at, and those with the ids of their items.
    pub(super) async fn holders_of_refused(
        &self,
        planned: &[Planned],
        committed: &[Committed],
    ) -> Result<Found, StoreError> {
        let mut ids = Vec::new();
        for (Planned { item, .. }, outcome) in planned.iter().zip(committed) {
            if let Committed::Conflict { current: CurrentRecord::Key { job, .. }, .. } = outcome {
                ids.extend([item.job.id.clone(), job.clone()]);
            }
        }
        self.found(ids).await
    }

    /// Finds the holders of the unique keys of those `items` that may change a waiting job, so that
    /// one commit changes all of them. A request that was accepted before is answered.
    pub(super) async fn find_holders(
        &self,
        items: Vec<EnqueueItem>,
        answers: &mut Answers,
    ) -> Vec<EnqueueItem> {
        let (chains, mut others): (Vec<_>, Vec<_>) =
            items.into_iter().partition(EnqueueItem::is_chain);
        if chains.is_empty() {
            return others;
        }
        let chains: Vec<Vec<EnqueueItem>> =
            chains.into_iter().map(EnqueueItem::into_requests).collect();
        let (keys, found) = match self.keys_and_jobs(&chains).await {
            Ok(read) => read,
            Err(error) => {
                for item in chains.iter().flatten() {
                    answers[item.index] = Some(Err(error.clone().into()));
                }
                return others;
            }
        };
        for requests in chains {
            let mut left = Vec::new();
            for request in requests {
                match answer_of_first(&request, &keys, &found) {
                    Some(answer) => answers[request.index] = Some(answer),
                    None => left.push(request),
                }
            }
            let Some(mut lead) = joined(left) else { continue };
            let index = lead.unique_key().expect("a chain has a unique key");
            let holder = keys.get(&lead.keys[index].0).and_then(|key| key.as_ref().ok());
            if let Some(Ok(Some(job))) = holder.and_then(|id| found.get(id)) {
                if holds_unique_key(job, lead.job.spec.created_at) {
                    // A single request that changes no job finds the holder when it is inserted.
                    lead.holder = lead.is_chain().then(|| Box::new(job.clone()));
                } else if let Some(freed) = freed(lead, job, answers) {
                    lead = freed;
                } else {
                    continue;
                }
            }
            others.push(lead);
        }
        others
    }

    /// The jobs that the keys of `chains` point at, and all jobs that decide about their requests.
    async fn keys_and_jobs(
        &self,
        chains: &[Vec<EnqueueItem>],
    ) -> Result<(HashMap<Key, Result<JobId, UnreadableJob>>, Found), StoreError> {
        let mut keys: Vec<Key> = Vec::new();
        let mut ids: Vec<JobId> = Vec::new();
        for request in chains.iter().flatten() {
            ids.extend(request.request.id.clone());
            let read = |key: &&Key| !matches!(key, Key::Correlation(..));
            keys.extend(request.keys.iter().map(|(key, _)| key).filter(read).cloned());
        }
        keys.sort_unstable();
        keys.dedup();
        let held = self.ports.store.keys(&keys).await?;
        let held: HashMap<Key, Result<JobId, UnreadableJob>> = keys
            .into_iter()
            .zip(held)
            .filter_map(|(key, holder)| Some((key, holder.transpose()?)))
            .collect();
        ids.extend(held.values().flatten().cloned());
        let found = self.found(ids).await?;
        Ok((held, found))
    }
}

/// The answer to `request` if it was accepted before, by its id or its idempotency key.
fn answer_of_first(
    request: &EnqueueItem,
    keys: &HashMap<Key, Result<JobId, UnreadableJob>>,
    found: &Found,
) -> Option<Result<Enqueued, Error>> {
    if request.request.id.is_some()
        && let Some(Ok(Some(job))) = found.get(&request.job.id)
    {
        return Some(same_request(&request.job, job.clone()));
    }
    let key = Key::Idempotency(request.request.idempotency_key.clone()?);
    let first = keys.get(&key)?.as_ref().ok()?;
    match found.get(first)? {
        Ok(Some(job)) => Some(repeated_request(&request.job, job.clone())),
        _ => None,
    }
}

/// These requests as one item; none if there are none.
fn joined(requests: Vec<EnqueueItem>) -> Option<EnqueueItem> {
    let mut requests = requests.into_iter();
    let mut lead = requests.next()?;
    lead.followers = requests.collect();
    Some(lead)
}

/// `lead` with the unique key that `before` gives up. A request that `before` took is
/// answered; none if that were all.
fn freed(mut lead: EnqueueItem, before: &Job, answers: &mut Answers) -> Option<EnqueueItem> {
    while let Some(answer) = taken_before(&lead, before) {
        answers[lead.index] = Some(answer);
        lead = lead.without_lead()?;
    }
    let key = lead.unique_key().expect("a chain has a unique key");
    lead.keys[key].1 = Expect::Is(before.id.clone());
    Arc::make_mut(&mut lead.job.spec).inherit_merged(&before.spec);
    Some(lead)
}
