//! Jobs and other records as items. [`super::batch`] has the grant batches.
//!
//! | attribute | of | holds |
//! |---|---|---|
//! | `r` | job | its revision, which writes compare |
//! | `j`, `l` | job | its spec, its lifecycle |
//! | `k`, `n` | job | the kind and the length of its data |
//! | `d` | job | small data, or the key of its object; with a checksum |
//! | `d` | part of a body | its bytes, with a checksum |
//! | `b` | job | the mark of the write that stored its body, and the number of the parts |
//! | `i` | job | its id, if the key does not contain it |
//! | `q` | job | the idempotency keys that lead to it |
//! | `m` | job, ledger, key | the mark of the last write |
//! | `x` | any | when the table may expire it |
//! | `e` | job | from when on readers hide it, if that is before `x` |
//! | `v`, `h` | ledger, item | version (1 in a body's part), and the record |
//! | `g` | batch | the grants |
//! | `f` | open bucket | its low watermark: everything before it is settled |
//! | `j`, `f` | key | the job that it leads to, and since when |
//! | `f`, `h` | record | when it is dropped, its content with a checksum |
//! | `f`, `l`, `v` | large record | when it is dropped, the digest and the number of its parts |

use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    key::{self, Key},
    retention,
    table::{Change, EXPIRES, Item, Name, Val},
};
use crate::{
    blob::{CHECKSUM_BYTES, checked, decode, encode, with_checksum},
    unreadable::unreadable,
};
use tidegate_core::{
    job::{Body, Encoding, Job, JobId, Lifecycle, Payload, Spec},
    port::{
        StoreError,
        job_store::{self, ItemKind, UnreadableJob, is_stored_separately},
    },
    queue::Ledger,
    time::Timestamp,
};

pub(super) const REVISION: Name = 'r';
pub(super) const VERSION: Name = 'v';
pub(super) const RECORD: Name = 'h';
pub(super) const TARGET: Name = 'j';
pub(super) const LOCATION: Name = 'k';
pub(super) const KEYS: Name = 'q';
pub(super) const LOW_WATERMARK: Name = 'f';
pub(super) const SINCE: Name = 'f';
pub(super) const LIST: Name = 'l';
pub(super) const PART: Name = 'd';
pub(super) const MARK: Name = 'm';
pub(super) const HIDDEN_FROM: Name = 'e';
const ID: Name = 'i';
const SPEC: Name = 'j';
const LIFE: Name = 'l';
const KIND: Name = 'k';
const LENGTH: Name = 'n';
const DATA: Name = 'd';
const BODY: Name = 'b';

/// The kind of data that is stored in separate parts.
const SEPARATE: u64 = 2;
/// Maximum bytes of one part of a body. An item may have 400 KB.
pub(super) const PART_BYTES: usize = 380 * 1024;

/// Maximum parts of a body, whose keys have three digits.
const MAX_PARTS: usize = 1000;

/// The parts of a stored body. Each write stores parts of its own, so a refused write deletes its
/// parts, and the end of a job deletes those of that job, without a harm to any other job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BodyAt {
    mark: String,
    parts: usize,
}

impl BodyAt {
    /// The parts of the body of `job`, if the write with this `mark` stores them separately.
    pub(super) fn of(job: &Job, mark: u64) -> Option<Self> {
        let payload = job.data.inline().filter(|_| is_stored_separately(&job.data))?;
        let parts = payload.bytes.len().div_ceil(PART_BYTES);
        Some(Self { mark: format!("{mark:016x}"), parts })
    }

    fn text(&self) -> String {
        format!("{}#{}", self.mark, self.parts)
    }

    pub(super) fn read(item: &Item) -> Option<Self> {
        let (mark, parts) = item.text(BODY)?.split_once('#')?;
        let parts = parts.parse().ok().filter(|parts| (1..=MAX_PARTS).contains(parts))?;
        Some(Self { mark: mark.to_owned(), parts })
    }

    /// The keys of the parts, in order.
    pub(super) fn keys(&self, id: &JobId) -> Vec<Key> {
        (0..self.parts).map(|part| key::body(id, &self.mark, part)).collect()
    }

