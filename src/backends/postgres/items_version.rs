//! The number of changes of the items that engines cache, which each of their calls reads.
//!
//! One read answers all calls that began before it, so the reads of a server follow each other however
//! many calls there are.

use tokio::{sync::Mutex, time::Instant};

use super::{connect::Readers, row};
use tidegate_core::port::StoreError;

pub(super) const CHANGES: &str = "SELECT n FROM item_changes";

/// When the latest read began, and its outcome.
#[derive(Default)]
pub(super) struct ItemsVersion(Mutex<Option<(Instant, Result<u64, StoreError>)>>);

impl ItemsVersion {
    /// The number of changes, with all that were committed before the call.
    pub(super) async fn get(&self, readers: &Readers) -> Result<u64, StoreError> {
        let called = Instant::now();
        let mut latest = self.0.lock().await;
        match &*latest {
            Some((began, read)) if *began > called => read.clone(),
            _ => {
                let began = Instant::now();
                let read = read(readers).await;
                *latest = Some((began, read.clone()));
                read
            }
        }
    }
}

async fn read(readers: &Readers) -> Result<u64, StoreError> {
    let rows = readers.query(CHANGES, &[]).await?;
    let version: i64 = rows.first().map_or(Ok(0), |row| row::column(row, 0))?;
    Ok(version as u64)
}
