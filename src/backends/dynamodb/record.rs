//! Records: small values that are stored for a time, found by name, and dropped in the order of
//! their times.
//!
//! An *appointment* at the record's time is written before the record. A process that dies between
//! the two leaves an appointment without a record, never a record that is not dropped.
//!
//! A transient record has no appointment, which would be a second write: the table expires it. A
//! purge drops those without a group.
//!
//! The content is stored behind its checksum, whole in the record's item or divided into parts.

use super::{
    DynamoStore,
    key::{self, FIRST, Key, LAST},
    row::{self, PART_BYTES},
    table::{Change, EXPIRES, Item, PageQuery, Val},
};
use crate::{
    blob::{checked, record_owner, with_checksum},
    unreadable::log_damage,
};
use tidegate_core::{
    port::{
        StoreError,
        job_store::{Purged, Record, RecordKind, RecordQuery},
    },
    time::Timestamp,
};

/// How long after the record's time the table may expire the parts of a large record. Dropping a
/// record does not delete its parts.
const PART_EXPIRY_SECONDS: u64 = 86_400;

/// How long after its time the table may expire a transient record.
const TRANSIENT_EXPIRY_SECONDS: u64 = 60;

/// The items of a record.
pub(super) struct Parts {
    /// Written first: its appointment, and the parts of large content.
    pub before: Vec<Item>,
    /// The record itself.
    pub item: Item,
}

impl Parts {
    pub(super) fn of(record: &Record) -> Self {
        let (kind, name) = (record.kind, record.name.as_str());
        let mut before = Vec::new();
        let mut item = Item::new(key::record(kind, name), [until(record.until)]);
        if kind.is_transient() {
            let expires = record.until.millis().max(0) as u64 / 1000 + TRANSIENT_EXPIRY_SECONDS;
            item.attrs.insert(EXPIRES, Val::N(expires));
        } else {
            before.push(Item::new(key::appointment(kind, record.until, name), []));
        }
        let owner = record_owner(kind.as_str(), name, record.until.millis());
        let bytes = bytes::Bytes::from(with_checksum(&record.bytes, &owner, 0));
        if bytes.len() <= PART_BYTES {
            item.attrs.insert(row::RECORD, Val::B(bytes));
        } else {
            let expires = record.until.millis().max(0) as u64 / 1000 + PART_EXPIRY_SECONDS;
            let digest = row::digest(&bytes);
            let parts = bytes.len().div_ceil(PART_BYTES);
            for part in 0..parts {
                let end = bytes.len().min((part + 1) * PART_BYTES);
                let content = bytes.slice(part * PART_BYTES..end);
                let attrs = [(row::PART, Val::B(content)), (EXPIRES, Val::N(expires))];
                before.push(Item::new(key::record_part(kind, name, &digest, part), attrs));
            }
            item.attrs.extend([(row::LIST, Val::S(digest)), (row::VERSION, Val::N(parts as u64))]);
        }
        Self { before, item }
    }
}

/// The change that replaces the record in `old`, if it has not changed, by that in `new`.
pub(super) fn replacement(new: Item, old: &Item) -> Change {
    // A large record is named by the digest of its content.
    let when = [row::RECORD, row::LIST].into_iter().find_map(|name| {
        let value = old.attrs.get(&name)?;
        Some((name, value.clone()))
    });
    let remove = [row::RECORD, row::LIST, row::VERSION].into_iter();
    let remove = remove.filter(|name| !new.attrs.contains_key(name)).collect();
    match when {
        Some(when) => {
            Change::Update { key: new.key, set: new.attrs.into_iter().collect(), remove, when }
        }
        None => Change::Insert(new),
    }
}

/// Whether the content of the record in `item` is damaged. Large content is not looked at.
pub(super) fn is_damaged(kind: RecordKind, item: &Item) -> bool {
    let stored = item.bytes(row::RECORD);
    stored.is_some_and(|stored| whole_record(kind, item, stored).is_none())
}

/// A record's time as an attribute.
pub(super) fn until(at: Timestamp) -> (char, Val) {
    (row::LOW_WATERMARK, Val::N(at.millis().max(0) as u64))
}

impl DynamoStore {
    /// The readable records among the first ones that `query` finds.
    pub(super) async fn record_page(&self, query: &RecordQuery) -> Result<Vec<Record>, StoreError> {
        let wanted = query.limit as usize;
        let mut page_query = items_of(query);
        let mut items = Vec::new();
        while items.len() < wanted {
            let page = self.table.query(&page_query).await?;
            items.extend(page.items);
            page_query.after = page.next;
            if page_query.after.is_none() {
                break;
            }
        }
        items.truncate(wanted);
        let records = self.records_in(query.kind, &items).await?;
        Ok(records.into_iter().flatten().collect())
    }

    /// The first items of the records that `query` finds, as many as one request returns: at most the
    /// limit, and 1 MB. Large content is in other items. Also returns whether others may follow.
    pub(super) async fn first_record_items(
        &self,
        query: &RecordQuery,
    ) -> Result<(Vec<Item>, bool), StoreError> {
        let mut page_query = items_of(query);
        loop {
            let page = self.table.query(&page_query).await?;
            if !page.items.is_empty() || page.next.is_none() {
                return Ok((page.items, page.next.is_some()));
            }
            page_query.after = page.next;
        }
    }

