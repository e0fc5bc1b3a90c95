//! What servers that share a store show of all of them: each counts what it does, and one adds it up.
//!
//! ```text
//!   each server: what it counted since its latest part ──▶ a record, a part
//!   the owner of the sweep: all parts, which it removes ─▶ the records that every server reads
//! ```
//!
//! The owner adds parts in one transaction. It also replaces the turn of the subject, a record that was
//! read before the parts. So of two servers that add the same parts, one is refused, and nothing counts
//! twice. A server that is killed loses what it counted since its latest part. Nothing depends on that.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::runtime::Inner;
use tidegate_core::port::{
    Committed, Write,
    job_store::{Expect, RECORD_BYTES, Record, RecordKind, RecordQuery},
};
use tidegate_engine::Error;

/// How often a server stores a part, if it has counted something, and the owner adds all parts.
pub(in crate::runtime) const PART_INTERVAL: Duration = Duration::from_secs(2);
/// How long a part is kept that no server adds.
const PART_RETENTION: Duration = Duration::from_mins(10);
/// How long a turn is kept after parts were added.
const TURN_RETENTION: Duration = Duration::from_hours(24);
/// Most parts that are added at once. Others are added later.
const MAX_PARTS: u32 = 200;
/// Most bytes of the parts that are added at once, unless one has more.
const MAX_ADDED_BYTES: usize = 8 << 20;
/// Most parts that are stored.
const MAX_STORED_PARTS: u64 = 10_000;
/// Most parts that a purge drops.
const MAX_PURGED_PARTS: u32 = 1000;
const KIND: RecordKind = RecordKind::Part;

/// What parts are about. The parts of each subject are added by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::runtime) enum Subject {
    /// What happened to jobs in a minute, by queue, type and worker.
    History,
    /// What triggers did about events.
    Triggers,
    /// Calls of plugins.
    Plugins,
}

impl Subject {
    fn as_str(self) -> &'static str {
        match self {
            Self::History => "history",
            Self::Triggers => "triggers",
            Self::Plugins => "plugins",
        }
    }

    /// What the names of its parts begin with.
    fn prefix(self) -> String {
        format!("{}-", self.as_str())
    }

    /// The name of its turn.
    fn turn(self) -> String {
        format!("turn-{}", self.as_str())
    }
}

/// What a server keeps about parts.
#[derive(Default)]
pub(super) struct PartState {
    /// Parts whose writes failed. They are written again before later ones are made.
    unsent: tokio::sync::Mutex<BTreeMap<Subject, Record>>,
    /// How many parts were made. Two of one millisecond have different names.
    made: AtomicU32,
    /// The turns as this server read or wrote them last. An older one is as good as one that is read
    /// now: others have added parts since then, so this server is refused and reads it again.
    turns: parking_lot::Mutex<BTreeMap<Subject, Option<Record>>>,
}

/// Parts that were read, to be added in one transaction.
pub(in crate::runtime) struct Parts {
    subject: Subject,
    turn: Option<Record>,
    records: Vec<Record>,
}

impl Parts {
    /// Whether there are none.
    pub(in crate::runtime) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Their contents, in the order in which they were made. One that cannot be read is left out.
    pub(in crate::runtime) fn contents<T: DeserializeOwned>(&self) -> Vec<T> {
        let read = |record: &Record| {
            serde_json::from_slice(&record.bytes)
                .inspect_err(|error| {
                    tracing::warn!(%error, name = record.name, "a part of a server is unreadable");
                })
                .ok()
        };
        self.records.iter().filter_map(read).collect()
    }
}

fn query(prefix: String, limit: u32) -> RecordQuery {
    RecordQuery { kind: KIND, prefix, after: None, limit }
}

impl Inner {
    /// Stores what this server has counted, if it shares its store: one part of each subject. If it
    /// `stops`, all of it, also that of the minute under way. What cannot be stored is stored by a
    /// later call.
    pub(in crate::runtime) async fn store_parts(&self, stops: bool) {
        loop {
            let stored = [
                self.store_history_part(stops).await,
                self.store_trigger_part().await,
                self.store_plugin_part().await,
            ];
            for error in stored.iter().filter_map(|stored| stored.as_ref().err()) {
                tracing::warn!(%error, "what this server counted was not stored; it is repeated");
            }
            if !stops || !stored.iter().any(|stored| matches!(stored, Ok(true))) {
                return;
            }
        }
    }

