//! The records of a kind in all of its groups, for a move of the whole store.
//!
//! Each group has a partition of its own, which the servers know by its name. So the groups are found by
//! a scan of the table, once in a process. Those of the records that the process writes are added.

use std::{collections::BTreeSet, ops::Bound};

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

    /// The first groups of `kind` from `start` on, in order: as many as are read at once.
    fn next(&self, kind: RecordKind, start: &Bound<String>) -> Vec<String> {
        let start = start.clone().map(|group| (kind, group));
        let groups = self.0.range::<(RecordKind, String), _>((start, Bound::Unbounded));
        let of_kind = groups.take_while(|(of, _)| *of == kind).take(MAX_CONCURRENT_READS);
        of_kind.map(|(_, group)| group.clone()).collect()
    }
}

/// The first group that may have names after `after`.
fn first_behind(after: Option<&str>) -> Bound<String> {
    Bound::Included(match after {
        None => String::new(),
        // The name may have others of its group behind it.
        Some(after) => match after.split_once('.') {
            Some((group, _)) => format!("{group}."),
            None => after.to_owned(),
        },
    })
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
        let mut records = self.readable_records(query("", after)).await?;
        let (mut start, mut count) = (first_behind(after), 0);
        while count < limit as usize {
            let groups = self.next_groups(kind, &start).await?;
            let Some(last) = groups.last() else { break };
            let of_group = |group: &String| {
                query(group, after.filter(|after| after.starts_with(group.as_str())))
            };
            let pages = groups.iter().map(|group| self.readable_records(of_group(group)));
            for page in future::try_join_all(pages).await? {
                count += page.len();
                records.extend(page);
            }
            start = Bound::Excluded(last.clone());
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        records.truncate(limit as usize);
        Ok(records)
    }

    /// The records that `query` finds. Those that cannot be read are left out, and the next ones are
    /// read instead: there are fewer than its limit only if no others follow.
    async fn readable_records(&self, mut query: RecordQuery) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        loop {
            let (page, next) = self.record_page(&query).await?;
            records.extend(page);
            if next.is_none() || records.len() >= query.limit as usize {
                return Ok(records);
            }
            query.after = next;
        }
    }

    /// The first groups of `kind` from `start` on, in order: as many as are read at once.
    async fn next_groups(
        &self,
        kind: RecordKind,
        start: &Bound<String>,
    ) -> Result<Vec<String>, StoreError> {
        let known = || self.known.lock().groups.as_ref().map(|groups| groups.next(kind, start));
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
        let behind = |after| groups.next(RecordKind::Log, &first_behind(after));
        assert_eq!(behind(None), ["a-b.", "a.", "b."], "as a-b.x is before a.x");
        assert_eq!(behind(Some("a-b.9")), ["a-b.", "a.", "b."]);
        assert_eq!(behind(Some("a.1")), ["a.", "b."]);
        assert_eq!(behind(Some("aa")), ["b."]);
        assert_eq!(behind(Some("c")), [""; 0]);
        assert_eq!(groups.next(RecordKind::Log, &Bound::Excluded("a-b.".into())), ["a.", "b."]);
        assert_eq!(groups.next(RecordKind::Demand, &first_behind(None)), [""; 0]);
    }
}
