//! The cursors of lists.
//!
//! A scan may end at a job that its caller must not see. The cursor of a query with bounds is
//! therefore encrypted: it shows neither when that job was accepted nor its row, and rows count the
//! jobs of all callers.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde_json::json;

use crate::sealed::{KeySource, Keys};
use tidegate_core::{
    port::{StoreError, job_store::ListQuery, listing::Cursor},
    time::Timestamp,
};

/// A job's position in a list: when it was accepted, and its row.
pub(super) type ListPosition = (i64, i64);

/// What encrypted cursors are bound to.
const CURSOR_PLACE: &str = "cursor of a list";

/// The key of the cursors that are encrypted, in a file of the data directory. The first such
/// cursor creates it.
#[derive(Debug)]
pub(super) struct CursorKey {
    file: PathBuf,
    /// The key, once it was read.
    keys: Mutex<Option<Keys>>,
}

impl CursorKey {
    /// The key in the data directory `dir`.
    pub(super) fn of(dir: &Path) -> Self {
        Self { file: dir.join("cursor-key"), keys: Mutex::default() }
    }

    /// The position before which the page starts; none if the cursor is invalid.
    pub(super) fn first_position(
        &self,
        query: &ListQuery,
    ) -> Result<Option<ListPosition>, StoreError> {
        let end = (query.filter.created.to.map_or(i64::MAX, Timestamp::millis), i64::MIN);
        let Some(text) = &query.cursor else {
            return Ok(Some(end));
        };
        let Ok(cursor) = text.parse::<Cursor>() else {
            return Ok(None);
        };
        let position = match cursor.tie.parse() {
            Ok(n) => Some((cursor.created_at.millis(), n)),
            Err(_) => self.open(&cursor.tie)?,
        };
        Ok(position.map(|position| end.min(position)))
    }

    /// The cursor of a page that ended at `position`.
    pub(super) fn cursor(
        &self,
        query: &ListQuery,
        position: ListPosition,
    ) -> Result<String, StoreError> {
        if query.within_queues.is_some() || query.within_types.is_some() {
            return self.seal(position);
        }
        let (created_at, n) = position;
        Ok(Cursor { created_at: Timestamp::from_millis(created_at), tie: n.to_string() }
            .to_string())
    }

    fn keys(&self) -> Result<Keys, StoreError> {
        let mut known = self.keys.lock();
        if let Some(keys) = &*known {
            return Ok(keys.clone());
        }
        let keys = KeySource::File(self.file.clone()).load_or_create();
        let keys = keys.map_err(|error| {
            StoreError::unavailable_in(format!("the key {}", self.file.display()), error)
        })?;
        *known = Some(keys.clone());
        Ok(keys)
    }

    fn seal(&self, (created_at, n): ListPosition) -> Result<String, StoreError> {
        let sealed = self.keys()?.seal(&json!([created_at, n]), CURSOR_PLACE);
        let failed = |error| StoreError::unavailable_in("the cursor of a list", error);
        let tie = sealed.map_err(failed)?;
        Ok(Cursor { created_at: Timestamp::from_millis(0), tie }.to_string())
    }

    /// The position in the `tie` of an encrypted cursor; none if it is none of this store.
    fn open(&self, tie: &str) -> Result<Option<ListPosition>, StoreError> {
        let position = self.keys()?.open(tie, CURSOR_PLACE);
        Ok(position.ok().and_then(|position| serde_json::from_value(position).ok()))
    }
}