    /// The deletions of the parts.
    pub(super) fn deletions(&self, id: &JobId) -> Vec<Change> {
        self.keys(id).into_iter().map(|key| Change::Delete { key, when: None }).collect()
    }
}

/// A short digest of these bytes.
pub(super) fn digest(bytes: &[u8]) -> String {
    let mut first = [0; 8];
    first.copy_from_slice(&Sha256::digest(bytes)[..8]);
    format!("{:016x}", u64::from_be_bytes(first))
}

/// A job's data as attributes of its row, and as separate parts if it is large.
pub(super) struct DataAt {
    pub set: Vec<(Name, Val)>,
    pub remove: Vec<Name>,
    pub parts: Vec<Item>,
}

impl DataAt {
    /// The data of `job` as the write with this `mark` stores it.
    pub(super) fn of(job: &Job, mark: u64) -> Self {
        let (id, data) = (&job.id, &job.data);
        let length = (LENGTH, Val::N(data.len() as u64));
        let small = |kind: u64, bytes: &[u8]| Self {
            set: vec![
                (KIND, Val::N(kind)),
                length.clone(),
                (DATA, Val::B(with_checksum(bytes, id.as_str(), kind as u8).into())),
            ],
            remove: vec![BODY],
            parts: Vec::new(),
        };
        match data {
            Body::Inline(payload) if is_stored_separately(data) => {
                let at = BodyAt::of(job, mark).expect("it is stored separately");
                let parts = at.keys(id).into_iter().enumerate().map(|(part, key)| {
                    let end = payload.bytes.len().min((part + 1) * PART_BYTES);
                    let bytes = &payload.bytes[part * PART_BYTES..end];
                    let kind = number_of(payload.encoding) as u8;
                    let stored = with_checksum(bytes, &part_owner(id, part), kind);
                    Item::new(
                        key,
                        [
                            (PART, Val::B(stored.into())),
                            (KIND, Val::N(number_of(payload.encoding))),
                            (VERSION, Val::N(1)),
                        ],
                    )
                });
                let parts = parts.collect();
                Self {
                    set: vec![(KIND, Val::N(SEPARATE)), length, (BODY, Val::S(at.text()))],
                    remove: vec![DATA],
                    parts,
                }
            }
            Body::Inline(payload) => small(number_of(payload.encoding), &payload.bytes),
            // The body was stored before and is unchanged.
            Body::Separate(_) => Self { set: Vec::new(), remove: Vec::new(), parts: Vec::new() },
            Body::Object { encoding, key, .. } => small(3 + number_of(*encoding), key.as_bytes()),
        }
    }
}

fn number_of(encoding: Encoding) -> u64 {
    match encoding {
        Encoding::Json => 0,
        Encoding::MessagePack => 1,
    }
}

fn encoding_of(number: u64) -> Encoding {
    if number == 1 { Encoding::MessagePack } else { Encoding::Json }
}

/// The owner of a part of a job's body in its checksum.
fn part_owner(id: &JobId, part: usize) -> String {
    format!("{id} {part}")
}

/// The payload of job `id` in these parts; none if one is missing.
///
/// # Errors
///
/// A part is damaged.
pub(super) fn body(id: &JobId, parts: &[Option<Item>]) -> Result<Option<Payload>, StoreError> {
    let (mut bytes, mut encoding) = (Vec::new(), None);
    for (number, part) in parts.iter().enumerate() {
        let stored = part.as_ref().and_then(|part| Some((part.bytes(PART)?, part.number(KIND)?)));
        let Some((stored, kind)) = stored else { return Ok(None) };
        let what = || format!("part {number} of the body of job {id}");
        bytes.extend_from_slice(checked(stored, &part_owner(id, number), kind as u8, what)?);
        encoding = Some(encoding_of(kind));
    }
    Ok(encoding.map(|encoding| Payload { encoding, bytes: bytes.into() }))
}

