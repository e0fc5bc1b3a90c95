//! A grant batch as an item.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    key::{self, Key},
    row,
    table::{Item, Name, Val},
};
use crate::blob::{decode, encode};
use tidegate_core::{
    job::{Attributes, JobId, TypeName, Version},
    port::{StoreError, policy::StatePage},
    queue::{Grant, GrantBatch, ledger::BatchId},
    record,
    stored::UnknownFields,
    time::Timestamp,
};

/// The attribute with the grants.
const GRANTS: Name = 'g';

/// A stored grant batch. Values that several grants share are written once, and so are the common
/// beginnings of the locations in ids.
struct PackedBatch {
    kinds: Vec<GrantKind>,
    ends: Vec<String>,
    grants: Vec<(PackedId, u32, u64)>,
    state: Option<Arc<StatePage>>,
    unknown: UnknownFields,
}

record!(PackedBatch { kinds, ends, grants, state });

#[derive(Clone, PartialEq)]
struct GrantKind {
    job_type: TypeName,
    priority: i32,
    weight: u32,
    critical: bool,
    attributes: Attributes,
    granted_at: Timestamp,
    waits_until: Option<Timestamp>,
    unknown: UnknownFields,
}

record!(GrantKind {
    job_type, priority, weight, critical, attributes, granted_at; waits_until
});

/// An id: in full, or a ULID as a number, the index of the location's beginning in `ends`, and the
/// rest.
#[derive(Serialize, Deserialize)]
enum PackedId {
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

/// The length of the beginning of a location that many jobs share: its index partition, and the
/// higher digits of its instant.
const SHARED_LENGTH: usize = 17;

fn pack_id(id: &JobId, ends: &mut Vec<String>) -> PackedId {
    let text = id.as_str();
    let mut placed = || {
        let (tie, location) = key::parts(id);
        location?;
        let ulid = ulid::Ulid::from_string(tie).ok()?;
        let (shared, rest) = text.get(tie.len()..)?.split_at_checked(SHARED_LENGTH)?;
        let end = ends.iter().position(|end| end == shared).unwrap_or_else(|| {
            ends.push(shared.to_owned());
            ends.len() - 1
        });
        let unpacked = format!("{}{shared}{rest}", ulid.to_string().to_ascii_lowercase());
        (unpacked == text).then_some(PackedId::Placed(ulid.0, end as u32, rest.to_owned()))
    };
    placed().unwrap_or_else(|| PackedId::Full(text.to_owned()))
}

fn unpack_id(name: PackedId, ends: &[String]) -> Option<JobId> {
    match name {
        PackedId::Full(text) => text.parse().ok(),
        PackedId::Placed(ulid, end, rest) => {
            let ulid = ulid::Ulid(ulid).to_string().to_ascii_lowercase();
            format!("{ulid}{}{rest}", ends.get(end as usize)?).parse().ok()
        }
    }
}

/// The item of a grant batch.
pub(super) fn encode_batch(key: Key, batch: &GrantBatch) -> Result<Item, StoreError> {
    let (mut kinds, mut ends): (Vec<GrantKind>, Vec<String>) = Default::default();
    let mut grants = Vec::with_capacity(batch.grants.len());
    for grant in &batch.grants {
        let kind = GrantKind {
            job_type: grant.job_type.clone(),
            priority: grant.priority,
            weight: grant.weight,
            critical: grant.critical,
            attributes: grant.attributes.clone(),
            granted_at: grant.granted_at,
            waits_until: grant.waits_until,
            unknown: grant.unknown.clone(),
        };
        let index = kinds.iter().rposition(|known| *known == kind).unwrap_or_else(|| {
            kinds.push(kind);
            kinds.len() - 1
        });
        grants.push((pack_id(&grant.job, &mut ends), index as u32, grant.version.0));
    }
    let (state, unknown) = (batch.state.clone(), batch.unknown.clone());
    let packed = PackedBatch { kinds, ends, grants, state, unknown };
    let grants = encode(&packed, &key.p)?;
    Ok(Item::new(
        key,
        [(row::VERSION, Val::N(batch.ledger_version)), (GRANTS, Val::B(grants.into()))],
    ))
}

/// The grant batch of `item`.
pub(super) fn decode_batch(item: &Item) -> Result<GrantBatch, StoreError> {
    let corrupt =
        || StoreError::corrupt(format!("{} {} is not a grant batch", item.key.p, item.key.s));
    let packed: PackedBatch = decode(item.bytes(GRANTS).ok_or_else(corrupt)?, &item.key.p, || {
        format!("batch {} {}", item.key.p, item.key.s)
    })?;
    let id: BatchId = key::batch_of(&item.key.s).ok_or_else(corrupt)?;
    let mut grants = Vec::with_capacity(packed.grants.len());
    for (name, kind, version) in packed.grants {
        let kind = packed.kinds.get(kind as usize).ok_or_else(corrupt)?.clone();
        let job = unpack_id(name, &packed.ends).ok_or_else(corrupt)?;
        let GrantKind {
            job_type,
            priority,
            weight,
            critical,
            attributes,
            granted_at,
            waits_until,
            unknown,
        } = kind;
        grants.push(Grant {
            job,
            version: Version(version),
            job_type,
            priority,
            weight,
            critical,
            attributes,
            granted_at,
            waits_until,
            unknown,
        });
    }
    Ok(GrantBatch {
        id,
        ledger_version: item.number(row::VERSION).ok_or_else(corrupt)?,
        grants,
        state: packed.state,
        unknown: packed.unknown,
    })
}
