//! A job as a row: columns for searched values, [blobs](crate::blob) for the rest.

use rusqlite::{
    Row, ToSql,
    types::{FromSql, FromSqlResult, ToSqlOutput, Type, ValueRef},
};

use super::error::Failure;
pub(super) use crate::blob::{checked, decode, encode, record_owner, with_checksum};
pub(super) use crate::job_columns::{
    OBJECT, SEPARATE, StoredColumns, encoding_number, encoding_of, state_number, state_of,
};
use crate::unreadable::unreadable;
use tidegate_core::{
    checksum::checksum,
    job::{Job, Lifecycle, Spec},
    port::{
        StoreError,
        job_store::{Item, ItemKind, StateFilter, UnreadableJob},
    },
    time::Timestamp,
};

/// A statement that reads whole jobs for [`job`], with the given text after `FROM jobs`.
macro_rules! select_jobs {
    ($rest:literal) => {
        concat!("SELECT id, spec, life, data_kind, data_bytes, data FROM jobs ", $rest)
    };
}
pub(super) use select_jobs;

/// The columns that a change of a job's lifecycle writes, in addition to the lifecycle itself.
#[derive(Debug)]
pub(super) struct LifeColumns {
    pub state: i64,
    pub revision: i64,
    pub run_at: Option<i64>,
    pub wake_at: Option<i64>,
}

impl LifeColumns {
    pub(super) fn of(life: &Lifecycle, spec: &Spec) -> Self {
        Self {
            state: state_number(StateFilter::from(&life.state)),
            revision: life.revision.0 as i64,
            run_at: life.run_at().map(Timestamp::millis),
            wake_at: life.wake_at(spec).map(Timestamp::millis),
        }
    }
}

/// The job of a row of [`select_jobs`].
pub(super) fn job(row: &Row<'_>) -> Result<Job, Failure> {
    let id = text(row, 0)?;
    let (spec, life) = (blob(row, 1)?, blob(row, 2)?);
    let data = row
        .get_ref(5)?
        .as_blob_or_null()
        .map_err(|error| Failure::corrupt(format!("column 5 is not {}: {error}", Type::Blob)))?;
    let stored =
        StoredColumns { id, spec, life, data_kind: row.get(3)?, data_bytes: row.get(4)?, data };
    Ok(stored.job()?)
}

/// The job of a row of [`select_jobs`], or that it cannot be read.
pub(super) fn stored(row: &Row<'_>) -> Result<Result<Job, UnreadableJob>, Failure> {
    match job(row) {
        Err(Failure(error @ StoreError::Corrupt(_))) => Ok(Err(unreadable(shown_id(row), &error))),
        job => job.map(Ok),
    }
}

/// Like [`stored`], but none for a job that cannot be read, for pages that leave it out.
pub(super) fn readable(row: &Row<'_>) -> Result<Option<Job>, Failure> {
    Ok(stored(row)?.ok())
}

/// The owner of an item in its checksum.
pub(super) fn item_owner(kind: &str, name: &str, version: i64) -> String {
    format!("{kind} {name} {version}")
}

/// The item in a row of name, version and bytes. If one of them is damaged, it cannot be read.
pub(super) fn item(row: &Row<'_>, kind: ItemKind) -> Result<Item, rusqlite::Error> {
    let name: RawText = row.get(0)?;
    let name = name.shown();
    let version = row.get_ref(1)?.as_i64().unwrap_or_default();
    let stored = row.get_ref(2)?.as_bytes().unwrap_or_default();
    let owner = item_owner(kind.as_str(), &name, version);
    let bytes = checked(stored, &owner, 0, || format!("the {} {name}", kind.as_str()));
    let bytes = bytes.map(<[u8]>::to_vec).map_err(|error| error.chain().to_string());
    Ok(Item { name, version: version as u64, bytes })
}

/// The checksum of a key's row.
pub(super) fn key_sum(kind: i64, job_type: i64, key: &[u8], job: &[u8]) -> i64 {
    let numbers = [kind.to_be_bytes(), job_type.to_be_bytes()].concat();
    i64::from(checksum(&[&numbers, &(key.len() as u64).to_be_bytes(), key, job]))
}

/// The id of a row of [`select_jobs`], as far as it can be read.
pub(super) fn shown_id(row: &Row<'_>) -> String {
    let id = row.get_ref(0).ok().and_then(|id| id.as_bytes().ok());
    String::from_utf8_lossy(id.unwrap_or_default()).into_owned()
}

/// A text of a row that need not be UTF-8, because damage must stop no search.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RawText(pub Vec<u8>);

impl RawText {
    /// The text, as far as it can be read.
    pub(super) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl From<&str> for RawText {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl FromSql for RawText {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_bytes().map(|bytes| Self(bytes.to_vec()))
    }
}

impl ToSql for RawText {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
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