/// The owner of an item of the configuration in its checksum.
fn item_owner(kind: ItemKind, name: &str, version: u64) -> String {
    format!("{} {name} {version}", kind.as_str())
}

/// The bytes of an item of the configuration, with their checksum.
pub(super) fn item_bytes(kind: ItemKind, name: &str, version: u64, bytes: &[u8]) -> Val {
    Val::B(with_checksum(bytes, &item_owner(kind, name, version), 0).into())
}

/// The item of the configuration that [`item_bytes`] encoded.
pub(super) fn item(name: String, kind: ItemKind, version: u64, stored: &[u8]) -> job_store::Item {
    let what = || format!("the {} {name}", kind.as_str());
    let bytes = checked(stored, &item_owner(kind, &name, version), 0, what);
    let bytes = bytes.map(<[u8]>::to_vec).map_err(|error| error.chain().to_string());
    job_store::Item { name, version, bytes }
}

/// The attributes of a job's lifecycle, and when the table may expire its row.
pub(super) fn life(job: &Job) -> Result<Vec<(Name, Val)>, StoreError> {
    let mut set = vec![
        (REVISION, Val::N(job.life.revision.0)),
        (LIFE, Val::B(encode(&job.life, job.id.as_str())?.into())),
    ];
    if let Some(until) = job.life.kept_until(&job.spec) {
        let until = (until.millis().max(0) as u64).div_ceil(1000);
        if retention::leaves_something(job) {
            set.extend(hidden(until));
        } else {
            set.push((EXPIRES, Val::N(until)));
        }
    }
    Ok(set)
}

/// The attributes of a row that readers hide from `until` on, in seconds. It stays long enough for
/// a sweep to find what the job leaves behind.
pub(super) fn hidden(until: u64) -> [(Name, Val); 2] {
    let expires = until + retention::ROW_GRACE.as_secs();
    [(HIDDEN_FROM, Val::N(until)), (EXPIRES, Val::N(expires))]
}

/// The attribute of a job's spec.
pub(super) fn spec(job: &Job) -> Result<(Name, Val), StoreError> {
    Ok((SPEC, Val::B(encode(&*job.spec, job.id.as_str())?.into())))
}

/// The row of a new job at `key`, and the separate parts of its body, both by the write with this
/// `mark`.
pub(super) fn row(
    job: &Job,
    key: Key,
    keys: &[String],
    mark: u64,
) -> Result<(Item, Vec<Item>), StoreError> {
    let data = DataAt::of(job, mark);
    let mut item = Item::new(key, life(job)?);
    item.attrs.extend([spec(job)?]);
    item.attrs.extend(data.set);
    if key::located_id(&item.key).as_ref() != Some(&job.id) {
        item.attrs.insert(ID, Val::S(job.id.to_string()));
    }
    if !keys.is_empty() {
        item.attrs.insert(KEYS, Val::S(keys.join("\n")));
    }
    Ok((item, data.parts))
}

/// From when on `item` is hidden, in seconds.
pub(super) fn hidden_from(item: &Item) -> Option<u64> {
    item.number(HIDDEN_FROM).or_else(|| item.number(EXPIRES))
}

/// Whether `item` has expired by `now`, even if it is still in the table.
pub(super) fn is_over(item: &Item, now: Timestamp) -> bool {
    hidden_from(item).is_some_and(|seconds| (seconds as i64).saturating_mul(1000) <= now.millis())
}

/// Whether the last change of the ended job of `item` has written a timer, if it needs one.
pub(super) fn has_timer(item: &Item) -> bool {
    item.attrs.contains_key(&HIDDEN_FROM)
}

/// Whether `job`, whose row is `item`, was removed. Its row, which is hidden, has another revision
/// than the job.
pub(super) fn is_removed(item: &Item, job: &Job) -> bool {
    item.number(REVISION) != Some(job.life.revision.0)
}

/// The job of `item` as callers see it at `now`: without an expired result.
pub(super) fn shown(item: &Item, now: Timestamp) -> Result<Job, StoreError> {
    let mut job = job(item)?;
    if job.life.result_until(&job.spec).is_some_and(|until| until <= now) {
        job.life.result = None;
    }
    Ok(job)
}

