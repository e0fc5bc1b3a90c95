//! Transactions of the port as commands of the log.
//!
//! A command has the conditional writes as the caller sent them, not their effect: it is evaluated
//! when it is applied. Names of writes and their order of fields never change; a later release adds
//! writes. One that this release does not know stops the node at its record.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use tidegate_core::{
    job::{Body, Encoding, Job, JobId, Lifecycle, Payload, QueueName, Revision, Spec, TypeName},
    port::{
        Txn, Write,
        job_store::{Expect, ItemKind, Key, Record, RecordKind},
    },
    queue::{GrantBatch, Ledger, ledger::BatchId},
    time::Timestamp,
};

/// Why a command cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("a transaction of the log is not known to this release: {0}")]
pub(super) struct BadCommand(String);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WireWrite {
    AddJob(WireJob),
    SetJob(WireJob, Revision, bool),
    RemoveJob(JobId, Revision),
    SetKey(WireKey, JobId, Option<JobId>),
    AddBatch(QueueName, GrantBatch),
    RemoveBatch(QueueName, BatchId),
    SetLedger(QueueName, Box<Ledger>, Option<u64>),
    RequireItem(String, String, u64),
    SetItem(String, String, u64, u64, Option<Bytes>),
    PutRecord(WireRecord),
    SwapRecord(WireRecord, Option<WireRecord>),
    RemoveRecord(String, String, Option<Timestamp>),
}

