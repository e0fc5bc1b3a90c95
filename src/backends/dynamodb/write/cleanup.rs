//! What a changed or removed job leaves behind: its body and its keys.

use crate::dynamodb::{
    key::{self, Key},
    row::{self, BodyAt, DataAt},
    table::{Change, EXPIRES, Item, Val},
};
use tidegate_core::{
    job::{Body, Job, JobId, Spec},
    port::{
        StoreError,
        job_store::{self, Write},
    },
};

/// Whether the row of the job must be read to know what `write` leaves behind.
pub(super) fn needs_cleanup(write: &Write) -> bool {
    match write {
        Write::RemoveJob { .. } => true,
        Write::SetJob { job, all, .. } => {
            *all || (job.life.ended().is_some() && matches!(job.data, Body::Separate(_)))
        }
        _ => false,
    }
}

/// The changes that delete or expire what `write` leaves behind. `item` is the job's row before it.
pub(super) fn cleanup(write: &Write, item: &Item) -> Result<Vec<Change>, StoreError> {
    let body = BodyAt::read(item);
    match (write, body) {
        (Write::RemoveJob { id, .. }, body) => {
            // The keys of a job that cannot be read stay: nothing names them.
            let job = row::job(item).ok();
            let keys = delete_keys(id, job.as_ref().map(|job| &*job.spec), item);
            let parts = body.into_iter().flat_map(|body| body.keys(id)).map(delete);
            Ok(keys.chain(parts).collect())
        }
        (Write::SetJob { job, .. }, Some(body)) if matches!(job.data, Body::Separate(_)) => {
            expire_body(job, &body)
        }
        (Write::SetJob { job, .. }, Some(old)) => {
            let new: Vec<Key> =
                DataAt::of(&job.id, &job.data).parts.into_iter().map(|part| part.key).collect();
            let replaced = old.keys(&job.id).into_iter().filter(|key| !new.contains(key));
            Ok(replaced.map(delete).collect())
        }
        _ => Ok(Vec::new()),
    }
}

fn delete(key: Key) -> Change {
    Change::Delete { key, when: None }
}

/// Deletes the keys of a removed job that still lead to it.
fn delete_keys(
    id: &JobId,
    spec: Option<&Spec>,
    item: &Item,
) -> impl Iterator<Item = Change> + use<> {
    use job_store::Key as K;
    let idempotency = item.text(row::KEYS).into_iter().flat_map(str::lines);
    let mut keys: Vec<K> = idempotency.map(|key| K::Idempotency(key.to_owned())).collect();
    if let Some(spec) = spec {
        let named = |key: &String| K::Correlation(spec.job_type.clone(), key.clone());
        keys.extend(spec.correlation_key.iter().map(named));
        let unique = spec.unique.iter();
        keys.extend(unique.map(|unique| K::Unique(spec.job_type.clone(), unique.key.clone())));
    }
    let own = (row::TARGET, Val::S(id.to_string()));
    keys.into_iter()
        .map(move |key| Change::Delete { key: key::name(&key), when: Some(own.clone()) })
}

/// Lets the table expire the body of a finished job together with the job.
fn expire_body(job: &Job, body: &BodyAt) -> Result<Vec<Change>, StoreError> {
    let expires = row::life(job)?.into_iter().find(|(name, _)| *name == EXPIRES);
    let expire = |key| {
        expires.clone().map(|expires| Change::Update {
            key,
            set: vec![expires],
            remove: Vec::new(),
            when: (row::VERSION, Val::N(1)),
        })
    };
    Ok(body.keys(&job.id).into_iter().filter_map(expire).collect())
}
