//! Sorted lists of jobs: a bounded part of a list, by a value of each job.
//!
//! A store has one order of its own, because each further index would cost every job a write. So a
//! sorted page reads the list from its beginning, up to a bound, and keeps the jobs that belong to
//! the page. Each page reads as much as the first one.
//!
//! The cursor has the place of the last job, and the instant of the first page: later pages have no
//! jobs that were accepted after it, and compare durations of running jobs as of that instant. So a
//! job is on one page, unless its value changes in between.

use std::{collections::BTreeMap, time::Duration};

use tidegate_core::{
    job::{Job, JobSort, sort::SortPlace},
    port::{
        job_store::{ListPage, ListQuery, MAX_UNREADABLE},
        listing::{BadCursor, Cursor},
    },
};

use crate::{Engine, Error};

/// Most matching jobs that are compared.
pub const MAX_SORTED_JOBS: usize = 10_000;
/// Jobs that one read of the list returns.
const READ_JOBS: u32 = 1000;
/// Most reads of the list: two more than the jobs that are compared need.
const MAX_READS: usize = MAX_SORTED_JOBS / READ_JOBS as usize + 2;

/// A page of a sorted list.
#[derive(Clone, Debug, Default)]
pub struct SortedPage {
    /// The page. Only the first one names jobs that cannot be read.
    pub page: ListPage,
    /// What was compared; none if the order is that of the store, so that all jobs are in it.
    pub compared: Option<Compared>,
}

/// The jobs that were compared for a sorted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// How many matching jobs.
    pub jobs: u64,
    /// Whether these are all that match.
    pub is_complete: bool,
}

impl Engine {
    /// A page of the jobs that `query` selects, in the order `sort`.
    ///
    /// It compares at most [`MAX_SORTED_JOBS`], the first ones of the list in the order of the store,
    /// in at most 12 reads of the list. With conditions on the data it makes one read. The order of
    /// a store that lists the newest jobs first has no bound.
    ///
    /// # Errors
    ///
    /// 400 for a cursor of another list; the store's.
    pub async fn list_sorted(&self, query: &ListQuery, sort: JobSort) -> Result<SortedPage, Error> {
        let capabilities = self.ports.store.capabilities();
        if sort.is_newest_first() && capabilities.lists_by_creation && query.filter.ids.is_empty() {
            let page = self.list(query).await?;
            return Ok(SortedPage { page, compared: None });
        }
        let (first_at, after) = match &query.cursor {
            None => (query.now, None),
            Some(cursor) => {
                let bad = || Error::invalid("cursor", BadCursor.to_string());
                let Cursor { created_at, tie } = cursor.parse().map_err(|_| bad())?;
                (created_at, Some(SortPlace::of(&tie, sort).ok_or_else(bad)?))
            }
        };
        let mut part = Part { after, most: query.limit as usize, jobs: BTreeMap::new() };
        let mut query = ListQuery { cursor: None, limit: READ_JOBS, ..query.clone() };
        let created = &mut query.filter.created;
        let end = first_at + Duration::from_millis(1);
        created.to = Some(created.to.map_or(end, |to| to.min(end)));
        let reads = if query.filter.data.is_empty() { MAX_READS } else { 1 };
        let (mut compared, mut unreadable) = (0, Vec::new());
        for _ in 0..reads {
            let left = MAX_SORTED_JOBS - compared;
            query.limit = READ_JOBS.min(left as u32);
            let page = self.list(&query).await?;
            compared += page.jobs.len();
            for job in page.jobs {
                part.add(sort.place(&job, first_at), job);
            }
            unreadable.extend(page.unreadable);
            unreadable.truncate(MAX_UNREADABLE);
            query.cursor = page.next_cursor;
            if query.cursor.is_none() || compared >= MAX_SORTED_JOBS {
                break;
            }
        }
        if part.after.is_some() {
            unreadable.clear();
        }
        let (jobs, last) = part.take();
        let cursor = |last: SortPlace| Cursor { created_at: first_at, tie: last.text(sort) };
        let next_cursor = last.map(|last| cursor(last).to_string());
        let compared = Compared { jobs: compared as u64, is_complete: query.cursor.is_none() };
        let page = ListPage { jobs, unreadable, next_cursor };
        Ok(SortedPage { page, compared: Some(compared) })
    }
}

/// The jobs of a page, and one more if there are more.
struct Part {
    /// The place of the last job of the page before.
    after: Option<SortPlace>,
    most: usize,
    jobs: BTreeMap<SortPlace, Job>,
}

impl Part {
    fn add(&mut self, place: SortPlace, job: Job) {
        if self.after.as_ref().is_some_and(|after| place <= *after) {
            return;
        }
        self.jobs.insert(place, job);
        if self.jobs.len() > self.most + 1 {
            self.jobs.pop_last();
        }
    }

    /// The jobs in order, and the place of the last one unless it is the last of all.
    fn take(mut self) -> (Vec<Job>, Option<SortPlace>) {
        let has_more = self.jobs.len() > self.most;
        if has_more {
            self.jobs.pop_last();
        }
        let last = self.jobs.last_key_value().filter(|_| has_more);
        let last = last.map(|(place, _)| place.clone());
        (self.jobs.into_values().collect(), last)
    }
}
