//! Fuzz targets: keys and items of the table.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use tidegate_core::{
    job::{Body, Encoding, Job, JobId, Payload, Version},
    queue::{Grant, GrantBatch, ledger::BatchId},
    stored::UnknownFields,
    time::Timestamp,
};
use tidegate_engine::testkit::builders;

use super::{
    batch::{decode_batch, encode_batch},
    key::{self, Hour, JobLocation, Key, Partition, SortKey},
    row,
    table::{Item, Val},
};
use crate::fuzz::driver::{fuzz, mutated, soup, text};

/// Pieces of keys.
const KEY_PIECES: &[&str] = &[
    "B#",
    "T#",
    "#",
    "!",
    ".",
    "-",
    "0",
    "z",
    "000000",
    "zzzzzz",
    "0123456789ab",
    "08zzzzzzzz",
    "0800000000",
    "zzzzzzzzzzzz",
    "01jb0000000000000000000000",
    "17",
    "18446744073709551616",
    "i",
    "U",
    "é",
];

fn foreign() -> impl Strategy<Value = String> {
    prop_oneof![3 => soup(KEY_PIECES, 8), 1 => text(40)]
}

/// An instant that keys can represent.
fn instant() -> impl Strategy<Value = Timestamp> {
    (-(1i64 << 48)..=253_402_300_799_999).prop_map(Timestamp::from_millis)
}

fn ulid() -> impl Strategy<Value = String> {
    any::<u128>().prop_map(|bits| ulid::Ulid(bits).to_string().to_ascii_lowercase())
}

fn location() -> impl Strategy<Value = JobLocation> {
    (ulid(), instant()).prop_map(|(tie, at)| {
        let job = builders::job("a").build();
        JobLocation { index_partition: Partition::of(&job.spec, &tie, 8), at }
    })
}

#[test]
fn foreign_keys_are_refused_or_can_be_written_back() {
    fuzz((foreign(), foreign()), |(p, s)| {
        let key = Key { p, s };
        if let Some(id) = key::located_id(&key) {
            let (tie, location) = key::parts(&id);
            if let Some(location) = location {
                prop_assert_eq!(location.row(tie).s.len(), key.s.len());
            }
        }
        prop_assert!(!key.is_row() || key.p.starts_with("B#"));
        match SortKey::parse(&key.s) {
            Some(SortKey::Row(at)) => prop_assert!(key.s.starts_with(&key::instant(at))),
            Some(SortKey::Entry(at, id, revision)) => {
                let index_partition =
                    JobLocation::parse("0123456789ab0800000000").unwrap().index_partition;
                let written = key::entry(&index_partition, at, false, &id, revision);
                prop_assert_eq!(SortKey::parse(&written.s), SortKey::parse(&key.s));
            }
            None => {}
        }
        if let Some(location) = JobLocation::parse(&key.s) {
            prop_assert_eq!(location.text(), key.s.as_str());
        }
        if let Some((hour, index_partition)) = key::registered_of(&key.s) {
            prop_assert_eq!(key::registered(hour, &index_partition), key.s.as_str());
            prop_assert!(hour.start() < hour.end());
        }
        if let Some((at, name)) = key::appointment_of(&key) {
            prop_assert_eq!(format!("{}!{name}", key::instant(at)), key.s.as_str());
        }
        if let Some(at) = key::instant_of_timer(&key.s) {
            prop_assert!(key.s.starts_with(&key::instant(at)));
        }
        if let Some(batch) = key::batch_of(&key.s) {
            let written = format!("{:016x}", batch.0);
            prop_assert_eq!(key::batch_of(&written), Some(batch));
        }
        Ok(())
    });
}