#[derive(Serialize, Deserialize)]
struct WireJob(JobId, Arc<Spec>, WireBody, Lifecycle);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WireBody {
    Inline(Encoding, Bytes),
    Separate(u32),
    Object(Encoding, String, u32),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WireKey {
    Correlation(TypeName, String),
    Unique(TypeName, String),
    Idempotency(String),
}

/// The kind, the name, the time and the bytes of a record.
#[derive(Serialize, Deserialize)]
struct WireRecord(String, String, Timestamp, Bytes);

/// `txn` as a command.
pub(super) fn encode(txn: Txn) -> Result<Bytes, BadCommand> {
    let writes = txn.into_iter().map(to_wire).collect::<Result<Vec<_>, _>>()?;
    let encoded = rmp_serde::to_vec(&writes).map_err(|error| BadCommand(error.to_string()))?;
    Ok(encoded.into())
}

/// The transaction of a command.
pub(super) fn decode(command: &[u8]) -> Result<Txn, BadCommand> {
    let writes: Vec<WireWrite> =
        rmp_serde::from_slice(command).map_err(|error| BadCommand(error.to_string()))?;
    writes.into_iter().map(from_wire).collect()
}

fn to_wire(write: Write) -> Result<WireWrite, BadCommand> {
    Ok(match write {
        Write::AddJob(job) => WireWrite::AddJob(job.into()),
        // A change of the lifecycle alone leaves the data as it is, so it is not repeated.
        Write::SetJob { job, was, all: false } => {
            WireWrite::SetJob(Job { data: Body::Separate(0), ..job }.into(), was, false)
        }
        Write::SetJob { job, was, all } => WireWrite::SetJob(job.into(), was, all),
        Write::RemoveJob { id, was } => WireWrite::RemoveJob(id, was),
        Write::SetKey { key, job, was } => WireWrite::SetKey(key.into(), job, option(was)),
        Write::AddBatch(queue, batch) => WireWrite::AddBatch(queue, batch),
        Write::RemoveBatch(queue, batch) => WireWrite::RemoveBatch(queue, batch),
        Write::SetLedger { queue, ledger, was } => {
            WireWrite::SetLedger(queue, Box::new(ledger), option(was))
        }
        Write::RequireItem { kind, name, version } => {
            WireWrite::RequireItem(kind.as_str().into(), (*name).to_owned(), version)
        }
        Write::SetItem { kind, name, was, version, bytes } => {
            WireWrite::SetItem(kind.as_str().into(), name, was, version, bytes.map(Bytes::from))
        }
        Write::PutRecord(record) => WireWrite::PutRecord(record.into()),
        Write::SwapRecord { record, was } => {
            WireWrite::SwapRecord(record.into(), option(was).map(WireRecord::from))
        }
        Write::RemoveRecord { kind, name, until } => {
            WireWrite::RemoveRecord(kind.as_str().into(), name, until)
        }
        Write::TakeRequest(_) => return Err(BadCommand("this store has no inbox".into())),
        Write::Together(_) => return Err(BadCommand("writes within a write".into())),
    })
}

fn from_wire(write: WireWrite) -> Result<Write, BadCommand> {
    Ok(match write {
        WireWrite::AddJob(job) => Write::AddJob(job.into()),
        WireWrite::SetJob(job, was, all) => Write::SetJob { job: job.into(), was, all },
        WireWrite::RemoveJob(id, was) => Write::RemoveJob { id, was },
        WireWrite::SetKey(key, job, was) => {
            Write::SetKey { key: key.into(), job, was: expect(was) }
        }
        WireWrite::AddBatch(queue, batch) => Write::AddBatch(queue, batch),
        WireWrite::RemoveBatch(queue, batch) => Write::RemoveBatch(queue, batch),
        WireWrite::SetLedger(queue, ledger, was) => {
            Write::SetLedger { queue, ledger: *ledger, was: expect(was) }
        }
        WireWrite::RequireItem(kind, name, version) => {
            Write::RequireItem { kind: item_kind(&kind)?, name: name.into(), version }
        }
        WireWrite::SetItem(kind, name, was, version, bytes) => Write::SetItem {
            kind: item_kind(&kind)?,
            name,
            was,
            version,
            bytes: bytes.map(Vec::from),
        },
        WireWrite::PutRecord(record) => Write::PutRecord(record.try_into()?),
        WireWrite::SwapRecord(record, was) => Write::SwapRecord {
            record: record.try_into()?,
            was: expect(was.map(Record::try_from).transpose()?),
        },
        WireWrite::RemoveRecord(kind, name, until) => {
            Write::RemoveRecord { kind: record_kind(&kind)?, name, until }
        }
    })
}

fn option<T>(expect: Expect<T>) -> Option<T> {
    match expect {
        Expect::Absent => None,
        Expect::Is(value) => Some(value),
    }
}

fn expect<T>(value: Option<T>) -> Expect<T> {
    value.map_or(Expect::Absent, Expect::Is)
}

fn item_kind(name: &str) -> Result<ItemKind, BadCommand> {
    let kind = ItemKind::ALL.into_iter().find(|kind| kind.as_str() == name);
    kind.ok_or_else(|| BadCommand(format!("items of kind {name:?}")))
}

fn record_kind(name: &str) -> Result<RecordKind, BadCommand> {
    let kind = RecordKind::ALL.into_iter().find(|kind| kind.as_str() == name);
    kind.ok_or_else(|| BadCommand(format!("records of kind {name:?}")))
}

impl From<Job> for WireJob {
    fn from(job: Job) -> Self {
        let body = match job.data {
            Body::Inline(Payload { encoding, bytes }) => WireBody::Inline(encoding, bytes),
            Body::Separate(len) => WireBody::Separate(len),
            Body::Object { encoding, key, len } => WireBody::Object(encoding, key, len),
        };
        Self(job.id, job.spec, body, job.life)
    }
}

impl From<WireJob> for Job {
    fn from(WireJob(id, spec, body, life): WireJob) -> Self {
        let data = match body {
            WireBody::Inline(encoding, bytes) => Body::Inline(Payload { encoding, bytes }),
            WireBody::Separate(len) => Body::Separate(len),
            WireBody::Object(encoding, key, len) => Body::Object { encoding, key, len },
        };
        Self { id, spec, data, life }
    }
}

impl From<Key> for WireKey {
    fn from(key: Key) -> Self {
        match key {
            Key::Correlation(job_type, key) => Self::Correlation(job_type, key),
            Key::Unique(job_type, key) => Self::Unique(job_type, key),
            Key::Idempotency(key) => Self::Idempotency(key),
        }
    }
}

impl From<WireKey> for Key {
    fn from(key: WireKey) -> Self {
        match key {
            WireKey::Correlation(job_type, key) => Self::Correlation(job_type, key),
            WireKey::Unique(job_type, key) => Self::Unique(job_type, key),
            WireKey::Idempotency(key) => Self::Idempotency(key),
        }
    }
}

impl From<Record> for WireRecord {
    fn from(Record { kind, name, until, bytes }: Record) -> Self {
        Self(kind.as_str().into(), name, until, bytes.into())
    }
}

impl TryFrom<WireRecord> for Record {
    type Error = BadCommand;

    fn try_from(WireRecord(kind, name, until, bytes): WireRecord) -> Result<Self, BadCommand> {
        Ok(Self { kind: record_kind(&kind)?, name, until, bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::testkit::builders::job;

    #[test]
    fn a_change_of_a_lifecycle_is_without_the_data_of_the_job() {
        let job = job("a").data(Encoding::Json, vec![b'1'; 1000]).build();
        let set = |all| vec![Write::SetJob { job: job.clone(), was: Revision(1), all }];
        let [whole, life] = [true, false].map(|all| encode(set(all)).unwrap());
        assert_eq!(format!("{:?}", decode(&whole).unwrap()), format!("{:?}", set(true)));
        assert!(life.len() + 1000 <= whole.len(), "{} of {}", life.len(), whole.len());
        let [Write::SetJob { job: decoded, was, all: false }] = &decode(&life).unwrap()[..] else {
            panic!("it is the same write");
        };
        assert_eq!((&decoded.id, &decoded.life, *was), (&job.id, &job.life, Revision(1)));
        assert_eq!(decoded.spec, job.spec);
    }
}
