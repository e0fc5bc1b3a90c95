//! Bulk operations as they are stored.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::digest;
use tidegate_core::{
    job::{Attributes, JobId, Phase, QueueName, TypeName, Value},
    port::{
        JobFilter,
        job_filter::{ErrorFilter, TimeRange},
        job_store::{Item, StateFilter},
    },
    stored::UnknownNames,
    time::Timestamp,
};
use tidegate_engine::{
    Error,
    request::{BulkChange, BulkKind, BulkPatch, BulkRequest, Operation},
};

/// An operation as it is stored. One with a field that this release does not know is left to the
/// release that wrote it, because without a part of its filter it would change other jobs. Only
/// what is shown of it, [`Operation`], may have further fields, which stay.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::runtime) struct StoredOperation {
    pub(in crate::runtime) operation: Operation,
    pub(super) job_type: Option<TypeName>,
    pub(super) queue: Option<QueueName>,
    pub(super) states: Vec<String>,
    pub(super) attributes: Attributes,
    pub(super) from: Option<Timestamp>,
    /// Jobs created later, for example by a replay, do not match.
    pub(super) to: Timestamp,
    pub(super) cursor: Option<String>,
    /// What it changes, for a patch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) patch: Option<BulkPatch>,
    /// Whether a replay makes another job of one that was replayed before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) again: bool,
    /// The digest of the request, which a repeat under the same key must match.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) request_digest: String,
    /// The conditions that a release before this one does not know.
    #[serde(default, skip_serializing_if = "MoreConditions::is_none")]
    pub(super) more: MoreConditions,
    /// Whether it changes nothing. A release that does not know it must not run the operation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) dry_run: bool,
}

/// The conditions of a filter without those that have a field of the operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MoreConditions {
    ids: BTreeSet<JobId>,
    phases: Vec<String>,
    min_attempt: Option<u16>,
    max_attempt: Option<u16>,
    worker: Option<String>,
    error: ErrorFilter,
    due: TimeRange,
    started: TimeRange,
    ended: TimeRange,
    data: BTreeMap<String, Value>,
}

impl MoreConditions {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl StoredOperation {
    /// The operation for a request that was made at `now`.
    pub(super) fn new(request: BulkRequest, id: String, now: Timestamp) -> Self {
        let BulkRequest { change, filter, dry_run } = request;
        let kind = change.kind();
        let JobFilter {
            job_type,
            queue,
            ids,
            states,
            phases,
            attributes,
            min_attempt,
            max_attempt,
            worker,
            error,
            created,
            due,
            started,
            ended,
            data,
        } = filter;
        let states: Vec<String> = states.iter().map(|state| state.as_str().to_owned()).collect();
        let phases = phases.iter().map(|phase| phase.as_str().to_owned()).collect();
        let more = MoreConditions {
            ids,
            phases,
            min_attempt,
            max_attempt,
            worker,
            error,
            due,
            started,
            ended,
            data,
        };
        let request = (kind, &job_type, &queue, &states, &attributes, created.from, created.to);
        // A release without a part has the same digest for the requests without it.
        let mut request_digest = match &change {
            BulkChange::Cancel | BulkChange::Purge | BulkChange::Replay { again: false } => {
                digest(&request)
            }
            BulkChange::Replay { again: true } => digest(&(request, "again")),
            BulkChange::Patch(patch) => digest(&(request, patch)),
        };
        if dry_run || !more.is_none() {
            request_digest = digest(&(request_digest, &more, dry_run));
        }
        let end = now + std::time::Duration::from_millis(1);
        Self {
            operation: begun(kind, id, dry_run, now),
            job_type,
            queue,
            states,
            attributes,
            from: created.from,
            to: created.to.unwrap_or(end).min(end),
            cursor: None,
            again: matches!(change, BulkChange::Replay { again: true }),
            patch: if let BulkChange::Patch(patch) = change { Some(patch) } else { None },
            request_digest,
            more,
            dry_run,
        }
    }

    /// The operation in an item of the store.
    pub(super) fn decode(item: &Item) -> Result<Self, Error> {
        item.read().map_err(|error| {
            Error::Internal(format!("operation {} cannot be decoded: {error}", item.name))
        })
    }

    /// The jobs that it includes.
    ///
    /// # Errors
    ///
    /// A word of another release, which names no state or phase here. Without it the operation would
    /// include other jobs than were requested.
    pub(super) fn filter(&self) -> Result<JobFilter, Error> {
        let unknown = |word: &str| Error::Internal(format!("{word:?} names no state of a job"));
        let states = self.states.iter().map(|word| word.parse().map_err(|_| unknown(word)));
        let more = self.more.clone();
        let phases = more.phases.iter().map(|word| word.parse().map_err(|_| unknown(word)));
        Ok(JobFilter {
            job_type: self.job_type.clone(),
            queue: self.queue.clone(),
            ids: more.ids,
            states: states.collect::<Result<Vec<StateFilter>, _>>()?,
            phases: phases.collect::<Result<Vec<Phase>, _>>()?,
            attributes: self.attributes.clone(),
            min_attempt: more.min_attempt,
            max_attempt: more.max_attempt,
            worker: more.worker,
            error: more.error,
            created: TimeRange { from: self.from, to: Some(self.to) },
            due: more.due,
            started: more.started,
            ended: more.ended,
            data: more.data,
        })
    }
}

/// An operation that has changed nothing yet.
fn begun(kind: BulkKind, id: String, dry_run: bool, now: Timestamp) -> Operation {
    Operation {
        id,
        kind,
        state: "running".into(),
        dry_run,
        matched: 0,
        done: 0,
        refused: 0,
        skipped: 0,
        skipped_jobs: Vec::new(),
        sample: Vec::new(),
        unreadable: Vec::new(),
        created_at: now,
        ended_at: None,
        error: None,
        unknown: UnknownNames::new(),
    }
}
