//! What an enqueue does with the waiting job that holds its unique key: nothing, a replacement, or
//! a debounce.
//!
//! The request that finds the holder decides, and the job keeps nothing of that decision. What it
//! keeps is which requests it took, so that a repeat of one changes nothing.

use serde::{Deserialize, Serialize};

use super::{Spec, spec::Unique};
use crate::time::Seconds;

/// What an enqueue does if another job holds its unique key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnConflict {
    /// The answer is that job, which stays as it is.
    #[default]
    Keep,
    /// If that job has not started, it takes data, options and due time of the request. It keeps
    /// its id. If it has started, the answer is that job, which stays as it is.
    Replace,
}

impl OnConflict {
    /// Whether it is the default.
    pub fn is_keep(&self) -> bool {
        *self == Self::Keep
    }
}

/// Which request of a debounced job counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MergePolicy {
    /// The latest one: the job takes its data and options.
    #[default]
    Last,
    /// The first one: only the due time moves.
    First,
}

/// A debounce: each request with the key, before the job starts, moves its due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Debounce {
    /// The due time is this long after the latest request.
    pub seconds: Seconds,
    /// But at most this long after the first request; at least `seconds`, at most a year.
    pub max_seconds: Seconds,
    /// Which request counts (default `last`).
    #[serde(default)]
    pub merge: MergePolicy,
}

/// What an enqueue did with the waiting job that held its unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Merged {
    /// The job took the request's data, options and due time.
    Replaced,
    /// The request moved the job's due time; with `merge: "last"` the job took its data and options
    /// too.
    Debounced,
}

impl Unique {
    /// A key that is held in these states, for no minimum time. A conflict changes nothing.
    pub fn new(key: impl Into<String>, hold: super::spec::UniqueWhile) -> Self {
        Self {
            key: key.into(),
            hold,
            period_seconds: None,
            on_conflict: OnConflict::Keep,
            debounce: None,
        }
    }

    /// The part that a job keeps: the key, and how long it is held.
    #[must_use]
    pub fn held(&self) -> Self {
        Self { on_conflict: OnConflict::Keep, debounce: None, ..self.clone() }
    }

    /// Whether a request with it may change the job that holds the key.
    pub fn merges(&self) -> bool {
        self.on_conflict == OnConflict::Replace || self.debounce.is_some()
    }

    /// Whether the job that holds the key takes data and options of a request with it.
    pub fn replaces(&self) -> bool {
        self.debounce.map_or(self.on_conflict == OnConflict::Replace, |debounce| {
            debounce.merge == MergePolicy::Last
        })
    }
}

/// How many of the requests that it took a job remembers: the latest ones.
pub const MAX_MERGED_REQUESTS: usize = 16;

/// A request that a waiting job took. A repeat of it is recognised by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedRequest {
    /// Of its id or idempotency key.
    pub key: u64,
    /// Of the rest.
    pub digest: u64,
}

impl Spec {
    /// Records that the job took `request`.
    pub fn add_merged(&mut self, request: MergedRequest) {
        self.merged.push(request);
        self.forget_oldest_merged();
    }

    /// Takes over the merged requests of `before`, the previous job with the same unique key.
    ///
    /// A repeat of a request that the job took must not change this one.
    pub fn inherit_merged(&mut self, before: &Self) {
        self.merged.splice(0..0, before.merged.iter().copied());
        self.forget_oldest_merged();
    }

    fn forget_oldest_merged(&mut self) {
        self.merged.drain(..self.merged.len().saturating_sub(MAX_MERGED_REQUESTS));
    }

    /// The request with this key that the job, or a previous one with its unique key, took.
    pub fn merged_request(&self, key: u64) -> Option<MergedRequest> {
        self.merged.iter().rev().find(|request| request.key == key).copied()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::job::{spec::UniqueWhile, tests::spec};

    #[test]
    fn a_job_keeps_only_how_long_its_key_is_held() {
        let asked = json!({
            "key": "k", "while": "live", "period_seconds": 5, "on_conflict": "replace",
        });
        let asked: Unique = serde_json::from_value(asked).unwrap();
        assert!(asked.merges() && asked.replaces());
        let held = serde_json::to_value(asked.held()).unwrap();
        assert_eq!(held, json!({"key": "k", "while": "live", "period_seconds": 5}));
        let first = json!({
            "key": "k", "while": "live",
            "debounce": {"seconds": 1, "max_seconds": 2, "merge": "first"},
        });
        let first: Unique = serde_json::from_value(first).unwrap();
        assert!(first.merges() && !first.replaces());
        assert!(!Unique::new("k", UniqueWhile::Live).merges());
    }

    #[test]
    fn a_job_remembers_the_latest_requests_that_it_took() {
        let request = |key| MergedRequest { key, digest: key + 100 };
        let mut before = spec();
        (0..20).for_each(|key| before.add_merged(request(key)));
        assert_eq!(before.merged.len(), MAX_MERGED_REQUESTS);
        assert_eq!((before.merged_request(3), before.merged_request(4)), (None, Some(request(4))));
        let mut next = spec();
        next.add_merged(request(77));
        next.inherit_merged(&before);
        assert_eq!(next.merged.len(), MAX_MERGED_REQUESTS);
        assert_eq!((next.merged_request(4), next.merged_request(77)), (None, Some(request(77))));
    }
}