#[test]
fn an_id_gives_its_location_whatever_its_text() {
    let foreign = "[A-Za-z0-9_.:-]{1,64}".prop_map(|text| text.parse::<JobId>());
    fuzz((foreign, ulid(), location()), |(foreign, tie, location)| {
        if let Ok(id) = foreign
            && let (tie, Some(location)) = key::parts(&id)
        {
            prop_assert_eq!(format!("{tie}.{}", location.text()), id.as_str());
        }
        let drawn: JobId = tie.parse().unwrap();
        let located = key::with_location(&drawn, &location);
        prop_assert_eq!(key::parts(&located), (&*tie, Some(location.clone())));
        prop_assert_eq!(key::located_id(&location.row(&tie)), Some(located));
        prop_assert!(location.row(&tie).is_row());
        Ok(())
    });
}

#[test]
fn keys_sort_like_their_instants() {
    fuzz((instant(), instant(), location()), |(a, b, location)| {
        prop_assert_eq!(key::instant(a).cmp(&key::instant(b)), a.cmp(&b));
        let (hour_a, hour_b) = (Hour::of(a), Hour::of(b));
        prop_assert_eq!(hour_a.text().cmp(&hour_b.text()), hour_a.cmp(&hour_b));
        prop_assert!(hour_a.start() <= a && a < hour_a.end());
        prop_assert_eq!(Hour::parse(&hour_a.text()), Some(hour_a));
        let registered = key::registered(hour_a, &location.index_partition);
        prop_assert_eq!(key::registered_of(&registered), Some((hour_a, location.index_partition)));
        Ok(())
    });
}

fn job() -> impl Strategy<Value = Job> {
    let data = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..2000));
    (ulid(), location(), data, 0..4u8).prop_map(|(tie, location, (json, bytes), kind)| {
        let encoding = if json { Encoding::Json } else { Encoding::MessagePack };
        let drawn: JobId = tie.parse().unwrap();
        let id = if kind == 3 { drawn } else { key::with_location(&drawn, &location) };
        let mut job = builders::job(id.as_str()).attribute("region", "east").build();
        job.data = if kind == 0 {
            Body::Object { encoding, key: "data/é".into(), len: bytes.len() as u32 }
        } else {
            Body::Inline(Payload { encoding, bytes: bytes.into() })
        };
        job
    })
}

fn row_key(job: &Job) -> Key {
    match key::parts(&job.id) {
        (tie, Some(location)) => location.row(tie),
        (tie, None) => JobLocation::parse("0123456789ab0800000000").unwrap().row(tie),
    }
}

#[test]
fn a_job_can_be_read_from_its_item() {
    fuzz(job(), |job| {
        let (item, parts) = row::row(&job, row_key(&job), &["k".into()], 7).unwrap();
        let read = row::job(&item).unwrap();
        prop_assert_eq!((&read.id, &read.spec, &read.life), (&job.id, &job.spec, &job.life));
        if parts.is_empty() {
            prop_assert_eq!(read.data, job.data);
        } else {
            let keys = row::BodyAt::read(&item).unwrap().keys(&job.id);
            prop_assert!(keys.iter().eq(parts.iter().map(|part| &part.key)));
            let parts: Vec<Option<Item>> = parts.into_iter().map(Some).collect();
            prop_assert_eq!(row::body(&job.id, &parts).unwrap(), job.data.inline().cloned());
        }
        Ok(())
    });
}

/// An item with faults: changed bytes, missing attributes, or attributes of another type.
fn damaged(item: impl Strategy<Value = Item>) -> impl Strategy<Value = Item> {
    let fault = (any::<prop::sample::Index>(), 0..4u8, any::<u64>(), soup(KEY_PIECES, 3));
    (item, prop::collection::vec(fault, 1..4)).prop_flat_map(|(item, faults)| {
        let bytes = item.attrs.iter().filter_map(|(name, value)| match value {
            Val::B(bytes) => Some((*name, bytes.to_vec())),
            _ => None,
        });
        let bytes: Vec<_> = bytes.map(|(name, bytes)| (Just(name), mutated(Just(bytes)))).collect();
        (Just(item), Just(faults), bytes).prop_map(|(mut item, faults, bytes)| {
            item.attrs.extend(bytes.into_iter().map(|(name, bytes)| (name, Val::B(bytes.into()))));
            for (at, kind, number, text) in faults {
                let Some(name) = item.attrs.keys().nth(at.index(item.attrs.len().max(1))).copied()
                else {
                    break;
                };
                match kind {
                    0 => drop(item.attrs.remove(&name)),
                    1 => drop(item.attrs.insert(name, Val::N(number % 7))),
                    2 => drop(item.attrs.insert(name, Val::S(text))),
                    _ => {}
                }
            }
            item
        })
    })
}