    /// The records of `kind` in `items`, in this order; none for each that is damaged, or that was replaced
    /// meanwhile.
    pub(super) async fn records_in(
        &self,
        kind: RecordKind,
        items: &[Item],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let keys: Vec<Vec<Key>> = items.iter().map(|item| parts_of(kind, item)).collect();
        let parts = if keys.iter().all(Vec::is_empty) {
            Vec::new()
        } else {
            self.table.get(&keys.concat()).await?
        };
        let mut parts = parts.into_iter();
        let mut records = Vec::with_capacity(items.len());
        for (item, keys) in items.iter().zip(&keys) {
            // All of them are taken first: the others are those of the next records.
            let own: Vec<Option<Item>> = parts.by_ref().take(keys.len()).collect();
            let parts: Option<Vec<Item>> = own.into_iter().collect();
            let stored: Option<Vec<u8>> = if keys.is_empty() {
                item.bytes(row::RECORD).map(|bytes| bytes.to_vec())
            } else {
                // If a part is missing, the record was replaced meanwhile: the next read finds the
                // new one.
                parts.map(|parts| {
                    let bytes = parts.iter().filter_map(|part| part.bytes(row::PART));
                    bytes.flat_map(|bytes| bytes.to_vec()).collect()
                })
            };
            records.push(stored.and_then(|stored| whole_record(kind, item, &stored)));
        }
        Ok(records)
    }

    pub(super) async fn purge_records(
        &self,
        kind: RecordKind,
        now: Timestamp,
        keep: u64,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        let times = self.times_of(kind).await?;
        let total = times.len() as u64;
        let mut purged = Purged { left: total, ..Purged::default() };
        let mut dropped = Vec::new();
        for (at, name) in times.into_iter().take(limit as usize) {
            let is_over = at <= now;
            if !is_over && total - dropped.len() as u64 <= keep {
                break;
            }
            let record = Change::Delete { key: key::record(kind, &name), when: Some(until(at)) };
            let appointment = key::appointment(kind, at, &name);
            dropped.push((record, Change::Delete { key: appointment, when: None }, is_over));
        }
        let records: Vec<Change> = dropped.iter().map(|(record, ..)| record.clone()).collect();
        let gone = if records.is_empty() { Vec::new() } else { self.table.write(&records).await? };
        for ((.., is_over), _) in dropped.iter().zip(gone).filter(|(_, gone)| *gone) {
            *(if *is_over { &mut purged.expired } else { &mut purged.over }) += 1;
        }
        let appointments: Vec<Change> =
            dropped.into_iter().map(|(_, appointment, _)| appointment).collect();
        purged.left -= appointments.len() as u64;
        if !appointments.is_empty() && !kind.is_transient() {
            self.table.write(&appointments).await?;
        }
        Ok(purged)
    }

    /// The times of all records of `kind`, with their names, in order. Those of removed or changed
    /// records may be among them.
    async fn times_of(&self, kind: RecordKind) -> Result<Vec<(Timestamp, String)>, StoreError> {
        if kind.is_transient() {
            let items = self.whole(key::records(kind)).await?.into_iter();
            let mut times: Vec<_> = items.map(|item| (time_of(&item), item.key.s)).collect();
            times.sort_unstable();
            return Ok(times);
        }
        let appointments = self.whole(key::appointments(kind)).await?;
        Ok(appointments.iter().filter_map(|item| key::appointment_of(&item.key)).collect())
    }
}

/// The query for the items that `query` finds.
fn items_of(query: &RecordQuery) -> PageQuery {
    let from = match &query.after {
        Some(after) if *after >= query.prefix => format!("{after}{FIRST}"),
        _ if query.prefix.is_empty() => FIRST.to_string(),
        _ => query.prefix.clone(),
    };
    PageQuery {
        p: key::records_with(query.kind, &query.prefix),
        from,
        to: format!("{}{LAST}", query.prefix),
        limit: Some(query.limit),
        backward: false,
        after: None,
    }
}

/// At most how many bytes the record in `item` has, with its parts.
pub(super) fn whole_bytes(item: &Item) -> usize {
    let parts = if is_divided(item) { item.number(row::VERSION).unwrap_or_default() } else { 0 };
    item.size().saturating_add((parts as usize).saturating_mul(PART_BYTES))
}

/// When the record in `item` expires.
pub(super) fn time_of(item: &Item) -> Timestamp {
    Timestamp::from_millis(item.number(row::LOW_WATERMARK).unwrap_or_default() as i64)
}

/// Whether the content of the record in `item` is in parts.
pub(super) fn is_divided(item: &Item) -> bool {
    item.text(row::LIST).is_some()
}

/// The record in `item` whose content is `stored`; none if it is damaged, which is logged.
fn whole_record(kind: RecordKind, item: &Item, stored: &[u8]) -> Option<Record> {
    let name = item.key.s.clone();
    let until = time_of(item);
    let owner = record_owner(kind.as_str(), &name, until.millis());
    match checked(stored, &owner, 0, || format!("the record {owner}")) {
        Ok(bytes) => Some(Record { kind, name, until, bytes: bytes.to_vec() }),
        Err(error) => {
            log_damage(&error);
            None
        }
    }
}

/// The keys of the parts of a large record.
fn parts_of(kind: RecordKind, item: &Item) -> Vec<Key> {
    let (Some(digest), Some(parts)) = (item.text(row::LIST), item.number(row::VERSION)) else {
        return Vec::new();
    };
    (0..parts as usize).map(|part| key::record_part(kind, &item.key.s, digest, part)).collect()
}
