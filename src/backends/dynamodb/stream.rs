//! The buckets of one index partition in order, as one stream of entries.
//!
//! A stream of jobs of one priority agrees with every order of a queue. So a page of due jobs is a
//! merge of streams. Each is read only as far as the page needs.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::{
    DynamoStore,
    bucket::Bucket,
    due::PAGE_ENTRIES,
    partition::{Reader, SeenEntry},
};
use tidegate_core::{
    job::JobId,
    port::{StoreError, job_store::DueRange},
    queue::order::{Order, Rank},
    time::Timestamp,
};

/// How much larger each page of a stream is than the one before.
const PAGE_GROWTH: u32 = 4;

/// The granted jobs of a [`DueQuery`](tidegate_core::port::job_store::DueQuery).
pub(super) type Granted = Option<Arc<HashMap<JobId, Timestamp>>>;

/// A position in the order of a queue: the rank, and the id that decides between equal ranks.
pub(super) type Bound = (Rank, String);

/// A bucket of a stream, or a part of it.
struct Part {
    bucket: Bucket,
    /// The due times that are read; none for those of the whole stream.
    range: Option<DueRange>,
}

impl Part {
    /// The instant before which it has nothing to read.
    fn start(&self) -> Timestamp {
        let start = self.bucket.hour.start();
        self.range.and_then(|range| range.from).map_or(start, |from| from.max(start))
    }
}

/// The buckets of one index partition, and how far they were read.
pub(super) struct Stream<'a> {
    parts: VecDeque<Part>,
    reader: Option<Reader<'a>>,
    read_until: Option<Timestamp>,
    /// The priority of its jobs; none if they have several.
    priority: Option<i32>,
    /// Where it begins; none for the low watermarks of its buckets.
    from: Option<Timestamp>,
    /// The entries of the next page.
    page: u32,
    /// Whether it is for candidates: it begins behind what this process has passed, and leaves out
    /// the granted jobs.
    candidates: Option<Granted>,
}

impl<'a> Stream<'a> {
    /// The stream of the index partition of `first`, from `from` on. Its buckets must be added.
    pub(super) fn of(first: &Bucket, from: Option<Timestamp>, page: u32) -> Self {
        Self {
            parts: VecDeque::new(),
            reader: None,
            read_until: Some(first.hour.start()),
            priority: first.priority,
            from,
            page: page.clamp(1, PAGE_ENTRIES),
            candidates: None,
        }
    }

    /// Begins behind what this process has passed of each bucket, and leaves out granted jobs.
    pub(super) fn of_candidates(mut self, granted: &Granted) -> Self {
        self.candidates = Some(granted.clone());
        self
    }

    /// Adds the next bucket.
    pub(super) fn add(&mut self, bucket: Bucket) {
        self.parts.push_back(Part { bucket, range: None });
    }

    /// Adds the part of the next bucket whose due times are in `range`, or its next part.
    pub(super) fn add_range(&mut self, bucket: Bucket, range: DueRange) {
        self.parts.push_back(Part { bucket, range: Some(range) });
    }

    /// Everything before this instant was read; none if everything was.
    pub(super) fn read_until(&self) -> Option<Timestamp> {
        self.read_until
    }

    /// The position in `order` before which no unread job of the stream comes; none if everything
    /// was read.
    pub(super) fn bound(&self, order: Order) -> Option<Bound> {
        let at = self.read_until?;
        let Some(priority) = self.priority else {
            return Some((order.least_rank(at), String::new()));
        };
        let tie = self.reader.as_ref().map_or("", Reader::read_until_tie);
        Some((order.rank(priority, at), tie.to_owned()))
    }

    /// Reads the next entries, due at `until` or before.
    pub(super) async fn read(
        &mut self,
        store: &'a DynamoStore,
        until: Timestamp,
    ) -> Result<Vec<SeenEntry>, StoreError> {
        if self.reader.is_none() {
            let Some(Part { bucket, range }) = self.parts.pop_front() else {
                self.read_until = None;
                return Ok(Vec::new());
            };
            let (from, until) =
                range.map_or((self.from, until), |range| (range.from, range.until.min(until)));
            // A past hour is read to its end, so that its bucket can be closed.
            let until = Some(until).filter(|until| *until < bucket.hour.end());
            let reader = Reader::new(store, bucket, from, until);
            self.reader = Some(match &self.candidates {
                Some(granted) => reader.behind_passed().leaving_out(granted.clone()),
                None => reader,
            });
        }
        let reader = self.reader.as_mut().expect("a reader was created above");
        let page = self.page;
        self.page = (page * PAGE_GROWTH).min(PAGE_ENTRIES);
        match reader.page(page).await? {
            Some(seen) if !reader.is_done() => {
                self.read_until = Some(reader.read_until());
                Ok(seen)
            }
            seen => {
                self.reader = None;
                self.read_until = self.parts.front().map(Part::start);
                Ok(seen.unwrap_or_default())
            }
        }
    }

    /// Ends reading before the end: the low watermark moves past what was read.
    pub(super) async fn leave(self) {
        if let Some(reader) = self.reader {
            reader.leave().await;
        }
    }
}
