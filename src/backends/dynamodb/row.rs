//! A job as an item, and the other records as items.
//!
//! | attribute | of | holds |
//! |---|---|---|
//! | `r` | job | its revision: what writes compare |
//! | `j`, `l` | job | what it is, its life |
//! | `k`, `n`, `d` | job | the kind of its data, its length, the data (or the key of its object) if it is small |
//! | `b` | job | where its body lies: a digest and the number of its parts |
//! | `i` | job | its id, where its key does not tell |
//! | `q` | job | the client's keys that lead to it |
//! | `m` | job, head, key | the mark of the write that was here last |
//! | `x` | any | when the table may forget it |
//! | `v`, `h` | head, item | version, and the record (a body's part: 1) |
//! | `g` | batch | the grants |
//! | `f` | open bucket | everything before it is settled |
//! | `j`, `f` | key | the job it leads to, since when |
//! | `f`, `h` | record | when it is dropped, its content; a large one has `l` and `v` instead: the digest and number of its parts |

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    key::{self, Key},
    table::{EXPIRES, Item, Name, Val},
};
use crate::blob::{decode, encode, encode_spec};
use tidegate_core::{
    job::{
        Attributes, Body, Encoding, Job, JobId, Lifecycle, Payload, Spec, State, TypeName, Version,
    },
    port::{StoreError, job_store::INLINE_BYTES},
    queue::{Grant, GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};

pub(super) const REVISION: Name = 'r';
pub(super) const VERSION: Name = 'v';
pub(super) const RECORD: Name = 'h';
pub(super) const TARGET: Name = 'j';
pub(super) const PLACE: Name = 'k';
pub(super) const KEYS: Name = 'q';
pub(super) const LOW_WATERMARK: Name = 'f';
pub(super) const SINCE: Name = 'f';
pub(super) const LIST: Name = 'l';
pub(super) const PART: Name = 'd';
pub(super) const MARK: Name = 'm';
const ID: Name = 'i';
const SPEC: Name = 'j';
const LIFE: Name = 'l';
const KIND: Name = 'k';
const LENGTH: Name = 'n';
const DATA: Name = 'd';
const BODY: Name = 'b';
const GRANTS: Name = 'g';

/// The kind of data that lies in parts of its own.
const BESIDE: u64 = 2;
/// The most bytes of one part of a body: an item may have 400 KB.
pub(super) const PART_BYTES: usize = 380 * 1024;

/// The most parts of a body: their keys have three digits.
const MAX_PARTS: usize = 1000;

/// Where a body lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BodyAt {
    digest: String,
    parts: usize,
}

impl BodyAt {
    fn of(payload: &Payload) -> Self {
        let mut hash = Sha256::new();
        hash.update([number_of(payload.encoding) as u8]);
        hash.update(&payload.bytes);
        let digest = short(hash);
        Self { digest, parts: payload.bytes.len().div_ceil(PART_BYTES).max(1) }
    }

    fn text(&self) -> String {
        format!("{}#{}", self.digest, self.parts)
    }

    pub(super) fn read(item: &Item) -> Option<Self> {
        let (digest, parts) = item.text(BODY)?.split_once('#')?;
        let parts = parts.parse().ok().filter(|parts| (1..=MAX_PARTS).contains(parts))?;
        Some(Self { digest: digest.to_owned(), parts })
    }

    /// The keys of its parts, in order.
    pub(super) fn keys(&self, id: &JobId) -> Vec<Key> {
        (0..self.parts).map(|part| key::body(id, &self.digest, part)).collect()
    }
}

/// A name for these bytes.
pub(super) fn digest(bytes: &[u8]) -> String {
    short(Sha256::new_with_prefix(bytes))
}

fn short(hash: Sha256) -> String {
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    format!("{:016x}", u64::from_be_bytes(first))
}

/// A job's data as attributes, and the items that a large body is.
pub(super) struct DataAt {
    pub set: Vec<(Name, Val)>,
    pub remove: Vec<Name>,
    pub parts: Vec<Item>,
}

