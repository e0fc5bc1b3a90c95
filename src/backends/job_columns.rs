//! The columns of a job in the stores that keep a job as a row: values that are searched, and
//! [blobs](crate::blob) for the rest.

use std::sync::Arc;

use bytes::Bytes;

use crate::blob::{checked, decode};
use tidegate_core::{
    job::{Body, Encoding, Job, Lifecycle, Outcome, Payload, Spec},
    port::{StoreError, job_store::StateFilter},
};

/// The kind of data that is stored in `bodies`.
pub(crate) const SEPARATE: i64 = 2;
/// The kind of data that is a JSON object of the object store. The next one is MessagePack.
pub(crate) const OBJECT: i64 = 3;

/// The number of a state in its column.
pub(crate) fn state_number(state: StateFilter) -> i64 {
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
pub(crate) fn state_of(number: i64) -> Option<StateFilter> {
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

pub(crate) fn encoding_number(encoding: Encoding) -> i64 {
    match encoding {
        Encoding::Json => 0,
        Encoding::MessagePack => 1,
    }
}

pub(crate) fn encoding_of(number: i64) -> Encoding {
    if number == 1 { Encoding::MessagePack } else { Encoding::Json }
}

/// The columns from which a job is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredColumns<'a> {
    pub id: &'a str,
    pub spec: &'a [u8],
    pub life: &'a [u8],
    pub data_kind: i64,
    pub data_bytes: u32,
    pub data: Option<&'a [u8]>,
}

impl StoredColumns<'_> {
    /// The job.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupt`] if it cannot be read.
    pub(crate) fn job(self) -> Result<Job, StoreError> {
        let Self { id, data_kind: kind, data_bytes: bytes, .. } = self;
        let spec: Spec = decode(self.spec, id, || format!("the spec of job {id}"))?;
        let life: Lifecycle = decode(self.life, id, || format!("the lifecycle of job {id}"))?;
        let what = || format!("the data of job {id}");
        let stored = || {
            let data = self.data.ok_or_else(|| StoreError::corrupt_in(what(), "it is missing"))?;
            checked(data, id, kind as u8, what)
        };
        let data = match kind {
            0 | 1 => {
                let bytes = Bytes::copy_from_slice(stored()?);
                Body::Inline(Payload { encoding: encoding_of(kind), bytes })
            }
            SEPARATE => Body::Separate(bytes),
            OBJECT | 4 => {
                let key = String::from_utf8_lossy(stored()?).into_owned();
                Body::Object { encoding: encoding_of(kind - OBJECT), key, len: bytes }
            }
            kind => {
                let message = format!("job {id} has data of unknown kind {kind}");
                return Err(StoreError::corrupt(message));
            }
        };
        if data.len() != bytes as usize {
            let message = format!("the length of the data of job {id} is wrong");
            return Err(StoreError::corrupt(message));
        }
        let id = id.parse().map_err(|_| StoreError::corrupt(format!("{id:?} is not a job id")))?;
        Ok(Job { id, spec: Arc::new(spec), data, life })
    }
}
