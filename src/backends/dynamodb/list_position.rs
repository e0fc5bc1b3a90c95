//! Where a page of a list begins, and its cursor.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use super::key::{self, Hour};
use crate::blob::{decode, encode};
use tidegate_core::{
    port::{StoreError, listing::Cursor},
    time::Timestamp,
};

/// What positions are bound to.
const OWNER: &str = "position in a list";

/// A part of an ordered set of names: those after one, up to another one if that is known already.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Span {
    pub after: String,
    pub to: Option<String>,
}

impl Span {
    /// The part that follows this one.
    fn next(&mut self) {
        if let Some(to) = self.to.take() {
            self.after = to;
        }
    }
}

/// Where a page begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// When the list began, in milliseconds.
    pub since: i64,
    /// Whether it has come to the jobs that were first due after that.
    pub is_later: bool,
    /// The queues, by the digests of their names.
    pub queues: Span,
    /// The buckets, by their registered sort keys in the direction of the list.
    pub buckets: Span,
    /// The sort key in these buckets behind which the page begins; empty at their start.
    pub row: String,
}

impl Position {
    pub fn first(now: Timestamp) -> Self {
        let (queues, buckets) = (Span::default(), Span::default());
        Self { since: now.millis(), is_later: false, queues, buckets, row: String::new() }
    }

    /// The position in `cursor`; none if another release made the cursor.
    pub fn of(cursor: &Cursor) -> Option<Self> {
        let blob = URL_SAFE_NO_PAD.decode(&cursor.tie).ok()?;
        decode(&blob, OWNER, || OWNER.into()).ok()
    }

    /// The cursor of a page that ends here. For an earlier release, which lists by creation, it
    /// lies before every job, so that a stored operation begins its list again.
    pub fn cursor(&self) -> Result<Cursor, StoreError> {
        let tie = URL_SAFE_NO_PAD.encode(encode(self, OWNER)?);
        Ok(Cursor { created_at: Timestamp::from_millis(i64::MAX), tie })
    }

    fn since(&self) -> Timestamp {
        Timestamp::from_millis(self.since)
    }

    /// Goes on with the next buckets.
    pub fn next_buckets(&mut self) {
        self.buckets.next();
        self.row.clear();
    }

    /// Goes on with the later jobs of the same queues, or with the next queues.
    pub fn next_direction(&mut self) {
        self.buckets = Span::default();
        self.row.clear();
        self.is_later = !self.is_later;
        if !self.is_later {
            self.queues.next();
        }
    }

    /// The registered sort keys of the buckets from here on, and whether to read them backward.
    pub fn registered(&self) -> (String, String) {
        let (start, hour) = (&self.buckets.after, Hour::of(self.since()).text());
        match (self.is_later, start.is_empty()) {
            (false, true) => (key::FIRST.into(), format!("{hour}{}", key::LAST)),
            (false, false) => (key::FIRST.into(), start.clone()),
            (true, true) => (hour, key::LAST.into()),
            (true, false) => (start.clone(), key::LAST.into()),
        }
    }

    /// The sort keys in a bucket of `hour` from here on.
    pub fn rows(&self, hour: Hour) -> (String, String) {
        let is_present = hour == Hour::of(self.since());
        let boundary = is_present.then(|| format!("{}{}", key::instant(self.since()), key::LAST));
        let start = if self.row.is_empty() { boundary } else { Some(self.row.clone()) };
        if self.is_later {
            (start.unwrap_or_else(|| key::FIRST.into()), key::LAST.into())
        } else {
            (key::FIRST.into(), start.unwrap_or_else(|| key::LAST.into()))
        }
    }
}
