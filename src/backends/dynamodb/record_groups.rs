//! The records of a kind in all of its groups, for a move of the whole store.
//!
//! Each group has a partition of its own, which the servers know by its name. So the groups are found by
//! a scan of the table, once in a process. Those of the records that the process writes are added.

use std::collections::BTreeSet;

use futures_util::future;

use super::{DynamoStore, key, table::Page};
use tidegate_core::port::{
    StoreError,
    job_store::{Record, RecordKind, RecordQuery},
};

/// Items that a request of the scan reads.
const PAGE_ITEMS: u32 = 1000;
/// Groups that are read at once.
const MAX_CONCURRENT_READS: usize = 16;

/// The groups of records that are known. A group has a dot at its end, as in the names of its records,
/// so that both have the same order.
#[derive(Default)]
pub(super) struct RecordGroups(BTreeSet<(RecordKind, String)>);

impl RecordGroups {
    fn add(&mut self, kind: RecordKind, group: &str) {
        self.0.insert((kind, format!("{group}.")));
    }

    /// The groups of `kind` that may have names after `after`, in order.
    fn behind(&self, kind: RecordKind, after: Option<&str>) -> Vec<String> {
        let of_kind = self.0.range((kind, String::new())..).take_while(|(of, _)| *of == kind);
        let is_behind =
            |group: &str| after.is_none_or(|after| after < group || after.starts_with(group));
        of_kind.map(|(_, group)| group).filter(|group| is_behind(group)).cloned().collect()
    }
}

impl DynamoStore {
    /// At most `limit` records of `kind` after `after`, of all groups and of none, by name.
    pub(super) async fn records_of_all_groups(
        &self,
        kind: RecordKind,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Record>, StoreError> {
        let query = |prefix: &str, after: Option<&str>| {
            let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
            RecordQuery { kind, prefix, after, limit }
        };
        let mut records = self.records_of(&query("", after)).await?;
        let (groups, mut count) = (self.groups_behind(kind, after).await?, 0);
        for some in groups.chunks(MAX_CONCURRENT_READS) {
            let of_group = |group: &String| {
                query(group, after.filter(|after| after.starts_with(group.as_str())))
            };
            let queries: Vec<RecordQuery> = some.iter().map(of_group).collect();
            let pages = future::try_join_all(queries.iter().map(|query| self.records_of(query)));
            for page in pages.await? {
                count += page.len();
                records.extend(page);
            }
            if count >= limit as usize {
                break;
            }
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        records.truncate(limit as usize);
        Ok(records)
    }

    /// The groups of `kind` that may have names after `after`, in order.
    async fn groups_behind(
        &self,
        kind: RecordKind,
        after: Option<&str>,
    ) -> Result<Vec<String>, StoreError> {
        let known = || self.known.lock().groups.as_ref().map(|groups| groups.behind(kind, after));
        if let Some(groups) = known() {
            return Ok(groups);
        }
        let (mut groups, mut position) = (RecordGroups::default(), None);
        loop {
            let page = self.table.scan(key::RECORDS, position.as_ref(), PAGE_ITEMS).await?;
            let Page { items, next } = page;
            for (kind, group) in items.iter().filter_map(|item| key::group_of(&item.key)) {
                groups.add(kind, group);
            }
            position = next;
            if position.is_none() {
                break;
            }
        }
        self.known.lock().groups = Some(groups);
        Ok(known().unwrap_or_default())
    }

    /// Adds the group of a record that is written, if the groups are known.
    pub(super) fn note_group(&self, record: &Record) {
        let Some(group) = record.kind.group(&record.name) else { return };
        if let Some(groups) = &mut self.known.lock().groups {
            groups.add(record.kind, group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_in_the_order_of_their_names() {
        let mut groups = RecordGroups::default();
        for (kind, group) in [
            (RecordKind::Log, "a"),
            (RecordKind::Log, "a-b"),
            (RecordKind::Log, "b"),
            (RecordKind::Lease, "c"),
        ] {
            groups.add(kind, group);
        }
        let behind = |after| groups.behind(RecordKind::Log, after);
        assert_eq!(behind(None), ["a-b.", "a.", "b."], "as a-b.x is before a.x");
        assert_eq!(behind(Some("a-b.9")), ["a-b.", "a.", "b."]);
        assert_eq!(behind(Some("a.1")), ["a.", "b."]);
        assert_eq!(behind(Some("aa")), ["b."]);
        assert_eq!(behind(Some("c")), [""; 0]);
        assert_eq!(groups.behind(RecordKind::Demand, None), [""; 0]);
    }
}