#[test]
fn a_damaged_job_is_an_error_or_can_be_written_back() {
    let item = job().prop_map(|job| row::row(&job, row_key(&job), &[], 7).unwrap().0);
    fuzz(damaged(item), |item| {
        if let Some(at) = row::BodyAt::read(&item) {
            let id = "a".parse().unwrap();
            prop_assert!(
                at.keys(&id).len() <= 1000,
                "an item names more keys than a body may have parts"
            );
        }
        let _ = row::is_over(&item, Timestamp::EPOCH);
        let Ok(job) = row::job(&item) else { return Ok(()) };
        prop_assert!(row::shown(&item, Timestamp::EPOCH).is_ok());
        prop_assert!(row::row(&job, item.key, &[], 7).is_ok());
        Ok(())
    });
}

#[test]
fn a_body_without_parts_or_with_too_many_is_not_read() {
    for (text, good) in [
        ("00#1", true),
        ("00#1000", true),
        ("00#0", false),
        ("00#1001", false),
        ("00#4294967295", false),
        ("00", false),
    ] {
        let item = Item::new(Key::new("B#", "x"), [('b', Val::S(text.into()))]);
        assert_eq!(row::BodyAt::read(&item).is_some(), good, "{text}");
    }
}

#[test]
fn a_registered_hour_has_exactly_its_digits() {
    for (text, good) in
        [("000000", true), ("zzzzzz", true), ("", false), ("00000", false), ("0000000", false)]
    {
        assert_eq!(Hour::parse(text).is_some(), good, "{text}");
    }
}

fn batch() -> impl Strategy<Value = GrantBatch> {
    let grant = (job(), any::<u64>(), any::<i32>(), any::<bool>(), instant());
    (any::<u64>(), any::<u64>(), prop::collection::vec(grant, 0..20)).prop_map(
        |(id, ledger_version, grants)| GrantBatch {
            id: BatchId(id),
            ledger_version,
            grants: grants
                .into_iter()
                .map(|(job, version, priority, critical, granted_at)| Grant {
                    waits_until: None,
                    job: job.id,
                    version: Version(version),
                    job_type: job.spec.job_type.clone(),
                    priority: priority % 3,
                    weight: 1,
                    critical,
                    attributes: job.spec.attributes.clone(),
                    granted_at,
                    unknown: UnknownFields::default(),
                })
                .collect(),
            state: (id % 2 == 0).then(|| Arc::new(BTreeMap::from([("k".into(), "v".into())]))),
            unknown: UnknownFields::default(),
        },
    )
}

fn batch_item(batch: &GrantBatch) -> Item {
    encode_batch(key::batch(&builders::name("q"), batch.id), batch).unwrap()
}

#[test]
fn a_batch_can_be_read_from_its_item() {
    fuzz(batch(), |batch| {
        prop_assert_eq!(decode_batch(&batch_item(&batch)).unwrap(), batch);
        Ok(())
    });
}

#[test]
fn a_damaged_batch_is_an_error_or_can_be_written_back() {
    fuzz(damaged(batch().prop_map(|batch| batch_item(&batch))), |item| {
        let Ok(batch) = decode_batch(&item) else { return Ok(()) };
        prop_assert_eq!(decode_batch(&batch_item(&batch)).unwrap(), batch);
        Ok(())
    });
}
