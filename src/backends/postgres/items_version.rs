//! The number of changes of the items that engines cache, which each of their calls reads.
//!
//! A value is used for a moment: every decision commits the version of the item that it was made
//! under, so one made under an older item is refused. Changes by this server are seen at once.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{connect::Readers, row, step::Step};
use tidegate_core::port::StoreError;

/// How long a value is used.
const MAX_AGE: Duration = Duration::from_millis(50);

pub(super) const CHANGES: &str = "SELECT n FROM item_changes";

/// The latest value.
#[derive(Default)]
pub(super) struct ItemsVersion {
    known: Mutex<Option<(Instant, u64)>>,
    /// Counts the changes by this server.
    own: AtomicU64,
}

impl ItemsVersion {
    /// The number of changes, of now or a moment ago.
    pub(super) async fn get(&self, readers: &Readers) -> Result<u64, StoreError> {
        let began = Instant::now();
        let known = self.known.lock().filter(|(at, _)| began < *at + MAX_AGE);
        match known {
            Some((_, version)) => Ok(version),
            None => self.read(readers).await,
        }
    }

    /// The number of changes now.
    pub(super) async fn read(&self, readers: &Readers) -> Result<u64, StoreError> {
        let began = Instant::now();
        let own = self.own.load(Ordering::Acquire);
        let rows = readers.query(CHANGES, &[]).await?;
        let version: i64 = rows.first().map_or(Ok(0), |row| row::column(row, 0))?;
        let mut known = self.known.lock();
        // A change since then may not have been read.
        if own == self.own.load(Ordering::Acquire) {
            *known = Some((began, version as u64));
        }
        Ok(version as u64)
    }

    /// Forgets the value after one of `steps` was written, if it changes an item that is counted.
    pub(super) fn written<'a>(&self, mut steps: impl Iterator<Item = &'a Step>) {
        let counts =
            |step: &Step| matches!(step, Step::SetItem { kind, .. } if kind.is_decided_under());
        if steps.any(counts) {
            let mut known = self.known.lock();
            self.own.fetch_add(1, Ordering::Release);
            *known = None;
        }
    }
}
