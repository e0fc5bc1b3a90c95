//! A job as a row: columns for what is looked for by, [blobs](crate::blob) for the rest.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Row, types::Type};

use super::error::Failure;
pub(super) use crate::blob::{decode, encode, encode_spec};
use tidegate_core::{
    job::{Body, Encoding, Job, Lifecycle, Outcome, Payload, Spec, State},
    port::{
        StoreError,
        job_store::{INLINE_BYTES, StateFilter},
    },
};

/// A statement that reads whole jobs, as [`job`] takes them, given what follows its `FROM jobs`.
macro_rules! select_jobs {
    ($rest:literal) => {
        concat!("SELECT id, spec, life, data_kind, data_bytes, data FROM jobs ", $rest)
    };
}
pub(super) use select_jobs;

/// The kind of data that lies in `bodies`.
pub(super) const BESIDE: i64 = 2;

/// A state as its column has it.
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

/// The columns that a change of a job's life writes.
#[derive(Debug)]
pub(super) struct LifeColumns {
    pub state: i64,
    pub revision: i64,
    pub run_at: Option<i64>,
    pub wake_at: Option<i64>,
    pub life: Vec<u8>,
}

impl LifeColumns {
    pub(super) fn of(life: &Lifecycle, spec: &Spec) -> Result<Self, Failure> {
        Ok(Self {
            state: state_number(StateFilter::from(&life.state)),
            revision: life.revision.0 as i64,
            run_at: match life.state {
                State::Scheduled { run_at, .. } => Some(run_at.millis()),
                _ => None,
            },
            wake_at: life.wake_at(spec).map(tidegate_core::time::Timestamp::millis),
            life: encode(life)?,
        })
    }
}

/// Where a job's data goes.
#[derive(Debug)]
pub(super) struct DataColumns {
    pub kind: i64,
    pub bytes: i64,
    pub data: Option<Bytes>,
    /// What `bodies` gets, if that changes.
    pub body: BodyChange,
}

/// What becomes of a job's row in `bodies`.
#[derive(Debug)]
pub(super) enum BodyChange {
    /// There is none any more.
    Gone,
    /// It stays as it is.
    Kept,
    /// It is this.
    New(Payload),
}

impl DataColumns {
    pub(super) fn of(data: Body) -> Self {
        let bytes = data.len() as i64;
        match data {
            Body::Inline(payload) if payload.bytes.len() > INLINE_BYTES => {
                Self { kind: BESIDE, bytes, data: None, body: BodyChange::New(payload) }
            }
            Body::Inline(payload) => Self {
                kind: encoding_number(payload.encoding),
                bytes,
                data: Some(payload.bytes),
                body: BodyChange::Gone,
            },
            Body::Beside(_) => Self { kind: BESIDE, bytes, data: None, body: BodyChange::Kept },
            Body::Object { encoding, key, .. } => Self {
                kind: 3 + encoding_number(encoding),
                bytes,
                data: Some(key.into()),
                body: BodyChange::Gone,
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
    let spec: Spec = decode(blob(row, 1)?, || format!("what job {id} is"))?;
    let life: Lifecycle = decode(blob(row, 2)?, || format!("the life of job {id}"))?;
    let bytes: u32 = row.get(4)?;
    let here = |encoding| -> Result<Body, Failure> {
        let bytes = Bytes::copy_from_slice(blob(row, 5)?);
        Ok(Body::Inline(Payload { encoding, bytes }))
    };
    let object = |encoding| -> Result<Body, Failure> {
        let key = String::from_utf8_lossy(blob(row, 5)?).into_owned();
        Ok(Body::Object { encoding, key, len: bytes })
    };
    let data = match row.get::<_, i64>(3)? {
        0 => here(Encoding::Json)?,
        1 => here(Encoding::MessagePack)?,
        BESIDE => Body::Beside(bytes),
        3 => object(Encoding::Json)?,
        4 => object(Encoding::MessagePack)?,
        kind => {
            return Err(Failure::corrupt(format!("job {id} has data of unknown kind {kind}")));
        }
    };
    let id = id.parse().map_err(|_| Failure::corrupt(format!("{id:?} is not the id of a job")))?;
    Ok(Job { id, spec: Arc::new(spec), data, life })
}

/// The same, for a page of many; none for a row that cannot be read, which is logged: it delays no other job.
pub(super) fn readable(row: &Row<'_>) -> Result<Option<Job>, Failure> {
    match job(row) {
        Err(Failure(error @ StoreError::Corrupt(_))) => {
            tracing::error!(
                error = %error.chain(),
                "a job is damaged and left out; `tidegate doctor` and a backup may help"
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
        .map_err(|error| Failure::corrupt(format!("column {index} is no {}: {error}", Type::Text)))
}

/// The bytes in column `index`, not copied.
pub(super) fn blob<'a>(row: &'a Row<'_>, index: usize) -> Result<&'a [u8], Failure> {
    row.get_ref(index)?
        .as_blob()
        .map_err(|error| Failure::corrupt(format!("column {index} is no {}: {error}", Type::Blob)))
}
