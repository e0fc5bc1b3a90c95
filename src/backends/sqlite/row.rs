//! A job as a row: columns for searched values, [blobs](crate::blob) for the rest.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Row, types::Type};

use super::error::Failure;
pub(super) use crate::blob::{decode, encode};
use tidegate_core::{
    job::{Body, Encoding, Job, JobId, Lifecycle, Outcome, Payload, Spec, State},
    port::{
        StoreError,
        job_store::{INLINE_BYTES, StateFilter},
    },
};

/// A statement that reads whole jobs for [`job`], with the given text after `FROM jobs`.
macro_rules! select_jobs {
    ($rest:literal) => {
        concat!("SELECT id, spec, life, data_kind, data_bytes, data FROM jobs ", $rest)
    };
}
pub(super) use select_jobs;

/// The kind of data that is stored in `bodies`.
pub(super) const SEPARATE: i64 = 2;

/// The number of a state in its column.
pub(super) fn state_number(state: StateFilter) -> i64 {
    match state {
        StateFilter::Scheduled => 0,
        StateFilter::Running => 1,
        StateFilter::Ended(Outcome::Succeeded) => 2,
        StateFilter::Ended(Outcome::Failed) => 3,
        StateFilter::Ended(Outcome::Expired) => 4,
        StateFilter::Ended(Outcome::Cancelled) => 5,
        StateFilter::Ended(Outcome::Dropped) => 6,
    }
}

/// The state of [`state_number`].
pub(super) fn state_of(number: i64) -> Option<StateFilter> {
    let all = [
        StateFilter::Scheduled,
        StateFilter::Running,
        StateFilter::Ended(Outcome::Succeeded),
        StateFilter::Ended(Outcome::Failed),
        StateFilter::Ended(Outcome::Expired),
        StateFilter::Ended(Outcome::Cancelled),
        StateFilter::Ended(Outcome::Dropped),
    ];
    all.into_iter().find(|state| state_number(*state) == number)
}

/// The columns that a change of a job's lifecycle writes.
#[derive(Debug)]
pub(super) struct LifeColumns {
    pub state: i64,
    pub revision: i64,
    pub run_at: Option<i64>,
    pub wake_at: Option<i64>,
    pub life: Vec<u8>,
}

impl LifeColumns {
    pub(super) fn of(id: &JobId, life: &Lifecycle, spec: &Spec) -> Result<Self, Failure> {
        Ok(Self {
            state: state_number(StateFilter::from(&life.state)),
            revision: life.revision.0 as i64,
            run_at: match life.state {
                State::Scheduled { run_at, .. } => Some(run_at.millis()),
                _ => None,
            },
            wake_at: life.wake_at(spec).map(tidegate_core::time::Timestamp::millis),
            life: encode(life, id.as_str())?,
        })
    }
}

/// The columns of a job's data.
#[derive(Debug)]
pub(super) struct DataColumns {
    pub kind: i64,
    pub bytes: i64,
    pub data: Option<Bytes>,
    /// The change of the job's row in `bodies`.
    pub body: BodyChange,
}

/// A change of a job's row in `bodies`.
#[derive(Debug)]
pub(super) enum BodyChange {
    /// The row is deleted, if it exists.
    Deleted,
    /// The row is unchanged.
    Unchanged,
    /// The row gets this payload.
    New(Payload),
}

impl DataColumns {
    pub(super) fn of(data: Body) -> Self {
        let bytes = data.len() as i64;
        match data {
            Body::Inline(payload) if payload.bytes.len() > INLINE_BYTES => {
                Self { kind: SEPARATE, bytes, data: None, body: BodyChange::New(payload) }
            }
            Body::Inline(payload) => Self {
                kind: encoding_number(payload.encoding),
                bytes,
                data: Some(payload.bytes),
                body: BodyChange::Deleted,
            },
            Body::Separate(_) => {
                Self { kind: SEPARATE, bytes, data: None, body: BodyChange::Unchanged }
            }
            Body::Object { encoding, key, .. } => Self {
                kind: 3 + encoding_number(encoding),
                bytes,
                data: Some(key.into()),
                body: BodyChange::Deleted,
            },
        }
    }
}

pub(super) fn encoding_number(encoding: Encoding) -> i64 {
    match encoding {
        Encoding::Json => 0,
        Encoding::MessagePack => 1,
    }
}

pub(super) fn encoding_of(number: i64) -> Encoding {
    if number == 1 { Encoding::MessagePack } else { Encoding::Json }
}

/// The job of a row of [`select_jobs`].
pub(super) fn job(row: &Row<'_>) -> Result<Job, Failure> {
    let id = text(row, 0)?;
    let spec: Spec = decode(blob(row, 1)?, id, || format!("the spec of job {id}"))?;
    let life: Lifecycle = decode(blob(row, 2)?, id, || format!("the lifecycle of job {id}"))?;
    let bytes: u32 = row.get(4)?;
    let inline = |encoding| -> Result<Body, Failure> {
        let bytes = Bytes::copy_from_slice(blob(row, 5)?);
        Ok(Body::Inline(Payload { encoding, bytes }))
    };
    let object = |encoding| -> Result<Body, Failure> {
        let key = String::from_utf8_lossy(blob(row, 5)?).into_owned();
        Ok(Body::Object { encoding, key, len: bytes })
    };
    let data = match row.get::<_, i64>(3)? {
        0 => inline(Encoding::Json)?,
        1 => inline(Encoding::MessagePack)?,
        SEPARATE => Body::Separate(bytes),
        3 => object(Encoding::Json)?,
        4 => object(Encoding::MessagePack)?,
        kind => {
            return Err(Failure::corrupt(format!("job {id} has data of unknown kind {kind}")));
        }
    };
    let id = id.parse().map_err(|_| Failure::corrupt(format!("{id:?} is not a job id")))?;
    Ok(Job { id, spec: Arc::new(spec), data, life })
}

/// Like [`job`], but none for a damaged row, which it logs, so that the other jobs of a page can be
/// read.
pub(super) fn readable(row: &Row<'_>) -> Result<Option<Job>, Failure> {
    match job(row) {
        Err(Failure(error @ StoreError::Corrupt(_))) => {
            tracing::error!(
                error = %error.chain(),
                "skipping a job that cannot be read: a newer release wrote it, or it is damaged"
            );
            Ok(None)
        }
        job => job.map(Some),
    }
}

/// The text in column `index`, not copied.
pub(super) fn text<'a>(row: &'a Row<'_>, index: usize) -> Result<&'a str, Failure> {
    row.get_ref(index)?
        .as_str()
        .map_err(|error| Failure::corrupt(format!("column {index} is not {}: {error}", Type::Text)))
}

/// The bytes in column `index`, not copied.
pub(super) fn blob<'a>(row: &'a Row<'_>, index: usize) -> Result<&'a [u8], Failure> {
    row.get_ref(index)?
        .as_blob()
        .map_err(|error| Failure::corrupt(format!("column {index} is not {}: {error}", Type::Blob)))
}
