//! Open buckets, and when their low watermarks move.

use std::time::Duration;

use super::{
    DynamoStore,
    entry::{CRITICAL, PARTITION, PRIORITY, TYPE, priority_of},
    key::{self, Hour, Key, Partition},
    row,
    table::Item,
};
use tidegate_core::{
    job::{QueueName, Spec, TypeName},
    port::StoreError,
};

/// When a low watermark moves, which costs a write. No value can lose a job.
#[derive(Clone, Copy, Debug)]
pub struct LowWatermarks {
    /// Minimum settled entries that a move of the low watermark passes.
    pub worth: usize,
    /// Minimum settled entries behind a few unsettled ones for refiling the latter.
    pub stuck: usize,
    /// Age after its hour at which a bucket with few entries is closed, and they are refiled.
    pub old: Duration,
}

impl Default for LowWatermarks {
    fn default() -> Self {
        Self { worth: 24, stuck: 400, old: Duration::from_hours(6) }
    }
}

/// An open bucket: it may have unsettled entries.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Its key in the registry.
    pub registered: Key,
    pub hour: Hour,
    pub index_partition: Partition,
    pub late: bool,
    pub job_type: String,
    pub critical: bool,
    pub partition: String,
    /// The priority of its jobs; none if they have several. A job whose priority was changed may
    /// have another one, and then a second entry in a bucket of that.
    pub priority: Option<i32>,
    pub low_watermark: String,
}

impl Bucket {
    pub(super) fn read(item: &Item, late: bool) -> Option<Self> {
        let (hour, index_partition) = key::registered_of(&item.key.s)?;
        Some(Self {
            registered: item.key.clone(),
            hour,
            index_partition,
            late,
            job_type: item.text(TYPE)?.to_owned(),
            critical: item.number(CRITICAL)? == 1,
            partition: item.text(PARTITION).unwrap_or_default().to_owned(),
            priority: item.number(PRIORITY).and_then(priority_of),
            low_watermark: item.text(row::LOW_WATERMARK).unwrap_or_default().to_owned(),
        })
    }

    /// Whether a job with this spec may wait in this bucket. The shard does not matter, because other
    /// processes may use more or fewer shards, and neither does the priority, because an older
    /// release writes no second entry when it changes.
    pub(super) fn is_for(&self, spec: &Spec) -> bool {
        spec.job_type.as_str() == self.job_type
            && spec.critical == self.critical
            && spec.partition == self.partition
    }

    pub(super) fn is_of(&self, types: &[TypeName]) -> bool {
        types.iter().any(|name| name.as_str() == self.job_type)
    }
}

impl DynamoStore {
    /// The open buckets of a queue between two hours, or the open late buckets.
    pub(super) async fn open(
        &self,
        queue: &QueueName,
        from: Option<Hour>,
        to: Option<Hour>,
        late: bool,
    ) -> Result<Vec<Bucket>, StoreError> {
        let from = from.map_or_else(|| key::FIRST.to_string(), Hour::text);
        let to = to
            .map_or_else(|| key::LAST.to_string(), |hour| format!("{}{}", hour.text(), key::LAST));
        let items = self.all(key::open(queue, late), from, to).await?;
        Ok(items.iter().filter_map(|item| Bucket::read(item, late)).collect())
    }
}
