//! The copy: page by page, each followed by its position in the mark of the target.

use std::time::Duration;

use super::{
    Begun, Mark, Move, MoveError, OnProgress, Part,
    job_parts::{WholeJob, groups, is_forgotten},
    mark,
    part::Position,
};
use tidegate_core::{
    job::QueueName,
    port::{
        AllRecordsPage, StoreError, Txn, Write,
        job_store::{Expect, ItemKind, RecordKind},
    },
};

/// Jobs of a page.
pub(super) const PAGE_JOBS: u32 = 200;
/// Records of a page. A record may have 2 MiB.
pub(super) const PAGE_RECORDS: u32 = 32;
/// Items that are written at once.
const PAGE_ITEMS: usize = 50;
/// Ledgers between two reads of the list of their queues.
const PAGE_LEDGERS: usize = 500;
/// The waits before a page is copied again.
const WAITS: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(15),
    Duration::from_secs(30),
];

/// What a page has copied, and behind what the next one starts; none behind the last page.
type Page = (u64, Option<String>);

impl Move {
    /// Copies what is not copied yet. Returns how many records of each part this call has copied.
    ///
    /// # Errors
    ///
    /// [`MoveError`]. A repeat goes on.
    pub async fn copy(
        &self,
        begun: &mut Begun,
        on_progress: OnProgress<'_>,
    ) -> Result<Vec<(Part, u64)>, MoveError> {
        let (rest, mut after) = begun.mark.position.rest().ok_or_else(|| {
            MoveError::refused(
                "another release has begun this move: finish it with that one, or give it up",
            )
        })?;
        let mut copied = Vec::with_capacity(rest.len());
        for part in rest {
            let mut count = 0;
            loop {
                let page = self.copy_page_again(part, after.take(), on_progress);
                let (of_page, next) = page.await?;
                count += of_page;
                let position = match &next {
                    Some(next) => Position::behind(part, next.clone()),
                    None => Position::after_part(part),
                };
                self.record_position(begun, position).await?;
                match next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            copied.push((part, count));
        }
        Ok(copied)
    }

    async fn record_position(
        &self,
        begun: &mut Begun,
        position: Position,
    ) -> Result<(), MoveError> {
        let mark = Mark { position, ..begun.mark.clone() };
        begun.version = Mark::put(&self.to, begun.version, Some(&mark)).await?;
        begun.mark = mark;
        Ok(())
    }

    /// Copies a page, several times if a store has no capacity for it: a table that is new accepts a
    /// few thousand writes a second, and gives up a commit that takes too long.
    async fn copy_page_again(
        &self,
        part: Part,
        after: Option<String>,
        on_progress: OnProgress<'_>,
    ) -> Result<Page, MoveError> {
        for wait in WAITS {
            match self.copy_page(part, after.clone(), on_progress).await {
                Err(error) if self.may_pass(&error) => self.clock.sleep(wait).await,
                copied => return copied,
            }
        }
        self.copy_page(part, after, on_progress).await
    }

    /// Whether a repeat soon may not meet this error.
    fn may_pass(&self, error: &MoveError) -> bool {
        let sides = [&self.from, &self.to];
        let has_steps = sides.iter().any(|side| !side.store.capabilities().atomicity.is_atomic());
        match error {
            MoveError::Store { error: StoreError::Throttled { .. }, .. } => true,
            MoveError::Store { error: StoreError::Unavailable(_), .. } => has_steps,
            _ => false,
        }
    }

    async fn copy_page(
        &self,
        part: Part,
        after: Option<String>,
        on_progress: OnProgress<'_>,
    ) -> Result<Page, MoveError> {
        let page = match part {
            // Those that were copied are found at once, so there is no position.
            Part::Objects => return Ok((self.copy_objects(on_progress).await?, None)),
            Part::Jobs => self.copy_jobs(after).await?,
            Part::Ledgers => self.copy_ledgers(after).await?,
            Part::Records(kind) => self.copy_records(kind, after).await?,
            Part::Items(kind) => (self.copy_items(kind).await?, None),
        };
        on_progress(part, page.0);
        Ok(page)
    }

    async fn copy_jobs(&self, after: Option<String>) -> Result<Page, MoveError> {
        let (from, to) = (&self.from, &self.to);
        let page = from.store.all_jobs(after.as_deref(), PAGE_JOBS).await;
        let page = page.map_err(|error| from.failed(error))?;
        let now = self.clock.now();
        let mut jobs = from.readable(page.jobs)?;
        jobs.retain(|job| !is_forgotten(job, now));
        let count = jobs.len() as u64;
        for group in groups(jobs) {
            let whole = from.whole(group).await?;
            to.write(whole.into_iter().map(txn).collect()).await?;
        }
        Ok((count, page.next))
    }

    /// Copies the ledgers after that of queue `after`, each in a transaction of its own.
    async fn copy_ledgers(&self, after: Option<String>) -> Result<Page, MoveError> {
        let (from, to) = (&self.from, &self.to);
        let queues = from.store.ledger_queues().await.map_err(|error| from.failed(error))?;
        let is_later =
            |queue: &QueueName| after.as_deref().is_none_or(|after| after < queue.as_str());
        let page: Vec<_> = queues.into_iter().filter(is_later).take(PAGE_LEDGERS).collect();
        for queue in &page {
            let ledger = from.store.ledger(queue).await.map_err(|error| from.failed(error))?;
            if let Some((ledger, batches)) = ledger {
                let ledger = to.as_moved(ledger);
                let batches =
                    batches.into_iter().map(|batch| Write::AddBatch(queue.clone(), batch));
                let mut txn: Txn = batches.collect();
                txn.push(Write::SetLedger { queue: queue.clone(), ledger, was: Expect::Absent });
                to.write(vec![txn]).await?;
            }
        }
        Ok((page.len() as u64, page.last().map(ToString::to_string)))
    }

    async fn copy_records(
        &self,
        kind: RecordKind,
        after: Option<String>,
    ) -> Result<Page, MoveError> {
        let AllRecordsPage { mut records, next, .. } =
            self.from.record_page(kind, after, PAGE_RECORDS).await?;
        let now = self.clock.now();
        records.retain(|record| !kind.is_transient() || record.until > now);
        let count = records.len() as u64;
        let txns = records.into_iter().map(|record| vec![Write::PutRecord(record)]);
        self.to.write(txns.collect()).await?;
        Ok((count, next))
    }

    async fn copy_items(&self, kind: ItemKind) -> Result<u64, MoveError> {
        let (from, to) = (&self.from, &self.to);
        let mut writes = Vec::new();
        for item in from.items(kind).await? {
            if kind == ItemKind::Schema && item.name == mark::NAME {
                continue;
            }
            let bytes = item.bytes.map_err(|why| {
                let what = format!("the {} {} cannot be read: {why}", kind.as_str(), item.name);
                from.damaged(super::error::Damage::Other(what))
            })?;
            writes.push(Write::SetItem {
                kind,
                name: item.name,
                was: 0,
                version: item.version,
                bytes: Some(bytes),
            });
        }
        for some in writes.chunks(PAGE_ITEMS) {
            to.write(some.iter().map(|write| vec![write.clone()]).collect()).await?;
        }
        Ok(writes.len() as u64)
    }
}

/// The transaction that adds a job with its keys.
fn txn(WholeJob { job, keys }: WholeJob) -> Txn {
    let key = |key| Write::SetKey { key, job: job.id.clone(), was: Expect::Absent };
    let mut txn: Txn = keys.into_iter().map(key).collect();
    txn.push(Write::AddJob(job));
    txn
}
