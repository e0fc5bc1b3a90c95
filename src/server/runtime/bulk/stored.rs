//! Bulk operations as they are stored.

use serde::{Deserialize, Serialize};

use tidegate_core::{
    job::{Attributes, QueueName, TypeName},
    port::job_store::{Item, StateFilter},
    time::Timestamp,
};
use tidegate_engine::{
    Error,
    request::{BulkPatch, Operation},
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
}

impl StoredOperation {
    /// The operation in an item of the store.
    pub(super) fn decode(item: &Item) -> Result<Self, Error> {
        item.read().map_err(|error| {
            Error::Internal(format!("operation {} cannot be decoded: {error}", item.name))
        })
    }

    /// The states of the jobs that it includes; empty for all.
    ///
    /// # Errors
    ///
    /// A word of another release, which names no state here. Without it the operation would include
    /// other jobs than were requested.
    pub(super) fn states(&self) -> Result<Vec<StateFilter>, Error> {
        let parse = |word: &String| {
            word.parse().map_err(|_| Error::Internal(format!("{word:?} names no state of a job")))
        };
        self.states.iter().map(parse).collect()
    }
}
