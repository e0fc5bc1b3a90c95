//! Transactions as the writer executes them. Their sender encodes them, because the writer thread
//! is the bottleneck.
//!
//! All steps of a request are in one list, and all of their bytes in another, except those of rows
//! in `bodies`, which are large. So a request of a thousand jobs allocates about as often as one of
//! a single job. The sender allocates and the writer thread frees, and each of these may wait for a
//! lock of the heap.

use std::{iter, sync::Arc};

use serde::Serialize;

use super::{
    error::Failure,
    row::{self, LifeColumns, OBJECT, SEPARATE, encoding_number},
};
use crate::blob;
use tidegate_core::{
    job::{Body, Job, JobId, Revision, Spec},
    port::{
        Txn, Write,
        job_store::{INLINE_BYTES, ItemKind},
    },
};

/// About how many bytes a step has. A list for many steps starts with enough room.
const USUAL_BYTES: usize = 192;

/// The transactions of a request.
pub(super) struct Steps {
    list: Vec<Step>,
    /// Where each transaction ends in `list`.
    ends: Vec<usize>,
    blobs: Blobs,
}

impl Steps {
    /// The steps of `txns`, encoded.
    ///
    /// # Errors
    ///
    /// A value cannot be encoded.
    pub(super) fn of(txns: Vec<Txn>) -> Result<Self, Failure> {
        let count = txns.iter().map(Vec::len).sum();
        let mut list = Vec::with_capacity(count);
        let mut ends = Vec::with_capacity(txns.len());
        let mut blobs = Blobs(Vec::with_capacity(count * USUAL_BYTES));
        for txn in txns {
            for write in txn {
                list.push(Step::of(write, &mut blobs)?);
            }
            ends.push(list.len());
        }
        Ok(Self { list, ends, blobs })
    }

    /// How many steps there are in all transactions.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The steps of each transaction.
    pub(super) fn txns(&self) -> impl Iterator<Item = &[Step]> {
        let starts = iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.list[start..*end])
    }

    /// The bytes that the steps name.
    pub(super) fn blobs(&self) -> &Blobs {
        &self.blobs
    }
}

/// A write, encoded.
pub(super) enum Step {
    Add(JobColumns),
    SetLife {
        id: JobId,
        was: Revision,
        life: LifeColumns,
        encoded: Blob,
    },
    SetAll {
        whole: JobColumns,
        was: Revision,
    },
    Remove {
        id: JobId,
        was: Revision,
    },
    /// The condition that an item has this version.
    Require {
        kind: ItemKind,
        name: Arc<str>,
        version: u64,
    },
    /// A write that is not about a job.
    Other(Box<Write>),
}

impl Step {
    fn of(write: Write, blobs: &mut Blobs) -> Result<Self, Failure> {
        Ok(match write {
            Write::AddJob(job) => Self::Add(JobColumns::of(job, blobs)?),
            Write::SetJob { job, was, all: true } => {
                Self::SetAll { whole: JobColumns::of(job, blobs)?, was }
            }
            Write::SetJob { job, was, all: false } => Self::SetLife {
                life: LifeColumns::of(&job.life, &job.spec),
                encoded: blobs.encode(&job.life, &job.id)?,
                id: job.id,
                was,
            },
            Write::RemoveJob { id, was } => Self::Remove { id, was },
            Write::RequireItem { kind, name, version } => Self::Require { kind, name, version },
            other => Self::Other(Box::new(other)),
        })
    }
}

/// Every column of a job.
pub(super) struct JobColumns {
    pub id: JobId,
    pub spec: Arc<Spec>,
    pub encoded_spec: Blob,
    pub life: LifeColumns,
    pub encoded_life: Blob,
    pub data: DataColumns,
}

impl JobColumns {
    fn of(job: Job, blobs: &mut Blobs) -> Result<Self, Failure> {
        Ok(Self {
            encoded_spec: blobs.encode(&*job.spec, &job.id)?,
            life: LifeColumns::of(&job.life, &job.spec),
            encoded_life: blobs.encode(&job.life, &job.id)?,
            data: DataColumns::of(&job.data, &job.id, blobs),
            id: job.id,
            spec: job.spec,
        })
    }
}

/// The columns of a job's data.
pub(super) struct DataColumns {
    pub kind: i64,
    pub bytes: i64,
    /// The data or the key of its object, with a checksum.
    pub data: Option<Blob>,
    /// The change of the job's row in `bodies`.
    pub body: BodyChange,
}

/// A change of a job's row in `bodies`.
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
    fn of(data: &Body, id: &JobId, blobs: &mut Blobs) -> Self {
        let bytes = data.len() as i64;
        let mut here = |kind: i64, data: &[u8]| Self {
            kind,
            bytes,
            data: Some(blobs.add_with_checksum(data, id, kind as u8)),
            body: BodyChange::Deleted,
        };
        let elsewhere = |body| Self { kind: SEPARATE, bytes, data: None, body };
        match data {
            Body::Inline(payload) if payload.bytes.len() > INLINE_BYTES => {
                let encoding = encoding_number(payload.encoding);
                let stored = row::with_checksum(&payload.bytes, id.as_str(), encoding as u8);
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

/// The bytes of many columns, one after the other.
pub(super) struct Blobs(Vec<u8>);

/// Where the bytes of a column are in [`Blobs`].
#[derive(Clone, Copy)]
pub(super) struct Blob {
    start: usize,
    end: usize,
}

impl Blobs {
    /// The bytes of a column.
    pub(super) fn get(&self, blob: Blob) -> &[u8] {
        &self.0[blob.start..blob.end]
    }

    fn encode<T: Serialize>(&mut self, value: &T, id: &JobId) -> Result<Blob, Failure> {
        let start = self.0.len();
        blob::encode_to(&mut self.0, value, id.as_str())?;
        Ok(Blob { start, end: self.0.len() })
    }

    fn add_with_checksum(&mut self, bytes: &[u8], id: &JobId, kind: u8) -> Blob {
        let start = self.0.len();
        blob::add_with_checksum(&mut self.0, bytes, id.as_str(), kind);
        Blob { start, end: self.0.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::job::Lifecycle;
    use tidegate_engine::testkit::builders::job;

    #[test]
    fn a_step_names_the_bytes_of_its_own_job() {
        let jobs = ["a", "b", "c"].map(|id| job(id).queue(id).build());
        let [a, b, c] = jobs.each_ref().map(|job| Write::AddJob(job.clone()));
        let steps = Steps::of(vec![vec![a], Vec::new(), vec![b, c]]).unwrap();
        let lengths: Vec<usize> = steps.txns().map(<[Step]>::len).collect();
        assert_eq!((lengths, steps.len()), (vec![1, 0, 2], 3));
        for (step, job) in steps.txns().flatten().zip(&jobs) {
            let Step::Add(whole) = step else { panic!("it adds a job") };
            let blob = |blob| steps.blobs().get(blob);
            let id = job.id.as_str();
            let spec: Spec = row::decode(blob(whole.encoded_spec), id, String::new).unwrap();
            let life: Lifecycle = row::decode(blob(whole.encoded_life), id, String::new).unwrap();
            assert_eq!((&spec, &life), (&*job.spec, &job.life));
            let data = blob(whole.data.data.unwrap());
            let data = row::checked(data, id, whole.data.kind as u8, String::new).unwrap();
            assert_eq!(Some(data), job.data.inline().map(|payload| &*payload.bytes));
        }
    }
}
