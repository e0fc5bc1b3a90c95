//! The state of a retry strategy in one queue.
//!
//! ```text
//!   records of the group:  root (version, names of the pages)   page   page   ...
//! ```
//!
//! The root is replaced by compare-and-set in the commit of the decision: of two decisions on the
//! same state, one is made again. Pages are written before the root under new names, and removed
//! after it. A state of one page is a part of the root.
//!
//! No record is needed to decide: a state whose records cannot be read begins empty.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Engine, Error};
use tidegate_core::{
    job::QueueName,
    port::{
        Txn,
        job_store::{Expect, Record, RecordKind, RecordQuery, Write},
        policy::{Plugin, PolicyState, StatePage},
    },
    queue::plugin::Role,
    time::Timestamp,
};

/// How long a state is kept after its last change.
const RETENTION: Duration = Duration::from_hours(400 * 24);
/// The age at which an unchanged page is written again, so that it does not expire before the state.
const PAGE_RENEWAL: Duration = Duration::from_hours(100 * 24);
/// Reads of a state whose pages are replaced meanwhile.
const MAX_READS: usize = 5;
/// Expired records that one step of the upkeep removes.
const MAX_PURGED: u32 = 1000;

/// The record that names the pages of a state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Root {
    /// Raised by every change, so that no two roots are equal.
    version: u64,
    state_version: u32,
    /// The state, if it has one page.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    inline: StatePage,
    /// The names of its pages, each with the time at which it was written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pages: Vec<(String, Timestamp)>,
}

/// A state as it was read.
#[derive(Clone, Debug)]
pub(super) struct KeptState {
    group: String,
    state_version: u32,
    /// The stored root; none before the first change.
    record: Option<Record>,
    root: Root,
    pub state: Arc<PolicyState>,
}

/// The writes of a changed state, around those of its decision.
pub(super) struct StateWrites {
    pub before: Txn,
    /// Removes the new pages, if the state is not committed.
    pub refused: Txn,
    /// Removes the old pages, if it is.
    pub after: Txn,
    /// The state after them.
    pub kept: KeptState,
}

/// Whether a version of a plugin has a state as a retry strategy.
pub(super) fn has_state(plugin: &Plugin) -> bool {
    plugin.version.description(Role::Retry).is_some_and(|said| said.state_version > 0)
}