impl DataAt {
    pub(super) fn of(id: &JobId, data: &Body) -> Self {
        let length = (LENGTH, Val::N(data.len() as u64));
        let small = |kind: u64, bytes: Bytes| Self {
            set: vec![(KIND, Val::N(kind)), length.clone(), (DATA, Val::B(bytes))],
            remove: vec![BODY],
            parts: Vec::new(),
        };
        match data {
            Body::Inline(payload) if payload.bytes.len() > INLINE_BYTES => {
                let at = BodyAt::of(payload);
                let parts = at.keys(id).into_iter().enumerate().map(|(part, key)| {
                    let end = payload.bytes.len().min((part + 1) * PART_BYTES);
                    Item::new(
                        key,
                        [
                            (PART, Val::B(payload.bytes.slice(part * PART_BYTES..end))),
                            (KIND, Val::N(number_of(payload.encoding))),
                            (VERSION, Val::N(1)),
                        ],
                    )
                });
                let parts = parts.collect();
                Self {
                    set: vec![(KIND, Val::N(BESIDE)), length, (BODY, Val::S(at.text()))],
                    remove: vec![DATA],
                    parts,
                }
            }
            Body::Inline(payload) => small(number_of(payload.encoding), payload.bytes.clone()),
            // It stays where it is.
            Body::Beside(_) => Self { set: Vec::new(), remove: Vec::new(), parts: Vec::new() },
            Body::Object { encoding, key, .. } => {
                small(3 + number_of(*encoding), key.clone().into())
            }
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

/// The payload that `parts` make up; none if one is missing.
pub(super) fn body(parts: &[Option<Item>]) -> Option<Payload> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(part.as_ref()?.bytes(PART)?);
    }
    Some(Payload {
        encoding: encoding_of(parts.first()?.as_ref()?.number(KIND)?),
        bytes: bytes.into(),
    })
}

/// The attributes of a job's life, and when the table may forget it.
pub(super) fn life(job: &Job) -> Result<Vec<(Name, Val)>, StoreError> {
    let mut set =
        vec![(REVISION, Val::N(job.life.revision.0)), (LIFE, Val::B(encode(&job.life)?.into()))];
    if let State::Ended { at, .. } = job.life.state {
        let until = (at + job.spec.retention.duration()).millis().max(0) as u64;
        set.push((EXPIRES, Val::N(until.div_ceil(1000))));
    }
    Ok(set)
}

/// The attributes of what a job is.
pub(super) fn spec(job: &Job) -> Result<(Name, Val), StoreError> {
    Ok((SPEC, Val::B(encode_spec(&job.spec)?.into())))
}

/// The item of a new job that lies at `key`; its body's parts apart.
pub(super) fn row(job: &Job, key: Key, keys: &[String]) -> Result<(Item, Vec<Item>), StoreError> {
    let data = DataAt::of(&job.id, &job.data);
    let mut item = Item::new(key, life(job)?);
    item.attrs.extend([spec(job)?]);
    item.attrs.extend(data.set);
    if key::placed_id(&item.key).as_ref() != Some(&job.id) {
        item.attrs.insert(ID, Val::S(job.id.to_string()));
    }
    if !keys.is_empty() {
        item.attrs.insert(KEYS, Val::S(keys.join("\n")));
    }
    Ok((item, data.parts))
}

/// Whether `item` is what the table should have forgotten by `now`.
pub(super) fn is_over(item: &Item, now: Timestamp) -> bool {
    item.number(EXPIRES)
        .is_some_and(|seconds| (seconds as i64).saturating_mul(1000) <= now.millis())
}

/// The job that `item` is, as it is shown at `now`: without a result that is not kept any longer.
pub(super) fn shown(item: &Item, now: Timestamp) -> Result<Job, StoreError> {
    let mut job = job(item)?;
    if job.life.result_until(&job.spec).is_some_and(|until| until <= now) {
        job.life.result = None;
    }
    Ok(job)
}

/// The job that `item` is.
pub(super) fn job(item: &Item) -> Result<Job, StoreError> {
    let corrupt =
        |what: &str| StoreError::corrupt(format!("item {} {} {what}", item.key.p, item.key.s));
    let id = match item.text(ID) {
        Some(id) => id.parse().ok(),
        None => key::placed_id(&item.key),
    };
    let id: JobId = id.ok_or_else(|| corrupt("has no id of a job"))?;
    let blob = |name| item.bytes(name).ok_or_else(|| corrupt("is not whole"));
    let spec: Spec = decode(blob(SPEC)?, || format!("what job {id} is"))?;
    let life: Lifecycle = decode(blob(LIFE)?, || format!("the life of job {id}"))?;
    let length = item.number(LENGTH).unwrap_or_default() as u32;
    let data = match item.number(KIND) {
        Some(kind @ (0 | 1)) => {
            Body::Inline(Payload { encoding: encoding_of(kind), bytes: blob(DATA)?.clone() })
        }
        Some(BESIDE) => Body::Beside(length),
        Some(kind @ (3 | 4)) => {
            let key = String::from_utf8_lossy(blob(DATA)?).into_owned();
            Body::Object { encoding: encoding_of(kind - 3), key, len: length }
        }
        _ => return Err(corrupt("has data of an unknown kind")),
    };
    Ok(Job { id, spec: Arc::new(spec), data, life })
}

/// The item of a head.
pub(super) fn head_item(key: Key, head: &Ledger) -> Result<Item, StoreError> {
    Ok(Item::new(key, [(VERSION, Val::N(head.version)), (RECORD, Val::B(encode(head)?.into()))]))
}

/// The head that `item` is.
pub(super) fn head(item: &Item) -> Result<Ledger, StoreError> {
    let record = item
        .bytes(RECORD)
        .ok_or_else(|| StoreError::corrupt(format!("{} is no head", item.key.p)))?;
    decode(record, || format!("the head {}", item.key.p))
}

/// A grant batch, with what its grants have in common written once, and ids without what their places repeat.
#[derive(Serialize, Deserialize)]
struct Packed {
    kinds: Vec<Kind>,
    ends: Vec<String>,
    grants: Vec<(Name16, u32, u64)>,
    state: Option<BTreeMap<String, String>>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Kind {
    job_type: TypeName,
    priority: i32,
    weight: u32,
    critical: bool,
    attributes: Attributes,
    granted_at: Timestamp,
}

/// An id: in full, or a ULID as its number, which of the `ends` follows it, and the rest.
#[derive(Serialize, Deserialize)]
enum Name16 {
    Full(String),
    Placed(#[serde(with = "bytes16")] u128, u32, String),
}

mod bytes16 {
    use serde::{Deserialize, Deserializer, Serializer};
    pub(super) fn serialize<S: Serializer>(
        number: &u128,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&number.to_be_bytes())
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u128, D::Error> {
        let bytes = bytes::Bytes::deserialize(deserializer)?;
        let bytes: [u8; 16] = bytes[..].try_into().map_err(serde::de::Error::custom)?;
        Ok(u128::from_be_bytes(bytes))
    }
}

/// The first characters of a place, which many jobs share: its index partition, and the higher digits of its instant.
const SHARED: usize = 17;

fn pack_id(id: &JobId, ends: &mut Vec<String>) -> Name16 {
    let text = id.as_str();
    let mut placed = || {
        let (tie, _) = key::parts(id).1.map(|place| (key::parts(id).0, place))?;
        let ulid = ulid::Ulid::from_string(tie).ok()?;
        let (shared, rest) = text.get(tie.len()..)?.split_at_checked(SHARED)?;
        let end = ends.iter().position(|end| end == shared).unwrap_or_else(|| {
            ends.push(shared.to_owned());
            ends.len() - 1
        });
        let back = format!("{}{shared}{rest}", ulid.to_string().to_ascii_lowercase());
        (back == text).then_some(Name16::Placed(ulid.0, end as u32, rest.to_owned()))
    };
    placed().unwrap_or_else(|| Name16::Full(text.to_owned()))
}

fn unpack_id(name: Name16, ends: &[String]) -> Option<JobId> {
    match name {
        Name16::Full(text) => text.parse().ok(),
        Name16::Placed(ulid, end, rest) => {
            let ulid = ulid::Ulid(ulid).to_string().to_ascii_lowercase();
            format!("{ulid}{}{rest}", ends.get(end as usize)?).parse().ok()
        }
    }
}

/// The item of a grant batch.
pub(super) fn batch_item(key: Key, batch: &GrantBatch) -> Result<Item, StoreError> {
    let (mut kinds, mut ends): (Vec<Kind>, Vec<String>) = Default::default();
    let mut grants = Vec::with_capacity(batch.grants.len());
    for grant in &batch.grants {
        let kind = Kind {
            job_type: grant.job_type.clone(),
            priority: grant.priority,
            weight: grant.weight,
            critical: grant.critical,
            attributes: grant.attributes.clone(),
            granted_at: grant.granted_at,
        };
        let place = kinds.iter().rposition(|known| *known == kind).unwrap_or_else(|| {
            kinds.push(kind);
            kinds.len() - 1
        });
        grants.push((pack_id(&grant.job, &mut ends), place as u32, grant.version.0));
    }
    let packed = Packed { kinds, ends, grants, state: batch.state.clone() };
    Ok(Item::new(
        key,
        [(VERSION, Val::N(batch.for_head)), (GRANTS, Val::B(encode(&packed)?.into()))],
    ))
}

/// The grant batch that `item` is.
pub(super) fn batch(item: &Item) -> Result<GrantBatch, StoreError> {
    let corrupt =
        || StoreError::corrupt(format!("{} {} is no grant batch", item.key.p, item.key.s));
    let packed: Packed = decode(item.bytes(GRANTS).ok_or_else(corrupt)?, || {
        format!("batch {} {}", item.key.p, item.key.s)
    })?;
    let id: BatchId = key::batch_of(&item.key.s).ok_or_else(corrupt)?;
    let mut grants = Vec::with_capacity(packed.grants.len());
    for (name, kind, version) in packed.grants {
        let kind = packed.kinds.get(kind as usize).ok_or_else(corrupt)?.clone();
        let job = unpack_id(name, &packed.ends).ok_or_else(corrupt)?;
        let Kind { job_type, priority, weight, critical, attributes, granted_at } = kind;
        grants.push(Grant {
            job,
            version: Version(version),
            job_type,
            priority,
            weight,
            critical,
            attributes,
            granted_at,
        });
    }
    Ok(GrantBatch {
        id,
        for_head: item.number(VERSION).ok_or_else(corrupt)?,
        grants,
        state: packed.state,
    })
}
