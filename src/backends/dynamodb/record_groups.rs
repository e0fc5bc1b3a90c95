//! The records of a kind in all of its groups, for a move of the whole store.
//!
//! Each group has a partition of its own, which the servers know by its name. So the groups are found by
//! a scan of the table, once in a process. Those of the records that the process writes are added.

use std::{collections::BTreeSet, ops::Bound};

use futures_util::future;

use super::{
    DynamoStore, key, record,
    table::{Item, Page},
};
use tidegate_core::port::{
    AllRecordsPage, StoreError,
    job_store::{Record, RecordKind, RecordQuery},
};

/// Items that a request of the scan reads.
const PAGE_ITEMS: u32 = 1000;
/// Groups that are read at once: each request returns at most 1 MB.
const MAX_CONCURRENT_READS: usize = 16;
/// About how many bytes the records of a page have. A record may have more by itself.
const MAX_PAGE_BYTES: usize = 8 << 20;

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

/// The first items of some groups and of the records without a group.
#[derive(Default)]
struct FirstItems {
    items: Vec<Item>,
    /// The name up to which all items are among these; none for all names.
    end: Option<String>,
}

impl FirstItems {
    /// Adds items that were read together, in order. `has_more` is whether others may follow them.
    fn add(&mut self, items: Vec<Item>, has_more: bool) {
        if let Some(last) = items.last().filter(|_| has_more) {
            self.end_at(last.key.s.clone());
        }
        self.items.extend(items);
    }

    fn end_at(&mut self, name: String) {
        self.end = self.end.take().into_iter().chain([name]).min();
    }

    /// The items of a page, by name: at most `limit` and about [`MAX_PAGE_BYTES`]. Also returns where the
    /// next page starts.
    fn into_page(self, limit: usize) -> (Vec<Item>, Option<String>) {
        let Self { mut items, end } = self;
        items.retain(|item| end.as_ref().is_none_or(|end| item.key.s <= *end));
        items.sort_by(|a, b| a.key.s.cmp(&b.key.s));
        let mut bytes = 0;
        let is_first_or_fits = |item: &&Item| {
            let is_first = bytes == 0;
            bytes += record::whole_bytes(item);
            is_first || bytes <= MAX_PAGE_BYTES
        };
        let fitting = items.iter().take(limit).take_while(is_first_or_fits).count();
        let is_cut = fitting < items.len();
        items.truncate(fitting);
        let next = if is_cut { items.last().map(|last| last.key.s.clone()) } else { end };
        (items, next)
    }
}

impl DynamoStore {
    /// A page of the records of `kind` after `after`, of all groups and of none, by name: at most `limit`,
    /// and about [`MAX_PAGE_BYTES`].
    ///
    /// Of each group, one request reads the first items. Large contents are read when it is known which
    /// records are in the page.
    pub(super) async fn records_of_all_groups(
        &self,
        kind: RecordKind,
        after: Option<&str>,
        limit: u32,
    ) -> Result<AllRecordsPage, StoreError> {
        let query = |prefix: &str, after: Option<&str>| {
            let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
            RecordQuery { kind, prefix, after, limit }
        };
        let mut first = FirstItems::default();
        let (items, has_more) = self.first_record_items(&query("", after)).await?;
        first.add(items, has_more);
        let (mut start, mut count, mut bytes) = (first_behind(after), 0, 0);
        loop {
            let mut groups = self.next_groups(kind, &start).await?;
            groups.retain(|group| first.end.as_ref().is_none_or(|end| group <= end));
            let Some(last) = groups.last() else { break };
            let queries: Vec<RecordQuery> = groups
                .iter()
                .map(|group| query(group, after.filter(|after| after.starts_with(group.as_str()))))
                .collect();
            let reads = queries.iter().map(|query| self.first_record_items(query));
            for (items, has_more) in future::try_join_all(reads).await? {
                count += items.len();
                bytes += items.iter().map(Item::size).sum::<usize>();
                first.add(items, has_more);
            }
            if count >= limit as usize || bytes >= MAX_PAGE_BYTES {
                // The names of later groups are behind all those of this one.
                first.end_at(format!("{last}~"));
                break;
            }
            start = Bound::Excluded(last.clone());
        }
        let (items, next) = first.into_page(limit as usize);
        let mut page = AllRecordsPage { next, ..AllRecordsPage::default() };
        let (records, now) = (self.records_in(kind, &items).await?, self.now());
        for (item, record) in items.into_iter().zip(records) {
            match record {
                Some(record) => page.records.push(record),
                // The table may have expired its parts.
                None if record::is_divided(&item) && record::time_of(&item) <= now => {}
                None => page.damaged.push(item.key.s),
            }
        }
        Ok(page)
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
