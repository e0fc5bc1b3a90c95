//! A job as a row: read from a row, and encoded for the columns of one.

use std::sync::Arc;

use tokio_postgres::{Row, types::FromSql};

use super::{names::Known, text};
use crate::{
    blob::{encode, with_checksum},
    job_columns::{OBJECT, SEPARATE, StoredColumns, encoding_number, state_number},
    unreadable::unreadable,
};
use tidegate_core::{
    job::{Body, Job, JobId, Lifecycle, Spec},
    port::{
        StoreError,
        job_store::{INLINE_BYTES, StateFilter, UnreadableJob},
    },
    time::Timestamp,
};

/// The columns from which [`job`] reads a job, for a table of this name or alias.
macro_rules! job_columns {
    ($table:literal) => {
        concat!(
            $table,
            ".id, ",
            $table,
            ".spec, ",
            $table,
            ".life, ",
            $table,
            ".data_kind, ",
            $table,
            ".data_bytes, ",
            $table,
            ".data"
        )
    };
}
pub(super) use job_columns;

/// The value of a column.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, StoreError> {
    row.try_get(index).map_err(StoreError::corrupt)
}

/// The job in the first six columns of a row, as readers get it at `now`: a result is hidden at the
/// end of its retention.
pub(super) fn job(row: &Row, now: Timestamp) -> Result<Job, StoreError> {
    let mut job = StoredColumns {
        id: column(row, 0)?,
        spec: column(row, 1)?,
        life: column(row, 2)?,
        data_kind: column::<i16>(row, 3)?.into(),
        data_bytes: column::<i32>(row, 4)?.unsigned_abs(),
        data: column(row, 5)?,
    }
    .job()?;
    let has_object = job.life.result.as_ref().is_some_and(|result| result.object.is_some());
    // A sweep deletes the object first, and finds it by the result.
    if !has_object && job.life.result_until(&job.spec).is_some_and(|until| until <= now) {
        job.life.result = None;
    }
    Ok(job)
}

/// The job of a row of [`job`], or that it cannot be read.
pub(super) fn stored(row: &Row, now: Timestamp) -> Result<Job, UnreadableJob> {
    job(row, now).map_err(|error| unreadable(row.try_get::<_, &str>(0).unwrap_or("?"), &error))
}

/// Every column of a job.
pub(super) struct JobColumns {
    pub id: JobId,
    pub queue: i32,
    pub job_type: i32,
    pub priority: i32,
    pub critical: bool,
    pub partition: String,
    pub created_at: i64,
    pub spec: Vec<u8>,
    pub life: LifeColumns,
    pub end: Option<EndColumns>,
    pub data: DataColumns,
}

/// The columns that only an ended job has.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndColumns {
    /// From when on readers hide it.
    pub forget_at: i64,
    /// When a sweep must delete its objects.
    pub wake_at: Option<i64>,
}

impl EndColumns {
    /// Those of `job`; none if it has not ended.
    pub(super) fn of(job: &Job) -> Option<Self> {
        let forget_at = job.life.kept_until(&job.spec)?.millis();
        let has_object = job.object_keys().next().is_some();
        let wake_at = has_object.then(|| job.life.wake_at(&job.spec)).flatten();
        Some(Self { forget_at, wake_at: wake_at.map(Timestamp::millis) })
    }
}

impl JobColumns {
    /// Those of `job`, whose names have numbers.
    pub(super) fn of(job: &Job, names: &Known) -> Result<Self, StoreError> {
        let spec: &Arc<Spec> = &job.spec;
        let missing = || StoreError::corrupt("a name has no number");
        Ok(Self {
            id: job.id.clone(),
            queue: names.queue(&spec.queue).ok_or_else(missing)?,
            job_type: names.job_type(&spec.job_type).ok_or_else(missing)?,
            priority: spec.priority,
            critical: spec.critical,
            partition: text::stored(&spec.partition).into_owned(),
            created_at: spec.created_at.millis(),
            spec: encode(&**spec, job.id.as_str())?,
            life: LifeColumns::of(&job.id, &job.life, spec)?,
            end: EndColumns::of(job),
            data: DataColumns::of(&job.id, &job.data),
        })
    }
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
    pub(super) fn of(id: &JobId, life: &Lifecycle, spec: &Spec) -> Result<Self, StoreError> {
        Ok(Self {
            state: state_number(StateFilter::from(&life.state)),
            revision: life.revision.0 as i64,
            run_at: life.run_at().map(Timestamp::millis),
            wake_at: life.wake_at(spec).map(Timestamp::millis),
            life: encode(life, id.as_str())?,
        })
    }
}

/// The columns of a job's data.
#[derive(Debug)]
pub(super) struct DataColumns {
    pub kind: i64,
    pub bytes: i64,
    /// The data or the key of its object, with a checksum.
    pub data: Option<Vec<u8>>,
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
    /// The row gets this data.
    New {
        /// The encoding of the data.
        encoding: i64,
        /// The data, with a checksum.
        stored: Vec<u8>,
    },
}

impl DataColumns {
    pub(super) fn of(id: &JobId, data: &Body) -> Self {
        let bytes = data.len() as i64;
        let here = |kind: i64, data: &[u8]| Self {
            kind,
            bytes,
            data: Some(with_checksum(data, id.as_str(), kind as u8)),
            body: BodyChange::Deleted,
        };
        let elsewhere = |body| Self { kind: SEPARATE, bytes, data: None, body };
        match data {
            Body::Inline(payload) if payload.bytes.len() > INLINE_BYTES => {
                let encoding = encoding_number(payload.encoding);
                let stored = with_checksum(&payload.bytes, id.as_str(), encoding as u8);
                elsewhere(BodyChange::New { encoding, stored })
            }
            Body::Inline(payload) => here(encoding_number(payload.encoding), &payload.bytes),
            Body::Separate(_) => elsewhere(BodyChange::Unchanged),
            Body::Object { encoding, key, .. } => {
                here(OBJECT + encoding_number(*encoding), key.as_bytes())
            }
        }
    }
}
