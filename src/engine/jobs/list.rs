//! Lists of jobs: by the conditions that a store knows, by ids, and by values in their data.

use tidegate_core::{
    job::{Job, JobId},
    port::{
        job_store::{ListPage, ListQuery, MAX_UNREADABLE, UnreadableJob},
        listing::Cursor,
    },
    time::Timestamp,
};

use crate::{Engine, Error};

/// Jobs whose data is read together.
const PAGE_SIZE: u32 = 100;
/// Pages that one call reads; after that its own page ends.
const MAX_PAGES: u32 = 20;
/// Bytes of data after which no further page is read.
const MAX_EXAMINED_BYTES: usize = 64 << 20;
/// Bytes of data that are read at the same time, unless one body has more.
const MAX_LOADED_BYTES: usize = 16 << 20;

impl Engine {
    /// A page of the jobs that `query` selects, in the order of the store; jobs by their ids come in
    /// the order of the ids. The page may be short or even empty and still have a cursor, above all
    /// with conditions on the data: one call reads at most 2000 bodies, in pages of 100, and no further
    /// page after 64 MiB.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn list(&self, query: &ListQuery) -> Result<ListPage, Error> {
        if query.filter.data.is_empty() {
            return self.list_without_data(query).await;
        }
        let (mut query, limit) = (query.clone(), query.limit as usize);
        let mut page = ListPage::default();
        let mut bytes = 0;
        for _ in 0..MAX_PAGES {
            query.limit = ((limit - page.jobs.len()) as u32).min(PAGE_SIZE);
            let next = self.list_without_data(&query).await?;
            // Then it has read as much as one call of the store may.
            let is_short = next.jobs.len() < query.limit as usize;
            bytes += next.jobs.iter().map(|job| job.data.len()).sum::<usize>();
            let (matching, unreadable) = self.with_matching_data(next.jobs, &query).await?;
            page.jobs.extend(matching);
            page.unreadable.extend(next.unreadable.into_iter().chain(unreadable));
            page.unreadable.truncate(MAX_UNREADABLE);
            page.next_cursor = next.next_cursor;
            let is_full = page.jobs.len() == limit || bytes >= MAX_EXAMINED_BYTES;
            if page.next_cursor.is_none() || is_full || is_short {
                break;
            }
            query.cursor.clone_from(&page.next_cursor);
        }
        Ok(page)
    }

    async fn list_without_data(&self, query: &ListQuery) -> Result<ListPage, Error> {
        if query.filter.ids.is_empty() {
            return Ok(self.ports.store.list(query).await?);
        }
        let after = match query.cursor.as_deref().map(str::parse::<Cursor>) {
            None => None,
            Some(Ok(cursor)) => Some(cursor.tie),
            Some(Err(_)) => return Ok(ListPage::default()),
        };
        let is_after =
            |id: &&JobId| after.as_ref().is_none_or(|after| id.as_str() > after.as_str());
        let mut rest = query.filter.ids.iter().filter(is_after);
        let ids: Vec<JobId> = rest.by_ref().take(query.limit as usize).cloned().collect();
        let mut page = ListPage::default();
        for found in self.ports.store.get(&ids).await? {
            match found {
                Ok(job) => page.jobs.extend(job.filter(|job| query.asks_for(job))),
                Err(job) => page.unreadable.push(job),
            }
        }
        page.unreadable.truncate(MAX_UNREADABLE);
        let cursor = |id: &JobId| Cursor { created_at: Timestamp::EPOCH, tie: id.to_string() };
        let last = ids.last().filter(|_| rest.next().is_some());
        page.next_cursor = last.map(|id| cursor(id).to_string());
        Ok(page)
    }

    /// Those of `jobs` whose data fulfils the conditions of `query`, and those whose data cannot be
    /// read.
    async fn with_matching_data(
        &self,
        jobs: Vec<Job>,
        query: &ListQuery,
    ) -> Result<(Vec<Job>, Vec<UnreadableJob>), Error> {
        let (mut matching, mut unreadable) = (Vec::new(), Vec::new());
        for jobs in chunks_of_bytes(jobs, MAX_LOADED_BYTES, |job| job.data.len()) {
            let data = self.data_each(&jobs).await;
            for (job, data) in jobs.into_iter().zip(data) {
                match data {
                    Ok(data) if query.filter.matches_data(&data) => matching.push(job),
                    // It was removed after the list was read.
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(Error::Unreadable(job)) => unreadable.push(job),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok((matching, unreadable))
    }
}

/// `items` in chunks of at most `most` bytes each, in order. A larger item is a chunk of its own.
pub fn chunks_of_bytes<T>(items: Vec<T>, most: usize, bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut chunks: Vec<Vec<T>> = Vec::new();
    let mut filled = 0;
    for item in items {
        filled += bytes(&item);
        match chunks.last_mut() {
            Some(chunk) if filled <= most => chunk.push(item),
            _ => {
                filled = bytes(&item);
                chunks.push(vec![item]);
            }
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_keep_their_bound_and_the_order() {
        let chunks = chunks_of_bytes(vec![3, 4, 3, 20, 1, 9, 1], 10, |bytes| *bytes);
        assert_eq!(chunks, [vec![3, 4, 3], vec![20], vec![1, 9], vec![1]]);
        assert!(chunks_of_bytes(Vec::<usize>::new(), 10, |bytes| *bytes).is_empty());
    }
}
