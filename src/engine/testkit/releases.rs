//! The next release of tidegate: it writes every record with one more field, which this release must
//! keep.

use std::sync::Arc;

use tidegate_core::{
    job::{Lifecycle, State},
    port::{
        JobStore, StoreLayer,
        job_store::{Committed, ItemKind, SharedStore, StoreError, Txn, Write},
    },
    stored::UnknownFields,
};

/// The field of the next release, in records and in items of configuration.
pub const FIELD: &str = "of_the_next_release";

/// The release of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// This one.
    This,
    /// This one with a planted bug: it loses the fields of the next.
    Forgetful,
    /// The next one.
    Next,
}

impl Release {
    /// Changes what an engine of this release writes into the form of the release.
    pub fn encode(self, txns: &mut [Txn]) {
        let each: fn(&mut UnknownFields) = match self {
            Self::This => return,
            Self::Forgetful => |fields| *fields = UnknownFields::default(),
            Self::Next => |fields| *fields = UnknownFields::new([rmpv::Value::from(FIELD)]),
        };
        for write in txns.iter_mut().flatten() {
            self.encode_write(write, each);
        }
    }

    fn encode_write(self, write: &mut Write, each: fn(&mut UnknownFields)) {
        match write {
            Write::AddJob(job) | Write::SetJob { job, .. } => {
                each(&mut Arc::make_mut(&mut job.spec).unknown);
                fields_of(&mut job.life).for_each(each);
            }
            Write::AddBatch(_, batch) => {
                each(&mut batch.unknown);
                batch.grants.iter_mut().for_each(|grant| each(&mut grant.unknown));
            }
            Write::SetLedger { ledger, .. } => {
                each(&mut ledger.unknown);
                ledger.batches.iter_mut().for_each(|named| each(&mut named.unknown));
                ledger.starts.values_mut().for_each(|starts| each(&mut starts.unknown));
            }
            // A token or a bulk operation with a field that a release does not know is unreadable
            // for it, on purpose.
            Write::SetItem { kind: ItemKind::Token | ItemKind::Operation, .. } => {}
            Write::SetItem { bytes: Some(bytes), .. } => {
                let mut item: serde_json::Value = serde_json::from_slice(bytes).expect("JSON");
                let Some(fields) = item.as_object_mut() else { return };
                match self {
                    Self::Next => fields.insert(FIELD.into(), true.into()),
                    _ => fields.remove(FIELD),
                };
                *bytes = item.to_string().into_bytes();
            }
            Write::Together(writes) => self.encode(std::slice::from_mut(writes)),
            _ => {}
        }
    }
}

/// The unknown fields of a lifecycle on every level.
pub fn fields_of(life: &mut Lifecycle) -> impl Iterator<Item = &mut UnknownFields> {
    let Lifecycle { state, history, hand_backs, unknown, .. } = life;
    let run = match state {
        State::Running(run) => Some(&mut run.unknown),
        _ => None,
    };
    let entries = history.iter_mut().flat_map(|entry| {
        let hand_back = entry.hand_back.as_mut().map(|hand_back| &mut hand_back.unknown);
        [&mut entry.unknown].into_iter().chain(hand_back)
    });
    let hand_backs = hand_backs.as_mut().map(|backs| &mut backs.unknown);
    entries.chain(run).chain(hand_backs).chain([unknown])
}

/// A store through which everything is written as a release writes it.
pub struct ReleaseStore {
    inner: SharedStore,
    release: Release,
}

impl ReleaseStore {
    /// `inner`, as `release` writes to it.
    pub fn new(inner: SharedStore, release: Release) -> Self {
        Self { inner, release }
    }
}

impl StoreLayer for ReleaseStore {
    fn inner(&self) -> &dyn JobStore {
        &*self.inner
    }

    async fn commit(&self, mut txns: Vec<Txn>) -> Result<Vec<Committed>, StoreError> {
        self.release.encode(&mut txns);
        self.inner.commit(txns).await
    }
}