/// The group of the records of a plugin's state in a queue.
fn group_of(queue: &QueueName, plugin: &Plugin) -> String {
    let text = format!("{queue}\n{}", plugin.name);
    let digest = Sha256::digest(text.as_bytes());
    digest[..20].iter().fold(String::new(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

impl KeptState {
    /// The writes that replace the state by `state` at `now`. `nonce` makes the names of new pages
    /// unique.
    pub fn replace(&self, mut state: PolicyState, now: Timestamp, nonce: u64) -> StateWrites {
        state.balance();
        let record = |name: String, bytes: Vec<u8>| Record {
            kind: RecordKind::RetryState,
            name,
            until: now + RETENTION,
            bytes,
        };
        let remove = |name: &String| Write::RemoveRecord {
            kind: RecordKind::RetryState,
            name: name.clone(),
            until: None,
        };
        let (mut before, mut pages, mut inline) = (Txn::new(), Vec::new(), StatePage::new());
        let mut refused = Txn::new();
        if state.pages().len() > 1 {
            for (nth, page) in state.pages().iter().enumerate() {
                let old = self.root.pages.get(nth).filter(|(_, written_at)| {
                    let same_keys = self.root.pages.len() == state.pages().len();
                    let same = self.state.pages().get(nth) == Some(page);
                    same_keys && same && now < *written_at + PAGE_RENEWAL
                });
                pages.push(old.cloned().unwrap_or_else(|| {
                    let name = format!("{}.p{nth:02}-{nonce:016x}", self.group);
                    before.push(Write::PutRecord(record(name.clone(), encode(&**page))));
                    refused.push(remove(&name));
                    (name, now)
                }));
            }
        } else {
            inline.extend(state.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        let root = Root {
            version: self.root.version + 1,
            state_version: self.state_version,
            inline,
            pages,
        };
        // The root expires with its oldest page, which is renewed long before.
        let oldest = root.pages.iter().map(|(_, written_at)| *written_at).min();
        let new = Record {
            until: oldest.unwrap_or(now) + RETENTION,
            ..record(format!("{}.root", self.group), encode(&root))
        };
        let was = self.record.clone().map_or(Expect::Absent, Expect::Is);
        before.push(Write::SwapRecord { record: new.clone(), was });
        let is_removed =
            |(name, _): &&(String, Timestamp)| !root.pages.iter().any(|(kept, _)| kept == name);
        let removed = self.root.pages.iter().filter(is_removed);
        let after = removed.map(|(name, _)| remove(name)).collect();
        let kept = Self { record: Some(new), root, state: Arc::new(state), ..self.clone() };
        StateWrites { before, refused, after, kept }
    }
}

impl Engine {
    /// The state of a retry strategy in `queue`. It is empty if the stored one has another version,
    /// or if one of its records is missing or damaged.
    ///
    /// # Errors
    ///
    /// The store's, or [`Error::Unavailable`] if it is replaced again and again.
    pub(super) async fn retry_state(
        &self,
        queue: &QueueName,
        plugin: &Plugin,
    ) -> Result<KeptState, Error> {
        let group = group_of(queue, plugin);
        let state_version =
            plugin.version.description(Role::Retry).map_or(0, |said| said.state_version);
        let one = |name: String| RecordQuery {
            kind: RecordKind::RetryState,
            prefix: name,
            after: None,
            limit: 1,
        };
        let mut last = None;
        for _ in 0..MAX_READS {
            let found = self.ports.store.records(&[one(format!("{group}.root"))]).await?;
            let record = found.into_iter().flatten().next();
            let root = record.as_ref().and_then(decode::<Root>);
            let is_usable = root.as_ref().is_some_and(|root| root.state_version == state_version);
            let root = root.unwrap_or_default();
            if !is_usable || root.pages.is_empty() {
                let inline = if is_usable { root.inline.clone() } else { StatePage::new() };
                let state = Arc::new(inline.into_iter().collect());
                return Ok(KeptState { group, state_version, record, root, state });
            }
            // By their names: pages of refused decisions may lie between them.
            let named: Vec<RecordQuery> =
                root.pages.iter().map(|(name, _)| one(name.clone())).collect();
            let found = self.ports.store.records(&named).await?;
            let pages = found.iter().flatten().map(|page| decode::<StatePage>(page).map(Arc::new));
            let pages: Vec<Option<Arc<StatePage>>> = pages.collect();
            let is_whole = pages.len() == root.pages.len();
            // Another process may have replaced the state meanwhile. Then the root is a new one.
            if !is_whole && last != Some(root.version) {
                last = Some(root.version);
                continue;
            }
            let pages = pages.into_iter().collect::<Option<Vec<_>>>().filter(|_| is_whole);
            if pages.is_none() {
                tracing::error!(
                    %queue,
                    plugin = %plugin.name,
                    "a page of a retry strategy's state is lost; the state begins empty"
                );
            }
            let state = Arc::new(pages.map(PolicyState::of_pages).unwrap_or_default());
            return Ok(KeptState { group, state_version, record, root, state });
        }
        Err(Error::unavailable(
            Duration::from_secs(1),
            format!("the state of {} is replaced again and again", plugin.name),
        ))
    }

    /// Removes states that expired, a year after their last change.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub async fn drop_old_retry_states(&self) -> Result<(), Error> {
        let store = &self.ports.store;
        store.purge(RecordKind::RetryState, self.now(), u64::MAX, MAX_PURGED).await?;
        Ok(())
    }
}

/// What is stored in `record`; none if it is damaged.
fn decode<T: serde::de::DeserializeOwned>(record: &Record) -> Option<T> {
    serde_json::from_slice(&record.bytes)
        .inspect_err(|error| {
            tracing::error!(name = record.name, %error, "a record of a retry strategy's state is damaged");
        })
        .ok()
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("its keys are strings")
}
