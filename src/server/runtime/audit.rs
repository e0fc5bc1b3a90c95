//! The audit log: which caller changed what, and when.
//!
//! An entry is a record of the store. Its name begins with its time counted down, so that the store
//! lists the newest first. Entries are kept for 90 days, and of too many the oldest go first.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::Server;
use tidegate_api::AuditEntry;
use tidegate_core::port::{
    Write,
    job_store::{Record, RecordKind, RecordQuery},
};
use tidegate_engine::{Engine, Error};

/// How long an entry is kept.
const RETENTION: Duration = Duration::from_hours(90 * 24);
/// Most entries that are kept, give or take [`WRITES_PER_PURGE`].
const MAX_ENTRIES: u64 = 20_000;
/// Old entries are dropped with one of so many writes, on average.
const WRITES_PER_PURGE: u128 = 64;
/// Most entries that one purge drops.
const MAX_PURGED_PER_CALL: u32 = 1000;
/// Most bytes of the entries of a page, well below the largest response of a function.
const MAX_PAGE_BYTES: usize = 2 << 20;

/// How many entries this process has added.
static ENTRIES: AtomicU32 = AtomicU32::new(0);

impl Server {
    /// Adds an entry to the audit log.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn record_audit(&self, entry: &AuditEntry) -> Result<(), Error> {
        let ports = self.inner.engine.ports();
        let bytes =
            serde_json::to_vec(entry).map_err(|error| Error::Internal(error.to_string()))?;
        let (kind, drawn) = (RecordKind::Audit, ports.entropy.bits());
        let countdown = u64::MAX - entry.at.millis().max(0).unsigned_abs();
        // Entries of one millisecond keep their order, those of one process at least.
        let order = u32::MAX - ENTRIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("{countdown:016x}-{order:08x}{:08x}", drawn >> 96);
        let record = Record { kind, name, until: entry.at + RETENTION, bytes };
        ports.store.commit(vec![vec![Write::PutRecord(record)]]).await?;
        if drawn.is_multiple_of(WRITES_PER_PURGE)
            && let Err(error) = drop_old_entries(&self.inner.engine).await
        {
            tracing::warn!(%error, "old audit entries were not removed");
        }
        Ok(())
    }

    /// A page of the audit log, newest first, after the cursor `after`, and the cursor of the next
    /// page. It has at most `limit` entries, and fewer if they are large. An entry that cannot be read
    /// is logged and left out.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn audit(
        &self,
        after: Option<String>,
        limit: u32,
    ) -> Result<(Vec<AuditEntry>, Option<String>), Error> {
        let (kind, now) = (RecordKind::Audit, self.now());
        let query = RecordQuery { kind, prefix: String::new(), after, limit };
        let store = &self.inner.engine.ports().store;
        let mut page = store.records(&[query]).await?.pop().unwrap_or_default();
        let is_full = page.len() as u32 == limit;
        let fitting = fitting(page.iter().map(|record| record.bytes.len()));
        let next = page.get(fitting.saturating_sub(1)).filter(|_| is_full || fitting < page.len());
        let next = next.map(|record| record.name.clone());
        page.truncate(fitting);
        let kept = page.iter().filter(|record| now < record.until);
        let read = |record: &Record| {
            serde_json::from_slice(&record.bytes)
                .inspect_err(|error| tracing::error!(%error, "an audit entry cannot be read"))
                .ok()
        };
        Ok((kept.filter_map(read).collect(), next))
    }
}

/// How many of the first entries, whose lengths these are, fit into a page: at least one.
fn fitting(lengths: impl Iterator<Item = usize>) -> usize {
    let mut left = MAX_PAGE_BYTES;
    let fits = |length: &usize| {
        let is_first = left == MAX_PAGE_BYTES;
        let fits = is_first || *length <= left;
        left = left.saturating_sub(*length);
        fits
    };
    lengths.take_while(fits).count()
}

/// Drops a bounded number of entries: those that are over, and the oldest of too many.
///
/// # Errors
///
/// The store's; a repeat is harmless.
pub(super) async fn drop_old_entries(engine: &Engine) -> Result<(), Error> {
    let (kind, store) = (RecordKind::Audit, &engine.ports().store);
    store.purge(kind, engine.now(), MAX_ENTRIES, MAX_PURGED_PER_CALL).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_page_has_a_bounded_size_and_at_least_one_entry() {
        assert_eq!(fitting([MAX_PAGE_BYTES + 1, 1].into_iter()), 1);
        assert_eq!(fitting([MAX_PAGE_BYTES / 2; 5].into_iter()), 2);
        assert_eq!(fitting([10; 5].into_iter()), 5);
        assert_eq!(fitting([].into_iter()), 0);
    }

    use crate::runtime::testing;
    use tidegate_core::port::Clock as _;
    use tidegate_engine::memory::FakeClock;

    #[tokio::test]
    async fn an_entry_is_listed_for_ninety_days() {
        let clock = Arc::new(FakeClock::default());
        let server = testing::builder(&clock).serverless().start().await.unwrap();
        let entry = |action: &str| AuditEntry {
            at: clock.now(),
            caller: "ops".into(),
            action: action.into(),
            path: "/v1/queues/mail".into(),
            query: None,
            status: 200,
            request_id: String::new(),
            with: None,
        };
        for action in ["put_queue", "pause_queue"] {
            server.record_audit(&entry(action)).await.unwrap();
            clock.advance(Duration::from_millis(1));
        }
        let actions = async || {
            let (entries, next) = server.audit(None, 100).await.unwrap();
            assert_eq!(next, None);
            entries.into_iter().map(|entry| entry.action).collect::<Vec<_>>()
        };
        assert_eq!(actions().await, ["pause_queue", "put_queue"]);
        clock.advance(RETENTION.saturating_sub(Duration::from_millis(3)));
        assert_eq!(actions().await, ["pause_queue", "put_queue"]);
        clock.advance(Duration::from_millis(1));
        assert_eq!(actions().await, ["pause_queue"]);
        clock.advance(Duration::from_millis(1));
        assert!(actions().await.is_empty());
    }
}