    /// Stores what `take` returns as a part of this server. Returns whether there was any. After an
    /// error the next call stores it, and `take` is called only when that is done. If the store did
    /// not answer, it may count twice.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(in crate::runtime) async fn store_part<T: Serialize>(
        &self,
        subject: Subject,
        take: impl FnOnce() -> Option<T>,
    ) -> Result<bool, Error> {
        let Some(shared) = &self.shared else { return Ok(false) };
        let mut unsent = shared.parts.unsent.lock().await;
        let record = if let Some(record) = unsent.get(&subject) {
            record.clone()
        } else {
            let Some(bytes) = take().map(|content| serde_json::to_vec(&content)) else {
                return Ok(false);
            };
            let bytes = bytes.map_err(|error| Error::Internal(error.to_string()))?;
            if bytes.len() > RECORD_BYTES {
                return Err(Error::Internal(format!("a part of {} bytes", bytes.len())));
            }
            let (now, own) = (self.engine.now(), shared.members.lock().own().to_owned());
            let (at, number) = (now.millis().max(0), shared.parts.made.fetch_add(1, Relaxed));
            let name = format!("{}{at:016x}-{number:08x}-{own}", subject.prefix());
            Record { kind: KIND, name, until: now + PART_RETENTION, bytes }
        };
        unsent.insert(subject, record.clone());
        self.engine.ports().store.commit(vec![vec![Write::PutRecord(record)]]).await?;
        unsent.remove(&subject);
        Ok(true)
    }

    /// The parts of a subject that no server has added, as many as are added at once.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(in crate::runtime) async fn parts(&self, subject: Subject) -> Result<Parts, Error> {
        let store = &self.engine.ports().store;
        let Some(shared) = &self.shared else {
            return Ok(Parts { subject, turn: None, records: Vec::new() });
        };
        let known = shared.parts.turns.lock().get(&subject).cloned();
        let turn = if let Some(turn) = known {
            turn
        } else {
            let found = store.records(&[query(subject.turn(), 1)]).await?;
            let turn = found.into_iter().flatten().next();
            shared.parts.turns.lock().insert(subject, turn.clone());
            turn
        };
        let found = store.records(&[query(subject.prefix(), MAX_PARTS)]).await?;
        let mut bytes = 0;
        let is_first_or_fits = |record: &Record| {
            let is_first = bytes == 0;
            bytes += record.bytes.len();
            is_first || bytes <= MAX_ADDED_BYTES
        };
        let records = found.into_iter().flatten().take_while(is_first_or_fits).collect();
        Ok(Parts { subject, turn, records })
    }

    /// Makes `writes`, and removes the parts that are in them. Returns whether that was done: it is
    /// not if another server has added parts of the subject meanwhile.
    ///
    /// # Errors
    ///
    /// The store's.
    pub(in crate::runtime) async fn add_parts(
        &self,
        parts: Parts,
        writes: Vec<Write>,
    ) -> Result<bool, Error> {
        let Some(shared) = &self.shared else { return Ok(false) };
        let Parts { subject, turn, records } = parts;
        // Never the one of an earlier turn.
        let bytes = format!("{:032x}", self.engine.ports().entropy.bits()).into_bytes();
        let until = self.engine.now() + TURN_RETENTION;
        let next = Record { kind: KIND, name: subject.turn(), until, bytes };
        let was = turn.map_or(Expect::Absent, Expect::Is);
        let mut txn = vec![Write::SwapRecord { record: next.clone(), was }];
        txn.extend(writes);
        txn.extend(records.into_iter().map(|Record { kind, name, .. }| Write::RemoveRecord {
            kind,
            name,
            until: None,
        }));
        // It is read again, unless the answer shows what it is now.
        shared.parts.turns.lock().remove(&subject);
        let committed = self.engine.ports().store.commit(vec![txn]).await?;
        let is_added = matches!(committed.first(), Some(Committed::All));
        if is_added {
            shared.parts.turns.lock().insert(subject, Some(next));
        }
        Ok(is_added)
    }

    /// Drops the parts that no server has added for long.
    ///
    /// # Errors
    ///
    /// The store's; a repeat is harmless.
    pub(super) async fn drop_old_parts(&self) -> Result<(), Error> {
        let store = &self.engine.ports().store;
        store.purge(KIND, self.engine.now(), MAX_STORED_PARTS, MAX_PURGED_PARTS).await?;
        Ok(())
    }
}