/// Like [`shown`], or that the job cannot be read.
pub(super) fn stored(item: &Item, now: Timestamp) -> Result<Job, UnreadableJob> {
    shown(item, now).map_err(|error| unreadable_row(item, &error))
}

/// The job of `item`, which cannot be read because of `error`.
pub(super) fn unreadable_row(item: &Item, error: &StoreError) -> UnreadableJob {
    let located = || key::located_id(&item.key).map(|id| id.to_string());
    let id = item.text(ID).map(str::to_owned).or_else(located);
    unreadable(id.unwrap_or_else(|| format!("{} {}", item.key.p, item.key.s)), error)
}

/// The job that the item of `key` points at.
pub(super) fn holder(item: &Item, key: &job_store::Key) -> Result<JobId, UnreadableJob> {
    let id = item.text(TARGET).unwrap_or_default();
    id.parse().map_err(|_| unreadable(id, &StoreError::corrupt(format!("{key:?} is damaged"))))
}

/// Like [`stored`], but none for a job that cannot be read, for pages that leave it out.
pub(super) fn readable(item: &Item, now: Timestamp) -> Option<Job> {
    stored(item, now).ok()
}

/// Flips a bit of a job's lifecycle.
#[cfg(any(test, feature = "testkit"))]
pub(super) fn flip(item: &mut Item) {
    if let Some(Val::B(bytes)) = item.attrs.get_mut(&LIFE) {
        *bytes = bytes.iter().map(|byte| byte ^ 1).collect();
    }
}

/// The job of `item`.
pub(super) fn job(item: &Item) -> Result<Job, StoreError> {
    let corrupt =
        |what: &str| StoreError::corrupt(format!("item {} {} {what}", item.key.p, item.key.s));
    let id = match item.text(ID) {
        Some(id) => id.parse().ok(),
        None => key::located_id(&item.key),
    };
    let id: JobId = id.ok_or_else(|| corrupt("has no job id"))?;
    let blob = |name| item.bytes(name).ok_or_else(|| corrupt("lacks an attribute"));
    let spec: Spec = decode(blob(SPEC)?, id.as_str(), || format!("the spec of job {id}"))?;
    let life: Lifecycle =
        decode(blob(LIFE)?, id.as_str(), || format!("the lifecycle of job {id}"))?;
    let length = item.number(LENGTH).unwrap_or_default() as u32;
    let stored = |kind: u64| -> Result<Bytes, StoreError> {
        let stored = blob(DATA)?;
        checked(stored, id.as_str(), kind as u8, || format!("the data of job {id}"))?;
        Ok(stored.slice(CHECKSUM_BYTES..))
    };
    let data = match item.number(KIND) {
        Some(kind @ (0 | 1)) => {
            Body::Inline(Payload { encoding: encoding_of(kind), bytes: stored(kind)? })
        }
        Some(SEPARATE) => Body::Separate(length),
        Some(kind @ (3 | 4)) => {
            let key = String::from_utf8_lossy(&stored(kind)?).into_owned();
            Body::Object { encoding: encoding_of(kind - 3), key, len: length }
        }
        _ => return Err(corrupt("has an unknown kind of data")),
    };
    if data.len() != length as usize {
        return Err(corrupt("has data of another length"));
    }
    Ok(Job { id, spec: Arc::new(spec), data, life })
}

/// The item of a ledger.
pub(super) fn encode_ledger(key: Key, ledger: &Ledger) -> Result<Item, StoreError> {
    let record = encode(ledger, &key.p)?;
    Ok(Item::new(key, [(VERSION, Val::N(ledger.version)), (RECORD, Val::B(record.into()))]))
}

/// The ledger of `item`.
pub(super) fn decode_ledger(item: &Item) -> Result<Ledger, StoreError> {
    let record = item
        .bytes(RECORD)
        .ok_or_else(|| StoreError::corrupt(format!("{} is not a ledger", item.key.p)))?;
    decode(record, &item.key.p, || format!("the ledger {}", item.key.p))
}
